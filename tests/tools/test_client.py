"""Questions to the brokers of a cluster."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import cast

import pytest

from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import metadata
from odradek.protocol.messages import offsets as messages
from odradek.protocol.schema import Request, ResponseT
from odradek.tools.client import LATEST, ToolClient
from odradek.tools.errors import NothingDoneError, ToolError
from odradek.values import TopicPartition
from tests.support.ports import free_port

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


class Started(ToolClient):
    """Brokers on ports 1 to N, with these answers to Metadata."""

    def __init__(self, *answers: metadata.MetadataResponse) -> None:
        super().__init__([("broker", port) for port in range(1, len(answers) + 1)])
        self.answers = dict(enumerate(answers, 1))

    def _client(self, address: tuple[str, int]) -> PeerClient:
        answer = self.answers[address[1]]

        class Answering(PeerClient):
            async def call(
                self, request: Request[ResponseT], version: int, timeout_ms: int
            ) -> ResponseT:
                return cast("ResponseT", answer)

        return Answering(*address, "test")


async def test_a_broker_that_knows_no_brokers_yet_is_not_believed() -> None:
    broker = metadata.MetadataResponseBroker(node_id=7, host="h", port=9)
    aware = metadata.MetadataResponse(brokers=[broker], topics=[])
    unaware = metadata.MetadataResponse(brokers=[], topics=[])
    client = Started(unaware, aware)
    await client.connect()
    assert client.nodes == {7: ("h", 9)}
    with pytest.raises(NothingDoneError, match=r"^broker:1 knows no brokers yet$"):
        await Started(unaware).connect()


async def test_a_request_that_nobody_received_may_be_sent_again() -> None:
    request = metadata.MetadataRequest(topics=None)
    client = ToolClient([])
    client.nodes = {1: ("127.0.0.1", free_port())}
    with pytest.raises(NothingDoneError, match=r"^broker 1: .* Connect call failed"):
        await client.call(1, request, 5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client.nodes = {1: server.getsockname()}
        asking = asyncio.create_task(client.call(1, request, 5))
        taken, _ = await asyncio.to_thread(server.accept)
        await asyncio.to_thread(taken.recv, 1)
        taken.close()
        with pytest.raises(ToolError) as failure:
            await asking
        assert not isinstance(failure.value, NothingDoneError)
    await client.close()
