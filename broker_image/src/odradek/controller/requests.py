"""The controller's messages as requests of the protocol, in the versions of Kafka 2.2.

They are the first that name the registration of the broker that they are meant for (KIP-380). What
was decided for a broker may reach it only after it died and came back, perhaps with an empty disk:
it then refuses to lead what it led before.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from odradek.controller.events import (
    LeaderAndIsr,
    LiveBroker,
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
from odradek.zk.znodes import SECURITY_PROTOCOLS, BrokerEndpoint

LEADER_AND_ISR_VERSION = 2
UPDATE_METADATA_VERSION = 5
STOP_REPLICA_VERSION = 1

Told = TypeVar("Told", PartitionMetadata, PartitionRole)


def _by_topic(partitions: Iterable[Told]) -> dict[str, list[Told]]:
    grouped: dict[str, list[Told]] = {}
    for one in partitions:
        grouped.setdefault(one.partition.topic, []).append(one)
    return grouped


def endpoint(broker: LiveBroker, listener: str) -> BrokerEndpoint | None:
    """Return where a broker is reached by other brokers; None if it has no such listener."""
    return broker.registration.endpoint(listener)


def update_metadata(
    message: UpdateMetadata, controller: int, epoch: int, broker_epoch: int
) -> UpdateMetadataRequest:
    """Return UpdateMetadata v5."""
    return UpdateMetadataRequest(
        controller_id=controller,
        controller_epoch=epoch,
        broker_epoch=broker_epoch,
        topic_states=[
            UpdateMetadataTopicState(
                topic_name=topic, partition_states=[_metadata(one) for one in partitions]
            )
            for topic, partitions in _by_topic(message.partitions).items()
        ],
        live_brokers=[_broker(one) for one in message.brokers],
    )


def _metadata(one: PartitionMetadata) -> UpdateMetadataPartitionState:
    state = one.leadership.state
    return UpdateMetadataPartitionState(
        partition_index=one.partition.partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        zk_version=one.leadership.zk_version,
        replicas=list(one.replicas),
        offline_replicas=list(one.offline_replicas),
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


def leader_and_isr(
    message: LeaderAndIsr, controller: int, epoch: int, broker_epoch: int, listener: str
) -> LeaderAndIsrRequest:
    """Return LeaderAndIsr v2; leaders are named by their address on the brokers' listener."""
    return LeaderAndIsrRequest(
        controller_id=controller,
        controller_epoch=epoch,
        broker_epoch=broker_epoch,
        topic_states=[
            LeaderAndIsrTopicState(topic_name=topic, partition_states=[_role(one) for one in roles])
            for topic, roles in _by_topic(message.roles).items()
        ],
        live_leaders=_leaders(message.leaders, listener),
    )


def _role(one: PartitionRole) -> LeaderAndIsrPartitionState:
    state = one.leadership.state
    return LeaderAndIsrPartitionState(
        partition_index=one.partition.partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        zk_version=one.leadership.zk_version,
        replicas=list(one.replicas),
        is_new=one.is_new,
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


def stop_replica(
    message: StopReplicas, controller: int, epoch: int, broker_epoch: int
) -> StopReplicaRequest:
    """Return StopReplica v1."""
    by_topic: dict[str, list[int]] = {}
    for one in message.partitions:
        by_topic.setdefault(one.topic, []).append(one.partition)
    return StopReplicaRequest(
        controller_id=controller,
        controller_epoch=epoch,
        broker_epoch=broker_epoch,
        delete_partitions=message.delete,
        topics=[
            StopReplicaTopicV1(name=topic, partition_indexes=numbers)
            for topic, numbers in by_topic.items()
        ],
    )
