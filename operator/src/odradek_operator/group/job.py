"""One group with a job: its driver is started, kept or stopped, and reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from odradek import stateful_query
from odradek_operator.group import conditions as group_conditions
from odradek_operator.group import driver as drivers
from odradek_operator.group import (
    driver_effects,
    driver_objects,
    job_user,
    observe,
    query_change,
    schedule,
)
from odradek_operator.group.conditions import JobView
from odradek_operator.group.driver import Action
from odradek_operator.group.driver_objects import Addresses
from odradek_operator.group.group_spec import GroupSpec
from odradek_operator.group.observe import OBSERVE_SECONDS, WAIT_SECONDS, GroupContext
from odradek_operator.group.report import fetch_report
from odradek_operator.shared import apply, pods, spec, status, status_update
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.client_users import ClientUserError
from odradek_operator.shared.job_spec import JobSpec
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.objects import EXECUTORS, GROUP_LABEL, Object, belongs_to, is_of_former
from odradek_operator.shared.pods import pending_reason
from odradek_operator.shared.spec import Body, ResourceMeta
from odradek_operator.shared.status import Condition
from odradek_operator.shared.views import Owner

_REMEMBERED: Final = ("job", *observe.REMEMBERED)


def remembered(body: Body) -> dict[str, Any]:
    """Return the fields of the status that must be kept in any case.

    What a driver told of its batches and executors is not among them: it may be true no more.
    """
    kept = status_update.remembered(body, _REMEMBERED)
    if kept["job"] is not None:
        name = driver_objects.driver_name(body["metadata"]["name"])
        kept["job"] = drivers.status_fields(drivers.remember(body["status"]), name, None)
    return kept


@dataclass(frozen=True, slots=True)
class JobRun:
    """A job that should run."""

    context: ReconcileContext
    meta: ResourceMeta
    wanted: GroupSpec
    task: JobSpec
    around: GroupContext

    @property
    def driver_name(self) -> str:
        """Name of the driver's pod."""
        return driver_objects.driver_name(self.meta.name)

    def driver(self) -> Object | None:
        """Return the pod with the driver's name, whoever owns it."""
        return self.context.kube.get("v1", "Pod", self.meta.namespace, self.driver_name)

    def job_file(self, task: JobSpec) -> str:
        """Return the job file for this task."""
        known = self.around.addresses or Addresses("", "")
        return driver_objects.job_file(self.meta, self.wanted, task, self.context.platform, known)

    def refuses_change(self, body: Body, pod: Object) -> bool:
        """Return whether the driver runs a query whose state the present one cannot read."""
        text = self.job_file(self.task)
        made = driver_objects.driver_pod(self.meta, self.task, self.context.platform, text)
        if driver_effects.hash_of(pod) == driver_effects.hash_of(made):
            return False
        memory = _with_state_of(
            pod, drivers.remember(body.get("status", {})), driver_effects.hash_of(made)
        )
        return bool(memory.keeps_state) and _refused_change(self, self.task, text) is not None

    def reconcile(
        self,
        body: Body,
        hold: tuple[Condition, ...] = (),
        instead: tuple[Condition, ...] = (),
    ) -> float:
        """Start, keep or stop the driver.

        `hold`: stop the driver and report these conditions meanwhile. `instead`: report these
        conditions although the job keeps running.
        """
        task = replace(self.task, suspend=True) if hold else self.task
        return _run(self, body, task, hold or instead)


