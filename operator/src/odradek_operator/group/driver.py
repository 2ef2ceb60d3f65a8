"""When the Spark driver of a ConsumerGroup is started, stopped and restarted.

Pure: the spec, the driver pod as it is, and what the status remembers give the next action. There
is one pod name per group, so there are never two drivers: a terminating pod keeps its name until
the node's kubelet, or the removal of the node, has confirmed that its containers are dead.

Restarts are counted separately, as in Apache Spark's operator: `application` if the job itself
failed, `infrastructure` if something removed the pod. Both count consecutive restarts: a driver
that ran for HEALTHY_AFTER resets them. The back-off before a restart doubles each time.

A driver that ends with STALLED_CODE says that the job cannot run as it is written. Then the job is
Stalled: nothing is started until the job changes, is suspended, or its offsets are reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final

from odradek import stateful_query
from odradek_operator.group.group_spec import INVALID_JOB
from odradek_operator.shared.job_spec import JobSpec
from odradek_operator.shared.objects import EXECUTORS, GROUP_LABEL
from odradek_operator.shared.pods import pending_reason
from odradek_operator.shared.spec import parse_time

HEALTHY_AFTER: Final = timedelta(minutes=5)
FIRST_WAIT_SECONDS: Final = 2.0
LONGEST_WAIT_SECONDS: Final = 300.0
# After so many consecutive failures a job is reported as failing; it is still restarted.
BROKEN_AFTER: Final = 5
DRIVER_SUFFIX: Final = "-driver"
SPEC_HASH: Final = "odradek.io/spec-hash"
# A scheduled run that is to be started now (group.schedule).
DUE: Final = "Due"
# The exit code, and the first words of the line that the driver leaves (odradek_spark.__main__).
STALLED_CODE: Final = 2
_SPEAKER: Final = "odradek-spark: "
# Reasons that such a line may begin with; all others are told as INVALID_JOB.
STALLED_REASONS: Final = frozenset({"TopicRecreated", "DataTruncated", stateful_query.REASON})

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
class RunTimes:
    """Due times of a job with a schedule: of the last run that was started, and of the next one.

    `next` is in the past where that run could not be started yet.
    """

    last: datetime | None = None
    next: datetime | None = None


@dataclass(frozen=True, slots=True)
class RestartState:
    """What the status remembers of the job.

    `settled_hash` is of the job that was completed, or that is stalled for the reason in `message`,
    which of one with `application` failures is how the last of them ended.
    `keeps_state` is whether the checkpoint has state, as far as a driver has told.
    """

    phase: str = ""
    application: int = 0
    infrastructure: int = 0
    last_restart: datetime | None = None
    settled_hash: str | None = None
    message: str = ""
    times: RunTimes = RunTimes()
    keeps_state: bool | None = None

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
    return RestartState(
        phase=job.get("phase", ""),
        application=restarts.get("application", 0),
        infrastructure=restarts.get("infrastructure", 0),
        last_restart=_time(job.get("lastRestartTime")),
        settled_hash=job.get("specHash"),
        message=job.get("message", ""),
        times=RunTimes(_time(job.get("lastScheduleTime")), _time(job.get("nextScheduleTime"))),
        keeps_state=job.get("keepsState"),
    )


def suspended(status: Mapping[str, Any]) -> RestartState:
    """Return the state of a job without a driver, which starts again like a suspended one."""
    known = remember(status)
    return RestartState("Suspended", times=known.times, keeps_state=known.keeps_state)


def decide(
    job: JobSpec,
    pod: Mapping[str, Any] | None,
    wanted_hash: str,
    memory: RestartState,
    now: datetime,
) -> DriverDecision:
    """Return what to do with the driver pod, which was just read; None: there is none."""
    if pod is not None and "deletionTimestamp" in pod["metadata"]:
        left = _memory_of_ending(job, pod, wanted_hash, memory, now)
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
    if (settled := _settled(job, pod, wanted_hash)) is not None:
        return _rest(settled)
    match pod.get("status", {}).get("phase", "Pending"):
        case "Succeeded" | "Failed":
            return _decide_ended(pod, memory, now)
        case "Running":
            return _decide_running(pod, memory, now)
        case _:
            text = pending_reason(pod) or "the driver pod is starting"
            return DriverDecision(Action.NONE, _phase(memory, "Pending"), text, 3.0)


def _settled(job: JobSpec, pod: Mapping[str, Any], wanted_hash: str) -> RestartState | None:
    """Return the state that a driver's end leaves for good; None if it must be started again."""
    if pod["metadata"].get("annotations", {}).get(SPEC_HASH) != wanted_hash:
        return None
    if job.available_now and pod.get("status", {}).get("phase") == "Succeeded":
        return RestartState("Completed", settled_hash=wanted_hash)
    ended = _terminated(pod)
    if ended.get("exitCode") == STALLED_CODE:
        return RestartState("Stalled", settled_hash=wanted_hash, message=_last_line(ended))
    return None


