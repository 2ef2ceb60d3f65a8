"""One ConsumerGroup: observed, or run as a Spark driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from odradek.zk import consumers
from odradek_operator.group import conditions as group_conditions
from odradek_operator.group import coordinator, driver_objects, reset, reset_step
from odradek_operator.group import driver as drivers
from odradek_operator.group import observe as group_observe
from odradek_operator.group.coordinator import GroupBusyError
from odradek_operator.group.driver import Action
from odradek_operator.group.driver_objects import Addresses
from odradek_operator.group.observe import OBSERVE_SECONDS, WAIT_SECONDS, GroupContext
from odradek_operator.group.report import fetch_report
from odradek_operator.group.reset import Reset
from odradek_operator.group.reset_step import Outcome, ResetStep
from odradek_operator.shared import apply, metrics, spec, status, status_update
from odradek_operator.shared.apply import ReconcileContext, namespace_terminating
from odradek_operator.shared.broker_client import BrokerError, OperatorClient
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.objects import Object
from odradek_operator.shared.spec import TERMINATING_TIMEOUT, Body, GroupSpec, JobSpec, ResourceMeta
from odradek_operator.shared.status import Condition, Event
from odradek_operator.shared.views import Owner
from odradek_operator.shared.zookeeper import UnreachableError

_GROWN: Final = "StorageGrown"


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
    try:
        wanted = spec.parse_group(spec.for_deletion(body) if meta.deleting else body)
        request = reset.parse(wanted.reset) if wanted.reset is not None else None
    except spec.InvalidSpec as error:
        if not meta.deleting:
            metrics.GROUP_LAGS.drop(meta.uid)
            return status_update.refuse(context, body, error, ("job", "lastReset"))
        if meta.has_finalizer:
            text = f"offsets of group {group_name(body)} were not deleted: {error.message}"
            context.kube.post_event(body, Event("GroupAbandoned", text, warning=True))
            apply.set_finalizer(context, body, False)
        return OBSERVE_SECONDS
    if meta.deleting or rival is not None or wanted.job is not None:
        # The group is being deleted, or another resource or a driver reports its lag.
        metrics.GROUP_LAGS.drop(meta.uid)
    if meta.deleting:
        return _delete(context, around, body, meta, wanted, rival)
    if rival is not None:
        # Written before the driver is deleted: it was no failure, and may restart later.
        stopped = drivers.RestartState("Suspended")
        fields = _remembered(body)
        if wanted.job is not None:
            driver = driver_objects.driver_name(meta.name)
            fields["job"] = drivers.status_fields(stopped, driver, None)
        taken = status.stalled("ResourceConflict", f"{rival} is older and owns this group")
        body = status_update.write_status(context, body, taken, fields)
        if not cluster.paused and _remove_driver(context, meta):
            return WAIT_SECONDS
        return OBSERVE_SECONDS
    if (wanted.deletion_policy == "Delete") != meta.has_finalizer:
        apply.set_finalizer(context, body, wanted.deletion_policy == "Delete")
        return 0.0
    if wanted.job is not None:
        run = _Run(context, meta, wanted, wanted.job, around)
        if request is not None and not reset.done(request, body):
            return _reset(run, body, request)
        return run.reconcile(body)
    if not cluster.paused and _remove_driver(context, meta):
        return WAIT_SECONDS
    return group_observe.reconcile(context, body, wanted, request, around)


def _paused(paused: bool) -> Condition:
    return Condition("Paused", paused, "Paused" if paused else "NotPaused")


def _remembered(body: Body) -> dict[str, Any]:
    """Return the fields of the status that must be kept in any case."""
    return {name: body.get("status", {}).get(name) for name in ("job", "lastReset")}


def _reset(run: _Run, body: Body, request: Reset) -> float:
    """Reset the offsets of a group with a job: check, stop the driver, commit, restart.

    The driver is a member of the group, so offsets move only after it has gone. It is not stopped
    for a request that is refused, nor for one that has to wait for others anyway.
    """
    pod = run.driver()
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
    remembered["job"] = drivers.status_fields(
        drivers.RestartState("Suspended"), run.driver_name, None
    )
    text = f"resetting offsets for request {request.request_id}"
    told = outcome.problem or status.progressing("Resetting", text)
    status_update.write_status(
        run.context, body, (*told, _paused(False)), remembered, outcome.events
    )
    return WAIT_SECONDS if outcome.problem else 0.0


def _next_step(run: _Run, body: Body, request: Reset, pod: Object | None) -> Outcome:
    around, wanted = run.around, run.wanted
    if around.cluster.owner is not Owner.PRESENT:
        text = f"KafkaCluster {wanted.cluster} is {around.cluster.owner.value}"
        return reset_step.waits(around.cluster.owner.reason, text)
    if around.zookeeper is None:
        raise UnreachableError("ZooKeeper does not answer")
    with OperatorClient(around.endpoints) as brokers:
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
    known = addresses or Addresses("", "")
    text = driver_objects.job_file(meta, wanted, task, context.platform, known)
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
    if addresses is None and (pod is None or _hash_of(pod) != marked) and not task.suspend:
        waiting = status.progressing("WaitingForBrokers", "no broker is registered")
        if cluster.owner is not Owner.PRESENT:
            text = f"KafkaCluster {wanted.cluster} is {cluster.owner.value}"
            waiting = status.progressing(cluster.owner.reason, text)
        status_update.write_status(context, body, waiting, _remembered(body))
        return WAIT_SECONDS
    decision = drivers.decide(task, pod, marked, memory, context.now())
    if cluster.paused and decision.action is not Action.NONE:
        left = status.stalled("Paused", f"the KafkaCluster is paused; pending: {decision.message}")
        status_update.write_status(context, body, (*left, _paused(True)), _remembered(body))
        return OBSERVE_SECONDS
    try:
        grown = () if cluster.paused else _grow_volume(context, body, meta, task)
        events = _act(context, body, meta, task, decision, pod, made, text)
    except KubeError as error:
        if error.code not in apply.REFUSALS:
            raise
        refused = status.stalled("DriverRejected", str(error))
        status_update.write_status(context, body, refused, _remembered(body))
        return OBSERVE_SECONDS
    report = fetch_report(pod) if pod is not None else None
    conditions, fields = group_conditions.judge_job(wanted, decision, report, driver)
    conditions = told or conditions
    fields["lastReset"] = body.get("status", {}).get("lastReset")
    told = (*conditions, _paused(cluster.paused), *grown)
    status_update.write_status(context, body, told, fields, events)
    settled = conditions[0].status or conditions[2].status
    return decision.requeue_after if settled else min(decision.requeue_after, WAIT_SECONDS)


def _hash_of(pod: Mapping[str, Any]) -> str | None:
    marked: str | None = pod["metadata"].get("annotations", {}).get(drivers.SPEC_HASH)
    return marked


def _owns(meta: ResourceMeta, pod: Mapping[str, Any]) -> bool:
    owners = pod["metadata"].get("ownerReferences", ())
    return any(one["uid"] == meta.uid for one in owners)


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
    apply.apply_object(context, driver_objects.config_map(meta, text))
    try:
        # Create, do not apply: a stale read must not lead to two drivers.
        context.kube.create(made)
    except KubeError as error:
        if error.code != 409:
            raise
        return []
    return [Event("DriverStarted", f"started pod {made['metadata']['name']}")]


def _grow_volume(
    context: ReconcileContext, body: Body, meta: ResourceMeta, task: JobSpec
) -> tuple[Condition, ...]:
    """Expand the volume to the size in the spec, and report it.

    The status of this generation is trusted, so that the claim is not read every time.
    """
    if task.volume_size is None:
        return ()
    before = status.condition_of(body.get("status", {}), _GROWN)
    known = before is not None and before.get("observedGeneration") == meta.generation
    if before is None or not known or before["status"] != "True":
        if not apply.still_wanted(context, body):
            return ()
        name = driver_objects.claim_name(meta.name)
        refused = apply.grow_claim(context, meta.namespace, name, task.volume_size)
        if refused is not None:
            return (Condition(_GROWN, False, "ResizeRejected", refused),)
    return (Condition(_GROWN, True, "AsSpecified"),)


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
        apply.set_finalizer(context, body, False)
        return OBSERVE_SECONDS
    if cluster.paused:
        waiting = status.stalled("Paused", "the KafkaCluster is paused; deletion is pending")
        status_update.write_status(context, body, (*waiting, _paused(True)), _remembered(body))
        return OBSERVE_SECONDS
    if _remove_driver(context, meta):
        return WAIT_SECONDS
    if zookeeper is None:
        waiting = status.progressing("ZooKeeperUnreachable", "ZooKeeper does not answer")
        status_update.write_status(context, body, waiting, {})
        return WAIT_SECONDS
    try:
        with OperatorClient(around.endpoints) as brokers:
            view = group_observe.view_group(zookeeper, brokers, wanted)
            if view.members:
                raise GroupBusyError(f"waiting for {view.members} members to leave")
            if wanted.offset_store != "ZooKeeper":
                coordinator.delete(brokers, wanted.group)
    except (GroupBusyError, BrokerError) as error:
        waiting = status.progressing("Deleting", str(error))
        status_update.write_status(context, body, waiting, {})
        return WAIT_SECONDS
    if wanted.offset_store != "Kafka":
        zookeeper.delete_tree(consumers.group_path(wanted.group))
    context.kube.post_event(
        body, Event("GroupDeleted", f"deleted the offsets of group {wanted.group}")
    )
    apply.set_finalizer(context, body, False)
    return OBSERVE_SECONDS