def _run(run: JobRun, body: Body, task: JobSpec, told: tuple[Condition, ...]) -> float:
    context, meta, wanted = run.context, run.meta, run.wanted
    addresses, cluster = run.around.addresses, run.around.cluster
    driver, pod = run.driver_name, run.driver()
    text = run.job_file(task)
    made = driver_objects.driver_pod(meta, task, context.platform, text)
    memory = drivers.remember(body.get("status", {}))
    marked = made["metadata"]["annotations"][drivers.SPEC_HASH]
    if pod is not None and not belongs_to(meta.uid, pod):
        why = f"pod {driver} exists and does not belong to this job"
        taken = status.stalled("ResourceConflict", why)
        if is_of_former(meta, pod):
            why = f"{driver_effects.how_it_ends(meta)}: it is of a former one of this name"
            taken = status.progressing("Stopping", why)
        status_update.write_status(context, body, taken, remembered(body))
        return OBSERVE_SECONDS
    if not task.suspend and (pod is None or driver_effects.hash_of(pod) != marked):
        memory = _with_state_of(pod, memory, marked)
        change = _refused_change(run, task, text) if memory.keeps_state else None
        if change is not None:
            refused = status.stalled(stateful_query.REASON, change.message)
            former = replace(
                change.task,
                brokers_secret=task.brokers_secret,
                zookeeper_secret=task.zookeeper_secret,
                authority=task.authority,
            )
            return _run(replace(run, wanted=change.wanted), body, former, refused)
    if (
        addresses is None
        and (pod is None or driver_effects.hash_of(pod) != marked)
        and not task.suspend
    ):
        waiting: tuple[Condition, ...]
        waiting = status.progressing("WaitingForBrokers", "no broker is registered")
        if cluster.owner is not Owner.PRESENT:
            waiting = group_conditions.judge_absent(wanted, cluster.owner)
        elif not cluster.reachable:
            text = f"{cluster.away}; it has the brokers' addresses, and a driver that runs goes on"
            waiting = status.progressing("ZooKeeperUnreachable", text)
        status_update.write_status(context, body, waiting, _as_it_runs(run, body, task, pod))
        return WAIT_SECONDS
    decision = schedule.decide(task, pod, marked, memory, _first_look(body, meta), context.now())
    left = replace(decision.memory, keeps_state=memory.keeps_state)
    decision = replace(decision, memory=left)
    if pod is not None and decision.memory.phase == "Pending":
        decision = replace(decision, message=_why_pending(context, pod, decision.message))
    if cluster.paused and decision.action is not Action.NONE:
        waits = status.stalled("Paused", f"the KafkaCluster is paused; pending: {decision.message}")
        fields = _as_it_runs(run, body, task, pod)
        status_update.write_status(context, body, (*waits, status.paused(True)), fields)
        return OBSERVE_SECONDS
    try:
        if decision.action is Action.DELETE and pod is not None:
            held = driver_effects.why_held(context, meta, pod)
            if held is not None:
                waits = status.stalled("ClaimDeleted", f"{held}; pending: {decision.message}")
                fields = _as_it_runs(run, body, task, pod)
                status_update.write_status(context, body, waits, fields)
                return OBSERVE_SECONDS
        if decision.action is Action.CREATE and job_user.has_secret(task):
            job_user.ensure(context, meta, wanted, task, run.around, driver_objects.labels(meta))
        if not cluster.paused:
            starts = decision.action is Action.CREATE
            named = driver_objects.labels(meta)
            job_user.ensure_files(context, meta, task, run.around, named, starts=starts)
        grown = () if cluster.paused else driver_effects.grow_volume(context, body, meta, task)
        events = driver_effects.act(context, body, meta, task, decision, pod, made, text)
        if not cluster.paused and pod is not None and _waits_for_needs(decision):
            driver_effects.restore_needs(context, body, meta, task, pod)
        seen = _view_job(context, body, task, decision, pod)
        if not cluster.paused and pod is not None and _may_lack_rights(task, decision, seen):
            driver_effects.restore_account(context, body, meta, task, pod)
        if not cluster.paused and pod is not None and _shows_ui(task, decision):
            driver_effects.apply_ui(context, body, meta, pod)
    except ClientUserError as error:
        judge = status.progressing if error.waits else status.stalled
        told = judge(error.reason, str(error))
        status_update.write_status(context, body, told, remembered(body))
        return WAIT_SECONDS
    except KubeError as error:
        if not apply.is_refused(error):
            raise
        refused = status.stalled("DriverRejected", str(error))
        status_update.write_status(context, body, refused, _as_it_runs(run, body, task, pod))
        return OBSERVE_SECONDS
    if addresses is not None and not cluster.paused and _is_outdated(task, decision, seen):
        driver_effects.resize(context, body, driver_objects.config_map(meta, task, text))
    conditions, fields = group_conditions.judge_job(wanted, task, decision, seen, driver)
    conditions = told or conditions
    fields["lastReset"] = body.get("status", {}).get("lastReset")
    told = (*conditions, status.paused(cluster.paused), *grown)
    status_update.write_status(context, body, told, fields, events)
    settled = conditions[0].status or conditions[2].status
    return decision.requeue_after if settled else min(decision.requeue_after, WAIT_SECONDS)


def _as_it_runs(run: JobRun, body: Body, task: JobSpec, pod: Object | None) -> dict[str, Any]:
    """Return the fields of a status with which a job is left as it is.

    A driver that runs goes on, and tells its lag, whatever the spec has become meanwhile.
    """
    fields = remembered(body)
    if (
        pod is None
        or pod.get("status", {}).get("phase") != "Running"
        or "deletionTimestamp" in pod["metadata"]
    ):
        return fields
    memory, now = drivers.remember(body.get("status", {})), run.context.now()
    mark = driver_effects.hash_of(pod) or ""
    decision = drivers.decide(replace(task, suspend=False), pod, mark, memory, now)
    left = replace(decision.memory, times=memory.times, keeps_state=memory.keeps_state)
    decision = replace(decision, memory=left)
    seen = JobView(fetch_report(pod))
    _, told = group_conditions.judge_job(run.wanted, task, decision, seen, run.driver_name)
    return {**fields, **told}


