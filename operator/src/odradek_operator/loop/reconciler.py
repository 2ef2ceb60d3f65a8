"""One batch of one cluster: read what its resources share, then reconcile each of them.

The result is, per resource, the seconds until the next look, or the error. An error is logged,
counted, and affects no other resource.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from odradek.values import BrokerId
from odradek.zk.payload import ZnodeError
from odradek.zk.znodes import BrokerRegistration
from odradek_operator.cluster import reconcile as cluster_reconcile
from odradek_operator.group import reconcile as group_reconcile
from odradek_operator.group.driver_objects import Addresses
from odradek_operator.group.lag import Sample
from odradek_operator.group.observe import GroupContext
from odradek_operator.loop.lease import NotHolderError
from odradek_operator.reassignment import reconcile as reassignment_reconcile
from odradek_operator.reassignment.reconcile import ReassignmentContext
from odradek_operator.shared import (
    apply,
    authorities,
    client_users,
    cluster_access,
    cluster_secrets,
    cluster_spec,
    connect_strings,
    kube,
    metrics,
    observe,
    spec,
    zookeeper_login,
)
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.authorities import CLUSTER_CA
from odradek_operator.shared.broker_security import OperatorSecurity
from odradek_operator.shared.cluster_access import ClusterAccess
from odradek_operator.shared.cluster_spec import MIN_INSYNC, ClusterSpec
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.spec import API_VERSION, Body, ClusterKey
from odradek_operator.shared.store import ResourceKey, ResourceStore
from odradek_operator.shared.views import ClusterState, Owner
from odradek_operator.shared.zookeeper import RefusedError, UnreachableError, ZooKeeper
from odradek_operator.shared.zookeeper_login import ClientFiles, CredentialsError
from odradek_operator.topic import batch as topic_batch
from odradek_operator.topic.table import TableContext, TablePlaces
from odradek_operator.user import plan as user_plan
from odradek_operator.user import reconcile as user_reconcile
from odradek_operator.user.plan import UserCluster

log = logging.getLogger(__name__)

Result = float | Exception
STANDBY_SECONDS = 2.0
# Topics or groups that are reconciled at once when there are many.
WRITERS = 8


@dataclass(frozen=True, slots=True)
class _ClusterContext:
    """What all resources of a cluster share in one batch.

    `connect` is the connect string of its ZooKeeper, as pods of its `namespace` know it.
    `registered` are its brokers. `body` is None where it is not there, or not known.
    """

    state: ClusterState
    body: Body | None = None
    zookeeper: ZooKeeper | None = None
    connect: str = ""
    namespace: str = ""
    registered: Mapping[BrokerId, BrokerRegistration] = field(default_factory=dict)
    access: ClusterAccess | None = None
    wanted: ClusterSpec | None = None
    authority: int = 0

    @property
    def listener(self) -> str | None:
        """Return the listener that clients of ours use; None: the first."""
        return None if self.access is None else self.access.listener


@dataclass(slots=True)
class Reconciler:
    """Reconciles batches in the namespaces in which it `may_act`.

    Remembers per cluster since when its set of brokers is unchanged, and per group the last
    samples; a restarted operator starts over.
    """

    context: ReconcileContext
    store: ResourceStore
    may_act: Callable[[str], bool] = lambda _namespace: True
    clock: Callable[[], float] = time.monotonic
    _windows: dict[str, tuple[Sample, ...]] = field(default_factory=dict)
    _settled: dict[tuple[str, str], tuple[frozenset[int], float]] = field(default_factory=dict)

    def reconcile(
        self,
        namespace: str,
        cluster: ClusterKey,
        batch: Mapping[ResourceKey, Body],
        progress: Callable[[], None] = lambda: None,
    ) -> dict[ResourceKey, Result]:
        """Reconcile one batch of one namespace and cluster (`workqueue.Reconcile`)."""
        if not self.may_act(namespace):
            for body in batch.values():
                # The operator that acts there reports its lag.
                metrics.GROUP_LAGS.drop(body["metadata"]["uid"])
            return dict.fromkeys(batch, STANDBY_SECONDS)
        results: dict[ResourceKey, Result] = {}
        kinds: dict[str, dict[ResourceKey, Body]] = {}
        for key, body in batch.items():
            kinds.setdefault(key.kind, {})[key] = body
        clusters = kinds.pop("KafkaCluster", {})
        for key, body in clusters.items():
            results[key] = _timed(key, partial(self._kafka_cluster, body), progress)
        gone = not batch
        if kinds:
            try:
                around = self._observe(namespace, cluster)
            except (KubeError, ZnodeError, NotHolderError) as error:
                log.warning("failed to observe %s/%s: %s; retrying", *cluster, error)
                for key in (key for bodies in kinds.values() for key in bodies):
                    metrics.ERRORS.labels(kind=key.kind).inc()
                    results[key] = error
            else:
                gone = around.state.owner in (Owner.GONE, Owner.NOT_PERMITTED)
                users = user_plan.view_cluster(around.state, around.body)
                for key, body in kinds.get("User", {}).items():
                    work = partial(self._user, around, users, body)
                    results[key] = _timed(key, work, progress)
                topics, groups = kinds.get("Topic", {}), kinds.get("ConsumerGroup", {})
                results |= self._topics(around, namespace, topics, progress)
                results |= self._groups(around, namespace, groups, progress)
                for key, body in kinds.get("Reassignment", {}).items():
                    work = partial(self._reassignment, around, body)
                    results[key] = _timed(key, work, progress)
        self._forget_groups()
        if clusters or gone:
            self.context.zookeepers.keep(self._connect_strings)
        return results

    def _connect_strings(self) -> set[str]:
        return {
            self.context.connect_from_here(_connect_string(body), body["metadata"]["namespace"])
            for body in self.store.select("KafkaCluster")
        }

    def _observe(self, resident: str, cluster: ClusterKey) -> _ClusterContext:
        """Read what all resources of a cluster share that are in the namespace `resident`."""
        namespace, name = cluster
        clusters = self.store.select("KafkaCluster")
        try:
            body = self._cluster_body(namespace, name, clusters)
        except KubeError as error:
            if error.code != 403 or namespace == resident:
                raise
            return _ClusterContext(ClusterState(Owner.UNWATCHED))
        if namespace != resident and not spec.may_refer(resident, body):
            return self._not_permitted(body)
        if body is None:
            return _ClusterContext(ClusterState(Owner.GONE))
        if self._older_cluster(body, clusters) is not None:
            return _ClusterContext(ClusterState(Owner.CONFLICTED), body)
        owner = Owner.TERMINATING if "deletionTimestamp" in body["metadata"] else Owner.PRESENT
        try:
            wanted = cluster_spec.parse_cluster(body)
            valid = wanted.default_replication_factor <= wanted.fewest_nodes
        except spec.InvalidSpec as error:
            # Its brokers may still run with the previous configuration, which is not known here.
            found = cluster_spec.read_without_faults(body)
            if found is None:
                paused = bool(body["spec"].get("paused"))
                away = f"the spec of KafkaCluster {name} is invalid: {error.message}"
                state = ClusterState(owner, paused=paused, reachable=False, away=away)
                return _ClusterContext(state, body, namespace=namespace)
            wanted, valid = found, False
        state = ClusterState(owner, paused=wanted.paused, reachable=False, wanted=wanted.brokers)
        access = cluster_access.of_cluster(name, wanted)
        try:
            zookeeper = zookeeper_login.connected(self.context, body, wanted)
            zookeeper_login.require_decision(body, wanted)
            registered = observe.brokers(zookeeper.cached)
        except UnreachableError as error:
            log.info("failed to read brokers of %s/%s: %s; retrying", namespace, name, error)
            if isinstance(error, CredentialsError | RefusedError):
                state = replace(state, away=str(error))
            return _ClusterContext(state, body, namespace=namespace, access=access, wanted=wanted)
        except ZnodeError as error:
            log.warning("failed to read brokers of %s/%s: %s; retrying", namespace, name, error)
            state = replace(state, away=str(error))
            return _ClusterContext(state, body, namespace=namespace, access=access, wanted=wanted)
        state = replace(
            state,
            reachable=True,
            # A broker that is to be removed must become empty: it gets no new replicas.
            brokers={one: found.rack for one, found in registered.items() if one in wanted.brokers},
            nodes=(
                observe.nodes(body, registered, access.listener if access else None)
                if wanted.brokers.share_nodes or observe.share_nodes(body)
                else {}
            ),
            settled_seconds=self._settled_seconds(namespace, name, frozenset(registered)),
            default_partitions=wanted.default_partitions if valid else None,
            default_replication_factor=wanted.default_replication_factor if valid else None,
            min_insync=int(wanted.config.get(MIN_INSYNC, "1")),
            deletes_topics=wanted.deletes_topics,
        )
        return _ClusterContext(
            state,
            body,
            zookeeper,
            wanted.zookeeper,
            namespace,
            registered,
            access,
            wanted,
            self._authority(namespace, access),
        )

    def _not_permitted(self, body: Body | None) -> _ClusterContext:
        """Return what it takes to remove the user of a job that may not run any more."""
        found = _ClusterContext(ClusterState(Owner.NOT_PERMITTED))
        if body is None:
            return found
        wanted = cluster_spec.read_without_faults(body)
        if wanted is not None and wanted.listeners:
            with contextlib.suppress(UnreachableError):
                zookeeper = zookeeper_login.connected(self.context, body, wanted)
                found = replace(found, zookeeper=zookeeper)
        return found

    def _settled_seconds(self, namespace: str, cluster: str, ids: frozenset[BrokerId]) -> float:
        """Return for how long the set of registered brokers has been the same."""
        now = self.clock()
        before = self._settled.get((namespace, cluster))
        if before is None or before[0] != ids:
            before = self._settled[namespace, cluster] = (ids, now)
        return now - before[1]

    def _cluster_body(self, namespace: str, name: str, known: Iterable[Body]) -> Body | None:
        """Return the cluster; None only if the API server, not the cache, reports it missing."""
        for body in known:
            if (body["metadata"]["namespace"], body["metadata"]["name"]) == (namespace, name):
                return body
        # Do not cache: the watch event would be deduplicated and never reconciled.
        return kube.custom(self.context.kube, "KafkaCluster", namespace, name)

    def _kafka_cluster(self, body: Body) -> float:
        conflict = self._older_cluster(body, self.store.select("KafkaCluster"))
        return cluster_reconcile.reconcile(self.context, body, conflict)

    def _older_cluster(self, body: Body, clusters: Iterable[Body]) -> str | None:
        """Return an older cluster that keeps its state in the same znodes."""
        uid = body["metadata"]["uid"]
        others = [one for one in clusters if one["metadata"]["uid"] != uid]
        rivals = [one for one in others if connect_strings.share_znodes(one, body)]
        if not rivals:
            return None
        return apply.older_rival(self.context, body, rivals)

    def _user(self, cluster: _ClusterContext, around: UserCluster, body: Body) -> float:
        return user_reconcile.reconcile(self.context, body, around, cluster.zookeeper)

    def _topics(
        self,
        cluster: _ClusterContext,
        namespace: str,
        batch: Mapping[ResourceKey, Body],
        progress: Callable[[], None],
    ) -> dict[ResourceKey, Result]:
        if not batch:
            return {}
        works = topic_batch.prepare(
            self.context,
            cluster.zookeeper,
            cluster.state,
            batch,
            self.store.select("Topic", namespace),
            self.store.select("Reassignment", namespace),
            self._tables(namespace),
        )
        return self._run_all(namespace, works, progress)

    def _run_all(
        self,
        namespace: str,
        works: Mapping[ResourceKey, Callable[[], float]],
        progress: Callable[[], None],
    ) -> dict[ResourceKey, Result]:
        """Run works that are independent of each other, at once if they are many.

        Each mostly waits for somebody: the API server, a broker, a driver.
        """
        if len(works) <= WRITERS:
            return {key: _timed(key, work, progress) for key, work in works.items()}
        with ThreadPoolExecutor(WRITERS, "works") as threads:
            acting = partial(self._timed_in_thread, namespace, progress)
            return dict(zip(works, threads.map(acting, works.items()), strict=True))

    def _tables(self, namespace: str) -> TableContext:
        # Two Topics may name one place, wherever they are.
        with_table = TablePlaces(
            one for one in self.store.select("Topic") if "table" in one["spec"]
        )
        groups = self.store.select("ConsumerGroup", namespace)
        return TableContext(with_table, {one["metadata"]["name"]: one for one in groups})

    def _timed_in_thread(
        self,
        namespace: str,
        progress: Callable[[], None],
        work: tuple[ResourceKey, Callable[[], float]],
    ) -> Result:
        # Each thread declares which Lease its writes need.
        return _timed(*work, progress) if self.may_act(namespace) else STANDBY_SECONDS

    def _groups(
        self,
        cluster: _ClusterContext,
        namespace: str,
        batch: Mapping[ResourceKey, Body],
        progress: Callable[[], None],
    ) -> dict[ResourceKey, Result]:
        if not batch:
            return {}
        by_group: dict[tuple[ClusterKey, str], list[Body]] = {}
        for one in self.store.select("ConsumerGroup"):
            # The store may not have the cluster yet.
            if _is_permitted(one, cluster.body):
                by_group.setdefault(_group_of(one), []).append(one)
        try:
            files = self._client_files(cluster)
        except KubeError as error:
            log.warning("failed to read with what jobs connect to ZooKeeper: %s; retrying", error)
            metrics.ERRORS.labels(kind="ConsumerGroup").inc(len(batch))
            return dict.fromkeys(batch, error)
        endpoints = observe.endpoints(cluster.registered, cluster.listener)
        bootstrap = ",".join(observe.addresses(cluster.registered, cluster.listener).values())
        around = GroupContext(
            cluster.state,
            cluster.zookeeper,
            Addresses(bootstrap, _connect_from(namespace, cluster)) if bootstrap else None,
            endpoints,
            self._windows,
            self.clock,
            cluster.access,
            cluster.namespace,
            self._security(cluster),
            cluster.authority,
            files,
        )
        works = {
            key: partial(self._group, around, body, by_group.get(_group_of(body), []))
            for key, body in batch.items()
        }
        return self._run_all(namespace, works, progress)

    def _authority(self, namespace: str, access: ClusterAccess | None) -> int:
        """Return how many CAs followed the first, of those that are published. Raises KubeError."""
        if access is None or not access.tls:
            return 0
        api = self.context.kube
        kept = api.get("v1", "Secret", namespace, cluster_secrets.authorities(access.cluster))
        state = authorities.decode(cluster_access.field(kept, authorities.key_of(CLUSTER_CA)))
        if state is None or not state.generation:
            return 0
        public = api.get("v1", "Secret", namespace, access.ca_secret)
        known = cluster_access.field(public, cluster_secrets.CA_CERTIFICATE)
        return state.generation - (state.newest.certificate not in known)

    def _client_files(self, cluster: _ClusterContext) -> ClientFiles:
        """Return with what jobs connect to ZooKeeper. Raises KubeError."""
        if cluster.wanted is None:
            return ClientFiles()
        return zookeeper_login.client_files(self.context, cluster.namespace, cluster.wanted)

    def _security(self, cluster: _ClusterContext) -> OperatorSecurity | None:
        """Return what the operator's connections to the brokers need; None: nothing."""
        if cluster.access is None:
            return None
        try:
            return client_users.operator_security(
                self.context.kube, cluster.namespace, cluster.access
            )
        except KubeError as error:
            return OperatorSecurity(problem=str(error))

    def _forget_groups(self) -> None:
        """Forget the samples of groups whose resources are gone."""
        existing = {body["metadata"]["uid"] for body in self.store.select("ConsumerGroup")}
        metrics.GROUP_LAGS.keep(existing)
        # Queues of other clusters do the same at the same time.
        for gone in set(self._windows) - existing:
            self._windows.pop(gone, None)

    def _group(self, around: GroupContext, body: Body, rivals: list[Body]) -> float:
        deleting = "deletionTimestamp" in body["metadata"]
        find = apply.staying_rival if deleting else apply.older_rival
        return group_reconcile.reconcile(
            self.context, body, around, find(self.context, body, rivals)
        )

    def _reassignment(self, cluster: _ClusterContext, body: Body) -> float:
        around = ReassignmentContext(
            cluster.state,
            cluster.zookeeper,
            observe.endpoints(cluster.registered, cluster.listener),
            partial(self._running, body),
            self._security(cluster),
        )
        return reassignment_reconcile.reconcile(self.context, body, around)

    def _running(self, body: Body) -> str | None:
        """Return another running Reassignment of the same cluster, asking the API server.

        For one that is known to run, it is asked by name: a thousand may wait for the same one, and
        a list of them for each would be a million.
        """
        kind, namespace = body["kind"], body["metadata"]["namespace"]
        api = self.context.kube
        for known in self.store.select(kind, namespace):
            if _runs_beside(body, known):
                fresh = kube.custom(api, kind, namespace, known["metadata"]["name"])
                if fresh is not None and _runs_beside(body, fresh):
                    return str(fresh["metadata"]["name"])
        others = api.select(API_VERSION, kind, namespace)
        running = (one for one in others if _runs_beside(body, one))
        return next((str(one["metadata"]["name"]) for one in running), None)


