"""Conditions and verdict of a ConsumerGroup, observed or run as a Spark job. Pure.

A job is ready while the executors that it asks for run and its batches complete. The verdicts are
Burrow's: STOP if nobody consumes although somebody should, STALL if batches do not complete, WARN
if a limit of the spec is exceeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from odradek_operator.group import driver as drivers
from odradek_operator.group.driver_objects import METRICS_PORT
from odradek_operator.group.group_spec import GroupSpec
from odradek_operator.group.znodes import ObservedGroup
from odradek_operator.shared import status
from odradek_operator.shared.job_spec import JobSpec
from odradek_operator.shared.status import Condition
from odradek_operator.shared.views import Owner


def judge_verdict(
    spec: GroupSpec, lag: int | None, lag_seconds: int | None, phase: str
) -> str | None:
    """Return the verdict on a job in this phase, or None while the lag is not known.

    A job that does not run is never OK: that nothing is behind now says nothing of the next record.
    """
    if phase not in _AS_WANTED:
        return "STOP"
    if lag is None:
        return None
    over_lag = spec.max_lag is not None and lag > spec.max_lag
    over_time = (
        spec.max_lag_seconds is not None
        and lag_seconds is not None
        and lag_seconds > spec.max_lag_seconds
    )
    return "WARN" if over_lag or over_time else "OK"


# Phases in which a driver consumes, or none has to.
_AS_WANTED = frozenset({"Running", "Completed", "Scheduled", "Suspending", "Suspended"})


def state_of(view: ObservedGroup) -> str:
    """Return the state of a group without a job."""
    if not view.exists:
        return "Absent"
    return "Stable" if view.members else "Empty"


def judge_observed(view: ObservedGroup) -> tuple[Condition, ...]:
    """Return the conditions of a group without a job."""
    match state_of(view):
        case "Absent":
            text = "the group has neither members nor offsets"
        case "Stable":
            text = f"{view.members} members"
        case _:
            text = f"no members; committed offsets for {len(view.committed)} partitions"
    return status.ready("Observed", text)


def judge_absent(spec: GroupSpec, owner: Owner) -> tuple[Condition, ...]:
    """Return the conditions of a group that has to do without its cluster."""
    text = f"KafkaCluster {spec.cluster} is {owner.value}"
    if owner in (Owner.NOT_PERMITTED, Owner.UNWATCHED):
        return status.stalled(owner.reason, text)
    return status.progressing(owner.reason, text)


@dataclass(frozen=True, slots=True)
class JobView:
    """What is seen of a job. `report` None: no driver answers.

    `obstacle` is why an executor does not run. The job has not been ready for `waited`.
    """

    report: Mapping[str, Any] | None = None
    obstacle: str | None = None
    waited: timedelta = timedelta()


def judge_job(
    spec: GroupSpec, task: JobSpec, decision: drivers.DriverDecision, seen: JobView, driver: str
) -> tuple[tuple[Condition, ...], dict[str, Any]]:
    """Return conditions and status of a group with a job, after its decision."""
    told = seen.report or {}
    lag, lag_seconds = told.get("totalLag"), told.get("maxLagSeconds")
    memory = decision.memory
    starts = _starts_in_time(task, memory, seen)
    fields = {
        "state": told.get("state", memory.phase),
        "members": None if _may_have_members(memory, seen) else told.get("members", 0),
        "totalLag": lag,
        "maxLagSeconds": lag_seconds,
        "verdict": judge_verdict(spec, lag, lag_seconds, "Running" if starts else memory.phase),
        "worstPartitions": told.get("worstPartitions"),
        "job": drivers.status_fields(memory, driver, seen.report),
    }
    problem = _problem(task, seen) if memory.phase == "Running" else None
    if problem is None:
        return _job_conditions(task, decision, seen.waited), fields
    reason, text = problem
    fields["state"] = reason
    if reason in _STARTING:
        fields["job"]["phase"] = "Starting"
    match reason:
        case "BatchOverdue":
            fields["verdict"] = "STALL"
            return status.stalled(reason, text), fields
        case "DriverUnreachable":
            fields["verdict"] = None
        case _ if not told.get("executors") and not starts:
            # No batch can run.
            fields["verdict"] = "STOP"
    failing = _failing(memory, text) if reason in _STARTING else ()
    return failing or _waiting(task, reason, text, seen.waited), fields


def _may_have_members(memory: drivers.RestartState, seen: JobView) -> bool:
    """Return whether a driver runs that does not say how many members the group has."""
    return seen.report is None and memory.phase in ("Running", "Suspending")


def _starts_in_time(task: JobSpec, memory: drivers.RestartState, seen: JobView) -> bool:
    """Return whether a scheduled run is starting as each one does, which is no reason to stop."""
    has_begun = memory.phase not in _RUN_STARTS or "lastBatchId" in (seen.report or {})
    failures = memory.application + memory.infrastructure
    in_time = seen.waited < timedelta(seconds=task.start_seconds)
    return task.schedule is not None and not has_begun and not failures and in_time


_RUN_STARTS: Final = frozenset({drivers.DUE, "Pending", "Starting", "Running"})


def lacks_executors(task: JobSpec, report: Mapping[str, Any]) -> bool:
    """Return whether fewer executors run than the job asks for."""
    return bool(report.get("executors", 0) < task.executors)


def _problem(task: JobSpec, seen: JobView) -> tuple[str, str] | None:
    """Return why a job whose driver is ready is not; None if executors run and batches complete."""
    told = seen.report
    if told is None:
        return "DriverUnreachable", f"the driver does not answer at port {METRICS_PORT}"
    state = told.get("state", "Starting")
    if lacks_executors(task, told) and (state == "Running" or seen.obstacle is not None):
        text = f"{told.get('executors', 0)} of {task.executors} executors run"
        return "ExecutorsPending", f"{text}: {seen.obstacle}" if seen.obstacle else text
    if state != "Running":
        # The query is not running yet, or no longer.
        text = f"the driver reports {state}"
        return state, f"{text}: {told['waitsFor']}" if "waitsFor" in told else text
    running = told.get("batchRunningSeconds")
    if running is not None and running >= task.batch_seconds:
        limit = f"{task.batch_seconds} s (spec.job.timeouts.batchSeconds)"
        return "BatchOverdue", f"the present batch has been running for more than {limit}"
    if running is not None and "lastBatchId" not in told:
        return _FIRST_BATCH
    return None


_FIRST_BATCH: Final = ("Starting", "the first batch is running")
# What should be over soon after the start.
_STARTING: Final = frozenset({"Pending", "Starting", "ExecutorsPending", "DriverUnreachable"})


def _waiting(
    task: JobSpec, reason: str, text: str, waited: timedelta
) -> tuple[Condition, Condition, Condition]:
    """Return the conditions of a job that should run soon, or should have done so."""
    overdue = waited >= timedelta(seconds=task.start_seconds)
    if reason not in _STARTING or (reason, text) == _FIRST_BATCH or not overdue:
        return status.progressing(reason, text)
    limit = f"not ready after {task.start_seconds} s (spec.job.timeouts.startSeconds)"
    return status.stalled(reason, f"{text}; {limit}")


def _guarantee(task: JobSpec) -> str:
    """Return what a reader of the sink must know (docs/jobs.md, "What each sink guarantees")."""
    text = "; a batch that runs again is in the topic of the sink again (at least once)"
    return text if "topic" in task.raw["sink"] else ""


def _job_conditions(
    task: JobSpec, decision: drivers.DriverDecision, waited: timedelta
) -> tuple[Condition, ...]:
    memory, message = decision.memory, decision.message
    match memory.phase:
        case "Completed" if task.schedule is not None:
            return status.ready("Scheduled", f"{message}{_guarantee(task)}")
        case "Running" | "Completed" | "Scheduled" | "Suspended":
            return status.ready(memory.phase, f"{message}{_guarantee(task)}")
        case "Stalled":
            return status.stalled(*drivers.stalled_reason(message))
        case phase:
            return _failing(memory, message) or _waiting(task, phase, message, waited)


def _failing(memory: drivers.RestartState, message: str) -> tuple[Condition, ...]:
    """Return the conditions of a job that fails again and again and has not run since; or none."""
    if memory.application < drivers.BROKEN_AFTER:
        return ()
    # The next driver says nothing yet of why the last one failed.
    texts = (f"failed {memory.application} times in a row", memory.message, message)
    told = "; ".join(text for text in dict.fromkeys(texts) if text)
    return status.stalled("JobFailing", told)
