"""The queues of resources: what wakes what, and what waits behind a pass."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from odradek_operator.loop import workqueue
from odradek_operator.loop.workqueue import WorkQueues
from odradek_operator.shared import metrics
from odradek_operator.shared.spec import ClusterKey
from odradek_operator.shared.store import ResourceKey, ResourceStore
from tests.reconcile.in_memory import as_ready, cluster, elsewhere, resource


def test_queue_that_is_told_is_what_waits_now_behind_a_pass_that_hangs() -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def reconcile(
        _namespace: str, _cluster: ClusterKey, batch: Mapping[ResourceKey, Any], *_: object
    ) -> dict[ResourceKey, float]:
        hangs.set()
        goes_on.wait(30)
        return dict.fromkeys(batch, 60.0)

    def waiting() -> float | None:
        place = {"namespace": "n", "cluster": "c"}
        return metrics.REGISTRY.get_sample_value("odradek_operator_queued_resources", place)

    queues = WorkQueues(ResourceStore(), reconcile)
    try:
        queues.submit(cluster())
        assert hangs.wait(30)
        assert waiting() == 0
        for name in ("t1", "t2"):
            queues.submit(resource("Topic", name, clusterRef={"name": "c"}))
        assert waiting() == 2
    finally:
        goes_on.set()
        queues.stop()


class Clock:
    """Stands for the module `time` of the queues."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_batch_is_stuck_only_while_none_of_its_resources_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(workqueue, "time", clock)
    asked, goes_on = queue.Queue[str](), queue.Queue[None]()

    def reconcile(
        _namespace: str,
        _cluster: ClusterKey,
        batch: Mapping[ResourceKey, Any],
        progress: Callable[[], None],
    ) -> dict[ResourceKey, float]:
        for key in batch:
            asked.put(key.name)
            goes_on.get(timeout=30)
            progress()
        return dict.fromkeys(batch, 600.0)

    def hangs() -> bool:
        """Let almost the limit pass, and then the rest."""
        clock.now += workqueue.STUCK_SECONDS - 1
        assert not queues.stuck
        clock.now += 2
        return list(queues.stuck) == ["n/c"]

    queues = WorkQueues(ResourceStore(), reconcile)
    try:
        queues.submit(resource("Topic", "a", clusterRef={"name": "c"}))
        assert asked.get(timeout=30) == "a"
        for name in ("b", "d"):
            queues.submit(resource("Topic", name, clusterRef={"name": "c"}))
        assert hangs()
        # The next batch has both.
        for name in ("b", "d"):
            goes_on.put(None)
            assert asked.get(timeout=30) == name
            assert hangs()
    finally:
        for _ in range(3):
            goes_on.put(None)
        queues.stop()


def test_groups_whose_brokers_do_not_answer_do_not_delay_their_cluster() -> None:
    rolls, goes_on = threading.Event(), threading.Event()
    asked: queue.Queue[str] = queue.Queue()

    def reconcile(
        _namespace: str, _cluster: ClusterKey, batch: Mapping[ResourceKey, Any], *_: object
    ) -> dict[ResourceKey, float]:
        for key in batch:
            if key.kind == "ConsumerGroup":
                asked.put(key.name)
                assert goes_on.wait(30)
            else:
                rolls.set()
        return dict.fromkeys(batch, 60.0)

    def waiting() -> float | None:
        place = {"namespace": "n", "cluster": "c"}
        return metrics.REGISTRY.get_sample_value("odradek_operator_queued_resources", place)

    queues = WorkQueues(ResourceStore(), reconcile)
    try:
        queues.submit(resource("ConsumerGroup", "g", clusterRef={"name": "c"}))
        assert asked.get(timeout=30) == "g"
        queues.submit(cluster())
        assert rolls.wait(30)
        queues.submit(resource("ConsumerGroup", "h", clusterRef={"name": "c"}))
        # The former was woken by its cluster, too.
        assert waiting() == 2
    finally:
        goes_on.set()
        queues.stop()


def test_cluster_that_is_gone_gets_one_more_pass_with_nothing_in_it() -> None:
    batches: queue.Queue[set[str]] = queue.Queue()

    def reconcile(
        _namespace: str, _cluster: ClusterKey, batch: Mapping[ResourceKey, Any], *_: object
    ) -> dict[ResourceKey, float]:
        batches.put({key.name for key in batch})
        return dict.fromkeys(batch, 60.0)

    queues = WorkQueues(ResourceStore(), reconcile)
    try:
        queues.submit(cluster())
        assert batches.get(timeout=30) == {"c"}
        queues.drop(cluster())
        assert batches.get(timeout=30) == set()
    finally:
        queues.stop()


