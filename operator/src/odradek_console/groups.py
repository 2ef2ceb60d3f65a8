"""Consumer groups: who reads what, how far behind, and how that was over the last hour.

A lag follows the rule of `odradek.lag`. One that is not known for every partition is unknown, not
the sum of the others.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from odradek import lag as rule
from odradek.protocol import consumer_protocol
from odradek.protocol.errors import ErrorCode, name_of
from odradek.protocol.messages import group_offsets, groups
from odradek.tools.errors import ToolError
from odradek.tools.group_stores import MemberDescription
from odradek.values import TopicPartition
from odradek_console.cluster import ClusterReader, Kept

SAMPLE_S: Final = 10.0
SAMPLES: Final = 360
SAMPLED_GROUPS: Final = 200
"""Of how many groups the lag is kept: those that were looked at last, then the first by name."""
_LIST_VERSION: Final = 4
_DESCRIBE_VERSION: Final = 1
_OFFSETS_VERSION: Final = 2
_DESCRIBED: Final = 50
_PATIENCE_S: Final = 8.0


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A group in a list; `node` coordinates it."""

    name: str
    state: str
    node: int


@dataclass(frozen=True, slots=True)
class GroupList:
    """All groups by name. `failures` are the brokers that did not tell theirs, and why."""

    groups: Mapping[str, GroupEntry]
    failures: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class LagRow:
    """A partition of a group; what is unknown is None."""

    partition: TopicPartition
    committed: int | None
    start: int | None
    end: int | None
    lag: int | None
    member: str


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group. `why` says why the rest is unknown, empty if it is known."""

    name: str
    state: str
    node: int
    strategy: str = ""
    members: tuple[MemberDescription, ...] = ()
    partitions: tuple[LagRow, ...] = ()
    why: str = ""

    @property
    def lag(self) -> int | None:
        """Return the unread records of all partitions; None if one of them is unknown."""
        if self.why or any(one.lag is None for one in self.partitions):
            return None
        return sum(one.lag or 0 for one in self.partitions)


@dataclass(slots=True)
class _GroupAnswers:
    """What the coordinators tell of groups, as it comes in."""

    described: dict[str, groups.DescribedGroup] = field(default_factory=dict)
    committed: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)


class GroupReader:
    """Reads the groups that brokers coordinate."""

    def __init__(self, cluster: ClusterReader) -> None:
        self._cluster = cluster
        self._list_kept = Kept(self._list)

    async def listed(self) -> GroupList:
        """Return all groups, as of a moment ago."""
        return await self._list_kept.get()

    async def _list(self) -> GroupList:
        observation = await self._cluster.look()
        failures = {one.broker: one.why for one in observation.silent}
        found: dict[str, GroupEntry] = {}

        async def ask(node: int) -> None:
            try:
                answer = await self._cluster.client.call(
                    node, groups.ListGroupsRequest(), _LIST_VERSION
                )
            except ToolError as error:
                failures[node] = str(error)
                return
            if answer.error_code != ErrorCode.NONE:
                failures[node] = f"broker {node}: {name_of(answer.error_code)}"
            for one in answer.groups:
                found[one.group_id] = GroupEntry(one.group_id, one.group_state, node)

        await asyncio.gather(*(ask(one.broker) for one in observation.brokers if not one.why))
        return GroupList(dict(sorted(found.items())), failures)

    async def views(self, listed: Collection[GroupEntry]) -> list[GroupView]:
        """Return these groups with members and lags, in this order."""
        read = _GroupAnswers()
        by_node: dict[int, list[str]] = {}
        for one in listed:
            by_node.setdefault(one.node, []).append(one.name)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await asyncio.gather(*(self._read(read, *each) for each in by_node.items()))
        except TimeoutError:
            pass
        # After the commits: see `odradek.lag`.
        assigned = {name: _assigned(one) for name, one in read.described.items()}
        wanted = {one for each in read.committed.values() for one in each}
        wanted |= {one for each in assigned.values() for one in each}
        bounds = await self._cluster.bounds(wanted) if wanted else {}
        return [_view(one, read, assigned.get(one.name, {}), bounds) for one in listed]

    async def _read(self, read: _GroupAnswers, node: int, names: list[str]) -> None:
        client = self._cluster.client

        async def offsets(name: str) -> None:
            request = group_offsets.OffsetFetchRequest(group_id=name, topics=None)
            try:
                answer = await client.call(node, request, _OFFSETS_VERSION)
            except ToolError as error:
                read.why[name] = str(error)
                return
            if answer.error_code != ErrorCode.NONE:
                read.why[name] = f"broker {node}: {name_of(answer.error_code)}"
                return
            read.committed[name] = {
                TopicPartition(topic.name, part.partition_index): part.committed_offset
                for topic in answer.topics
                for part in topic.partitions
                if part.error_code == ErrorCode.NONE and part.committed_offset >= 0
            }

        async def describe(part: list[str]) -> None:
            try:
                answer = await client.call(
                    node, groups.DescribeGroupsRequest(groups=part), _DESCRIBE_VERSION
                )
            except ToolError as error:
                read.why.update(dict.fromkeys(part, str(error)))
                return
            for one in answer.groups:
                if one.error_code != ErrorCode.NONE:
                    read.why[one.group_id] = f"broker {node}: {name_of(one.error_code)}"
                else:
                    read.described[one.group_id] = one

        batches = [names[at : at + _DESCRIBED] for at in range(0, len(names), _DESCRIBED)]
        await asyncio.gather(*(describe(one) for one in batches), *(offsets(one) for one in names))

    async def close(self) -> None:
        """End what is under way."""
        await self._list_kept.close()


def _assigned(one: groups.DescribedGroup) -> dict[TopicPartition, str]:
    return {
        partition: member.member_id
        for member in one.members
        for partition in consumer_protocol.assigned(bytes(member.member_assignment))
    }


def _view(
    listed: GroupEntry,
    read: _GroupAnswers,
    assigned: Mapping[TopicPartition, str],
    bounds: Mapping[TopicPartition, tuple[int, int]],
) -> GroupView:
    described = read.described.get(listed.name)
    committed = read.committed.get(listed.name)
    if described is None or committed is None:
        why = read.why.get(listed.name, f"broker {listed.node}: no answer in time")
        return GroupView(listed.name, listed.state, listed.node, why=why)
    partitions = []
    for partition in sorted({*committed, *assigned}):
        start, end = bounds.get(partition, (None, None))
        offset = committed.get(partition)
        unread = rule.lag(offset, start, end)
        member = assigned.get(partition, "")
        partitions.append(LagRow(partition, offset, start, end, unread, member))
    members = tuple(
        MemberDescription(
            one.member_id,
            one.client_host,
            one.client_id,
            tuple(consumer_protocol.assigned(bytes(one.member_assignment))),
        )
        for one in described.members
    )
    return GroupView(
        listed.name,
        described.group_state,
        listed.node,
        described.protocol_data,
        members,
        tuple(partitions),
    )


@dataclass(frozen=True, slots=True)
class LagSample:
    """The lag of a group at a time (Unix); None: unknown."""

    at: float
    lag: int | None


class LagHistory:
    """The lags of the last hour, of at most `SAMPLED_GROUPS` groups."""

    def __init__(self) -> None:
        self._samples: OrderedDict[str, deque[LagSample]] = OrderedDict()
        self._looked: OrderedDict[str, None] = OrderedDict()

    def look(self, group: str) -> list[LagSample]:
        """Return what is known of a group, and keep it before others."""
        self._looked[group] = None
        self._looked.move_to_end(group)
        while len(self._looked) > SAMPLED_GROUPS:
            self._looked.popitem(last=False)
        return list(self._samples.get(group, ()))

    def chosen(self, names: Collection[str]) -> list[str]:
        """Return the groups to sample, of those that exist."""
        first = [one for one in reversed(self._looked) if one in names]
        return list(dict.fromkeys([*first, *names]))[:SAMPLED_GROUPS]

    def add(self, at: float, views: Iterable[GroupView]) -> None:
        """Take in a round; groups that are not in it are forgotten."""
        kept: OrderedDict[str, deque[LagSample]] = OrderedDict()
        for one in views:
            samples = self._samples.get(one.name, deque(maxlen=SAMPLES))
            samples.append(LagSample(at, one.lag))
            kept[one.name] = samples
        self._samples = kept


async def sample(reader: GroupReader, history: LagHistory) -> None:
    """Take samples until cancelled."""
    while True:
        began = time.monotonic()
        try:
            listed = await reader.listed()
            chosen = history.chosen(listed.groups)
            views = await reader.views([listed.groups[one] for one in chosen])
            if views or not listed.failures:
                history.add(time.time(), views)
        except ToolError:
            # The pages say so.
            pass
        await asyncio.sleep(max(SAMPLE_S - (time.monotonic() - began), SAMPLE_S / 2))
