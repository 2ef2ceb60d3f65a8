"""A KafkaCluster that gets two brokers per node, and goes back, on the real API server."""

from __future__ import annotations

import json

from odradek.zk import znodes
from tests.reconcile.conftest import Operator, Place
from tests.reconcile.nodes import Nodes
from tests.reconcile.test_cluster_flow import become_controller
from tests.support.kubectl import eventually


def change(place: Place, **brokers: int) -> None:
    patch = json.dumps({"spec": {"brokers": brokers}})
    place.kubectl("patch", "kafkacluster", "main", "--type=merge", f"--patch={patch}")


def test_more_brokers_come_beside_others_and_go_when_they_are_empty(
    place: Place, operator: Operator
) -> None:
    nodes = Nodes(place)
    place.create_cluster(3)
    for broker_id in range(3):
        # Others than those of `place`, which are all on one host.
        nodes.unregister(broker_id)
    become_controller(place, 0)
    eventually(lambda: nodes.stateful_set("main-broker") is not None, "brokers", pause_s=0.2)
    nodes.wait("BrokersReady", "3 of 3")
    alone = nodes.stateful_set("main-broker")
    assert alone is not None

    change(place, perNode=2, replicas=6)
    seen: list[list[str]] = []

    def is_there() -> bool:
        nodes.play()
        pods = nodes.kube.select("v1", "Pod", place.namespace)
        seen.append([one["metadata"]["labels"].get("odradek.io/broker-set", "") for one in pods])
        return nodes.stateful_set("main-broker-b") is not None

    eventually(is_there, "more brokers", pause_s=0.3)
    # Not before all others let them onto their nodes.
    assert ("" in seen[-1], seen[-1].count("0")) == (False, 3)
    nodes.wait("BrokersReady", "6 of 6")
    second = nodes.stateful_set("main-broker-b")
    assert second is not None
    (container,) = second["spec"]["template"]["spec"]["containers"]
    assert [one["containerPort"] for one in container["ports"]] == [9093, 9405]
    config = place.kubectl.get("configmap", "main-broker-b")["data"]["server.properties"]
    assert "listeners=PLAINTEXT://:9093\n" in config

    # A port that a neighbour has is refused, and nothing restarts.
    change(place, port=9093)
    refused = nodes.wait("PortsTaken", "port 9093")
    assert refused["status"] == "False"
    change(place, port=9092)
    nodes.wait("BrokersReady", "6 of 6")
    assert nodes.made["main-broker-b-100"] == 1

    # Topics of the operator's own have one replica per node, and no more.
    place.kubectl.apply(
        place.topic("spread", partitions=12, replicationFactor=3),
        place.topic("wider", partitions=1, replicationFactor=4),
    )
    eventually(lambda: place.client.exists(znodes.topic_path("spread")), "a topic", pause_s=0.2)
    place.elect("spread")
    laid = place.read("spread").partitions.values()
    assert [sorted(one % 100 for one in each) for each in laid] == [[0, 1, 2]] * 12
    assert len({one for each in laid for one in each}) == 6
    refused = place.wait_for("topic", "wider", "InvalidReplicationFactor")
    assert "larger than the number of nodes, 3" in refused["message"]
    nodes.wait("BrokersReady")

    # The node 2 is drained: what is left there may go, and nothing else.
    nodes.lost.add("n2")
    place.kubectl("delete", "pod", "main-broker-2", "--wait=false")

    def others_may_go() -> bool:
        nodes.play()
        budget = place.kubectl.get("pdb", "main-broker")["spec"]
        held = budget["selector"].get("matchExpressions", [{}])[0].get("values")
        return (budget["maxUnavailable"], held) == (0, ["main-broker-2", "main-broker-b-102"])

    eventually(others_may_go, "a budget", pause_s=0.3)

    def node_is_remembered() -> bool:
        nodes.play()
        listed = place.kubectl.get("kafkacluster", "main")["status"]["brokers"]
        known = {one["id"]: one for one in listed}
        return ("node" in known[2], known[2].get("lastNode")) == (False, "n2")

    eventually(node_is_remembered, "the node that it ran on", pause_s=0.3)
    nodes.lost.clear()
    place.kubectl("delete", "pod", "main-broker-2", "--wait=false")
    nodes.wait("BrokersReady", "6 of 6")

    # Back again: brokers stay until they are empty, and then all is as it was.
    change(place, perNode=1, replicas=3)
    blocked = nodes.wait("ScaleDownBlocked")
    assert "brokers [100, 101, 102]" in blocked["message"]
    # The resources first: a look between both would make the topic again.
    place.kubectl("delete", "topic", "--all")
    for path in (znodes.topic_path("spread"), znodes.topic_config_path("spread")):
        place.client.delete(path, recursive=True)
    nodes.wait("BrokersReady", "3 of 3")

    def as_before() -> bool:
        nodes.play()
        now = nodes.stateful_set("main-broker")
        assert now is not None
        return bool(now["spec"] == alone["spec"])

    eventually(as_before, "the former pods", pause_s=0.3)
    nodes.wait("BrokersReady", "3 of 3")
    assert {one["metadata"]["name"] for one in nodes.kube.select("v1", "Pod", place.namespace)} == {
        f"main-broker-{one}" for one in range(3)
    }
