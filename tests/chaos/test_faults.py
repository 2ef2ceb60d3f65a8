"""A plan of faults follows from its seed alone."""

from collections import Counter

from tests.chaos import faults
from tests.chaos.faults import SESSION_MS, Kind


def test_same_seed_gives_the_same_plan() -> None:
    assert faults.plan(7, 50) == faults.plan(7, 50)
    assert faults.plan(7, 50) != faults.plan(8, 50)


def test_quota_is_done_to_the_last_fault_in_rounds_of_every_kind() -> None:
    rounds = faults.rounds(1)
    assert Counter(fault.kind for some in rounds for fault in some) == Counter(faults.QUOTA)
    assert all({fault.kind for fault in some} == set(faults.QUOTA) for some in rounds)
    assert rounds == faults.rounds(1)


def test_plan_has_the_count_and_every_kind() -> None:
    plan = faults.plan(3, 40)
    assert len(plan) == 40
    assert {fault.kind for fault in plan} == set(faults.QUOTA)


def test_plan_keeps_to_the_kinds_that_were_asked_for() -> None:
    plan = faults.plan(3, 10, (Kind.KILL_ALL, Kind.PAUSE_LEADER))
    assert {fault.kind for fault in plan} == {Kind.KILL_ALL, Kind.PAUSE_LEADER}


def test_pauses_outlast_the_session() -> None:
    pauses = faults.plan(1, 50, (Kind.PAUSE_LEADER, Kind.PAUSE_CONTROLLER))
    assert all(fault.hold_seconds * 1000 > SESSION_MS for fault in pauses)
