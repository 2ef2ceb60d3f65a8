"""Fetch: the answer holds pieces of segment files, which the connection sends from the page cache.

Fetch sessions (KIP-227) are not kept: a client that asks for one is answered with session id 0 and
stays sessionless, which the protocol allows; one that claims a session gets error 70. Versions
before 4 cannot carry magic-2 batches; see `_refusal` for when that is an error.
"""

from __future__ import annotations

from odradek.handlers.context import Broker, Call
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    EpochEndOffset,
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from odradek.replica.partition import TopicPartition
from odradek.replica.reads import FetchLimits, FetchResult, FetchWish

FIRST_WITH_MAGIC_2 = 4
FIRST_WITH_HARD_LIMIT_LIFTED = 3
FIRST_WITH_ZSTD = 10
READ_COMMITTED = 1
UNLIMITED_BYTES = 0x7FFFFFFF


async def fetch(broker: Broker, request: FetchRequest, call: Call) -> FetchResponse:
    """Read from the partitions in the order of the request."""
    if request.session_id != 0:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[])
    wishes = [
        FetchWish(
            TopicPartition(topic.topic, part.partition),
            part.fetch_offset,
            part.partition_max_bytes,
            part.current_leader_epoch,
            part.log_start_offset,
            part.last_fetched_epoch,
        )
        for topic in request.topics
        for part in topic.partitions
    ]
    limits = FetchLimits(
        request.max_wait_ms,
        request.min_bytes,
        min(request.max_bytes, UNLIMITED_BYTES)
        if request.replica_id >= 0
        else min(request.max_bytes, broker.config.fetch_max_bytes),
        strict=call.version < FIRST_WITH_HARD_LIMIT_LIFTED,
    )
    results = await broker.replicas.fetch(wishes, request.replica_id, limits)
    if call.version < FIRST_WITH_ZSTD:
        _refuse_what_old_clients_cannot_read(broker, call.version, results)
    return _response(broker, request, results)


def _refuse_what_old_clients_cannot_read(
    broker: Broker, version: int, results: list[FetchResult]
) -> None:
    for result in results:
        if result.region is None:
            continue
        error = _refusal(broker, version, result.key)
        if error is not ErrorCode.NONE:
            result.region.close()
            result.region = None
            result.error = error


def _refusal(broker: Broker, version: int, key: TopicPartition) -> ErrorCode:
    if version < FIRST_WITH_MAGIC_2:
        return ErrorCode.UNSUPPORTED_VERSION
    partition = broker.replicas.partitions.get(key)
    if partition is not None and partition.log.config.compression_type == "zstd":
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return ErrorCode.NONE


def _response(broker: Broker, request: FetchRequest, results: list[FetchResult]) -> FetchResponse:
    remaining = iter(results)
    bytes_out = (
        broker.metrics.bytes_out if request.replica_id < 0 else broker.metrics.bytes_replicated
    )
    topics: list[FetchableTopicResponse] = []
    for topic in request.topics:
        answers: list[FetchablePartitionResponse] = []
        for _ in topic.partitions:
            result = next(remaining)
            if result.region is not None:
                bytes_out(result.key.topic, result.region.length)
            answers.append(_partition_response(result, request.isolation_level))
        topics.append(FetchableTopicResponse(topic=topic.topic, partition_responses=answers))
    return FetchResponse(responses=topics)


def _partition_response(result: FetchResult, isolation_level: int) -> FetchablePartitionResponse:
    answer = FetchablePartitionResponse(
        partition=result.key.partition,
        error_code=result.error,
        high_watermark=result.high_watermark,
        # Without transactions nothing below the high watermark is undecided.
        last_stable_offset=result.high_watermark,
        log_start_offset=result.log_start_offset,
        # Null says that nobody asked, empty that nothing was aborted.
        aborted_transactions=[] if isolation_level == READ_COMMITTED else None,
        record_set=result.region if result.region is not None else b"",
    )
    if result.diverging is not None:
        epoch, end_offset = result.diverging
        answer.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return answer
