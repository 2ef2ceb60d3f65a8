"""A KafkaCluster that gets two brokers per node, and goes back, on the real API server."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError

from odradek.values import BrokerId
from odradek.zk import znodes
from tests.reconcile import kills
from tests.reconcile.conftest import Operator, Place
from tests.reconcile.test_cluster_flow import become_controller
from tests.support.kubectl import eventually

SETS = {"main-broker": 0, "main-broker-b": 100}


class Nodes:
    """Does what Kubernetes and brokers would: pods of both StatefulSets, and their registrations.

    The n-th pod of each set is on the node n. Nothing runs on the nodes `lost`.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.kube = kills.client(place.kubectl.kubeconfig)
        self.lost: set[str] = set()

    def stateful_set(self, name: str) -> dict[str, Any] | None:
        return self.kube.get("apps/v1", "StatefulSet", self.place.namespace, name)

    def play(self) -> None:
        wanted: set[str] = set()
        for name, first in SETS.items():
            found = self.stateful_set(name)
            if found is None:
                continue
            assert found["spec"].get("ordinals", {}).get("start", 0) == first
            template = found["spec"]["template"]
            text = json.dumps(template, sort_keys=True)
            revision = hashlib.sha256(text.encode()).hexdigest()[:10]
            count = found["spec"]["replicas"]
            status = {
                "replicas": count,
                "observedGeneration": found["metadata"]["generation"],
                "updateRevision": revision,
            }
            if any(found["status"].get(key) != value for key, value in status.items()):
                self.kube.apply_status(found, status)
            for number in range(count):
                wanted.add(f"{name}-{first + number}")
                self._run(f"{name}-{first + number}", first + number, template, revision)
        for pod in self.kube.select("v1", "Pod", self.place.namespace):
            if pod["metadata"]["name"] not in wanted:
                self.kube.delete({**pod, "apiVersion": "v1", "kind": "Pod"}, 0)
                self.unregister(int(pod["metadata"]["name"].rpartition("-")[2]))

    def _run(self, name: str, broker_id: int, template: dict[str, Any], revision: str) -> None:
        found = self.kube.get("v1", "Pod", self.place.namespace, name)
        if found is not None and "deletionTimestamp" in found["metadata"]:
            self.kube.delete(found, 0)
            found = None
        if found is not None:
            return
        self.unregister(broker_id)
        node = f"n{broker_id % 100}"
        where = {} if node in self.lost else {"nodeName": node}
        labels = {**template["metadata"]["labels"], "controller-revision-hash": revision}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.place.namespace, "labels": labels},
            "spec": {"containers": [{"name": "c", "image": "i"}], **where},
        }
        made = self.kube.create(pod)
        if where:
            self.register(broker_id, node)
            ready = [{"type": "Ready", "status": "True"}]
            status = {"phase": "Running", "conditions": ready}
            self.kube.apply_status({**pod, "metadata": made["metadata"]}, status)

    def register(self, broker_id: int, node: str) -> None:
        endpoint = znodes.BrokerEndpoint("PLAINTEXT", node, 9092 + broker_id // 100)
        data = znodes.encode_broker(znodes.BrokerRegistration(BrokerId(broker_id), (endpoint,)))
        with suppress(NodeExistsError):
            self.place.client.create(znodes.broker_path(BrokerId(broker_id)), data, ephemeral=True)

    def unregister(self, broker_id: int) -> None:
        with suppress(NoNodeError):
            self.place.client.delete(znodes.broker_path(BrokerId(broker_id)))

    def wait(self, reason: str, words: str = "") -> dict[str, Any]:
        """Play until Ready has this reason, and these words in its message."""

        def probe() -> dict[str, Any]:
            self.play()
            found = self.place.kubectl.condition("kafkacluster", "main")
            assert (found.get("reason"), words in found.get("message", "")) == (reason, True), found
            return found

        return eventually(probe, f"{reason} {words}", pause_s=0.3) or {}


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
    for path in (znodes.topic_path("spread"), znodes.topic_config_path("spread")):
        place.client.delete(path, recursive=True)
    place.kubectl("delete", "topic", "--all", "--wait=false")
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
