"""Requests of the controller, and ControlledShutdown, which brokers send to the controller."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from typing import TypeVar

from odradek import slices
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
from odradek.values import NO_BROKER_EPOCH, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition

Answer = TypeVar("Answer")


async def _has_stale_broker_epoch(broker: Broker, broker_epoch: int) -> bool:
    """Return whether the request is meant for a previous broker epoch (KIP-380).

    Kafka before 2.2 sends no broker epoch: then the arrival time decides, because a broker that
    crashed may lack records that its previous leadership requires. A request that names the present
    epoch is accepted whenever it came: the controller would not repeat it.
    """
    in_time = await broker.registration.admits_request()
    if broker_epoch == NO_BROKER_EPOCH:
        return not in_time
    return not 0 <= broker.registration.epoch <= broker_epoch


async def _refusal(
    broker: Broker,
    request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest,
    context: RequestContext,
) -> ErrorCode:
    """Return why to refuse a request of a controller, NONE if it is accepted."""
    if await _has_stale_broker_epoch(broker, request.broker_epoch):
        return ErrorCode.STALE_BROKER_EPOCH
    if not broker.controller_link.is_current(request.controller_epoch, context.connection_id):
        return ErrorCode.STALE_CONTROLLER_EPOCH
    return ErrorCode.NONE


async def leader_and_isr(
    broker: Broker, request: LeaderAndIsrRequest, context: RequestContext
) -> LeaderAndIsrResponse:
    """Take the leader and follower roles that the controller assigns."""
    error = await _refusal(broker, request, context)
    if error is not ErrorCode.NONE:
        return LeaderAndIsrResponse(error_code=error, partition_errors=[])
    error, errors = await broker.replicas.become_leader_or_follower(request)
    answers = await slices.run(_each_error(errors, LeaderAndIsrPartitionError))
    topics = {topic.topic_name for topic in request.topic_states}
    topics.update(state.topic_name for state in request.ungrouped_partition_states)
    if OFFSETS_TOPIC in topics:
        broker.groups.notice_roles()
    if TRANSACTIONS_TOPIC in topics:
        broker.transactions.notice_roles()
    return LeaderAndIsrResponse(error_code=error, partition_errors=answers)


def _each_error(
    errors: dict[TopicPartition, ErrorCode], answer: Callable[..., Answer]
) -> Generator[None, None, list[Answer]]:
    """Return the answer for each partition, in slices."""
    answers: list[Answer] = []
    for few in slices.cut(errors.items(), slices.KEYS_AT_ONCE // 5):
        if answers:
            yield
        answers += [
            answer(topic_name=key.topic, partition_index=key.partition, error_code=code)
            for key, code in few
        ]
    slices.discard(errors)
    return answers


async def stop_replica(
    broker: Broker, request: StopReplicaRequest, context: RequestContext
) -> StopReplicaResponse:
    """Stop replicas, and delete them where the request says so."""
    error = await _refusal(broker, request, context)
    if error is not ErrorCode.NONE:
        return StopReplicaResponse(error_code=error, partition_errors=[])
    error, errors = await broker.replicas.stop_replicas(request)
    return StopReplicaResponse(
        error_code=error,
        partition_errors=await slices.run(_each_error(errors, StopReplicaPartitionError)),
    )


async def update_metadata(
    broker: Broker, request: UpdateMetadataRequest, context: RequestContext
) -> UpdateMetadataResponse:
    """Update the metadata cache and act on moved and deleted replicas."""
    error = await _refusal(broker, request, context)
    if error is not ErrorCode.NONE:
        return UpdateMetadataResponse(error_code=error)
    async with broker.metadata.updating:
        # Not before: a later controller may have come while this request waited.
        if not broker.replicas.accept_controller(request.controller_epoch):
            return UpdateMetadataResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
        before = broker.metadata.brokers
        await slices.run(broker.metadata.update_in_slices(request))
        departed = before.keys() - broker.metadata.brokers.keys()
        acting = _act_on_changes(broker, request, departed)
        try:
            await slices.run(acting)
        finally:
            # The cache has the changes, and no request may name them again: if this one is
            # cancelled because its connection is lost, do the rest at once.
            for _ in acting:
                pass
    return UpdateMetadataResponse()


def _act_on_changes(
    broker: Broker, request: UpdateMetadataRequest, departed: Collection[int]
) -> Generator[None, None, None]:
    """Wait no longer for brokers that are gone, step down where the request says so, and forget
    deleted partitions, in slices.
    """
    if departed:
        yield from broker.replicas.forget_departed(departed)
    deleted: set[TopicPartition] = set()
    for part in slices.cut(described(request)):
        broker.replicas.drop_moved_replicas(part)
        deleted.update(
            TopicPartition(topic, state.partition_index)
            for topic, state in part
            if state.leader == LEADER_DURING_DELETE
        )
        if len(part) == slices.STEPS_PER_SLICE:
            yield
    if deleted:
        broker.groups.forget_partitions(deleted)


async def controlled_shutdown(
    broker: Broker, request: ControlledShutdownRequest, context: RequestContext
) -> ControlledShutdownResponse:
    """Move leaderships away from a broker that is about to stop; for the controller only."""
    try:
        remaining = await broker.controller.controlled_shutdown(
            request.broker_id, request.broker_epoch
        )
    except KafkaError as refusal:
        return ControlledShutdownResponse(error_code=refusal.code, remaining_partitions=[])
    return ControlledShutdownResponse(
        remaining_partitions=[
            RemainingPartition(topic_name=one.topic, partition_index=one.partition)
            for one in remaining
        ]
    )
