"""What the controller tells this broker, and ControlledShutdown, which brokers ask of the
controller.
"""

from __future__ import annotations

from odradek.group.partitioning import OFFSETS_TOPIC
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.control import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    RemainingPartition,
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from odradek.replica.metadata import LEADER_DURING_DELETE, described

NO_BROKER_EPOCH = -1


async def _meant_for_former_self(broker: Broker, broker_epoch: int) -> bool:
    """Whether the request was sent to this broker before it registered anew (KIP-380).

    Requests without a broker epoch, as Kafka sends them before 2.2, tell it by when they come: a
    broker that has crashed may lack records that its former leaderships rest on. One that names the
    registration is meant for it whenever it came: it would not be sent again.
    """
    came_in_time = await broker.registration.admits_request()
    if broker_epoch == NO_BROKER_EPOCH:
        return not came_in_time
    return not 0 <= broker.registration.epoch <= broker_epoch


async def _refusal(
    broker: Broker,
    request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest,
    context: RequestContext,
) -> ErrorCode:
    """Return why this broker does not obey a request of a controller, NONE where it does."""
    if await _meant_for_former_self(broker, request.broker_epoch):
        return ErrorCode.STALE_BROKER_EPOCH
    if not broker.controller_link.is_current(request.controller_epoch, context.connection_id):
        return ErrorCode.STALE_CONTROLLER_EPOCH
    return ErrorCode.NONE


async def leader_and_isr(
    broker: Broker, request: LeaderAndIsrRequest, context: RequestContext
) -> LeaderAndIsrResponse:
    """Take leader and follower roles."""
    error = await _refusal(broker, request, context)
    if error is not ErrorCode.NONE:
        return LeaderAndIsrResponse(error_code=error, partition_errors=[])
    error, errors = await broker.replicas.become_leader_or_follower(request)
    if any(key.topic == OFFSETS_TOPIC for key in errors):
        broker.groups.notice_roles()
    return LeaderAndIsrResponse(
        error_code=error,
        partition_errors=[
            LeaderAndIsrPartitionError(
                topic_name=key.topic, partition_index=key.partition, error_code=code
            )
            for key, code in errors.items()
        ],
    )


async def stop_replica(
    broker: Broker, request: StopReplicaRequest, context: RequestContext
) -> StopReplicaResponse:
    """Stop copying, and delete where told."""
    error = await _refusal(broker, request, context)
    if error is not ErrorCode.NONE:
        return StopReplicaResponse(error_code=error, partition_errors=[])
    error, errors = await broker.replicas.stop_replicas(request)
    return StopReplicaResponse(
        error_code=error,
        partition_errors=[
            StopReplicaPartitionError(
                topic_name=key.topic, partition_index=key.partition, error_code=code
            )
            for key, code in errors.items()
        ],
    )


async def update_metadata(
    broker: Broker, request: UpdateMetadataRequest, context: RequestContext
) -> UpdateMetadataResponse:
    """Take in what the controller says of the cluster."""
    error = await _refusal(broker, request, context)
    if error is not ErrorCode.NONE:
        return UpdateMetadataResponse(error_code=error)
    if not broker.replicas.accept_controller(request.controller_epoch):
        return UpdateMetadataResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
    broker.metadata.update(request)
    broker.replicas.drop_moved_replicas(request)
    deleted = {
        (topic, state.partition_index)
        for topic, state in described(request)
        if state.leader == LEADER_DURING_DELETE
    }
    if deleted:
        broker.groups.forget_partitions(deleted)
    return UpdateMetadataResponse()


async def controlled_shutdown(
    broker: Broker, request: ControlledShutdownRequest, context: RequestContext
) -> ControlledShutdownResponse:
    """Move the leaderships of a broker that is about to stop; only the controller can."""
    try:
        remaining = await broker.controller.controlled_shutdown(request.broker_id)
    except KafkaError as refusal:
        return ControlledShutdownResponse(error_code=refusal.code, remaining_partitions=[])
    return ControlledShutdownResponse(
        remaining_partitions=[
            RemainingPartition(topic_name=one.topic, partition_index=one.partition)
            for one in remaining
        ]
    )
