"""Produce of formats before 0.11: taken apart in a thread, and only where it can be kept."""

from __future__ import annotations

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


async def send(broker: Broker) -> ErrorCode:
    part = PartitionProduceData(index=KEY.partition, records=MESSAGES)
    request = ProduceRequest(
        acks=1,
        timeout_ms=0,
        topic_data=[TopicProduceData(name=KEY.topic, partition_data=[part])],
    )
    answer = await produce.produce(broker, request, RequestContext(2, "c", "PLAINTEXT", "h", 1))
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
