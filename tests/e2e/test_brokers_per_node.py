"""Two brokers on each of three nodes, one of which is lost while a client produces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.test_operations import addresses, broker_pods
from tests.e2e.test_quickstart import topic
from tests.e2e.test_under_load import PARTITIONS, leaders, load, wait_for
from tests.support.clients import consume_all
from tests.support.kubectl import Kubectl, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

NAME = "wide"


@contextmanager
def wide(kubectl: Kubectl) -> Iterator[None]:
    """Six brokers on three nodes, beside those of the quick start."""
    connect = kubectl.get("kafkacluster", "main")["spec"]["zookeeper"]["connect"]
    kubectl.apply(
        {
            "apiVersion": "odradek.io/v1alpha1",
            "kind": "KafkaCluster",
            "metadata": {"name": NAME},
            "spec": {
                "zookeeper": {"connect": connect, "chroot": f"/{NAME}"},
                "brokers": {
                    "replicas": 6,
                    "perNode": 2,
                    "port": 9192,
                    "metricsPort": 9504,
                    "storage": {
                        "size": "1Gi",
                        "storageClassName": "local",
                        "deleteClaims": True,
                    },
                    "config": {
                        "default.replication.factor": "3",
                        "min.insync.replicas": "2",
                        "zookeeper.session.timeout.ms": "6000",
                    },
                    "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
                },
            },
        }
    )
    try:
        yield
    finally:
        kubectl("delete", "kafkacluster", NAME, "--ignore-not-found", "--timeout=120s")


def nodes_of(kubectl: Kubectl) -> dict[int, str]:
    """Return the node of each broker that has one."""
    return {
        int(name.rpartition("-")[2]): pod["spec"]["nodeName"]
        for name, pod in broker_pods(kubectl, NAME).items()
        if pod["spec"].get("nodeName")
    }


@pytest.mark.full(
    "tests/reconcile/test_brokers_per_node_flow.py"
    "::test_more_brokers_come_beside_others_and_go_when_they_are_empty",
    "tests/broker/test_many_brokers.py"
    "::test_each_machine_has_one_replica_and_its_brokers_end_together",
)
def test_a_node_with_two_brokers_is_lost_under_load_and_nothing_with_it(
    kubectl: Kubectl, healthy: None
) -> None:
    with wide(kubectl):
        wait_for(kubectl, "kafkacluster", NAME, "BrokersReady")
        nodes = nodes_of(kubectl)
        assert sorted(nodes) == [0, 1, 2, 100, 101, 102]
        assert sorted(Counter(nodes.values()).values()) == [2, 2, 2]
        shape = {"clusterRef": {"name": NAME}, "partitions": PARTITIONS}
        kubectl.apply(topic("wide", **shape, replicationFactor=3))
        kubectl.apply(topic("wider", **shape, replicationFactor=4))
        wait_for(kubectl, "topic", "wide", "Synced")
        wait_for(kubectl, "topic", "wider", "InvalidReplicationFactor")
        bootstrap = addresses(kubectl, NAME)
        assert len(bootstrap.split(",")) == 6
        laid = leaders(bootstrap, "wide", 3).values()
        assert all(len({nodes[one] for one in each}) == 3 for each in laid)
        lost = nodes[0]
        gone = [
            name
            for name, pod in broker_pods(kubectl, NAME).items()
            if pod["spec"]["nodeName"] == lost
        ]
        kubectl("cordon", lost)
        try:
            with load(bootstrap, "wide") as acknowledged:
                eventually(lambda: len(acknowledged) > 500, "a first load", 120, 0.2)
                kubectl("delete", "pod", *gone, "--force", "--grace-period=0")
                reached = len(acknowledged)
                eventually(lambda: len(acknowledged) > reached + 500, "load without", 180, 0.2)
                assert lost not in nodes_of(kubectl).values()
                wait_for(kubectl, "kafkacluster", NAME, "BrokersStarting")
                told = kubectl.get("kafkacluster", NAME)["status"]["brokers"]
                last = {one["id"]: one.get("lastNode") for one in told}
                assert {one for one, node in last.items() if node == lost} == {
                    one for one, node in nodes.items() if node == lost
                }
                kubectl("uncordon", lost)
                wait_for(kubectl, "kafkacluster", NAME, "BrokersReady")
        finally:
            kubectl("uncordon", lost)
        assert nodes_of(kubectl) == nodes
        read = consume_all(bootstrap, "wide", PARTITIONS, len(acknowledged))
        assert sorted(read) == sorted(acknowledged)
        kubectl("delete", "topic", "wide", "wider", "--timeout=120s")
    eventually(lambda: broker_pods(kubectl, NAME) == {}, "the pods are gone")
