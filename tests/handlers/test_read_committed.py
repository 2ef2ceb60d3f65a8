"""Readers of committed records (isolation level 1) of logs with transactions that Kafka wrote."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from odradek.handlers import fetch, offsets
from odradek.handlers.context import Broker, RequestContext
from odradek.handlers.fetch_answers import READ_COMMITTED
from odradek.log.partition.log import Log
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchablePartitionResponse, FetchRequest
from odradek.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from odradek.protocol.regions import part_length
from odradek.values import TopicPartition
from tests.support.logs import START_MS
from tests.support.replicas import KEY, Replicas
from tests.support.session_client import SessionClient
from tests.support.transactions import end, write, write_plain

EVERYTHING = 0
LATEST = -1


@dataclass(frozen=True, slots=True)
class Answered:
    """What an answer says of the partition; `size` counts the bytes of its records."""

    high_watermark: int
    last_stable_offset: int
    aborted: list[tuple[int, int]] | None
    size: int


def answered(part: FetchablePartitionResponse) -> Answered:
    assert part.error_code == ErrorCode.NONE
    aborted = part.aborted_transactions
    return Answered(
        part.high_watermark,
        part.last_stable_offset,
        None if aborted is None else [(one.producer_id, one.first_offset) for one in aborted],
        part_length(part.record_set or b""),
    )


async def ask(broker: Broker, request: FetchRequest, isolation_level: int) -> Answered:
    request.isolation_level = isolation_level
    answer = await fetch.fetch(broker, request, RequestContext(11, "c", "PLAINTEXT", "h", 1))
    [topic] = answer.responses
    [part] = topic.partition_responses
    return answered(part)


async def since(broker: Broker, timestamp: int, isolation_level: int) -> int:
    asked = ListOffsetsPartition(partition_index=KEY.partition, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=KEY.topic, partitions=[asked])],
    )
    context = RequestContext(5, "c", "PLAINTEXT", "h", 1)
    answer = await offsets.list_offsets(broker, request, context)
    [part] = answer.topics[0].partitions
    assert part.error_code == ErrorCode.NONE
    return part.offset


async def latest(broker: Broker, isolation_level: int) -> int:
    return await since(broker, LATEST, isolation_level)


def commit_all(replicas: Replicas) -> None:
    """Raise the high watermark to the log end, as the only replica."""
    assert replicas.manager.partitions[KEY].advance_high_watermark()
    replicas.manager._hosted.wake_high_watermark(KEY)


async def log_with_an_aborted_and_an_open_transaction(replicas: Replicas) -> Log:
    await replicas.lead()
    log = replicas.manager.partitions[KEY].log
    write(log, 7)
    end(log, 7, commit=False)
    write(log, 8)
    write(log, 9)
    end(log, 9, commit=False)
    commit_all(replicas)
    return log


async def test_full_fetch_ends_where_a_transaction_is_open(
    broker: Broker, replicas: Replicas
) -> None:
    log = await log_with_an_aborted_and_an_open_transaction(replicas)
    [segment] = log.segments
    undecided = segment.find(2)
    assert undecided is not None
    client = SessionClient(broker)
    found = await ask(broker, client.request([(KEY, 0)]), READ_COMMITTED)
    assert found == Answered(5, 2, [(7, 0)], undecided[0])
    found = await ask(broker, client.request([(KEY, 0)]), EVERYTHING)
    assert found == Answered(5, 2, None, segment.size)


async def test_what_was_aborted_before_the_offset_is_not_told(
    broker: Broker, replicas: Replicas
) -> None:
    log = await log_with_an_aborted_and_an_open_transaction(replicas)
    end(log, 8, commit=True)
    commit_all(replicas)
    request = SessionClient(broker).request([(KEY, 2)])
    found = await ask(broker, request, READ_COMMITTED)
    assert (found.last_stable_offset, found.aborted) == (6, [(9, 3)])


async def test_end_of_committed_records_is_told(broker: Broker, replicas: Replicas) -> None:
    log = await log_with_an_aborted_and_an_open_transaction(replicas)
    assert await latest(broker, EVERYTHING) == 5
    assert await latest(broker, READ_COMMITTED) == 2
    end(log, 8, commit=True)
    commit_all(replicas)
    assert await latest(broker, READ_COMMITTED) == 6


async def test_session_waits_for_the_end_of_a_transaction(
    broker: Broker, replicas: Replicas
) -> None:
    log = await log_with_an_aborted_and_an_open_transaction(replicas)
    client = SessionClient(broker)

    async def fetched(*named: tuple[object, int], wait_ms: int = 0) -> list[Answered]:
        request = client.request(named, wait_ms=wait_ms)  # type: ignore[arg-type]
        request.isolation_level = READ_COMMITTED
        topics = (await client.answer(request)).responses
        return [answered(part) for topic in topics for part in topic.partition_responses]

    assert [one.last_stable_offset for one in await fetched((KEY, 2))] == [2]
    waiting = asyncio.create_task(fetched(wait_ms=600_000))
    async with asyncio.timeout(60):
        while not client.session.waits:
            await asyncio.sleep(0)
        write(log, 9)
        commit_all(replicas)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done(), "nothing is decided yet"
        end(log, 8, commit=True)
        commit_all(replicas)
        [found] = await waiting
    # Producer 9 began another transaction at offset 5.
    assert (found.high_watermark, found.last_stable_offset, found.aborted) == (7, 5, [(9, 3)])
    assert found.size > 0


async def test_reader_inside_an_aborted_transaction_is_told_of_it(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead()
    log = replicas.manager.partitions[KEY].log
    write(log, 7)
    second = write(log, 7)
    marker = end(log, 7, commit=False)
    commit_all(replicas)
    client = SessionClient(broker)
    for offset in (second, marker):
        found = await ask(broker, client.request([(KEY, offset)]), READ_COMMITTED)
        assert found.aborted == [(7, 0)]
    found = await ask(broker, client.request([(KEY, marker + 1)]), READ_COMMITTED)
    assert found == Answered(3, 3, [], 0)


async def test_batch_larger_than_the_limits_comes_with_what_was_aborted_in_it(
    broker: Broker, replicas: Replicas
) -> None:
    log = await log_with_an_aborted_and_an_open_transaction(replicas)
    end(log, 8, commit=True)
    commit_all(replicas)
    [segment] = log.segments
    client, producers = SessionClient(broker), {0: [(7, 0)], 2: [], 3: [(9, 3)]}
    for offset, aborted in producers.items():
        batch = segment.find(offset)
        assert batch is not None
        request = client.request([(KEY, offset)], max_bytes=1)
        request.topics[0].partitions[0].partition_max_bytes = 1
        found = await ask(broker, request, READ_COMMITTED)
        assert found.size == batch[1].size
        assert found.aborted is not None
        # What is told may be of the batches up to the next one in the offset index.
        assert set(aborted) <= set(found.aborted)


async def test_undecided_record_is_not_found_by_its_time(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead()
    log = replicas.manager.partitions[KEY].log
    first = write(log, 8)
    commit_all(replicas)
    assert await since(broker, START_MS, EVERYTHING) == first
    assert await since(broker, START_MS, READ_COMMITTED) == -1
    end(log, 8, commit=True)
    commit_all(replicas)
    assert await since(broker, START_MS, READ_COMMITTED) == first


async def delete_records(broker: Broker, before: int) -> int:
    """Delete records; return the low watermark."""
    asked = DeleteRecordsPartition(partition_index=KEY.partition, offset=before)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=KEY.topic, partitions=[asked])], timeout_ms=10_000
    )
    context = RequestContext(1, "c", "PLAINTEXT", "h", 1)
    answer = await offsets.delete_records(broker, request, context)
    [part] = answer.topics[0].partitions
    assert part.error_code == ErrorCode.NONE
    return part.low_watermark


async def test_deletion_of_all_records_leaves_nothing_undecided(
    broker: Broker, replicas: Replicas
) -> None:
    log = await log_with_an_aborted_and_an_open_transaction(replicas)
    assert await delete_records(broker, -1) == 5
    assert await latest(broker, READ_COMMITTED) == 5
    # The transaction of producer 8 goes on, with what it writes from now on.
    again = write(log, 8)
    write_plain(log)
    commit_all(replicas)
    assert await latest(broker, READ_COMMITTED) == again
    end(log, 8, commit=False)
    commit_all(replicas)
    request = SessionClient(broker).request([(KEY, again)])
    found = await ask(broker, request, READ_COMMITTED)
    assert (found.last_stable_offset, found.aborted) == (8, [(8, again)])


async def test_session_gets_what_a_deletion_made_stable(broker: Broker, replicas: Replicas) -> None:
    await replicas.lead()
    log = replicas.manager.partitions[KEY].log
    write(log, 8)
    behind = write_plain(log)
    commit_all(replicas)
    client = SessionClient(broker)

    async def fetched(*named: tuple[TopicPartition, int]) -> list[Answered]:
        request = client.request(named)
        request.isolation_level = READ_COMMITTED
        topics = (await client.answer(request)).responses
        return [answered(part) for topic in topics for part in topic.partition_responses]

    assert await fetched((KEY, behind)) == [Answered(2, 0, [], 0)]
    assert await fetched() == []
    await delete_records(broker, behind)
    [found] = await fetched()
    assert (found.high_watermark, found.last_stable_offset, found.aborted) == (2, 2, [])
    assert found.size > 0
