"""Whole passes over resources in memory: what resources of one cluster see of each other."""

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from odradek.zk import consumers, znodes
from odradek.zk.operations import Operation
from odradek_operator.group import reconcile as group_reconcile
from odradek_operator.loop.reconciler import WRITERS, Reconciler
from odradek_operator.loop.workqueue import WorkQueues
from odradek_operator.shared import metrics, zookeeper, zookeeper_login
from odradek_operator.shared.connect_strings import qualified
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.spec import FINALIZER, Body, ClusterKey
from odradek_operator.shared.status import condition_of
from odradek_operator.shared.store import KIND_ORDER, ResourceKey, ResourceStore, key_of
from odradek_operator.shared.zookeeper_login import ClientFiles
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


def test_short_name_of_a_zookeeper_is_that_of_the_service_beside_the_cluster() -> None:
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "deletionPolicy": "Delete"}
    going = {**resource("Topic", "t", deleted=True, **wanted), "status": {"incarnation": 77}}
    for home, place in (("n", "zk:2181"), ("operators", "zk.n.svc:2181")):
        store, znodes_of = ResourceStore(), {one: existing_topic() for one in PLACES}
        pool = MemoryPool(znodes_of)
        for body in (going, cluster()):
            store.put(body)
        done = Reconciler(context(MemoryKube(going, cluster()), pool, home=home), store)
        for one in (going, cluster()):
            done.reconcile("n", ClusterKey("n", "c"), {key_of(one): one})
        asked = {one for one, found in znodes_of.items() if found.committed}
        assert (asked, pool.kept) == ({place}, {place})


PLACES = ("zk:2181", "zk.n.svc:2181")


def test_topics_of_a_cluster_in_conflict_touch_nothing_of_the_older_ones() -> None:
    older = cluster(
        namespace="production", age=9, zookeeper={"connect": "zk.n.svc.cluster.local:2181"}
    )
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "deletionPolicy": "Delete"}
    zookeeper = existing_topic()
    kube = run([resource("Topic", "t", **wanted)], [cluster(), older], zookeeper)
    assert reason(kube, "Topic", "t") == "ClusterConflict"
    going = {**resource("Topic", "t", deleted=True, **wanted), "status": {"incarnation": 77}}
    kube = run([going], [cluster(), older], zookeeper)
    assert [one.reason for one in kube.told] == ["TopicAbandoned"]
    assert zookeeper.committed == []
    run([going], [cluster()], zookeeper)
    assert zookeeper.created() == [znodes.delete_topic_path("t")]


def test_topic_without_numbers_is_not_created_while_its_cluster_is_invalid() -> None:
    wrong = cluster(config={"num.partitions": "8", "log.segment.bytes": "x"})
    topic = resource("Topic", "new", clusterRef={"name": "c"})
    assert reason(run([topic], [wrong], existing_topic()), "Topic", "new") == "ClusterInvalid"
    mended = cluster(config={"num.partitions": "8"})
    assert reason(run([topic], [mended], existing_topic()), "Topic", "new") == "Creating"


def test_resources_of_a_cluster_that_cannot_be_exposed_so_are_reconciled() -> None:
    # Broker 0 would advertise port 0.
    listener = {
        "name": "outside",
        "port": 9094,
        "expose": {"type": "NodePort", "advertisedPortTemplate": "{nodeId}"},
    }
    inside = {"name": "inside", "port": 9092}
    wrong = cluster(brokers={"replicas": 3}, listeners=[inside, listener])
    going = resource("Topic", "t", deleted=True, clusterRef={"name": "c"}, deletionPolicy="Delete")
    going["status"] = {"incarnation": 77}
    zookeeper = existing_topic()
    topic = resource("Topic", "new", clusterRef={"name": "c"})
    kube = run([topic, going], [wrong], zookeeper)
    assert reason(kube, "Topic", "new") == "ClusterInvalid"
    assert zookeeper.created() == [znodes.delete_topic_path("t")]


class RefusingZooKeeper(MemoryZooKeeper):
    """Lets nobody write."""

    def commit(self, wanted: Sequence[Operation]) -> None:
        raise zookeeper.RefusedError(f"the ACL of znodes does not let me write {wanted[0].path}")

    def delete_tree(self, path: str) -> None:
        raise zookeeper.RefusedError(f"the ACL of znodes does not let me write {path}")


def refusing() -> RefusingZooKeeper:
    """Topic t as in `existing_topic`, which has a leader and is configured by hand."""
    known = existing_topic()
    state = znodes.PartitionState(BrokerId(0), LeaderEpoch(0), (BrokerId(0),), ControllerEpoch(1))
    paths = [znodes.broker_path(0), znodes.topic_path("t")]
    refuses = RefusingZooKeeper({path: one.data for path, one in known.read(paths).items() if one})
    refuses.put(znodes.state_path("t", 0), znodes.encode_state(state))
    refuses.put(znodes.topic_config_path("t"), znodes.encode_config({"retention.ms": "1"}))
    refuses.put(
        znodes.CONTROLLER_PATH, znodes.encode_controller(znodes.ControllerClaim(BrokerId(0), 0))
    )
    return refuses


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


@pytest.mark.parametrize("deleted", [False, True])
def test_topic_that_cannot_be_written_is_not_ready(deleted: bool) -> None:
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "config": {"retention.ms": "5"}}
    topic = resource("Topic", "t", deleted=deleted, deletionPolicy="Delete", **wanted)
    kube = run([as_ready(topic, "Synced", incarnation=77)], [cluster()], refusing())
    assert reason(kube, "Topic", "t") == "ZooKeeperRefuses"
    found = kube.get("", "Topic", "n", "t")
    assert found is not None
    told = {one["type"]: one["status"] for one in found["status"]["conditions"]}
    assert (told["Ready"], told["Stalled"], told["Synced"]) == ("False", "True", "False")
    # It is this resource's still.
    assert found["status"]["incarnation"] == 77
    assert FINALIZER in found["metadata"]["finalizers"]