def _last_line(ended: Mapping[str, Any]) -> str:
    """Return the line that the driver left; its log may stand before it."""
    lines = str(ended.get("message", "")).strip().splitlines() or ["the driver gave no reason"]
    own = [line.removeprefix(_SPEAKER) for line in lines if line.startswith(_SPEAKER)]
    return (own or lines)[-1].strip()[:1024]


def _rest(memory: RestartState) -> DriverDecision:
    text = memory.message or "all available records have been read"
    return DriverDecision(Action.NONE, memory, text, 60.0)


def stalled_reason(line: str) -> tuple[str, str]:
    """Return reason and text of a line `Reason: text` that a driver left."""
    reason, _, text = line.partition(": ")
    return (reason, text) if reason in STALLED_REASONS and text else (INVALID_JOB, line)


def _memory_of_ending(
    job: JobSpec, pod: Mapping[str, Any], wanted_hash: str, memory: RestartState, now: datetime
) -> RestartState:
    """Return the state to keep: a settled job stays so even if its pod is already terminating.

    A driver that somebody else ends is lost, whether its pod is still seen or not.
    """
    if job.suspend:
        return _phase(memory, "Suspending")
    if (settled := _settled(job, pod, wanted_hash)) is not None:
        return settled
    if memory.phase in _SETTLED:
        return memory
    is_wanted = pod["metadata"].get("annotations", {}).get(SPEC_HASH) == wanted_hash
    if is_wanted and memory.phase in _STARTED:
        return _lost(memory, now)
    return _phase(memory, "Restarting")


_STARTED: Final = frozenset({"Running", "Starting", "Pending"})
_SETTLED: Final = frozenset({"Completed", "Stalled"})


def _phase(memory: RestartState, phase: str) -> RestartState:
    return RestartState(
        phase,
        memory.application,
        memory.infrastructure,
        memory.last_restart,
        message=memory.message if memory.application else "",
    )


def _lost(memory: RestartState, now: datetime) -> RestartState:
    """Return the state after an end that nobody here asked for."""
    counted = replace(memory, infrastructure=memory.infrastructure + 1, last_restart=now)
    return _phase(counted, "Restarting")


def _decide_absent(memory: RestartState, wanted_hash: str, now: datetime) -> DriverDecision:
    if memory.phase in _STARTED:
        # The pod existed, and this operator did not delete it.
        return DriverDecision(Action.NONE, _lost(memory, now), "the driver pod is gone", 0.0)
    if memory.phase in _SETTLED and memory.settled_hash == wanted_hash:
        return _rest(memory)
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
            message=since.message if outside else text,
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


_CONTAINER: Final = "driver"


def _terminated(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return _state(pod, "terminated")


def _state(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    for container in pod.get("status", {}).get("containerStatuses", ()):
        if container.get("name", _CONTAINER) != _CONTAINER:
            continue  # somebody's sidecar
        found = container.get("state", {}).get(name)
        if found:
            return dict(found)
    return {}


def started_at(pod: Mapping[str, Any]) -> datetime | None:
    """Return when the container of a driver that runs was started."""
    return _time(_state(pod, "running").get("startedAt"))


def _finished_at(pod: Mapping[str, Any]) -> datetime | None:
    return _time(_terminated(pod).get("finishedAt"))


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
        "executors": 0 if memory.phase == "Stalled" else (report or {}).get("executors"),
        # The scale subresource has it, for autoscalers that look at pods.
        "selector": f"{EXECUTORS},{GROUP_LABEL}={driver.removesuffix(DRIVER_SUFFIX)}",
        "checkpointEpoch": (report or {}).get("checkpointEpoch"),
        "keepsState": (report or {}).get("keepsState", memory.keeps_state),
        "lastBatchId": (report or {}).get("lastBatchId"),
        "lastCommitTime": (report or {}).get("lastCommitTime"),
        "tableRows": (report or {}).get("tableRows"),
        "restarts": {"application": memory.application, "infrastructure": memory.infrastructure},
        "lastRestartTime": _stamp(memory.last_restart),
        "lastScheduleTime": _stamp(memory.times.last),
        "nextScheduleTime": _stamp(memory.times.next),
        "specHash": memory.settled_hash,
        "message": memory.message or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _time(stamp: str | None) -> datetime | None:
    return parse_time(stamp) if stamp else None


def _stamp(moment: datetime | None) -> str | None:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None
