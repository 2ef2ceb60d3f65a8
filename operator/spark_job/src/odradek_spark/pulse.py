"""Tells a batch loop that hangs from one that is slow, for the kubelet's liveness probe.

Two things may hang: the main thread, which waits for the end of the query in slices of a second,
and the query's own thread. A thread of the driver looks at both every few seconds (`observe`).

- The main thread lives if it goes round its loop. It may be in one step for minutes (a rebalance,
  the end of a batch), hence LOOP_PATIENCE_S. A query that terminated must make it end.
- The query lives if it waits for records or for its next trigger, or if batches complete.

While a Spark job is active both live, however long it takes: a batch may wait for executors, or
read a backlog for hours. Before the first look the driver starts: Spark, and the wait for topics.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

LOOP_PATIENCE_S: Final = 300.0
START_PATIENCE_S: Final = 900.0


class QueryState(Enum):
    """What the streaming query does now; NONE: the driver runs none, as while it rebalances."""

    NONE = "none"
    IDLE = "idle"
    BUSY = "busy"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Activity:
    """One look: the query, whether a Spark job is active, and how many batches completed so far."""

    query: QueryState
    has_jobs: bool
    batches: int


class Pulse:
    """Signs of life of the batch loop. `batch_timeout_s` bounds how long it may show none."""

    def __init__(self, batch_timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._batch_timeout_s = batch_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._beats = self._seen_beats = self._seen_batches = 0
        self._loop_at: float | None = None
        self._began = self._query_at = clock()
        self._busy_since: float | None = None

    def beat(self) -> None:
        """Note that the main thread goes round its loop."""
        with self._lock:
            self._beats += 1

    def observe(self, seen: Activity) -> None:
        """Note what the loop does now."""
        now = self._clock()
        with self._lock:
            turned = self._beats != self._seen_beats and seen.query is not QueryState.ENDED
            completed = seen.batches != self._seen_batches
            self._seen_beats, self._seen_batches = self._beats, seen.batches
            if self._loop_at is None:
                self._query_at = now
            if self._loop_at is None or turned or seen.has_jobs:
                self._loop_at = now
            if seen.has_jobs or completed or seen.query in (QueryState.NONE, QueryState.IDLE):
                self._query_at = now
            if seen.query is not QueryState.BUSY:
                self._busy_since = None
            elif completed or self._busy_since is None:
                self._busy_since = now

    @property
    def batch_running_s(self) -> float | None:
        """For how long the present batch has been running; None while none does."""
        since = self._busy_since
        return None if since is None else self._clock() - since

    def is_alive(self) -> bool:
        """Return whether the loop showed a sign of life in time."""
        now = self._clock()
        with self._lock:
            if self._loop_at is None:
                return now - self._began < START_PATIENCE_S
            if now - self._loop_at >= LOOP_PATIENCE_S:
                return False
            return now - self._query_at < self._batch_timeout_s
