"""Produce to the topics that brokers keep their own records in: not for clients."""

from __future__ import annotations

import pytest

from odradek.handlers import produce
from odradek.handlers.context import Broker, RequestContext
from odradek.log.records.batch import Origin
from odradek.net.frame import ProtocolViolation
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.values import TopicPartition
from tests.support.logs import batch
from tests.support.replicas import TOPIC, Replicas

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
VERSIONS = [3, 9]


async def send(
    broker: Broker, *topics: str, version: int, client_id: str | None = "c", acks: int = 1
) -> list[ErrorCode]:
    """The code for partition 0 of each topic."""
    wanted = [
        TopicProduceData(
            name=topic, partition_data=[PartitionProduceData(index=0, records=batch(b"v"))]
        )
        for topic in topics
    ]
    request = ProduceRequest(acks=acks, timeout_ms=0, topic_data=wanted)
    answer = await produce.produce(
        broker, request, RequestContext(version, client_id, "PLAINTEXT", "h", 1)
    )
    assert isinstance(answer, ProduceResponse)
    return [ErrorCode(topic.partition_responses[0].error_code) for topic in answer.responses]


def log_ends(broker: Broker) -> dict[str, int]:
    return {key.topic: one.log.log_end_offset for key, one in broker.replicas.partitions.items()}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("client_id", ["c", None, ""])
async def test_clients_are_refused_there_and_served_elsewhere(
    broker: Broker, replicas: Replicas, version: int, client_id: str | None
) -> None:
    await replicas.lead()
    await replicas.lead(topic=OFFSETS)
    codes = await send(broker, OFFSETS, TOPIC, "none", version=version, client_id=client_id)
    assert codes == [
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert log_ends(broker) == {OFFSETS: 0, TOPIC: 1}


@pytest.mark.parametrize("version", VERSIONS)
async def test_tools_of_administrators_may_write_there(
    broker: Broker, replicas: Replicas, version: int
) -> None:
    await replicas.lead(topic=OFFSETS)
    codes = await send(broker, OFFSETS, version=version, client_id="__admin_client")
    assert codes == [ErrorCode.NONE]


async def test_what_is_not_there_is_told_first(broker: Broker, replicas: Replicas) -> None:
    await replicas.take(leader=2, isr=(1, 2), replicas=(1, 2), topic=OFFSETS)
    codes = await send(broker, TRANSACTIONS, OFFSETS, version=9)
    assert codes == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]


async def test_who_awaits_no_answer_loses_the_connection(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead(topic=OFFSETS)
    with pytest.raises(ProtocolViolation):
        await send(broker, OFFSETS, version=9, acks=0)
    assert log_ends(broker) == {OFFSETS: 0}


async def test_coordinators_go_on_to_write_there(replicas: Replicas) -> None:
    await replicas.lead(topic=OFFSETS)
    data = batch(b"v")
    [outcome] = await replicas.manager.append(
        [(TopicPartition(OFFSETS, 0), data)], -1, 0, Origin.COORDINATOR
    )
    assert outcome.error is ErrorCode.NONE
