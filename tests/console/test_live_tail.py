"""What a live tail tells of a topic whose log it cannot go on reading."""

from __future__ import annotations

import json
from typing import cast

import pytest
from aiohttp import web

from odradek.log.records import batch
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import offsets as messages
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from odradek.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from odradek.protocol.schema import Request, ResponseT
from odradek.tools.client import ToolClient
from odradek.values import TopicPartition
from odradek_console import record_pages, records
from odradek_console.rendering import Console
from tests.support import logs

EVERYTHING = record_pages.RecordQuery("newest", None, 0, None, "", 20, "", "")


def written(offset: int, epoch: int) -> bytes:
    """Return a batch of one record as a leader writes it."""
    data = logs.batch(b"value")
    return b"".join(map(bytes, batch.stamp(data, batch.parse(data), offset, epoch)))


class OneBroker(ToolClient):
    """Leads all partitions of topic t. They end at 7 in leader epoch 3, later at 2 in epoch 5.

    `first` is what the first fetch finds: an error and records.
    """

    def __init__(self, partitions: int, first: tuple[ErrorCode, bytes]) -> None:
        super().__init__([])
        self.nodes = {1: ("unused", 1)}
        self.leaders = {TopicPartition("t", number): 1 for number in range(partitions)}
        self._ends = [(7, 3), (2, 5)]
        self._answers = [first]
        self.fetched: list[dict[int, int]] = []

    async def connect(self) -> None:
        """The topic is there."""

    async def topic_leaders(self, node: int, topic: str) -> dict[TopicPartition, int]:
        return dict(self.leaders)

    async def call(self, node: int, request: Request[ResponseT], version: int) -> ResponseT:
        if isinstance(request, messages.ListOffsetsRequest):
            return cast("ResponseT", self._listed(request))
        if isinstance(request, messages.OffsetForLeaderEpochRequest):
            told = messages.OffsetForLeaderEpochEndOffset(partition=0, end_offset=0)
            result = messages.OffsetForLeaderTopicResult(topic="t", partitions=[told])
            return cast("ResponseT", messages.OffsetForLeaderEpochResponse(topics=[result]))
        assert isinstance(request, FetchRequest)
        asked = request.topics[0].partitions
        self.fetched.append({one.partition: one.fetch_offset for one in asked})
        error, content = self._answers.pop(0) if self._answers else (ErrorCode.NONE, b"")
        parts = [
            FetchablePartitionResponse(
                partition=one.partition, error_code=error, high_watermark=9, record_set=content
            )
            for one in asked
        ]
        topic = FetchableTopicResponse(topic="t", partition_responses=parts)
        return cast("ResponseT", FetchResponse(responses=[topic]))

    def _listed(self, request: messages.ListOffsetsRequest) -> messages.ListOffsetsResponse:
        offset, epoch = self._ends.pop(0)
        found = [
            messages.ListOffsetsPartitionResponse(
                partition_index=one.partition_index,
                error_code=ErrorCode.NONE,
                offset=offset,
                leader_epoch=epoch,
            )
            for one in request.topics[0].partitions
        ]
        topic = messages.ListOffsetsTopicResponse(name="t", partitions=found)
        return messages.ListOffsetsResponse(topics=[topic])


class Stream:
    """In place of the stream to a browser: keeps its events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    async def write(self, data: bytes) -> None:
        if not data.startswith(b"event: "):
            return
        name, content = data.decode().splitlines()[:2]
        text = json.loads(content.removeprefix("data: "))["text"]
        self.events.append((name.removeprefix("event: "), text))


async def tailed(
    broker: OneBroker, rounds: int, lost: TopicPartition | None = None
) -> list[tuple[str, str]]:
    """Return the events of a tail of so many rounds, without its first word and its last.

    The partition `lost` goes behind the first round.
    """
    topic = MetadataResponseTopic(
        name="t",
        partitions=[
            MetadataResponsePartition(
                partition_index=one.partition, leader_id=1, replica_nodes=[1], isr_nodes=[1]
            )
            for one in broker.leaders
        ],
    )
    stream = Stream()
    left = iter(range(rounds))

    def may_look() -> bool:
        number = next(left, None)
        if number == 1 and lost is not None:
            del broker.leaders[lost]
        return number is not None

    await record_pages._send_tail(
        cast("web.StreamResponse", stream),
        cast("Console", None),
        broker,
        topic,
        EVERYTHING,
        may_look,
    )
    assert stream.events[0] == ("state", "reading")
    assert stream.events[-1] == ("end", "you are logged out")
    return stream.events[1:-1]


@pytest.mark.parametrize(
    "first",
    [(ErrorCode.OFFSET_OUT_OF_RANGE, b""), (ErrorCode.NONE, written(7, epoch=5))],
    ids=["shorter", "longer"],
)
async def test_a_tail_says_that_it_goes_on_at_the_end_of_a_topic_made_anew(
    first: tuple[ErrorCode, bytes],
) -> None:
    broker = OneBroker(1, first)
    [(event, text)] = await tailed(broker, rounds=2)
    assert event == "notice"
    assert text == (
        "t-0 has no offset 7 any more: its records were deleted, or the topic was made anew; "
        "going on at the end"
    )
    assert broker.fetched == [{0: 7}, {0: 2}]


async def test_a_tail_says_how_many_more_partitions_it_does_not_read() -> None:
    broker = OneBroker(8, (ErrorCode.KAFKA_STORAGE_ERROR, b""))
    [(event, text), after] = await tailed(broker, rounds=2)
    assert event == "state"
    assert text.startswith("t-0: KAFKA_STORAGE_ERROR; t-1: KAFKA_STORAGE_ERROR; ")
    assert text.endswith("; and 3 more")
    assert after == ("state", "reading")


async def test_a_tail_says_of_a_partition_that_is_gone_that_it_does_not_exist() -> None:
    """Its topic was made anew with fewer partitions."""
    broker = OneBroker(2, (ErrorCode.NONE, b""))
    events = await tailed(broker, rounds=2, lost=TopicPartition("t", 1))
    assert events == [("state", "t-1 does not exist")]


async def test_a_tail_reads_all_partitions_of_a_leader_in_turns() -> None:
    many = records.PARTITIONS_AT_ONCE + 44
    broker = OneBroker(many, (ErrorCode.NONE, b""))
    assert await tailed(broker, rounds=2) == []
    assert {len(one) for one in broker.fetched} == {records.PARTITIONS_AT_ONCE}
    assert {number for one in broker.fetched for number in one} == set(range(many))
