"""The client of command-line tools for brokers, with API versions of Kafka 2.1 and later."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from odradek import bootstrap_servers
from odradek.net.client import NoCredentialsError, PeerClient, PeerSecurity
from odradek.net.handshakes import HandshakeError
from odradek.protocol.errors import ErrorCode, name_of
from odradek.protocol.messages import groups, metadata
from odradek.protocol.messages import offsets as offset_messages
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from odradek.protocol.schema import Request
from odradek.tools.errors import FAILURES, NothingDoneError, ToolError, refused, shown
from odradek.values import TopicPartition

ResponseT = TypeVar("ResponseT")

EARLIEST, LATEST = -2, -1
TIMEOUT_MS = 30_000
FETCH_VERSION: Final = 4
TRANSACTION: Final = 1
"""The kind of key in FindCoordinator that is a transactional id."""
_METADATA_VERSION: Final = 5
# The first with leader epochs.
_LIST_OFFSETS_VERSION: Final = 4
_EPOCH_ENDS_VERSION: Final = 2
_NO_LEADER: Final = FAILURES | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
_DROPPED: Final = (ssl.SSLError, BrokenPipeError, ConnectionResetError)
# There is no connection: nothing was sent.
_NOT_REACHED: Final = (ConnectionRefusedError, socket.gaierror)


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """Read `host:port,...`. Raises ToolError."""
    try:
        return bootstrap_servers.parse(text)
    except ValueError as error:
        raise ToolError(str(error)) from None


def format_address(host: str, port: int) -> str:
    """Return `host:port`, as `parse_addresses` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def fetch_request(
    positions: Mapping[TopicPartition, int], wait_ms: int, max_bytes: int, partition_bytes: int
) -> FetchRequest:
    """Return the request, of FETCH_VERSION, for partitions of one topic from these offsets on."""
    topic = next(iter(positions)).topic
    partitions = [
        FetchPartition(
            partition=one.partition, fetch_offset=offset, partition_max_bytes=partition_bytes
        )
        for one, offset in positions.items()
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=partitions)],
    )


Fetched: TypeAlias = tuple[TopicPartition, FetchablePartitionResponse, bytes]
"""A partition in the answer to a fetch, what the answer says of it, and its record batches."""


def fetched(answer: FetchResponse) -> list[Fetched]:
    """Return the partitions of an answer, in its order, with copies of their batches."""
    return [
        (
            TopicPartition(topic.topic, part.partition),
            part,
            b"" if part.record_set is None else bytes(part.record_set),  # type: ignore[arg-type]
        )
        for topic in answer.responses
        for part in topic.partition_responses
    ]


@dataclass(frozen=True, slots=True)
class Access:
    """How to connect to brokers: `security` is what the security protocol needs, None: nothing."""

    protocol: str = "PLAINTEXT"
    security: PeerSecurity | None = None


