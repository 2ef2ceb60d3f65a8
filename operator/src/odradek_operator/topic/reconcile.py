"""One pass over a batch of Topics of one cluster: one batched read, then topic by topic."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from odradek_operator.shared import apply, observe, spec
from odradek_operator.shared.apply import ReconcileContext, namespace_terminating
from odradek_operator.shared.spec import Body, ResourceMeta, TopicSpec
from odradek_operator.shared.views import ClusterState, TopicView
from odradek_operator.shared.zookeeper import UnreachableError, ZooKeeper
from odradek_operator.topic import plan as topic_plan
from odradek_operator.topic.execute import carry_out
from odradek_operator.topic.state import OwnMove, TopicPlan

log = logging.getLogger(__name__)


def read_views(
    zookeeper: ZooKeeper | None, bodies: Mapping[str, Body]
) -> dict[str, TopicView] | None:
    """Return the topic of each resource name; None when ZooKeeper does not answer.

    Where one is to be deleted nothing remembered is relied on.
    """
    if zookeeper is None:
        return None
    names = {key: topic_name(body) for key, body in bodies.items()}
    deleting = any("deletionTimestamp" in body["metadata"] for body in bodies.values())
    reader = zookeeper if deleting else zookeeper.watched
    try:
        found = observe.topics(reader, sorted(set(names.values())))
    except UnreachableError as error:
        log.info("%s", error)
        return None
    return {key: found[name] for key, name in names.items()}


def topic_name(body: Body) -> str:
    """Return the topic that a resource is about, valid or not."""
    return str(body["spec"].get("topicName", body["metadata"]["name"]))


def reconcile(
    context: ReconcileContext,
    zookeeper: ZooKeeper | None,
    body: Body,
    view: TopicView,
    cluster: ClusterState,
    conflict: str | None,
    moves: Sequence[OwnMove] = (),
) -> float:
    """Bring one topic nearer to its spec. `moves` are the Reassignments that it made."""
    meta = spec.parse_meta(body)
    known = body.get("status", {}).get("incarnation")
    try:
        wanted = spec.parse_topic(spec.for_deletion(body) if meta.deleting else body)
    except spec.InvalidSpec as error:
        return apply.refuse(context, body, error, ("incarnation",))
    if meta.deleting:
        plan = _plan_deletion(context, meta, wanted, view, cluster, known)
    else:
        plan = topic_plan.plan(meta, wanted, view, cluster, known, conflict, context.random, moves)
        if topic_plan.is_still_created(body, plan, context.now()):
            return topic_plan.SOON_SECONDS
    return _carry_out(context, zookeeper, body, plan)


def _plan_deletion(
    context: ReconcileContext,
    meta: ResourceMeta,
    wanted: TopicSpec,
    view: TopicView,
    cluster: ClusterState,
    known: int | None,
) -> TopicPlan:
    ending = meta.has_finalizer and namespace_terminating(context, meta.namespace)
    return topic_plan.plan_deletion(meta, wanted, view, cluster, known, ending, context.now())


def _carry_out(
    context: ReconcileContext, zookeeper: ZooKeeper | None, body: Body, plan: TopicPlan
) -> float:
    if plan.told_first:
        told = apply.write_status(context, body, plan.conditions, plan.fields)
        if told is body or not apply.is_same(told, body):
            return apply.SOON_SECONDS
        body = told
    # What a step has done is told only after it.
    if not carry_out(context, zookeeper, body, plan.steps, just_read=plan.told_first):
        return apply.SOON_SECONDS
    if plan.conditions or plan.fields:
        apply.write_status(context, body, plan.conditions, plan.fields, plan.events)
    else:
        for event in plan.events:
            context.kube.tell(body, event)
    return plan.again
