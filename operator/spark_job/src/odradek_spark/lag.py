"""Computes the group's lag from offsets and timestamps; pure.

Read the committed offsets first and the end offsets after them. The other order would count records
that were committed in between, and give a negative lag as many exporters do. A lag that is still
negative belongs to a topic that was recreated; it counts as 0. A partition without a commit has no
lag, because "everything" and "nothing" would both be a guess: a gauge of its own shows that. Only
an empty partition has lag 0 without a commit.

A sum with an unknown part is unknown. A total without the partition that has no leader, or that
nobody reads yet, would look healthy just when it is not.

Lag in seconds is the age of the oldest uncommitted record: now minus the timestamp of the record at
the committed offset.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from odradek.values import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of one partition; None means unknown.

    `end` needs a leader, `committed` a commit of the group. `lag` needs both, unless the partition
    is empty. `seconds` needs the oldest uncommitted record too.
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
        """Age of the oldest uncommitted record, 0 if there is none; None if unknown."""
        ages = [part.seconds for part in self.partitions]
        known = [age for age in ages if age is not None]
        return max(known, default=0.0) if len(known) == len(ages) else None

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


def behind(
    committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, int]:
    """Return the committed offset per partition that has records after it."""
    return {
        partition: committed[partition]
        for partition, end in ends.items()
        if end is not None and partition in committed and committed[partition] < end
    }


def uncommitted(
    committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int | None]
) -> list[TopicPartition]:
    """Return the partitions without a commit that may hold records; their start offsets decide."""
    return [partition for partition, end in ends.items() if end and partition not in committed]


def measure(
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int | None],
    starts: Mapping[TopicPartition, int | None],
    oldest_ms: Mapping[TopicPartition, int],
    members: int,
    now_ms: int,
) -> Measurement:
    """Return one measurement.

    `ends` has every partition; None: no leader answered. `starts` has those of `uncommitted`,
    `oldest_ms` the timestamps of the records at `behind`.
    """
    partitions = []
    for partition, end in sorted(ends.items()):
        offset = committed.get(partition)
        if end is None:
            lag = None
        elif offset is None:
            start = starts.get(partition)
            # The end offset was read first, so retention may have moved the start beyond it.
            empty = end == 0 or (start is not None and start >= end)
            lag = 0 if empty else None
        else:
            lag = max(0, end - offset)
        seconds = 0.0 if lag == 0 else None
        timestamp = oldest_ms.get(partition)
        if lag and timestamp is not None:
            seconds = max(0.0, (now_ms - timestamp) / 1000)
        partitions.append(PartitionLag(partition, end, offset, lag, seconds))
    return Measurement(tuple(partitions), members, now_ms)
