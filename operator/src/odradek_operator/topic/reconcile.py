"""One Topic: planned, carried out in transactions, and reported in its status."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from odradek.zk import admin
from odradek.zk.operations import Check, Operation, TransactionFailedError
from odradek.zk.znodes import topic_path
from odradek_operator.shared import apply, spec, status_update
from odradek_operator.shared.apply import (
    SOON_SECONDS,
    ReconcileContext,
    set_finalizer,
    still_wanted,
)
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.objects import belongs_to
from odradek_operator.shared.spec import Body
from odradek_operator.shared.status import Condition
from odradek_operator.shared.views import ClusterState, TopicView
from odradek_operator.shared.zookeeper import RefusedError, ZooKeeper
from odradek_operator.topic import plan as topic_plan
from odradek_operator.topic import reassign, table_step, topic_spec
from odradek_operator.topic import table as table_plan
from odradek_operator.topic.state import (
    CreateTopic,
    GrowTopic,
    OwnMove,
    RequestDeletion,
    SetConfig,
    SetFinalizer,
    StartMove,
    Step,
    TopicPlan,
)
from odradek_operator.topic.table import TableContext, TablePlan

# Its ConsumerGroup wakes a Topic; this is for what it waits for beside that.
TABLE_SECONDS: Final = 10.0
# What the status of an invalid Topic keeps.
_KEPT: Final = ("table", "partitions", "replicationFactor")
_NO_TABLES: Final = TableContext()

log = logging.getLogger(__name__)


def reconcile_topic(
    context: ReconcileContext,
    zookeeper: ZooKeeper | None,
    body: Body,
    view: TopicView,
    cluster: ClusterState,
    rivals: Sequence[Body],
    reassignments: Sequence[Body],
    tables: TableContext,
) -> float:
    """Reconcile a Topic, unless an older resource among its rivals manages the same topic.

    One that is being deleted leaves the topic to any that stays. Who only observes has no rivals.
    """
    conflict = None
    uid = body["metadata"]["uid"]
    others = [one for one in rivals if one["metadata"]["uid"] != uid and _manages(one)]
    if others and _manages(body):
        deleting = "deletionTimestamp" in body["metadata"]
        find = apply.staying_rival if deleting else apply.older_rival
        conflict = find(context, body, others)
    moves = reassign.owned_by(uid, reassignments) if reassignments else ()
    return reconcile(context, zookeeper, body, view, cluster, conflict, moves, tables)


def reconcile(
    context: ReconcileContext,
    zookeeper: ZooKeeper | None,
    body: Body,
    view: TopicView,
    cluster: ClusterState,
    conflict: str | None,
    moves: Sequence[OwnMove] = (),
    tables: TableContext = _NO_TABLES,
) -> float:
    """Bring one topic nearer to its spec. `moves` are the Reassignments that it created.

    `conflict` names another resource of the same topic: an older one, and for a resource that is
    being deleted one that stays.
    """
    meta, known = spec.parse_meta(body), body.get("status", {}).get("incarnation")
    deleting = meta.deleted is not None
    try:
        wanted = topic_spec.parse_topic(spec.for_deletion(body) if deleting else body)
    except spec.InvalidSpec as error:
        seen = topic_plan.seen_fields(topic_spec.topic_name(body), view, known)
        return status_update.refuse(context, body, error, _KEPT, seen)
    if deleting:
        ending = meta.has_finalizer and apply.namespace_terminating(context, meta.namespace)
        plan = topic_plan.plan_deletion(
            meta,
            wanted,
            view,
            cluster,
            known,
            conflict,
            ending,
            context.now(),
            topic_plan.was_asked_for(body),
        )
    else:
        plan = topic_plan.plan(meta, wanted, view, cluster, known, conflict, context.random, moves)
        if plan.awaits_leaders and topic_plan.was_just_created(body, context.now()):
            return topic_plan.SOON_SECONDS
    plan = topic_plan.with_pause(plan, wanted, cluster)
    plan = topic_plan.with_warning(plan, wanted, view, cluster)
    if deleting and not meta.has_finalizer:
        # The garbage collector deletes what the Topic owns.
        return _carry_out(context, zookeeper, body, plan, TablePlan())
    exists = view.assignment is not None and conflict is None
    owned = not wanted.managed or view.incarnation == known
    table = table_plan.plan(
        meta,
        wanted,
        body,
        tables,
        exists=exists and owned,
        paused=wanted.paused or cluster.paused,
    )
    return _carry_out(context, zookeeper, body, plan, table)


def _manages(body: Body) -> bool:
    return not topic_plan.observes(body["spec"])


def topic_operations(step: Step) -> list[Operation]:
    """Return the transaction that a step on a topic is."""
    match step:
        case CreateTopic(topic, assignment, config, config_version):
            return admin.create_topic(
                topic,
                admin.with_new_id(assignment),
                config,
                config_exists=config_version is not None,
            )
        case GrowTopic(topic, assignment, version):
            return admin.grow_topic(topic, assignment, version)
        case SetConfig(topic, config, version):
            return admin.change_config("topics", topic, config, version)
        case RequestDeletion(topic, version):
            # The version ties the request to the topic that was seen, not to one made since.
            return [Check(topic_path(topic), version), *admin.request_deletion(topic)]
    raise AssertionError(f"{step} is no step on ZooKeeper")


def _carry_out(
    context: ReconcileContext,
    zookeeper: ZooKeeper | None,
    body: Body,
    plan: TopicPlan,
    table: TablePlan,
) -> float:
    """Execute the steps and write the status; return seconds until the next look."""
    if plan.status_first:
        written = status_update.write_status(context, body, *_told(plan, table))
        if written is body or _has_changed(body, written):
            return SOON_SECONDS
        body = written
    # Report what a step did only afterwards.
    try:
        if plan.steps and not _execute(context, zookeeper, body, plan):
            return SOON_SECONDS
    except RefusedError as error:
        plan = topic_plan.refused(plan, "ZooKeeperRefuses", str(error))
    except KubeError as error:
        # Without fields the finalizer is to go, and the status must keep what it knows.
        if not (plan.fields and apply.is_refused(error)):
            raise
        plan = topic_plan.refused(plan, "ApplyRejected", str(error))
    table = table_step.carry_out(context, body, table)
    if plan.conditions or plan.fields:
        status_update.write_status(context, body, *_told(plan, table), plan.events)
    else:
        for event in plan.events:
            context.kube.post_event(body, event)
    return plan.requeue_after if table.ready else min(plan.requeue_after, TABLE_SECONDS)


def _told(plan: TopicPlan, table: TablePlan) -> tuple[tuple[Condition, ...], Mapping[str, Any]]:
    """Return conditions and fields of the status; without conditions the former ones stay."""
    told = plan.conditions
    if told and table.condition is not None:
        told = (*told, table.condition)
    return told, {**plan.fields, "table": dict(table.fields) or None}


def _has_changed(body: Body, written: Body) -> bool:
    """Return whether the resource was changed or deleted after it was planned."""
    before, after = body["metadata"], written["metadata"]
    return any(before.get(one) != after.get(one) for one in ("generation", "deletionTimestamp"))


def _execute(
    context: ReconcileContext, zookeeper: ZooKeeper | None, body: Body, plan: TopicPlan
) -> bool:
    """Execute the steps in order; False if one lost a race, so that the Topic is planned again."""
    # A status that was just written proves that the body is current.
    if not plan.status_first and not still_wanted(context, body):
        return False
    for step in plan.steps:
        if isinstance(step, SetFinalizer):
            set_finalizer(context, body, step.present)
            continue
        if isinstance(step, StartMove):
            if not _start_move(context, body, step):
                return False
            continue
        assert zookeeper is not None
        try:
            zookeeper.commit(topic_operations(step))
        except TransactionFailedError as error:
            log.info("%s: failed to commit: %s; retrying", body["metadata"]["name"], error)
            return False
        log.info("%s: %s", body["metadata"]["name"], step)
    return True


def _start_move(context: ReconcileContext, body: Body, step: StartMove) -> bool:
    """Create a Topic's Reassignment, unless the API server knows one that is still running.

    Raises NotOwnError where somebody else's has its name.
    """
    meta = body["metadata"]
    selector = f"{reassign.TOPIC_LABEL}={meta['uid']}"
    kind = str(step.wanted["kind"])
    found = context.kube.select(spec.API_VERSION, kind, meta["namespace"], selector)
    if reassign.running(reassign.owned_by(meta["uid"], found)) is not None:
        return False
    try:
        # Do not cache: the watch event would be deduplicated and never reconciled.
        context.kube.create(step.wanted)
    except KubeError as error:
        if error.code != 409:
            raise
        place = step.wanted["metadata"]
        live = context.kube.get(spec.API_VERSION, kind, place["namespace"], place["name"])
        if live is not None and not belongs_to(meta["uid"], live):
            raise apply.NotOwnError(step.wanted) from None
        return False
    return True
