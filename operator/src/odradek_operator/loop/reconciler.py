"""One pass of a cluster's loop: what all its resources share is read once, then each is done.

The result of a pass is, for each resource, in how many seconds to look again, or the error it ended
with. An error of one resource is told in its log line and metric and hinders no other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any

from odradek.values import BrokerId
from odradek.zk import admin
from odradek.zk.payload import ZnodeError
from odradek.zk.znodes import BrokerRegistration
from odradek_operator.cluster import reconcile as cluster_reconcile
from odradek_operator.group import observe as group_observe
from odradek_operator.group import reconcile as group_reconcile
from odradek_operator.group.driver_objects import Addresses
from odradek_operator.group.lag import Sample
from odradek_operator.loop.lease import NotHolderError
from odradek_operator.reassignment import reconcile as reassignment_reconcile
from odradek_operator.reassignment.reconcile import ReassignmentContext
from odradek_operator.shared import kube, metrics, observe, spec
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.spec import API_VERSION, Body, ClusterSpec
from odradek_operator.shared.store import ResourceKey, ResourceStore
from odradek_operator.shared.views import ClusterState, Owner, TopicView
from odradek_operator.shared.zookeeper import UnreachableError, ZooKeeper
from odradek_operator.topic import reassign
from odradek_operator.topic import reconcile as topic_reconcile
from odradek_operator.topic.state import OwnMove

log = logging.getLogger(__name__)

Result = float | Exception
STANDBY_SECONDS = 2.0
SOON_SECONDS = 2.0
# Topics that are written at once when there are many.
WRITERS = 8


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all resources of one cluster see in one pass."""

    state: ClusterState
    zookeeper: ZooKeeper | None
    addresses: Addresses | None
    endpoints: Mapping[int, tuple[str, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Reconciler:
    """Reconciles batches while `may_act`.

    Remembers per cluster since when its set of brokers has not changed, and of each group what was
    seen last: an operator that starts anew begins these anew.
    """

    context: ReconcileContext
    store: ResourceStore
    may_act: Callable[[str], bool] = lambda _namespace: True
    clock: Callable[[], float] = time.monotonic
    _windows: dict[str, tuple[Sample, ...]] = field(default_factory=dict)
    _settled: dict[tuple[str, str], tuple[frozenset[int], float]] = field(default_factory=dict)

    def reconcile(
        self, namespace: str, cluster: str, batch: Mapping[ResourceKey, Body]
    ) -> dict[ResourceKey, Result]:
        """Do one batch of one cluster (`engine.Reconcile`)."""
        if not self.may_act(namespace):
            for body in batch.values():
                # Who acts there tells its lag.
                metrics.GROUP_LAGS.drop(body["metadata"]["uid"])
            return dict.fromkeys(batch, STANDBY_SECONDS)
        results: dict[ResourceKey, Result] = {}
        kinds = {
            kind: {key: body for key, body in batch.items() if key.kind == kind}
            for kind in ("KafkaCluster", "Topic", "ConsumerGroup", "Reassignment")
        }
        for key, body in kinds["KafkaCluster"].items():
            results[key] = _timed(key, partial(self._kafka_cluster, body))
        others = ("Topic", "ConsumerGroup", "Reassignment")
        gone = not batch
        if any(kinds[kind] for kind in others):
            try:
                shared = self._shared(namespace, cluster)
            except (KubeError, ZnodeError, NotHolderError) as error:
                log.warning("%s/%s: %s", namespace, cluster, error)
                for key in (key for kind in others for key in kinds[kind]):
                    metrics.ERRORS.labels(kind=key.kind).inc()
                    results[key] = error
            else:
                gone = shared.state.owner is Owner.GONE
                results |= self._topics(shared, namespace, cluster, kinds["Topic"])
                results |= self._groups(shared, namespace, cluster, kinds["ConsumerGroup"])
                for key, body in kinds["Reassignment"].items():
                    results[key] = _timed(key, partial(self._reassignment, shared, body))
        self._forget_groups()
        if kinds["KafkaCluster"] or gone:
            self.context.zookeepers.keep(self._places)
        return results

    def _places(self) -> set[str]:
        return {_place(body) for body in self.store.select("KafkaCluster")}

    def _shared(self, namespace: str, cluster: str) -> _Shared:
        body = self._cluster_body(namespace, cluster)
        if body is None:
            return _Shared(ClusterState(Owner.GONE), None, None)
        if self._older(body, self._same_place(body)) is not None:
            return _Shared(ClusterState(Owner.CONFLICTED), None, None)
        owner = Owner.TERMINATING if "deletionTimestamp" in body["metadata"] else Owner.PRESENT
        try:
            wanted = spec.parse_cluster(body)
            valid = wanted.default_replication_factor <= wanted.replicas
        except spec.InvalidSpec:
            # Its brokers may still run with the configuration of before, which nobody knows here.
            wanted, valid = spec.parse_cluster(_without_config(body)), False
        state = ClusterState(owner, paused=wanted.paused, reachable=False, expected=wanted.replicas)
        try:
            zookeeper = self.context.zookeepers.get(wanted.zookeeper)
            registered = observe.brokers(zookeeper.watched)
        except UnreachableError as error:
            log.info("%s/%s: %s", namespace, cluster, error)
            return _Shared(state, None, None)
        state = self._state(namespace, cluster, owner, wanted, registered)
        if not valid:
            state = replace(state, default_partitions=None, default_replication_factor=None)
        endpoints = observe.endpoints(registered)
        return _Shared(state, zookeeper, _addresses(wanted, registered), endpoints)

    def _state(
        self,
        namespace: str,
        cluster: str,
        owner: Owner,
        wanted: ClusterSpec,
        registered: Mapping[BrokerId, BrokerRegistration],
    ) -> ClusterState:
        now, ids = self.clock(), frozenset[int](registered)
        before = self._settled.get((namespace, cluster))
        if before is None or before[0] != ids:
            before = self._settled[namespace, cluster] = (ids, now)
        return ClusterState(
            owner=owner,
            paused=wanted.paused,
            # A broker that is to go gets nothing new: it must become empty.
            brokers={
                broker_id: one.rack
                for broker_id, one in registered.items()
                if broker_id < wanted.replicas
            },
            expected=wanted.replicas,
            settled_seconds=now - before[1],
            default_partitions=wanted.default_partitions,
            default_replication_factor=wanted.default_replication_factor,
        )

    def _cluster_body(self, namespace: str, cluster: str) -> Body | None:
        """Return the cluster; that there is none is believed only of the API server itself."""
        known = self.store.get(ResourceKey("KafkaCluster", namespace, cluster))
        if known is not None:
            return known
        # Not stored: the event that brings it would then be no news, and nobody would look at it.
        return kube.custom(self.context.kube, "KafkaCluster", namespace, cluster)

    def _kafka_cluster(self, body: Body) -> float:
        conflict = self._older(body, self._same_place(body))
        return cluster_reconcile.reconcile(self.context, body, conflict)

    def _same_place(self, body: Body) -> list[Body]:
        """Return the clusters that keep their state in the same znodes, this one among them."""
        place = _place(body)
        return [one for one in self.store.select("KafkaCluster") if _place(one) == place]

    def _older(self, body: Body, rivals: Iterable[Body]) -> str | None:
        """Return the oldest rival that is older than this resource and really still exists."""
        uid = body["metadata"]["uid"]
        by_age = sorted([*rivals, body], key=_age)
        return self._first_existing(takewhile(lambda one: one["metadata"]["uid"] != uid, by_age))

    def _any_other(self, body: Body, rivals: Iterable[Body]) -> str | None:
        """Return a rival, older or younger, that really still exists."""
        uid = body["metadata"]["uid"]
        return self._first_existing(one for one in rivals if one["metadata"]["uid"] != uid)

    def _first_existing(self, rivals: Iterable[Body]) -> str | None:
        for rival in rivals:
            meta = rival["metadata"]
            fresh = kube.custom(self.context.kube, rival["kind"], meta["namespace"], meta["name"])
            if fresh is not None and fresh["metadata"]["uid"] == meta["uid"]:
                return str(meta["name"])
            self.store.drop(rival)
        return None

    def _topics(
        self, shared: _Shared, namespace: str, cluster: str, batch: Mapping[ResourceKey, Body]
    ) -> dict[ResourceKey, Result]:
        if not batch:
            return {}
        named = {key.name: body for key, body in batch.items()}
        views = topic_reconcile.read_views(shared.zookeeper, named)
        by_topic = self._by_name("Topic", namespace, cluster, topic_reconcile.topic_name)
        own_moves = self.store.select("Reassignment", namespace)
        state = shared.state
        if views is None and state.owner is Owner.PRESENT:
            state = ClusterState(state.owner, state.paused, False)
        works: dict[ResourceKey, Callable[[], float]] = {}
        colliding = _colliding(batch)
        for key, body in batch.items():
            if key in colliding:
                continue
            rivals = by_topic.get(topic_reconcile.topic_name(body), [])
            view = views[key.name] if views else TopicView()
            moves = reassign.owned_by(body["metadata"]["uid"], own_moves) if own_moves else ()
            works[key] = partial(self._topic, shared, state, body, view, rivals, moves)
        later: dict[ResourceKey, Result] = dict.fromkeys(colliding, SOON_SECONDS)
        if len(works) <= WRITERS:
            return later | {key: _timed(key, work) for key, work in works.items()}
        # Topics know nothing of each other, and each mostly waits for the API server.
        with ThreadPoolExecutor(WRITERS, "topics") as threads:
            acting = partial(self._timed_in_thread, namespace)
            return later | dict(zip(works, threads.map(acting, works.items()), strict=True))

    def _timed_in_thread(
        self, namespace: str, work: tuple[ResourceKey, Callable[[], float]]
    ) -> Result:
        # Which Lease a write needs is known by thread.
        return _timed(*work) if self.may_act(namespace) else STANDBY_SECONDS

    def _topic(
        self,
        shared: _Shared,
        state: ClusterState,
        body: Body,
        view: TopicView,
        rivals: list[Body],
        moves: Sequence[OwnMove],
    ) -> float:
        conflict = self._older(body, rivals)
        return topic_reconcile.reconcile(
            self.context, shared.zookeeper, body, view, state, conflict, moves
        )

    def _groups(
        self, shared: _Shared, namespace: str, cluster: str, batch: Mapping[ResourceKey, Body]
    ) -> dict[ResourceKey, Result]:
        by_group = self._by_name("ConsumerGroup", namespace, cluster, group_reconcile.group_name)
        return {
            key: _timed(
                key,
                partial(
                    self._group, shared, body, by_group.get(group_reconcile.group_name(body), [])
                ),
            )
            for key, body in batch.items()
        }

    def _forget_groups(self) -> None:
        """Forget what was seen of groups whose resources are gone."""
        existing = {body["metadata"]["uid"] for body in self.store.select("ConsumerGroup")}
        metrics.GROUP_LAGS.keep(existing)
        # Loops of other clusters do the same at the same time.
        for gone in set(self._windows) - existing:
            self._windows.pop(gone, None)

    def _group(self, shared: _Shared, body: Body, rivals: list[Body]) -> float:
        going = "deletionTimestamp" in body["metadata"]
        rival = self._any_other(body, rivals) if going else self._older(body, rivals)
        around = group_observe.GroupContext(
            shared.state,
            shared.zookeeper,
            shared.addresses,
            shared.endpoints,
            self._windows,
            self.clock,
        )
        return group_reconcile.reconcile(self.context, body, around, rival)

    def _by_name(
        self, kind: str, namespace: str, cluster: str, name_of: Callable[[Body], str]
    ) -> dict[str, list[Body]]:
        """Return the resources of a cluster by the topic or group that they are about."""
        found: dict[str, list[Body]] = {}
        for body in self.store.select(kind, namespace):
            if spec.cluster_of(body) == cluster:
                found.setdefault(name_of(body), []).append(body)
        return found

    def _reassignment(self, shared: _Shared, body: Body) -> float:
        around = ReassignmentContext(
            shared.state, shared.zookeeper, shared.endpoints, partial(self._running, body)
        )
        return reassignment_reconcile.reconcile(self.context, body, around)

    def _running(self, body: Body) -> str | None:
        """Return another Reassignment of the same cluster that runs, by the API server's word."""
        meta = body["metadata"]
        for other in self.context.kube.select(API_VERSION, body["kind"], meta["namespace"]):
            same = spec.cluster_of(other) == spec.cluster_of(body)
            runs = other.get("status", {}).get("phase") == "Running"
            if same and runs and other["metadata"]["uid"] != meta["uid"]:
                return str(other["metadata"]["name"])
        return None


def _addresses(
    wanted: ClusterSpec, registered: Mapping[BrokerId, BrokerRegistration]
) -> Addresses | None:
    if not registered:
        return None
    return Addresses(",".join(observe.addresses(registered).values()), wanted.zookeeper)


def _without_config(body: Body) -> dict[str, Any]:
    brokers = {name: value for name, value in body["spec"]["brokers"].items() if name != "config"}
    return {**body, "spec": {**body["spec"], "brokers": brokers}}


def _place(body: Body) -> str:
    zookeeper = body["spec"]["zookeeper"]
    return spec.connect_string(zookeeper["connect"], zookeeper.get("chroot", "/"))


def _colliding(batch: Mapping[ResourceKey, Body]) -> set[ResourceKey]:
    """Return the Topics that must see first whether an older one creates what they collide with."""
    seen: dict[str, str] = {}
    found = set()
    for key, body in sorted(batch.items(), key=lambda one: _age(one[1])):
        name = topic_reconcile.topic_name(body)
        if seen.setdefault(admin.metric_name(name), name) != name:
            found.add(key)
    return found


def _age(body: Body) -> tuple[str, str]:
    return body["metadata"]["creationTimestamp"], body["metadata"]["uid"]


def _timed(key: ResourceKey, work: Callable[[], float]) -> Result:
    """Run one reconciliation, and count it."""
    began = time.monotonic()
    try:
        again = work()
    except (KubeError, UnreachableError, ZnodeError, NotHolderError) as error:
        log.warning("%s %s/%s: %s", key.kind, key.namespace, key.name, error)
        metrics.ERRORS.labels(kind=key.kind).inc()
        return error
    except Exception as error:
        # A programmer's error in one resource's case must not stop the others of its cluster.
        log.exception("%s %s/%s", key.kind, key.namespace, key.name)
        metrics.ERRORS.labels(kind=key.kind).inc()
        return error
    metrics.RECONCILE_SECONDS.labels(kind=key.kind).observe(time.monotonic() - began)
    metrics.LAST_SUCCESS.labels(kind=key.kind).set_to_current_time()
    return again
