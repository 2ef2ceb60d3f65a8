"""Daily operations of a cluster with kubectl only, on real nodes and brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.e2e.test_quickstart import topic
from tests.e2e.test_under_load import PARTITIONS, leaders, load, wait_for
from tests.support.clients import consume_all, create_topic, produce_all, settings
from tests.support.kubectl import Kubectl, KubectlError, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

RECORDS = [b"%04d" % number for number in range(200)]
ZONE = "topology.kubernetes.io/zone"


def patch(kubectl: Kubectl, kind: str, name: str, **spec: Any) -> None:
    kubectl("patch", kind, name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")


def broker_pods(kubectl: Kubectl, cluster: str = "main") -> dict[str, dict[str, Any]]:
    found = kubectl.get("pods", "", "-l", "app.kubernetes.io/component=broker")["items"]
    return {
        pod["metadata"]["name"]: pod
        for pod in found
        if pod["metadata"]["name"].startswith(f"{cluster}-broker-")
    }


def addresses(kubectl: Kubectl, cluster: str) -> str:
    brokers = kubectl.get("kafkacluster", cluster)["status"]["brokers"]
    # A broker that is on its way out may be told of without one.
    return ",".join(one["address"] for one in brokers if "address" in one)


def reassignment(name: str, cluster: str = "main", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "Reassignment",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": cluster}, **spec},
    }


def test_brokers_have_the_racks_of_their_nodes(
    kubectl: Kubectl, healthy: None, bootstrap: str
) -> None:
    nodes = kubectl.get("nodes")["items"]
    zones = {one["metadata"]["name"]: one["metadata"]["labels"].get(ZONE) for one in nodes}
    wanted = {
        int(name.rpartition("-")[2]): zones[pod["spec"]["nodeName"]]
        for name, pod in broker_pods(kubectl).items()
    }
    client = AdminClient(settings(bootstrap))
    told = client.describe_cluster(request_timeout=60).result(60).nodes
    assert {one.id: one.rack for one in told} == wanted
    assert len(set(wanted.values())) == 3


def drain(kubectl: Kubectl, node: str, seconds: int) -> None:
    """Drain a node of brokers; other pods may stay."""
    selector = "--pod-selector=app.kubernetes.io/component=broker"
    kubectl("drain", node, selector, "--delete-emptydir-data", f"--timeout={seconds}s")


def test_a_node_is_drained_and_the_next_only_when_all_is_in_sync_again(
    kubectl: Kubectl, healthy: None, bootstrap: str
) -> None:
    name = "drained-under-load"
    kubectl.apply(topic(name, partitions=PARTITIONS, replicationFactor=3))
    wait_for(kubectl, "topic", name, "Synced")
    pods = broker_pods(kubectl)
    first, second = (pods[f"main-broker-{one}"]["spec"]["nodeName"] for one in (0, 1))
    try:
        with load(bootstrap, name) as acknowledged:
            eventually(lambda: len(acknowledged) > 500, "a first load", 120, 0.2)
            drain(kubectl, first, 120)
            moved = pods["main-broker-0"]["metadata"]["uid"]

            def replaced() -> bool:
                # For a moment there is none.
                pod = broker_pods(kubectl).get("main-broker-0")
                return pod is not None and pod["metadata"]["uid"] != moved

            # Its volume is on the node that takes no pods now.
            eventually(replaced, "another pod that waits for its node")
            with pytest.raises(KubectlError, match="disruption budget"):
                drain(kubectl, second, 10)
            wait_for(kubectl, "kafkacluster", "main", "BrokersStarting")
            assert kubectl.condition("kafkacluster", "main")["status"] == "False"
            kubectl("uncordon", first, second)
            wait_for(kubectl, "kafkacluster", "main", "BrokersReady")
            reached = len(acknowledged)
            eventually(lambda: len(acknowledged) > reached + 200, "load afterwards", 120, 0.2)
    finally:
        kubectl("uncordon", first, second)
    read = consume_all(bootstrap, name, PARTITIONS, len(acknowledged))
    assert sorted(read) == sorted(acknowledged)
    kubectl("delete", "topic", name, "--timeout=120s")


def test_a_topic_that_clients_made_is_taken_over_by_one_resource(
    kubectl: Kubectl, healthy: None, bootstrap: str
) -> None:
    name = "theirs"
    client = AdminClient(settings(bootstrap))
    create_topic(bootstrap, name, 2, 3)
    produce_all(bootstrap, name, RECORDS, 2)
    kept = {"deletionPolicy": "Retain"}
    kubectl.apply(topic(name, adoption="Never", **kept))
    wait_for(kubectl, "topic", name, "TopicExists")
    kubectl.apply(topic(name, replicationFactor=2, **kept))
    wait_for(kubectl, "topic", name, "AdoptionRefused")
    found = client.list_topics(name, timeout=60).topics[name].partitions.values()
    assert {len(one.replicas) for one in found} == {3}
    kubectl.apply(topic(name, **kept))
    wait_for(kubectl, "topic", name, "Synced")

    kubectl.apply(topic("theirs-too", topicName=name))
    wait_for(kubectl, "topic", "theirs-too", "ResourceConflict")
    kubectl("delete", "topic", name, "--timeout=120s")
    wait_for(kubectl, "topic", "theirs-too", "Synced")
    assert sorted(consume_all(bootstrap, name, 2, len(RECORDS))) == RECORDS
    kubectl("delete", "topic", "theirs-too", "--timeout=120s")
    eventually(lambda: name not in client.list_topics(timeout=60).topics, "the topic is gone")


@pytest.mark.full(
    "tests/e2e/test_console.py::test_people_approve_and_cancel_moves_and_no_others_do"
)
def test_a_move_waits_for_its_approval(kubectl: Kubectl, healthy: None, bootstrap: str) -> None:
    name = "approved"
    kubectl.apply(
        topic(
            name,
            partitions=PARTITIONS,
            replicationFactor=1,
            config={"min.insync.replicas": "1"},
        )
    )
    wait_for(kubectl, "topic", name, "Synced")
    before = leaders(bootstrap, name, count=1)
    after = {one: [(replicas[0] + 1) % 3] for one, replicas in before.items()}
    moves = [
        {"topic": name, "partition": one, "replicas": replicas} for one, replicas in after.items()
    ]
    kubectl.apply(reassignment(name, mode="Explicit", moves=moves, approval="Manual"))
    wait_for(kubectl, "reassignment", name, "AwaitingApproval")
    assert leaders(bootstrap, name, count=1) == before
    agreed = kubectl.get("reassignment", name)["status"]["planHash"]
    patch(kubectl, "reassignment", name, approvedPlanHash=agreed)
    wait_for(kubectl, "reassignment", name, "Completed")
    # Brokers are told a moment after it is done.
    eventually(lambda: leaders(bootstrap, name, count=1) == after, "clients are told of the move")
    kubectl("delete", "reassignment", name, "--timeout=120s")
    kubectl("delete", "topic", name, "--timeout=120s")


def test_a_paused_cluster_is_left_as_it_is(kubectl: Kubectl, healthy: None, bootstrap: str) -> None:
    key, value = "log.retention.ms", "86400001"
    client = AdminClient(settings(bootstrap))

    def in_force() -> str:
        asked = ConfigResource(ResourceType.BROKER, "0")
        return str(client.describe_configs([asked])[asked].result(60)[key].value)

    before = in_force()
    assert before != value
    patch(kubectl, "kafkacluster", "main", paused=True, brokers={"config": {key: value}})
    eventually(
        lambda: kubectl.condition("kafkacluster", "main", "Paused").get("status") == "True",
        "the pause is told",
    )
    kubectl.apply(topic("waits", partitions=1))
    wait_for(kubectl, "topic", "waits", "Paused")
    assert in_force() == before
    assert "waits" not in client.list_topics(timeout=60).topics
    patch(kubectl, "kafkacluster", "main", paused=False)
    eventually(lambda: in_force() == value, "the setting is in force")
    wait_for(kubectl, "topic", "waits", "Synced")
    patch(kubectl, "kafkacluster", "main", paused=None, brokers={"config": {key: None}})
    eventually(lambda: in_force() == before, "the setting is taken back")
    kubectl("delete", "topic", "waits", "--timeout=120s")


@contextmanager
def spare(kubectl: Kubectl) -> Iterator[str]:
    """A second KafkaCluster in the same ZooKeeper, which first requests ports that are in use."""
    name = "spare"
    connect = kubectl.get("kafkacluster", "main")["spec"]["zookeeper"]["connect"]
    kubectl.apply(
        {
            "apiVersion": "odradek.io/v1alpha1",
            "kind": "KafkaCluster",
            "metadata": {"name": name},
            "spec": {
                "zookeeper": {"connect": connect, "chroot": "/spare"},
                "brokers": {
                    "replicas": 1,
                    "storage": {
                        "size": "1Gi",
                        "storageClassName": "local",
                        "deleteClaims": True,
                    },
                    "config": {"default.replication.factor": "1"},
                    "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
                },
            },
        }
    )
    try:
        yield name
    finally:
        kubectl("delete", "kafkacluster", name, "--ignore-not-found", "--timeout=120s")


def claims(kubectl: Kubectl, cluster: str) -> list[str]:
    found = [one["metadata"]["name"] for one in kubectl.get("pvc")["items"]]
    return sorted(one for one in found if one.startswith(f"data-{cluster}-broker-"))


def test_a_cluster_beside_another_grows_shrinks_and_goes_with_its_volumes(
    kubectl: Kubectl, healthy: None
) -> None:
    with spare(kubectl) as name:

        def told() -> str:
            return str(kubectl.condition("kafkacluster", name).get("message"))

        eventually(lambda: "free ports" in told(), "the ports are taken on all nodes")
        patch(kubectl, "kafkacluster", name, brokers={"port": 9192, "metricsPort": 9504})
        wait_for(kubectl, "kafkacluster", name, "BrokersReady")

        kubectl("scale", f"kafkacluster/{name}", "--replicas=2")
        eventually(lambda: told().startswith("2 of 2"), "the second broker", 300)
        wait_for(kubectl, "kafkacluster", name, "BrokersReady")
        shape = {"clusterRef": {"name": name}, "partitions": 4, "replicationFactor": 1}
        kubectl.apply(topic("spread", **shape))
        wait_for(kubectl, "topic", "spread", "Synced")
        bootstrap = addresses(kubectl, name)
        assert sorted(one[0] for one in leaders(bootstrap, "spread", 1).values()) == [0, 0, 1, 1]
        produce_all(bootstrap, "spread", RECORDS, 4)

        kubectl("scale", f"kafkacluster/{name}", "--replicas=1")
        wait_for(kubectl, "kafkacluster", name, "ScaleDownBlocked")
        assert len(broker_pods(kubectl, name)) == 2
        proposed = kubectl.get("kafkacluster", name)["status"]["proposedReassignment"]
        kubectl.apply(reassignment("emptied", name, **proposed))
        wait_for(kubectl, "reassignment", "emptied", "Completed")
        wait_for(kubectl, "kafkacluster", name, "BrokersReady")
        eventually(lambda: len(broker_pods(kubectl, name)) == 1, "one broker is left")
        read = consume_all(addresses(kubectl, name), "spread", 4, len(RECORDS))
        assert sorted(read) == RECORDS

        # Volumes of this class do not grow, which the API server says and the resource repeats.
        patch(kubectl, "kafkacluster", name, brokers={"storage": {"size": "2Gi"}})
        eventually(
            lambda: (
                kubectl.condition("kafkacluster", name, "StorageGrown").get("reason")
                == "ResizeRejected"
            ),
            "the refusal is told",
        )
        assert claims(kubectl, name) == ["data-spare-broker-0", "data-spare-broker-1"]
        kubectl("delete", "reassignment", "emptied", "--timeout=120s")
        kubectl("delete", "topic", "spread", "--timeout=120s")
    eventually(lambda: broker_pods(kubectl, name) == {}, "the pods are gone")
    eventually(lambda: claims(kubectl, name) == [], "the claims are gone")
    assert len(claims(kubectl, "main")) == 3
