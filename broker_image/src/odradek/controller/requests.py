"""The controller's messages as requests of the protocol, in the versions of Kafka 2.2 and 2.4.

UpdateMetadata and StopReplica are of the first versions that name the broker epoch that they are
meant for (KIP-380). A request may reach a broker only after it died and came back, perhaps with an
empty disk. The restarted broker rejects requests meant for its previous broker epoch. LeaderAndIsr
is of the next version, the first that names the replicas which a reassignment adds (KIP-455).
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from odradek import slices
from odradek.controller.events import (
    LeaderAndIsr,
    LiveBroker,
    Message,
    PartitionMetadata,
    PartitionRole,
    StopReplicas,
    UpdateMetadata,
)
from odradek.protocol.messages.control import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaRequest,
    StopReplicaTopicV1,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from odradek.values import SECURITY_PROTOCOLS
from odradek.zk.znodes import BrokerEndpoint

LEADER_AND_ISR_VERSION = 3
UPDATE_METADATA_VERSION = 5
STOP_REPLICA_VERSION = 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sender:
    """The controller that every request names. `listener` is the one between brokers."""

    controller_id: int
    epoch: int
    listener: str
    timeout_ms: int


class _Header(TypedDict):
    controller_id: int
    controller_epoch: int
    broker_epoch: int


class _PartitionState(TypedDict):
    partition_index: int
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: list[int]
    zk_version: int
    replicas: list[int]


def build_in_slices(
    message: Message, sender: Sender, broker_epoch: int
) -> Generator[None, None, tuple[Any, int]]:
    """Return the request for a message to a broker of this epoch, and its version.

    A generator that yields in between: a broker that comes is told of every partition at once.
    """
    header = _Header(
        controller_id=sender.controller_id,
        controller_epoch=sender.epoch,
        broker_epoch=broker_epoch,
    )
    match message:
        case UpdateMetadata():
            return (yield from _update_metadata(message, header)), UPDATE_METADATA_VERSION
        case LeaderAndIsr():
            request = yield from _leader_and_isr(message, header, sender.listener)
            return request, LEADER_AND_ISR_VERSION
        case StopReplicas():
            return (yield from _stop_replica(message, header)), STOP_REPLICA_VERSION


def endpoint(broker: LiveBroker, listener: str) -> BrokerEndpoint | None:
    """Return where other brokers reach a broker; None if it has no such listener."""
    return broker.registration.endpoint(listener)


def _by_topic(
    partitions: Iterable[tuple[str, T]],
) -> Generator[None, None, dict[str, list[T]]]:
    grouped: dict[str, list[T]] = {}
    for part in slices.cut(partitions):
        for topic, one in part:
            grouped.setdefault(topic, []).append(one)
        if len(part) == slices.STEPS_PER_SLICE:
            yield
    return grouped


def _state(one: PartitionMetadata | PartitionRole) -> _PartitionState:
    state = one.leadership.state
    return _PartitionState(
        partition_index=one.partition.partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        zk_version=one.leadership.zk_version,
        replicas=list(one.replicas),
    )


def _update_metadata(
    message: UpdateMetadata, header: _Header
) -> Generator[None, None, UpdateMetadataRequest]:
    states = (
        (
            one.partition.topic,
            UpdateMetadataPartitionState(
                **_state(one), offline_replicas=list(one.offline_replicas)
            ),
        )
        for one in message.partitions
    )
    topics = yield from _by_topic(states)
    return UpdateMetadataRequest(
        **header,
        topic_states=[
            UpdateMetadataTopicState(topic_name=topic, partition_states=found)
            for topic, found in topics.items()
        ],
        live_brokers=[_broker(one) for one in message.brokers],
    )


def _broker(broker: LiveBroker) -> UpdateMetadataBroker:
    return UpdateMetadataBroker(
        id=broker.registration.broker_id,
        endpoints=[
            UpdateMetadataEndpoint(
                port=one.port,
                host=one.host,
                listener=one.listener,
                security_protocol=SECURITY_PROTOCOLS[one.security_protocol],
            )
            for one in broker.registration.endpoints
        ],
        rack=broker.registration.rack,
    )


def _leader_and_isr(
    message: LeaderAndIsr, header: _Header, listener: str
) -> Generator[None, None, LeaderAndIsrRequest]:
    states = (
        (
            one.partition.topic,
            LeaderAndIsrPartitionState(
                **_state(one),
                adding_replicas=list(one.adding),
                removing_replicas=list(one.removing),
                is_new=one.is_new,
            ),
        )
        for one in message.roles
    )
    topics = yield from _by_topic(states)
    return LeaderAndIsrRequest(
        **header,
        topic_states=[
            LeaderAndIsrTopicState(topic_name=topic, partition_states=found)
            for topic, found in topics.items()
        ],
        live_leaders=_leaders(message.leaders, listener),
    )


def _leaders(leaders: Sequence[LiveBroker], listener: str) -> list[LeaderAndIsrLiveLeader]:
    found = []
    for leader in leaders:
        where = endpoint(leader, listener)
        if where is not None:
            found.append(
                LeaderAndIsrLiveLeader(
                    broker_id=leader.registration.broker_id, host_name=where.host, port=where.port
                )
            )
    return found


def _stop_replica(
    message: StopReplicas, header: _Header
) -> Generator[None, None, StopReplicaRequest]:
    topics = yield from _by_topic(message.partitions)
    return StopReplicaRequest(
        **header,
        delete_partitions=message.delete,
        topics=[
            StopReplicaTopicV1(name=topic, partition_indexes=numbers)
            for topic, numbers in topics.items()
        ],
    )
