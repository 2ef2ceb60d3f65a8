"""One ConsumerGroup: observed, or run as a Spark driver."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from odradek import stateful_query
from odradek.zk import consumers
from odradek_operator.group import conditions as group_conditions
from odradek_operator.group import (
    coordinator,
    driver_objects,
    job_account,
    job_user,
    query_change,
    reset,
    reset_step,
    schedule,
)
from odradek_operator.group import driver as drivers
from odradek_operator.group import observe as group_observe
from odradek_operator.group.conditions import JobView
from odradek_operator.group.coordinator import GroupBusyError
from odradek_operator.group.driver import Action
from odradek_operator.group.driver_objects import Addresses
from odradek_operator.group.observe import (
    OBSERVE_SECONDS,
    REMEMBERED,
    WAIT_SECONDS,
    GroupContext,
)
from odradek_operator.group.report import fetch_report
from odradek_operator.group.reset import Reset
from odradek_operator.group.reset_step import Outcome, ResetStep
from odradek_operator.shared import apply, metrics, spec, status, status_update
from odradek_operator.shared.apply import GROWN, ReconcileContext, namespace_terminating
from odradek_operator.shared.broker_client import BrokerError, OperatorClient
from odradek_operator.shared.client_users import ClientUserError
from odradek_operator.shared.job_spec import JobSpec
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.objects import EXECUTORS, Object
from odradek_operator.shared.pods import pending_reason
from odradek_operator.shared.spec import TERMINATING_TIMEOUT, Body, GroupSpec, ResourceMeta
from odradek_operator.shared.status import Condition, Event
from odradek_operator.shared.views import Owner
from odradek_operator.shared.zookeeper import RefusedError, UnreachableError

_REMEMBERED: Final = ("job", *REMEMBERED)

log = logging.getLogger(__name__)


def group_name(body: Body) -> str:
    """Return the group of a resource, whether its spec is valid or not."""
    return str(body["spec"].get("group", body["metadata"]["name"]))


def reconcile(
    context: ReconcileContext, body: Body, around: GroupContext, rival: str | None
) -> float:
    """Reconcile one group.

    `rival` names another resource of the same group: an older one, and for a resource that is being
    deleted any, since the offsets then are not this one's alone.
    """
    meta, cluster = spec.parse_meta(body), around.cluster
    is_allowed = cluster.owner is not Owner.NOT_PERMITTED
    if not is_allowed:
        # Who is not allowed is told nothing of the cluster, its groups included.
        rival = None
    try:
        wanted = spec.parse_group(spec.for_deletion(body) if meta.deleting else body)
        request = reset.parse(wanted.reset) if wanted.reset is not None else None
    except spec.InvalidSpec as error:
        if not meta.deleting:
            metrics.GROUP_LAGS.drop(meta.uid)
            if not is_allowed:
                # Its driver must not run on because of a mistake.
                return _refuse(context, around, body, meta)
            return status_update.refuse(context, body, error, _REMEMBERED)
        if meta.has_finalizer:
            text = f"offsets of group {group_name(body)} were not deleted: {error.message}"
            context.kube.post_event(body, Event("GroupAbandoned", text, warning=True))
            apply.set_finalizer(context, body, False)
        return OBSERVE_SECONDS
    if meta.deleting or rival is not None or wanted.job is not None or not is_allowed:
        # The group is being deleted, or another resource or a driver reports its lag.
        metrics.GROUP_LAGS.drop(meta.uid)
    if meta.deleting:
        return _delete(context, around, body, meta, wanted, rival)
    if not is_allowed:
        return _refuse(context, around, body, meta)
    if rival is not None:
        taken = status.stalled("ResourceConflict", f"{rival} is older and owns this group")
        return _stop(context, around, body, meta, taken)
    job = job_user.with_secret(meta, wanted.job, around)
    held = wanted.deletion_policy == "Delete" or job_user.needs_user(job, around)
    if not held and meta.has_finalizer and cluster.owner is not Owner.PRESENT:
        # Nobody can remove its user now.
        held = job_user.may_have_user(context, meta, around)
    if held != meta.has_finalizer:
        if not held and (waiting := _remove_user(context, around, body, meta)):
            return waiting
        apply.set_finalizer(context, body, held)
        return 0.0
    if job is not None:
        run = _Run(context, meta, wanted, job, around)
        if request is not None and not reset.done(request, body):
            return _reset(run, body, request)
        return run.reconcile(body)
    if not cluster.paused and _remove_driver(context, meta):
        return WAIT_SECONDS
    return group_observe.reconcile(context, body, wanted, request, around)


def _refuse(
    context: ReconcileContext, around: GroupContext, body: Body, meta: ResourceMeta
) -> float:
    """Do nothing for a group whose cluster does not allow its namespace, valid or not."""
    wanted = spec.parse_group(spec.for_deletion(body))
    refused = group_conditions.judge_absent(wanted, around.cluster.owner)
    wait = _stop(context, around, body, meta, refused)
    if wait != OBSERVE_SECONDS or not meta.has_finalizer:
        return wait
    if not _withdraw_user(context, around, meta):
        return WAIT_SECONDS
    if wanted.deletion_policy != "Delete":
        apply.set_finalizer(context, body, False)
    return wait


def _withdraw_user(context: ReconcileContext, around: GroupContext, meta: ResourceMeta) -> bool:
    """Remove the user of a job whose namespace is not allowed any more; False: not now."""
    if around.zookeeper is None or not job_user.may_have_user(context, meta, around):
        return True
    try:
        job_user.remove(meta, around)
    except ClientUserError as error:
        log.info("%s: %s; retrying", meta.name, error)
        return False
    return True


def _stop(
    context: ReconcileContext,
    around: GroupContext,
    body: Body,
    meta: ResourceMeta,
    told: tuple[Condition, ...],
) -> float:
    """Report why a group must not consume, and stop the driver of its job."""
    # Written before the driver is deleted: it was no failure, and may restart later.
    stopped = drivers.suspended(body.get("status", {}))
    fields = _remembered(body)
    if "job" in body["spec"]:
        fields["job"] = drivers.status_fields(stopped, driver_objects.driver_name(meta.name), None)
        if around.cluster.owner is Owner.NOT_PERMITTED:
            fields |= {"state": "Stopped", "verdict": "STOP"}
    body = status_update.write_status(context, body, told, fields)
    if not around.cluster.paused and _remove_driver(context, meta):
        return WAIT_SECONDS
    return OBSERVE_SECONDS


def _remembered(body: Body) -> dict[str, Any]:
    """Return the fields of the status that must be kept in any case."""
    return status_update.remembered(body, _REMEMBERED)


def _reset(run: _Run, body: Body, request: Reset) -> float:
    """Reset the offsets of a group with a job: check, stop the driver, commit, restart.

    The driver is a member of the group, so offsets move only after it has gone. It is not stopped
    for a request that is refused, nor for one that has to wait for others anyway.
    """
    pod = run.driver()
    if pod is not None and reset.begun(request, body) is None and run.refuses_change(body, pod):
        return run.reconcile(body)
    try:
        outcome = _next_step(run, body, request, pod)
    except UnreachableError as error:
        outcome = reset_step.waits("ZooKeeperUnreachable", str(error))
    except BrokerError as error:
        outcome = reset_step.waits("BrokersUnreachable", str(error))
    stopped = pod is None and not request.dry_run
    if outcome.problem and (outcome.refused or not stopped or run.around.cluster.paused):
        return run.reconcile(body, instead=outcome.problem)
    if not stopped and not request.dry_run:
        text = f"the driver is stopped for reset {request.request_id}"
        return run.reconcile(body, hold=status.progressing("Resetting", text))
    remembered = {**_remembered(body), "lastReset": outcome.last}
    if request.dry_run:
        status_update.write_status(run.context, body, (), remembered)
        return 0.0
    if outcome.last is None:
        remembered = _remembered(body)
    # The driver was stopped on purpose: it restarts like a suspended one.
    stopped_job = drivers.suspended(body.get("status", {}))
    remembered["job"] = drivers.status_fields(stopped_job, run.driver_name, None)
    text = f"resetting offsets for request {request.request_id}"
    told = outcome.problem or status.progressing("Resetting", text)
    status_update.write_status(
        run.context, body, (*told, status.paused(False)), remembered, outcome.events
    )
    return WAIT_SECONDS if outcome.problem else 0.0


def _next_step(run: _Run, body: Body, request: Reset, pod: Object | None) -> Outcome:
    around, wanted = run.around, run.wanted
    if around.cluster.owner is not Owner.PRESENT:
        return Outcome(problem=group_conditions.judge_absent(wanted, around.cluster.owner))
    if around.zookeeper is None:
        raise UnreachableError(around.cluster.away)
    with OperatorClient(around.endpoints, around.security) as brokers:
        view = group_observe.view_group(around.zookeeper, brokers, wanted)
        leaders = group_observe.find_leaders(around.zookeeper, wanted, view)
        step = ResetStep(run.context, around.zookeeper, brokers, wanted, request, view, leaders)
        if pod is None:
            return step.run(body, around.cluster.paused)
        others = max(0, view.members - 1)
        if not request.dry_run and (others or around.cluster.paused):
            without = replace(step, view=replace(view, members=others))
            return without.run(body, around.cluster.paused)
        return Outcome() if reset.begun(request, body) is not None else step.begin()


@dataclass(frozen=True, slots=True)
class _Run:
    """A job that should run."""

    context: ReconcileContext
    meta: ResourceMeta
    wanted: GroupSpec
    task: JobSpec
    around: GroupContext

    @property
    def driver_name(self) -> str:
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
        if _hash_of(pod) == _hash_of(made):
            return False
        memory = _with_state_of(pod, drivers.remember(body.get("status", {})), _hash_of(made))
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


def _run(run: _Run, body: Body, task: JobSpec, told: tuple[Condition, ...]) -> float:
    context, meta, wanted = run.context, run.meta, run.wanted
    addresses, cluster = run.around.addresses, run.around.cluster
    driver, pod = run.driver_name, run.driver()
    text = run.job_file(task)
    made = driver_objects.driver_pod(meta, task, context.platform, text)
    memory = drivers.remember(body.get("status", {}))
    marked = made["metadata"]["annotations"][drivers.SPEC_HASH]
    foreign = pod is not None and not _owns(meta, pod)
    if foreign:
        taken = status.stalled(
            "ResourceConflict", f"pod {driver} exists and does not belong to this job"
        )
        status_update.write_status(context, body, taken, _remembered(body))
        return OBSERVE_SECONDS
    if not task.suspend and (pod is None or _hash_of(pod) != marked):
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
    if addresses is None and (pod is None or _hash_of(pod) != marked) and not task.suspend:
        waiting: tuple[Condition, ...]
        waiting = status.progressing("WaitingForBrokers", "no broker is registered")
        if cluster.owner is not Owner.PRESENT:
            waiting = group_conditions.judge_absent(wanted, cluster.owner)
        status_update.write_status(context, body, waiting, _remembered(body))
        return WAIT_SECONDS
    decision = schedule.decide(task, pod, marked, memory, _first_look(body, meta), context.now())
    left = replace(decision.memory, keeps_state=memory.keeps_state)
    decision = replace(decision, memory=left)
    if cluster.paused and decision.action is not Action.NONE:
        waits = status.stalled("Paused", f"the KafkaCluster is paused; pending: {decision.message}")
        status_update.write_status(context, body, (*waits, status.paused(True)), _remembered(body))
        return OBSERVE_SECONDS
    try:
        if decision.action is Action.CREATE and job_user.has_secret(task):
            job_user.ensure(context, meta, wanted, task, run.around, driver_objects.labels(meta))
        if not cluster.paused:
            starts = decision.action is Action.CREATE
            named = driver_objects.labels(meta)
            job_user.ensure_files(context, meta, task, run.around, named, starts=starts)
        grown = () if cluster.paused else _grow_volume(context, body, meta, task)
        events = _act(context, body, meta, task, decision, pod, made, text)
        seen = _view_job(context, body, task, decision, pod)
        if not cluster.paused and pod is not None and _may_lack_rights(task, decision, seen):
            _restore_account(context, body, meta, task, pod)
        if not cluster.paused and pod is not None and _shows_ui(task, decision):
            _apply_ui(context, body, meta, pod)
    except ClientUserError as error:
        judge = status.progressing if error.waits else status.stalled
        told = judge(error.reason, str(error))
        status_update.write_status(context, body, told, _remembered(body))
        return WAIT_SECONDS
    except KubeError as error:
        if error.code not in apply.REFUSALS:
            raise
        refused = status.stalled("DriverRejected", str(error))
        status_update.write_status(context, body, refused, _remembered(body))
        return OBSERVE_SECONDS
    if addresses is not None and not cluster.paused and _is_outdated(task, decision, seen):
        _resize(context, body, driver_objects.config_map(meta, task, text))
    conditions, fields = group_conditions.judge_job(wanted, task, decision, seen, driver)
    conditions = told or conditions
    fields["lastReset"] = body.get("status", {}).get("lastReset")
    told = (*conditions, status.paused(cluster.paused), *grown)
    status_update.write_status(context, body, told, fields, events)
    settled = conditions[0].status or conditions[2].status
    return decision.requeue_after if settled else min(decision.requeue_after, WAIT_SECONDS)


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


def _refused_change(run: _Run, task: JobSpec, text: str) -> query_change.Refusal | None:
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
        meta = pod["metadata"]
        found = context.kube.select("v1", "Pod", meta["namespace"], EXECUTORS)
        mine = (one for one in found if _owns_uid(meta["uid"], one))
        obstacle = next((text for one in mine if (text := pending_reason(one))), None)
    return JobView(report, obstacle, _waited(body, pod, context.now()))


def _is_outdated(task: JobSpec, decision: drivers.DriverDecision, seen: JobView) -> bool:
    """Return whether a running driver, which can, does not follow the number of executors yet."""
    followed = (seen.report or {}).get("executorsWanted")
    runs = decision.action is Action.NONE and decision.memory.phase == "Running"
    return runs and None not in (followed, task.instances) and followed != task.instances


def _may_lack_rights(task: JobSpec, decision: drivers.DriverDecision, seen: JobView) -> bool:
    """Return whether a running driver lacks executors, or has none, and no pod of them waits."""
    runs = decision.action is Action.NONE and decision.memory.phase == "Running"
    if not runs or seen.report is None or seen.obstacle is not None:
        return False
    return group_conditions.lacks_executors(task, seen.report) or not seen.report.get("executors")


def _restore_account(
    context: ReconcileContext, body: Body, meta: ResourceMeta, task: JobSpec, pod: Object
) -> None:
    """Apply the rights that somebody deleted, or that lack the driver's priority, since the
    operator ended before it knew that.
    """
    if apply.still_wanted(context, body):
        _apply_account(context, meta, task, pod["spec"].get("priorityClassName"))


def _shows_ui(task: JobSpec, decision: drivers.DriverDecision) -> bool:
    return task.ui and decision.action is Action.NONE and decision.memory.phase == "Running"


def _apply_ui(context: ReconcileContext, body: Body, meta: ResourceMeta, pod: Object) -> None:
    """Apply the Service of a running driver's UI, which was the former driver's until now.

    A Service of that name that somebody else has made is left alone.
    """
    wanted = driver_objects.ui_service(meta, pod)
    name, named = wanted["metadata"]["name"], wanted["metadata"]["labels"]
    live = context.kube.get("v1", "Service", meta.namespace, name)
    if live is not None:
        is_foreign = live["metadata"].get("labels") != named
        if is_foreign or _owns_uid(pod["metadata"]["uid"], live):
            return
    if apply.still_wanted(context, body):
        context.kube.apply(wanted)


def _resize(context: ReconcileContext, body: Body, config_map: Object) -> None:
    if apply.still_wanted(context, body):
        apply.apply_object(context, config_map)


def _waited(body: Body, pod: Object, now: datetime) -> timedelta:
    """Return for how long this driver's job has not been ready."""
    ready = status.condition_of(body.get("status", {}), "Ready")
    if ready is None or ready["status"] != "False":
        return timedelta()
    since = (pod["metadata"].get("creationTimestamp"), ready["lastTransitionTime"])
    return now - max(spec.parse_time(stamp) for stamp in since if stamp is not None)


