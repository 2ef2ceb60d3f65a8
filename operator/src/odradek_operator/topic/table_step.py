"""Carries out the plan of a Topic's table: applies or deletes its ConsumerGroup."""

from __future__ import annotations

from dataclasses import replace

from odradek_operator.shared import apply, kube, spec
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.objects import belongs_to
from odradek_operator.shared.spec import Body
from odradek_operator.topic import table
from odradek_operator.topic.table import TablePlan


def carry_out(context: ReconcileContext, body: Body, plan: TablePlan) -> TablePlan:
    """Carry out the plan, and return it with what it came to."""
    if plan.delete is not None:
        _delete(context, body, plan.delete)
    if plan.apply is None or not apply.still_wanted(context, body):
        return plan
    meta, wanted = spec.parse_meta(body), plan.apply
    name = wanted["metadata"]["name"]
    live = kube.custom(context.kube, wanted["kind"], meta.namespace, name)
    if live is not None and not belongs_to(meta.uid, live):
        return replace(plan, condition=table.taken(meta), fields={})
    try:
        # Do not cache: the watch event would be deduplicated and never reconciled.
        context.kube.apply(wanted)
    except KubeError as error:
        if not apply.is_refused(error):
            raise
        return replace(plan, condition=table.rejected(str(error)))
    return plan


def _delete(context: ReconcileContext, body: Body, group: Body) -> None:
    """Delete the ConsumerGroup, if the Topic still wants that and owns it."""
    if not apply.still_wanted(context, body):
        return
    meta, name = spec.parse_meta(body), group["metadata"]["name"]
    live = kube.custom(context.kube, group["kind"], meta.namespace, name)
    if live is None:
        context.forget(group)
    elif belongs_to(meta.uid, live):
        context.kube.delete(live)