def test_what_was_ready_is_looked_at_when_its_cluster_changes_or_goes() -> None:
    batches: queue.Queue[str] = queue.Queue()

    def reconcile(
        _namespace: str, _cluster: ClusterKey, batch: Mapping[ResourceKey, Any], *_: object
    ) -> dict[ResourceKey, float]:
        for key in batch:
            batches.put(key.name)
        return dict.fromkeys(batch, 600.0)

    def looked_at(count: int) -> set[str]:
        return {batches.get(timeout=30) for _ in range(count)}

    def version(revision: int, **meta: Any) -> dict[str, Any]:
        body = cluster()
        return body | {"metadata": {**body["metadata"], "resourceVersion": str(revision), **meta}}

    queues = WorkQueues(ResourceStore(), reconcile)
    try:
        queues.submit(version(1))
        assert looked_at(1) == {"c"}
        queues.submit(as_ready(resource("Topic", "t", clusterRef={"name": "c"}), "Synced"))
        assert looked_at(1) == {"t"}
        # Its status alone changes nothing for the Topic; what comes next is looked at behind it.
        queues.submit(version(2))
        assert looked_at(1) == {"c"}
        queues.submit(version(3, generation=2))
        assert looked_at(2) == {"c", "t"}
        queues.submit(version(4, generation=2, uid="another"))
        assert looked_at(2) == {"c", "t"}
        queues.drop(version(4, generation=2, uid="another"))
        assert looked_at(1) == {"t"}
        assert batches.empty()
    finally:
        queues.stop()


def test_topics_are_looked_at_as_a_reassignment_moves_their_replicas() -> None:
    batches: queue.Queue[str] = queue.Queue()

    def reconcile(
        _namespace: str, _cluster: ClusterKey, batch: Mapping[ResourceKey, Any], *_: object
    ) -> dict[ResourceKey, float]:
        for key in batch:
            batches.put(key.name)
        return dict.fromkeys(batch, 600.0)

    def looked_at(count: int) -> set[str]:
        return {batches.get(timeout=30) for _ in range(count)}

    def moving(revision: int, phase: str, done: int) -> dict[str, Any]:
        body = resource("Reassignment", "r", clusterRef={"name": "c"}, mode="X", topics=["t"])
        meta = {**body["metadata"], "resourceVersion": str(revision)}
        return body | {
            "metadata": meta,
            "status": {"phase": phase, "partitions": {"total": 2, "done": done}},
        }

    store = ResourceStore()
    queues = WorkQueues(store, reconcile)
    try:
        for name in ("t", "other"):
            queues.submit(as_ready(resource("Topic", name, clusterRef={"name": "c"}), "Synced"))
        assert looked_at(2) == {"t", "other"}
        queues.submit(moving(1, "Running", 0))
        assert looked_at(2) == {"r", "t"}
        for revision, phase, done in ((2, "Running", 1), (3, "Completed", 2)):
            # The operator knows what it wrote before the event comes.
            store.put(moving(revision, phase, done))
            queues.submit(moving(revision, phase, done))
            assert looked_at(1) == {"t"}
        queues.submit(moving(3, "Completed", 2))
        assert batches.empty()
    finally:
        queues.stop()


