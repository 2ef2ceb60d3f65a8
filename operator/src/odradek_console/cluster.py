"""What the brokers tell of their cluster: kept for a moment, so that many readers cost one look.

Each look asks for metadata, and then every broker whether it answers. A broker that went away stays
in the list with what is known of it: when it last answered, and why it does not now.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

from odradek.protocol.errors import ErrorCode, name_of
from odradek.protocol.messages.admin import DescribableLogDirTopic, DescribeLogDirsRequest
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from odradek.protocol.messages.metadata import MetadataResponseTopic
from odradek.tools.client import EARLIEST, LATEST, Access, ToolClient, format_address
from odradek.tools.errors import ToolError, refused
from odradek.tools.topics import is_unavailable
from odradek.tools.under_replication import Adding, adding_replicas, under_replicated
from odradek.values import TopicPartition

TIMEOUT_MS: Final = 4000
"""How long a broker may take for an answer."""
TOPIC_CONFIG: Final = 2
BROKER_CONFIG: Final = 4
_FRESH_S: Final = 1.5
_PING_S: Final = 2.0
# A broker without replicas that has left is shown for so long.
_REMEMBERED_S: Final = 3600.0
# A page rather shows what was known a moment ago than waits longer.
_PATIENCE_S: Final = 2.5
_LOG_DIRS_VERSION: Final = 1
_CONFIGS_VERSION: Final = 1
# Large answers take time to read: they are asked for the less often.
_SIZES_SHARE: Final = 20

ValueT = TypeVar("ValueT")


class Kept(Generic[ValueT]):
    """A value that is read again when it is asked for and too old; all who ask share one read."""

    def __init__(self, read: Callable[[], Awaitable[ValueT]], share: int = 1) -> None:
        self._read = read
        self._share = share
        self._value: ValueT | None = None
        self._fresh_until = 0.0
        self._task: asyncio.Task[ValueT] | None = None

    async def get(self) -> ValueT:
        """Return the value, a former one if reading takes long. Raises what the read raises."""
        if self._value is not None and time.monotonic() < self._fresh_until:
            return self._value
        if self._task is None:
            self._task = asyncio.create_task(self._renew())
            self._task.add_done_callback(self._forget)
        patience = None if self._value is None else _PATIENCE_S
        former = self._value
        done, _ = await asyncio.wait([self._task], timeout=patience)
        if done:
            return done.pop().result()
        assert former is not None
        return former

    def _forget(self, task: asyncio.Task[ValueT]) -> None:
        self._task = None
        if not task.cancelled():
            # Whoever waits for it raises it; nobody might.
            task.exception()

    async def _renew(self) -> ValueT:
        began = time.monotonic()
        try:
            self._value = await self._read()
        except ToolError:
            # What was true once is not shown as if it were still so.
            self._value = None
            raise
        took = time.monotonic() - began
        self._fresh_until = time.monotonic() + max(_FRESH_S, took * self._share)
        return self._value

    async def close(self) -> None:
        """End a read that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker. `why` it does not answer is empty if it does; `answered` is Unix time.

    `address` is None if the broker is known by its replicas alone.
    """

    broker: int
    address: str | None
    rack: str | None
    is_registered: bool
    why: str
    answered: float | None
    leaders: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Observation:
    """A cluster at a time (Unix). `problem` says why it is older than it should be.

    `adding` are the replicas that reassignments add: partitions without them count as whole.
    """

    at: float
    cluster_id: str | None
    controller: int | None
    brokers: tuple[BrokerRow, ...]
    topics: Mapping[str, MetadataResponseTopic]
    adding: Adding
    partitions: int
    under_replicated: int
    unavailable: int
    problem: str = ""

    @property
    def silent(self) -> list[BrokerRow]:
        """Return the brokers that do not answer."""
        return [one for one in self.brokers if one.why]


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A directory of a broker; `error` is empty if it is in use."""

    path: str
    error: str
    replicas: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """What lies in the log directories. `failures` has the brokers that did not tell, and why."""

    at: float
    directories: Mapping[int, tuple[LogDirectory, ...]] = field(default_factory=dict)
    replicas: Mapping[TopicPartition, Mapping[int, int]] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)

    def of_topic(self, topic: MetadataResponseTopic) -> int | None:
        """Return the bytes of all replicas of a topic; None if one of them is unknown."""
        total = 0
        for one in topic.partitions:
            known = self.replicas.get(TopicPartition(topic.name, one.partition_index), {})
            if any(node not in known for node in one.replica_nodes):
                return None
            total += sum(known[node] for node in one.replica_nodes)
        return total