def test_reassignment_and_group_that_cannot_be_written_say_so() -> None:
    place: dict[str, Any] = {"clusterRef": {"name": "c"}}
    move = resource("Reassignment", "r", mode="PreferredLeader", topics=["t"], **place)
    move["metadata"]["finalizers"] = [FINALIZER]
    led_by_other = refusing()
    state = znodes.PartitionState(BrokerId(1), LeaderEpoch(0), (BrokerId(0),), ControllerEpoch(1))
    led_by_other.put(znodes.state_path("t", 0), znodes.encode_state(state))
    plans: list[dict[str, Any]] = []
    for _ in range(3):
        kube = run([move], [cluster(), *plans], led_by_other)
        move, plans = (
            kube.get("", "Reassignment", "n", "r") or {},
            kube.select("", "ConfigMap", "n"),
        )
    assert reason(kube, "Reassignment", "r") == "ZooKeeperRefuses"
    going = resource("ConsumerGroup", "g", deleted=True, deletionPolicy="Delete", **place)
    kube = run([going], [cluster()], refusing())
    assert reason(kube, "ConsumerGroup", "g") == "ZooKeeperRefuses"


def test_cluster_whose_settings_cannot_be_written_is_not_ready() -> None:
    wanted = cluster(config={"log.retention.ms": "5"})
    zookeeper = refusing()
    zookeeper.put(znodes.broker_config_path("<default>"), znodes.encode_config({}))
    pod = {
        "kind": "Pod",
        "metadata": {"name": "c-broker-0", "namespace": "n"},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    kube = run([as_ready(wanted, "BrokersReady")], [pod], zookeeper)
    assert reason(kube, "KafkaCluster", "c") == "ZooKeeperRefuses"


def test_resources_of_a_cluster_whose_brokers_cannot_be_read_are_not_ready() -> None:
    zookeeper = existing_topic()
    zookeeper.put(znodes.broker_path(0), b"torn")
    place: dict[str, Any] = {"clusterRef": {"name": "c"}}
    batch = [
        as_ready(resource("Topic", "t", **place), "Synced", incarnation=77),
        as_ready(
            resource("User", "u", authentication={"type": "scram-sha-512"}, **place), "Synced"
        ),
        as_ready(resource("ConsumerGroup", "g", **place), "Observed"),
    ]
    kube = run(batch, [cluster()], zookeeper)
    for body in batch:
        kind, name = body["kind"], body["metadata"]["name"]
        assert reason(kube, kind, name) == "ZooKeeperUnreachable", kind
        found = kube.get("", kind, "n", name)
        assert found is not None
        told = condition_of(found["status"], "Ready")
        assert told is not None
        assert "/brokers/ids/0" in told["message"]


@pytest.mark.parametrize("of_cluster", [False, True])
@pytest.mark.parametrize("away", [False, True])
def test_user_that_is_paused_says_so_whatever_else_there_is_to_say(
    of_cluster: bool, away: bool
) -> None:
    body = resource(
        "User",
        "u",
        clusterRef={"name": "c"},
        authentication={"type": "tls"},
        paused=not of_cluster,
    )
    place: dict[str, Any] = {"zookeeper": {"connect": "away:1" if away else "zk:2181"}}
    kube = run([body], [cluster(paused=of_cluster, **place)], existing_topic())
    assert reason(kube, "User", "u") == ("ZooKeeperUnreachable" if away else "NoClientsAuthority")
    found = kube.get("", "User", "n", "u")
    assert found is not None
    told = condition_of(found["status"], "Paused")
    assert told is not None
    assert (told["status"], told["reason"]) == ("True", "Paused")


def test_topics_whose_names_metrics_cannot_tell_apart_are_not_both_created() -> None:
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "partitions": 1, "replicationFactor": 1}
    older = resource("Topic", "older", age=9, topicName="a.b", **wanted)
    younger = resource("Topic", "younger", topicName="a_b", **wanted)
    zookeeper = existing_topic()
    kube = run([younger, older], [cluster()], zookeeper)
    assert reason(kube, "Topic", "older") == "Creating"
    assert zookeeper.created() == [znodes.topic_config_path("a.b"), znodes.topic_path("a.b")]
    # In the next pass the other exists.
    taken = existing_topic()
    assignment = znodes.TopicAssignment({0: (BrokerId(0),)})
    taken.put(znodes.topic_path("a.b"), znodes.encode_topic(assignment))
    kube = run([younger], [cluster(), older], taken)
    assert (reason(kube, "Topic", "younger"), taken.committed) == ("TopicCollision", [])


def group_with_offsets() -> MemoryZooKeeper:
    """Topic t and group g, which nobody reads with at the moment."""
    zookeeper = existing_topic()
    zookeeper.put(consumers.offset_path("g", "t", 0), b"5")
    return zookeeper


def test_younger_resource_of_a_group_waits_and_never_deletes_the_offsets_of_the_other() -> None:
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "group": "g"}
    older = resource("ConsumerGroup", "a", age=9, **wanted)
    younger = resource("ConsumerGroup", "b", deletionPolicy="Delete", **wanted)
    zookeeper = group_with_offsets()
    kube = run([older, younger], [cluster()], zookeeper)
    reasons = [reason(kube, "ConsumerGroup", name) for name in ("a", "b")]
    assert reasons == ["Observed", "ResourceConflict"]

    going = resource("ConsumerGroup", "b", deleted=True, deletionPolicy="Delete", **wanted)
    kube = run([going], [cluster(), older], zookeeper)
    assert [one.reason for one in kube.told] == ["GroupAbandoned"]
    assert zookeeper.deleted == []
    # Nor does the older one while the younger is there to read on.
    going = resource("ConsumerGroup", "a", age=9, deleted=True, deletionPolicy="Delete", **wanted)
    run([going], [cluster(), younger], zookeeper)
    assert zookeeper.deleted == []
    # If both go, nobody reads on.
    also = resource("ConsumerGroup", "b", deleted=True, **wanted)
    run([going], [cluster(), also], zookeeper)
    assert zookeeper.deleted == [consumers.group_path("g")]