def _hash_of(pod: Mapping[str, Any]) -> str | None:
    marked: str | None = pod["metadata"].get("annotations", {}).get(drivers.SPEC_HASH)
    return marked


def _owns(meta: ResourceMeta, pod: Mapping[str, Any]) -> bool:
    return _owns_uid(meta.uid, pod)


def _owns_uid(uid: str, pod: Mapping[str, Any]) -> bool:
    owners = pod["metadata"].get("ownerReferences", ())
    return any(one["uid"] == uid for one in owners)


def _act(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    task: JobSpec,
    decision: drivers.DriverDecision,
    pod: Mapping[str, Any] | None,
    made: Object,
    text: str,
) -> list[Event]:
    if decision.action is Action.NONE or not apply.still_wanted(context, body):
        return []
    if decision.action is Action.DELETE:
        assert pod is not None
        # The status says so before the pod is deleted, or a crash in between would
        # count its end as a failure; the caller writes the status too late for that.
        remembered = {**body.get("status", {}).get("job", {}), **_memory_fields(decision, meta)}
        status_update.write_status(context, body, (), {"job": remembered})
        context.kube.delete(pod)
        failed = decision.memory.application + decision.memory.infrastructure > 0
        return [Event("DriverStopped", decision.message, warning=failed)]
    claim = driver_objects.claim(meta, task)
    if claim is not None:
        name = claim["metadata"]["name"]
        if context.kube.get("v1", "PersistentVolumeClaim", meta.namespace, name) is None:
            context.kube.apply(claim)
    apply.apply_object(context, driver_objects.config_map(meta, task, text))
    # Never replaced: executors of a driver that still ends may be starting.
    _create(context, job_account.auth_secret(meta, driver_objects.labels(meta)))
    _apply_account(context, meta, task, task.priority_class)
    # Create, do not apply: a stale read must not lead to two drivers.
    created = _create(context, made)
    if created is None:
        return []
    admitted = created["spec"].get("priorityClassName")
    if admitted != task.priority_class:
        # The cluster's default, which its executors have, too.
        _apply_account(context, meta, task, admitted)
    return [Event("DriverStarted", f"started pod {made['metadata']['name']}")]


