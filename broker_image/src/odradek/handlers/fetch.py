"""Fetch: the answer has regions of segment files, which the connection sends from the page cache.

There are no fetch sessions (KIP-227): a client that asks for one gets session id 0 and stays
sessionless, which the protocol allows; one that continues a session gets error 70 and starts over.
Versions before 4 cannot carry magic-2 batches: for them the regions are read and converted in
threads (see `fetch_conversion`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import groupby

from odradek import slices
from odradek.handlers import fetch_conversion
from odradek.handlers.context import Broker, RequestContext
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
from odradek.protocol.regions import Records, close_all, part_length
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
        count += len(topic.partitions)
    is_large = count > reads.PARTITIONS_AT_ONCE
    if is_large:
        topics, specs = await slices.run(_specs_in_slices(request.topics))
    else:
        topics = _each_partition_once(request.topics)
        specs = _specs(topics)
    limits = FetchLimits(
        request.max_wait_ms,
        request.min_bytes,
        min(request.max_bytes, UNLIMITED_BYTES)
        if request.replica_id >= 0
        else min(request.max_bytes, broker.config.fetch_max_bytes),
        strict=context.version < FIRST_WITH_HARD_LIMIT_LIFTED,
    )
    results = await broker.replicas.fetch(specs, request.replica_id, limits, context.connection_id)
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
            else [b"" if result.region is None else result.region for result in results]
        )
    except BaseException:
        reads.release(results)
        raise
    if not is_large:
        return _response(broker, request, topics, results, records)
    try:
        return await slices.run(_response_in_slices(broker, request, topics, results, records))
    except BaseException:
        close_all(records)
        raise


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
    for few in slices.cut((topic.topic, part) for topic in asked for part in topic.partitions):
        unique.update({(name, part.partition): part for name, part in few})
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
