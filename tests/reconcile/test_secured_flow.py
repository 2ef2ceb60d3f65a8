"""Listeners of a KafkaCluster: real operator, API server and ZooKeeper; pods are played.

The brokers of `test_brokers_...` are real, and run as their pods would.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from odradek.values import BrokerId
from odradek.zk import znodes
from odradek_operator.shared import certificates, user_znodes
from odradek_operator.shared.certificates import Pair
from odradek_operator.shared.kube import Kube
from tests.reconcile import conftest, kills, secured_pods
from tests.reconcile.conftest import OFTEN, Operator
from tests.reconcile.secured_pods import PodBroker, Pods
from tests.support import zookeeper
from tests.support.apiserver import ApiServer
from tests.support.broker import wait_until
from tests.support.kubectl import QuickKubectl, eventually
from tests.support.ports import free_port

SCRAM = {"type": "scram-sha-512"}
INTERNAL = {"name": "internal", "port": 9093, "tls": True, "authentication": SCRAM}
EXTERNAL = {"name": "external", "port": 9094, "tls": True, "authentication": {"type": "tls"}}
SIMPLE = {"type": "simple", "superUsers": ["User:admin"]}
# What cert-manager brings, as far as the operator sees it.
CERTIFICATES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "certificates.cert-manager.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"},
    },
    "spec": {
        "group": "cert-manager.io",
        "scope": "Namespaced",
        "names": {
            "kind": "Certificate",
            "listKind": "CertificateList",
            "plural": "certificates",
            "singular": "certificate",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


class Secured:
    """A namespace with an operator, for clusters with chroots of their own."""

    def __init__(
        self, api: ApiServer, zk: zookeeper.Server, namespace: str, operator: Operator
    ) -> None:
        self.api = api
        self.zk = zk
        self.namespace = namespace
        self.operator = operator
        self.kubectl = QuickKubectl(api.kubectl, api.kubeconfig, namespace)
        self.kube: Kube = kills.client(api.kubeconfig)

    def chroot(self, cluster: str) -> str:
        return f"/{self.namespace}/{cluster}"

    def apply(self, cluster: str, replicas: int, **wanted: Any) -> None:
        brokers = {"replicas": replicas, **wanted.pop("brokers", {})}
        self.kubectl.apply(
            {
                "apiVersion": "odradek.io/v1alpha1",
                "kind": "KafkaCluster",
                "metadata": {"name": cluster},
                "spec": {
                    "zookeeper": {"connect": self.zk.connect, "chroot": self.chroot(cluster)},
                    "brokers": brokers,
                    **wanted,
                },
            }
        )

    def pods(self, cluster: str, *hosts: str) -> Pods:
        return Pods(self.kube, self.namespace, cluster, dict(enumerate(hosts)))

    def secret(self, name: str) -> dict[str, str]:
        return secured_pods.texts(self.kube, self.namespace, name)

    def put_secret(self, name: str, texts: dict[str, str]) -> None:
        meta = {"name": name}
        self.kubectl.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": texts}
        )

    def wait(self, cluster: str, kind: str, reason: str) -> dict[str, Any]:
        """Wait until a condition has this reason, and return it."""

        def probe() -> dict[str, Any]:
            found = self.kubectl.condition("kafkacluster", cluster, kind)
            assert found.get("reason") == reason, found
            return found

        return eventually(probe, f"{cluster}: {kind} {reason}", pause_s=0.2) or {}


@contextmanager
def running(
    api: ApiServer, zk: zookeeper.Server, folder: Path, namespace: str
) -> Iterator[Secured]:
    """Run an operator in a namespace of its own."""
    api.create_namespace(namespace)
    with zk.client() as root:
        root.ensure_path(f"/{namespace}")
    log = folder / "operator.log"
    with Operator(api, namespace, log, "operator-0", modules=OFTEN) as operator:
        yield Secured(api, zk, namespace, operator)
    print(log.read_text())


@pytest.fixture(scope="module")
def secured(
    api: ApiServer, zk: zookeeper.Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    with running(api, zk, tmp_path_factory.mktemp("operator"), f"secured-{os.getpid()}") as found:
        yield found


def everything(secured: Secured) -> str:
    """Return what others than readers of Secrets can see."""
    kinds = ("configmap", "statefulset", "pod", "event", "kafkacluster", "deployment")
    found = [json.dumps(secured.kubectl.get(kind)) for kind in kinds]
    return "\n".join([*found, secured.operator.log.read_text()])


def writes_of_a_round(secured: Secured, cluster: str) -> float:
    """Touch what is not the spec, which makes a pass; return how many writes it made."""
    operator = secured.operator
    passes, writes = "odradek_operator_reconcile_seconds_count", "odradek_operator_writes_total"
    begun, before = operator.metric(passes), operator.metric(writes)
    secured.kubectl("annotate", "kafkacluster", cluster, f"touched={begun}", "--overwrite")
    eventually(lambda: operator.metric(passes) > begun, "a pass", pause_s=0.1)
    return operator.metric(writes) - before


def test_from_plain_to_secured_step_by_step(secured: Secured) -> None:
    pods = secured.pods("steps", "10.0.0.1", "10.0.0.2")
    with ExitStack() as stack:
        root = stack.enter_context(secured.zk.client())
        root.ensure_path(secured.chroot("steps"))
        client = stack.enter_context(secured.zk.client(secured.chroot("steps")))
        for path in znodes.PERSISTENT_PATHS:
            client.ensure_path(path)
        for broker_id in range(2):
            conftest.register(client, broker_id)
        claim = znodes.ControllerClaim(BrokerId(0), 1)
        client.create(znodes.CONTROLLER_PATH, znodes.encode_controller(claim), ephemeral=True)
        secured.apply("steps", 2)

        def played(reason: str) -> bool:
            pods.play()
            return secured.kubectl.condition("kafkacluster", "steps").get("reason") == reason

        eventually(lambda: played("BrokersReady"), "plain brokers", pause_s=0.3)
        told = secured.kubectl.condition("kafkacluster", "steps", "Secured")
        assert (told["status"], told["reason"]) == ("False", "PlainText")
        assert secured.kube.get("v1", "Secret", secured.namespace, "steps-brokers") is None

        # The port of the plain listener cannot be taken before nobody uses it.
        same = {**INTERNAL, "port": 9092}
        secured.apply("steps", 2, listeners=[same], authorization=SIMPLE)
        refused = secured.wait("steps", "Ready", "UnsafeListenerChange")
        assert "give internal another port" in refused["message"]

        seen: list[tuple[str, str]] = []

        def secure() -> bool:
            pods.play()
            plan = pods.plan()
            assert plan is not None
            names = ",".join(one.name for one in plan.listeners)
            if seen[-1:] != [(names, plan.between)]:
                seen.append((names, plan.between))
            found = secured.kubectl.condition("kafkacluster", "steps", "Secured")
            if found.get("status") == "False":
                assert found["reason"] == "Rolling", found
            return found.get("status") == "True"

        secured.apply("steps", 2, listeners=[INTERNAL], authorization=SIMPLE)
        eventually(secure, "secured brokers", timeout_s=400, pause_s=0.3)
        both = "internal,plaintext"
        wanted = [(both, "plaintext"), (both, "internal"), ("internal", "internal")]
        assert [one for one in seen if one != ("plaintext", "plaintext")] == wanted
        eventually(lambda: writes_of_a_round(secured, "steps") == 0, "a steady state")
        path = user_znodes.user_path("odradek-broker")
        entries = znodes.decode_config(path, client.get(path)[0])
        password = secured.secret("steps-brokers")["password"]
        assert user_znodes.is_of_password(entries["SCRAM-SHA-512"], "SCRAM-SHA-512", password)
    config = secured.kubectl.get("configmap", "steps-broker")["data"]["server.properties"]
    assert "PLAINTEXT" not in config
    assert "super.users=User:admin;User:odradek-broker;User:odradek-operator\n" in config
    shown = everything(secured)
    assert password not in shown
    assert secured.secret("steps-operator")["password"] not in shown
    assert "PRIVATE KEY" not in shown
    hosts = certificates.hosts_of(secured.secret("steps-brokers")["broker.pem"])
    assert {"10.0.0.1", "10.0.0.2", f"*.steps-brokers.{secured.namespace}.svc"} <= set(hosts)
    assert set(secured.secret("steps-cluster-ca-cert")) == {"ca.crt"}


def test_a_certificate_of_a_users_is_checked_before_brokers_get_it(secured: Secured) -> None:
    listener = {**INTERNAL, "certificate": {"secretName": "mine"}}
    secured.apply("given", 1, listeners=[listener], authorization=SIMPLE)
    missing = secured.wait("given", "Ready", "CertificateMissing")
    assert "Secret mine is not there" in missing["message"]
    now = datetime.now(UTC)
    authority = certificates.make_authority("mine", now)
    whom = certificates.subject("brokers")
    pair = certificates.sign_server(authority, whom, ["10.0.0.1"], now)
    secured.put_secret("mine", {"tls.crt": pair.certificate, "tls.key": authority.key})
    unusable = secured.wait("given", "Ready", "CertificateUnusable")
    assert "does not fit" in unusable["message"]
    assert secured.wait("given", "Secured", "CertificateUnusable")["status"] == "False"
    pods = secured.pods("given", "10.0.0.1")
    assert pods.stateful_set() is None
    sound = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
    secured.put_secret("mine", sound)
    eventually(lambda: pods.stateful_set() is not None, "the StatefulSet", pause_s=0.2)
    mounted = secured.secret("given-brokers")
    assert mounted["internal.pem"].endswith(pair.certificate)
    assert mounted["internal-trust.pem"] == authority.certificate
    assert secured.secret("given-cluster-ca-cert")["ca.crt"] == authority.certificate
    # What becomes unusable does not reach brokers that run.
    secured.put_secret("mine", {**sound, "tls.key": "rubbish"})
    secured.wait("given", "Ready", "CertificateUnusable")
    assert secured.secret("given-brokers") == mounted


def test_cert_manager_is_asked_where_there_is_an_issuer(secured: Secured) -> None:
    issuer = {"issuerRef": {"name": "ca", "kind": "ClusterIssuer"}}
    listener = {**INTERNAL, "certificate": issuer}
    secured.apply("issued", 1, listeners=[listener], authorization=SIMPLE)
    assert (
        "install cert-manager" in secured.wait("issued", "Ready", "CertManagerMissing")["message"]
    )
    secured.api.call("apply", "--server-side", "-f", "-", stdin=json.dumps(CERTIFICATES))
    try:
        secured.wait("issued", "Ready", "CertificatePending")
        kind = ("cert-manager.io/v1", "Certificate", secured.namespace, "issued-internal")
        asked = secured.kube.get(*kind)
        assert asked is not None
        assert asked["spec"]["issuerRef"]["kind"] == "ClusterIssuer"
        assert asked["spec"]["privateKey"]["rotationPolicy"] == "Always"
        now = datetime.now(UTC)
        authority = certificates.make_authority("theirs", now)
        whom = certificates.subject("issued-broker", "odradek")
        pods = secured.pods("issued", "10.0.0.7")

        def issue() -> dict[str, Any]:
            """Do what cert-manager does."""
            found = secured.kube.get(*kind)
            assert found is not None
            names = [*found["spec"]["dnsNames"], *found["spec"].get("ipAddresses", [])]
            pair = certificates.sign_server(authority, whom, names, now)
            texts = {"tls.crt": pair.certificate, "tls.key": pair.key}
            secured.put_secret(
                asked["spec"]["secretName"], {**texts, "ca.crt": authority.certificate}
            )
            return found

        issue()
        eventually(lambda: pods.stateful_set() is not None, "the StatefulSet", pause_s=0.2)
        pods.play()
        # The address of its node is known now: no broker starts before the certificate proves it.
        assert "10.0.0.7" not in secured.secret("issued-brokers")["hosts"]
        eventually(lambda: "10.0.0.7" in issue()["spec"].get("ipAddresses", []), "the address")
        eventually(
            lambda: "10.0.0.7\n" in secured.secret("issued-brokers")["hosts"], "hosts", pause_s=0.2
        )
    finally:
        secured.api.call("delete", "crd", "certificates.cert-manager.io")


def sasl(secured: Secured, folder: Path, port: int, password: str = "") -> dict[str, Any]:
    """Return librdkafka's settings of the operator's own user, a super user."""
    user = secured.secret("real-operator")
    authority = folder / "ca.crt"
    authority.write_text(secured.secret("real-cluster-ca-cert")["ca.crt"])
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user["username"],
        "sasl.password": password or user["password"],
    }


def mutual(secured: Secured, folder: Path, port: int) -> dict[str, Any]:
    """Return librdkafka's settings of a user with a certificate, without any right."""
    texts = secured.secret("real-clients-ca")
    authority = Pair(texts["ca.crt"], texts["ca.key"])
    pair = certificates.sign_client(authority, certificates.subject("shop"), datetime.now(UTC))
    (folder / "user.crt").write_text(pair.certificate)
    (folder / "user.key").write_text(pair.key)
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(folder / "ca.crt"),
        "ssl.certificate.location": str(folder / "user.crt"),
        "ssl.key.location": str(folder / "user.key"),
    }


