"""When the Spark driver of a ConsumerGroup is started, stopped and restarted.

Pure: the spec, the driver pod as it is, and what the status remembers give the next action. There
is one pod name per group, so there are never two drivers: a terminating pod keeps its name until
the node's kubelet, or the removal of the node, has confirmed that its containers are dead.

Restarts are counted separately, as in Apache Spark's operator: `application` if the job itself
failed, `infrastructure` if something removed the pod. Both count consecutive restarts: a driver
that ran for HEALTHY_AFTER resets them. The back-off before a restart doubles each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final

from odradek_operator.shared.pods import pending_reason
from odradek_operator.shared.spec import JobSpec, parse_time

HEALTHY_AFTER: Final = timedelta(minutes=5)
FIRST_WAIT_SECONDS: Final = 2.0
LONGEST_WAIT_SECONDS: Final = 300.0
# After so many consecutive failures a job is reported as failing; it is still restarted.
BROKEN_AFTER: Final = 5
SPEC_HASH: Final = "odradek.io/spec-hash"

# Pod reasons that Kubernetes sets when it ended the pod itself.
_INFRASTRUCTURE_REASONS: Final = frozenset(
    {
        "Evicted",
        "NodeLost",
        "NodeShutdown",
        "NodeAffinity",
        "Preempting",
        "Shutdown",
        "Terminated",
        "UnexpectedAdmissionError",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
    }
)
# 128 + SIGKILL and 128 + SIGTERM: sent from outside the container, or by the OOM killer.
_KILLED: Final = frozenset({137, 143})


class Action(Enum):
    """What to do with the driver pod now."""

    NONE = "none"
    CREATE = "create"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class RestartState:
    """What the status remembers of the job. `completed_hash` is of the spec that was completed."""

    phase: str = ""
    application: int = 0
    infrastructure: int = 0
    last_restart: datetime | None = None
    completed_hash: str | None = None

    @property
    def wait(self) -> timedelta:
        """The back-off after the last restart."""
        failures = self.application + self.infrastructure
        if failures == 0:
            return timedelta()
        seconds = min(FIRST_WAIT_SECONDS * 2 ** (min(failures, 10) - 1), LONGEST_WAIT_SECONDS)
        return timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class DriverDecision:
    """The action, what to remember, and why. `requeue_after` is in seconds."""

    action: Action
    memory: RestartState
    message: str = ""
    requeue_after: float = 10.0


def remember(status: Mapping[str, Any]) -> RestartState:
    """Read the restart state from a ConsumerGroup's status."""
    job = status.get("job", {})
    restarts = job.get("restarts", {})
    stamp = job.get("lastRestartTime")
    return RestartState(
        phase=job.get("phase", ""),
        application=restarts.get("application", 0),
        infrastructure=restarts.get("infrastructure", 0),
        last_restart=parse_time(stamp) if stamp else None,
        completed_hash=job.get("specHash"),
    )


def decide(
    job: JobSpec,
    pod: Mapping[str, Any] | None,
    wanted_hash: str,
    memory: RestartState,
    now: datetime,
) -> DriverDecision:
    """Return what to do with the driver pod, which was just read; None: there is none."""
    if pod is not None and "deletionTimestamp" in pod["metadata"]:
        left = _memory_of_ending(job, pod, wanted_hash, memory)
        return DriverDecision(Action.NONE, left, "the old driver pod is terminating", 2.0)
    if job.suspend:
        if pod is None:
            return DriverDecision(
                Action.NONE, RestartState("Suspended"), "spec.job.suspend is true", 60.0
            )
        return DriverDecision(Action.DELETE, RestartState("Suspending"), "stopping the driver", 2.0)
    if pod is None:
        return _decide_absent(memory, wanted_hash, now)
    if pod["metadata"].get("annotations", {}).get(SPEC_HASH) != wanted_hash:
        return DriverDecision(Action.DELETE, RestartState("Restarting"), "the job changed", 2.0)
    if _has_completed(job, pod, wanted_hash):
        done = RestartState("Completed", completed_hash=wanted_hash)
        return DriverDecision(Action.NONE, done, "all available records have been read", 60.0)
    match pod.get("status", {}).get("phase", "Pending"):
        case "Succeeded" | "Failed":
            return _decide_ended(pod, memory, now)
        case "Running":
            return _decide_running(pod, memory, now)
        case _:
            text = pending_reason(pod) or "the driver pod is starting"
            return DriverDecision(Action.NONE, _phase(memory, "Pending"), text, 3.0)


def _has_completed(job: JobSpec, pod: Mapping[str, Any], wanted_hash: str) -> bool:
    marked = pod["metadata"].get("annotations", {}).get(SPEC_HASH)
    succeeded = pod.get("status", {}).get("phase") == "Succeeded"
    return job.available_now and succeeded and marked == wanted_hash


