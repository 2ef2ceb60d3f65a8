"""Where a reader of records begins, in partitions that are added to its topic, too."""

from __future__ import annotations

from typing import cast

import pytest

from odradek.log.records import batch
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import metadata
from odradek.protocol.messages import offsets as messages
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from odradek.protocol.schema import Request, ResponseT
from odradek.tools import added_partitions
from odradek.tools.client import LATEST, ToolClient
from odradek.tools.consume import RecordReader
from odradek.tools.errors import ToolError
from odradek.values import TopicPartition
from tests.support import logs

LED, DARK = TopicPartition("t", 0), TopicPartition("t", 1)


class Electing(ToolClient):
    """Broker 1 leads one partition, and the other one too once it is asked for the metadata.

    Each partition has a record more whenever somebody asks for its end.
    """

    def __init__(self) -> None:
        super().__init__([])
        self.nodes = {1: ("unused", 1)}
        self.leaders = {LED: 1, DARK: -1}
        self.ends = {LED.partition: 7, DARK.partition: 100}
        self.fetched: list[int] = []

    async def connect(self) -> None:
        self.leaders[DARK] = 1

    async def call(self, node: int, request: Request[ResponseT], version: int) -> ResponseT:
        if isinstance(request, FetchRequest):
            self.fetched += [one.fetch_offset for one in request.topics[0].partitions]
            raise ToolError("enough")
        assert isinstance(request, messages.ListOffsetsRequest)
        return cast("ResponseT", self.listed(request))

    def listed(self, request: messages.ListOffsetsRequest) -> messages.ListOffsetsResponse:
        found = []
        for one in request.topics[0].partitions:
            found.append(
                messages.ListOffsetsPartitionResponse(
                    partition_index=one.partition_index,
                    error_code=ErrorCode.NONE,
                    offset=self.ends[one.partition_index],
                )
            )
            self.ends[one.partition_index] += 1
        return messages.ListOffsetsResponse(
            topics=[messages.ListOffsetsTopicResponse(name="t", partitions=found)]
        )


async def test_the_end_of_one_partition_stays_while_another_has_no_leader() -> None:
    brokers = Electing()
    reader = RecordReader(brokers, [LED, DARK])
    await reader.seek(LATEST, None)
    with pytest.raises(ToolError, match=r"^enough$"):
        async for _ in reader.records():
            pass
    assert sorted(brokers.fetched) == [7, 100]


class Shortened(Electing):
    """Its logs have no record any more where a reader is."""

    async def call(self, node: int, request: Request[ResponseT], version: int) -> ResponseT:
        if not isinstance(request, FetchRequest):
            return await super().call(node, request, version)
        self.fetched += [one.fetch_offset for one in request.topics[0].partitions]
        parts = [
            FetchablePartitionResponse(
                partition=one.partition,
                error_code=ErrorCode.OFFSET_OUT_OF_RANGE,
                high_watermark=0,
                record_set=None,
            )
            for one in request.topics[0].partitions
        ]
        topic = FetchableTopicResponse(topic="t", partition_responses=parts)
        return cast("ResponseT", FetchResponse(responses=[topic]))


@pytest.mark.parametrize(
    ("start", "committed", "said", "status"),
    [
        (LATEST, None, r"^t-0 has no offset 7 any more: .* the topic was made anew$", 1),
        (LATEST, {LED: 3}, r"^t-0 has no offset 3$", 2),
        (99, None, r"^t-0 has no offset 99$", 2),
    ],
)
async def test_an_offset_that_is_gone_is_no_mistake(
    start: int, committed: dict[TopicPartition, int] | None, said: str, status: int
) -> None:
    brokers = Shortened()
    reader = RecordReader(brokers, [LED])
    await reader.seek(start, committed)
    with pytest.raises(ToolError, match=said) as failed:
        async for _ in reader.records():
            pass
    assert failed.value.status == status
    assert len(brokers.fetched) == 1, "it is not tried again"


class PartlyBroken(Electing):
    """Has one record in a partition; the other has moved, or is damaged, or gone."""

    def __init__(self, error: ErrorCode, content: bytes) -> None:
        super().__init__()
        self.leaders[DARK] = 1
        self._other = error, content

    async def call(self, node: int, request: Request[ResponseT], version: int) -> ResponseT:
        assert isinstance(request, FetchRequest)
        if self.fetched:
            raise ToolError("enough")
        first = ErrorCode.NONE, logs.batch(b"value")
        parts = []
        for one, (error, content) in zip(
            request.topics[0].partitions, (first, self._other), strict=True
        ):
            self.fetched.append(one.fetch_offset)
            parts.append(
                FetchablePartitionResponse(
                    partition=one.partition, error_code=error, high_watermark=9, record_set=content
                )
            )
        topic = FetchableTopicResponse(topic="t", partition_responses=parts)
        return cast("ResponseT", FetchResponse(responses=[topic]))


@pytest.mark.parametrize(
    ("error", "content", "read"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"", [LED]),
        (ErrorCode.KAFKA_STORAGE_ERROR, b"", [LED]),
        (ErrorCode.OFFSET_OUT_OF_RANGE, b"", [LED]),
        (ErrorCode.NONE, logs.batch(b"sound") + bytes(100), [LED, DARK]),
    ],
)
async def test_the_error_of_one_partition_loses_no_record_of_others(
    error: ErrorCode, content: bytes, read: list[TopicPartition]
) -> None:
    """They would be passed over, as they are not fetched again."""
    reader = RecordReader(PartlyBroken(error, content), [LED, DARK])
    await reader.seek(0, None)
    found: list[TopicPartition] = []

    async def read_on() -> None:
        async for some in reader.records():
            found.extend(partition for partition, _ in some)

    with pytest.raises(ToolError):
        await read_on()
    assert found == read


