"""Lag of an observed group by the rule of `odradek.lag`, and what its recent history means. Pure.

A few samples per group are kept in memory. What must outlive the process is in the status of the
resource: the topics in which the group has commits, by the ZooKeeper transaction that created each
of them. A coordinator deletes commits with their topic. So where a group read a topic that was made
anew since, all records of the new topic are unread until the group commits there.

The verdicts are Burrow's: STOP if nobody consumes what is there, STALL if members commit nothing
new, REWIND if commits went back, WARN if the lag only grows or exceeds a limit of the spec.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from odradek import lag as rule
from odradek.values import TopicPartition

# With the pace of observation these are a few minutes.
LONGEST_WINDOW: Final = 12
# Fewer samples of a group are no history: a commit may just be late.
SHORTEST_HISTORY: Final = 4
# Topics that a status remembers, as many as its schema allows.
MOST_TOPICS: Final = 1024

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation; `at` is in seconds of a monotonic clock.

    `ends` and `starts` lack the partitions whose leaders do not answer, and `starts` those where
    the start does not decide. `former` are the partitions whose position is the log start, because
    the group's commits belong to a former topic; in `committed` they have a number without meaning.
    In a `simple` group those who commit are no members.
    """

    at: float
    members: int
    committed: Offsets
    ends: Offsets
    starts: Offsets = field(default_factory=dict)
    former: Collection[TopicPartition] = frozenset()
    simple: bool = False

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the first unread record, None while it is unknown."""
        return rule.first_unread(
            self.committed.get(partition),
            self.starts.get(partition),
            self.ends.get(partition),
            is_former=partition in self.former,
        )

    def lag(self, partition: TopicPartition) -> int | None:
        """Return how many records are unread, None without a commit or an answer of the leader."""
        position = self.position(partition)
        return None if position is None else self.ends[partition] - position

    def read_until(self, partition: TopicPartition) -> int | None:
        """Return what tells whether the group goes on: retention moves the position, too."""
        position = self.position(partition)
        committed = self.committed.get(partition)
        if position is None or committed is None:
            return None
        is_useless = partition in self.former or committed > self.ends[partition]
        return position if is_useless else committed

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
    """Return a window with one more sample; it begins anew with a topic that was made anew."""
    if window and set(sample.former) - set(window[-1].former):
        return (sample,)
    return (*window, sample)[-LONGEST_WINDOW:]


def of_former_topics(
    committed: Offsets,
    written: Mapping[TopicPartition, int],
    recorded: Mapping[str, int],
    present: Mapping[str, int],
    partitions: Iterable[TopicPartition],
) -> set[TopicPartition]:
    """Return the partitions where the group's position is of a former topic.

    `written` has the transactions of commits that are znodes, `recorded` and `present` those that
    created the topics: of the last look, and as they are. `partitions` are those that exist.
    """
    return {
        one
        for one in partitions
        if one.topic in present and _is_former(one, committed, written, recorded, present)
    }


def _is_former(
    one: TopicPartition,
    committed: Offsets,
    written: Mapping[TopicPartition, int],
    recorded: Mapping[str, int],
    present: Mapping[str, int],
) -> bool:
    created = present[one.topic]
    if one in committed:
        return one in written and rule.is_of_former_topic(written[one], created)
    return recorded.get(one.topic, created) != created


def record(
    sample: Sample,
    recorded: Mapping[str, int],
    present: Mapping[str, int],
    partitions: Iterable[TopicPartition],
) -> dict[str, int]:
    """Return the topics in which the group has commits, for the next look.

    A topic that was made anew keeps its former transaction until the group has committed there, and
    in each partition with records. One that does not exist is kept: it may be made anew. If it
    exists and the commits are gone, somebody deleted them, or they expired.
    """
    found = {topic: created for topic, created in recorded.items() if present.get(topic) != created}
    read = {one for one in partitions if one in sample.committed and one.topic in present}
    settled = {one.topic for one in read if one not in sample.former}
    settled -= {one.topic for one in sample.former if sample.ends.get(one) != 0}
    for topic in {one.topic for one in read}:
        kept = topic in recorded and topic not in settled
        found[topic] = recorded[topic] if kept else present[topic]
    return dict(sorted(found.items())[:MOST_TOPICS])


def seconds_behind(window: Sequence[Sample], partition: TopicPartition) -> int | None:
    """Return how long ago the next record to be read was appended.

    The moment at which the log's end passed the commit lies between two samples and is taken to lie
    where a steady writer would have put it. Longer ago than the window it is only known to be at
    least as long; None where one sample is all there is.
    """
    last = window[-1]
    position = last.position(partition)
    if position is None:
        return None
    if position == last.ends[partition]:
        return 0
    ends = ((one.at, one.ends[partition]) for one in window if partition in one.ends)
    passed = when_passed(ends, position)
    if passed is None:
        return 0
    return int(last.at - passed.at) or (0 if passed.exact else None)


class Passed(NamedTuple):
    """When a log's end passed an offset; not `exact` if that was at or before the first sample."""

    at: float
    exact: bool


def when_passed(ends: Iterable[tuple[float, int]], position: int) -> Passed | None:
    """Return when a log's end passed an offset, from samples (time, end), the oldest first.

    None if it did not.
    """
    before: tuple[float, int] | None = None
    for at, end in ends:
        if end > position:
            if before is None:
                return Passed(at, exact=False)
            since, earlier = before
            return Passed(since + (at - since) * (position - earlier) / (end - earlier), True)
        before = at, end
    return None


def verdict(
    window: Sequence[Sample], max_lag: int | None, max_lag_seconds: int | None
) -> str | None:
    """Return the verdict on a group, None while its lag is not known."""
    last = window[-1]
    total = last.total
    if total is None:
        return None
    judged = {_judge(window, one) for one in last.committed}
    # Where nobody ever joins, only the commits tell whether somebody reads.
    reads = bool(last.members) or (last.simple and "STALL" not in judged)
    if total and not reads:
        return "STOP"
    for worst in ("STALL", "REWIND"):
        if worst in judged:
            return worst
    seconds = [seconds_behind(window, one) or 0 for one in last.committed]
    over_lag = max_lag is not None and total > max_lag
    over_time = max_lag_seconds is not None and max(seconds, default=0) > max_lag_seconds
    return "WARN" if over_lag or over_time or "WARN" in judged else "OK"


def _judge(window: Sequence[Sample], partition: TopicPartition) -> str:
    seen = [(one.read_until(partition), one.lag(partition)) for one in window]
    known = [(read, lag) for read, lag in seen if read is not None and lag is not None]
    return judge([read for read, _ in known], [lag for _, lag in known])


def judge(commits: Sequence[int], lags: Sequence[int]) -> str:
    """Return the verdict on one partition from its commits and lags, the oldest first."""
    if any(later < earlier for earlier, later in pairwise(commits)):
        return "REWIND"
    if len(lags) < SHORTEST_HISTORY or min(lags) <= 0:
        return "OK"
    if commits[0] == commits[-1]:
        return "STALL"
    growing = all(later >= earlier for earlier, later in pairwise(lags))
    return "WARN" if growing and lags[-1] > lags[0] else "OK"
