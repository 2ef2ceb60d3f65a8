"""What a request handler may reach: the broker's parts, and the circumstances of one request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.controller.loop import Controller
    from odradek.group.coordinator import GroupCoordinator
    from odradek.handlers.producers import ProducerIds
    from odradek.metrics import BrokerMetrics
    from odradek.replica.manager import ReplicaManager
    from odradek.replica.metadata import MetadataCache
    from odradek.zk.session import Session


class Registration(Protocol):
    """This broker's znode under /brokers/ids."""

    @property
    def epoch(self) -> int:
        """The czxid of the znode: grows with each registration, and fences requests meant for a
        former one.
        """

    async def admits_request(self) -> bool:
        """Whether a controller's request that came right now is meant for this registration."""


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
    registration: Registration
    producer_ids: ProducerIds
    metrics: BrokerMetrics
    random: Random


@dataclass(frozen=True, slots=True)
class Call:
    """One request's circumstances: protocol version, who sent it, from where, to which listener."""

    version: int
    client_id: str | None
    listener: str
    host: str


# A handler returns the answer, its already encoded body, or None where the protocol has no answer
# (acks=0).
Handle = Callable[[Broker, object, Call], Awaitable[object | bytes | None]]