def test_groups_of_a_paused_cluster_start_no_driver_and_lose_no_offsets() -> None:
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "topics": ["t"], "job": task}
    running = resource("ConsumerGroup", "g", **wanted)
    going = resource("ConsumerGroup", "g", deleted=True, deletionPolicy="Delete", **wanted)
    zookeeper = group_with_offsets()
    for body in (running, going):
        kube = run([body], [cluster(paused=True)], zookeeper)
        assert reason(kube, "ConsumerGroup", "g") == "Paused"
        assert (kube.names("Pod"), zookeeper.deleted) == ([], [])
    assert run([running], [cluster()], zookeeper).names("Pod") == ["g-driver"]
    run([going], [cluster()], zookeeper)
    assert zookeeper.deleted == [consumers.group_path("g")]


def test_claim_of_a_job_is_looked_at_once_for_each_generation() -> None:
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    group = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], job=task)
    kube = run([group], [cluster()], group_with_offsets())
    seen = kube.get("odradek.io/v1alpha1", "ConsumerGroup", "n", "g")
    pod = kube.get("v1", "Pod", "n", "g-driver")
    assert seen is not None
    assert pod is not None
    unread = frozenset({"PersistentVolumeClaim"})
    kube = run([seen], [cluster(), pod], group_with_offsets(), unread)
    assert reason(kube, "ConsumerGroup", "g") == "Pending"
    changed = {**seen, "metadata": {**seen["metadata"], "generation": 2}}
    kube = run([changed], [cluster(), pod], group_with_offsets(), unread)
    assert reason(kube, "ConsumerGroup", "g") == "DriverRejected"


def test_job_is_not_stopped_for_a_reset_that_cannot_be_carried_out_now() -> None:
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "topics": ["t"], "job": task}
    started = run([resource("ConsumerGroup", "g", **wanted)], [cluster()], group_with_offsets())
    (pod,) = [started.get("v1", "Pod", "n", name) for name in started.names("Pod")]
    assert pod is not None
    reset = {"requestId": "1", "strategy": "Earliest"}
    zookeeper = group_with_offsets()
    state = znodes.PartitionState(BrokerId(0), LeaderEpoch(0), (BrokerId(0),), ControllerEpoch(1))
    zookeeper.put(znodes.state_path("t", 0), znodes.encode_state(state))
    asking = resource("ConsumerGroup", "g", reset=reset, **wanted)
    kube = run([asking], [cluster(), pod], zookeeper)
    assert reason(kube, "ConsumerGroup", "g") == "BrokersUnreachable"
    unheard = resource("ConsumerGroup", "g", reset=reset, **wanted)
    refused = run([unheard], [cluster(), pod], group_with_offsets())
    assert reason(refused, "ConsumerGroup", "g") == "ResetWithoutPartitions"
    left = refused.get("", "ConsumerGroup", "n", "g")
    assert left is not None
    ready = condition_of(left["status"], "Ready")
    assert ready is not None
    assert ready["message"].endswith("no topic of spec.topics exists")
    paused = run([asking], [cluster(paused=True), pod], zookeeper)
    assert reason(paused, "ConsumerGroup", "g") == "Paused"
    for each in (kube, refused, paused):
        assert each.names("Pod") == ["g-driver"]


def test_offsets_that_are_in_the_brokers_are_not_said_to_be_deleted_while_none_answers() -> None:
    wanted: dict[str, Any] = {
        "clusterRef": {"name": "c"},
        "deletionPolicy": "Delete",
        "offsetStore": "Both",
    }
    zookeeper = group_with_offsets()
    group = resource("ConsumerGroup", "g", **wanted)
    kube = run([group], [cluster()], zookeeper)
    assert reason(kube, "ConsumerGroup", "g") == "BrokersUnreachable"
    going = resource("ConsumerGroup", "g", deleted=True, **wanted)
    kube = run([going], [cluster()], zookeeper)
    assert reason(kube, "ConsumerGroup", "g") == "Deleting"
    assert zookeeper.deleted == []


def test_lag_that_is_not_known_any_more_has_no_series() -> None:
    observed = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, offsetStore="Both")
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    with_job = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], job=task)
    invalid = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topicPattern="(")
    older = resource("ConsumerGroup", "a", age=9, clusterRef={"name": "c"}, group="g")
    away = cluster(zookeeper={"connect": "away:1"})
    lag = metrics.GroupLag("n", "c", "g", {TopicPartition("t", 0): 5}, {}, read_at=7)

    def series(batch: list[dict[str, Any]], *others: dict[str, Any]) -> set[tuple[str, float]]:
        metrics.GROUP_LAGS.put(observed["metadata"]["uid"], lag)
        run(batch, list(others), group_with_offsets())
        return {
            (one.name, one.value)
            for family in metrics.GROUP_LAGS.collect()
            for one in family.samples
        }

    # No broker answers in the first case. An alert asks when the lag was read last.
    last_read = {("odradek_consumergroup_lag_read_timestamp_seconds", 7)}
    assert series([observed], cluster()) == last_read
    assert series([observed], away) == last_read
    assert series([with_job], cluster()) == set()
    assert series([invalid], cluster()) == set()
    assert series([observed], cluster(), older) == set()
    # The resource is gone.
    assert series([], cluster()) == set()


