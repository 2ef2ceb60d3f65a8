"""One ConsumerGroup: observed, or run as a Spark driver."""

from __future__ import annotations

from odradek_operator.group import conditions as group_conditions
from odradek_operator.group import (
    deletion,
    driver_effects,
    driver_objects,
    group_spec,
    job_reset,
    job_user,
    reset,
)
from odradek_operator.group import driver as drivers
from odradek_operator.group import observe as group_observe
from odradek_operator.group.job import JobRun, remembered
from odradek_operator.group.observe import OBSERVE_SECONDS, WAIT_SECONDS, GroupContext
from odradek_operator.shared import apply, metrics, spec, status, status_update
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.spec import Body, ResourceMeta
from odradek_operator.shared.status import Condition, Event
from odradek_operator.shared.views import Owner


def group_name(body: Body) -> str:
    """Return the group of a resource, whether its spec is valid or not."""
    return str(body["spec"].get("group", body["metadata"]["name"]))


def reconcile(
    context: ReconcileContext, body: Body, around: GroupContext, rival: str | None
) -> float:
    """Reconcile one group.

    `rival` names another resource of the same group: an older one, and for a resource that is being
    deleted any that stays, since the offsets then are not this one's alone.
    """
    meta, cluster = spec.parse_meta(body), around.cluster
    is_allowed = cluster.owner is not Owner.NOT_PERMITTED
    if not is_allowed:
        # Who is not allowed is told nothing of the cluster, its groups included.
        rival = None
    try:
        wanted = group_spec.parse_group(spec.for_deletion(body) if meta.deleting else body)
        request = reset.parse(wanted.reset) if wanted.reset is not None else None
    except spec.InvalidSpec as error:
        if not meta.deleting:
            metrics.GROUP_LAGS.drop(meta.uid)
            if not is_allowed:
                # Its driver must not run on because of a mistake.
                return _refuse(context, around, body, meta)
            return status_update.refuse(context, body, error, seen=remembered(body))
        if meta.has_finalizer:
            text = f"offsets of group {group_name(body)} were not deleted: {error.message}"
            context.kube.post_event(body, Event("GroupAbandoned", text, warning=True))
            apply.set_finalizer(context, body, False)
        return OBSERVE_SECONDS
    if meta.deleting or rival is not None or wanted.job is not None or not is_allowed:
        # The group is being deleted, or another resource or a driver reports its lag.
        metrics.GROUP_LAGS.drop(meta.uid)
    if meta.deleting:
        return deletion.delete(context, around, body, meta, wanted, rival)
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
        if not held and (waiting := deletion.remove_user(context, around, body, meta)):
            return waiting
        apply.set_finalizer(context, body, held)
        return 0.0
    if job is not None:
        run = JobRun(context, meta, wanted, job, around)
        if request is not None and not reset.done(request, body):
            return job_reset.reconcile(run, body, request)
        return run.reconcile(body)
    if not cluster.paused and driver_effects.remove(context, meta):
        told = (
            *status.progressing("Stopping", driver_effects.how_it_ends(meta)),
            status.paused(False),
        )
        status_update.write_status(context, body, told, remembered(body))
        return WAIT_SECONDS
    return group_observe.reconcile(context, body, wanted, request, around)


def _refuse(
    context: ReconcileContext, around: GroupContext, body: Body, meta: ResourceMeta
) -> float:
    """Do nothing for a group whose cluster does not allow its namespace, valid or not."""
    wanted = group_spec.parse_group(spec.for_deletion(body))
    refused = group_conditions.judge_absent(wanted, around.cluster.owner)
    wait = _stop(context, around, body, meta, refused)
    if wait != OBSERVE_SECONDS or not meta.has_finalizer:
        return wait
    if not deletion.withdraw_user(context, around, meta):
        return wait
    if wanted.deletion_policy != "Delete":
        apply.set_finalizer(context, body, False)
    return wait


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
    fields = remembered(body)
    if "job" in body["spec"]:
        fields["job"] = drivers.status_fields(stopped, driver_objects.driver_name(meta.name), None)
        if around.cluster.owner is Owner.NOT_PERMITTED:
            fields |= {"state": "Stopped", "verdict": "STOP"}
    body = status_update.write_status(context, body, told, fields)
    if not around.cluster.paused and driver_effects.remove(context, meta):
        return WAIT_SECONDS
    return OBSERVE_SECONDS