class ClusterReader:
    """Reads one cluster, for all pages. Methods raise ToolError if nobody could tell."""

    def __init__(self, addresses: Iterable[tuple[str, int]], access: Access) -> None:
        self.client = ToolClient(addresses, access, TIMEOUT_MS)
        self._last: Observation | None = None
        self._answered: dict[int, float] = {}
        self._addresses: dict[int, tuple[str, str | None]] = {}
        self._observation = Kept(self._look)
        self._sizes = Kept(self._all_sizes, _SIZES_SHARE)

    async def look(self) -> Observation:
        """Return the cluster as it was at most a few seconds ago, or the last that is known."""
        return await self._observation.get()

    async def _look(self) -> Observation:
        try:
            await self.client.connect()
        except ToolError as error:
            if self._last is None:
                raise
            # Nothing is new but that nobody answers.
            silent = tuple(replace(one, why=str(error)) for one in self._last.brokers)
            return replace(self._last, controller=None, brokers=silent, problem=str(error))
        client = self.client
        nodes = dict(client.nodes)
        # At once: where the controller hangs, both waits are for it.
        answers, adding = await asyncio.gather(
            asyncio.gather(*map(self._ping, nodes)), self._adding()
        )
        whys = dict(zip(nodes, answers, strict=True))
        topics = {topic.name: topic for topic in client.topics()}
        partitions = [one for topic in topics.values() for one in topic.partitions]
        led = Counter(one.leader_id for one in partitions)
        held = Counter(node for one in partitions for node in one.replica_nodes)
        for node, (host, port) in nodes.items():
            self._addresses[node] = (format_address(host, port), client.racks.get(node))
        rows = []
        gone = time.time() - _REMEMBERED_S
        recent = {one for one, answered in self._answered.items() if answered > gone}
        for node in sorted({*nodes, *recent, *held}):
            known = self._addresses.get(node)
            address = None if known is None else known[0]
            rack = None if known is None else known[1]
            why = whys.get(node, "it is not registered: it is down, or starts")
            last_answer = self._answered.get(node)
            rows.append(
                BrokerRow(
                    node, address, rack, node in nodes, why, last_answer, led[node], held[node]
                )
            )
        self._last = Observation(
            time.time(),
            client.cluster_id,
            client.controller,
            tuple(rows),
            topics,
            adding,
            len(partitions),
            sum(len(under_replicated(topic, adding)) for topic in topics.values()),
            sum(map(is_unavailable, partitions)),
        )
        return self._last

    async def _ping(self, node: int) -> str:
        try:
            async with asyncio.timeout(_PING_S):
                await self.client.call(node, ApiVersionsRequest(), 0)
        except ToolError as error:
            return str(error)
        except TimeoutError:
            return f"broker {node}: no answer in {_PING_S:.0f} s"
        self._answered[node] = time.time()
        return ""

    async def _adding(self) -> Adding:
        """Return the replicas that reassignments add; none if the controller does not tell."""
        try:
            async with asyncio.timeout(_PING_S):
                return await adding_replicas(self.client)
        except (ToolError, TimeoutError):
            return {}

    # --- log directories ----------------------------------------------------------------------

    async def sizes(self, topics: Collection[MetadataResponseTopic] | None = None) -> Sizes:
        """Return what lies in the log directories: of some topics now, of all a moment ago."""
        if topics is None:
            return await self._sizes.get()
        asked = [
            DescribableLogDirTopic(
                topic=one.name, partition_index=[part.partition_index for part in one.partitions]
            )
            for one in topics
        ]
        return await self._described(DescribeLogDirsRequest(topics=asked))

    async def _all_sizes(self) -> Sizes:
        return await self._described(DescribeLogDirsRequest())

    async def _described(self, request: DescribeLogDirsRequest) -> Sizes:
        observation = await self.look()
        registered = [one for one in observation.brokers if one.is_registered]
        failures = {one.broker: one.why for one in observation.silent}
        asked = [one.broker for one in registered if not one.why]
        directories: dict[int, tuple[LogDirectory, ...]] = {}
        replicas: dict[TopicPartition, dict[int, int]] = {}

        async def ask(node: int) -> None:
            try:
                answer = await self.client.call(node, request, _LOG_DIRS_VERSION)
            except ToolError as error:
                failures[node] = str(error)
                return
            found = []
            for one in answer.results:
                total = count = 0
                for topic in one.topics:
                    for part in topic.partitions:
                        total += part.partition_size
                        if part.is_future_key:
                            continue
                        count += 1
                        partition = TopicPartition(topic.name, part.partition_index)
                        replicas.setdefault(partition, {})[node] = part.partition_size
                offline = "" if one.error_code == ErrorCode.NONE else name_of(one.error_code)
                found.append(LogDirectory(one.log_dir, offline, count, total))
            directories[node] = tuple(found)

        await asyncio.gather(*map(ask, asked))
        return Sizes(time.time(), directories, replicas, failures)

    # --- logs and configs ---------------------------------------------------------------------

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return start and end of logs, without those whose leader does not tell."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            by_leader.setdefault(self.client.leaders.get(partition, -1), []).append(partition)

        async def ask(part: list[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
            try:
                ends = await self.client.offsets(part, LATEST)
                starts = await self.client.offsets(part, EARLIEST)
            except ToolError:
                return {}
            return {one: (starts[one], ends[one]) for one in starts.keys() & ends.keys()}

        found: dict[TopicPartition, tuple[int, int]] = {}
        for one in await asyncio.gather(*map(ask, by_leader.values())):
            found |= one
        return found

    async def configs(self, kind: int, name: str) -> list[DescribeConfigsResourceResult]:
        """Return the configs of a topic, or those that a broker tells of itself, by name."""
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name)
        request = DescribeConfigsRequest(resources=[resource])
        observation = await self.look()
        if kind == BROKER_CONFIG:
            nodes = [int(name)]
        else:
            nodes = [one.broker for one in observation.brokers if not one.why]
        if not nodes:
            raise ToolError("no broker answers", 1)
        [result] = (await self.client.call(nodes[0], request, _CONFIGS_VERSION)).results
        if result.error_code != ErrorCode.NONE:
            raise refused(name, result.error_code, result.error_message)
        return sorted(result.configs, key=lambda one: one.name)

    async def close(self) -> None:
        """End what is under way, and close all connections."""
        await self._observation.close()
        await self._sizes.close()
        await self.client.close()