def test_what_a_cluster_allows_is_looked_at_when_the_cluster_changes() -> None:
    batches: queue.Queue[tuple[str, str]] = queue.Queue()

    def reconcile(
        namespace: str, _cluster: ClusterKey, batch: Mapping[ResourceKey, Any], *_: object
    ) -> dict[ResourceKey, float]:
        for key in batch:
            batches.put((namespace, key.name))
        return dict.fromkeys(batch, 600.0)

    queues = WorkQueues(ResourceStore(), reconcile)
    try:
        running = elsewhere()
        running["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
        queues.submit(running)
        assert batches.get(timeout=30) == ("m", "g")
        queues.submit(cluster())
        assert {batches.get(timeout=30), batches.get(timeout=30)} == {("n", "c"), ("m", "g")}
        queues.drop(cluster())
        assert batches.get(timeout=30) == ("m", "g")
    finally:
        queues.stop()


def test_resource_that_is_made_anew_for_another_cluster_is_looked_at_in_that_one_only() -> None:
    batches: queue.Queue[tuple[str, list[str]]] = queue.Queue()
    waits: dict[str, queue.Queue[float]] = {one: queue.Queue() for one in ("former", "c")}

    def reconcile(
        _namespace: str, place: ClusterKey, batch: Mapping[ResourceKey, Any], *_: object
    ) -> dict[ResourceKey, float]:
        batches.put((place.name, [key.name for key in batch]))
        return dict.fromkeys(batch, waits[place.name].get(timeout=30)) if batch else {}

    former = resource("Topic", "t", clusterRef={"name": "former"})
    anew = resource("Topic", "t", clusterRef={"name": "c"})
    anew["metadata"]["uid"] = "another"
    queues = WorkQueues(ResourceStore(), reconcile)
    try:
        queues.submit(former)
        assert batches.get(timeout=30) == ("former", ["t"])
        queues.drop(former)
        queues.submit(anew)
        assert batches.get(timeout=30) == ("c", ["t"])
        # The queue of the former cluster has the name due once more.
        waits["former"].put(0.0)
        assert batches.get(timeout=30) == ("former", [])
    finally:
        for one in waits.values():
            one.put(600.0)
        queues.stop()


def test_queues_of_clusters_without_resources_end_with_their_threads() -> None:
    batches: queue.Queue[set[str]] = queue.Queue()

    def reconcile(
        _namespace: str, _cluster: ClusterKey, batch: Mapping[ResourceKey, Any], *_: object
    ) -> dict[ResourceKey, float]:
        batches.put({key.name for key in batch})
        return dict.fromkeys(batch, 600.0)

    def threads() -> set[str]:
        return {one.name for one in threading.enumerate() if one.name.startswith("queue-n-")}

    def ended(kept: set[str]) -> bool:
        # A queue whose pass is just ending is kept until the next look.
        for _ in range(300):
            queues.keep()
            if threads() == kept:
                return True
            time.sleep(0.01)
        return False

    place = {"namespace": "n", "cluster": "gone"}
    topics = {one: resource("Topic", one, clusterRef={"name": one}) for one in ("kept", "gone")}
    queues = WorkQueues(ResourceStore(), reconcile)
    try:
        for one, body in topics.items():
            queues.submit(body)
            assert batches.get(timeout=30) == {one}
        assert ended({"queue-n-kept", "queue-n-gone"})
        queues.drop(topics["gone"])
        assert ended({"queue-n-kept"})
        assert metrics.REGISTRY.get_sample_value("odradek_operator_queued_resources", place) is None
        queues.submit(topics["gone"])
        assert batches.get(timeout=30) == {"gone"}
    finally:
        queues.stop()


def test_only_resources_of_the_same_topic_or_group_are_looked_at_when_one_goes() -> None:
    batches: queue.Queue[ResourceKey] = queue.Queue()

    def reconcile(
        _namespace: str, _cluster: ClusterKey, batch: Mapping[ResourceKey, Any], *_: object
    ) -> dict[ResourceKey, float]:
        for key in batch:
            batches.put(key)
        return dict.fromkeys(batch, 600.0)

    def looked_at(count: int) -> set[str]:
        return {batches.get(timeout=30).name for _ in range(count)}

    ref = {"name": "c"}
    many = [resource("Topic", f"t{number}", clusterRef=ref) for number in range(20)]
    rivals = [
        resource("Topic", "same", topicName="t.1", clusterRef=ref),
        resource("Topic", "alike", topicName="t_1", clusterRef=ref),
        resource("Topic", "elsewhere", topicName="t.1", clusterRef={"name": "other"}),
    ]
    groups = [elsewhere("g1", "m"), elsewhere("g2", "n"), elsewhere("g3", "m", group="h")]
    queues = WorkQueues(ResourceStore(), reconcile)
    try:
        for body in (*many, *rivals, *groups):
            queues.submit(body)
        looked_at(len(many) + len(rivals) + len(groups))
        for body in many:
            queues.drop(body)
        queues.drop(groups[0])
        assert looked_at(1) == {"g2"}
        queues.drop(rivals[0])
        assert looked_at(1) == {"alike"}
        assert batches.empty()
    finally:
        queues.stop()
