"""When the runs of a job with `spec.job.schedule` start. Pure.

As with a CronJob of Kubernetes (`concurrencyPolicy: Forbid`): a run that still goes on lets a due
time pass, of several due times that were missed one run is made up, and a new job waits for its
first due time. `nextScheduleTime` in the status is what was promised last, so a restarted operator
knows what it missed, and a changed schedule starts nothing by itself.

A run is Due before anything is done for it. What comes then is as for any driver
(`group.driver`), until the run is Completed. If it is stopped before (suspended, or for a reset of
offsets), its due time becomes the next one again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from odradek_operator.group import driver as drivers
from odradek_operator.group.driver import DUE, Action, DriverDecision, RestartState, RunTimes
from odradek_operator.shared import cron
from odradek_operator.shared.job_spec import JobSpec
from odradek_operator.shared.spec import parse_time

# A clock that somebody sets is noticed within this time.
LONGEST_REST_SECONDS: Final = 600.0
# Phases without a run that was started and is not complete.
_RESTING: Final = frozenset({"", "Scheduled", "Completed", "Suspending", "Suspended"})


def decide(
    job: JobSpec,
    pod: Mapping[str, Any] | None,
    wanted_hash: str,
    memory: RestartState,
    created: datetime | None,
    now: datetime,
) -> DriverDecision:
    """Return what to do with the driver pod (`group.driver.decide`) of any job.

    `created` is when the ConsumerGroup was created, if nobody has looked at it before.
    """
    if job.schedule is None:
        memory = replace(memory, times=RunTimes())
        return drivers.decide(job, pod, wanted_hash, memory, now)
    times = _current(job.schedule, memory.times, created or now, now)
    if job.suspend:
        if memory.phase not in _RESTING and times.last is not None:
            times = replace(times, next=times.last)
        decision = drivers.decide(job, pod, wanted_hash, memory, now)
    else:
        decision, times = _decide(job.schedule, job, pod, wanted_hash, memory, times, now)
    return replace(decision, memory=replace(decision.memory, times=times))


def _current(schedule: str, times: RunTimes, since: datetime, now: datetime) -> RunTimes:
    """Return the times with the next due time after `since`, or with one that was not kept yet."""
    if times.next is not None:
        if times.next <= now and cron.is_due(schedule, times.next):
            return times
        since = now
    return replace(times, next=cron.next_due(schedule, since))


def _decide(
    schedule: str,
    job: JobSpec,
    pod: Mapping[str, Any] | None,
    wanted_hash: str,
    memory: RestartState,
    times: RunTimes,
    now: datetime,
) -> tuple[DriverDecision, RunTimes]:
    if memory.phase == DUE and (begun := _begin(pod, memory, times)) is not None:
        return begun, times
    if memory.phase in _RESTING and _is_going(pod):
        return DriverDecision(Action.NONE, memory, "the old driver pod is terminating", 2.0), times
    assert times.next is not None
    is_due, ended = times.next <= now, pod is None or _has_ended(pod)
    rests = memory.phase in _RESTING and (pod is None or (ended and memory.phase == "Completed"))
    if is_due and (rests or (ended and memory.phase == "Restarting")):
        last = cron.last_due(schedule, now)
        taken = RunTimes(last, cron.next_due(schedule, now))
        # Failures stay counted until a run completes.
        due = replace(memory, phase=DUE, settled_hash=None)
        return DriverDecision(Action.NONE, due, f"the run of {_shown(last)} is due", 0.0), taken
    if rests:
        return _rest(memory, times.next, now), times
    if is_due and not ended and not _is_going(pod):
        # The run that is not complete yet is the only one.
        times = replace(times, next=cron.next_due(schedule, now))
    decision = drivers.decide(job, pod, wanted_hash, memory, now)
    if decision.memory.phase == "Completed" and times.next is not None:
        decision = _rest(decision.memory, times.next, now)
    return decision, times


def _rest(memory: RestartState, due: datetime, now: datetime) -> DriverDecision:
    kept = memory if memory.phase == "Completed" else RestartState("Scheduled")
    left = min(max(0.0, (due - now).total_seconds()), LONGEST_REST_SECONDS)
    return DriverDecision(Action.NONE, kept, f"the next run is due at {_shown(due)}", left)


def _begin(
    pod: Mapping[str, Any] | None, memory: RestartState, times: RunTimes
) -> DriverDecision | None:
    """Return the next step towards the driver of a due run; None if its driver is there."""
    if pod is None:
        starting = replace(memory, phase="Pending")
        return DriverDecision(Action.CREATE, starting, "starting the driver", 2.0)
    if _is_going(pod):
        return DriverDecision(Action.NONE, memory, "the old driver pod is terminating", 2.0)
    made = parse_time(pod["metadata"]["creationTimestamp"])
    if _has_ended(pod) and times.last is not None and made < times.last:
        return DriverDecision(Action.DELETE, memory, "a run is due", 2.0)
    return None


def _is_going(pod: Mapping[str, Any] | None) -> bool:
    return pod is not None and "deletionTimestamp" in pod["metadata"]


def _has_ended(pod: Mapping[str, Any]) -> bool:
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return ended and not _is_going(pod)


def _shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
