"""Fetch: the answer has regions of segment files, which the connection sends from the page cache.

There are no fetch sessions (KIP-227): a client that asks for one gets session id 0 and stays
sessionless, which the protocol allows; one that continues a session gets error 70 and starts over.
Versions before 4 cannot carry magic-2 batches: for them the regions are read and converted in
threads (see `fetch_conversion`).
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from itertools import groupby

from odradek import slices
from odradek.handlers import fetch_conversion
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from odradek.protocol.primitives import LENGTH32
from odradek.protocol.regions import Records, close_all, part_length
from odradek.quotas.request_quota import RequestQuota
from odradek.replica import reads
from odradek.replica.reads import FetchLimits, FetchResult, FetchSpec
from odradek.values import TopicPartition

FIRST_WITH_MAGIC_1 = 2
FIRST_WITH_MAGIC_2 = 4
FIRST_WITH_HARD_LIMIT_LIFTED = 3
FIRST_WITH_ZSTD = 10
READ_COMMITTED = 1
UNLIMITED_BYTES = 0x7FFFFFFF


async def fetch(broker: Broker, request: FetchRequest, context: RequestContext) -> FetchResponse:
    """Read from the partitions, in the order of the request."""
    if request.session_epoch > 0:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[])
    count = 0
    for topic in request.topics:
        count += len(topic.partitions) or 1
        if count > reads.PARTITIONS_AT_ONCE:
            break
    is_large = count > reads.PARTITIONS_AT_ONCE
    if is_large:
        topics, specs = await slices.run(_specs_in_slices(request.topics))
    else:
        topics = _each_partition_once(request.topics)
        specs = _specs(topics)
    max_wait_ms = request.max_wait_ms
    # Who wants many bytes at once chose to wait for them.
    is_prompt = request.replica_id < 0 and request.min_bytes <= 1 and not is_large
    unasked = context.unasked if is_prompt else None
    if unasked is not None:
        max_wait_ms = unasked.wait_ms([spec.key for spec in specs], max_wait_ms)
    limits = FetchLimits(
        max_wait_ms,
        request.min_bytes,
        min(request.max_bytes, UNLIMITED_BYTES)
        if request.replica_id >= 0
        else min(request.max_bytes, broker.config.fetch_max_bytes),
        strict=context.version < FIRST_WITH_HARD_LIMIT_LIFTED,
    )
    if context.quota is not None:
        limits = _within(limits, context.quota)
    results = await broker.replicas.fetch(
        specs, request.replica_id, limits, context.connection_id, context.next_request
    )
    try:
        if context.version < FIRST_WITH_ZSTD:
            for few in slices.cut(results, reads.PARTITIONS_AT_ONCE):
                _refuse_zstd(broker, few)
                if is_large:
                    await slices.pause()
        records: list[Records] = (
            await fetch_conversion.to_old_format(
                broker,
                specs,
                results,
                request.replica_id,
                int(context.version >= FIRST_WITH_MAGIC_1),
                limits.max_bytes,
            )
            if context.version < FIRST_WITH_MAGIC_2
            else await slices.run(_regions(results))
            if is_large
            else [b"" if result.region is None else result.region for result in results]
        )
        size = 0
        if context.quota is not None:
            size = await slices.run(_size(context.version, topics, records))
    except BaseException:
        reads.release(results)
        raise
    if context.quota is not None and context.quota.refuses_fetch(size):
        # As in Kafka: the client asks again once it may, so the answer need not wait in memory.
        close_all(records)
        return FetchResponse(responses=[])
    if unasked is not None:
        unasked.answer([result.key for result in results if result.region is not None])
    if not is_large:
        return _response(broker, request, topics, results, records)
    try:
        answer = await slices.run(_response_in_slices(broker, request, topics, results, records))
    except BaseException:
        close_all(records)
        raise
    slices.discard(specs, results, records)
    return answer


def _within(limits: FetchLimits, quota: RequestQuota) -> FetchLimits:
    """Return limits that a consumer can reach without a throttle that is certain."""
    most = quota.most_fetch_bytes
    if most is None or most >= limits.max_bytes:
        return limits
    return limits._replace(max_bytes=most, min_bytes=min(limits.min_bytes, most))


def _size(
    version: int, topics: Sequence[FetchTopic], records: Sequence[Records]
) -> Generator[None, None, int]:
    """Return the size of an answer, to a few bytes: short lengths are shorter since version 12."""
    whole, per_topic, per_partition = _fixed_sizes(version)
    size = whole + len(topics) * per_topic + len(records) * per_partition
    for few in slices.cut(topics, slices.KEYS_AT_ONCE):
        size += sum(len(topic.topic) for topic in few)
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


def _regions(results: Sequence[FetchResult]) -> Generator[None, None, list[Records]]:
    records: list[Records] = []
    for few in slices.cut(results, slices.KEYS_AT_ONCE):
        records += [b"" if result.region is None else result.region for result in few]
        yield
    return records


def _specs(topics: Sequence[FetchTopic]) -> list[FetchSpec]:
    return [
        FetchSpec(
            TopicPartition(topic.topic, part.partition),
            part.fetch_offset,
            part.partition_max_bytes,
            part.current_leader_epoch,
            part.log_start_offset,
            part.last_fetched_epoch,
        )
        for topic in topics
        for part in topic.partitions
    ]


def _specs_in_slices(
    asked: list[FetchTopic],
) -> Generator[None, None, tuple[list[FetchTopic], list[FetchSpec]]]:
    """Return the topics without repeated partitions, as `_each_partition_once`, and the specs."""
    unique: dict[tuple[str, int], FetchPartition] = {}
    for few in slices.cut_members(asked, lambda topic: topic.partitions):
        unique.update({(topic.topic, part.partition): part for topic, part in few})
        yield
    topics: list[FetchTopic] = []
    specs: list[FetchSpec] = []
    for entries in slices.cut(unique.items()):
        for name, same_topic in groupby(entries, key=lambda entry: entry[0][0]):
            topic = FetchTopic(topic=name, partitions=[part for _, part in same_topic])
            specs += _specs([topic])
            if topics and topics[-1].topic == name:
                topics[-1].partitions.extend(topic.partitions)
            else:
                topics.append(topic)
        yield
    slices.discard(unique)
    return topics, specs


def _each_partition_once(topics: list[FetchTopic]) -> list[FetchTopic]:
    """Return the topics without repeated partitions.

    As in Kafka, the last entry of a partition counts, in the place of the first.
    """
    if len({topic.topic for topic in topics}) == len(topics) and not any(map(_has_repeats, topics)):
        return topics
    unique = {(topic.topic, part.partition): part for topic in topics for part in topic.partitions}
    return [
        FetchTopic(topic=name, partitions=[part for _, part in entries])
        for name, entries in groupby(unique.items(), key=lambda entry: entry[0][0])
    ]


def _has_repeats(topic: FetchTopic) -> bool:
    count = len(topic.partitions)
    return count > 1 and len({part.partition for part in topic.partitions}) < count


def _refuse_zstd(broker: Broker, results: Sequence[FetchResult]) -> None:
    for result in results:
        partition = broker.replicas.partitions.get(result.key)
        if (
            result.region is not None
            and partition is not None
            and partition.log.config.compression_type == "zstd"
        ):
            fetch_conversion.refuse(result, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def discard(answer: FetchResponse) -> None:
    """Let go of the files of an answer that is never sent."""
    for topic in answer.responses:
        close_all(part.record_set for part in topic.partition_responses if part.record_set)


def _response(
    broker: Broker,
    request: FetchRequest,
    asked: Sequence[FetchTopic],
    results: Sequence[FetchResult],
    records: Sequence[Records],
) -> FetchResponse:
    remaining = zip(results, records, strict=True)
    bytes_out = (
        broker.metrics.bytes_out if request.replica_id < 0 else broker.metrics.bytes_replicated
    )
    topics: list[FetchableTopicResponse] = []
    for topic in asked:
        answers: list[FetchablePartitionResponse] = []
        for _ in topic.partitions:
            result, found = next(remaining)
            length = part_length(found)
            if length:
                bytes_out(result.key.topic, length)
            answers.append(_partition_response(result, found, request.isolation_level))
        topics.append(FetchableTopicResponse(topic=topic.topic, partition_responses=answers))
    return FetchResponse(responses=topics)


def _response_in_slices(
    broker: Broker,
    request: FetchRequest,
    asked: Sequence[FetchTopic],
    results: Sequence[FetchResult],
    records: Sequence[Records],
) -> Generator[None, None, FetchResponse]:
    """As `_response`."""
    answer = FetchResponse(responses=[])
    position = 0
    for topic in asked:
        for few in slices.cut(topic.partitions):
            end = position + len(few)
            [part] = _response(
                broker,
                request,
                [FetchTopic(topic=topic.topic, partitions=few)],
                results[position:end],
                records[position:end],
            ).responses
            if answer.responses and answer.responses[-1].topic == part.topic:
                answer.responses[-1].partition_responses.extend(part.partition_responses)
            else:
                answer.responses.append(part)
            if end // slices.STEPS_PER_SLICE > position // slices.STEPS_PER_SLICE:
                yield
            position = end
    return answer


def _partition_response(
    result: FetchResult, found: Records, isolation_level: int
) -> FetchablePartitionResponse:
    answer = FetchablePartitionResponse(
        partition=result.key.partition,
        error_code=result.error,
        high_watermark=result.high_watermark,
        # There are no transactions, so everything below the high watermark is stable.
        last_stable_offset=result.high_watermark,
        log_start_offset=result.log_start_offset,
        # Null: the request did not ask; empty: nothing was aborted.
        aborted_transactions=[] if isolation_level == READ_COMMITTED else None,
        record_set=found,
    )
    if result.diverging is not None:
        epoch, end_offset = result.diverging
        answer.diverging_epoch = FetchEpochEndOffset(epoch=epoch, end_offset=end_offset)
    return answer
