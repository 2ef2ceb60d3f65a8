"""Work queues: two threads per cluster, fed by watches, paced by due times.

kopf's handlers only call `submit`: the store keeps the newest body of every resource, and a queue
of the resource's cluster is woken. A queue takes what is due, as one batch, and reconciles it in
order of kind: clusters, users, topics, reassignments. Groups have a queue of their own: brokers and
drivers are asked for each of them, and one that does not answer must not delay a rolling change.
Each reconciliation returns after how many seconds to requeue; a failed one is retried with
exponential back-off. So nothing depends on seeing every event, and a cluster whose ZooKeeper is
unreachable delays no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from odradek.zk import admin
from odradek_operator.group import reconcile as group_reconcile
from odradek_operator.shared import metrics, spec
from odradek_operator.shared.spec import Body, ClusterKey
from odradek_operator.shared.store import KIND_ORDER, ResourceKey, ResourceStore, key_of
from odradek_operator.topic import topic_spec

BATCH: Final = 100
FIRST_RETRY_SECONDS: Final = 1.0
# A cluster that comes back after an outage is reconciled within this time.
LONGEST_RETRY_SECONDS: Final = 15.0
# Distant due times are aligned, so that one batch takes them all.
GRID_SECONDS: Final = 5.0
# A resource may wait for ZooKeeper and the API server several times. A batch of which none is done
# for longer than this is stuck.
STUCK_SECONDS: Final = 300.0

log = logging.getLogger(__name__)


# Reconciles a batch of resources of one namespace and one cluster; returns seconds until each is
# looked at again, or the exception that it ended with. The last argument is called as each is done.
Reconcile = Callable[
    [str, ClusterKey, Mapping[ResourceKey, Body], Callable[[], None]],
    Mapping[ResourceKey, float | Exception],
]


class ClusterQueue:
    """A work queue of what one namespace has of one cluster, with its thread."""

    def __init__(
        self, namespace: str, cluster: ClusterKey, store: ResourceStore, reconcile: Reconcile
    ) -> None:
        self._namespace = namespace
        self._cluster = cluster
        self._store = store
        self._reconcile = reconcile
        self._wake = threading.Condition()
        self._due: dict[ResourceKey, float] = {}
        self._failures: dict[ResourceKey, int] = {}
        self._stopping = False
        # When the batch under way began, or a resource of it was last done.
        self._progressed_at: float | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"queue-{namespace}-{cluster.name}", daemon=True
        )
        self._thread.start()

    @property
    def stuck(self) -> bool:
        """Return whether the thread has died, or has done nothing of its batch for too long."""
        since = self._progressed_at
        late = since is not None and time.monotonic() - since > STUCK_SECONDS
        return late or not (self._thread.is_alive() or self._stopping)

    def add(self, key: ResourceKey) -> None:
        """Make a resource due now. Its failures stay counted: the spec may still be bad."""
        with self._wake:
            self._due[key] = time.monotonic()
            self._wake.notify()

    def waiting(self) -> int:
        """Return how many resources are due."""
        with self._wake:
            now = time.monotonic()
            return sum(moment <= now for moment in self._due.values())

    @property
    def idle(self) -> bool:
        """Return whether nothing is due, and no batch is under way."""
        return self._progressed_at is None and not self.waiting()

    def stop(self) -> None:
        """Stop the thread after its current batch."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            batch = self._take()
            if batch is None:
                return
            self._progress()
            try:
                self._run_batch(batch)
            except Exception:
                # Without this a bug would end the thread unnoticed.
                log.exception(
                    "failed to reconcile what %s has of %s/%s; retrying",
                    self._namespace,
                    *self._cluster,
                )
                for key in batch:
                    self._requeue(key, RuntimeError("failed to reconcile the batch"))
            finally:
                self._progressed_at = None

    def _take(self) -> list[ResourceKey] | None:
        """Wait for due resources and return a batch, in order of kind; None at the end."""
        with self._wake:
            while not self._stopping:
                now = time.monotonic()
                due = sorted(
                    (key for key, moment in self._due.items() if moment <= now),
                    key=lambda key: (KIND_ORDER.index(key.kind), self._due[key]),
                )
                if due:
                    taken = due[:BATCH]
                    for key in taken:
                        del self._due[key]
                    return taken
                earliest = min(self._due.values(), default=None)
                self._wake.wait(None if earliest is None else max(0.0, earliest - now))
            return None

    def _run_batch(self, batch: list[ResourceKey]) -> None:
        bodies = {key: body for key in batch if (body := self._body(key)) is not None}
        for key in set(batch) - set(bodies):
            self._failures.pop(key, None)
        done = self._reconcile(self._namespace, self._cluster, bodies, self._progress)
        for key, result in done.items():
            self._requeue(key, result)

    def _progress(self) -> None:
        self._progressed_at = time.monotonic()

    def _body(self, key: ResourceKey) -> Body | None:
        """Return a resource of this cluster: one made anew under its name may be of another."""
        body = self._store.get(key)
        return body if body is not None and spec.cluster_of(body) == self._cluster else None

    def _requeue(self, key: ResourceKey, result: float | Exception) -> None:
        if isinstance(result, Exception):
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            wait = min(FIRST_RETRY_SECONDS * 2 ** min(failures - 1, 10), LONGEST_RETRY_SECONDS)
        else:
            self._failures.pop(key, None)
            wait = result
        moment = time.monotonic() + wait
        if wait > GRID_SECONDS:
            moment -= moment % GRID_SECONDS
        with self._wake:
            # If an event came meanwhile, the resource is due already and stays so.
            self._due[key] = min(self._due.get(key, moment), moment)


