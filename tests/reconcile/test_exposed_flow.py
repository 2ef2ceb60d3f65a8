"""Listeners exposed by Services: real operator, API server and ZooKeeper; pods are played.

Kubernetes' own parts are played, too: the status of load balancers, and node addresses. The broker
of `test_clients_...` is real, and runs as its pod would; a librdkafka comes through a forwarder.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from odradek.values import BrokerId
from odradek.zk import znodes
from odradek_operator.shared import certificates
from tests.reconcile import secured_pods
from tests.reconcile.secured_pods import PodBroker, Pods
from tests.reconcile.test_secured_flow import (
    INTERNAL,
    SCRAM,
    SIMPLE,
    Secured,
    create,
    running,
    sasl,
)
from tests.support import objects, zookeeper
from tests.support.apiserver import ApiServer
from tests.support.forwarder import Forwarder
from tests.support.kubectl import eventually
from tests.support.ports import free_port

LISTENER = {"name": "external", "port": 9094, "tls": True, "authentication": SCRAM}
BALANCED = {"type": "LoadBalancer"}
NODE_PORT = {"type": "NodePort"}
_numbers = itertools.count(1)


def exposed(**expose: Any) -> list[dict[str, Any]]:
    return [INTERNAL, {**LISTENER, "expose": expose}]


@pytest.fixture(scope="module")
def secured(
    api: ApiServer, zk: zookeeper.Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    with running(api, zk, tmp_path_factory.mktemp("operator"), f"exposed-{os.getpid()}") as found:
        yield found


def services(secured: Secured, cluster: str) -> dict[str, dict[str, Any]]:
    """Return the Services of exposed listeners of a cluster, by the rest of their names."""
    selector = f"odradek.io/cluster={cluster},odradek.io/listener"
    found = secured.kube.select("v1", "Service", secured.namespace, selector)
    return {one["metadata"]["name"].removeprefix(f"{cluster}-"): one for one in found}


def names(secured: Secured, cluster: str) -> list[str]:
    return sorted(services(secured, cluster))


def balance(secured: Secured, name: str, *ingress: Mapping[str, str]) -> None:
    """Give a load balancer its addresses, as a cloud does."""
    status = {"loadBalancer": {"ingress": list(ingress)}}
    live = secured.kube.get("v1", "Service", secured.namespace, name)
    assert live is not None
    secured.kube.apply_status(live, status)


def register(client: KazooClient, broker_id: int, **endpoints: tuple[str, int]) -> None:
    """Register a broker as itself would, again if it has come back."""
    found = tuple(znodes.BrokerEndpoint(name, *one) for name, one in endpoints.items())
    data = znodes.encode_broker(znodes.BrokerRegistration(BrokerId(broker_id), found))
    path = znodes.broker_path(broker_id)
    if client.exists(path):
        client.delete(path)
    client.create(path, data, ephemeral=True)


@pytest.fixture
def prepared(secured: Secured) -> Iterator[tuple[str, KazooClient]]:
    """Give the name of a cluster that is yet to be made, and its znodes, with a controller."""
    cluster = f"c{next(_numbers)}"
    with secured.zk.client() as root:
        root.ensure_path(secured.chroot(cluster))
    with secured.zk.client(secured.chroot(cluster)) as client:
        for path in znodes.PERSISTENT_PATHS:
            client.ensure_path(path)
        claim = znodes.ControllerClaim(BrokerId(0), 1)
        client.create(znodes.CONTROLLER_PATH, znodes.encode_controller(claim), ephemeral=True)
        yield cluster, client
    secured.kubectl("delete", "kafkacluster", cluster, "--ignore-not-found", "--wait=false")


def lines(secured: Secured, cluster: str) -> list[str]:
    """Return what brokers are given to advertise."""
    found = secured.kubectl.get("configmap", f"{cluster}-broker")["data"]
    return str(found["exposed"]).splitlines()


def played(pods: Pods, secured: Secured, cluster: str, reason: str) -> dict[str, Any]:
    """Play the pods until Ready has this reason."""

    def probe() -> dict[str, Any]:
        pods.play()
        found = secured.kubectl.condition("kafkacluster", cluster)
        assert found.get("reason") == reason, found
        return found

    return eventually(probe, f"{cluster}: {reason}", pause_s=0.2)


def test_clients_reach_a_broker_at_its_load_balancer_and_where_that_moves(
    secured: Secured, tmp_path: Path
) -> None:
    internal, port = free_port(), free_port()
    listeners = [{**INTERNAL, "port": internal}, {**LISTENER, "port": port, "expose": BALANCED}]
    wanted = {"listeners": listeners, "authorization": SIMPLE}
    secured.apply("real", 1, **wanted)
    pods = secured.pods("real", "127.0.0.1")
    pending = secured.wait("real", "Ready", "AddressPending")
    assert "Services real-external-bootstrap, real-external-0 have no address" in pending["message"]
    eventually(lambda: pods.stateful_set() is not None, "the StatefulSet", pause_s=0.2)
    broker = PodBroker(pods, 0, tmp_path / "0", free_port())

    def has_host(key: str, host: str) -> bool:
        return f"{host}\n" in secured_pods.texts(
            secured.kube, secured.namespace, "real-brokers"
        ).get(key, "")

    with ExitStack() as stack:
        stack.callback(broker.end)
        pods.play()
        eventually(lambda: has_host("hosts", "127.0.0.1"), "the node's address", pause_s=0.2)
        broker.mount()
        broker.start()
        waits = "waiting for the addresses of the Services of real-broker-0"
        eventually(lambda: waits in broker.text(), "it waits", pause_s=0.1)
        assert secured.wait("real", "Secured", "AddressPending")["status"] == "False"
        for host in ("127.0.0.20", "127.0.0.21", "127.0.0.22"):
            stack.enter_context(Forwarder((host, port), ("127.0.0.1", port)))
        balance(secured, "real-external-bootstrap", {"ip": "127.0.0.20"})
        balance(secured, "real-external-0", {"ip": "127.0.0.21"})
        eventually(lambda: has_host("exposed-hosts", "127.0.0.21"), "certificates", pause_s=0.2)
        eventually(lambda: lines(secured, "real") != [], "the line", pause_s=0.2)
        broker.mount()
        broker.wait_until_up()
        played(pods, secured, "real", "BrokersReady")
        secured.wait("real", "Secured", "Secured")
        (told,) = secured.kubectl.get("kafkacluster", "real")["status"]["listeners"]
        assert told == {"name": "external", "bootstrapServers": f"127.0.0.20:{port}"}

        # The client knows the load balancers only, and verifies their names.
        known = {**sasl(secured, tmp_path, port), "bootstrap.servers": told["bootstrapServers"]}
        create(known, "orders")

        def advertised() -> str:
            (found,) = AdminClient(known).list_topics(timeout=60).brokers.values()
            return f"{found.host}:{found.port}"

        assert advertised() == f"127.0.0.21:{port}"

        # Its address changes: the broker is restarted, and advertises the other one.
        first = secured.kubectl.get("pod", "real-broker-0")["metadata"]["uid"]
        balance(secured, "real-external-0", {"ip": "127.0.0.22"})
        changed = secured.wait("real", "Ready", "NotAdvertised")
        assert "brokers 0 do not advertise their addresses" in changed["message"]

        def is_replaced() -> bool:
            pods.play()
            return bool(secured.kubectl.get("pod", "real-broker-0")["metadata"]["uid"] != first)

        eventually(is_replaced, "another pod", pause_s=0.2)
        broker.end()
        # The next one would wait until this one's session is over.
        secured.zk.end_session_of(secured.chroot("real") + znodes.broker_path(BrokerId(0)))
        again = PodBroker(pods, 0, tmp_path / "again", free_port())
        stack.callback(again.end)
        (tmp_path / "again" / "data").rmdir()
        (tmp_path / "0" / "data").rename(tmp_path / "again" / "data")
        again.mount()
        again.start()
        again.wait_until_up()
        played(pods, secured, "real", "BrokersReady")
        assert advertised() == f"127.0.0.22:{port}"
        # A load balancer that is gone is told, and restarts nobody.
        before = secured.kubectl.get("pod", "real-broker-0")["metadata"]["uid"]
        balance(secured, "real-external-0")
        lost = secured.wait("real", "Ready", "AddressPending")
        assert "Service real-external-0 has no address yet" in lost["message"]
        assert lines(secured, "real") == [f"0 * EXTERNAL://127.0.0.22:{port} 127.0.0.22"]
        assert secured.kubectl.get("pod", "real-broker-0")["metadata"]["uid"] == before
        balance(secured, "real-external-0", {"ip": "127.0.0.22"})
        secured.wait("real", "Ready", "BrokersReady")
    secured.apply("real", 1, listeners=[INTERNAL | {"port": internal}], authorization=SIMPLE)
    eventually(lambda: names(secured, "real") == [], "no Services", pause_s=0.2)
    secured.kubectl("delete", "kafkacluster", "real", "--wait=false")


def test_services_come_and_go_with_brokers_and_listeners(
    secured: Secured, prepared: tuple[str, KazooClient]
) -> None:
    cluster, _ = prepared
    secured.apply(
        cluster, 2, listeners=exposed(**BALANCED, loadBalancerSourceRanges=["10.0.0.0/8"])
    )
    three = ["external-0", "external-1", "external-bootstrap"]
    eventually(lambda: names(secured, cluster) == three, "Services of two brokers", pause_s=0.2)
    first = services(secured, cluster)["external-0"]
    assert first["spec"]["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    (owner,) = first["metadata"]["ownerReferences"]
    body = secured.kubectl.get("kafkacluster", cluster)
    assert (owner["kind"], owner["uid"]) == ("KafkaCluster", body["metadata"]["uid"])

    secured.apply(cluster, 3, listeners=exposed(**BALANCED))
    four = sorted([*three, "external-2"])
    eventually(lambda: names(secured, cluster) == four, "one more", pause_s=0.2)

    def is_open() -> bool:
        return "loadBalancerSourceRanges" not in services(secured, cluster)["external-0"]["spec"]

    eventually(is_open, "what is gone from the spec is gone from the Service", pause_s=0.2)
    secured.apply(cluster, 1, listeners=exposed(**NODE_PORT))
    # Nobody has replicas on the other two.
    two = ["external-0", "external-bootstrap"]
    eventually(lambda: names(secured, cluster) == two, "fewer", pause_s=0.2)
    eventually(
        lambda: services(secured, cluster)["external-0"]["spec"]["type"] == "NodePort", "the type"
    )
    # One that somebody deletes is made anew.
    secured.kubectl("delete", "service", f"{cluster}-external-0")
    eventually(lambda: names(secured, cluster) == two, "the Service again", pause_s=0.2)
    renamed = [INTERNAL, {**LISTENER, "name": "outside", "expose": NODE_PORT}]
    secured.apply(cluster, 1, listeners=renamed)
    other = ["outside-0", "outside-bootstrap"]
    eventually(lambda: names(secured, cluster) == other, "another name", pause_s=0.2)
    # Not even without listeners one is left.
    secured.apply(cluster, 1)
    eventually(lambda: names(secured, cluster) == [], "no Services", pause_s=0.2)


@pytest.mark.full(
    "tests/reconcile/test_exposed_flow.py::test_clients_reach_a_broker_at_its_load_balancer_and_where_that_moves"
)
def test_a_running_cluster_is_exposed_once_all_addresses_are_known(
    secured: Secured, prepared: tuple[str, KazooClient]
) -> None:
    cluster, client = prepared
    pods = secured.pods(cluster, "10.1.0.1", "10.1.0.2")
    wanted = {"listeners": [INTERNAL, LISTENER], "authorization": SIMPLE}
    secured.apply(cluster, 2, **wanted)
    own = {number: {"INTERNAL": (f"10.1.0.{number + 1}", 9093)} for number in range(2)}
    for number in range(2):
        register(client, number, **own[number], EXTERNAL=(f"10.1.0.{number + 1}", 9094))
    played(pods, secured, cluster, "BrokersReady")
    template = pods.stateful_set()
    assert template is not None
    secured.apply(cluster, 2, **{**wanted, "listeners": exposed(**BALANCED)})
    balanced = ("external-bootstrap", "external-0", "external-1")
    for name in balanced[:2]:
        eventually(lambda name=name: name in names(secured, cluster), name, pause_s=0.2)  # type: ignore[misc]
        balance(secured, f"{cluster}-{name}", {"hostname": f"{name}.example"})

    def waits() -> bool:
        text = secured.kubectl.condition("kafkacluster", cluster).get("message", "")
        assert f"Service {cluster}-external-1 has no address yet" in text
        return "brokers 1 are not restarted before that" in text

    eventually(waits, "the second address is waited for", pause_s=0.2)
    held = pods.stateful_set()
    assert held is not None
    assert held["spec"]["template"] == template["spec"]["template"]
    balance(secured, f"{cluster}-external-1", {"hostname": "external-1.example"})
    secured.wait(cluster, "Ready", "NotAdvertised")

    def rolled() -> bool:
        """Do what brokers do that come back: they register with their line."""
        pods.play()
        now = pods.stateful_set()
        assert now is not None
        revision = now.get("status", {}).get("updateRevision")
        for number in range(2):
            pod = secured.kubectl.get("pod", f"{cluster}-broker-{number}")
            if pod["metadata"]["labels"]["controller-revision-hash"] == revision:
                outside = (f"external-{number}.example", 9094)
                register(client, number, **own[number], EXTERNAL=outside)
        found = secured.kubectl.condition("kafkacluster", cluster)
        return found.get("reason") == "BrokersReady"

    eventually(rolled, "both are restarted and advertise their names", 240, 0.3)
    assert lines(secured, cluster) == [
        f"{number} * EXTERNAL://external-{number}.example:9094 external-{number}.example"
        for number in range(2)
    ]
    config = secured.kubectl.get("configmap", f"{cluster}-broker")["data"]
    assert config["advertised"] == "INTERNAL://@:9093"
    pem = secured.secret(f"{cluster}-brokers")["broker.pem"]
    hosts = certificates.hosts_of(pem)
    assert {f"{one}.example" for one in balanced} <= set(hosts)
    assert secured.wait(cluster, "Secured", "Secured")["status"] == "True"


def make_node(secured: Secured, name: str, **addresses: str) -> None:
    listed = [{"type": kind, "address": text} for kind, text in addresses.items()]
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    live = secured.kube.get("v1", "Node", "", name)
    if live is None:
        live = secured.kube.create({**body, "metadata": {"name": name, "namespace": ""}})
    secured.kube.apply_status(
        {**live, **body, "metadata": {**live["metadata"], "namespace": ""}}, {"addresses": listed}
    )


def test_brokers_advertise_their_node_and_the_port_of_their_service(
    secured: Secured, prepared: tuple[str, KazooClient]
) -> None:
    cluster, client = prepared
    pods = secured.pods(cluster, "10.2.0.1")
    node = f"{secured.namespace}-node"
    pods.nodes = {0: node}
    make_node(secured, node, InternalIP="10.2.0.1", ExternalIP="203.0.113.1")
    wanted = {"listeners": exposed(**NODE_PORT), "authorization": SIMPLE}
    try:
        secured.apply(cluster, 1, **wanted)
        eventually(lambda: pods.stateful_set() is not None, "the StatefulSet", pause_s=0.2)
        assert lines(secured, cluster) == []
        pods.play()
        port = services(secured, cluster)["external-0"]["spec"]["ports"][0]["nodePort"]
        line = f"0 {node} EXTERNAL://203.0.113.1:{port} 203.0.113.1"
        eventually(lambda: lines(secured, cluster) == [line], "the line", pause_s=0.2)
        internal = {"INTERNAL": ("10.2.0.1", 9093)}
        register(client, 0, **internal, EXTERNAL=("203.0.113.1", port))
        played(pods, secured, cluster, "BrokersReady")
        bootstrap = services(secured, cluster)["external-bootstrap"]["spec"]["ports"][0]["nodePort"]
        (told,) = secured.kubectl.get("kafkacluster", cluster)["status"]["listeners"]
        assert told["bootstrapServers"] == f"203.0.113.1:{bootstrap}"
        # Another address of the node is followed.
        make_node(secured, node, InternalIP="10.2.0.1", ExternalIP="203.0.113.2")
        secured.wait(cluster, "Ready", "NotAdvertised")
        hosts = certificates.hosts_of(secured.secret(f"{cluster}-brokers")["broker.pem"])
        assert {"203.0.113.1", "203.0.113.2"} <= set(hosts)
    finally:
        secured.kubectl("delete", "node", node)
        secured.kubectl(
            "delete",
            "pod",
            f"{cluster}-broker-0",
            "--grace-period=0",
            "--force",
            "--ignore-not-found",
        )


def test_a_node_port_that_another_has_is_told(secured: Secured) -> None:
    # Of those that Kubernetes gives to nobody who does not ask (30000 to 30085).
    asked = {"brokers": [{"broker": 0, "nodePort": 30061}], **NODE_PORT}
    secured.apply("one", 1, listeners=exposed(**asked))
    eventually(lambda: "external-0" in names(secured, "one"), "the Service", pause_s=0.2)
    secured.apply("two", 1, listeners=exposed(**asked))
    clash = secured.wait("two", "Ready", "ServiceRejected")
    assert "two-external-0" in clash["message"]
    assert "30061" in clash["message"]
    assert secured.wait("two", "Stalled", "ServiceRejected")["status"] == "True"
    assert secured.wait("two", "Secured", "ServiceRejected")["status"] == "False"
    # It comes right once the port is free.
    secured.apply(
        "one", 1, listeners=exposed(**NODE_PORT, advertisedHostTemplate="a{nodeId}.example")
    )
    secured.kubectl("delete", "service", "one-external-0")
    eventually(lambda: "external-0" in names(secured, "two"), "the Service", pause_s=0.2)
    (port,) = services(secured, "two")["external-0"]["spec"]["ports"]
    assert port["nodePort"] == 30061
    for cluster in ("one", "two"):
        secured.kubectl("delete", "kafkacluster", cluster, "--wait=false")


def test_a_service_of_somebody_else_is_left_alone(secured: Secured) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "three-external-0"},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "shop"}},
    }
    secured.kubectl.apply(theirs)
    secured.apply("three", 1, listeners=exposed(**BALANCED))
    conflict = secured.wait("three", "Ready", "ServiceConflict")
    assert "Service three-external-0 is not of this KafkaCluster" in conflict["message"]
    assert secured.kubectl.get("service", "three-external-0")["spec"]["selector"] == {"app": "shop"}
    objects.client(secured.kubectl.kubeconfig).delete(
        "service", secured.namespace, "three-external-0"
    )
    secured.wait("three", "Ready", "AddressPending")
    secured.kubectl("delete", "kafkacluster", "three", "--wait=false")


@pytest.mark.full(
    "tests/reconcile/test_exposed_flow.py::test_a_service_of_somebody_else_is_left_alone"
)
def test_a_cluster_of_the_same_name_waits_for_the_services_of_the_former_one(
    secured: Secured,
) -> None:
    secured.apply("four", 1, listeners=exposed(**BALANCED))
    eventually(lambda: len(names(secured, "four")) == 2, "Services", pause_s=0.2)
    # Nobody collects what belonged to it here.
    secured.kubectl("delete", "kafkacluster", "four")
    secured.apply("four", 1, listeners=exposed(**BALANCED))
    former = secured.wait("four", "Ready", "ServiceTerminating")
    assert "of a former KafkaCluster of this name" in former["message"]
    assert secured.wait("four", "Reconciling", "ServiceTerminating")["status"] == "True"
    kinds = "services,secrets,configmaps,statefulsets,poddisruptionbudgets,deployments"
    secured.kubectl("delete", kinds, "-l", "odradek.io/cluster=four")
    secured.wait("four", "Ready", "AddressPending")
    secured.kubectl("delete", "kafkacluster", "four", "--wait=false")
