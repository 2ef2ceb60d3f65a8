"""Lag, verdicts and resets of a group, from what was seen of it."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from odradek.protocol.messages.group_offsets import OffsetFetchResponse
from odradek.protocol.messages.groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from odradek.values import TopicPartition
from odradek.zk import consumers
from odradek_operator.group import group_spec, observe, reset
from odradek_operator.group import lag as group_lag
from odradek_operator.group.lag import Sample
from odradek_operator.group.reset import Reset
from odradek_operator.group.znodes import ObservedGroup
from odradek_operator.shared.metrics import GroupLag, GroupLags
from odradek_operator.shared.spec import InvalidSpec
from tests.reconcile.test_reassignment import NOW
from tests.support.memory import MemoryZooKeeper

P, Q = TopicPartition("a-topic", 0), TopicPartition("a-topic", 1)


def window(*seen: tuple[int, int], members: int = 1, simple: bool = False) -> tuple[Sample, ...]:
    """Samples 10 s apart, each (committed, end) of one partition."""
    return tuple(
        Sample(10.0 * number, members, {P: committed}, {P: end}, {P: 0}, simple=simple)
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
        # A commit beyond the end.
        ([(900, 3)] * 4, 1, "STALL"),
    ],
)
def test_verdicts(seen: list[tuple[int, int]], members: int, verdict: str | None) -> None:
    assert group_lag.verdict(window(*seen, members=members), None, None) == verdict


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        ([(5, 9)], "OK"),
        ([(5, 9), (6, 9), (7, 12), (7, 12)], "OK"),
        ([(5, 6), (6, 9), (7, 12), (8, 15)], "WARN"),
        ([(9, 12), (4, 12)], "REWIND"),
        ([(5, 9)] * 4, "STOP"),
    ],
)
def test_group_that_nobody_ever_joined_has_stopped_once_it_commits_no_more(
    seen: list[tuple[int, int]], verdict: str
) -> None:
    """As the exporter says of it."""
    assert group_lag.verdict(window(*seen, members=0, simple=True), None, None) == verdict


class Coordinator:
    """A broker that coordinates group g, which has no members and no commits."""

    addresses: Mapping[int, tuple[str, int]] = {1: ("127.0.0.1", 9092)}

    def __init__(self, state: str, protocol_type: str) -> None:
        self._group = DescribedGroup(
            group_id="g",
            group_state=state,
            protocol_type=protocol_type,
            protocol_data="",
            members=[],
        )

    def call(self, _broker_id: int, request: object, _version: int) -> object:
        match request:
            case FindCoordinatorRequest():
                return FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=9092)
            case DescribeGroupsRequest():
                return DescribeGroupsResponse(groups=[self._group])
        return OffsetFetchResponse(topics=[])


@pytest.mark.parametrize(
    ("state", "protocol_type", "has_znode", "simple"),
    [
        ("Empty", "", False, True),
        ("Empty", "consumer", False, False),
        ("Empty", "", True, False),
        ("Dead", "", False, False),
    ],
)
def test_group_is_simple_where_its_coordinator_knows_of_nobody_who_joined(
    state: str, protocol_type: str, has_znode: bool, simple: bool
) -> None:
    zookeeper = MemoryZooKeeper({consumers.group_path("g"): b""} if has_znode else {})
    wanted = group_spec.parse_group(
        {"metadata": {"name": "g"}, "spec": {"clusterRef": {"name": "c"}, "offsetStore": "Both"}}
    )
    brokers = Coordinator(state, protocol_type)
    view = observe.view_group(cast(Any, zookeeper), cast(Any, brokers), wanted)
    assert view.simple == simple


def test_limits_of_the_user_warn_and_unknown_lags_say_nothing() -> None:
    assert group_lag.verdict(window((5, 9)), 3, None) == "WARN"
    assert group_lag.verdict(window((5, 9)), 4, None) == "OK"
    late = window((5, 5), (5, 9), (5, 9))
    assert group_lag.verdict(late, None, 19) == "WARN"
    assert group_lag.verdict(late, None, 20) == "OK"
    unknown = Sample(0, 1, {P: 5, Q: 5}, {P: 9}, {P: 0})
    assert (unknown.total, group_lag.verdict((unknown,), 0, None)) == (None, None)
    assert Sample(0, 0, {}, {}).total is None
    # The leader tells where the log ends, and not where it begins.
    assert Sample(0, 0, {P: 900}, {P: 3}).total is None


def test_seconds_behind_are_those_since_the_log_passed_the_commit() -> None:
    assert group_lag.seconds_behind(window((5, 5)), P) == 0
    # The end passed 5 halfway between the first two samples.
    assert group_lag.seconds_behind(window((3, 4), (4, 6), (5, 6)), P) == 15
    assert group_lag.seconds_behind(window((1, 9), (1, 9)), P) == 10
    assert group_lag.seconds_behind(window((1, 9)), P) is None
    assert group_lag.seconds_behind(window((1, 9)), Q) is None


@pytest.mark.parametrize(
    ("committed", "written", "recorded", "present", "expected"),
    [
        (5, 80, 77, 77, False),
        # The znode is older than the topic.
        (5, 70, None, 77, True),
        (5, 70, 60, 77, True),
        # The group has committed in the present topic.
        (5, 80, 60, 77, False),
        (5, None, 60, 77, False),
        # The coordinator deleted the commit with the topic, or somebody did without it.
        (None, None, 60, 77, True),
        (None, None, 77, 77, False),
        (None, None, 60, None, False),
        (None, None, None, 77, False),
    ],
)
def test_positions_in_a_former_topic_are_known(
    committed: int | None,
    written: int | None,
    recorded: int | None,
    present: int | None,
    expected: bool,
) -> None:
    found = group_lag.of_former_topics(
        {} if committed is None else {P: committed},
        {} if written is None else {P: written},
        {} if recorded is None else {P.topic: recorded},
        {} if present is None else {P.topic: present},
        [P],
    )
    assert found == ({P} if expected else set())


def test_znode_of_a_former_topic_gives_way_to_the_commit_of_a_coordinator() -> None:
    """As in the exporter: it may have the larger offset, and says nothing of the topic."""
    group = ObservedGroup(True, 0, {P: 30, Q: 30}, {P: 70, Q: 70}, {P: 5})
    seen = group.of_topics({P.topic: 77})
    assert (seen.committed, seen.written) == ({P: 5, Q: 30}, {Q: 70})
    assert group.of_topics({P.topic: 60}) == group
    assert group.of_topics({}) == group


def looked(
    committed: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    recorded: int | None,
    present: int | None,
    *,
    has_states: bool = True,
) -> tuple[int | None, int | None]:
    """The total lag, and the transaction that the status then has, of a topic with P and Q."""
    before = {} if recorded is None else {P.topic: recorded}
    now = {} if present is None else {P.topic: present}
    there = [one for one in (P, Q) if present is not None and has_states]
    former = group_lag.of_former_topics(committed, {}, before, now, there)
    positions = {**dict.fromkeys(former, 0), **committed}
    sample = Sample(0, 0, positions, ends, dict.fromkeys(ends, 0), former)
    return sample.total, group_lag.record(sample, before, now, there).get(P.topic)


def test_topic_made_anew_is_wholly_unread_until_the_group_has_committed_there() -> None:
    assert looked({P: 5, Q: 5}, {P: 5, Q: 5}, None, 60) == (0, 60)
    # It is deleted, and made anew; then records come, first into one partition.
    assert looked({}, {}, 60, None) == (None, 60)
    assert looked({}, {}, 60, 77, has_states=False) == (None, 60)
    assert looked({}, {P: 0, Q: 0}, 60, 77) == (0, 60)
    assert looked({}, {P: 0, Q: 30}, 60, 77) == (30, 60)
    assert looked({}, {P: 40, Q: 30}, 60, 77) == (70, 60)
    # A leader does not answer.
    assert looked({}, {P: 40}, 60, 77) == (None, 60)
    assert looked({P: 10}, {P: 40, Q: 30}, 60, 77) == (60, 60)
    assert looked({P: 10, Q: 0}, {P: 40, Q: 30}, 60, 77) == (60, 77)
    # Nobody can have read of an empty partition.
    assert looked({P: 10}, {P: 40, Q: 0}, 60, 77) == (30, 77)


def test_commits_that_go_while_the_topic_stays_are_forgotten() -> None:
    assert looked({P: 5}, {P: 9}, 77, 77) == (4, 77)
    assert looked({}, {}, 77, 77) == (None, None)
    assert looked({}, {}, None, 77) == (None, None)


def test_history_of_a_former_topic_says_nothing_of_the_present_one() -> None:
    old = window((900, 900), (900, 900))
    anew = Sample(30, 1, {P: 900}, {P: 300}, {P: 0}, former=frozenset({P}))
    assert group_lag.extend(old, anew) == (anew,)
    assert len(group_lag.extend((anew,), anew)) == 2
    assert (anew.total, group_lag.verdict((anew,), None, None)) == (300, "OK")


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
    lag, seconds = "kafka_consumergroup_lag", "kafka_consumergroup_lag_seconds"
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
        ("Offset", "1_0"),
        ("Offset", " 5"),
        ("Shift", "\u0663"),
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
        last = reset.fields(request, phase, {P: 5}, {P: 4}, {P.topic: 7}, NOW)
        assert (last["before"], last["after"]) == ({"a-topic-0": "5"}, {"a-topic-0": "4"})
        body = {"status": {"lastReset": last}}
        assert reset.begun(request, body) == begun
        assert reset.of_same_topics({P: 4}, body, {P.topic: 7}) == {P: 4}
        # Made anew, or gone.
        assert reset.of_same_topics({P: 4}, body, {P.topic: 8}) == {}
        assert reset.of_same_topics({P: 4}, body, {}) == {}
    assert reset.done(request, body)
    assert not reset.done(Reset("2", "Shift", False), body)
    # A manifest of before that is applied again.
    assert reset.done(Reset("1", "Shift", True), body)
    # What was only shown is not done.
    shown = reset.fields(request, reset.DRY_RUN, {}, {P: 4}, {P.topic: 7}, NOW)
    assert not reset.done(request, {"status": {"lastReset": shown}})
    assert reset.done(Reset("1", "Shift", True), {"status": {"lastReset": shown}})