def _why_pending(context: ReconcileContext, pod: Object, text: str) -> str:
    """Return what keeps a driver's pod from starting: a claim or a Secret that it lacks."""
    if unbound := apply.why_unbound(context, pod):
        return f"{text}; {unbound}"
    if "nodeName" not in pod["spec"] or pending_reason(pod):
        return text
    missing = _missing(context, pod)
    if not missing:
        return text
    return f"the driver waits for Secrets that do not exist: {', '.join(missing)}"


def _with_state_of(
    pod: Mapping[str, Any] | None, memory: drivers.RestartState, wanted_hash: str | None
) -> drivers.RestartState:
    """Return what is remembered, with what a running driver says of its state now.

    A stalled job has no query that could run on, and the state may be that of the one before it:
    the driver of the changed job finds out.
    """
    if memory.phase == "Stalled" and memory.settled_hash != wanted_hash:
        return replace(memory, keeps_state=None)
    report = None if pod is None else fetch_report(pod)
    return replace(memory, keeps_state=(report or {}).get("keepsState", memory.keeps_state))


def _refused_change(run: JobRun, task: JobSpec, text: str) -> query_change.Refusal | None:
    name = driver_objects.config_name(run.meta.name)
    found = run.context.kube.get("v1", "ConfigMap", run.meta.namespace, name)
    return query_change.judge(found, text, run.wanted, task)


def _first_look(body: Body, meta: ResourceMeta) -> datetime | None:
    """Return when a resource was created that nobody has looked at yet; None for any other."""
    is_new = body.get("status", {}).get("observedGeneration", -1) == -1
    return meta.created if is_new else None


def _view_job(
    context: ReconcileContext,
    body: Body,
    task: JobSpec,
    decision: drivers.DriverDecision,
    pod: Object | None,
) -> JobView:
    """Look at the driver, and at the executors that it lacks."""
    if pod is None:
        return JobView()
    report, obstacle = fetch_report(pod), None
    runs = decision.memory.phase == "Running" and report is not None
    if runs and group_conditions.lacks_executors(task, report or {}):
        obstacle = _obstacle(context, spec.parse_meta(body), pod)
    return JobView(report, obstacle, _waited(body, pod, context.now()))


def _obstacle(context: ReconcileContext, meta: ResourceMeta, driver: Object) -> str | None:
    """Return what keeps executors of a running driver from running."""
    # Of this job alone: where all lack executors, each would have those of all listed.
    selector = f"{EXECUTORS},{GROUP_LABEL}={meta.name}"
    found = context.kube.select("v1", "Pod", meta.namespace, selector)
    mine = [one for one in found if belongs_to(driver["metadata"]["uid"], one)]
    if text := next((text for one in mine if (text := pending_reason(one))), None):
        return text
    if text := driver_effects.why_keyless(context, meta, driver):
        return text
    placed = (one for one in mine if "nodeName" in one["spec"] and _is_pending(one))
    if missing := next((names for one in placed if (names := _missing(context, one))), None):
        return f"they wait for Secrets that do not exist: {', '.join(missing)}"
    return None


def _is_pending(pod: Object) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Pending")


def _missing(context: ReconcileContext, pod: Object) -> list[str]:
    """Return the Secrets that a pod mounts and that do not exist."""
    space = pod["metadata"]["namespace"]
    return [
        name
        for name in pods.mounted_secrets(pod)
        if context.kube.get("v1", "Secret", space, name) is None
    ]


def _is_outdated(task: JobSpec, decision: drivers.DriverDecision, seen: JobView) -> bool:
    """Return whether a running driver, which can, does not follow the number of executors yet."""
    followed = (seen.report or {}).get("executorsWanted")
    runs = decision.action is Action.NONE and decision.memory.phase == "Running"
    return runs and None not in (followed, task.instances) and followed != task.instances


def _waits_for_needs(decision: drivers.DriverDecision) -> bool:
    """Return whether a driver may wait for something without which its pod does not start."""
    return decision.action is Action.NONE and decision.memory.phase == "Pending"


def _may_lack_rights(task: JobSpec, decision: drivers.DriverDecision, seen: JobView) -> bool:
    """Return whether a running driver lacks executors, or has none, and no pod of them waits."""
    runs = decision.action is Action.NONE and decision.memory.phase == "Running"
    if not runs or seen.report is None or seen.obstacle is not None:
        return False
    return group_conditions.lacks_executors(task, seen.report) or not seen.report.get("executors")


def _shows_ui(task: JobSpec, decision: drivers.DriverDecision) -> bool:
    return task.ui and decision.action is Action.NONE and decision.memory.phase == "Running"


def _waited(body: Body, pod: Object, now: datetime) -> timedelta:
    """Return for how long this driver's job has not been ready."""
    ready = status.condition_of(body.get("status", {}), "Ready")
    if ready is None or ready["status"] != "False":
        return timedelta()
    since = (pod["metadata"].get("creationTimestamp"), ready["lastTransitionTime"])
    return now - max(spec.parse_time(stamp) for stamp in since if stamp is not None)
