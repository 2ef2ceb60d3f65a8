"""The steps of a running Reassignment, as a pure function of its plan and of what is there."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from odradek.values import BrokerId, TopicPartition
from odradek.zk import znodes
from odradek.zk.payload import ZnodeError
from odradek.zk.znodes import TopicAssignment
from odradek_operator.reassignment import reassignment_spec, throttle
from odradek_operator.reassignment import status as reassignment_status
from odradek_operator.reassignment.decide import (
    DEAD_AFTER,
    MoveState,
    PartitionView,
    ReassignmentDecision,
    ReassignmentPlan,
    ReassignmentView,
    arrival,
    decide_moves,
    decide_preferred,
    make_plan,
    percent,
)
from odradek_operator.reassignment.placement import PlanError
from odradek_operator.reassignment.znodes import read_request
from odradek_operator.shared.spec import ResourceMeta
from odradek_operator.shared.views import TopicView
from odradek_operator.shared.zookeeper import ZooKeeper
from tests.reconcile.in_memory import resource
from tests.support.memory import MemoryZooKeeper

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
REF = {"name": "c"}
P = [TopicPartition("t", number) for number in range(3)]
PLAN = ReassignmentPlan(
    targets={P[0]: (3, 1), P[1]: (3, 2), P[2]: (2, 1)},
    originals={P[0]: (0, 1), P[1]: (0, 2), P[2]: (1, 2)},
    incarnations={"t": 77},
    sizes={P[0]: 100, P[1]: 50, P[2]: 10},
)
ALL = frozenset(range(4))


def at(*replicas: int) -> PartitionView:
    return PartitionView(replicas, frozenset(replicas), replicas[0])


def moving(before: tuple[int, ...], target: tuple[int, ...]) -> PartitionView:
    """As Kafka 2.4 and later show a move: the target first, then what is removed."""
    gone = [one for one in before if one not in target]
    return PartitionView(
        (*target, *gone),
        frozenset(before),
        before[0],
        adding=frozenset(target) - set(before),
        removing=frozenset(gone),
    )


BEFORE = {one: at(*PLAN.originals[one]) for one in P}
DONE = {one: at(*PLAN.targets[one]) for one in P}


def decide(view: ReassignmentView, **fields: object) -> ReassignmentDecision:
    usual: dict[str, object] = {
        "cancel": False,
        "deleting": False,
        "rolling_back": None,
        "missing_since": None,
        "offline_since": None,
        "at_once": 2,
        "now": NOW,
    }
    return decide_moves(PLAN, view, **{**usual, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"mode": "RemoveBrokers", "brokers": [2]}, True),
        ({"mode": "ReplicationFactor", "replicationFactor": 1, "topics": ["torn"]}, True),
        ({"mode": "ReplicationFactor", "replicationFactor": 1, "topics": ["t"]}, False),
        ({"mode": "RemoveBrokers", "brokers": [2], "excludedTopics": ["torn"]}, False),
        ({"mode": "Explicit", "moves": [{"topic": "t", "partition": 0, "replicas": [0]}]}, False),
    ],
)
def test_nothing_is_called_moved_while_a_topic_cannot_be_read(
    fields: dict[str, Any], refused: bool
) -> None:
    topics = {
        "t": TopicView(TopicAssignment({0: (BrokerId(0),)}), 0, 77),
        "torn": TopicView(unreadable="/brokers/topics/torn: no JSON"),
    }
    wanted = reassignment_spec.parse_reassignment(
        resource("Reassignment", "r", clusterRef=REF, **fields)
    )
    brokers = {BrokerId(one): None for one in range(3)}
    if not refused:
        assert make_plan(wanted, topics, brokers).targets == {}
        return
    with pytest.raises(PlanError, match=r"no JSON; mend it, or make .* without topic torn") as told:
        make_plan(wanted, topics, brokers)
    assert told.value.reason == "ZnodeUnreadable"


@pytest.mark.parametrize(
    "fields",
    [{"mode": "PreferredLeader"}, {"mode": "ReplicationFactor", "replicationFactor": 1}],
)
def test_a_partition_without_replicas_holds_up_no_plan(fields: dict[str, Any]) -> None:
    topics = {"t": TopicView(TopicAssignment({0: (BrokerId(0),), 1: ()}), 0, 77)}
    wanted = reassignment_spec.parse_reassignment(
        resource("Reassignment", "r", clusterRef=REF, **fields)
    )
    assert make_plan(wanted, topics, {BrokerId(0): None}).targets == {}


def test_brokers_that_keep_replicas_are_named_once_all_waits_for_them() -> None:
    lagging = PartitionView((0, 1), frozenset({0}), 0)
    left = decide(ReassignmentView({**DONE, P[0]: lagging}, ALL - {1}, None))
    assert not any((left.submit, left.ended, left.missing))
    assert left.absent == {1}
    more = decide(ReassignmentView({**DONE, P[0]: lagging, P[1]: BEFORE[P[1]]}, ALL - {1}, None))
    assert (more.submit, more.absent) == ({P[1]: (3, 2)}, frozenset())


def test_batches_follow_each_other_and_the_last_ends_it() -> None:
    first = decide(ReassignmentView(BEFORE, ALL, None))
    assert first.submit == {P[0]: (3, 1), P[1]: (3, 2)}
    asked = decide(ReassignmentView(BEFORE, ALL, first.submit))
    assert (asked.submit, asked.ended, asked.count(MoveState.MOVING)) == ({}, None, 2)
    half = {**BEFORE, P[0]: DONE[P[0]], P[1]: moving((0, 2), (3, 2))}
    assert decide(ReassignmentView(half, ALL, {P[1]: (3, 2)})).submit == {}
    # A controller that takes its znode away early has not ended the move.
    assert decide(ReassignmentView(half, ALL, None)).submit == {}
    last = decide(ReassignmentView({**DONE, P[2]: BEFORE[P[2]]}, ALL, None))
    assert last.submit == {P[2]: (2, 1)}
    assert decide(ReassignmentView(DONE, ALL, {P[2]: (2, 1)})).ended is None
    assert decide(ReassignmentView(DONE, ALL, None)).ended == "Completed"


def test_somebody_elses_move_is_waited_for() -> None:
    stranger = TopicPartition("other", 0)
    waits = decide(ReassignmentView(BEFORE, ALL, {stranger: (1,)}))
    assert (waits.submit, waits.ended) == ({}, None)
    assert "other-0" in str(waits.foreign)
    # The same partition, but to where this plan never wanted it.
    theirs = {**BEFORE, P[0]: moving((0, 1), (2, 1))}
    assert "t-0 is being moved" in str(decide(ReassignmentView(theirs, ALL, None)).foreign)
    elsewhere = {**DONE, P[0]: at(2, 1)}
    failed = decide(ReassignmentView(elsewhere, ALL, None))
    assert (failed.ended, failed.count(MoveState.FAILED)) == ("Failed", 1)
    assert "another client" in failed.failures[0]


def test_topic_that_is_gone_fails_and_hinders_no_other() -> None:
    left = {one: BEFORE[one] for one in P[1:]}
    decision = decide(ReassignmentView(left, ALL, None))
    assert decision.submit == {P[1]: (3, 2), P[2]: (2, 1)}
    assert decide(ReassignmentView({one: DONE[one] for one in P[1:]}, ALL, None)).ended == "Failed"


def test_cancel_stops_what_moves_and_takes_back_what_is_done() -> None:
    half = {**BEFORE, P[0]: DONE[P[0]], P[1]: moving((0, 2), (3, 2))}
    first = decide(ReassignmentView(half, ALL, {P[1]: (3, 2)}), cancel=True)
    assert (first.rolling_back, first.stop, first.submit) == ("Cancelled", (P[1],), {})
    back = {**BEFORE, P[0]: DONE[P[0]]}
    second = decide(ReassignmentView(back, ALL, None), cancel=True, rolling_back="Cancelled")
    assert second.submit == {P[0]: (0, 1)}
    # Stopped by the controller, replicas may stand in another order than before.
    stopped = {**BEFORE, P[1]: at(2, 0)}
    again = decide(ReassignmentView(stopped, ALL, None), cancel=True, rolling_back="Cancelled")
    assert again.submit == {P[1]: (0, 2)}
    returning = {**BEFORE, P[0]: moving((3, 1), (0, 1))}
    third = decide(ReassignmentView(returning, ALL, {P[0]: (0, 1)}), rolling_back="Cancelled")
    assert (third.submit, third.stop, third.ended) == ({}, (), None)
    assert (
        decide(ReassignmentView(BEFORE, ALL, None), rolling_back="Cancelled").ended == "Cancelled"
    )


def test_dead_destination_is_given_time_and_then_everything_goes_back() -> None:
    half = {**BEFORE, P[0]: moving((0, 1), (3, 1)), P[2]: DONE[P[2]]}
    alive = frozenset({0, 1, 2})
    view = ReassignmentView(half, alive, {P[0]: (3, 1)})
    assert decide(view).missing == {3}
    since = NOW - DEAD_AFTER + timedelta(seconds=1)
    assert decide(view, missing_since=since).rolling_back is None
    since = NOW - DEAD_AFTER
    decision = decide(view, missing_since=since)
    assert (decision.rolling_back, decision.stop) == ("DestinationDead", (P[0],))
    # The destination is back: what was decided stays decided.
    rest = {**BEFORE, P[2]: DONE[P[2]]}
    again = decide(ReassignmentView(rest, ALL, None), rolling_back="DestinationDead")
    assert again.submit == {P[2]: (1, 2)}
    assert (
        decide(ReassignmentView(BEFORE, ALL, None), rolling_back="DestinationDead").ended
        == "RolledBack"
    )


def test_lost_leaders_stop_the_next_batch_and_if_they_stay_away_everything_goes_back() -> None:
    dark = replace(DONE[P[0]], leader=-1, in_sync=frozenset({3}))
    half = {**BEFORE, P[0]: dark, P[1]: moving((0, 2), (3, 2))}
    waits = decide(ReassignmentView(half, ALL, None))
    assert (set(waits.offline), waits.rolling_back) == ({P[0]}, None)
    stopped = {**BEFORE, P[0]: dark, P[2]: DONE[P[2]]}
    assert decide(ReassignmentView(stopped, ALL, None)).submit == {}
    since = NOW - DEAD_AFTER
    assert (
        decide(ReassignmentView(half, ALL, None), offline_since=since + timedelta(seconds=1)).stop
        == ()
    )
    back = decide(ReassignmentView(half, ALL, None), offline_since=since)
    assert (back.rolling_back, back.stop) == ("PartitionsOffline", (P[1],))
    # Nobody can copy what has no leader; the others go back.
    rest = decide(
        ReassignmentView(stopped, ALL, None), rolling_back="PartitionsOffline", offline_since=since
    )
    assert rest.submit == {P[2]: (1, 2)}
    last = {**BEFORE, P[0]: dark}
    ended = decide(
        ReassignmentView(last, ALL, None), rolling_back="PartitionsOffline", offline_since=since
    )
    assert (ended.ended, ended.failures) == (
        "RolledBack",
        ("t-0 has no leader and is not moved",),
    )
    # One that may still get its leader back is waited for.
    patient = decide(ReassignmentView(last, ALL, None), rolling_back="Cancelled")
    assert (patient.ended, patient.submit) == (None, {})


def test_partition_that_never_had_a_leader_takes_nothing_back() -> None:
    dark = {**BEFORE, P[0]: replace(BEFORE[P[0]], leader=-1)}
    plan = replace(PLAN, leaderless=frozenset({P[0]}))
    decision = decide_moves(
        plan,
        ReassignmentView(dark, ALL, None),
        cancel=False,
        deleting=False,
        rolling_back=None,
        missing_since=None,
        offline_since=NOW - DEAD_AFTER,
        at_once=9,
        now=NOW,
    )
    assert (decision.rolling_back, set(decision.submit)) == (None, set(P))


def test_nothing_is_submitted_to_a_destination_that_is_away() -> None:
    decision = decide(ReassignmentView(BEFORE, frozenset({0, 1, 2}), None))
    assert (dict(decision.submit), set(decision.missing)) == ({P[2]: (2, 1)}, {3})
    waits = decide(ReassignmentView({**BEFORE, P[2]: DONE[P[2]]}, frozenset({0, 1, 2}), None))
    assert (waits.submit, waits.ended) == ({}, None)


def test_what_was_on_a_dead_broker_cannot_go_back_and_says_so() -> None:
    decision = decide(
        ReassignmentView(DONE, frozenset({1, 2, 3}), None), rolling_back="Cancelled", at_once=9
    )
    assert decision.submit == {P[2]: (1, 2)}
    assert decision.count(MoveState.FAILED) == 2
    assert "t-0 cannot go back to brokers [0]" in decision.failures
    left = {**DONE, P[2]: BEFORE[P[2]]}
    ended = decide(ReassignmentView(left, frozenset({1, 2, 3}), None), rolling_back="Cancelled")
    assert ended.ended == "Failed"
    stalled = reassignment_status.conditions(
        "Failed", "Failed", reassignment_status.summary(ended), reassignment_status.Flags()
    )[2]
    assert (stalled.type, stalled.status) == ("Stalled", True)
    assert "t-0 cannot go back" in stalled.message


def test_deletion_stops_what_moves_and_leaves_what_is_done() -> None:
    half = {**DONE, P[1]: moving((0, 2), (3, 2))}
    first = decide(ReassignmentView(half, ALL, {P[1]: (3, 2)}), deleting=True)
    assert first.stop == (P[1],)
    after = {**DONE, P[1]: BEFORE[P[1]]}
    last = decide(ReassignmentView(after, ALL, None), deleting=True, rolling_back="Cancelled")
    assert (last.submit, last.ended) == ({}, "Cancelled")


def test_preferred_leaders_are_elected_in_batches_where_they_are_in_sync() -> None:
    led = {
        P[0]: PartitionView((0, 1), frozenset({0, 1}), 1),
        P[1]: PartitionView((0, 2), frozenset({2}), 2),
        P[2]: PartitionView((1, 2), frozenset({1, 2}), 2),
    }
    plan = replace(PLAN, targets=PLAN.originals)
    first = decide_preferred(plan, ReassignmentView(led, ALL, None), cancel=False, at_once=1)
    assert list(first.submit) == [P[0]]
    asked = ReassignmentView(led, ALL, {P[0]: ()})
    assert decide_preferred(plan, asked, cancel=False, at_once=1).submit == {}
    theirs = ReassignmentView(led, ALL, {TopicPartition("u", 0): ()})
    assert decide_preferred(plan, theirs, cancel=False, at_once=1).foreign
    led = {**led, P[0]: replace(led[P[0]], leader=0), P[2]: replace(led[P[2]], leader=1)}
    ended = decide_preferred(plan, ReassignmentView(led, ALL, None), cancel=False, at_once=1)
    assert (ended.ended, ended.count(MoveState.FAILED)) == ("Failed", 1)
    stopped = decide_preferred(plan, ReassignmentView(led, ALL, None), cancel=True, at_once=1)
    assert stopped.ended == "Cancelled"


def test_a_request_to_elect_that_cannot_be_read_goes_and_one_to_move_does_not() -> None:
    paths = znodes.PREFERRED_ELECTION_PATH, znodes.REASSIGN_PARTITIONS_PATH
    zookeeper = cast("ZooKeeper", MemoryZooKeeper(dict.fromkeys(paths, b"torn")))
    requested = read_request(zookeeper, paths[0])
    assert requested == {}
    with pytest.raises(ZnodeError, match=paths[1]):
        read_request(zookeeper, paths[1])
    # It is waited for, as any request, until the controller has deleted it.
    led = {P[0]: PartitionView((0, 1), frozenset({0, 1}), 1)}
    plan = replace(PLAN, targets={P[0]: (0, 1)}, originals={P[0]: (0, 1)})
    waits = decide_preferred(plan, ReassignmentView(led, ALL, requested), cancel=False, at_once=1)
    assert (waits.submit, waits.ended, waits.foreign) == ({}, None, None)


def test_throttle_names_sources_and_copies_and_leaves_those_of_others() -> None:
    others = {throttle.LEADERS: "9:5", "retention.ms": "1"}
    on = throttle.topic_config(PLAN, "t", others, on=True, back=False)
    assert on[throttle.LEADERS] == "9:5,0:0,0:1,1:0,1:2,2:1,2:2"
    assert on[throttle.FOLLOWERS] == "0:3,1:3"
    assert throttle.topic_config(PLAN, "t", on, on=True, back=False) == on
    back = throttle.topic_config(PLAN, "t", on, on=True, back=True)
    assert back[throttle.FOLLOWERS] == "0:0,1:0"
    assert throttle.topic_config(PLAN, "t", back, on=False, back=True) == others
    everything = {throttle.LEADERS: "*"}
    assert throttle.topic_config(PLAN, "t", everything, on=False, back=False) == everything
    rated = throttle.broker_config({"log.retention.ms": "5"}, 1000, {})
    assert {rated[one] for one in throttle.RATES} == {"1000"}
    assert throttle.broker_config(rated, None, {}) == {"log.retention.ms": "5"}


def test_rates_of_others_are_back_after_the_throttle() -> None:
    have = {"log.retention.ms": "5", throttle.RATES[0]: "77"}
    before = throttle.rates(have)
    assert before == {throttle.RATES[0]: "77"}
    rated = throttle.broker_config(have, 1000, before)
    assert {rated[one] for one in throttle.RATES} == {"1000"}
    assert throttle.broker_config(rated, None, before) == have


def test_plan_is_kept_word_by_word_and_known_by_its_hash() -> None:
    meta = ResourceMeta("Reassignment", "n", "r", "0123456789", 1, NOW, None, False)
    kept = reassignment_status.plan_object(meta, PLAN)
    assert reassignment_status.read_plan(kept, PLAN.hash) == PLAN
    assert reassignment_status.read_plan(kept, "0" * 16) is None
    assert reassignment_status.read_plan(None, PLAN.hash) is None
    dark = replace(PLAN, leaderless=frozenset({P[1]}))
    assert (
        reassignment_status.read_plan(reassignment_status.plan_object(meta, dark), PLAN.hash)
        == dark
    )
    other = replace(PLAN, originals={**PLAN.originals, P[2]: (2, 1)})
    assert other.hash != PLAN.hash
    assert replace(PLAN, sizes={}).hash == PLAN.hash


def test_progress_is_told_in_bytes_and_with_a_time_of_arrival() -> None:
    half = decide(ReassignmentView({**BEFORE, P[0]: DONE[P[0]]}, ALL, None))
    assert PLAN.total_bytes == 150
    assert percent(half, 75, PLAN.total_bytes) == 50
    assert percent(half, None, 0) == 33
    assert percent(decide(ReassignmentView(DONE, ALL, None)), 1, 150) == 100
    started = NOW - timedelta(seconds=60)
    assert arrival(started, NOW, 50, 150) == NOW + timedelta(seconds=120)
    assert arrival(started, NOW, 0, 150) is None
