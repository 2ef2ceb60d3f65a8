"""Writes to a partition of `__consumer_offsets` that are in flight, and the order of their records.

Writes complete in any order. The later record counts, as it does when the log is read again; so
while any write is in flight, the position (the log offset of its batch) of the latest record of
each partition of a group is kept, and so are the markers of producers with appends in flight.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator

from odradek import slices
from odradek.values import TopicPartition


class WritesInFlight:
    """The writes in flight of one shard."""

    def __init__(self) -> None:
        self._count = 0
        self._positions: dict[tuple[str, TopicPartition], int] = {}
        # What the commits name, by group.
        self._commits: dict[str, list[Collection[TopicPartition]]] = {}
        # How many are in a producer's transactions, and the markers since the first of them.
        self._of_producer: Counter[int] = Counter()
        self._markers: dict[int, dict[int, bool]] = {}

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Mark a write in flight."""
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self.forget_positions()

    @contextlib.contextmanager
    def commit(self, group_id: str, partitions: Collection[TopicPartition]) -> Iterator[None]:
        """Mark a commit of a group's offsets in flight."""
        self._commits.setdefault(group_id, []).append(partitions)
        try:
            with self.one():
                yield
        finally:
            others = [each for each in self._commits[group_id] if each is not partitions]
            self._commits[group_id] = others
            if not others:
                del self._commits[group_id]

    @contextlib.contextmanager
    def commit_in_transaction(
        self, producer_id: int, group_id: str, partitions: Collection[TopicPartition]
    ) -> Iterator[None]:
        """Mark a commit in a producer's transaction in flight."""
        self._of_producer[producer_id] += 1
        try:
            with self.commit(group_id, partitions):
                yield
        finally:
            self._of_producer[producer_id] -= 1
            if not self._of_producer[producer_id]:
                del self._of_producer[producer_id]
                self._markers.pop(producer_id, None)

    def forget_positions(self) -> None:
        """Forget which records are the latest: no others are in flight."""
        former, self._positions = self._positions, {}
        slices.discard(former)

    def is_latest(self, group_id: str, partition: TopicPartition, position: int) -> bool:
        """Return whether no record of the partition at a later position was noted; note this."""
        if self.is_superseded(group_id, partition, position):
            return False
        self._positions[group_id, partition] = position
        return True

    def is_superseded(self, group_id: str, partition: TopicPartition, position: int) -> bool:
        """Return whether a record of the partition at a later position was noted."""
        return position < self._positions.get((group_id, partition), -1)

    def commits_of(self, group_id: str) -> Collection[Collection[TopicPartition]]:
        """Return the partitions of each commit of a group that is in flight."""
        return self._commits.get(group_id, ())

    def note_marker(self, producer_id: int, position: int, *, commits: bool) -> None:
        """Note a marker for the commits in flight: they may lie below it."""
        if producer_id in self._of_producer:
            self._markers.setdefault(producer_id, {})[position] = commits

    def outcome(self, producer_id: int, position: int) -> bool | None:
        """Return whether the marker that ends a batch at a position commits it; None: it is still
        to come. To be asked while the batch is in flight.
        """
        above = {at: end for at, end in self._markers.get(producer_id, {}).items() if at > position}
        return above[min(above)] if above else None