def create(settings: dict[str, Any], topic: str, replicas: int = 1) -> None:
    client = AdminClient(settings)
    (made,) = client.create_topics([NewTopic(topic, 1, replicas)]).values()
    made.result(60)


def proved(port: int, authority: Path) -> list[str]:
    """Return what the certificate of a broker proves."""
    context = ssl.create_default_context(cafile=str(authority))
    with (
        socket.create_connection(("127.0.0.1", port), 60) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as wrapped,
    ):
        der = wrapped.getpeercert(binary_form=True)
    assert der is not None
    pem = x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)
    return certificates.hosts_of(pem.decode())


def test_brokers_serve_those_only_who_say_who_they_are_and_take_renewed_certificates(
    secured: Secured, tmp_path: Path
) -> None:
    scram, tls = free_port(), free_port()
    listeners = [{**INTERNAL, "port": scram}, {**EXTERNAL, "port": tls}]
    wanted = {"listeners": listeners, "authorization": SIMPLE}
    secured.apply("real", 1, **wanted)
    pods = secured.pods("real", "127.0.0.1", "127.0.0.2")
    eventually(lambda: pods.stateful_set() is not None, "the StatefulSet", pause_s=0.2)
    first = PodBroker(pods, 0, tmp_path / "0", free_port())
    second = PodBroker(pods, 1, tmp_path / "1", free_port())
    with ExitStack() as stack:
        stack.callback(first.end)
        stack.callback(second.end)
        # It waits for a certificate with its address, which is known when the pod has a node.
        first.mount()
        first.start()
        wait_until(lambda: "waiting for certificates that prove 127.0.0.1" in first.text(), "waits")
        pods.play()

        def has_host(host: str) -> bool:
            return f"{host}\n" in secured.secret("real-brokers")["hosts"]

        eventually(lambda: has_host("127.0.0.1"), "the address", pause_s=0.2)
        first.mount()
        first.wait_until_up()
        secured.wait("real", "Secured", "Secured")

        known = sasl(secured, tmp_path, scram)
        create(known, "orders")
        wait_until(
            lambda: "orders" in AdminClient(known).list_topics(timeout=60).topics, "the topic"
        )
        # Who has a certificate is let in, and has no rights.
        shop = mutual(secured, tmp_path, tls)
        assert AdminClient(shop).list_topics(timeout=60).topics == {}
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            create(shop, "mine")
        anonymous = {
            name: text
            for name, text in shop.items()
            if name.partition(".")[2][:3] not in ("cer", "key")
        }
        plain = {"bootstrap.servers": f"127.0.0.1:{scram}"}
        stranger = sasl(secured, tmp_path, scram, password="guess")

        def refused(settings: Mapping[str, str]) -> None:
            with pytest.raises(KafkaException):
                AdminClient({**settings, "log_level": 0}).list_topics(timeout=5)

        with ThreadPoolExecutor() as threads:
            assert [*threads.map(refused, (plain, anonymous, stranger))] == [None] * 3

        # A second broker on another node: all get a certificate that proves both addresses.
        before = proved(scram, tmp_path / "ca.crt")
        assert "127.0.0.2" not in before
        secured.apply("real", 2, **wanted)

        def second_has_a_node() -> bool:
            pods.play()
            return has_host("127.0.0.2")

        eventually(second_has_a_node, "the second address", pause_s=0.2)
        first.mount()
        wait_until(lambda: "127.0.0.2" in proved(scram, tmp_path / "ca.crt"), "renewed")
        assert first.text().count(" is up\n") == 1
        second.mount()
        second.start()
        second.wait_until_up()
        # They replicate over TLS, each known to the other by its password.
        client = AdminClient(known)

        def in_sync() -> bool:
            topics = client.list_topics(timeout=60).topics
            if "copies" not in topics:
                create(known, "copies", replicas=2)
                return False
            (partition,) = topics["copies"].partitions.values()
            return sorted(partition.isrs) == [0, 1]

        wait_until(in_sync, "both replicas in sync")
        secured.wait("real", "Ready", "BrokersReady")
        secured.wait("real", "Secured", "Secured")
