"""Fetch: the answer has regions of segment files, which the connection sends from the page cache.

A full fetch names all its partitions, and may begin a session (KIP-227); `fetch_of_session` serves
the fetches of a session. Versions before 4 cannot carry magic-2 batches: for them the regions are
read and converted in threads (see `fetch_conversion`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Sequence
from itertools import groupby

from odradek import slices
from odradek.handlers import fetch_answers, fetch_conversion, fetch_of_session
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from odradek.protocol.regions import Records, close_all, part_length
from odradek.replica import reads
from odradek.replica.fetch_sessions import INITIAL_EPOCH, NO_SESSION, is_full
from odradek.replica.fetch_specs import FetchResult, FetchSpec

FIRST_WITH_MAGIC_1 = 2
FIRST_WITH_MAGIC_2 = 4


def fetch(
    broker: Broker, request: FetchRequest, context: RequestContext
) -> Awaitable[FetchResponse]:
    """Read from partitions: those of the request, in its order, or those of its session."""
    if is_full(request.session_epoch):
        return _fetch_in_full(broker, request, context)
    return fetch_of_session.fetch(broker, request, context)


async def _fetch_in_full(
    broker: Broker, request: FetchRequest, context: RequestContext
) -> FetchResponse:
    if request.session_id != NO_SESSION:
        fetch_of_session.end(broker, request, context)
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
    unasked = None if is_large else fetch_answers.unasked_of(request, context)
    if unasked is not None:
        max_wait_ms = unasked.wait_ms([spec.key for spec in specs], max_wait_ms)
    limits = fetch_answers.limits_of(broker, request, context, max_wait_ms)
    results = await broker.replicas.fetch(
        specs, request.replica_id, limits, context.connection_id, context.next_request
    )
    try:
        if context.version < fetch_answers.FIRST_WITH_ZSTD:
            for few in slices.cut(results, reads.PARTITIONS_AT_ONCE):
                fetch_answers.refuse_zstd(broker, few)
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
        if context.version < fetch_answers.FIRST_WITH_STORAGE_ERROR:
            for few in slices.cut(results, reads.PARTITIONS_AT_ONCE):
                fetch_answers.hide_storage_errors(few)
                if is_large:
                    await slices.pause()
        size = 0
        if context.quota is not None:
            size = await slices.run(
                fetch_answers.size_of(
                    context.version,
                    [one.topic for one in topics],
                    records,
                    sum(len(one.aborted) for one in results),
                )
            )
    except BaseException:
        reads.release(results)
        raise
    if context.quota is not None and context.quota.refuses_fetch(size):
        # As in Kafka: the client asks again once it may, so the answer need not wait in memory.
        close_all(records)
        return FetchResponse(responses=[])
    if unasked is not None:
        unasked.answer([result.key for result in results if result.region is not None])
    try:
        session_id = NO_SESSION
        if request.session_epoch == INITIAL_EPOCH:
            session_id = await fetch_of_session.begin(broker, request, context, specs, results)
        if not is_large:
            answer = _response(broker, request, topics, results, records)
        else:
            answer = await slices.run(
                _response_in_slices(broker, request, topics, results, records)
            )
    except BaseException:
        close_all(records)
        raise
    answer.session_id = session_id
    if is_large:
        slices.discard(specs, results, records)
    return answer


def _regions(results: Sequence[FetchResult]) -> Generator[None, None, list[Records]]:
    records: list[Records] = []
    for few in slices.cut(results, slices.KEYS_AT_ONCE):
        records += [b"" if result.region is None else result.region for result in few]
        yield
    return records


def _specs(topics: Sequence[FetchTopic]) -> list[FetchSpec]:
    spec_of = fetch_answers.spec_of
    return [spec_of(topic.topic, part) for topic in topics for part in topic.partitions]


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


def _response(
    broker: Broker,
    request: FetchRequest,
    asked: Sequence[FetchTopic],
    results: Sequence[FetchResult],
    records: Sequence[Records],
) -> FetchResponse:
    remaining = zip(results, records, strict=True)
    bytes_out = fetch_answers.bytes_out_of(broker, request)
    topics: list[FetchableTopicResponse] = []
    for topic in asked:
        answers: list[FetchablePartitionResponse] = []
        for _ in topic.partitions:
            result, found = next(remaining)
            length = part_length(found)
            if length:
                bytes_out(result.key.topic, length)
            answers.append(fetch_answers.partition_response(result, found, request.isolation_level))
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