class ToolClient:
    """A client of the brokers of one cluster, found through any of `addresses`."""

    def __init__(
        self,
        addresses: Iterable[tuple[str, int]],
        access: Access | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self._bootstrap = list(addresses)
        self._access = access or Access()
        self._timeout_ms = timeout_ms
        self._clients: dict[tuple[str, int], PeerClient] = {}
        self.nodes: dict[int, tuple[str, int]] = {}
        self.racks: dict[int, str | None] = {}
        self.leaders: dict[TopicPartition, int] = {}
        self.offset_epochs: dict[TopicPartition, int] = {}
        """The leader epoch of each offset that `offsets` returned last, -1 where it is unknown."""
        self.controller: int | None = None
        self.cluster_id: str | None = None
        self._topics: list[metadata.MetadataResponseTopic] = []

    async def connect(self) -> None:
        """Read brokers, topics and leaders. Raises ToolError if no broker, or no issuer, answers,
        and NothingDoneError if those that answer have just come back and know no brokers yet.

        Brokers that are known already are asked if those that were given do not answer.
        """
        failure: Exception = ConnectionError("no address")
        unaware = ""
        for address in dict.fromkeys([*self._bootstrap, *self.nodes.values()]):
            try:
                request = metadata.MetadataRequest(topics=None, allow_auto_topic_creation=False)
                answer = await self._client(address).call(
                    request, _METADATA_VERSION, self._timeout_ms
                )
            except (ConnectionError, TimeoutError) as error:
                if isinstance(cause := error.__cause__, NoCredentialsError):
                    raise ToolError(str(cause), 2 if cause.is_mistake else 1) from error
                failure = error
                continue
            if not answer.brokers:
                unaware = format_address(*address)
                continue
            self.nodes = {node.node_id: (node.host, node.port) for node in answer.brokers}
            self.racks = {node.node_id: node.rack for node in answer.brokers}
            self.controller = answer.controller_id if answer.controller_id >= 0 else None
            self.cluster_id = answer.cluster_id
            self._topics = sorted(answer.topics, key=lambda topic: topic.name)
            self.leaders = _leaders(answer)
            return
        if unaware:
            raise NothingDoneError(f"{unaware} knows no brokers yet")
        raise ToolError(
            f"failed to reach any broker: {failure}{_advice(failure, self._access.protocol)}", 1
        )

    async def topic_leaders(self, node: int, topic: str) -> dict[TopicPartition, int]:
        """Return the leaders of a topic's partitions, -1 for none, as a broker knows them now; none
        if it knows no such topic.

        Notes in `nodes` where brokers are now, also those that have come since. Raises ToolError.
        """
        request = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        answer = await self.call(node, request, _METADATA_VERSION)
        self.nodes |= {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        return _leaders(answer)

    def topics(self) -> list[metadata.MetadataResponseTopic]:
        """Return the topics by name, as they were at `connect`."""
        return self._topics

    async def call_controller(
        self,
        request: Request[ResponseT],
        version: int,
        codes: Callable[[ResponseT], Iterable[int]],
    ) -> ResponseT:
        """Send a request to the controller; return the response.

        `codes` gives the error codes of a response. Raises NothingDoneError if there is no
        controller, or it was not reached, and ToolError.
        """
        if self.controller in self.nodes:
            answer = await self.call(self.controller, request, version)
            if ErrorCode.NOT_CONTROLLER not in codes(answer):
                return answer
        raise NothingDoneError("the cluster has no controller")

    def _client(self, address: tuple[str, int]) -> PeerClient:
        if address not in self._clients:
            self._clients[address] = PeerClient(
                *address, "odradek-tools", security=self._access.security
            )
        return self._clients[address]

    async def call(self, node: int, request: Request[ResponseT], version: int) -> ResponseT:
        """Send a request to the broker with this id; return the response.

        Raises NothingDoneError if it was not reached, and ToolError.
        """
        if node not in self.nodes:
            raise NothingDoneError(f"broker {node} is unknown")
        try:
            return await self._client(self.nodes[node]).call(request, version, self._timeout_ms)
        except (ConnectionError, TimeoutError) as error:
            if isinstance(error.__cause__, _NOT_REACHED):
                raise NothingDoneError(f"broker {node}: {error}") from error
            raise ToolError(f"broker {node}: {error}", 1) from error
        except struct.error as error:
            raise ToolError("a name or a value is too long for a request") from error

    async def call_any(self, request: Request[ResponseT], version: int) -> ResponseT:
        """Send a request to the first broker that is reached; return the response.

        Raises NothingDoneError if there is none, and ToolError.
        """
        failure = NothingDoneError("the cluster has no live broker")
        for node in list(self.nodes):
            try:
                return await self.call(node, request, version)
            except NothingDoneError as error:
                failure = error
        raise failure

    async def coordinator(self, group: str) -> int:
        """Return the broker id of the group's coordinator. Raises ToolError if there is none."""
        return await self._coordinator(groups.FindCoordinatorRequest(key=group), f"group {group}")

    async def transaction_coordinator(self, transactional_id: str) -> int:
        """As `coordinator`, of a transactional id."""
        request = groups.FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTION)
        return await self._coordinator(request, f"transactional id {shown(transactional_id)}")

    async def _coordinator(self, request: groups.FindCoordinatorRequest, subject: str) -> int:
        answer = await self.call_any(request, 1)
        if answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            raise NothingDoneError(f"{subject} has no coordinator")
        if answer.error_code != ErrorCode.NONE:
            raise refused(subject, answer.error_code, None)
        self.nodes[answer.node_id] = (answer.host, answer.port)
        return answer.node_id

    async def offsets(
        self, partitions: Collection[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        """Return the first offsets at or after a time (ms), or at `EARLIEST` or `LATEST`.

        The offset is -1 if there is no such record. Partitions without an answer are left out.
        Raises ToolError if a leader does not answer.
        """
        found, _ = await self.offsets_or_errors(partitions, timestamp)
        return found

    async def offsets_or_errors(
        self, partitions: Collection[TopicPartition], timestamp: int
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return offsets as `offsets` does, and the error codes of leaders that tell none."""
        by_leader: dict[int, dict[str, list[int]]] = {}
        for partition in partitions:
            leader = self.leaders.get(partition, -1)
            if leader in self.nodes:
                topics = by_leader.setdefault(leader, {})
                topics.setdefault(partition.topic, []).append(partition.partition)
        answers = await asyncio.gather(
            *(
                self.call(leader, _list_offsets(topics, timestamp), _LIST_OFFSETS_VERSION)
                for leader, topics in by_leader.items()
            )
        )
        told = [
            (TopicPartition(topic.name, one.partition_index), one)
            for answer in answers
            for topic in answer.topics
            for one in topic.partitions
        ]
        right = [(key, one) for key, one in told if one.error_code == ErrorCode.NONE]
        self.offset_epochs.update((key, one.leader_epoch) for key, one in right)
        return (
            {key: one.offset for key, one in right},
            {key: one.error_code for key, one in told if one.error_code != ErrorCode.NONE},
        )

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

    async def ends_of_epochs(
        self, leader: int, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return where leader epochs end in the logs of partitions of one topic, as their leader
        has them; -1 for an epoch of which it knows nothing.

        Partitions of which it may not tell are left out. Raises NothingDoneError if it leads one no
        more, and ToolError.
        """
        topic = next(iter(epochs)).topic
        asked = [
            offset_messages.OffsetForLeaderPartition(partition=one.partition, leader_epoch=epoch)
            for one, epoch in epochs.items()
        ]
        request = offset_messages.OffsetForLeaderEpochRequest(
            topics=[offset_messages.OffsetForLeaderTopic(topic=topic, partitions=asked)]
        )
        answer = await self.call(leader, request, _EPOCH_ENDS_VERSION)
        ends: dict[TopicPartition, int] = {}
        for part in (part for one in answer.topics for part in one.partitions):
            partition = TopicPartition(topic, part.partition)
            if part.error_code in _NO_LEADER:
                raise NothingDoneError(f"{partition}: {name_of(part.error_code)}")
            if part.error_code == ErrorCode.NONE:
                ends[partition] = part.end_offset
        return ends

    async def close(self) -> None:
        """Close every connection."""
        for client in self._clients.values():
            await client.close()


def _leaders(answer: metadata.MetadataResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, partition.partition_index): partition.leader_id
        for topic in answer.topics
        for partition in topic.partitions
    }


def _advice(failure: Exception, protocol: str) -> str:
    """Return what to look at if the peer took the connection and did not like what it read."""
    cause = failure.__cause__
    if isinstance(cause, HandshakeError):
        is_other = cause.cause in ("disconnected", "no-tls", "timeout")
    else:
        # Authentication, and connections that are not taken, have errors of their own.
        is_other = type(cause) is ConnectionError or isinstance(cause, _DROPPED)
    if not is_other:
        return ""
    # Whether it misses a certificate, a listener says after the handshake (TLS 1.3), or not at all.
    certificate = ", and does it want a certificate" if protocol.endswith("SSL") else ""
    return (
        f"; is {protocol} the security.protocol of this listener{certificate}? See --command-config"
    )


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
