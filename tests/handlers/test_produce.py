"""Produce: what one request names twice, and how refused records are named (KIP-467)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from odradek.handlers import produce
from odradek.handlers.context import Broker, RequestContext
from odradek.log.records import contents, records
from odradek.net.owed_answers import Later
from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.replica.fetch_specs import FetchLimits, FetchSpec
from tests.support.logs import START_MS
from tests.support.replicas import KEY, TOPIC, Replicas

OTHER = "other"
KEYLESS = records.make([(b"k", b"v"), (None, b"v"), (None, b"v")], START_MS)


async def send(
    broker: Broker,
    *entries: tuple[str, int, bytes],
    version: int = 9,
    acks: int = 1,
    takes_later: bool = False,
) -> ProduceResponse:
    """Produce to (topic, partition), each in a topic of its own; return what a client decodes."""
    request = ProduceRequest(
        acks=acks,
        timeout_ms=0,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=index, records=data)]
            )
            for topic, index, data in entries
        ],
    )
    context = RequestContext(version, "c", "PLAINTEXT", "h", 1, takes_later=takes_later)
    answer = await produce.produce(broker, request, context)
    assert isinstance(answer, ProduceResponse)
    decoded, _ = codec.decode(ProduceResponse, version, codec.encode(answer, version))
    return decoded


def outcomes(answer: ProduceResponse) -> Sequence[tuple[str, int, int]]:
    return [
        (topic.name, part.index, part.error_code)
        for topic in answer.responses
        for part in topic.partition_responses
    ]


async def test_of_a_partition_named_twice_the_last_records_count(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead()
    await replicas.lead(topic=OTHER)
    first, last, other = (records.make([(b"k", value)], START_MS) for value in (b"1", b"2", b"3"))
    answer = await send(broker, (TOPIC, 0, first), (OTHER, 0, other), (TOPIC, 0, last))
    assert outcomes(answer) == [(TOPIC, 0, 0), (OTHER, 0, 0)]
    log = replicas.manager.partitions[KEY].log
    assert log.log_end_offset == 1
    kept = Path(log.directory, "00000000000000000000.log").read_bytes()
    assert [one.value for one in records.decode(kept)] == [b"2"]


async def test_partitions_of_a_topic_named_twice_are_answered_together(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead()
    data = records.make([(b"k", b"v")], START_MS)
    answer = await send(broker, (TOPIC, 0, data), (OTHER, 7, data), (TOPIC, 1, data))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcomes(answer) == [(TOPIC, 0, 0), (TOPIC, 1, unknown), (OTHER, 7, unknown)]
    assert [topic.name for topic in answer.responses] == [TOPIC, OTHER]


@pytest.fixture
async def compacted(tmp_path: Path, broker: Broker, replicas: Replicas) -> Replicas:
    await replicas.lead()
    log = replicas.manager.partitions[KEY].log
    log.config = type(log.config)(cleanup_policy=("compact",))
    return replicas


async def refused(broker: Broker, version: int) -> PartitionProduceResponse:
    answer = await send(broker, (TOPIC, 0, KEYLESS), version=version)
    return answer.responses[0].partition_responses[0]


async def test_since_version_8_refused_records_are_named(
    broker: Broker, compacted: Replicas
) -> None:
    answer = await refused(broker, 8)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert answer.error_message == "One or more records have been rejected"
    assert (answer.base_offset, answer.log_start_offset) == (-1, 0)
    wanted = f"Compacted topic cannot accept message without key in topic partition {KEY}."
    assert [(one.batch_index, one.batch_index_error_message) for one in answer.record_errors] == [
        (1, wanted),
        (2, wanted),
    ]


async def test_before_version_8_there_is_the_code_alone(
    broker: Broker, compacted: Replicas
) -> None:
    answer = await refused(broker, 7)
    assert (answer.error_code, answer.record_errors) == (ErrorCode.CORRUPT_MESSAGE, [])


async def test_an_answer_names_so_many_records_and_then_only_partitions(
    broker: Broker, replicas: Replicas
) -> None:
    keyless = records.make([(None, b"v")] * contents.MOST_RECORD_ERRORS, START_MS)
    topics = [f"t{number}" for number in range(produce.MOST_RECORD_ERRORS // 100 + 2)]
    for topic in topics:
        await replicas.lead(topic=topic)
        log = next(
            one.log for key, one in replicas.manager.partitions.items() if key.topic == topic
        )
        log.config = type(log.config)(cleanup_policy=("compact",))
    answer = await send(broker, *((topic, 0, keyless) for topic in topics))
    parts = [topic.partition_responses[0] for topic in answer.responses]
    assert {one.error_code for one in parts} == {ErrorCode.INVALID_RECORD}
    named = [len(one.record_errors) for one in parts]
    assert sum(named) == produce.MOST_RECORD_ERRORS
    assert named[-2:] == [0, 0]


async def test_an_answer_that_waits_for_replicas_is_there_later(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead(isr=(1, 2), replicas=(1, 2))
    written = [PartitionProduceData(index=0, records=records.make([(b"k", b"v")], START_MS))]
    request = ProduceRequest(
        acks=-1,
        timeout_ms=60_000,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=written)],
    )
    context = RequestContext(9, "c", "PLAINTEXT", "h", 1, takes_later=True)
    later = await produce.produce(broker, request, context)
    assert isinstance(later, Later)
    assert replicas.manager.partitions[KEY].log.log_end_offset == 1
    waiting = asyncio.ensure_future(later.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    await replicas.manager.fetch([FetchSpec(KEY, 1, 1)], 2, FetchLimits(0, 1, 1))
    assert outcomes(await waiting) == [(TOPIC, 0, 0)]


async def test_an_answer_that_is_there_at_once_is_none_for_later(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead()
    data = records.make([(b"k", b"v")], START_MS)
    answer = await send(broker, (TOPIC, 0, data), acks=-1, takes_later=True)
    assert outcomes(answer) == [(TOPIC, 0, 0)]
