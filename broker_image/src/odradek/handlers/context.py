"""What a request handler may reach: the broker's parts, and the circumstances of one request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.controller.loop import Controller
    from odradek.group.coordinator import GroupCoordinator
    from odradek.metrics import BrokerMetrics
    from odradek.replica.manager import ReplicaManager
    from odradek.replica.metadata import MetadataCache
    from odradek.zk.producer_ids import ProducerIdManager
    from odradek.zk.session import Session


class CurrentRegistration(Protocol):
    """This broker's znode under /brokers/ids."""

    @property
    def epoch(self) -> int:
        """The czxid of the znode: grows with each registration, and fences requests meant for a
        former one.
        """

    async def admits_request(self) -> bool:
        """Whether a controller's request that came right now is meant for this registration."""


@dataclass(slots=True)
class ControllerLink:
    """The newest connection on which the present controller spoke.

    A controller that got no answer says what holds by then on another connection. What it had said
    on the one it gave up may still come afterwards, out of the buffers of a broker that was
    stopped, and nothing in it tells that it is old.
    """

    controller_epoch: int = -1
    connection_id: int = -1

    def is_current(self, controller_epoch: int, connection_id: int) -> bool:
        """Whether a request comes on it, or on one that replaces it.

        Whether an epoch is too old is for others to judge.
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
    """The parts of a running broker, as handlers see them. Built once by the server."""

    config: BrokerConfig
    cluster_id: str
    replicas: ReplicaManager
    metadata: MetadataCache
    session: Session
    controller: Controller
    groups: GroupCoordinator
    registration: CurrentRegistration
    producer_ids: ProducerIdManager
    metrics: BrokerMetrics
    random: Random
    controller_link: ControllerLink = field(default_factory=ControllerLink)


class RequestContext(NamedTuple):
    """One request's circumstances: protocol version, who sent it, from where, to which listener.

    Of two connections the later one has the higher `connection_id`. A named tuple, not a dataclass:
    it is built for every request.
    """

    version: int
    client_id: str | None
    listener: str
    host: str
    connection_id: int


# A handler returns the answer, its already encoded body, or None where the protocol has no answer
# (acks=0).
Handle = Callable[[Broker, object, RequestContext], Awaitable[object | bytes | None]]
