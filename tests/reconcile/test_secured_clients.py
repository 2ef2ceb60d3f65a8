"""Clients of a cluster with TLS, SASL and ACLs: the operator's own, the exporter's and jobs'."""

import base64
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek_operator.exporter.rounds import Exporter, Options
from odradek_operator.shared import cluster_access, user_znodes
from odradek_operator.shared.zookeeper import ZooKeeper
from odradek_spark import broker_access
from tests.reconcile.conftest import Operator, Place
from tests.reconcile.real_brokers import OUTSIDE
from tests.support import secured_cluster
from tests.support.apiserver import ApiServer
from tests.support.clients import QUIET, create_topic, produce_all
from tests.support.kubectl import eventually
from tests.support.secured_cluster import SecuredCluster

# Three processes start first.
pytestmark = pytest.mark.timeout(900)

NAMESPACE = "secured-clients"
SECRETS = ("main-operator", "main-lag-exporter")
JOB = {"sink": {"topic": {"name": "results"}}, "volume": {"size": "1Gi"}}


class Running(Place):
    """A secured broker, an operator, and a KafkaCluster with its listener."""

    secured: SecuredCluster
    operator: Operator
    reader: ZooKeeper

    def secret(self, name: str) -> dict[str, str]:
        """Return the content of a Secret."""
        data = self.kubectl.get("secret", name)["data"]
        return {key: base64.b64decode(text).decode() for key, text in data.items()}

    def access(self, name: str, folder: Path) -> broker_access.BrokerAccess:
        """Return how a pod that mounts a Secret reaches the brokers."""
        found = self.secret(name)
        (folder / "ca.crt").write_text(found["ca.crt"])
        text = found["client.properties"].replace(cluster_access.MOUNT, str(folder))
        path = folder / "client.properties"
        path.write_text(text)
        return broker_access.read(self.secured.bootstrap, path)[0]

    def rights(self, user: str) -> set[tuple[str, str, str]]:
        """Return (type, name, operation) of the ACLs of a user."""
        return {
            (pattern.resource_type.name, pattern.name, one.operation.name)
            for pattern, entries in user_znodes.every_acl(self.reader).items()
            for one in entries
            if one.principal.name == user
        }


@pytest.fixture(scope="module")
def running(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("secured")
    api.create_namespace(NAMESPACE)
    with (
        secured_cluster.running(folder, super_users=";User:odradek-operator") as secured,
        secured.cluster.zookeeper.client() as client,
    ):
        place = Running(api, secured.cluster.zookeeper, client, NAMESPACE)
        place.secured = secured
        certificate, key = secured.authority.pem()
        # A user's own: the brokers of the test have a certificate of it.
        authority = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "main-cluster-ca"}}
        place.kubectl.apply({**authority, "stringData": {"ca.crt": certificate, "ca.key": key}})
        hosts, _, chroot = secured.cluster.zookeeper.connect.partition("/")
        scram = {"type": "scram-sha-512"}
        listener = {"name": "secret", "port": 9093, "tls": True, "authentication": scram}
        place.kubectl.apply(
            {
                "apiVersion": "odradek.io/v1alpha1",
                "kind": "KafkaCluster",
                "metadata": {"name": "main"},
                "spec": {
                    "zookeeper": {"connect": hosts, "chroot": f"/{chroot}"},
                    # Ids begin at 0 on Kubernetes.
                    "brokers": {"replicas": 2},
                    "listeners": [listener],
                    "authorization": {"type": "simple"},
                },
            }
        )
        log = folder / "operator.log"
        place.reader = ZooKeeper(secured.cluster.zookeeper.connect, lambda: None)
        place.reader.require()
        with Operator(api, NAMESPACE, log, "operator-0", modules=OUTSIDE) as place.operator:
            for name in SECRETS:
                eventually(partial(place.secret, name), f"Secret {name}", pause_s=0.3)
            yield place
        print(log.read_text()[-8000:])
        place.reader.close()


