"""The lag of the job's group over all its partitions, by the rule of `odradek.lag`; pure.

A partition without a commit has no lag unless it is empty: a gauge of its own shows that. A sum
with an unknown part is unknown. A total without the partition that has no leader, or that nobody
reads yet, would look healthy just when it is not.

Lag in seconds is the age of the oldest unread record: now minus its timestamp.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from odradek import lag as rule
from odradek.values import TopicPartition

Offsets = Mapping[TopicPartition, int]
KnownOffsets = Mapping[TopicPartition, int | None]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of one partition; None means unknown.

    `end` needs a leader, `committed` a commit of the group. `lag` needs both, unless the partition
    is empty. `seconds` needs the oldest unread record too.
    """

    partition: TopicPartition
    end: int | None
    committed: int | None = None
    lag: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The group's lag at one moment. `at_ms` is the wall clock when the end offsets were read."""

    partitions: tuple[PartitionLag, ...] = ()
    members: int = 0
    at_ms: int = 0

    @property
    def total(self) -> int | None:
        """Records behind, over all partitions; None if one of them is unknown."""
        return _whole_sum(self.partitions)

    @property
    def max_seconds(self) -> float | None:
        """Age of the oldest unread record, 0 if there is none; None if unknown."""
        ages = [part.seconds for part in self.partitions]
        known = [age for age in ages if age is not None]
        return max(known, default=0.0) if len(known) == len(ages) else None

    def worst(self) -> list[PartitionLag]:
        """Return the partitions with the most unread records, at most WORST_PARTITIONS."""
        behind = [part for part in self.partitions if part.lag]
        return sorted(behind, key=lambda part: (-(part.lag or 0), part.partition))[
            : rule.WORST_PARTITIONS
        ]

    def by_topic(self) -> dict[str, int]:
        """Return the lag per topic, for topics whose partitions' lags are all known."""
        parts: dict[str, list[PartitionLag]] = {}
        for part in self.partitions:
            parts.setdefault(part.partition.topic, []).append(part)
        sums = {topic: _whole_sum(of_topic) for topic, of_topic in parts.items()}
        return {topic: lag for topic, lag in sums.items() if lag is not None}


def _whole_sum(parts: Iterable[PartitionLag]) -> int | None:
    total = 0
    for part in parts:
        if part.lag is None:
            return None
        total += part.lag
    return total


def without_start(
    committed: Offsets, ends: KnownOffsets, former: Collection[TopicPartition] = ()
) -> list[TopicPartition]:
    """Return the partitions whose log start decides their lag."""
    return [
        one
        for one, end in ends.items()
        if rule.needs_start(committed.get(one), end, is_former=one in former)
    ]


def unread(
    committed: Offsets,
    starts: KnownOffsets,
    ends: KnownOffsets,
    former: Collection[TopicPartition] = (),
) -> dict[TopicPartition, int]:
    """Return the offset of the first unread record of each partition that is known to have one."""
    firsts = {
        one: rule.first_unread(committed.get(one), starts.get(one), end, is_former=one in former)
        for one, end in ends.items()
    }
    return {one: first for one, first in firsts.items() if first is not None and first != ends[one]}


def measure(
    committed: Offsets,
    ends: KnownOffsets,
    starts: KnownOffsets,
    oldest_ms: Mapping[TopicPartition, int],
    members: int,
    now_ms: int,
    former: Collection[TopicPartition] = (),
) -> Measurement:
    """Return one measurement.

    `ends` has every partition; None: no leader answered. `starts` has those of `without_start`,
    `oldest_ms` the timestamps of the records at `unread`. `former` are the partitions whose commit
    is of a former topic.
    """
    partitions = []
    for partition, end in sorted(ends.items()):
        offset = committed.get(partition)
        lag = rule.lag(offset, starts.get(partition), end, is_former=partition in former)
        seconds = 0.0 if lag == 0 else None
        timestamp = oldest_ms.get(partition)
        if lag and timestamp is not None:
            seconds = max(0.0, (now_ms - timestamp) / 1000)
        partitions.append(PartitionLag(partition, end, offset, lag, seconds))
    return Measurement(tuple(partitions), members, now_ms)
