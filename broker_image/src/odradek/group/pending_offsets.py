"""Offsets that groups commit in transactions, from the append to the marker that ends them.

A commit is known by its producer, group and partition, with its position: the log offset of its
batch. Positions decide, as they do when the log is read again: a later record of the partition
supersedes a commit, and a marker ends those commits of its producer that are below it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from odradek import slices
from odradek.group.offsets import CommittedOffset
from odradek.values import TopicPartition


class PendingCommit(NamedTuple):
    """One commit. None deletes the offset: nobody commits that, but a log may contain it."""

    group_id: str
    partition: TopicPartition
    committed: CommittedOffset | None
    position: int


class PendingOffsets:
    """The pending commits of one partition of `__consumer_offsets`."""

    def __init__(self) -> None:
        self._of_producer: dict[int, dict[str, dict[TopicPartition, PendingCommit]]] = {}
        self._producers: dict[str, dict[TopicPartition, set[int]]] = {}

    def add(self, producer_id: int, commit: PendingCommit) -> None:
        """Keep a commit, unless its producer has a later one of the same partition."""
        group_id, partition, _, position = commit
        commits = self._of_producer.setdefault(producer_id, {}).setdefault(group_id, {})
        if partition in commits and commits[partition].position > position:
            return
        commits[partition] = commit
        producers = self._producers.setdefault(group_id, {}).setdefault(partition, set())
        producers.add(producer_id)

    def of_producer(self, producer_id: int) -> list[PendingCommit]:
        """Return the commits of a producer at this moment."""
        groups = self._of_producer.get(producer_id, {})
        return [commit for commits in groups.values() for commit in commits.values()]

    def remove(self, producer_id: int, commit: PendingCommit) -> None:
        """Forget a commit, unless a later one took its place."""
        group_id, partition, *_ = commit
        groups = self._of_producer.get(producer_id, {})
        commits = groups.get(group_id, {})
        if commits.get(partition) is not commit:
            return
        del commits[partition]
        if not commits:
            del groups[group_id]
        if not groups:
            del self._of_producer[producer_id]
        partitions = self._producers[group_id]
        partitions[partition].discard(producer_id)
        if not partitions[partition]:
            del partitions[partition]
        if not partitions:
            del self._producers[group_id]

    def supersede(self, group_id: str, partition: TopicPartition, position: int) -> None:
        """Forget the commits below a record: it counts, whatever their markers say."""
        partitions = self._producers.get(group_id)
        if partitions is None or partition not in partitions:
            return
        for producer_id in [*partitions[partition]]:
            commit = self._of_producer[producer_id][group_id][partition]
            if commit.position < position:
                self.remove(producer_id, commit)

    def partitions_of(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions in which a group has pending commits."""
        return self._producers.get(group_id, {}).keys()

    def groups(self) -> Collection[str]:
        """Return the groups that have pending commits."""
        return self._producers.keys()

    def discard(self) -> None:
        """Forget everything, when the leadership ends."""
        of_producer, self._of_producer = self._of_producer, {}
        producers, self._producers = self._producers, {}
        for groups in of_producer.values():
            slices.discard(*groups.values())
        slices.discard(*producers.values())
