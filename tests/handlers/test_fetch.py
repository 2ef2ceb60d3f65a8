"""What a Fetch answer is made of: pieces of files, or memory where an old client needs it."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from odradek.handlers import fetch, fetch_answers
from odradek.handlers.context import Broker, RequestContext
from odradek.handlers.conversion_memory import ConversionMemory
from odradek.log.records import batch as batches
from odradek.log.records.batch import Origin
from odradek.log.segment.files import Region
from odradek.net import unasked
from odradek.net.memory_quotas import AnswerMemory
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.regions import Records
from odradek.replica import fetch_specs, reads
from odradek.values import TopicPartition
from tests.handlers.test_answer_room import NotReading
from tests.support import logs
from tests.support.replicas import KEY, Replicas

OTHER = TopicPartition("other", 0)


async def records_in_answer(broker: Broker, replicas: Replicas, version: int) -> Records | None:
    """What the answer holds of a partition with one batch."""
    await replicas.lead()
    await replicas.manager.append([(KEY, logs.batch(b"value"))], 1, 0, Origin.CLIENT)
    asked = FetchPartition(partition=KEY.partition, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        topics=[FetchTopic(topic=KEY.topic, partitions=[asked])],
    )
    answer = await fetch.fetch(broker, request, RequestContext(version, "c", "PLAINTEXT", "h", 1))
    return answer.responses[0].partition_responses[0].record_set


@pytest.mark.parametrize("version", range(4, 13))
async def test_new_clients_get_a_piece_of_the_file(
    broker: Broker, replicas: Replicas, version: int
) -> None:
    found = await records_in_answer(broker, replicas, version)
    assert isinstance(found, Region)
    with found:
        [segment] = replicas.manager.partitions[KEY].log.segments
        assert (found.position, found.length) == (0, segment.size)
        assert found.read() == segment.read(0, segment.size)


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 1)])
async def test_old_clients_get_what_the_file_becomes_in_their_format(
    broker: Broker, replicas: Replicas, version: int, magic: int
) -> None:
    found = await records_in_answer(broker, replicas, version)
    assert isinstance(found, bytes)
    assert [header.magic for _, header in batches.scan(found)] == [magic]


async def test_conversions_wait_for_memory_but_those_of_followers_and_new_clients_do_not(
    broker: Broker, replicas: Replicas
) -> None:
    bounded = dataclasses.replace(broker, conversions=ConversionMemory(1), answers=AnswerMemory(1))
    await replicas.lead(replicas=(1, 2))
    await replicas.manager.append([(KEY, logs.batch(b"value"))], 1, 0, Origin.CLIENT)

    async def fetched(version: int, replica_id: int) -> Records | None:
        asked = FetchPartition(partition=KEY.partition, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            replica_id=replica_id,
            max_wait_ms=0,
            min_bytes=1,
            topics=[FetchTopic(topic=KEY.topic, partitions=[asked])],
        )
        context = RequestContext(version, "c", "PLAINTEXT", "h", 1)
        answer = await fetch.fetch(bounded, request, context)
        [part] = answer.responses[0].partition_responses
        assert part.error_code == 0
        return part.record_set

    async with asyncio.timeout(60):
        async with bounded.conversions.reserved(1):
            assert await fetched(2, 2), "followers have memory of their own"
            old = [asyncio.create_task(fetched(2, -1)) for _ in range(3)]
            new = await fetched(4, -1)
            assert isinstance(new, Region)
            new.close()
            await replicas.manager.in_thread(int)
            await asyncio.sleep(0)
            assert not any(one.done() for one in old)
            slow = NotReading()
            bounded.answers.hold(slow, 1)
        await replicas.manager.in_thread(int)
        await asyncio.sleep(0)
        assert not any(one.done() for one in old), "what others do not read fills the memory"
        assert await fetched(2, 2)
        bounded.answers.release(slow)
        assert all(isinstance(found, bytes) and found for found in await asyncio.gather(*old))
    assert bounded.conversions.taken == 0


async def test_a_partition_named_twice_is_planned_and_answered_once(
    broker: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await replicas.lead()
    await replicas.manager.append([(KEY, logs.batch(b"value"))], 1, 0, Origin.CLIENT)
    planned: list[int] = []
    read = reads.FetchReader._read

    def counted(
        self: reads.FetchReader, spec: fetch_specs.FetchSpec, *rest: Any
    ) -> fetch_specs.FetchResult:
        planned.append(spec.offset)
        return read(self, spec, *rest)

    monkeypatch.setattr(reads.FetchReader, "_read", counted)
    asked = [
        FetchPartition(partition=KEY.partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        for offset in (9, 5, 0)
    ]
    other = FetchPartition(partition=7, fetch_offset=0, partition_max_bytes=1)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        topics=[
            FetchTopic(topic=KEY.topic, partitions=[*asked[:2], other]),
            FetchTopic(topic=KEY.topic, partitions=asked[2:]),
        ],
    )
    answer = await fetch.fetch(broker, request, RequestContext(11, "c", "PLAINTEXT", "h", 1))
    [topic] = answer.responses
    assert [part.partition for part in topic.partition_responses] == [KEY.partition, 7]
    found = topic.partition_responses[0].record_set
    assert isinstance(found, Region)
    found.close()
    assert planned == [0, 0], "the last entry counts"


@pytest.mark.parametrize("version", [0, 3, 4, 5, 6])
async def test_consumers_that_know_no_storage_error_look_for_another_leader(
    broker: Broker, replicas: Replicas, version: int
) -> None:
    """Those of Kafka 0.9 would end."""
    await replicas.lead()
    replicas.manager.partitions[KEY].offline = True
    asked = FetchPartition(partition=KEY.partition, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        topics=[FetchTopic(topic=KEY.topic, partitions=[asked])],
    )
    answer = await fetch.fetch(broker, request, RequestContext(version, "c", "PLAINTEXT", "h", 1))
    [part] = answer.responses[0].partition_responses
    known = ErrorCode.NOT_LEADER_OR_FOLLOWER if version < 6 else ErrorCode.KAFKA_STORAGE_ERROR
    assert part.error_code == known


class Consumer:
    """Fetches from a broker over one connection, and would wait for ten minutes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._context = RequestContext(12, "c", "PLAINTEXT", "h", 1, unasked=unasked.Unasked())

    async def fetch(
        self,
        key: TopicPartition,
        offset: int = 0,
        min_bytes: int = 1,
        max_bytes: int = fetch_answers.UNLIMITED_BYTES,
    ) -> bool:
        """Return whether there were records."""
        asked = FetchPartition(
            partition=key.partition, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=600_000,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            topics=[FetchTopic(topic=key.topic, partitions=[asked])],
        )
        answer = await fetch.fetch(self._broker, request, self._context)
        fetch_answers.discard(answer)
        return any(part.record_set for part in answer.responses[0].partition_responses)


