"""The objects of a job's driver: its pod, configuration, rights, volume, and Service of the UI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek_operator.group import driver as drivers
from odradek_operator.group import driver_objects, job_account
from odradek_operator.group.driver import Action
from odradek_operator.shared import apply, pods, status, status_update
from odradek_operator.shared.apply import GROWN, ReconcileContext
from odradek_operator.shared.job_spec import JobSpec
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.objects import Object, belongs_to
from odradek_operator.shared.spec import Body, ResourceMeta, parse_time
from odradek_operator.shared.status import Condition, Event


def act(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    task: JobSpec,
    decision: drivers.DriverDecision,
    pod: Mapping[str, Any] | None,
    made: Object,
    text: str,
) -> list[Event]:
    """Start or stop the driver as decided, unless the resource has changed; return the Events.

    `made` is the pod to create, with the job file `text`, and `pod` the one that is there.
    """
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


def _memory_fields(decision: drivers.DriverDecision, meta: ResourceMeta) -> dict[str, Any]:
    return drivers.status_fields(decision.memory, driver_objects.driver_name(meta.name), None)


def _create(context: ReconcileContext, wanted: Object) -> Object | None:
    """Create an object; None if there is one of this name."""
    try:
        return context.kube.create(wanted)
    except KubeError as error:
        if error.code != 409:
            raise
        return None


def _apply_account(
    context: ReconcileContext, meta: ResourceMeta, task: JobSpec, priority_class: str | None
) -> None:
    """Apply the job's service account and rights; `priority_class` is the driver's."""
    for one in driver_objects.account_objects(meta, task, context.platform, priority_class):
        apply.apply_object(context, one)


def restore_account(
    context: ReconcileContext, body: Body, meta: ResourceMeta, task: JobSpec, pod: Object
) -> None:
    """Apply the rights that somebody deleted, or that lack the driver's priority, since the
    operator ended before it knew that.
    """
    if apply.still_wanted(context, body):
        _apply_account(context, meta, task, pod["spec"].get("priorityClassName"))


def restore_needs(
    context: ReconcileContext, body: Body, meta: ResourceMeta, task: JobSpec, pod: Object
) -> None:
    """Make what a driver waits for, if somebody deleted it: its volume claim, or its key.

    A claim that is deleted lives as long as the pod before, so it may go after this one was made.
    """
    if "nodeName" in pod["spec"]:
        key = job_account.auth_secret(meta, driver_objects.labels(meta))
        if _is_missing(context, key) and apply.still_wanted(context, body):
            _create(context, key)
        return
    claim = driver_objects.claim(meta, task)
    if claim is None or pods.pending_reason(pod) is None:
        return
    if _is_missing(context, claim) and apply.still_wanted(context, body):
        context.kube.apply(claim)


def why_held(context: ReconcileContext, meta: ResourceMeta, pod: Object) -> str | None:
    """Return why only the user may end a driver's pod: its volume, with the data, goes with it.

    None: it may end. Kubernetes lets a deleted claim live as long as a pod that runs with it.
    """
    name = driver_objects.claim_name(meta.name)
    has_ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    if has_ended or name not in pods.claims(pod):
        return None
    claim = context.kube.get("v1", "PersistentVolumeClaim", meta.namespace, name)
    if claim is None or "deletionTimestamp" not in claim["metadata"]:
        return None
    return (
        f"somebody deleted the volume claim {name}, whose data goes when the driver ends: save "
        f"what you need, then delete pod {driver_objects.driver_name(meta.name)} yourself"
    )


def why_keyless(context: ReconcileContext, meta: ResourceMeta, pod: Object) -> str | None:
    """Return why new executors cannot talk to a driver that runs: they have not its key.

    Both read it when they start, so a Secret that was made since then has another one.
    """
    name = job_account.secret_name(meta)
    found = context.kube.get("v1", "Secret", meta.namespace, name)
    if found is None:
        what = "deleted"
    elif _is_younger(found, pod):
        what = "made anew"
    else:
        return None
    return (
        f"somebody {what} Secret {name}, which has the key of driver and executors: delete pod "
        f"{driver_objects.driver_name(meta.name)}, and the next ones have the same again"
    )


def _is_younger(secret: Object, pod: Object) -> bool:
    """Return whether a Secret was made after a driver's pod, and after that was started."""
    made, began = secret["metadata"].get("creationTimestamp"), drivers.started_at(pod)
    if made is None or began is None:
        return False
    return parse_time(made) > max(parse_time(pod["metadata"]["creationTimestamp"]), began)


def _is_missing(context: ReconcileContext, wanted: Object) -> bool:
    place = wanted["metadata"]
    found = context.kube.get("v1", wanted["kind"], place["namespace"], place["name"])
    return found is None


def apply_ui(context: ReconcileContext, body: Body, meta: ResourceMeta, pod: Object) -> None:
    """Apply the Service of a running driver's UI, which was the former driver's until now.

    A Service of that name that somebody else has made is left alone.
    """
    wanted = driver_objects.ui_service(meta, pod)
    name, named = wanted["metadata"]["name"], wanted["metadata"]["labels"]
    live = context.kube.get("v1", "Service", meta.namespace, name)
    if live is not None:
        is_foreign = live["metadata"].get("labels") != named
        if is_foreign or belongs_to(pod["metadata"]["uid"], live):
            return
    if apply.still_wanted(context, body):
        context.kube.apply(wanted)


def resize(context: ReconcileContext, body: Body, config_map: Object) -> None:
    """Tell a running driver the number of executors, in its job file."""
    if apply.still_wanted(context, body):
        apply.apply_object(context, config_map)


def grow_volume(
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
        claim = context.kube.get("v1", "PersistentVolumeClaim", meta.namespace, name)
        held = apply.grow_claim(context, claim, task.volume_size) if claim is not None else None
        if held is not None:
            return (held,)
    return (apply.has_grown(),)


def remove(context: ReconcileContext, meta: ResourceMeta) -> bool:
    """Delete the driver of a group without a job; True while the pod still exists."""
    driver = driver_objects.driver_name(meta.name)
    pod = context.kube.get("v1", "Pod", meta.namespace, driver)
    if pod is None or not belongs_to(meta.uid, pod):
        return False
    if "deletionTimestamp" not in pod["metadata"]:
        context.kube.delete(pod)
    return True


def how_it_ends(meta: ResourceMeta) -> str:
    """Return what `remove` waits for; a pod on a lost node stays until the node is removed."""
    pod = driver_objects.driver_name(meta.name)
    return f"waiting for pod {pod} to end, or for its node to be removed"


def hash_of(pod: Mapping[str, Any]) -> str | None:
    """Return the hash of the spec that a driver was started with."""
    marked: str | None = pod["metadata"].get("annotations", {}).get(drivers.SPEC_HASH)
    return marked