def _memory_of_ending(
    job: JobSpec, pod: Mapping[str, Any], wanted_hash: str, memory: RestartState
) -> RestartState:
    """Return the state to keep: a completed job stays so even if its pod is already terminating."""
    if job.suspend:
        return _phase(memory, "Suspending")
    if _has_completed(job, pod, wanted_hash):
        return RestartState("Completed", completed_hash=wanted_hash)
    return memory if memory.phase == "Completed" else _phase(memory, "Restarting")


def _phase(memory: RestartState, phase: str) -> RestartState:
    return RestartState(phase, memory.application, memory.infrastructure, memory.last_restart)


def _decide_absent(memory: RestartState, wanted_hash: str, now: datetime) -> DriverDecision:
    if memory.phase in ("Running", "Starting", "Pending"):
        # The pod existed, and this operator did not delete it.
        lost = RestartState("Restarting", memory.application, memory.infrastructure + 1, now)
        return DriverDecision(Action.NONE, lost, "the driver pod is gone", 0.0)
    if memory.phase == "Completed" and memory.completed_hash == wanted_hash:
        return DriverDecision(Action.NONE, memory, "all available records have been read", 60.0)
    left = _seconds_left(memory, now)
    if left > 0:
        text = "the driver restarts after a back-off"
        return DriverDecision(Action.NONE, _phase(memory, "Restarting"), text, left)
    return DriverDecision(Action.CREATE, _phase(memory, "Pending"), "starting the driver", 2.0)


def _decide_ended(pod: Mapping[str, Any], memory: RestartState, now: datetime) -> DriverDecision:
    """Count the failure once, then keep the pod, and its log, until the restart is due."""
    outside, text = classify(pod)
    if memory.phase != "Restarting":
        since = _reset_if_healthy(pod, memory, _finished_at(pod) or now)
        counted = RestartState(
            phase="Restarting",
            application=since.application + (not outside),
            infrastructure=since.infrastructure + outside,
            last_restart=now,
        )
        return DriverDecision(Action.NONE, counted, text, 0.0)
    left = _seconds_left(memory, now)
    if left > 0:
        return DriverDecision(Action.NONE, memory, text, left)
    return DriverDecision(Action.DELETE, memory, text, 1.0)


def _seconds_left(memory: RestartState, now: datetime) -> float:
    if memory.last_restart is None:
        return 0.0
    return (memory.last_restart + memory.wait - now).total_seconds()


def _decide_running(pod: Mapping[str, Any], memory: RestartState, now: datetime) -> DriverDecision:
    ready = any(one.get("ready") for one in pod["status"].get("containerStatuses", ()))
    counted = _reset_if_healthy(pod, memory, now)
    phase = "Running" if ready else "Starting"
    text = "" if ready else "the driver is starting"
    return DriverDecision(Action.NONE, _phase(counted, phase), text, 10.0 if ready else 2.0)


def _reset_if_healthy(
    pod: Mapping[str, Any], memory: RestartState, until: datetime
) -> RestartState:
    started = pod.get("status", {}).get("startTime")
    if started is not None and until - parse_time(started) >= HEALTHY_AFTER:
        return RestartState(memory.phase, 0, 0, memory.last_restart)
    return memory


def _terminated(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in pod.get("status", {}).get("containerStatuses", ()):
        ended = container.get("state", {}).get("terminated")
        if ended:
            return dict(ended)
    return {}


def _finished_at(pod: Mapping[str, Any]) -> datetime | None:
    stamp = _terminated(pod).get("finishedAt")
    return parse_time(stamp) if stamp else None


def classify(pod: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether infrastructure ended this pod, and a description of its end."""
    status = pod.get("status", {})
    if status.get("reason") in _INFRASTRUCTURE_REASONS:
        return True, f"{status['reason']}: {status.get('message', '')}".strip(": ")
    ended = _terminated(pod)
    if not ended:
        return True, "the driver pod ended without a container status"
    code, reason = ended.get("exitCode", 0), ended.get("reason", "")
    text = f"the driver ended with exit code {code}"
    detail = ended.get("message", "").strip()
    if detail:
        text = f"{text}: {detail[-512:]}"
    if reason == "OOMKilled":
        return False, f"{text} (out of memory: raise spec.job.driver.memory)"
    return code in _KILLED, text


def status_fields(
    memory: RestartState, driver: str, report: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return status.job."""
    fields: dict[str, Any] = {
        "phase": memory.phase,
        "driverPod": driver,
        "executors": (report or {}).get("executors"),
        "lastBatchId": (report or {}).get("lastBatchId"),
        "restarts": {"application": memory.application, "infrastructure": memory.infrastructure},
        "lastRestartTime": _stamp(memory.last_restart),
        "specHash": memory.completed_hash,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _stamp(moment: datetime | None) -> str | None:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None
