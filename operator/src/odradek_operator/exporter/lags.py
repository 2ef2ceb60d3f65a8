"""What the exporter keeps of groups and logs from round to round. Pure: time is an argument.

Lags follow the rule of `odradek.lag`, from what the round has read alone: an exporter that was just
started tells the same. A value that is not read stays, with the time of the last read, for
`KEEP_SECONDS`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from odradek import lag as rule
from odradek.values import TopicPartition
from odradek_operator.exporter.logs import LogBounds, Topic
from odradek_operator.group import lag as group_lag

KEEP_SECONDS: Final = 3600.0
# The worst first.
VERDICTS: Final = ("STOP", "STALL", "REWIND", "WARN", "OK")
_MOST_SAMPLES: Final = 16


@dataclass(frozen=True, slots=True)
class GroupRead:
    """A group as it was read. `former` are commits that are older than their topics.

    In a `simple` group those who commit are no members. `in_coordinator`: not only in znodes.
    `assigned` has the topics of its members, with and without a commit.
    """

    members: int
    simple: bool
    in_coordinator: bool
    committed: Mapping[TopicPartition, int]
    former: Collection[TopicPartition] = frozenset()
    assigned: Collection[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of a round: seconds of a monotonic clock, and Unix time."""

    at: float
    unix: float


class EndHistory:
    """Samples (time, end offset) of one log, the older the sparser; at most `_MOST_SAMPLES`.

    `bounds` are the last ones.
    """

    __slots__ = ("_ends", "_times", "bounds", "incarnation")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.bounds = LogBounds(0, 0)
        self._times = array("d")
        self._ends = array("q")

    def add(self, at: float, end: int) -> None:
        """Remember where the log ended. While nothing is appended, the last two samples say so."""
        ends, times = self._ends, self._times
        if ends and end < ends[-1]:
            del ends[:], times[:]
        if len(ends) > 1 and ends[-2] == ends[-1] == end:
            times[-1] = at
            return
        if len(ends) == _MOST_SAMPLES:
            del ends[1:-1:2], times[1:-1:2]
        ends.append(end)
        times.append(at)

    def seconds_since(self, offset: int, now: float) -> float | None:
        """Return how long ago the end passed an offset; None if it passed before the only sample.

        If it passed before the first of several samples, it is at least as long ago as that.
        """
        samples = zip(self._times, self._ends, strict=True)
        passed = group_lag.when_passed(samples, offset)
        if passed is None or (not passed.exact and passed.at == now):
            return None
        return round(now - passed.at, 3)


class ExportedPartition:
    """One partition of a group: its commit, its lag, and what they were in the last rounds."""

    __slots__ = (
        "_behind_since",
        "_history",
        "_incarnation",
        "committed",
        "lag",
        "read_at",
        "seconds",
        "unchanged_seconds",
        "verdict",
    )

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        # Commit and lag of each of the last rounds, one after the other.
        self._history = array("q")
        self._behind_since: float | None = None
        self.committed = -1
        self.lag = 0
        self.seconds: float | None = None
        self.unchanged_seconds = 0.0
        self.verdict = "OK"
        self.read_at = 0.0

    def update(
        self, committed: int, is_former: bool, bounds: LogBounds, ends: EndHistory, at: float
    ) -> None:
        """Take in what a round has read."""
        if ends.incarnation != self._incarnation:
            self._incarnation = ends.incarnation
            self._behind_since = None
            del self._history[:]
        if committed != self.committed:
            self._behind_since = None
        first = rule.first_unread(committed, bounds.start, bounds.end, is_former=is_former)
        assert first is not None, "everything is known"
        is_useless = is_former or committed > bounds.end
        self.committed = committed
        self.lag = bounds.end - first
        self.seconds = ends.seconds_since(first, at) if self.lag else 0.0
        self.read_at = at
        if not self.lag:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = at
        since = at if self._behind_since is None else self._behind_since
        self.unchanged_seconds = round(at - since, 3)
        # Retention moves the first unread record, and nobody reads on.
        self._history.extend((first if is_useless else committed, self.lag))
        del self._history[: -2 * group_lag.LONGEST_WINDOW]
        self.verdict = group_lag.judge(self._history[0::2], self._history[1::2])


