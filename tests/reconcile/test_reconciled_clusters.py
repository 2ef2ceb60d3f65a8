"""Whole passes over KafkaClusters in memory: what they show, and what is done to their brokers."""

from collections.abc import Mapping
from typing import Any

import pytest

from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch
from odradek.zk import znodes
from odradek_operator.loop.reconciler import Reconciler
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.spec import ClusterKey
from odradek_operator.shared.status import condition_of
from odradek_operator.shared.store import ResourceStore, key_of
from tests.reconcile.in_memory import as_ready, cluster, existing_topic, reason, run, status_of
from tests.support.memory import MemoryKube, MemoryPool, MemoryZooKeeper, context


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


def test_cluster_whose_deletion_waits_for_its_brokers_is_ready_no_more() -> None:
    body = as_ready(cluster(), "BrokersReady", **SHOWN, offlinePartitions=0)
    body["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    kube = run([body], [], existing_topic())
    assert reason(kube, "KafkaCluster", "c") == "Deleting"
    found = status_of(kube)
    assert found["brokers"] == [{"id": 0, "node": "a"}]
    assert found.keys().isdisjoint({"controllerId", "replicas", "offlinePartitions"})
    assert kube.names("StatefulSet") == []


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


def test_pod_on_a_node_that_is_lost_says_so_in_the_cluster() -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"name": "c-broker-0", "namespace": "n"},
        "spec": {"nodeName": "node-1"},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]},
    }
    for ready, why in (("Unknown", True), ("True", False)):
        node = {
            "kind": "Node",
            "metadata": {"name": "node-1"},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }
        kube = run([cluster()], [pod, node], MemoryZooKeeper())
        told = condition_of(status_of(kube), "Ready")
        assert told is not None
        assert "c-broker-0 on node-1 is not ready" in told["message"]
        assert ("its node is not ready" in told["message"]) == why


def test_a_registration_that_cannot_be_read_does_not_end_the_look_at_a_cluster() -> None:
    strange = MemoryZooKeeper({znodes.broker_path(7): b"torn"})
    kube = run([cluster()], [], strange)
    assert reason(kube, "KafkaCluster", "c") == "BrokersStarting"
    warning = condition_of(status_of(kube), "ConfigWarning")
    assert warning is not None
    assert (warning["reason"], "znode /brokers/ids/7: " in warning["message"]) == (
        "ZnodeUnreadable",
        True,
    )
    made = kube.get("apps/v1", "StatefulSet", "n", "c-broker")
    assert made is not None

    own = existing_topic()
    own.put(znodes.broker_path(0), b"torn")
    changed = cluster(brokers={"replicas": 1, "priorityClassName": "high"})
    kube = run([changed], [made], own)
    assert reason(kube, "KafkaCluster", "c") == "ZnodeUnreadable"
    # Nobody says whether it is registered, and its pod is what the spec says.
    assert [one.keys() & {"registered"} for one in status_of(kube)["brokers"]] == [set()]
    made = kube.get("apps/v1", "StatefulSet", "n", "c-broker")
    assert made is not None
    assert made["spec"]["template"]["spec"]["priorityClassName"] == "high"


@pytest.mark.parametrize(
    ("code", "text", "refused"),
    [
        (403, "exceeded quota", True),
        (500, 'Internal error occurred: failed calling webhook "a.b": no endpoints', True),
        (409, 'admission webhook "a.b" denied the request: why', True),
        (500, "etcdserver: leader changed", False),
        (429, "too many requests", False),
        (0, 'POST /x: failed calling webhook "a.b"', False),
    ],
)
def test_what_a_webhook_rejects_or_leaves_open_is_told(code: int, text: str, refused: bool) -> None:
    class Webhook(MemoryKube):
        def apply(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
            if wanted["kind"] == "StatefulSet":
                raise KubeError(code, text)
            return self.create(wanted)

    body, store = cluster(), ResourceStore()
    store.put(body)
    kube = Webhook(body)
    effects = context(kube, MemoryPool({"zk:2181": existing_topic()}))
    done = Reconciler(effects, store).reconcile("n", ClusterKey("n", "c"), {key_of(body): body})
    assert isinstance(done[key_of(body)], KubeError) != refused
    told = [one["conditions"][0]["reason"] for one in kube.statuses]
    assert told == (["ApplyRejected"] if refused else [])


def test_broker_that_may_not_be_restarted_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    zookeeper = existing_topic()
    state = znodes.PartitionState(BrokerId(0), LeaderEpoch(0), (BrokerId(0),), ControllerEpoch(1))
    claim = znodes.ControllerClaim(BrokerId(0), 0)
    zookeeper.put(znodes.state_path("t", 0), znodes.encode_state(state))
    zookeeper.put(znodes.CONTROLLER_PATH, znodes.encode_controller(claim))
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

    def deny(_body: object) -> None:
        raise KubeError(403, "denied by policy")

    monkeypatch.setattr(kube, "delete", deny)
    effects = context(kube, MemoryPool({"zk:2181": zookeeper}))
    done = Reconciler(effects, store).reconcile("n", ClusterKey("n", "c"), {key_of(known): known})
    assert not isinstance(done[key_of(known)], Exception)
    rolling = condition_of(status_of(kube), "Reconciling")
    assert rolling is not None
    assert rolling["reason"] == "BrokersRolling"
    assert rolling["message"].endswith(
        "c-broker-0: the API server does not let it be restarted: 403: denied by policy"
    )