# What a namespace has of a cluster: its groups, or the rest.
Place = tuple[str, ClusterKey, bool]


class WorkQueues:
    """All work queues of this process, two per cluster: its groups', and that of the rest."""

    def __init__(self, store: ResourceStore, reconcile: Reconcile) -> None:
        self._store = store
        self._reconcile = reconcile
        self._lock = threading.Lock()
        self._queues: dict[Place, ClusterQueue] = {}
        # How far each Reassignment was when Topics were last queued for it.
        self._followed: dict[ResourceKey, tuple[object, ...]] = {}
        self._stopped = False

    def submit(self, body: Body) -> None:
        """Queue a resource that is new or changed."""
        former = self._store.get(key_of(body))
        if self._store.put(body):
            self._add(key_of(body), spec.cluster_of(body))
            if body["kind"] == "KafkaCluster":
                self._wake_dependents(body, ready_too=_wants_other(former, body))
            self._wake_owners(body)
        if body["kind"] == "Reassignment":
            self._follow(body)

    def drop(self, body: Body) -> None:
        """Drop a deleted resource and queue what may have waited for its end."""
        self._store.drop(body)
        self._followed.pop(key_of(body), None)
        self._wake_owners(body)
        if body["kind"] == "KafkaCluster":
            self._wake_dependents(body, ready_too=True)
            # One more, empty batch closes the cluster's session.
            self._add(key_of(body), spec.cluster_of(body))
        else:
            self._wake_rivals(body)

    def wake(self, key: ResourceKey) -> None:
        """Queue a resource, because one of its owned objects changed."""
        body = self._store.get(key)
        if body is not None:
            self._add(key, spec.cluster_of(body))

    def _wake_owners(self, body: Body) -> None:
        """Queue a Topic that waits for the Reassignment, or shows the ConsumerGroup, it created."""
        for owner in body["metadata"].get("ownerReferences", ()):
            self.wake(ResourceKey(owner["kind"], body["metadata"]["namespace"], owner["name"]))

    def _follow(self, body: Body) -> None:
        """Queue the Topics whose replicas a Reassignment moves, at each of its steps.

        Its status is an own write, and so no news for the store.
        """
        key, progress = key_of(body), _progress(body)
        if self._followed.get(key) == progress:
            return
        self._followed[key] = progress
        topics = _moved_topics(body)
        for other in self._store.select("Topic", body["metadata"]["namespace"]):
            same = spec.cluster_of(other) == spec.cluster_of(body)
            if same and (topics is None or topic_spec.topic_name(other) in topics):
                self._add(key_of(other), spec.cluster_of(other))

    def _wake_rivals(self, body: Body) -> None:
        """Queue the resources of the same topic or group, which may have waited for this deletion.

        No others: of a thousand Topics that go, each would have all those looked at that are left.
        """
        cluster, claim = spec.cluster_of(body), _claim(body)
        everywhere = body["kind"] == "ConsumerGroup"
        for other in self._store.select(body["kind"], None if everywhere else cluster.namespace):
            if spec.cluster_of(other) == cluster and claim is not None and _claim(other) == claim:
                self._add(key_of(other), cluster)

    def _wake_dependents(self, body: Body, *, ready_too: bool) -> None:
        """Queue everything in the same cluster that is not ready, or is in another namespace.

        What a cluster allows other namespaces may have changed. With `ready_too` what is ready may
        be so no more.
        """
        cluster = spec.cluster_of(body)
        for kind in KIND_ORDER[1:]:
            # Others refer to their own namespace.
            everywhere = kind == "ConsumerGroup"
            for other in self._store.select(kind, None if everywhere else cluster.namespace):
                is_elsewhere = other["metadata"]["namespace"] != cluster.namespace
                if spec.cluster_of(other) != cluster:
                    continue
                if ready_too or is_elsewhere or not _is_ready(other):
                    self._add(key_of(other), cluster)

    def _add(self, key: ResourceKey, cluster: ClusterKey) -> None:
        with self._lock:
            if self._stopped:
                return
            place = _place(key, cluster)
            queue = self._queues.get(place)
            if queue is None:
                queue = ClusterQueue(key.namespace, cluster, self._store, self._reconcile)
                self._queues[place] = queue
                # Computed per scrape: behind a batch that hangs, the queue length shows it.
                shown = spec.shown(key.namespace, cluster._asdict())
                waiting = metrics.QUEUED.labels(namespace=key.namespace, cluster=shown)
                waiting.set_function(partial(self._waiting, key.namespace, cluster))
            # Under the lock: a queue that is not kept must have got nothing more.
            queue.add(key)

    def keep(self) -> None:
        """End the queues, with their threads, of clusters that no resource is left of."""
        with self._lock:
            bodies = (body for kind in KIND_ORDER for body in self._store.select(kind))
            used = {_place(key_of(body), spec.cluster_of(body)) for body in bodies}
            unused = [
                place for place, one in self._queues.items() if place not in used and one.idle
            ]
            ending = [self._queues.pop(place) for place in unused]
            left = {place[:2] for place in self._queues}
            for namespace, cluster in {place[:2] for place in unused} - left:
                metrics.QUEUED.remove(namespace, spec.shown(namespace, cluster._asdict()))
        for one in ending:
            one.stop()

    def _waiting(self, namespace: str, cluster: ClusterKey) -> float:
        with self._lock:
            places = ((namespace, cluster, of_groups) for of_groups in (False, True))
            queues = [self._queues[place] for place in places if place in self._queues]
        return float(sum(one.waiting() for one in queues))

    @property
    def stuck(self) -> tuple[str, ...]:
        """Names of the clusters of which a queue is stuck."""
        with self._lock:
            names = (
                f"{namespace}/{spec.shown(namespace, cluster._asdict())}"
                for (namespace, cluster, _), one in self._queues.items()
                if one.stuck
            )
            return tuple(dict.fromkeys(names))

    def stop(self) -> None:
        """Stop all queues after their current batches."""
        with self._lock:
            self._stopped = True
            queues = list(self._queues.values())
        for queue in queues:
            queue.stop()


