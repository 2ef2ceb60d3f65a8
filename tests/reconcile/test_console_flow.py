"""The console that the operator makes, with its own user and its own rights: real brokers with TLS,
SCRAM and ACLs, a real API server, and the console process with the options of its Deployment.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from odradek_operator.shared import cluster_access, user_znodes
from odradek_operator.shared.zookeeper import ZooKeeper
from tests.console.running import Running as Console
from tests.reconcile.conftest import Operator, Place
from tests.reconcile.real_brokers import OUTSIDE
from tests.support import objects, secured_cluster
from tests.support.apiserver import ApiServer
from tests.support.clients import create_topic, produce_all
from tests.support.kubectl import eventually
from tests.support.secured_cluster import SecuredCluster

pytestmark = pytest.mark.timeout(900)

NAMESPACE = "console-flow"
NAME = "main-console"
USER = "odradek-console"
SEEN = {
    *(("CLUSTER", "kafka-cluster", "DESCRIBE"), ("CLUSTER", "kafka-cluster", "DESCRIBE_CONFIGS")),
    *(("GROUP", "*", "DESCRIBE"), ("TOPIC", "*", "DESCRIBE"), ("TOPIC", "*", "DESCRIBE_CONFIGS")),
}
READ = ("TOPIC", "*", "READ")


class Running(Place):
    """Secured brokers, an operator, and their KafkaCluster with a console."""

    server: ApiServer
    secured: SecuredCluster
    reader: ZooKeeper

    def rights(self) -> set[tuple[str, str, str]]:
        return {
            (pattern.resource_type.name, pattern.name, one.operation.name)
            for pattern, entries in user_znodes.every_acl(self.reader).items()
            for one in entries
            if one.principal.name == USER
        }

    def want(self, console: dict[str, Any] | None) -> None:
        """Replace the console's spec, and wait until the operator has seen that."""
        change: dict[str, Any] = {"op": "add", "path": "/spec/console", "value": console}
        if console is None:
            change = {"op": "remove", "path": "/spec/console"}
        patch = json.dumps([change])
        self.kubectl("patch", "kafkacluster", "main", "--type=json", f"--patch={patch}")

        def is_seen() -> bool:
            found = self.kubectl.get("kafkacluster", "main")
            seen = found.get("status", {}).get("observedGeneration")
            return bool(seen == found["metadata"]["generation"])

        eventually(is_seen, "a look at the spec", pause_s=0.3)

    def told(self) -> dict[str, Any] | None:
        found = self.kubectl.get("kafkacluster", "main").get("status", {}).get("conditions", ())
        return next((dict(one) for one in found if one["type"] == "Console"), None)

    def exists(self) -> bool:
        listed = self.kubectl.get("deployment")["items"]
        return NAME in [one["metadata"]["name"] for one in listed]

    def start(self, folder: Path) -> Console:
        """Start the console as its pod would be, in the network of this machine."""
        data = self.kubectl.get("secret", NAME)["data"]
        for key, text in data.items():
            content = base64.b64decode(text).decode().replace(cluster_access.MOUNT, str(folder))
            (folder / key).write_text(content)
        kubeconfig = yaml.safe_load(self.server.kubeconfig.read_text())
        token = objects.client(self.server.kubeconfig).token(NAMESPACE, NAME, 3600)
        kubeconfig["users"][0]["user"] = {"token": token}
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig))
        deployment = self.kubectl.get("deployment", NAME)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        here = ("--bootstrap-server", "--port", "--health-port")
        options = [
            one.replace(cluster_access.MOUNT, str(folder))
            for one in container["args"]
            if not one.startswith(here)
        ]
        environment = {**os.environ, "KUBECONFIG": str(path)}
        return Console(folder, self.secured.bootstrap, *options, environment=environment)