async def two_partitions(replicas: Replicas) -> None:
    """Lead KEY, which has a record, and OTHER, which has none."""
    for key in (KEY, OTHER):
        await replicas.lead(topic=key.topic)
    await replicas.manager.append([(KEY, logs.batch(b"value"))], 1, 0, Origin.CLIENT)


async def test_a_fetch_hardly_waits_while_its_client_has_records_of_another_partition(
    broker: Broker, replicas: Replicas
) -> None:
    await two_partitions(replicas)
    consumer = Consumer(broker)
    assert await consumer.fetch(KEY)
    async with asyncio.timeout(60):
        assert not await consumer.fetch(OTHER)


@pytest.mark.parametrize("min_bytes", [1, 2])
async def test_a_fetch_waits_once_nothing_is_left_to_ask_for_or_many_bytes_are_wanted(
    broker: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch, min_bytes: int
) -> None:
    monkeypatch.setattr(unasked, "FIRST_WAIT_MS", 0)
    await two_partitions(replicas)
    consumer = Consumer(broker)
    assert await consumer.fetch(KEY)
    key, offset = (KEY, 1) if min_bytes == 1 else (OTHER, 0)
    task = asyncio.create_task(consumer.fetch(key, offset, min_bytes))
    waiting = replicas.manager._hosted.for_high_watermark
    async with asyncio.timeout(60):
        while not len(waiting):
            assert not task.done()
            await asyncio.sleep(0)
        await replicas.manager.append([(key, logs.batch(b"value"))], 1, 0, Origin.CLIENT)
        assert await task


async def test_a_fetch_waits_for_more_bytes_in_the_newest_segment_only(
    broker: Broker, replicas: Replicas
) -> None:
    """A reader far behind would wait at the end of each segment."""
    await replicas.lead()
    await replicas.manager.append([(KEY, logs.batch(b"old"))], 1, 0, Origin.CLIENT)
    replicas.manager.partitions[KEY].log.roll()
    await replicas.manager.append([(KEY, logs.batch(b"new"))], 1, 0, Origin.CLIENT)
    consumer = Consumer(broker)
    many = 1 << 20
    async with asyncio.timeout(60):
        assert await consumer.fetch(KEY, 0, many)
        task = asyncio.create_task(consumer.fetch(KEY, 1, many))
        while not len(replicas.manager._hosted.for_high_watermark):
            assert not task.done()
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_fetch_does_not_wait_for_more_bytes_than_it_may_have(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead()
    for _ in range(2):
        await replicas.manager.append([(KEY, logs.batch(b"value"))], 1, 0, Origin.CLIENT)
    most = len(logs.batch(b"value")) + 1
    async with asyncio.timeout(60):
        assert await Consumer(broker).fetch(KEY, 0, min_bytes=1 << 20, max_bytes=most)