def group(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "main"}, **spec},
    }


def commit(bootstrap: str, name: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": name, **QUIET})

    def stored() -> bool:
        try:
            place = TopicPartition(topic, 0, offset)
            return bool(consumer.commit(offsets=[place], asynchronous=False))
        except KafkaException as error:
            # The first commit of all makes the topic that it goes to.
            raise AssertionError(str(error)) from error

    eventually(stored, "the commit", pause_s=0.5)
    consumer.close()


def test_operator_observes_and_resets_groups_and_exporter_reads_lags(
    running: Running, tmp_path: Path
) -> None:
    plain = running.secured.cluster.bootstrap
    create_topic(plain, "orders")
    produce_all(plain, "orders", [b"x"] * 10)
    commit(plain, "billing", "orders", 4)
    wanted = group("billing", topics=["orders"], offsetStore="Kafka")
    running.kubectl.apply(wanted)

    def total(lag: int) -> bool:
        found = running.kubectl.get("consumergroup", "billing").get("status", {})
        assert found.get("totalLag") == lag, found
        return True

    eventually(lambda: total(6), "the lag", pause_s=0.3)
    reset = {"requestId": "a", "strategy": "Earliest"}
    running.kubectl.apply({**wanted, "spec": {**wanted["spec"], "reset": reset}})
    eventually(lambda: total(10), "the reset", pause_s=0.3)

    deployment = running.kubectl.get("deployment", "main-lag-exporter")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "--listener=SECRET" in container["args"]
    assert "--client-config=/etc/odradek/brokers/client.properties" in container["args"]
    assert {"name": "brokers", "secret": {"defaultMode": 420, "secretName": SECRETS[1]}} in pod[
        "volumes"
    ]
    running.access(SECRETS[1], tmp_path)
    user = running.secret(SECRETS[1])["username"]
    assert running.rights(user) == {
        ("CLUSTER", "kafka-cluster", "DESCRIBE"),
        ("GROUP", "*", "DESCRIBE"),
        ("TOPIC", "*", "DESCRIBE"),
    }
    options = Options(
        running.secured.cluster.zookeeper.connect,
        15,
        client_config=tmp_path / "client.properties",
        listener="SECRET",
    )
    exporter = Exporter(options)
    try:

        def read() -> bool:
            exporter.round()
            assert not exporter._failures
            return "billing" in exporter._lags.groups

        eventually(read, "a round without failures", pause_s=0.3)
    finally:
        exporter.close()


def test_changed_password_of_the_operator_is_taken_up(running: Running) -> None:
    name, plain = SECRETS[0], running.secured.cluster.bootstrap
    create_topic(plain, "changes")
    produce_all(plain, "changes", [b"x"] * 3)

    def is_observed(group_name: str) -> bool:
        found = running.kubectl.get("consumergroup", group_name).get("status", {})
        assert found.get("totalLag") == 2, found
        return True

    def is_new() -> bool:
        return len(running.secret(name).get("password", "")) >= 32

    for number, password in enumerate(("chosen-by-hand", "")):
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        running.kubectl.apply({**secret, "stringData": {"password": password}})
        if not password:
            eventually(is_new, "a new password", pause_s=0.3)
        commit(plain, f"changing-{number}", "changes", 1)
        observed = f"changing-{number}"
        running.kubectl.apply(group(observed, topics=["changes"], offsetStore="Kafka"))
        eventually(partial(is_observed, observed), "the lag", pause_s=0.3)


def test_job_has_a_user_with_its_rights_which_goes_with_it(
    running: Running, tmp_path: Path
) -> None:
    plain = running.secured.cluster.bootstrap
    for topic in ("clicks", "views", "results"):
        create_topic(plain, topic)
    user = f"odradek-job.{NAMESPACE}.counts"
    running.kubectl.apply(group("counts", topics=["clicks"], job=JOB))
    pod = eventually(lambda: running.kubectl.get("pod", "counts-driver"), "the driver", pause_s=0.3)
    resource = running.kubectl.get("consumergroup", "counts")
    secret = f"counts-brokers-{resource['metadata']['uid'][:8]}"
    (mounted,) = [one for one in pod["spec"]["volumes"] if one["name"] == "brokers"]
    assert mounted["secret"]["secretName"] == secret
    reads = {("TOPIC", "clicks", "READ"), ("GROUP", "counts", "READ")}
    writes = ("TOPIC", "results", "WRITE")
    assert running.rights(user) == {*reads, writes}
    role = running.kubectl.get("role", "odradek-job-counts")
    assert f"secret/{secret}" in json.dumps(role)

    # The file of its driver: the listener of the brokers, and no password.
    config = running.kubectl.get("configmap", "counts-job")["data"]["job.json"]
    job = json.loads(config)
    assert job["bootstrap"] == running.secured.bootstrap
    assert job["clientConfig"] == "/etc/odradek/brokers/client.properties"
    assert job["brokersSecret"] == secret
    password = running.secret(secret)["password"]
    settings = running.access(secret, tmp_path).client_settings()
    admin = AdminClient({**settings, **QUIET})
    eventually(
        lambda: set(admin.list_topics(timeout=30).topics) == {"clicks", "results"}, "its topics"
    )

    # Other topics: the driver is made anew, and the rights of before go.
    running.kubectl.apply(group("counts", topicPattern="vie.*", job=JOB))
    eventually(
        lambda: (
            running.rights(user) == {("TOPIC", "vie", "READ"), ("GROUP", "counts", "READ"), writes}
        ),
        "other rights",
        pause_s=0.3,
    )
    shown = [
        json.dumps(running.kubectl.get(kind, name))
        for kind, name in (
            ("consumergroup", "counts"),
            ("configmap", "counts-job"),
            ("role", "odradek-job-counts"),
        )
    ]
    assert password not in "".join(shown) + running.operator.log.read_text()

    running.kubectl("delete", "consumergroup", "counts", "--timeout=120s")
    assert running.rights(user) == set()
    assert user_znodes.read_entries(running.reader, [user]) == {user: {}}


@pytest.mark.parametrize(
    ("name", "authentication", "reason", "said"),
    [
        ("shown", "tls", "CertificateNeeded", "choose a SCRAM authentication"),
        ("taken", "scram-sha-512", "ResourceConflict", "Secret taken-lag-exporter exists and does"),
    ],
)
def test_exporter_that_cannot_connect_is_told_and_not_made(
    running: Running, name: str, authentication: str, reason: str, said: str
) -> None:
    foreign = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{name}-lag-exporter"}}
    running.kubectl.apply({**foreign, "stringData": {"password": "of-somebody"}})
    hosts = running.secured.cluster.zookeeper.connect.partition("/")[0]
    kind = {"type": authentication}
    running.kubectl.apply(
        {
            "apiVersion": "odradek.io/v1alpha1",
            "kind": "KafkaCluster",
            "metadata": {"name": name},
            "spec": {
                "zookeeper": {"connect": hosts, "chroot": f"/{NAMESPACE}-{name}"},
                "brokers": {"replicas": 1},
                "listeners": [{"name": "secret", "port": 9, "tls": True, "authentication": kind}],
            },
        }
    )

    def told() -> dict[str, str]:
        found = running.kubectl.get("kafkacluster", name).get("status", {}).get("conditions", ())
        return next((dict(one) for one in found if one["type"] == "LagExporter"), {})

    condition = eventually(told, "the condition", pause_s=0.3)
    assert (condition["status"], condition["reason"]) == ("False", reason)
    assert said in condition["message"]
    assert running.secret(f"{name}-lag-exporter") == {"password": "of-somebody"}
    deployments = running.kubectl.get("deployment")["items"]
    assert f"{name}-lag-exporter" not in [one["metadata"]["name"] for one in deployments]
    running.kubectl("delete", "kafkacluster", name)
