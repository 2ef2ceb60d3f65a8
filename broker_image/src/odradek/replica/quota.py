"""Replication quotas: a reassignment leaves room for producers and consumers (KIP-73).

`leader.replication.throttled.rate` limits what a leader sends to replicas that are not in sync,
`follower.replication.throttled.rate` what a follower fetches while it is not caught up. Each limit
applies to the partitions that the topic's `*.replication.throttled.replicas` lists for this broker,
as `partition:broker`, or to all of them where it is `*`. Every byte copied of these partitions
counts, also to replicas in sync; but replicas in sync are never throttled, because that would
remove them from the set. All four settings can change while the broker runs.

A rate is measured over the last eleven windows of one second, as in Kafka by default.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from odradek.values import TopicPartition

WINDOW_MS = 1000
WINDOWS = 11
EVERY_REPLICA = "*"


class Rate:
    """Bytes per second over the last `WINDOWS` windows, the present one included."""

    __slots__ = ("_total", "_windows")

    def __init__(self) -> None:
        self._windows: deque[tuple[int, int]] = deque()  # (start, bytes), the oldest first
        self._total = 0

    def record(self, size: int, now_ms: int) -> None:
        """Count bytes that were copied just now."""
        self._total += size
        if self._windows and now_ms - self._windows[-1][0] < WINDOW_MS:
            start, before = self._windows.pop()
            self._windows.append((start, before + size))
        else:
            self._windows.append((now_ms, size))

    def per_second(self, now_ms: int) -> float:
        """Return the present rate; a measurement that has just begun counts as a whole window."""
        while self._windows and now_ms - self._windows[0][0] >= WINDOW_MS * WINDOWS:
            self._total -= self._windows.popleft()[1]
        if not self._windows:
            return 0.0
        return self._total * 1000 / max(now_ms - self._windows[0][0], WINDOW_MS)


class ReplicationQuota:
    """The limit of one side: `limit()` is its rate, `throttled(topic)` the replicas it covers."""

    def __init__(
        self,
        broker_id: int,
        limit: Callable[[], int],
        throttled: Callable[[str], tuple[str, ...]],
        clock_ms: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._limit = limit
        self._throttled = throttled
        self._clock_ms = clock_ms
        self._rate = Rate()
        # By topic: the configured list, and its set. Every partition is looked up in it, and it
        # may list every replica.
        self._listed: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {}

    def covers(self, key: TopicPartition) -> bool:
        """Return whether the partition's replica on this broker is throttled."""
        configured = self._throttled(key.topic)
        if not configured:
            if self._listed:
                self._listed.pop(key.topic, None)
            return False
        known = self._listed.get(key.topic)
        if known is None or known[0] is not configured:
            known = self._listed[key.topic] = configured, frozenset(configured)
        listed = known[1]
        return EVERY_REPLICA in listed or f"{key.partition}:{self._broker_id}" in listed

    def forget(self, topics: Iterable[str]) -> None:
        """Drop what is kept of topics that have no log here any more."""
        for topic in topics:
            self._listed.pop(topic, None)

    def record(self, key: TopicPartition, size: int) -> None:
        """Count bytes of a partition if it is throttled."""
        if size and self.covers(key):
            self._rate.record(size, self._clock_ms())

    def holds_back(self, key: TopicPartition) -> bool:
        """Return whether a replica that is not in sync has to wait."""
        return self.covers(key) and self._rate.per_second(self._clock_ms()) > self._limit()