@pytest.fixture(scope="module")
def running(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("secured")
    api.create_namespace(NAMESPACE)
    with (
        secured_cluster.running(folder, super_users=";User:odradek-operator") as secured,
        secured.cluster.zookeeper.client() as client,
    ):
        place = Running(api, secured.cluster.zookeeper, client, NAMESPACE)
        place.server = api
        place.secured = secured
        certificate, key = secured.authority.pem()
        authority = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "main-cluster-ca"}}
        place.kubectl.apply({**authority, "stringData": {"ca.crt": certificate, "ca.key": key}})
        hosts, _, chroot = secured.cluster.zookeeper.connect.partition("/")
        scram = {"type": "scram-sha-512"}
        place.kubectl.apply(
            {
                "apiVersion": "odradek.io/v1alpha1",
                "kind": "KafkaCluster",
                "metadata": {"name": "main"},
                "spec": {
                    "zookeeper": {"connect": hosts, "chroot": f"/{chroot}"},
                    "brokers": {"replicas": 2},
                    "listeners": [
                        {"name": "secret", "port": 9093, "tls": True, "authentication": scram}
                    ],
                    "authorization": {"type": "simple"},
                    "console": {},
                },
            }
        )
        create_topic(secured.cluster.bootstrap, "orders")
        produce_all(secured.cluster.bootstrap, "orders", [b"a record of somebody"])
        log = folder / "operator.log"
        place.reader = ZooKeeper(secured.cluster.zookeeper.connect, lambda: None)
        place.reader.require()
        with Operator(api, NAMESPACE, log, "operator-0", modules=OUTSIDE):
            eventually(place.exists, "the console's Deployment", pause_s=0.3)
            yield place
        print(log.read_text()[-8000:])
        place.reader.close()


def test_it_shows_what_its_user_and_its_account_may_see(running: Running, tmp_path: Path) -> None:
    running.want({})
    assert running.told() is None
    assert running.rights() == SEEN | {READ}
    console = running.start(tmp_path)
    count = len(running.secured.cluster.brokers)
    eventually(lambda: f"{count} of {count}" in console.page("/"), "the brokers", pause_s=0.3)
    assert "a record of somebody" in console.page("/topics/orders/records")
    assert "retention.ms" in console.page("/topics/orders")
    for path in ("/groups", "/jobs", "/reassignments"):
        assert "Unknown: " not in console.page(path)
    # Its rights end with the records of the spec, also for a process that would still show them.
    running.want({"records": False})
    eventually(lambda: running.rights() == SEEN, "fewer rights", pause_s=0.3)

    def is_refused() -> bool:
        page = console.page("/topics/orders/records")
        return "AUTHORIZATION_FAILED" in page and "a record of somebody" not in page

    eventually(is_refused, "brokers refuse records", pause_s=0.3)
    console.end()
    after = running.start(tmp_path)
    assert after.said("/topics/orders/records", 404) == "There is no such page."
    assert "/records" not in after.page("/topics/orders")
    after.end()


def test_what_is_in_its_way_is_told_until_it_is_not(running: Running) -> None:
    running.want({"users": {"secretName": "people"}})

    def reason() -> str:
        return str((running.told() or {}).get("reason", ""))

    eventually(lambda: reason() == "SecretMissing", "the condition", pause_s=0.3)
    people = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "people"}}
    running.kubectl.apply({**people, "stringData": {"users": "ann:scrypt:YQ==:YQ=="}})
    eventually(lambda: running.told() is None, "nothing to tell", pause_s=0.3)


def test_it_goes_with_its_user_and_comes_back_with_another_password(running: Running) -> None:
    running.want({})
    eventually(running.exists, "the console", pause_s=0.3)
    running.want(None)
    eventually(lambda: not running.exists(), "it is gone", pause_s=0.3)
    assert running.rights() == set()
    assert user_znodes.read_entries(running.reader, [USER]) == {USER: {}}
    assert not running.kubectl.get("role", NAME).get("rules")
    running.want({})
    eventually(running.exists, "it is back", pause_s=0.3)
    assert running.rights() == SEEN | {READ}
    assert running.kubectl.get("role", NAME)["rules"]


@pytest.mark.parametrize(
    ("console", "said"),
    [
        ({"writable": True}, "hosts, certificate and writable need users"),
        ({"hosts": ["a.example"]}, "hosts, certificate and writable need users"),
        ({"users": {}}, "secretName: Required value"),
        ({"users": {"secretName": "a/b"}}, "spec.console.users.secretName in body should match"),
        ({"schemaRegistry": {"url": "ftp://x"}}, "spec.console.schemaRegistry.url in body"),
        ({"record": True}, "spec.console.record: field not declared in schema"),
    ],
)
def test_a_console_that_makes_no_sense_is_refused(
    running: Running, console: dict[str, Any], said: str
) -> None:
    with pytest.raises(AssertionError) as refused:
        running.kubectl.apply(
            {
                "apiVersion": "odradek.io/v1alpha1",
                "kind": "KafkaCluster",
                "metadata": {"name": "wrong"},
                "spec": {
                    "zookeeper": {"connect": "nowhere:1", "chroot": "/wrong"},
                    "brokers": {"replicas": 1},
                    "console": console,
                },
            }
        )
    assert said in str(refused.value)
