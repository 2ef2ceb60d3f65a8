"""Lag, verdicts and resets of a group, from what was seen of it."""

from typing import Any

import pytest

from odradek.values import TopicPartition
from odradek_operator.group import lag as group_lag
from odradek_operator.group import reset
from odradek_operator.group.lag import Sample
from odradek_operator.group.reset import Reset
from odradek_operator.shared.metrics import GroupLag, GroupLags
from odradek_operator.shared.spec import InvalidSpec
from tests.reconcile.test_reassignment import NOW

P, Q = TopicPartition("a-topic", 0), TopicPartition("a-topic", 1)


def window(*seen: tuple[int, int], members: int = 1) -> tuple[Sample, ...]:
    """Samples 10 s apart, each (committed, end) of one partition."""
    return tuple(
        Sample(10.0 * number, members, {P: committed}, {P: end})
        for number, (committed, end) in enumerate(seen)
    )


@pytest.mark.parametrize(
    ("seen", "members", "verdict"),
    [
        ([(5, 5)], 1, "OK"),
        ([(5, 5)], 0, "OK"),
        ([(5, 9)], 0, "STOP"),
        ([(5, 9)] * 3, 1, "OK"),
        ([(5, 9)] * 4, 1, "STALL"),
        ([(5, 9), (6, 9), (7, 12), (7, 12)], 1, "OK"),
        ([(5, 6), (6, 9), (7, 12), (8, 15)], 1, "WARN"),
        ([(5, 5), (6, 9), (7, 12), (8, 15)], 1, "OK"),
        ([(9, 12), (4, 12)], 1, "REWIND"),
        # A topic that was made anew has fewer records than were committed: nothing is left to read.
        ([(900, 3)], 0, "OK"),
    ],
)
def test_verdicts(seen: list[tuple[int, int]], members: int, verdict: str) -> None:
    assert group_lag.verdict(window(*seen, members=members), None, None) == verdict


def test_limits_of_the_user_warn_and_unknown_lags_say_nothing() -> None:
    assert group_lag.verdict(window((5, 9)), 3, None) == "WARN"
    assert group_lag.verdict(window((5, 9)), 4, None) == "OK"
    late = window((5, 5), (5, 9), (5, 9))
    assert group_lag.verdict(late, None, 19) == "WARN"
    assert group_lag.verdict(late, None, 20) == "OK"
    unknown = Sample(0, 1, {P: 5, Q: 5}, {P: 9})
    assert (unknown.total, group_lag.verdict((unknown,), 0, None)) == (None, None)
    assert Sample(0, 0, {}, {}).total is None


def test_seconds_behind_are_those_since_the_log_passed_the_commit() -> None:
    assert group_lag.seconds_behind(window((5, 5)), P) == 0
    # The end passed 5 halfway between the first two samples.
    assert group_lag.seconds_behind(window((3, 4), (4, 6), (5, 6)), P) == 15
    assert group_lag.seconds_behind(window((1, 9), (1, 9)), P) == 10
    assert group_lag.seconds_behind(window((1, 9)), P) is None
    assert group_lag.seconds_behind(window((1, 9)), Q) is None


def test_window_is_bounded() -> None:
    kept: tuple[Sample, ...] = ()
    for one in window(*[(0, 0)] * 40):
        kept = group_lag.extend(kept, one)
    assert (len(kept), kept[-1].at) == (group_lag.LONGEST_WINDOW, 390.0)


def test_series_tell_namespaces_apart_and_when_all_of_a_lag_was_read() -> None:
    lags = GroupLags()
    for namespace in ("one", "two"):
        lags.put(namespace, GroupLag(namespace, "main", "g", {P: 4}, {P: 9}, read_at=100))
    # The leader of another partition does not answer any more.
    lags.put("two", GroupLag("two", "main", "g", {P: 5}, {P: 10}, read_at=None))
    told = {
        (sample.name, sample.labels["namespace"]): sample.value
        for family in lags.collect()
        for sample in family.samples
    }
    lag, seconds = "kafka_consumergroup_lag", "odradek_consumergroup_lag_seconds"
    read_at = "odradek_consumergroup_lag_read_timestamp_seconds"
    assert told == {
        (lag, "one"): 4,
        (lag, "two"): 5,
        (seconds, "one"): 9,
        (seconds, "two"): 10,
        (read_at, "one"): 100,
        (read_at, "two"): 100,
    }


@pytest.mark.parametrize(
    ("raw", "found", "wanted"),
    [
        ({"strategy": "Earliest"}, {P: 10, Q: 0}, {P: 10, Q: 0}),
        ({"strategy": "Latest"}, {P: 90, Q: 7}, {P: 90, Q: 7}),
        ({"strategy": "Shift", "value": "-5"}, {}, {P: 45}),
        ({"strategy": "Shift", "value": "-500"}, {}, {P: 10}),
        ({"strategy": "Offset", "value": "60"}, {}, {P: 60, Q: 7}),
        ({"strategy": "Timestamp", "value": "2026-11-21T00:00:00Z"}, {P: 33, Q: -1}, {P: 33, Q: 7}),
    ],
)
def test_reset_never_leaves_the_log(
    raw: dict[str, Any], found: dict[TopicPartition, int], wanted: dict[TopicPartition, int]
) -> None:
    request = reset.parse({"requestId": "1", **raw})
    begins, ends = {P: 10, Q: 0}, {P: 90, Q: 7}
    assert reset.compute(request, {P: 50}, begins, ends, found) == wanted


@pytest.mark.parametrize(
    ("strategy", "value"),
    [
        ("Shift", "much"),
        ("Offset", "-1"),
        ("Offset", "1.5"),
        ("Timestamp", "yesterday"),
        ("Timestamp", "99999999999999999999"),
        ("Timestamp", "1969-12-31T23:59:59.999Z"),
        ("Timestamp", "0001-01-01T00:00:00Z"),
    ],
)
def test_value_that_the_strategy_cannot_use_is_refused(strategy: str, value: str) -> None:
    with pytest.raises(InvalidSpec, match=value) as caught:
        reset.parse({"requestId": "1", "strategy": strategy, "value": value})
    assert caught.value.reason == "InvalidReset"


def test_times_are_utc_unless_they_say_otherwise() -> None:
    def moment(value: str) -> int:
        raw = {"requestId": "1", "strategy": "Timestamp", "value": value}
        return reset.parse(raw).question

    assert moment("1970-01-01T00:00:02Z") == moment("1970-01-01T00:00:02") == 2000
    assert moment("1970-01-01T01:00:02+01:00") == moment("2000") == 2000


def test_request_is_carried_out_once_and_goes_on_with_the_offsets_it_began_with() -> None:
    request = Reset("1", "Shift", False, number=-1)
    body: dict[str, Any] = {"status": {}}
    assert not reset.done(request, body)
    assert reset.begun(request, body) is None
    for phase, begun in ((reset.APPLYING, {P: 4}), (reset.DONE, None)):
        last = reset.fields(request, phase, {P: 5}, {P: 4}, NOW)
        assert (last["before"], last["after"]) == ({"a-topic-0": "5"}, {"a-topic-0": "4"})
        body = {"status": {"lastReset": last}}
        assert reset.begun(request, body) == begun
    assert reset.done(request, body)
    assert not reset.done(Reset("2", "Shift", False), body)
    # What was only shown is not done.
    shown = reset.fields(request, reset.DRY_RUN, {}, {P: 4}, NOW)
    assert not reset.done(request, {"status": {"lastReset": shown}})
    assert reset.done(Reset("1", "Shift", True), {"status": {"lastReset": shown}})
