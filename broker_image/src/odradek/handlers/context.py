"""What request handlers receive: the broker's parts, and the context of one request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

from odradek.handlers.conversion_memory import ConversionMemory
from odradek.net.memory_quotas import AnswerMemory
from odradek.net.next_request import NextRequest
from odradek.net.unasked import Unasked
from odradek.quotas.client_quotas import ClientQuotas
from odradek.quotas.request_quota import RequestQuota
from odradek.values import ANONYMOUS, Principal

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.controller.loop import Controller
    from odradek.group.coordinator import GroupCoordinator
    from odradek.metrics.counters import BrokerCounters
    from odradek.replica.manager import ReplicaManager
    from odradek.replica.metadata import MetadataCache
    from odradek.security.authorizer import Authorizer
    from odradek.transaction.coordinator import TransactionCoordinator
    from odradek.transaction.verifier import TransactionVerifier
    from odradek.zk.producer_ids import ProducerIdManager
    from odradek.zk.session import Session


class CurrentRegistration(Protocol):
    """This broker's znode under /brokers/ids."""

    @property
    def epoch(self) -> int:
        """The broker epoch: the czxid of the znode, which rises with each registration.

        It fences requests meant for a previous registration.
        """

    async def admits_request(self) -> bool:
        """Return whether a request of the controller that came now is for this registration."""


@dataclass(slots=True)
class ControllerLink:
    """The newest connection of the present controller.

    A controller that gets no answer sends the present state on a new connection. Requests on the
    connection that it gave up may still arrive afterwards, from the socket buffers of a broker that
    was stopped, and nothing in them shows that they are old.
    """

    controller_epoch: int = -1
    connection_id: int = -1

    def is_current(self, controller_epoch: int, connection_id: int) -> bool:
        """Return whether a request came on this connection, or on one that replaces it.

        Old controller epochs are not rejected here.
        """
        if controller_epoch > self.controller_epoch:
            self.controller_epoch, self.connection_id = controller_epoch, connection_id
        elif controller_epoch == self.controller_epoch:
            if connection_id < self.connection_id:
                return False
            self.connection_id = connection_id
        return True


@dataclass(frozen=True, slots=True)
class Broker:
    """The parts of a running broker that handlers use. The server builds it once."""

    config: BrokerConfig
    cluster_id: str
    replicas: ReplicaManager
    metadata: MetadataCache
    session: Session
    controller: Controller
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verifier: TransactionVerifier
    registration: CurrentRegistration
    producer_ids: ProducerIdManager
    metrics: BrokerCounters
    random: Random
    # None: everybody may do everything.
    authorizer: Authorizer | None = None
    controller_link: ControllerLink = field(default_factory=ControllerLink)
    answers: AnswerMemory = field(default_factory=AnswerMemory)
    conversions: ConversionMemory = field(default_factory=ConversionMemory)
    follower_conversions: ConversionMemory = field(default_factory=ConversionMemory)
    quotas: ClientQuotas = field(default_factory=ClientQuotas)


class RequestContext(NamedTuple):
    """The context of one request: its version, its client, and the listener that it came to.

    Of two connections the later one has the higher `connection_id`. A named tuple is faster to
    build than a dataclass, and every request needs one.
    """

    version: int
    client_id: str | None
    listener: str
    host: str
    connection_id: int
    # Whether the client can still send: long work for one that went away is in vain.
    is_connected: Callable[[], bool] = lambda: True
    principal: Principal = ANONYMOUS
    # None if no quota is set, or if the request is exempt.
    quota: RequestQuota | None = None
    # None: nobody sends one.
    next_request: NextRequest | None = None
    # None: nothing is known of its connection.
    unasked: Unasked | None = None
    # Whether the handler may return an answer that is there later.
    takes_later: bool = False

    def count_mutations(self, partitions: int, strict_since: int | None = None) -> None:
        """Count partitions that the request creates or deletes (KIP-599).

        Raises THROTTLING_QUOTA_EXCEEDED if there were too many before, in versions from
        `strict_since` on: clients of older ones do not know that error.
        """
        if self.quota is not None:
            strict = strict_since is not None and self.version >= strict_since
            self.quota.mutate(partitions, strict=strict)


# A handler returns the answer, its encoded body, where it comes from later (`Later`, if the context
# takes that), or None where the protocol has no answer (acks=0).
Handle = Callable[[Broker, object, RequestContext], Awaitable[object | bytes | None]]
