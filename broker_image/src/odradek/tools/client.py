"""The client of command-line tools for brokers, with API versions of Kafka 2.1 and later."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode, name_of
from odradek.protocol.messages import groups, metadata
from odradek.protocol.messages import offsets as offset_messages
from odradek.protocol.schema import Request
from odradek.tools.errors import ToolError
from odradek.values import TopicPartition

ResponseT = TypeVar("ResponseT")

EARLIEST, LATEST = -2, -1
_TIMEOUT_MS = 30_000
_RETRY_S = 0.3
_RETRIES = 100
_RETRIABLE = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """Read `host:port,...`. Raises ToolError."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
            raise ToolError(f"{part!r} is not HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise ToolError("no broker is given")
    return found


class ToolClient:
    """A client of the brokers of one cluster, found through any of `addresses`."""

    def __init__(self, addresses: Iterable[tuple[str, int]]) -> None:
        self._bootstrap = list(addresses)
        self._clients: dict[tuple[str, int], PeerClient] = {}
        self.nodes: dict[int, tuple[str, int]] = {}
        self.leaders: dict[TopicPartition, int] = {}

    async def connect(self) -> None:
        """Read brokers, topics and leaders. Raises ToolError if no broker answers."""
        failure: Exception = ConnectionError("no address")
        for address in self._bootstrap:
            try:
                request = metadata.MetadataRequest(topics=None)
                answer = await self._client(address).call(request, 1, _TIMEOUT_MS)
            except (ConnectionError, TimeoutError) as error:
                failure = error
                continue
            self.nodes = {node.node_id: (node.host, node.port) for node in answer.brokers}
            self.leaders = {
                TopicPartition(topic.name, partition.partition_index): partition.leader_id
                for topic in answer.topics
                for partition in topic.partitions
            }
            return
        raise ToolError(f"failed to reach any broker: {failure}", 1)

    def _client(self, address: tuple[str, int]) -> PeerClient:
        if address not in self._clients:
            self._clients[address] = PeerClient(*address, "odradek-tools")
        return self._clients[address]

    async def call(self, node: int, request: Request[ResponseT], version: int) -> ResponseT:
        """Send a request to the broker with this id; return the response. Raises ToolError."""
        if node not in self.nodes:
            raise ToolError(f"broker {node} is unknown", 1)
        try:
            return await self._client(self.nodes[node]).call(request, version, _TIMEOUT_MS)
        except (ConnectionError, TimeoutError) as error:
            raise ToolError(f"broker {node}: {error}", 1) from error

    async def coordinator(self, group: str) -> int:
        """Return the broker id of the group's coordinator; wait for its election."""
        for _ in range(_RETRIES):
            for node in self.nodes:
                answer = await self.call(node, groups.FindCoordinatorRequest(key=group), 1)
                if answer.error_code == ErrorCode.NONE:
                    self.nodes[answer.node_id] = (answer.host, answer.port)
                    return answer.node_id
                if answer.error_code not in _RETRIABLE:
                    raise ToolError(f"group {group}: {name_of(answer.error_code)}")
                break
            await asyncio.sleep(_RETRY_S)
        raise ToolError(f"group {group} has no coordinator", 1)

    @staticmethod
    async def pause_if_retriable(code: int) -> bool:
        """Return whether an error is retriable; if so, first wait a little."""
        if code in _RETRIABLE:
            await asyncio.sleep(_RETRY_S)
            return True
        return False

    async def offsets(
        self, partitions: Collection[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        """Return the first offsets at or after a time (ms), or at `EARLIEST` or `LATEST`.

        The offset is -1 if there is no such record. Partitions without an answer are left out.
        """
        by_leader: dict[int, dict[str, list[int]]] = {}
        for partition in partitions:
            leader = self.leaders.get(partition, -1)
            if leader in self.nodes:
                topics = by_leader.setdefault(leader, {})
                topics.setdefault(partition.topic, []).append(partition.partition)
        answers = await asyncio.gather(
            *(
                self.call(leader, _list_offsets(topics, timestamp), 1)
                for leader, topics in by_leader.items()
            )
        )
        return {
            TopicPartition(topic.name, found.partition_index): found.offset
            for answer in answers
            for topic in answer.topics
            for found in topic.partitions
            if found.error_code == ErrorCode.NONE
        }

    async def every_offset(
        self, partitions: Collection[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        """Return offsets as `offsets` does. Raises ToolError if a partition has no answer."""
        found = await self.offsets(partitions, timestamp)
        missing = sorted(set(partitions) - found.keys())
        if missing:
            names = ", ".join(map(str, missing))
            raise ToolError(f"failed to read the offsets of {names}: no leader answered", 1)
        return found

    async def close(self) -> None:
        """Close every connection."""
        for client in self._clients.values():
            await client.close()


def _list_offsets(
    topics: Mapping[str, list[int]], timestamp: int
) -> offset_messages.ListOffsetsRequest:
    return offset_messages.ListOffsetsRequest(
        replica_id=-1,
        topics=[
            offset_messages.ListOffsetsTopic(
                name=topic,
                partitions=[
                    offset_messages.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                    for index in indexes
                ],
            )
            for topic, indexes in topics.items()
        ],
    )