def written(offset: int, epoch: int) -> bytes:
    """Return a batch of one record as a leader writes it."""
    data = logs.batch(b"value")
    return b"".join(map(bytes, batch.stamp(data, batch.parse(data), offset, epoch)))


class OfAnotherEpoch(Electing):
    """Its partition ends at 7 in leader epoch 3; then it has a record of some epoch there, and says
    that epoch 3 ends at `end`.
    """

    def __init__(self, epoch: int, end: int) -> None:
        super().__init__()
        self._epoch, self._end = epoch, end
        self.asked: list[int] = []

    def listed(self, request: messages.ListOffsetsRequest) -> messages.ListOffsetsResponse:
        answer = super().listed(request)
        answer.topics[0].partitions[0].leader_epoch = 3
        return answer

    async def call(self, node: int, request: Request[ResponseT], version: int) -> ResponseT:
        if isinstance(request, messages.OffsetForLeaderEpochRequest):
            self.asked += [one.leader_epoch for one in request.topics[0].partitions]
            told = messages.OffsetForLeaderEpochEndOffset(partition=0, end_offset=self._end)
            result = messages.OffsetForLeaderTopicResult(topic="t", partitions=[told])
            return cast("ResponseT", messages.OffsetForLeaderEpochResponse(topics=[result]))
        if not isinstance(request, FetchRequest) or self.fetched:
            return await super().call(node, request, version)
        self.fetched.append(7)
        part = FetchablePartitionResponse(
            partition=0,
            error_code=ErrorCode.NONE,
            high_watermark=9,
            record_set=written(7, self._epoch),
        )
        topic = FetchableTopicResponse(topic="t", partition_responses=[part])
        return cast("ResponseT", FetchResponse(responses=[topic]))


@pytest.mark.parametrize(
    ("epoch", "end", "asked", "is_read"),
    [
        (3, 0, [], True),
        (5, 7, [3], True),
        (5, -1, [3], True),
        (5, 0, [3], False),
        (2, 0, [], False),
    ],
    ids=["same leader", "elected", "nobody knows", "made anew", "made anew, of a lower epoch"],
)
async def test_a_log_that_is_not_the_one_that_was_read_is_noticed_though_it_has_the_offset(
    epoch: int, end: int, asked: list[int], is_read: bool
) -> None:
    brokers = OfAnotherEpoch(epoch, end)
    reader = RecordReader(brokers, [LED])
    await reader.seek(LATEST, None)
    found: list[int] = []

    async def read_on() -> None:
        async for some in reader.records():
            found.extend(record.offset for _, record in some)

    gone = r"^t-0 has no offset 7 any more: .* the topic was made anew$"
    with pytest.raises(ToolError, match="^enough$" if is_read else gone):
        await read_on()
    assert found == ([7] if is_read else [])
    assert brokers.asked == asked


class Growing(Electing):
    """Has nothing to fetch, and fails at the third request. A look at its topic shows a partition
    more, which broker 2 leads, and one that has no leader yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leaders = {LED: 1}
        self.rounds: list[dict[int, int]] = []
        self.looks = 0

    async def call(self, node: int, request: Request[ResponseT], version: int) -> ResponseT:
        if isinstance(request, metadata.MetadataRequest):
            return cast("ResponseT", self.described(request))
        if not isinstance(request, FetchRequest):
            return await super().call(node, request, version)
        asked = request.topics[0].partitions
        self.rounds.append({one.partition: one.fetch_offset for one in asked})
        if len(self.rounds) > 2:
            raise ToolError("enough")
        parts = [
            FetchablePartitionResponse(
                partition=one.partition,
                error_code=ErrorCode.NONE,
                high_watermark=0,
                record_set=None,
            )
            for one in asked
        ]
        topic = FetchableTopicResponse(topic="t", partition_responses=parts)
        return cast("ResponseT", FetchResponse(responses=[topic]))

    def described(self, request: metadata.MetadataRequest) -> metadata.MetadataResponse:
        assert [one.name for one in request.topics or ()] == ["t"]
        assert not request.allow_auto_topic_creation
        self.looks += 1
        partitions = [
            metadata.MetadataResponsePartition(
                partition_index=index, leader_id=leader, replica_nodes=[], isr_nodes=[]
            )
            for index, leader in enumerate((1, 2, -1))
        ]
        return metadata.MetadataResponse(
            brokers=[metadata.MetadataResponseBroker(node_id=2, host="unused", port=2)],
            topics=[metadata.MetadataResponseTopic(name="t", partitions=partitions)],
        )


@pytest.mark.parametrize(
    ("takes_added", "rounds"),
    # Those of the second time are two requests, one per leader.
    [(True, [{0: 7}, {0: 7}, {1: 100}]), (False, [{0: 7}, {0: 7}, {0: 7}])],
)
async def test_partitions_that_are_added_are_read_from_their_start_once_they_have_a_leader(
    monkeypatch: pytest.MonkeyPatch, takes_added: bool, rounds: list[dict[int, int]]
) -> None:
    monkeypatch.setattr(added_partitions, "REFRESH_INTERVAL_S", 0.0)
    brokers = Growing()
    reader = RecordReader(brokers, [LED], takes_added=takes_added)
    await reader.seek(LATEST, None)
    with pytest.raises(ToolError, match=r"^enough$"):
        async for _ in reader.records():
            pass
    assert brokers.rounds == rounds
    assert brokers.looks == int(takes_added)
