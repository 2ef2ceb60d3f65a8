"""Resources of a cluster, and passes of the reconciler over them, in memory."""

from typing import Any

from odradek.values import BrokerId
from odradek.zk import consumers, znodes
from odradek_operator.loop.reconciler import Reconciler
from odradek_operator.shared.spec import FINALIZER, ClusterKey
from odradek_operator.shared.status import condition_of
from odradek_operator.shared.store import KIND_ORDER, ResourceStore, key_of
from tests.support.memory import MemoryKube, MemoryPool, MemoryZooKeeper, context

NOBODY_LISTENS = 1


def resource(
    kind: str, name: str, *, namespace: str = "n", age: int = 0, deleted: bool = False, **spec: Any
) -> dict[str, Any]:
    """A resource; the larger `age` is, the older."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": f"{kind}-{namespace}-{name}",
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": f"2026-11-21T11:00:{59 - age:02}Z",
        "finalizers": [FINALIZER] if spec.get("deletionPolicy") == "Delete" else [],
    }
    if deleted:
        metadata["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    version = "odradek.io/v1alpha1"
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def cluster(name: str = "c", config: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    place = {"zookeeper": {"connect": "zk:2181"}}
    brokers = {"replicas": 1, "config": config or {}}
    return resource("KafkaCluster", name, **{**place, "brokers": brokers, **fields})


def run(
    batch: list[dict[str, Any]],
    others: list[dict[str, Any]],
    zookeeper: MemoryZooKeeper,
    forbidden: frozenset[str] = frozenset(),
) -> MemoryKube:
    """Run one pass over a batch of resources of cluster c in namespace n."""
    kube, store = MemoryKube(*batch, *others, forbidden=forbidden), ResourceStore()
    for body in (*batch, *others):
        if body["kind"] in KIND_ORDER:
            store.put(body)
    effects = context(kube, MemoryPool({"zk:2181": zookeeper}), forget=store.drop)
    done = Reconciler(effects, store).reconcile(
        "n", ClusterKey("n", "c"), {key_of(body): body for body in batch}
    )
    for result in done.values():
        assert not isinstance(result, Exception), result
    return kube


def reason(kube: MemoryKube, kind: str, name: str) -> str:
    """Reason of Ready."""
    body = kube.get("odradek.io/v1alpha1", kind, "n", name)
    assert body is not None
    condition = condition_of(body["status"], "Ready")
    assert condition is not None
    return str(condition["reason"])


def existing_topic() -> MemoryZooKeeper:
    """A broker and topic t of one partition, made by transaction 77."""
    endpoint = znodes.BrokerEndpoint("PLAINTEXT", "127.0.0.1", NOBODY_LISTENS)
    broker = znodes.BrokerRegistration(BrokerId(0), (endpoint,))
    topic = znodes.TopicAssignment({0: (BrokerId(0),)})
    return MemoryZooKeeper(
        {
            znodes.broker_path(0): znodes.encode_broker(broker),
            znodes.topic_path("t"): znodes.encode_topic(topic),
        }
    )


def as_ready(body: dict[str, Any], reason: str, **fields: Any) -> dict[str, Any]:
    """Return a resource that was ready when it was last looked at."""
    conditions = [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-11-21T11:00:00Z",
        }
        for kind, status in (("Ready", "True"), ("Reconciling", "False"), ("Stalled", "False"))
    ]
    return body | {"status": {"observedGeneration": 1, "conditions": conditions, **fields}}


def group_with_offsets() -> MemoryZooKeeper:
    """Topic t and group g, which nobody reads with at the moment."""
    zookeeper = existing_topic()
    zookeeper.put(consumers.offset_path("g", "t", 0), b"5")
    return zookeeper


def status_of(kube: MemoryKube) -> dict[str, Any]:
    """Return the status of KafkaCluster c."""
    found = kube.get("odradek.io/v1alpha1", "KafkaCluster", "n", "c")
    assert found is not None
    status: dict[str, Any] = found["status"]
    return status


def elsewhere(name: str = "g", namespace: str = "m", age: int = 0, **fields: Any) -> dict[str, Any]:
    """A ConsumerGroup with a job in namespace m, of cluster c in namespace n."""
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    place = {"name": "c", "namespace": "n"}
    wanted: dict[str, Any] = {"clusterRef": place, "topics": ["t"], "group": "g", "job": task}
    wanted |= fields
    return resource("ConsumerGroup", name, namespace=namespace, age=age, **wanted)


def reconcile_in(
    namespace: str, kube: MemoryKube, body: dict[str, Any], *known: dict[str, Any]
) -> None:
    """Run one pass over one resource, of which `known` are known beside it."""
    store = ResourceStore()
    for one in (body, *known):
        store.put(one)
    effects = context(kube, MemoryPool({"zk:2181": group_with_offsets()}), forget=store.drop)
    batch = {key_of(body): body}
    (result,) = (
        Reconciler(effects, store).reconcile(namespace, ClusterKey("n", "c"), batch).values()
    )
    assert not isinstance(result, Exception), result
