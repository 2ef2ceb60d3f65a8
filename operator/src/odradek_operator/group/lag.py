"""Lag of an observed group, and what its recent history means. Pure.

A few samples per group are kept in memory: committed offsets and log ends. Commits are read before
ends, so that a lag is never negative because of the order; a commit beyond the end, of a topic that
was recreated, counts as zero lag. The verdicts are Burrow's: STOP if nobody consumes what is there,
STALL if members commit nothing new, REWIND if commits went back, WARN if the lag only grows or
exceeds a limit of the spec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from odradek.values import TopicPartition

# With the pace of observation these are a few minutes.
LONGEST_WINDOW: Final = 12
# Fewer samples of a group are no history: a commit may just be late.
SHORTEST_HISTORY: Final = 4

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation; `at` is in seconds of a monotonic clock."""

    at: float
    members: int
    committed: Offsets
    ends: Offsets

    def lag(self, partition: TopicPartition) -> int | None:
        """Return records not read yet, None without a commit or without an answer of the leader."""
        if partition not in self.committed or partition not in self.ends:
            return None
        return max(0, self.ends[partition] - self.committed[partition])

    @property
    def lags(self) -> dict[TopicPartition, int]:
        """Return the lag of each partition that has one."""
        known = {one: self.lag(one) for one in self.committed}
        return {one: lag for one, lag in known.items() if lag is not None}

    @property
    def total(self) -> int | None:
        """Return the lag of all partitions with commits, None while a part of it is unknown."""
        lags = self.lags
        return sum(lags.values()) if lags and len(lags) == len(self.committed) else None


def extend(window: Sequence[Sample], sample: Sample) -> tuple[Sample, ...]:
    """Return a window with one more sample."""
    return (*window, sample)[-LONGEST_WINDOW:]


def seconds_behind(window: Sequence[Sample], partition: TopicPartition) -> int | None:
    """Return how long ago the next record to be read was appended.

    The moment at which the log's end passed the commit lies between two samples and is taken to lie
    where a steady writer would have put it. Longer ago than the window it is only known to be at
    least as long; None where one sample is all there is.
    """
    last = window[-1]
    lag = last.lag(partition)
    if lag is None:
        return None
    if lag == 0:
        return 0
    position = last.committed[partition]
    before: Sample | None = None
    for sample in window:
        end = sample.ends.get(partition)
        if end is None:
            continue
        if end > position:
            if before is None:
                return int(last.at - sample.at) or None
            earlier = before.ends[partition]
            passed = before.at + (sample.at - before.at) * (position - earlier) / (end - earlier)
            return int(last.at - passed)
        before = sample
    return 0


def verdict(
    window: Sequence[Sample], max_lag: int | None, max_lag_seconds: int | None
) -> str | None:
    """Return the verdict on a group, None while its lag is not known."""
    last = window[-1]
    total = last.total
    if total is None:
        return None
    if total and not last.members:
        return "STOP"
    judged = {_judge(window, one) for one in last.committed}
    for worst in ("STALL", "REWIND"):
        if worst in judged:
            return worst
    seconds = [seconds_behind(window, one) or 0 for one in last.committed]
    over_lag = max_lag is not None and total > max_lag
    over_time = max_lag_seconds is not None and max(seconds, default=0) > max_lag_seconds
    return "WARN" if over_lag or over_time or "WARN" in judged else "OK"


def _judge(window: Sequence[Sample], partition: TopicPartition) -> str:
    seen = [one for one in window if one.lag(partition) is not None]
    commits = [one.committed[partition] for one in seen]
    lags = [one.ends[partition] - one.committed[partition] for one in seen]
    if any(later < earlier for earlier, later in pairwise(commits)):
        return "REWIND"
    if len(seen) < SHORTEST_HISTORY or min(lags) <= 0:
        return "OK"
    if commits[0] == commits[-1]:
        return "STALL"
    growing = all(later >= earlier for earlier, later in pairwise(lags))
    return "WARN" if growing and lags[-1] > lags[0] else "OK"
