"""The controller's messages as requests of the protocol, in the versions of Kafka 2.1."""

from collections.abc import Sequence

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
    StopReplicaPartitionV0,
    StopReplicaRequest,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
)
from odradek.zk.znodes import SECURITY_PROTOCOLS, Endpoint

LEADER_AND_ISR_VERSION = 1
UPDATE_METADATA_VERSION = 4
STOP_REPLICA_VERSION = 0


def endpoint(broker: LiveBroker, listener: str) -> Endpoint | None:
    """Return where a broker is reached by other brokers; None if it has no such listener."""
    return broker.registration.endpoint(listener)


def update_metadata(message: UpdateMetadata, controller: int, epoch: int) -> UpdateMetadataRequest:
    """Return UpdateMetadata v4."""
    return UpdateMetadataRequest(
        controller_id=controller,
        controller_epoch=epoch,
        ungrouped_partition_states=[_metadata(one) for one in message.partitions],
        live_brokers=[_broker(one) for one in message.brokers],
    )


def _metadata(one: PartitionMetadata) -> UpdateMetadataPartitionState:
    state = one.leadership.state
    return UpdateMetadataPartitionState(
        topic_name=one.partition.topic,
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
    message: LeaderAndIsr, controller: int, epoch: int, listener: str
) -> LeaderAndIsrRequest:
    """Return LeaderAndIsr v1; leaders are named by their address on the brokers' listener."""
    return LeaderAndIsrRequest(
        controller_id=controller,
        controller_epoch=epoch,
        ungrouped_partition_states=[_role(one) for one in message.roles],
        live_leaders=_leaders(message.leaders, listener),
    )


def _role(one: PartitionRole) -> LeaderAndIsrPartitionState:
    state = one.leadership.state
    return LeaderAndIsrPartitionState(
        topic_name=one.partition.topic,
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


def stop_replica(message: StopReplicas, controller: int, epoch: int) -> StopReplicaRequest:
    """Return StopReplica v0."""
    return StopReplicaRequest(
        controller_id=controller,
        controller_epoch=epoch,
        delete_partitions=message.delete,
        ungrouped_partitions=[
            StopReplicaPartitionV0(topic_name=one.topic, partition_index=one.partition)
            for one in message.partitions
        ],
    )