def _apply_account(
    context: ReconcileContext, meta: ResourceMeta, task: JobSpec, priority_class: str | None
) -> None:
    """Apply the job's service account and rights; `priority_class` is the driver's."""
    for one in driver_objects.account_objects(meta, task, context.platform, priority_class):
        apply.apply_object(context, one)


def _create(context: ReconcileContext, wanted: Object) -> Object | None:
    """Create an object; None if there is one of this name."""
    try:
        return context.kube.create(wanted)
    except KubeError as error:
        if error.code != 409:
            raise
        return None


def _grow_volume(
    context: ReconcileContext, body: Body, meta: ResourceMeta, task: JobSpec
) -> tuple[Condition, ...]:
    """Expand the volume to the size in the spec, and report it.

    The status of this generation is trusted, so that the claim is not read every time.
    """
    if task.volume_size is None:
        return ()
    before = status.condition_of(body.get("status", {}), GROWN)
    known = before is not None and before.get("observedGeneration") == meta.generation
    if before is None or not known or before["status"] != "True":
        if not apply.still_wanted(context, body):
            return ()
        name = driver_objects.claim_name(meta.name)
        held = apply.grow_claim(context, meta.namespace, name, task.volume_size)
        if held is not None:
            return (held,)
    return (Condition(GROWN, True, "AsSpecified"),)


