"""Clients outside of Kubernetes: over node ports, and over a load balancer, to the same broker.

Nothing gives load balancers addresses here, so the test does: those of nodes, where kube-proxy
takes connections for them as it does anywhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.e2e.conftest import secret
from tests.support.clients import QUIET, make_topic
from tests.support.kubectl import Kubectl, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

NAME = "outside"
SCRAM: dict[str, Any] = {"tls": True, "authentication": {"type": "scram-sha-512"}}
# The nodes' own ports are those of the quickstart's brokers.
NODE_PORTS, BALANCED = 9195, 9196


@contextmanager
def cluster(kubectl: Kubectl) -> Iterator[None]:
    """A KafkaCluster of one broker, on the network of pods, in the quickstart's ZooKeeper."""
    connect = kubectl.get("kafkacluster", "main")["spec"]["zookeeper"]["connect"]
    local = {"type": "NodePort", "externalTrafficPolicy": "Local"}
    kubectl.apply(
        {
            "apiVersion": "odradek.io/v1alpha1",
            "kind": "KafkaCluster",
            "metadata": {"name": NAME},
            "spec": {
                "zookeeper": {"connect": connect, "chroot": f"/{NAME}"},
                "brokers": {
                    "replicas": 1,
                    "hostNetwork": False,
                    "storage": {"size": "1Gi", "storageClassName": "local", "deleteClaims": True},
                    "config": {"default.replication.factor": "1"},
                    "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
                },
                "listeners": [
                    {"name": "internal", "port": 9093, **SCRAM},
                    {"name": "nodes", "port": NODE_PORTS, **SCRAM, "expose": local},
                    {
                        "name": "balanced",
                        "port": BALANCED,
                        **SCRAM,
                        "expose": {"type": "LoadBalancer"},
                    },
                ],
                "authorization": {"type": "simple"},
            },
        }
    )
    try:
        yield
    finally:
        kubectl("delete", "kafkacluster", NAME, "--ignore-not-found", "--timeout=120s")


def balance(kubectl: Kubectl, service: str, address: str) -> None:
    """Give a load balancer its address, as a cloud does."""
    status = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
    kubectl(
        *("patch", "service", service, "--subresource=status", "--type=merge"),
        f"--patch={json.dumps(status)}",
    )


def node_addresses(kubectl: Kubectl) -> dict[str, str]:
    """Return the address of each node."""
    return {
        one["metadata"]["name"]: next(
            str(each["address"])
            for each in one["status"]["addresses"]
            if each["type"] == "InternalIP"
        )
        for one in json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    }


def work(settings: dict[str, str | int | float | bool], topic: str) -> str:
    """Create a topic, write to it, and return where the client found the broker."""
    client = AdminClient(settings)
    make_topic(client, NewTopic(topic, 1, 1))
    errors: list[object] = []
    producer = Producer({**settings, "acks": "all"})
    producer.produce(topic, b"record", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert errors == [None]
    (broker,) = client.list_topics(timeout=60).brokers.values()
    return f"{broker.host}:{broker.port}"


def test_clients_come_over_node_ports_and_load_balancers(kubectl: Kubectl, healthy: None) -> None:
    nodes = node_addresses(kubectl)
    with cluster(kubectl):
        pod = f"{NAME}-broker-0"

        def told() -> str:
            return str(kubectl.condition("kafkacluster", NAME).get("message"))

        waited = f"Services {NAME}-balanced-bootstrap, {NAME}-balanced-0 have no address yet"
        eventually(lambda: waited in told(), "the Services without an address are told")
        assert kubectl.condition("kafkacluster", NAME, "Secured")["status"] == "False"
        home = eventually(
            lambda: kubectl.get("pod", pod)["spec"].get("nodeName"), "the pod has a node"
        )
        # Others than the broker's node: kube-proxy must carry it there.
        others = [address for name, address in sorted(nodes.items()) if name != home]
        balance(kubectl, f"{NAME}-balanced-bootstrap", others[0])
        balance(kubectl, f"{NAME}-balanced-0", others[1])
        line = f"NODES://{nodes[home]}:"

        def has_line() -> bool:
            data = kubectl.get("configmap", f"{NAME}-broker")["data"]
            return line in data["exposed"] and f"BALANCED://{others[1]}:" in data["exposed"]

        eventually(has_line, "what the broker is to advertise", pause_s=0.2)
        # The kubelet brings files when it looks after a pod, which a change of the pod hastens.
        kubectl("annotate", "pod", pod, f"look={time.time()}", "--overwrite")

        def is_ready() -> bool:
            return kubectl.condition("kafkacluster", NAME).get("status") == "True"

        eventually(is_ready, "Ready", 300, 0.2)
        eventually(
            lambda: kubectl.condition("kafkacluster", NAME, "Secured")["status"] == "True",
            "Secured",
        )
        listed = kubectl.get("kafkacluster", NAME)["status"]["listeners"]
        bootstrap = {one["name"]: one["bootstrapServers"] for one in listed}
        assert bootstrap["balanced"] == f"{others[0]}:{BALANCED}"
        user = secret(kubectl, f"{NAME}-operator")
        known: dict[str, str | int | float | bool] = {
            **QUIET,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user["username"],
            "sasl.password": user["password"],
            "ssl.ca.pem": secret(kubectl, f"{NAME}-cluster-ca-cert")["ca.crt"],
        }
        (port,) = kubectl.get("service", f"{NAME}-nodes-0")["spec"]["ports"]
        for name, address in (
            ("nodes", f"{nodes[home]}:{port['nodePort']}"),
            ("balanced", f"{others[1]}:{BALANCED}"),
        ):
            assert work({**known, "bootstrap.servers": bootstrap[name]}, name) == address
    eventually(
        lambda: kubectl("get", "services", "-l", f"odradek.io/cluster={NAME}", "-o", "name") == "",
        "the Services are gone",
    )