@dataclass(slots=True)
class ExportedGroup:
    """One group. `uncommitted` counts the partitions without a commit, per topic with one and per
    topic of its members.

    `read_unix` is the Unix time at which all of it was read, None if it never was.
    """

    members: int = 0
    simple: bool = False
    in_coordinator: bool = False
    read_at: float = 0.0
    read_unix: float | None = None
    partitions: dict[TopicPartition, ExportedPartition] = field(default_factory=dict)
    uncommitted: dict[str, int] = field(default_factory=dict)

    def sums(self) -> dict[str, int]:
        """Return the lag per topic."""
        return self._sums(lambda one: one.lag)

    def committed_sums(self) -> dict[str, int]:
        """Return the sum of the committed offsets per topic."""
        return self._sums(lambda one: one.committed)

    def _sums(self, value: Callable[[ExportedPartition], int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for partition, one in self.partitions.items():
            found[partition.topic] = found.get(partition.topic, 0) + value(one)
        return found

    def verdict(self) -> str | None:
        """Return the verdict on the group, None without a partition that has a lag."""
        if not self.partitions:
            return None
        judged = {one.verdict for one in self.partitions.values()}
        # Where nobody ever joins, only the commits tell whether somebody reads.
        reads = bool(self.members) or (self.simple and "STALL" not in judged)
        if not reads and any(one.lag for one in self.partitions.values()):
            return "STOP"
        return next(one for one in VERDICTS if one in judged)


class Lags:
    """All groups, and the histories of the logs that they read."""

    def __init__(self) -> None:
        self.groups: dict[str, ExportedGroup] = {}
        self.partition_counts: dict[str, int] = {}
        self._ends: dict[TopicPartition, EndHistory] = {}

    @property
    def bounds(self) -> dict[TopicPartition, LogBounds]:
        """Return the last known bounds of each log of a topic that some group reads."""
        return {partition: ends.bounds for partition, ends in self._ends.items()}

    @property
    def coordinated(self) -> list[str]:
        """Return the groups that a coordinator held when they were last read."""
        return [name for name, one in self.groups.items() if one.in_coordinator]

    @property
    def topics(self) -> set[str]:
        """Return all topics that some group reads."""
        found: set[str] = set()
        for group in self.groups.values():
            found.update(group.uncommitted)
            found.update(partition.topic for partition in group.partitions)
        return found

    def keep_ends(
        self, topics: Mapping[str, Topic], bounds: Mapping[TopicPartition, LogBounds], at: float
    ) -> None:
        """Remember the topics, and where their logs ended."""
        self.partition_counts.update((name, len(one.partitions)) for name, one in topics.items())
        for partition, one in bounds.items():
            incarnation = topics[partition.topic].incarnation
            ends = self._ends.get(partition)
            if ends is None or ends.incarnation != incarnation:
                ends = self._ends[partition] = EndHistory(incarnation)
            ends.add(at, one.end)
            ends.bounds = one

    def update(
        self,
        name: str,
        read: GroupRead,
        topics: Mapping[str, Topic],
        unreadable: Collection[str],
        bounds: Mapping[TopicPartition, LogBounds],
        now: Moment,
    ) -> None:
        """Take in a group. Partitions that have no bounds keep their last values."""
        group = self.groups.setdefault(name, ExportedGroup())
        group.members, group.simple = read.members, read.simple
        group.in_coordinator, group.read_at = read.in_coordinator, now.at
        kept = {one for one in read.committed if one.topic in unreadable}
        existing = {
            one
            for one in read.committed
            if one.topic in topics and one.partition in topics[one.topic].partitions
        }
        for partition in group.partitions.keys() - existing - kept:
            del group.partitions[partition]
        for partition in existing & bounds.keys():
            ends = self._ends[partition]
            one = group.partitions.get(partition)
            if one is None:
                one = group.partitions[partition] = ExportedPartition(ends.incarnation)
            is_former = partition in read.former
            one.update(read.committed[partition], is_former, bounds[partition], ends, now.at)
        group.uncommitted = {
            topic: len(topics[topic].partitions)
            for topic in topics.keys() & {*read.assigned, *(one.topic for one in existing)}
        }
        for partition in existing:
            group.uncommitted[partition.topic] -= 1
        if not kept and existing <= bounds.keys():
            group.read_unix = now.unix

    def forget(self, gone: Iterable[str], existing: AbstractSet[str], at: float) -> None:
        """End the series of groups and topics that are gone, or that were not read for too long."""
        for name in gone:
            self.groups.pop(name, None)
        for name, group in list(self.groups.items()):
            if at - group.read_at > KEEP_SECONDS:
                del self.groups[name]
                continue
            for partition, one in list(group.partitions.items()):
                if partition.topic not in existing or at - one.read_at > KEEP_SECONDS:
                    del group.partitions[partition]
            for topic in group.uncommitted.keys() - existing:
                del group.uncommitted[topic]
        read = self.topics
        for partition in [one for one in self._ends if one.topic not in read]:
            del self._ends[partition]
        for topic in self.partition_counts.keys() - read:
            del self.partition_counts[topic]
