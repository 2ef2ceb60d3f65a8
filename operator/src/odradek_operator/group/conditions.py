"""Conditions and verdict of a ConsumerGroup, observed or run as a Spark job. Pure.

The verdicts are Burrow's: STOP if nobody consumes although somebody should, WARN if a limit of the
spec is exceeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek_operator.group import driver as drivers
from odradek_operator.group.znodes import ObservedGroup
from odradek_operator.shared import status
from odradek_operator.shared.spec import GroupSpec
from odradek_operator.shared.status import Condition


def judge_verdict(
    spec: GroupSpec, lag: int | None, lag_seconds: int | None, phase: str
) -> str | None:
    """Return the verdict on a job in this phase, or None while the lag is not known.

    Only a driver that runs tells the lag, so that where none does records are taken to wait.
    """
    if phase not in _AS_WANTED and lag != 0:
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
_AS_WANTED = frozenset({"Running", "Completed", "Suspending", "Suspended"})


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


def judge_job(
    spec: GroupSpec,
    decision: drivers.DriverDecision,
    report: Mapping[str, Any] | None,
    driver: str,
) -> tuple[tuple[Condition, ...], dict[str, Any]]:
    """Return conditions and status of a group with a job, after its decision."""
    told = report or {}
    lag, lag_seconds = told.get("totalLag"), told.get("maxLagSeconds")
    phase = decision.memory.phase
    fields = {
        "state": told.get("state", phase),
        "members": told.get("members", 0),
        "totalLag": lag,
        "maxLagSeconds": lag_seconds,
        "verdict": judge_verdict(spec, lag, lag_seconds, phase),
        "job": drivers.status_fields(decision.memory, driver, report),
    }
    if phase == "Running" and told.get("state", phase) != phase:
        # The container is ready, but the query is not running yet, or no longer.
        return status.progressing(told["state"], f"the driver reports {told['state']}"), fields
    return _job_conditions(decision), fields


def _job_conditions(decision: drivers.DriverDecision) -> tuple[Condition, ...]:
    memory, message = decision.memory, decision.message
    match memory.phase:
        case "Running" | "Completed" | "Suspended":
            return status.ready(memory.phase, message)
        case _ if memory.application >= drivers.BROKEN_AFTER:
            text = f"failed {memory.application} times in a row; {message}"
            return status.stalled("JobFailing", text)
        case phase:
            return status.progressing(phase, message)