def _memory_fields(decision: drivers.DriverDecision, meta: ResourceMeta) -> dict[str, Any]:
    return drivers.status_fields(decision.memory, driver_objects.driver_name(meta.name), None)


def _remove_driver(context: ReconcileContext, meta: ResourceMeta) -> bool:
    """Delete the driver of a group without a job; True while the pod still exists."""
    driver = driver_objects.driver_name(meta.name)
    pod = context.kube.get("v1", "Pod", meta.namespace, driver)
    if pod is None or not _owns(meta, pod):
        return False
    if "deletionTimestamp" not in pod["metadata"]:
        context.kube.delete(pod)
    return True


def _remove_user(
    context: ReconcileContext, around: GroupContext, body: Body, meta: ResourceMeta
) -> float:
    """Remove the user of a job; return 0, or the seconds until the next try."""
    if not job_user.may_have_user(context, meta, around):
        return 0.0
    told: tuple[Condition, ...] = (status.paused(True),)
    if around.cluster.paused:
        text = "the KafkaCluster is paused; the job's user is still there"
        waiting = status.stalled("Paused", text)
    else:
        try:
            job_user.remove(meta, around)
        except ClientUserError as error:
            waiting, told = status.progressing(error.reason, str(error)), ()
        else:
            return 0.0
    status_update.write_status(context, body, (*waiting, *told), _remembered(body))
    return WAIT_SECONDS


