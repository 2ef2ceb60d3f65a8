"""Lag, age and verdict of a partition, from what rounds have read."""

from collections.abc import Collection

import pytest

from odradek.values import TopicPartition
from odradek_operator.exporter import lags as exporter_lags
from odradek_operator.exporter.lags import EndHistory, ExportedPartition, GroupRead, Lags, Moment
from odradek_operator.exporter.logs import LogBounds, Topic

P, Q = TopicPartition("orders", 0), TopicPartition("orders", 1)
FIRST, ANEW = 7, 9


class Canary:
    """A group that reads P and Q, one round every 10 seconds."""

    def __init__(self) -> None:
        self.lags = Lags()
        self.now = 0.0

    def round(
        self,
        committed: dict[TopicPartition, int] | None,
        ends: dict[TopicPartition, int],
        *,
        start: int = 0,
        incarnation: int = FIRST,
        members: int = 1,
        simple: bool = False,
        former: Collection[TopicPartition] = (),
    ) -> None:
        """Read the group once; None: its coordinator does not answer."""
        self.now += 10
        topics = {"orders": Topic(incarnation, range(2))}
        bounds = {one: LogBounds(start, end) for one, end in ends.items()}
        self.lags.keep_ends(topics, bounds, self.now)
        if committed is not None:
            read = GroupRead(members, simple, True, committed, former)
            moment = Moment(self.now, 1000 + self.now)
            self.lags.update("canary", read, topics, (), bounds, moment)
        self.lags.forget((), topics.keys(), self.now)

    def __getitem__(self, partition: TopicPartition) -> ExportedPartition:
        return self.lags.groups["canary"].partitions[partition]

    @property
    def verdict(self) -> str | None:
        return self.lags.groups["canary"].verdict()


def test_lag_follows_the_rule_and_needs_no_memory() -> None:
    for committed, start, former, lag in ((5, 7, False, 2), (90, 4, False, 5), (5, 0, True, 9)):
        canary = Canary()
        canary.round({P: committed}, {P: 9}, start=start, former={P} if former else set())
        assert (canary[P].lag, canary[P].committed) == (lag, committed)


def test_commit_in_a_topic_made_anew_counts_also_if_it_is_the_former_one() -> None:
    canary = Canary()
    for _ in range(4):
        canary.round({P: 5}, {P: 9})
    assert canary.verdict == "STALL"
    # The coordinator deleted the commit with the topic, and the group has read as far again.
    canary.round({P: 5}, {P: 8}, incarnation=ANEW)
    assert (canary[P].lag, canary.verdict) == (3, "OK")


def test_seconds_are_interpolated_between_samples_of_the_end() -> None:
    canary = Canary()
    canary.round({P: 5}, {P: 10})
    assert canary[P].seconds is None, "one sample says nothing"
    canary.round({P: 15}, {P: 20})
    # The end passed 15 halfway between the two rounds.
    assert canary[P].seconds == 5
    canary.round({P: 15}, {P: 20})
    assert (canary[P].seconds, canary[P].unchanged_seconds) == (15, 10)
    canary.round({P: 20}, {P: 20})
    assert (canary[P].seconds, canary[P].unchanged_seconds) == (0, 0)


def test_samples_are_bounded_and_reach_back_to_the_first() -> None:
    ends = EndHistory(FIRST)
    for number in range(1000):
        ends.add(number, 10 * number)
    assert len(ends._ends) <= 16
    # A steady writer is interpolated exactly, however sparse the samples are.
    for offset in (15, 5005, 9985):
        assert ends.seconds_since(offset, 999) == pytest.approx(999 - offset / 10)
    for number in range(1000, 2000):
        ends.add(number, 9990)
    # The last record was appended at 999, and not at any time since.
    assert ends.seconds_since(9989, 1999) == pytest.approx(1000, abs=1)


@pytest.mark.parametrize(
    ("seen", "members", "simple", "verdict"),
    [
        ([(5, 5)], 0, False, "OK"),
        ([(5, 9)], 0, False, "STOP"),
        ([(5, 9)] * 4, 1, False, "STALL"),
        ([(5, 6), (6, 9), (7, 12), (8, 15)], 1, False, "WARN"),
        ([(9, 12), (4, 12)], 1, False, "REWIND"),
        # Who assigns partitions to itself is no member: it has stopped if it commits no more.
        ([(5, 9), (6, 9), (7, 12), (7, 12)], 0, True, "OK"),
        ([(5, 9)] * 4, 0, True, "STOP"),
    ],
)
def test_verdicts(seen: list[tuple[int, int]], members: int, simple: bool, verdict: str) -> None:
    canary = Canary()
    for committed, end in seen:
        canary.round({P: committed, Q: 1}, {P: end, Q: 1}, members=members, simple=simple)
    assert canary.verdict == verdict


def test_partitions_without_a_commit_are_counted_and_have_no_lag() -> None:
    canary = Canary()
    canary.round({P: 5}, {P: 9})
    group = canary.lags.groups["canary"]
    assert (list(group.partitions), group.uncommitted) == ([P], {"orders": 1})
    canary.round({Q: 5}, {Q: 9})
    assert (list(group.partitions), group.uncommitted) == ([Q], {"orders": 1})
    canary.lags.forget((), set(), canary.now)
    assert (group.partitions, group.uncommitted) == ({}, {}), "the topic is gone"
    canary.round({}, {})
    assert (group.partitions, group.uncommitted, canary.verdict) == ({}, {}, None)


def test_what_is_not_read_stays_for_an_hour() -> None:
    canary = Canary()
    canary.round({P: 5, Q: 5}, {P: 9, Q: 9})
    canary.round({P: 6, Q: 6}, {P: 9})
    group = canary.lags.groups["canary"]
    assert (canary[P].lag, canary[Q].lag, group.read_unix) == (3, 4, 1010)
    canary.now += exporter_lags.KEEP_SECONDS - 15
    canary.round({P: 6, Q: 6}, {P: 9})
    assert list(group.partitions) == [P]
    canary.round(None, {})
    assert canary[P].lag == 3
    canary.now += exporter_lags.KEEP_SECONDS
    canary.round(None, {})
    assert not canary.lags.groups


def test_an_unreadable_topic_keeps_its_last_values() -> None:
    canary = Canary()
    canary.round({P: 5}, {P: 9})
    read = GroupRead(1, False, True, {P: 6})
    canary.lags.update("canary", read, {}, {"orders"}, {}, Moment(20, 1020))
    canary.lags.forget((), {"orders"}, 20)
    assert (canary[P].lag, canary[P].committed) == (4, 5)
    assert canary.lags.groups["canary"].read_unix == 1010