def test_lag_of_a_namespace_that_another_operator_acts_in_is_not_told() -> None:
    observed = resource("ConsumerGroup", "g", clusterRef={"name": "c"})
    lag = metrics.GroupLag("n", "c", "g", {}, {}, read_at=7)
    metrics.GROUP_LAGS.put(observed["metadata"]["uid"], lag)
    store = ResourceStore()
    store.put(observed)
    standby = Reconciler(context(MemoryKube(observed)), store, may_act=lambda _namespace: False)
    standby.reconcile("n", ClusterKey("n", "c"), {key_of(observed): observed})
    assert not [one for family in metrics.GROUP_LAGS.collect() for one in family.samples]


@pytest.mark.parametrize("phase", ["", "Pending", "Planned", "AwaitingApproval"])
def test_reassignment_that_is_deleted_before_it_has_begun_ends(phase: str) -> None:
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "mode": "AddBrokers", "brokers": [1]}
    going = resource("Reassignment", "r", deleted=True, approval="Manual", **wanted)
    going["metadata"]["finalizers"] = [FINALIZER]
    going["status"] = {"phase": phase} if phase else {}
    zookeeper = existing_topic()
    kube = run([going], [cluster()], zookeeper)
    left = kube.get("odradek.io/v1alpha1", "Reassignment", "n", "r")
    assert left is not None
    assert (left["metadata"]["finalizers"], zookeeper.committed) == ([], [])


def test_group_is_deleted_even_if_its_spec_became_invalid() -> None:
    wanted: dict[str, Any] = {
        "clusterRef": {"name": "c"},
        "deletionPolicy": "Delete",
        "topicPattern": "(",
    }
    zookeeper = group_with_offsets()
    run([resource("ConsumerGroup", "g", deleted=True, **wanted)], [cluster()], zookeeper)
    assert zookeeper.deleted == [consumers.group_path("g")]


def test_racks_stay_when_the_nodes_may_no_longer_be_read() -> None:
    brokers = {"replicas": 1, "rackTopologyKey": "zone"}
    body = {**cluster(), "spec": {"zookeeper": {"connect": "zk:2181"}, "brokers": brokers}}
    labels = {"zone": "a", "other": "b"}
    node = {"kind": "Node", "metadata": {"name": "node-1", "labels": labels}}
    before = run([body], [node], existing_topic()).get("v1", "ConfigMap", "n", "c-broker")
    assert before is not None
    assert before["data"]["racks"] == "node-1=a\n"

    forbidden = frozenset({"Node"})
    kube = run([body], [before], existing_topic(), forbidden)
    assert kube.get("v1", "ConfigMap", "n", "c-broker") == before
    # Where nothing is known from before, nothing is made up.
    first = run([body], [], existing_topic(), forbidden)
    assert (reason(first, "KafkaCluster", "c"), first.names("ConfigMap")) == ("ApplyRejected", [])


SHOWN: dict[str, Any] = {
    "replicas": 3,
    "selector": "app=c",
    "brokers": [{"id": 0, "registered": True, "address": "10.0.0.1:9092", "node": "a"}],
    "controllerId": 0,
    "dynamicConfig": ["log.retention.ms"],
}


def status_of(kube: MemoryKube) -> dict[str, Any]:
    """Return the status of KafkaCluster c."""
    found = kube.get("odradek.io/v1alpha1", "KafkaCluster", "n", "c")
    assert found is not None
    status: dict[str, Any] = found["status"]
    return status


def test_cluster_that_is_refused_goes_on_to_show_what_is_so_and_what_settings_need() -> None:
    body = cluster(brokers={"replicas": 1, "rackTopologyKey": "zone"}) | {"status": SHOWN}
    rejected = run([body], [], existing_topic(), frozenset({"Node"}))
    wrong = cluster(config={"log.segment.bytes": "x"}) | {"status": SHOWN}
    refused = run([wrong], [], existing_topic())
    for kube, why in ((rejected, "ApplyRejected"), (refused, "InvalidConfig")):
        assert reason(kube, "KafkaCluster", "c") == why
        found = status_of(kube)
        assert found["dynamicConfig"] == SHOWN["dynamicConfig"]
        # One broker is registered now, and no controller.
        assert found["replicas"] == 1
        assert [(one["id"], one["registered"]) for one in found["brokers"]] == [(0, True)]
        assert "controllerId" not in found
        assert "app.kubernetes.io" in found["selector"]


def test_new_cluster_makes_no_brokers_while_nobody_knows_whether_their_ids_are_free() -> None:
    kube = run([cluster(**AWAY)], [], existing_topic())
    assert reason(kube, "KafkaCluster", "c") == "ZooKeeperUnreachable"
    assert kube.get("apps/v1", "StatefulSet", "n", "c-broker") is None
    told = condition_of(status_of(kube), "Ready")
    assert told is not None
    assert told["message"] == (
        "ZooKeeper away:1 does not answer; brokers are made once it shows that their ids are free"
    )


LISTENER = {"name": "l", "port": 9092, "authentication": {"type": "scram-sha-512"}}
AWAY: dict[str, Any] = {"zookeeper": {"connect": "away:1"}}


@pytest.mark.parametrize(
    ("why", "fields", "rival", "torn"),
    [
        ("ZooKeeperUnreachable", AWAY, False, False),
        ("ZooKeeperUnreachable", {"listeners": [LISTENER], **AWAY}, False, False),
        ("ResourceConflict", {}, True, False),
        ("ZnodeUnreadable", {}, False, True),
        ("InvalidConfig", {"config": {"log.segment.bytes": "x"}}, False, True),
        (
            "ZooKeeperSecretMissing",
            {"zookeeper": {"connect": "zk:2181", "authentication": {"secretName": "none"}}},
            False,
            False,
        ),
    ],
)
def test_brokers_that_nobody_sees_are_not_said_to_be_registered_or_away(
    why: str, fields: dict[str, Any], rival: bool, torn: bool
) -> None:
    body = cluster(**fields) | {"status": SHOWN}
    znodes_of_all = existing_topic()
    if torn:
        znodes_of_all.put(znodes.broker_path(0), b"torn")
    others = [cluster(name="older", age=9)] if rival else []
    kube = run([body], others, znodes_of_all)
    assert reason(kube, "KafkaCluster", "c") == why
    found = status_of(kube)
    assert not {"replicas", "controllerId"} & found.keys()
    assert [one["id"] for one in found["brokers"]] == [0]
    assert not {"registered", "address"} & found["brokers"][0].keys()
    assert found["dynamicConfig"] == SHOWN["dynamicConfig"]
    secured = condition_of(found, "Secured")
    if "listeners" in fields:
        assert secured is not None
        assert secured["status"] == "Unknown"