def _delete(
    context: ReconcileContext,
    around: GroupContext,
    body: Body,
    meta: ResourceMeta,
    wanted: GroupSpec,
    rival: str | None,
) -> float:
    cluster, zookeeper = around.cluster, around.zookeeper
    if not meta.has_finalizer:
        return OBSERVE_SECONDS
    assert meta.deleted is not None
    ending = namespace_terminating(context, meta.namespace)
    too_late = ending and context.now() - meta.deleted > TERMINATING_TIMEOUT
    abandoned = cluster.owner is not Owner.PRESENT or too_late or rival is not None
    if abandoned or wanted.deletion_policy != "Delete":
        if wanted.deletion_policy == "Delete":
            why = f": {rival} has the same group" if rival is not None else ""
            text = f"offsets of group {wanted.group} were not deleted{why}"
            context.kube.post_event(body, Event("GroupAbandoned", text, warning=True))
        if cluster.owner is Owner.PRESENT and not too_late:
            waits = _remove_user(context, around, body, meta)
            if waits:
                return waits
        elif cluster.owner is Owner.NOT_PERMITTED:
            _withdraw_user(context, around, meta)
        apply.set_finalizer(context, body, False)
        return OBSERVE_SECONDS
    if cluster.paused:
        waiting = status.stalled("Paused", "the KafkaCluster is paused; deletion is pending")
        status_update.write_status(
            context, body, (*waiting, status.paused(True)), _remembered(body)
        )
        return OBSERVE_SECONDS
    if _remove_driver(context, meta):
        return WAIT_SECONDS
    if zookeeper is None:
        waiting = status.progressing("ZooKeeperUnreachable", cluster.away)
        status_update.write_status(context, body, waiting, {})
        return WAIT_SECONDS
    try:
        with OperatorClient(around.endpoints, around.security) as brokers:
            view = group_observe.view_group(zookeeper, brokers, wanted)
            if view.members:
                raise GroupBusyError(f"waiting for {view.members} members to leave")
            if wanted.offset_store != "ZooKeeper":
                coordinator.delete(brokers, wanted.group)
    except (GroupBusyError, BrokerError) as error:
        waiting = status.progressing("Deleting", str(error))
        status_update.write_status(context, body, waiting, {})
        return WAIT_SECONDS
    in_zookeeper = wanted.offset_store != "Kafka"
    # A driver with offsets at a coordinator records there which topics they belong to.
    stored = consumers.group_path if in_zookeeper else consumers.incarnations_path
    try:
        zookeeper.delete_tree(stored(wanted.group))
    except RefusedError as error:
        refused = status.stalled("ZooKeeperRefuses", str(error))
        status_update.write_status(context, body, refused, {})
        return WAIT_SECONDS
    if waits := _remove_user(context, around, body, meta):
        return waits
    context.kube.post_event(
        body, Event("GroupDeleted", f"deleted the offsets of group {wanted.group}")
    )
    apply.set_finalizer(context, body, False)
    return OBSERVE_SECONDS
