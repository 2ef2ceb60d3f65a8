"""The Topics of one cluster: one batched read, then topic by topic plan, execute, report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from odradek.zk import admin
from odradek_operator.shared import apply, observe, spec
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.spec import Body
from odradek_operator.shared.store import ResourceKey
from odradek_operator.shared.views import ClusterState, Owner, TopicView
from odradek_operator.shared.zookeeper import UnreachableError, ZooKeeper
from odradek_operator.topic import plan as topic_plan
from odradek_operator.topic import reassign
from odradek_operator.topic.execute import carry_out
from odradek_operator.topic.state import OwnMove

log = logging.getLogger(__name__)


def prepare(
    context: ReconcileContext,
    zookeeper: ZooKeeper | None,
    cluster: ClusterState,
    batch: Mapping[ResourceKey, Body],
    topics: Iterable[Body],
    reassignments: Sequence[Body],
) -> dict[ResourceKey, Callable[[], float]]:
    """Return one reconciliation per Topic of the batch.

    `topics` and `reassignments` are all resources of these kinds in the namespace. A Topic is left
    out if an older one of the batch may create the topic that its name collides with.
    """
    views = _read_views(zookeeper, batch.values())
    if views is None and cluster.owner is Owner.PRESENT:
        cluster = replace(ClusterState(cluster.owner, cluster.paused), reachable=False)
    by_topic: dict[tuple[str, str], list[Body]] = {}
    for one in topics:
        by_topic.setdefault((one["spec"]["clusterRef"]["name"], topic_name(one)), []).append(one)
    colliding = _colliding(batch)
    works: dict[ResourceKey, Callable[[], float]] = {}
    for key, body in batch.items():
        if key in colliding:
            continue
        name = topic_name(body)
        rivals = by_topic.get((body["spec"]["clusterRef"]["name"], name), ())
        view = views[name] if views else TopicView()
        works[key] = partial(
            _reconcile, context, zookeeper, body, view, cluster, rivals, reassignments
        )
    return works


def topic_name(body: Body) -> str:
    """Return the topic of a resource, whether its name is valid or not."""
    return str(body["spec"].get("topicName", body["metadata"]["name"]))


def _read_views(zookeeper: ZooKeeper | None, bodies: Iterable[Body]) -> dict[str, TopicView] | None:
    """Return the state per topic name; None if ZooKeeper does not answer.

    If a Topic is being deleted, the cache is bypassed.
    """
    if zookeeper is None:
        return None
    names, deleting = set[str](), False
    for body in bodies:
        names.add(topic_name(body))
        deleting = deleting or "deletionTimestamp" in body["metadata"]
    try:
        return observe.topics(zookeeper if deleting else zookeeper.cached, sorted(names))
    except UnreachableError as error:
        log.info("failed to read topics: %s; retrying", error)
        return None


def _colliding(batch: Mapping[ResourceKey, Body]) -> set[ResourceKey]:
    """Return the Topics whose metric name an older Topic of the batch has too."""
    found = set[ResourceKey]()
    if len(batch) == 1:
        return found
    seen: dict[str, str] = {}
    for key, body in sorted(batch.items(), key=lambda one: apply.age(one[1])):
        name = topic_name(body)
        if seen.setdefault(admin.metric_name(name), name) != name:
            found.add(key)
    return found


def _reconcile(
    context: ReconcileContext,
    zookeeper: ZooKeeper | None,
    body: Body,
    view: TopicView,
    cluster: ClusterState,
    rivals: Sequence[Body],
    reassignments: Sequence[Body],
) -> float:
    alone = all(one["metadata"]["uid"] == body["metadata"]["uid"] for one in rivals)
    conflict = None if alone else apply.older_rival(context, body, rivals)
    moves = reassign.owned_by(body["metadata"]["uid"], reassignments) if reassignments else ()
    return reconcile(context, zookeeper, body, view, cluster, conflict, moves)


def reconcile(
    context: ReconcileContext,
    zookeeper: ZooKeeper | None,
    body: Body,
    view: TopicView,
    cluster: ClusterState,
    conflict: str | None,
    moves: Sequence[OwnMove] = (),
) -> float:
    """Bring one topic nearer to its spec. `moves` are the Reassignments that it created."""
    meta, known = spec.parse_meta(body), body.get("status", {}).get("incarnation")
    deleting = meta.deleted is not None
    try:
        wanted = spec.parse_topic(spec.for_deletion(body) if deleting else body)
    except spec.InvalidSpec as error:
        return apply.refuse(context, body, error, ("incarnation",))
    if deleting:
        ending = meta.has_finalizer and apply.namespace_terminating(context, meta.namespace)
        plan = topic_plan.plan_deletion(meta, wanted, view, cluster, known, ending, context.now())
    else:
        plan = topic_plan.plan(meta, wanted, view, cluster, known, conflict, context.random, moves)
        if plan.awaits_leaders and topic_plan.was_just_created(body, context.now()):
            return topic_plan.SOON_SECONDS
    return carry_out(context, zookeeper, body, plan)