def test_cluster_that_waits_for_a_certificate_shows_brokers_as_they_are_now() -> None:
    shown = {"replicas": 2, "brokers": [{"id": one, "registered": True} for one in (0, 1)]}
    listener = {"name": "internal", "port": 9093, "tls": True}
    listener["certificate"] = {"secretName": "none"}
    body = cluster(brokers={"replicas": 2}, listeners=[listener]) | {"status": shown}
    kube = run([body], [], existing_topic())
    assert reason(kube, "KafkaCluster", "c") == "CertificateMissing"
    found = kube.get("odradek.io/v1alpha1", "KafkaCluster", "n", "c")
    assert found is not None
    assert found["status"]["replicas"] == 1
    assert [one["registered"] for one in found["status"]["brokers"]] == [True, False]


def test_a_drain_waits_while_a_partition_lacks_a_replica() -> None:
    made = run([cluster()], [], existing_topic()).get("apps/v1", "StatefulSet", "n", "c-broker")
    assert made is not None

    def budget(zookeeper: MemoryZooKeeper | None) -> int:
        body = cluster() if zookeeper is not None else cluster(**AWAY)
        kube = run([body], [made], zookeeper or MemoryZooKeeper())
        found = kube.get("policy/v1", "PodDisruptionBudget", "n", "c-broker")
        assert found is not None
        return int(found["spec"]["maxUnavailable"])

    def with_state(*in_sync: int) -> MemoryZooKeeper:
        zookeeper = existing_topic()
        isr = tuple(map(BrokerId, in_sync))
        state = znodes.PartitionState(
            isr[0] if isr else BrokerId(-1),
            LeaderEpoch(0),
            isr or (BrokerId(0),),
            ControllerEpoch(1),
        )
        zookeeper.put(znodes.state_path("t", 0), znodes.encode_state(state))
        return zookeeper

    assert budget(with_state(0)) == 1
    assert budget(with_state()) == 0
    assert budget(existing_topic()) == 0
    assert budget(None) == 0


@pytest.mark.parametrize(
    "path", [znodes.broker_path(0), znodes.CONTROLLER_PATH, znodes.broker_config_path("<default>")]
)
def test_cluster_of_a_znode_that_makes_no_sense_is_not_said_to_be_ready(path: str) -> None:
    zookeeper = existing_topic()
    zookeeper.put(path, b"torn")
    body = cluster(config={"log.retention.ms": "5"})
    kube = run([body], [], zookeeper)
    assert reason(kube, "KafkaCluster", "c") == "ZnodeUnreadable"


@pytest.mark.parametrize(("just_paused", "left"), [(False, []), (True, ["c-broker-0"])])
def test_no_broker_is_restarted_once_the_cluster_is_paused(
    just_paused: bool, left: list[str]
) -> None:
    zookeeper = existing_topic()
    state = znodes.PartitionState(BrokerId(0), LeaderEpoch(0), (BrokerId(0),), ControllerEpoch(1))
    zookeeper.put(znodes.state_path("t", 0), znodes.encode_state(state))
    known, store = cluster(), ResourceStore()
    store.put(known)
    kube = run([known], [], zookeeper)
    workload = kube.get("apps/v1", "StatefulSet", "n", "c-broker")
    assert workload is not None
    kube.apply({**workload, "status": {"updateRevision": "new", "observedGeneration": 1}})
    labels = {"controller-revision-hash": "old"}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"name": "c-broker-0", "namespace": "n", "labels": labels}
    kube.apply({"kind": "Pod", "metadata": meta, "spec": {}, "status": ready})
    if just_paused:
        paused = cluster(paused=True)
        kube.apply({**paused, "metadata": {**paused["metadata"], "generation": 2}})
    effects = context(kube, MemoryPool({"zk:2181": zookeeper}))
    Reconciler(effects, store).reconcile("n", ClusterKey("n", "c"), {key_of(known): known})
    assert kube.names("Pod") == left


def test_pod_that_cannot_be_scheduled_says_why_in_the_cluster() -> None:
    said = "0/3 nodes are available: 3 node(s) didn't have free ports"
    condition = {"type": "PodScheduled", "status": "False", "message": said}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "c-broker-0", "namespace": "n"},
        "spec": {},
        "status": {"phase": "Pending", "conditions": [condition]},
    }
    kube = run([cluster()], [pod], MemoryZooKeeper())
    found = kube.get("odradek.io/v1alpha1", "KafkaCluster", "n", "c")
    assert found is not None
    ready = condition_of(found["status"], "Ready")
    assert ready is not None
    assert ready["message"] == f"0 of 1 brokers registered; c-broker-0: {said}"


def test_sessions_of_clusters_that_moved_or_went_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    class Session:
        away_seconds = 0.0

        def __init__(self, connect: str, *_: object) -> None:
            self._connect = connect
            metrics.SESSION_AGE.labels(connect=connect).set(0)

        away_since = None

        def require(self) -> None:
            pass

        def close(self) -> None:
            ended.append(self._connect)

    monkeypatch.setattr(zookeeper, "ZooKeeper", Session)
    pool = zookeeper.Pool(lambda: None)
    first = pool.get("zk:2181")
    pool.get("zk:2181/moved")
    pool.keep(lambda: {"zk:2181", "zk:2181/unused"})
    assert ended == ["zk:2181/moved"]
    assert pool.get("zk:2181") is first


