"""What a cluster that cannot become smaller yet asks ZooKeeper for, while it waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from odradek.zk import znodes
from odradek_operator.cluster import reconcile
from odradek_operator.shared.objects import MANAGED_BY
from tests.reconcile.in_memory import resource
from tests.support.memory import MemoryKube, MemoryPool, MemoryZooKeeper, context


class CountedZooKeeper(MemoryZooKeeper):
    """Counts the lists that its cache does not answer."""

    def __init__(self, nodes: Mapping[str, bytes]) -> None:
        super().__init__(nodes)
        self.remembered = MemoryZooKeeper(nodes)
        self.asked = 0

    @property
    def cached(self) -> MemoryZooKeeper:
        return self.remembered

    def children(self, paths: Iterable[str]) -> dict[str, list[str] | None]:
        self.asked += 1
        return super().children(paths)


def stateful_set(replicas: int) -> dict[str, Any]:
    broker = {"name": "broker", "ports": [{"name": "kafka", "containerPort": 9092}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": "main-broker",
            "namespace": "n",
            "generation": 1,
            "labels": {"app.kubernetes.io/managed-by": MANAGED_BY},
        },
        "spec": {
            "replicas": replicas,
            "template": {"metadata": {}, "spec": {"containers": [broker]}},
        },
        "status": {"observedGeneration": 1, "updateRevision": "1"},
    }


def test_only_brokers_that_seem_empty_are_looked_at_past_the_cache() -> None:
    held = {znodes.topic_path("t"): b'{"version":1,"partitions":{"0":[2]}}'}
    zookeeper = CountedZooKeeper(held)
    # In a pause nothing is written, and the brokers that may go are found all the same.
    spec: dict[str, Any] = {"zookeeper": {"connect": "zk:2181"}, "brokers": {"replicas": 2}}
    body = resource("KafkaCluster", "main", paused=True, **spec)
    kube = MemoryKube(body, stateful_set(3))
    operator = context(kube, MemoryPool({"zk:2181": zookeeper}))

    def reason() -> str:
        reconcile.reconcile(operator, body, None)
        return str(kube.statuses[-1]["conditions"][0]["reason"])

    assert reason() == "ScaleDownBlocked"
    assert zookeeper.asked == 0
    # The cache may be behind: somebody has just given the broker a replica.
    zookeeper.remembered.take(znodes.topic_path("t"))
    assert reason() == "ScaleDownBlocked"
    assert zookeeper.asked > 0
    zookeeper.take(znodes.topic_path("t"))
    assert reason() == "BrokersStarting"
