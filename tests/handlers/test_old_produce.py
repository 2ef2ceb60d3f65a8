"""Produce of formats before 0.11: taken apart in a thread, and only where it can be kept."""

from __future__ import annotations

import asyncio
import threading

import pytest

from odradek.handlers import produce
from odradek.handlers.context import Broker, RequestContext
from odradek.log.partition import conversion
from odradek.log.records import compression, legacy
from odradek.log.records.records import Record
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support import logs
from tests.support.logs import START_MS
from tests.support.replicas import KEY, Replicas

MESSAGES = legacy.encode([Record(0, START_MS, b"k", b"v")], 1, compression.GZIP)


@pytest.fixture
def converters(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads in which messages were converted."""
    threads: list[int] = []
    convert = conversion.to_batch

    def noting(*arguments: object) -> bytes:
        threads.append(threading.get_ident())
        return convert(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(conversion, "to_batch", noting)
    return threads


async def send(
    broker: Broker, version: int = 2, records: bytes = MESSAGES, acks: int = 1
) -> ErrorCode:
    part = PartitionProduceData(index=KEY.partition, records=records)
    request = ProduceRequest(
        acks=acks,
        timeout_ms=600_000,
        topic_data=[TopicProduceData(name=KEY.topic, partition_data=[part])],
    )
    context = RequestContext(version, "c", "PLAINTEXT", "h", 1)
    answer = await produce.produce(broker, request, context)
    assert isinstance(answer, ProduceResponse)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def test_a_leader_converts_off_the_event_loop(
    broker: Broker, replicas: Replicas, converters: list[int]
) -> None:
    await replicas.lead()
    assert await send(broker) is ErrorCode.NONE
    assert len(converters) == 1
    assert converters != [threading.get_ident()]


async def test_what_this_broker_does_not_lead_is_refused_unconverted(
    broker: Broker, replicas: Replicas, converters: list[int]
) -> None:
    assert await send(broker) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await replicas.take(leader=2, isr=(1, 2), replicas=(1, 2))
    assert await send(broker) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert converters == []


@pytest.mark.parametrize("version", [2, 3, 4, 9])
async def test_producers_that_know_no_storage_error_look_for_another_leader(
    broker: Broker, replicas: Replicas, version: int
) -> None:
    """They would give the records up."""
    await replicas.lead()
    replicas.manager.partitions[KEY].offline = True
    records = MESSAGES if version < 3 else logs.batch(b"value")
    told = ErrorCode.NOT_LEADER_OR_FOLLOWER if version < 4 else ErrorCode.KAFKA_STORAGE_ERROR
    assert await send(broker, version, records) is told


@pytest.mark.parametrize("version", [3, 9])
async def test_so_do_they_if_the_disk_fails_while_they_wait(
    broker: Broker, replicas: Replicas, version: int
) -> None:
    await replicas.lead(isr=(1, 2), replicas=(1, 2))
    task = asyncio.create_task(send(broker, version, logs.batch(b"value"), acks=-1))
    async with asyncio.timeout(60):
        while not len(replicas.manager._hosted.for_acknowledgement):
            assert not task.done()
            await asyncio.sleep(0)
        replicas.manager.partitions[KEY].offline = True
        replicas.manager._hosted.wake_all(KEY)
        told = ErrorCode.NOT_LEADER_OR_FOLLOWER if version < 4 else ErrorCode.KAFKA_STORAGE_ERROR
        assert await task is told