def test_only_what_a_stored_cluster_names_is_kept_after_a_pass() -> None:
    body, store, pool = cluster(), ResourceStore(), MemoryPool()
    store.put(body)
    reconciler = Reconciler(context(MemoryKube(body), pool), store)
    reconciler.reconcile("n", ClusterKey("n", "c"), {key_of(body): body})
    assert pool.kept == {"zk:2181"}
    store.drop(body)
    reconciler.reconcile("n", ClusterKey("n", "c"), {})
    assert pool.kept == set()


def test_session_of_a_cluster_that_is_gone_ends_with_the_pass_of_what_it_left() -> None:
    # A cluster's end wakes all that is not ready, and both may come in one batch.
    topic, store, pool = (
        resource("Topic", "t", clusterRef={"name": "c"}),
        ResourceStore(),
        MemoryPool(),
    )
    store.put(topic)
    pool.kept = {"zk:2181"}
    Reconciler(context(MemoryKube(topic), pool), store).reconcile(
        "n", ClusterKey("n", "c"), {key_of(topic): topic}
    )
    assert pool.kept == set()


def test_queue_that_is_told_is_what_waits_now_behind_a_pass_that_hangs() -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def reconcile(
        _namespace: str, _cluster: ClusterKey, batch: Mapping[ResourceKey, Any]
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


def test_groups_whose_brokers_do_not_answer_do_not_delay_their_cluster() -> None:
    rolls, goes_on = threading.Event(), threading.Event()
    asked: queue.Queue[str] = queue.Queue()

    def reconcile(
        _namespace: str, _cluster: ClusterKey, batch: Mapping[ResourceKey, Any]
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


def test_many_groups_are_looked_at_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not answer takes seconds for each: one after the other is minutes."""
    together = threading.Barrier(WRITERS)
    looked: queue.Queue[str] = queue.Queue()

    def look(_context: object, body: Body, *_: object) -> float:
        together.wait(30)
        looked.put(body["metadata"]["name"])
        return 15.0

    monkeypatch.setattr(group_reconcile, "reconcile", look)
    names = [f"g{number}" for number in range(2 * WRITERS)]
    groups = [resource("ConsumerGroup", name, clusterRef={"name": "c"}) for name in names]
    store, batch = ResourceStore(), {key_of(one): one for one in groups}
    for one in groups:
        store.put(one)
    done = Reconciler(context(MemoryKube(*groups)), store).reconcile(
        "n", ClusterKey("n", "c"), batch
    )
    assert done == dict.fromkeys(batch, 15.0)
    assert sorted(looked.get_nowait() for _ in names) == sorted(names)


def test_job_goes_on_while_nobody_can_tell_how_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> ClientFiles:
        raise KubeError(500, "the API server is away")

    monkeypatch.setattr(zookeeper_login, "client_files", fail)
    job = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    group = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], job=job)
    store = ResourceStore()
    for body in (group, cluster()):
        store.put(body)
    kube = MemoryKube(group, cluster())
    effects = context(kube, MemoryPool({"zk:2181": existing_topic()}))
    done = Reconciler(effects, store).reconcile("n", ClusterKey("n", "c"), {key_of(group): group})
    assert [type(one) for one in done.values()] == [KubeError]
    # Nothing is said or changed that nobody knows.
    assert (kube.statuses, kube.names("Pod")) == ([], [])


def test_cluster_that_is_gone_gets_one_more_pass_with_nothing_in_it() -> None:
    batches: queue.Queue[set[str]] = queue.Queue()

    def reconcile(
        _namespace: str, _cluster: ClusterKey, batch: Mapping[ResourceKey, Any]
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
        _namespace: str, _cluster: ClusterKey, batch: Mapping[ResourceKey, Any]
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
        _namespace: str, _cluster: ClusterKey, batch: Mapping[ResourceKey, Any]
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


def test_cluster_that_a_topic_read_first_is_still_news_when_its_event_comes() -> None:
    body = cluster()
    topic = resource("Topic", "t", clusterRef={"name": "c"}, partitions=1, replicationFactor=1)
    kube, store = MemoryKube(body, topic), ResourceStore()
    store.put(topic)
    effects = context(kube, MemoryPool({"zk:2181": existing_topic()}), forget=store.drop)
    Reconciler(effects, store).reconcile("n", ClusterKey("n", "c"), {key_of(topic): topic})
    assert store.put(body)


def test_job_of_a_cluster_in_conflict_says_so_and_one_of_a_taken_group_is_stopped() -> None:
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    wanted: dict[str, Any] = {
        "clusterRef": {"name": "c"},
        "topics": ["t"],
        "job": task,
        "group": "g",
    }
    older = cluster(
        namespace="production", age=9, zookeeper={"connect": "zk.n.svc.cluster.local:2181"}
    )
    kube = run([resource("ConsumerGroup", "g", **wanted)], [cluster(), older], existing_topic())
    assert reason(kube, "ConsumerGroup", "g") == "ClusterConflict"

    younger = resource("ConsumerGroup", "b", **wanted)
    started = run([younger], [cluster()], group_with_offsets())
    (pod,) = [started.get("v1", "Pod", "n", name) for name in started.names("Pod")]
    assert pod is not None
    rival = resource("ConsumerGroup", "a", age=9, **{**wanted, "job": None})
    del rival["spec"]["job"]
    kube = run([younger], [cluster(), rival, pod], group_with_offsets())
    assert reason(kube, "ConsumerGroup", "b") == "ResourceConflict"
    assert kube.names("Pod") == []
    # Its end was wanted: once the group is free it starts at once, and nothing counts as a failure.
    left = kube.get("odradek.io/v1alpha1", "ConsumerGroup", "n", "b")
    assert left is not None
    again = run([left], [cluster()], group_with_offsets())
    assert again.names("Pod") == ["b-driver"]


def elsewhere(name: str = "g", namespace: str = "m", age: int = 0, **fields: Any) -> dict[str, Any]:
    """A ConsumerGroup with a job in namespace m, of cluster c in namespace n."""
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    place = {"name": "c", "namespace": "n"}
    wanted: dict[str, Any] = {"clusterRef": place, "topics": ["t"], "group": "g", "job": task}
    wanted |= fields
    return resource("ConsumerGroup", name, namespace=namespace, age=age, **wanted)


def run_elsewhere(
    body: dict[str, Any], others: list[dict[str, Any]], forbidden: frozenset[str] = frozenset()
) -> tuple[MemoryKube, dict[str, Any]]:
    """Run one pass over a group of namespace m; returns its Ready as well."""
    kube, store = MemoryKube(body, *others, forbidden=forbidden), ResourceStore()
    for one in (body, *others):
        if one["kind"] in KIND_ORDER and one["kind"] not in forbidden:
            store.put(one)
    effects = context(kube, MemoryPool({"zk:2181": group_with_offsets()}), forget=store.drop)
    key = ClusterKey("n", "c")
    (result,) = Reconciler(effects, store).reconcile("m", key, {key_of(body): body}).values()
    assert not isinstance(result, Exception), result
    told = kube.get("odradek.io/v1alpha1", "ConsumerGroup", "m", body["metadata"]["name"])
    assert told is not None
    ready = condition_of(told["status"], "Ready")
    assert ready is not None
    return kube, {**ready, "body": told}


def test_namespace_that_a_cluster_does_not_name_learns_nothing_of_it() -> None:
    told = []
    older = elsewhere("home", namespace="n", age=9)
    granting_others = cluster(jobs={"allowedNamespaces": ["o"]})
    for others in ([], [cluster()], [granting_others], [cluster(), older]):
        for observed in (False, True):
            body = elsewhere()
            if observed:
                del body["spec"]["job"]
            kube, ready = run_elsewhere(body, others)
            assert kube.names("Pod") == []
            told.append((ready["reason"], ready["message"]))
    text = "KafkaCluster n/c is not there, or does not name this namespace in spec.jobs"
    assert set(told) == {("RefNotPermitted", f"{text}.allowedNamespaces")}
    going = elsewhere(deletionPolicy="Delete")
    going["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    kube = MemoryKube(going, cluster(), older)
    reconcile_in("m", kube, going, cluster(), older)
    assert [one.message for one in kube.told] == ["offsets of group g were not deleted"]


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


def test_objects_of_others_with_names_of_owned_ones_are_left_alone() -> None:
    def of_others(kind: str, name: str, **labels: str) -> dict[str, Any]:
        about = {"name": name, "namespace": "n", "uid": "theirs", "labels": labels}
        return {"apiVersion": "v1", "kind": kind, "metadata": about, "data": {"their": "own"}}

    theirs = of_others("ConfigMap", "c-broker")
    kube = run([cluster()], [theirs], existing_topic())
    assert reason(kube, "KafkaCluster", "c") == "ApplyRejected"
    told = condition_of(status_of(kube), "Ready")
    assert told is not None
    assert told["message"] == (
        "ConfigMap c-broker exists and is not of KafkaCluster c: delete or rename it"
    )
    assert kube.get("v1", "ConfigMap", "n", "c-broker") == theirs
    assert kube.get("apps/v1", "StatefulSet", "n", "c-broker") is None

    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    group = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], job=task)
    kube = run([group], [cluster(), of_others("ConfigMap", "g-job")], group_with_offsets())
    assert reason(kube, "ConsumerGroup", "g") == "DriverRejected"
    assert kube.names("Pod") == []
    # What the operator made, and has lost its owner, goes on.
    left = of_others("ConfigMap", "g-job", **{"app.kubernetes.io/managed-by": "odradek-operator"})
    kube = run([group], [cluster(), left], group_with_offsets())
    assert reason(kube, "ConsumerGroup", "g") == "Pending"
    assert kube.names("Pod") == ["g-driver"]


def test_driver_that_waits_for_secrets_which_do_not_exist_says_which() -> None:
    secrets = [{"name": "there"}, {"name": "none"}]
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}, "secretRefs": secrets}
    group = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], job=task)
    there = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "there", "namespace": "n"}}
    kube = run([group], [cluster(), there], group_with_offsets())
    seen = kube.get("odradek.io/v1alpha1", "ConsumerGroup", "n", "g")
    pod = kube.get("v1", "Pod", "n", "g-driver")
    secrets_of_all = kube.select("v1", "Secret", "n")
    assert seen is not None
    assert pod is not None
    told = []
    for node in ({}, {"nodeName": "node1"}):
        placed = {**pod, "spec": {**pod["spec"], **node}}
        kube = run([seen], [cluster(), placed, *secrets_of_all], group_with_offsets())
        found = kube.get("odradek.io/v1alpha1", "ConsumerGroup", "n", "g")
        assert found is not None
        condition = condition_of(found["status"], "Ready")
        assert condition is not None
        assert condition["reason"] == "Pending"
        told.append(condition["message"])
    assert told == [
        "the driver pod is starting",
        "the driver waits for Secrets that do not exist: none",
    ]


@pytest.mark.parametrize("allowed", ["m", "*"])
def test_job_runs_in_its_own_namespace_until_that_is_no_longer_allowed(allowed: str) -> None:
    granting = cluster(jobs={"allowedNamespaces": ["o", allowed]})
    kube, ready = run_elsewhere(elsewhere(), [granting])
    assert ready["reason"] == "Pending"
    mine = {
        kind: [one["metadata"]["name"] for one in kube.select("", kind, "m")]
        for kind in ("Pod", "ServiceAccount", "Role", "RoleBinding", "PersistentVolumeClaim")
    }
    account = ["odradek-job-g"]
    assert mine == {
        "Pod": ["g-driver"],
        "ServiceAccount": account,
        "Role": account,
        "RoleBinding": account,
        "PersistentVolumeClaim": ["g-data"],
    }
    assert not kube.select("", "Pod", "n")
    found = kube.get("v1", "ConfigMap", "m", "g-job")
    assert found is not None
    # A Service beside the brokers has another name elsewhere.
    assert '"zookeeper": "zk.n.svc:2181"' in found["data"]["job.json"]

    (pod,) = kube.select("", "Pod", "m")
    wrong = elsewhere(topicPattern="(")
    stopped, ready = run_elsewhere({**wrong, "status": ready["body"]["status"]}, [cluster(), pod])
    # A mistake in its spec does not keep the driver.
    assert (ready["reason"], stopped.names("Pod")) == ("RefNotPermitted", [])
    mended = {**elsewhere(), "status": ready["body"]["status"]}
    stopped, ready = run_elsewhere(mended, [cluster(), pod])
    assert (ready["reason"], stopped.names("Pod")) == ("RefNotPermitted", [])
    again, ready = run_elsewhere(ready["body"], [granting])
    assert again.names("Pod") == ["g-driver"]
    # Its end was wanted, and is no failure.
    assert ready["body"]["status"]["job"]["restarts"] == {"application": 0, "infrastructure": 0}


def test_job_of_a_cluster_that_the_operator_may_not_read_is_left_alone() -> None:
    kube, ready = run_elsewhere(elsewhere(), [], frozenset({"KafkaCluster"}))
    assert (ready["reason"], kube.names("Pod")) == ("RefNotPermitted", [])
    granting = cluster(jobs={"allowedNamespaces": ["m"]})
    started, ready = run_elsewhere(elsewhere(), [granting])
    (pod,) = started.select("", "Pod", "m")
    kept, _ = run_elsewhere(ready["body"], [pod], frozenset({"KafkaCluster"}))
    assert kept.names("Pod") == ["g-driver"]


def test_group_has_one_resource_in_all_namespaces_that_may_name_its_cluster() -> None:
    home = elsewhere("home", namespace="n", age=1)
    granting = cluster(jobs={"allowedNamespaces": ["m"]})
    kube, ready = run_elsewhere(elsewhere(), [granting, home])
    assert (ready["reason"], kube.names("Pod")) == ("ResourceConflict", [])
    assert ready["message"] == "n/home is older and owns this group"
    # Who may not name it holds up nobody.
    stranger = elsewhere("stranger", namespace="o", age=9)
    _, ready = run_elsewhere(elsewhere(), [granting, stranger])
    assert ready["reason"] == "Pending"


def test_group_elsewhere_counts_before_its_cluster_is_in_the_store() -> None:
    """As when the operator starts."""
    home, far = elsewhere("home", namespace="n"), elsewhere(age=9)
    kube = MemoryKube(home, far, cluster(jobs={"allowedNamespaces": ["m"]}))
    reconcile_in("n", kube, home, far)
    assert (reason(kube, "ConsumerGroup", "home"), kube.names("Pod")) == ("ResourceConflict", [])


def test_job_that_stalled_after_a_change_may_go_back_to_its_former_query() -> None:
    """What its driver found wrong with the state, or with the query, is no query to keep."""

    def counting(sql: str, status: dict[str, Any]) -> dict[str, Any]:
        body = elsewhere(namespace="n")
        body["spec"]["job"]["sql"] = sql
        return {**body, "status": status}

    def passed(body: dict[str, Any], *others: Any) -> tuple[MemoryKube, dict[str, Any]]:
        kube = run([body], [cluster(), *others], group_with_offsets())
        found = kube.get("odradek.io/v1alpha1", "ConsumerGroup", "n", "g")
        assert found is not None
        return kube, found["status"]

    kube, told = passed(counting("select 2", {}))
    (pod,), (file, *_) = kube.select("", "Pod", "n"), kube.select("", "ConfigMap", "n")
    ended = {"exitCode": 2, "message": "odradek-spark: StatefulQueryChanged: the state is another"}
    container = {"name": "driver", "state": {"terminated": ended}}
    pod["status"] = {"phase": "Failed", "containerStatuses": [container]}
    # The driver of the query before has told of it.
    told["job"]["keepsState"] = True
    for _ in range(2):
        kube, told = passed(counting("select 1", told), *kube.select("", "Pod", "n"), file)
    assert kube.names("Pod") == []
    kube, told = passed(counting("select 1", told), file)
    assert kube.names("Pod") == ["g-driver"]
    started = kube.get("v1", "ConfigMap", "n", "g-job")
    assert started is not None
    assert "select 1" in started["data"]["job.json"]


def test_what_a_cluster_allows_is_looked_at_when_the_cluster_changes() -> None:
    batches: queue.Queue[tuple[str, str]] = queue.Queue()

    def reconcile(
        namespace: str, _cluster: ClusterKey, batch: Mapping[ResourceKey, Any]
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


@pytest.mark.parametrize(
    ("connect", "from_elsewhere"),
    [
        ("zk:2181/a", "zk.n.svc:2181/a"),
        ("a:1,b.n:2,10.0.0.1:3", "a.n.svc:1,b.n:2,10.0.0.1:3"),
        ("localhost:2181", "localhost:2181"),
    ],
)
def test_services_of_a_namespace_are_named_in_full_elsewhere(
    connect: str, from_elsewhere: str
) -> None:
    assert qualified(connect, "n") == from_elsewhere
