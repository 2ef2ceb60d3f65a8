"""What full fetches and those of sessions have in common: limits, sizes, and answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence

from odradek import slices
from odradek.handlers import fetch_conversion
from odradek.handlers.context import Broker, RequestContext
from odradek.net.unasked import Unasked
from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    AbortedTransaction,
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from odradek.protocol.primitives import LENGTH32
from odradek.protocol.regions import Records, close_all, part_length
from odradek.quotas.request_quota import RequestQuota
from odradek.replica import reads
from odradek.replica.fetch_specs import ConsumerLocation, FetchLimits, FetchResult, FetchSpec
from odradek.values import TopicPartition

FIRST_WITH_HARD_LIMIT_LIFTED = 3
FIRST_WITH_STORAGE_ERROR = 6
FIRST_WITH_ZSTD = 10
FIRST_FROM_FOLLOWERS = 11
READ_COMMITTED = 1
UNLIMITED_BYTES = 0x7FFFFFFF
_PER_ABORTED = 16


def spec_of(topic: str, part: FetchPartition) -> FetchSpec:
    """Return what a request says of a partition."""
    return FetchSpec(
        TopicPartition(topic, part.partition),
        part.fetch_offset,
        part.partition_max_bytes,
        part.current_leader_epoch,
        part.log_start_offset,
        part.last_fetched_epoch,
    )


def unasked_of(request: FetchRequest, context: RequestContext) -> Unasked | None:
    """Return what the client has records of, None where that does not matter."""
    # Who wants many bytes at once chose to wait for them.
    return context.unasked if request.replica_id < 0 and request.min_bytes <= 1 else None


def limits_of(
    broker: Broker, request: FetchRequest, context: RequestContext, max_wait_ms: int
) -> FetchLimits:
    """Return the limits of a request, which waits for up to `max_wait_ms`, but as in Kafka not for
    more bytes than it may have.
    """
    most = UNLIMITED_BYTES if request.replica_id >= 0 else broker.config.fetch_max_bytes
    max_bytes = min(request.max_bytes, most)
    limits = FetchLimits(
        max_wait_ms,
        min(request.min_bytes, max_bytes),
        max_bytes,
        strict=context.version < FIRST_WITH_HARD_LIMIT_LIFTED,
        committed=request.isolation_level == READ_COMMITTED,
        any_replica=context.version >= FIRST_FROM_FOLLOWERS and request.replica_id < 0,
        location=None
        if broker.config.replica_selector_class is None
        else _location(request, context),
    )
    return limits if context.quota is None else _within(limits, context.quota)


def _location(request: FetchRequest, context: RequestContext) -> ConsumerLocation | None:
    """Return where a consumer is, None if it does not say; clients before v11 cannot."""
    if request.replica_id != reads.CONSUMER or not request.rack_id:
        return None
    return ConsumerLocation(request.rack_id, context.listener)


def _within(limits: FetchLimits, quota: RequestQuota) -> FetchLimits:
    """Return limits that a consumer can reach without a throttle that is certain."""
    most = quota.most_fetch_bytes
    if most is None or most >= limits.max_bytes:
        return limits
    return limits._replace(max_bytes=most, min_bytes=min(limits.min_bytes, most))


def size_of(
    version: int, topics: Sequence[str], records: Sequence[Records], aborted: int
) -> Generator[None, None, int]:
    """Return the size of an answer, to a few bytes: short lengths are shorter since version 12.
    It names so many aborted transactions.
    """
    whole, per_topic, per_partition = _fixed_sizes(version)
    size = whole + len(topics) * per_topic + len(records) * per_partition + aborted * _PER_ABORTED
    for few in slices.cut(topics, slices.KEYS_AT_ONCE):
        size += sum(map(len, few))
        if len(few) == slices.KEYS_AT_ONCE:
            yield
    for some in slices.cut(records, slices.KEYS_AT_ONCE):
        size += sum(map(part_length, some))
        if len(some) == slices.KEYS_AT_ONCE:
            yield
    return size


@functools.cache
def _fixed_sizes(version: int) -> tuple[int, int, int]:
    """Return the bytes of an empty answer with its size, of a topic, and of a partition."""

    def size(*topics: FetchableTopicResponse) -> int:
        return len(codec.encode(FetchResponse(responses=list(topics)), version))

    partition = FetchablePartitionResponse(
        partition=0, high_watermark=0, aborted_transactions=None, record_set=b""
    )
    without = size(FetchableTopicResponse(topic="", partition_responses=[]))
    with_one = size(FetchableTopicResponse(topic="", partition_responses=[partition]))
    return LENGTH32.size + size(), without - size(), with_one - without


def refuse_zstd(broker: Broker, results: Sequence[FetchResult]) -> None:
    """Replace what clients of versions before `FIRST_WITH_ZSTD` do not know by its error."""
    for result in results:
        partition = broker.replicas.partitions.get(result.key)
        if (
            result.region is not None
            and partition is not None
            and partition.log.config.compression_type == "zstd"
        ):
            fetch_conversion.refuse(result, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def hide_storage_errors(results: Sequence[FetchResult]) -> None:
    """Replace what clients of versions before `FIRST_WITH_STORAGE_ERROR` do not know by the error
    upon which they look for another leader, as in Kafka.
    """
    for result in results:
        if result.error is ErrorCode.KAFKA_STORAGE_ERROR:
            result.error = ErrorCode.NOT_LEADER_OR_FOLLOWER


def discard(answer: FetchResponse) -> None:
    """Let go of the files of an answer that is never sent."""
    for topic in answer.responses:
        close_all(part.record_set for part in topic.partition_responses if part.record_set)


def is_long(answer: FetchResponse) -> bool:
    """Return whether an answer is encoded in slices, however short its request was."""
    parts = sum([len(topic.partition_responses) for topic in answer.responses])
    return parts > reads.PARTITIONS_AT_ONCE


def bytes_out_of(broker: Broker, request: FetchRequest) -> Callable[[str, int], None]:
    """Return what counts the bytes of an answer."""
    return broker.metrics.bytes_out if request.replica_id < 0 else broker.metrics.bytes_replicated


def partition_response(
    result: FetchResult, found: Records, isolation_level: int
) -> FetchablePartitionResponse:
    """Return the answer about one partition."""
    aborted: list[AbortedTransaction] | None = None  # the request did not ask
    if isolation_level == READ_COMMITTED:
        aborted = [
            AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
            for one in sorted(result.aborted, key=lambda one: one.first_offset)
        ]
    answer = FetchablePartitionResponse(
        partition=result.key.partition,
        error_code=result.error,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=aborted,
        preferred_read_replica=result.preferred_read_replica,
        record_set=found,
    )
    if result.diverging is not None:
        epoch, end_offset = result.diverging
        answer.diverging_epoch = FetchEpochEndOffset(epoch=epoch, end_offset=end_offset)
    return answer