def _runs_beside(body: Body, other: Body) -> bool:
    """Return whether another Reassignment of the same cluster runs."""
    return (
        other.get("status", {}).get("phase") == "Running"
        and other["metadata"]["uid"] != body["metadata"]["uid"]
        and spec.cluster_of(other) == spec.cluster_of(body)
    )


def _is_permitted(group: Body, cluster: Body | None) -> bool:
    """Return whether a ConsumerGroup counts among those of its cluster."""
    resident = group["metadata"]["namespace"]
    return spec.cluster_of(group).namespace == resident or spec.may_refer(resident, cluster)


def _group_of(body: Body) -> tuple[ClusterKey, str]:
    return spec.cluster_of(body), group_reconcile.group_name(body)


def _connect_from(namespace: str, cluster: _ClusterContext) -> str:
    """Return the connect string for pods of a namespace."""
    if namespace == cluster.namespace:
        return cluster.connect
    return connect_strings.qualified(cluster.connect, cluster.namespace)


def _connect_string(body: Body) -> str:
    zookeeper = body["spec"]["zookeeper"]
    return connect_strings.connect_string(zookeeper["connect"], zookeeper.get("chroot", "/"))


def _timed(key: ResourceKey, work: Callable[[], float], progress: Callable[[], None]) -> Result:
    """Run one reconciliation, and count it."""
    began = time.monotonic()
    try:
        requeue_after = work()
    except (KubeError, UnreachableError, ZnodeError, NotHolderError) as error:
        log.warning(
            "failed to reconcile %s %s/%s: %s; retrying", key.kind, key.namespace, key.name, error
        )
        metrics.ERRORS.labels(kind=key.kind).inc()
        return error
    except Exception as error:
        # A bug that one resource triggers must not stop the others of its cluster.
        log.exception("failed to reconcile %s %s/%s", key.kind, key.namespace, key.name)
        metrics.ERRORS.labels(kind=key.kind).inc()
        return error
    finally:
        progress()
    metrics.RECONCILE_SECONDS.labels(kind=key.kind).observe(time.monotonic() - began)
    metrics.LAST_SUCCESS.labels(kind=key.kind).set_to_current_time()
    return requeue_after
