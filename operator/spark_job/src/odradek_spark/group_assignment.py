"""Decides what a group member owns and which offsets it commits, from what ZooKeeper holds; pure.

Every member of a group works out the same assignment alone, by the rules of old consumers
(row G1). A consumer of this job has one thread: Spark plans all partitions in it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from odradek import assignment
from odradek.values import TopicPartition

THREAD = 0


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The partitions assigned to one member, and whether other members are assigned any."""

    partitions: frozenset[TopicPartition]
    others_own: bool


def assign_member(
    consumer_id: str,
    subscriptions: Mapping[str, Mapping[str, int]],
    partitions: Mapping[str, tuple[int, ...]],
) -> MemberAssignment:
    """Return the member's assignment.

    `subscriptions` is topic -> threads per member. `partitions` has the topics to assign.
    """
    owned_by = assignment.assign_group(
        {
            member: {topic: threads for topic, threads in read.items() if topic in partitions}
            for member, read in subscriptions.items()
        },
        partitions,
    )
    mine = f"{consumer_id}-{THREAD}"
    assigned = frozenset(partition for partition, thread in owned_by.items() if thread == mine)
    return MemberAssignment(assigned, others_own=len(assigned) < len(owned_by))


def changed_offsets(
    ends: Mapping[TopicPartition, int], last_known: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the offsets that differ from the last known ones, sorted by partition."""
    return {
        partition: offset
        for partition, offset in sorted(ends.items())
        if last_known.get(partition) != offset
    }


def in_chunks(
    offsets: Mapping[TopicPartition, int], size: int
) -> Iterator[dict[TopicPartition, int]]:
    """Yield the offsets in mappings of at most `size` partitions."""
    entries: Sequence[tuple[TopicPartition, int]] = list(offsets.items())
    for start in range(0, len(entries), size):
        yield dict(entries[start : start + size])


def renewable(
    last_known: Mapping[TopicPartition, int], stored: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the offsets to commit again: those that expired or that nobody else changed."""
    return {
        partition: offset
        for partition, offset in last_known.items()
        if stored.get(partition, offset) == offset
    }


def moved_partition(
    committed: Mapping[TopicPartition, int], last_known: Mapping[TopicPartition, int]
) -> TopicPartition | None:
    """Return a partition whose committed offset is not the last known one."""
    for partition, offset in committed.items():
        if offset != last_known.get(partition):
            return partition
    return None


def higher_offsets(
    zookeeper: Mapping[TopicPartition, int], kafka: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the higher offset per partition, as old consumers choose it during a migration."""
    found = dict(zookeeper)
    for partition, offset in kafka.items():
        found[partition] = max(offset, found.get(partition, offset))
    return found
