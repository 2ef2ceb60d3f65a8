"""The Topics of a batch: their znodes read at once, and one reconciliation per Topic."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from odradek.zk import admin
from odradek_operator.shared import apply, observe
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.spec import Body
from odradek_operator.shared.store import ResourceKey
from odradek_operator.shared.views import ClusterState, Owner, TopicView
from odradek_operator.shared.zookeeper import UnreachableError, ZooKeeper
from odradek_operator.topic import topic_spec
from odradek_operator.topic.reconcile import reconcile_topic
from odradek_operator.topic.table import TableContext

log = logging.getLogger(__name__)


def prepare(
    context: ReconcileContext,
    zookeeper: ZooKeeper | None,
    cluster: ClusterState,
    batch: Mapping[ResourceKey, Body],
    topics: Iterable[Body],
    reassignments: Sequence[Body],
    tables: TableContext,
) -> dict[ResourceKey, Callable[[], float]]:
    """Return one reconciliation per Topic of the batch.

    `topics` and `reassignments` are all resources of these kinds in the namespace.
    """
    views: Mapping[str, TopicView] | None = None
    away = cluster.away
    try:
        views = _read_views(zookeeper, batch.values())
    except UnreachableError as error:
        log.info("failed to read topics: %s; retrying", error)
        away = str(error)
    if views is None and cluster.owner is Owner.PRESENT:
        cluster = ClusterState(cluster.owner, cluster.paused, reachable=False, away=away)
    by_topic: dict[tuple[str, str], list[Body]] = {}
    for one in topics:
        name = topic_spec.topic_name(one)
        by_topic.setdefault((one["spec"]["clusterRef"]["name"], name), []).append(one)
    owned: dict[str, list[Body]] = {}
    for one in reassignments:
        for owner in one["metadata"].get("ownerReferences", ()):
            owned.setdefault(owner["uid"], []).append(one)
    colliding = _colliding(batch)
    works: dict[ResourceKey, Callable[[], float]] = {}
    for key, body in batch.items():
        name = topic_spec.topic_name(body)
        rivals = by_topic.get((body["spec"]["clusterRef"]["name"], name), ())
        view = views[name] if views else TopicView()
        if key in colliding:
            view = replace(view, preceding=colliding[key])
        moves = owned.get(body["metadata"]["uid"], ())
        works[key] = partial(
            reconcile_topic, context, zookeeper, body, view, cluster, rivals, moves, tables
        )
    return works


def _read_views(zookeeper: ZooKeeper | None, bodies: Iterable[Body]) -> dict[str, TopicView] | None:
    """Return the state per topic name; None without a ZooKeeper. Raises UnreachableError.

    If a Topic is being deleted, the cache is bypassed.
    """
    if zookeeper is None:
        return None
    names, deleting = set[str](), False
    for body in bodies:
        names.add(topic_spec.topic_name(body))
        deleting = deleting or "deletionTimestamp" in body["metadata"]
    return observe.topics(zookeeper if deleting else zookeeper.cached, sorted(names))


def _colliding(batch: Mapping[ResourceKey, Body]) -> dict[ResourceKey, str]:
    """Return the Topics whose metric name an older Topic of the batch has too, with its topic."""
    found: dict[ResourceKey, str] = {}
    if len(batch) == 1:
        return found
    seen: dict[str, str] = {}
    for key, body in sorted(batch.items(), key=lambda one: apply.age(one[1])):
        name = topic_spec.topic_name(body)
        older = seen.setdefault(admin.metric_name(name), name)
        if older != name:
            found[key] = older
    return found
