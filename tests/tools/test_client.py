"""Questions to the brokers of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import offsets as messages
from odradek.protocol.schema import Request, ResponseT
from odradek.tools.client import LATEST, ToolClient
from odradek.tools.errors import ToolError
from odradek.values import TopicPartition

FULL, EMPTY, MOVING, DARK = (TopicPartition("t", number) for number in range(4))


class ListedOffsets(ToolClient):
    """Broker 1 leads all but one partition, of which it gave one away since."""

    def __init__(self) -> None:
        super().__init__([])
        self.nodes = {1: ("unused", 1)}
        self.leaders = {FULL: 1, EMPTY: 1, MOVING: 1, DARK: -1}

    async def call(self, node: int, request: Request[ResponseT], version: int) -> ResponseT:
        assert isinstance(request, messages.ListOffsetsRequest)
        return cast("ResponseT", self.listed(request))

    def listed(self, request: messages.ListOffsetsRequest) -> messages.ListOffsetsResponse:
        answers = {
            FULL.partition: (ErrorCode.NONE, 7),
            EMPTY.partition: (ErrorCode.NONE, -1),
            MOVING.partition: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
        }
        return messages.ListOffsetsResponse(
            topics=[
                messages.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        messages.ListOffsetsPartitionResponse(
                            partition_index=each.partition_index,
                            error_code=answers[each.partition_index][0],
                            offset=answers[each.partition_index][1],
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )


async def test_offsets_that_no_leader_tells_are_left_out() -> None:
    offsets = await ListedOffsets().offsets([FULL, EMPTY, MOVING, DARK], 5)
    assert offsets == {FULL: 7, EMPTY: -1}


@pytest.mark.parametrize(
    ("partitions", "missing"),
    [([FULL, MOVING], "t-2"), ([DARK, FULL], "t-3"), ([FULL, DARK, MOVING], "t-2, t-3")],
)
async def test_offsets_are_asked_for_all_or_none(
    partitions: Sequence[TopicPartition], missing: str
) -> None:
    with pytest.raises(ToolError, match=f"offsets of {missing}: no leader answered$") as failure:
        await ListedOffsets().every_offset(partitions, LATEST)
    assert failure.value.status == 1
    assert await ListedOffsets().every_offset([FULL, EMPTY], LATEST) == {FULL: 7, EMPTY: -1}
