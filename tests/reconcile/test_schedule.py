"""When the runs of a scheduled job start, as pure decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_operator.group import driver as drivers
from odradek_operator.group import schedule
from odradek_operator.group.driver import Action, DriverDecision
from odradek_operator.shared import cron, spec
from tests.reconcile.test_driver_planning import ended, stamp, task

MADE = datetime(2026, 11, 21, 12, 1, 30, tzinfo=UTC)
QUARTERS = "*/15 * * * *"


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-21T{text}:00Z")


@dataclass
class World:
    """A job, its pod and its status; `look` does what the operator would do, until it rests."""

    cron: str = QUARTERS
    suspend: bool = False
    marked: str = "h"
    status: dict[str, Any] = field(default_factory=dict)
    pod: dict[str, Any] | None = None
    # When each driver was started.
    started: list[datetime] = field(default_factory=list)

    def look(self, now: datetime) -> DriverDecision:
        for _ in range(9):
            job = task(trigger="availableNow", schedule=self.cron, suspend=self.suspend)
            created = None if self.status else MADE
            memory = drivers.remember({"job": self.status})
            decision = schedule.decide(job, self.pod, self.marked, memory, created, now)
            self.status = drivers.status_fields(decision.memory, "g-driver", None)
            match decision.action:
                case Action.CREATE:
                    assert self.pod is None
                    self.started.append(now)
                    mark = {drivers.SPEC_HASH: self.marked}
                    meta = {"creationTimestamp": stamp(now), "annotations": mark}
                    self.pod = {"metadata": meta}
                    self.becomes("Running", now)
                case Action.DELETE:
                    self.pod = None
                case Action.NONE if decision.requeue_after > 0:
                    return decision
        pytest.fail(f"it does not rest: {self.status}")

    def becomes(self, phase: str, now: datetime, **status: Any) -> None:
        assert self.pod is not None
        ready = {"containerStatuses": [{"ready": True, "state": {}}]} if phase == "Running" else {}
        self.pod["status"] = {"phase": phase, "startTime": stamp(now), **ready, **status}

    def next(self) -> str:
        return str(self.status["nextScheduleTime"])[11:16]

    def last(self) -> str:
        return str(self.status["lastScheduleTime"])[11:16]


def test_new_job_waits_for_its_first_due_time_and_runs_at_each() -> None:
    world = World()
    rest = world.look(MADE)
    assert (world.started, world.next(), rest.memory.phase) == ([], "12:15", "Scheduled")
    # The work queue wakes it when it is due.
    assert MADE + timedelta(seconds=rest.requeue_after) < at("12:15")
    close = world.look(at("12:10"))
    assert close.requeue_after == 300
    for due in ("12:15", "12:30"):
        world.look(at(due))
        assert world.started[-1] == at(due)
        assert world.last() == due
        world.becomes("Succeeded", at(due))
        rest = world.look(at(due) + timedelta(minutes=1))
        assert rest.memory.phase == "Completed"
    assert (len(world.started), world.next()) == (2, "12:45")
    assert rest.message == "the next run is due at 2026-11-21T12:45:00Z"


def test_run_that_goes_on_lets_due_times_pass() -> None:
    world = World()
    world.look(MADE)
    world.look(at("12:15"))
    for now in ("12:29", "12:30", "12:46"):
        world.look(at(now))
    assert (world.started, world.last(), world.next()) == ([at("12:15")], "12:15", "13:00")
    world.becomes("Succeeded", at("12:46"))
    world.look(at("12:47"))
    assert len(world.started) == 1
    world.look(at("13:00"))
    assert world.started == [at("12:15"), at("13:00")]


def test_missed_due_times_are_made_up_once() -> None:
    world = World()
    world.look(MADE)
    world.look(at("13:50"))
    assert (world.started, world.last(), world.next()) == ([at("13:50")], "13:45", "14:00")
    # So is one that was missed after the end of a run that nobody saw.
    world.becomes("Succeeded", at("13:51"))
    world.look(at("14:20"))
    assert (world.started[1:], world.last(), world.next()) == ([at("14:20")], "14:15", "14:30")
    # Nobody was there from the creation on.
    world = World()
    world.look(at("12:20"))
    assert (world.started, world.last()) == ([at("12:20")], "12:15")


def test_changed_schedule_counts_at_once_and_starts_nothing_itself() -> None:
    world = World("0 * * * *")
    world.look(MADE)
    world.look(at("13:00"))
    world.cron = "10 * * * *"
    world.look(at("13:05"))
    assert (world.pod is not None, world.next()) == (True, "13:10")
    world.becomes("Succeeded", at("13:06"))
    # 13:10 is due under the new schedule, and 13:30 would have been under no former one.
    world.cron = "30 * * * *"
    world.look(at("13:40"))
    assert (len(world.started), world.next()) == (1, "14:30")
    world.cron = "*/20 * * * *"
    world.look(at("13:41"))
    assert (len(world.started), world.next()) == (1, "14:00")


def test_schedule_on_an_old_resource_waits_for_its_next_due_time() -> None:
    world = World(status={"phase": "Completed", "specHash": "h"})
    world.look(at("14:50"))
    assert (world.started, world.next()) == ([], "15:00")


def test_failed_run_is_retried_after_its_pause_and_the_next_due_time_waits_for_no_pause() -> None:
    world = World()
    world.look(MADE)
    world.look(at("12:15"))
    now = at("12:20")
    for failures in (1, 2, 3):
        world.becomes("Failed", now, containerStatuses=ended(1))
        waits = world.look(now)
        assert (waits.memory.phase, waits.memory.application) == ("Restarting", failures)
        assert (waits.requeue_after, len(world.started)) == (2.0**failures, failures)
        now += timedelta(seconds=waits.requeue_after)
        world.look(now)
    assert len(world.started) == 4
    just_before = at("12:30") - timedelta(seconds=1)
    world.becomes("Failed", just_before, containerStatuses=ended(1))
    assert world.look(just_before).requeue_after == 16
    anew = world.look(at("12:30"))
    assert (world.started[-1], world.last()) == (at("12:30"), "12:30")
    # It is still the fifth that fails in a row if it fails, too.
    assert anew.memory.application == 4
    world.becomes("Succeeded", at("12:31"))
    assert world.look(at("12:31")).memory.application == 0


def test_run_that_cannot_succeed_rests_until_the_job_changes() -> None:
    world = World()
    world.look(MADE)
    world.look(at("12:15"))
    world.becomes("Failed", at("12:16"), containerStatuses=ended(drivers.STALLED_CODE))
    for now in ("12:16", "12:31", "13:01"):
        assert world.look(at(now)).memory.phase == "Stalled"
    assert len(world.started) == 1
    world.marked = "mended"
    world.look(at("13:02"))
    assert world.started == [at("12:15"), at("13:02")]


def test_changed_job_replaces_a_run_and_does_not_wake_one_that_rests() -> None:
    world = World()
    world.look(MADE)
    world.look(at("12:15"))
    world.marked = "changed"
    world.look(at("12:16"))
    assert world.started == [at("12:15"), at("12:16")]
    world.becomes("Succeeded", at("12:17"))
    world.look(at("12:17"))
    world.marked = "again"
    world.look(at("12:18"))
    assert len(world.started) == 2
    world.pod = None
    world.look(at("12:19"))
    assert len(world.started) == 2
    world.look(at("12:30"))
    assert len(world.started) == 3


def test_suspended_job_starts_nothing_and_makes_up_what_it_missed() -> None:
    world = World()
    world.look(MADE)
    world.suspend = True
    for now in ("12:02", "12:20", "13:20"):
        assert world.look(at(now)).memory.phase == "Suspended"
    assert (world.started, world.next()) == ([], "12:15")
    world.suspend = False
    world.look(at("13:21"))
    assert (world.started, world.last()) == ([at("13:21")], "13:15")
    # Nothing was missed.
    world.becomes("Succeeded", at("13:22"))
    world.look(at("13:22"))
    world.suspend = True
    world.look(at("13:23"))
    world.suspend = False
    assert world.look(at("13:24")).memory.phase == "Scheduled"
    assert len(world.started) == 1


def test_run_that_was_stopped_half_way_goes_on_when_the_job_does() -> None:
    world = World()
    world.look(MADE)
    world.look(at("12:15"))
    world.suspend = True
    world.look(at("12:16"))
    assert world.pod is None
    world.suspend = False
    world.look(at("12:20"))
    assert (world.started, world.last()) == ([at("12:15"), at("12:20")], "12:15")
    assert world.look(at("12:21")).memory.phase == "Running"
    assert world.next() == "12:30"


def test_resumed_job_waits_for_its_terminating_pod_and_then_for_its_due_time() -> None:
    world = World()
    world.look(MADE)
    world.look(at("12:15"))
    world.becomes("Succeeded", at("12:16"))
    world.look(at("12:16"))
    assert world.pod is not None
    world.status["phase"] = "Suspending"
    world.pod["metadata"]["deletionTimestamp"] = stamp(at("12:17"))
    world.look(at("12:17"))
    world.pod = None
    assert world.look(at("12:18")).memory.phase == "Scheduled"
    assert len(world.started) == 1


def test_operator_that_died_after_a_start_finds_the_driver_of_the_run_and_no_other() -> None:
    world = World()
    world.look(MADE)
    world.look(at("12:15"))
    due = {**world.status, "phase": drivers.DUE}
    for phase, expected in (("Running", "Running"), ("Succeeded", "Completed")):
        world.status = dict(due)
        world.becomes(phase, at("12:15"))
        assert world.look(at("12:16")).memory.phase == expected
    assert len(world.started) == 1


def test_schedule_that_is_taken_away_leaves_a_job_that_runs_once() -> None:
    world = World()
    world.look(MADE)
    memory = drivers.remember({"job": world.status})
    once = task(trigger="availableNow")
    decision = schedule.decide(once, None, "h", memory, None, at("12:02"))
    assert decision.action is Action.CREATE
    assert decision.memory.times == drivers.RunTimes()


@given(
    steps=st.lists(
        st.tuples(
            st.integers(1, 1200), st.sampled_from(["", "Succeeded", "Failed", "gone", "suspend"])
        ),
        max_size=30,
    )
)
def test_runs_keep_their_order_whatever_happens(steps: list[tuple[int, str]]) -> None:
    world, now = World(), MADE
    world.look(now)
    for seconds, event in steps:
        now += timedelta(seconds=seconds)
        if world.pod is not None and event in ("Succeeded", "Failed"):
            code = ended(1) if event == "Failed" else ended(0)
            world.becomes(event, now, containerStatuses=code)
        elif event == "gone":
            world.pod = None
        world.suspend = event == "suspend"
        before = len(world.started)
        world.look(now)
        assert len(world.started) - before <= 1
    # The next due time starts a run, or finds one.
    world.suspend = False
    world.look(now + timedelta(minutes=16))
    if world.status["phase"] != "Running":
        world.look(now + timedelta(minutes=32))
    assert world.status["phase"] in ("Running", "Completed")


@pytest.mark.parametrize(
    ("text", "now", "expected"),
    [
        ("*/15 * * * *", "2026-11-21T12:15:00Z", "2026-11-21T12:30:00Z"),
        ("30 4 1,15 * 5", "2026-11-21T00:00:00Z", "2026-11-27T04:30:00Z"),
        ("0 0 29 2 *", "2026-11-21T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 9 * jan-mar MON", "2026-11-21T00:00:00Z", "2027-01-04T09:00:00Z"),
        ("@hourly", "2026-11-21T12:15:00.5Z", "2026-11-21T13:00:00Z"),
        ("0 0 * * 7", "2026-11-21T12:15:00+02:00", "2026-11-22T00:00:00Z"),
    ],
)
def test_due_times(text: str, now: str, expected: str) -> None:
    cron.check(text)
    found = cron.next_due(text, datetime.fromisoformat(now))
    assert found == datetime.fromisoformat(expected)
    assert cron.is_due(text, found)
    assert cron.last_due(text, found) == cron.last_due(text, found + timedelta(seconds=0.5))
    assert cron.last_due(text, found) == found


@pytest.mark.parametrize(
    "text",
    [
        "61 * * * *",
        "* * * *",
        "* * * * * *",
        "@often",
        "0 0 31 2 *",
        "0 0 */31 2 1#5",
        "a b c d e",
        "",
    ],
)
def test_what_is_no_schedule_is_named(text: str) -> None:
    with pytest.raises(spec.InvalidSpec, match=r"spec\.job\.schedule: ") as refused:
        task(trigger="availableNow", schedule=text)
    assert refused.value.reason == "InvalidJob"


@given(text=st.from_regex(r"[0-9LW*/,#\-]{1,9}( [0-9LWMON*/,#\-]{1,9}){4}", fullmatch=True))
def test_no_text_is_worse_than_refused(text: str) -> None:
    try:
        cron.check(text)
    except ValueError:
        return
    assert cron.next_due(text, MADE) > MADE