def _place(key: ResourceKey, cluster: ClusterKey) -> Place:
    return key.namespace, cluster, key.kind == "ConsumerGroup"


def _claim(body: Body) -> str | None:
    """Return what only one resource of its kind may have; None of a kind without rivals."""
    match body["kind"]:
        case "Topic":
            # Brokers let no topic be made whose metrics have the names of another's.
            return admin.metric_name(topic_spec.topic_name(body))
        case "ConsumerGroup":
            return group_reconcile.group_name(body)
    return None


def _wants_other(former: Body | None, body: Body) -> bool:
    """Return whether a resource is another one than before, or wants something else."""
    names = ("uid", "generation")
    before, now = (former or {}).get("metadata", {}), body["metadata"]
    return any(before.get(name) != now.get(name) for name in names)


def _moved_topics(body: Body) -> frozenset[str] | None:
    """Return the topics that a Reassignment names; None: any."""
    wanted = body["spec"]
    if "moves" in wanted:
        return frozenset(one["topic"] for one in wanted["moves"])
    return frozenset(wanted["topics"]) if "topics" in wanted else None


def _progress(body: Body) -> tuple[object, ...]:
    """Return what changes as a Reassignment moves replicas; each step, if it names topics."""
    found = body.get("status", {})
    done = found.get("partitions", {}).get("done", 0)
    return body["metadata"]["uid"], found.get("phase"), _moved_topics(body) and done


def _is_ready(body: Body) -> bool:
    conditions = body.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
