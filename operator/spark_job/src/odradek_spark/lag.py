"""How far the group is behind, as values: pure, no connection.

The committed offsets are read first and the ends of the logs after them. The other order would
count records that were committed in between and give a lag below zero, which lag exporters are
known for. What stays below zero is a topic that was made anew; it counts as 0. A partition without
a commit has no lag, since "everything" and "nothing" would both be a guess: a gauge of its own
tells that.

Lag in seconds is the age of the oldest record that is not committed: its own time stamp, read at
the committed offset, against now.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from odradek.zk.znodes import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition; `committed`, `lag` and `seconds` are None where the group has no commit.

    `seconds` is None, too, while the oldest unread record could not be read.
    """

    partition: TopicPartition
    end: int
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
    def total(self) -> int:
        """Records behind, over all partitions that have a commit."""
        return sum(part.lag for part in self.partitions if part.lag is not None)

    @property
    def max_seconds(self) -> float:
        """Age of the oldest record that is not committed, 0 where all is."""
        return max(
            (part.seconds for part in self.partitions if part.seconds is not None), default=0.0
        )

    def by_topic(self) -> dict[str, int]:
        """Return the lag summed for each topic that has a commit."""
        sums: dict[str, int] = {}
        for part in self.partitions:
            if part.lag is not None:
                topic = part.partition.topic
                sums[topic] = sums.get(topic, 0) + part.lag
        return sums


def behind(
    committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the committed offset of every partition that has records after it."""
    return {
        partition: committed[partition]
        for partition, end in ends.items()
        if partition in committed and committed[partition] < end
    }


def measure(
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    oldest_ms: Mapping[TopicPartition, int],
    members: int,
    now_ms: int,
) -> Measurement:
    """Put one reading together. `oldest_ms` has the time stamps of the records at `behind`."""
    partitions = []
    for partition, end in sorted(ends.items()):
        offset = committed.get(partition)
        if offset is None:
            partitions.append(PartitionLag(partition, end))
            continue
        lag = max(0, end - offset)
        seconds: float | None = 0.0
        if lag:
            stamp = oldest_ms.get(partition)
            seconds = None if stamp is None else max(0.0, (now_ms - stamp) / 1000)
        partitions.append(PartitionLag(partition, end, offset, lag, seconds))
    return Measurement(tuple(partitions), members, now_ms)
