"""Conditions turn when something turns, and a status is written when it says something new."""

from datetime import UTC, datetime, timedelta
from typing import Any

from odradek_operator.shared import apply, status, status_update
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.status import Condition
from tests.reconcile import in_memory
from tests.support.memory import MemoryKube, context

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def resource(generation: int = 1, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x", "generation": generation}, "status": fields}


def written(body: dict[str, Any], conditions: Any, now: datetime = NOW) -> dict[str, Any]:
    return status_update.build(body, conditions, {}, now)


def test_transition_time_moves_with_the_status_and_not_with_the_message() -> None:
    first = written(resource(), status.progressing("Starting", "1 of 3"))
    later = NOW + timedelta(minutes=1)
    second = written(resource(**first), status.progressing("Starting", "2 of 3"), later)
    assert status.condition_of(second, "Ready") == {
        **(status.condition_of(first, "Ready") or {}),
        "message": "2 of 3",
    }
    third = written(resource(**second), status.ready("Done"), later)
    assert (status.condition_of(third, "Ready") or {})["lastTransitionTime"].startswith(
        "2026-11-21T12:01"
    )


def test_the_same_finding_is_not_written_again() -> None:
    first = written(resource(), status.ready("Done"))
    again = written(resource(**first), status.ready("Done"), NOW + timedelta(hours=1))
    assert not status_update.needs_write(first, again)
    assert not status_update.needs_write({**first, "conditions": first["conditions"][::-1]}, again)
    assert status_update.needs_write(first, written(resource(2, **first), status.ready("Done")))


def test_a_new_resource_is_not_taken_for_reconciled() -> None:
    assert status_update.needs_write(
        {"observedGeneration": -1}, written(resource(), status.ready("Done"))
    )


def test_an_event_tells_each_turn_once_and_warns_only_of_what_stays() -> None:
    first = written(resource(), status.stalled("InvalidConfig", "why"))
    (event,) = status_update.transitions(resource(), first)
    assert (event.reason, event.message, event.warning) == ("InvalidConfig", "why", True)
    assert status_update.transitions(resource(**first), first) == ()
    second = written(resource(**first), status.progressing("Starting", "soon"))
    third = written(resource(**second), status.progressing("Waiting", "for others"))
    assert status_update.transitions(resource(), second) == ()
    assert status_update.transitions(resource(**second), third) == ()
    assert [one.warning for one in status_update.transitions(resource(**first), second)] == [False]


def test_the_event_of_a_creation_tells_the_first_ready_too() -> None:
    creating = written(resource(), status.progressing(status.CREATING, "made"))
    waiting = written(resource(**creating), status.progressing("WaitingForLeaders", "1 of 1"))
    done = written(resource(**creating), status.ready("Synced"))
    refused = written(resource(**creating), status.stalled("InvalidConfig", "why"))
    assert status_update.transitions(resource(**creating), done) == ()
    assert [one.reason for one in status_update.transitions(resource(**waiting), done)] == [
        "Synced"
    ]
    assert [one.warning for one in status_update.transitions(resource(**creating), refused)] == [
        True
    ]


def test_unknown_is_a_status_of_its_own() -> None:
    (condition,) = status_update.merge_conditions((), [Condition("Synced", None, "Paused")], 1, NOW)
    assert condition["status"] == "Unknown"


def test_terminal_errors_stall_and_passing_ones_do_not() -> None:
    kinds = {
        "stalled": status.stalled("A", ""),
        "progressing": status.progressing("A", ""),
        "ready": status.ready("A"),
    }
    shape = {name: [one.status for one in found] for name, found in kinds.items()}
    assert shape == {
        "stalled": [False, False, True],
        "progressing": [False, True, False],
        "ready": [True, False, False],
    }


class Conflicting(MemoryKube):
    """Others write at the same time, each time."""

    def apply_status(self, body: Any, status: Any) -> dict[str, Any]:
        raise KubeError(409, "the object has been modified")


def test_resource_whose_status_lost_a_race_is_forgotten_only_if_it_has_gone() -> None:
    body = in_memory.resource("Topic", "t")
    another = {**body, "metadata": {**body["metadata"], "uid": "another"}}
    for found, gone in (((body,), False), ((another,), True), ((), True)):
        forgotten: list[Any] = []
        known: list[Any] = []
        effects = context(Conflicting(*found), forget=forgotten.append, remember=known.append)
        same = status_update.write_status(effects, body, status.ready("Done"), {})
        assert same is body
        assert forgotten == ([body] if gone else [])
        # One that was made anew is news when the watch tells of it, to the queue of its cluster.
        assert known == []


def test_resource_that_goes_before_it_has_its_finalizer_is_known_to_go() -> None:
    body = in_memory.resource("User", "u")
    going = in_memory.resource("User", "u", deleted=True)
    known: list[Any] = []
    effects = context(MemoryKube(going), remember=known.append)
    apply.set_finalizer(effects, body, True)
    assert known == [going]
