"""How far the group is behind, as values: pure, no connection.

The committed offsets are read first and the ends of the logs after them. The other order would
count records that were committed in between and give a lag below zero, which lag exporters are
known for. What stays below zero is a topic that was made anew; it counts as 0. A partition without
a commit has no lag, since "everything" and "nothing" would both be a guess: a gauge of its own
tells that. Only where it holds no record is its lag 0 whatever the commit will be.

A sum with an unknown part is unknown: a total that leaves out the partition without a leader, or
the one that nobody reads yet, would look like health just when there is none.

Lag in seconds is the age of the oldest record that is not committed: its own time stamp, read at
the committed offset, against now.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from odradek.values import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition; None is what is not known.

    `end` needs a leader, `committed` a commit of the group. `lag` needs both, unless the partition
    is empty, and `seconds` moreover the oldest unread record.
    """

    partition: TopicPartition
    end: int | None
    committed: int | None = None
    lag: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The group at one moment. `at_ms` is the wall clock when the ends were read."""

    partitions: tuple[PartitionLag, ...] = ()
    members: int = 0
    at_ms: int = 0

    @property
    def total(self) -> int | None:
        """Records behind, over all partitions; None where one of them is not known."""
        return _whole_sum(self.partitions)

    @property
    def max_seconds(self) -> float | None:
        """Age of the oldest record that is not committed, 0 where all is; None: not known."""
        ages = [part.seconds for part in self.partitions]
        known = [age for age in ages if age is not None]
        return max(known, default=0.0) if len(known) == len(ages) else None

    def by_topic(self) -> dict[str, int]:
        """Return the lag summed for each topic of which every partition's lag is known."""
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


def behind(
    committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, int]:
    """Return the committed offset of every partition that has records after it."""
    return {
        partition: committed[partition]
        for partition, end in ends.items()
        if end is not None and partition in committed and committed[partition] < end
    }


def uncommitted(
    committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int | None]
) -> list[TopicPartition]:
    """Return the partitions without a commit that may hold records: their starts tell."""
    return [partition for partition, end in ends.items() if end and partition not in committed]


def measure(
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int | None],
    starts: Mapping[TopicPartition, int | None],
    oldest_ms: Mapping[TopicPartition, int],
    members: int,
    now_ms: int,
) -> Measurement:
    """Put one reading together.

    `ends` has every partition; None: no leader tells. `starts` has those of `uncommitted`,
    `oldest_ms` the time stamps of the records at `behind`.
    """
    partitions = []
    for partition, end in sorted(ends.items()):
        offset = committed.get(partition)
        if end is None:
            lag = None
        elif offset is None:
            start = starts.get(partition)
            # An end read before the start may be the lower one: retention went past it.
            empty = end == 0 or (start is not None and start >= end)
            lag = 0 if empty else None
        else:
            lag = max(0, end - offset)
        seconds = 0.0 if lag == 0 else None
        stamp = oldest_ms.get(partition)
        if lag and stamp is not None:
            seconds = max(0.0, (now_ms - stamp) / 1000)
        partitions.append(PartitionLag(partition, end, offset, lag, seconds))
    return Measurement(tuple(partitions), members, now_ms)
