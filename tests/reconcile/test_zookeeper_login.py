"""ZooKeeper of a KafkaCluster with TLS and a login: a real server, operator and brokers.

Pods are played; the brokers run as their pods would.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from odradek.zk import access_files, acls
from odradek.zk.client import Client
from odradek_operator.exporter.rounds import Exporter, Options
from odradek_spark import group_znodes
from tests.reconcile.conftest import OFTEN, Operator
from tests.reconcile.secured_pods import PodBroker, texts
from tests.reconcile.test_secured_flow import INTERNAL, SIMPLE, Secured, everything
from tests.support import secure_zookeeper
from tests.support.apiserver import ApiServer
from tests.support.broker import wait_until
from tests.support.clients import create_topic
from tests.support.kubectl import eventually
from tests.support.ports import free_port
from tests.support.secure_zookeeper import GREEK_PASSWORD, GREEK_USER, PASSWORD, USER
from tests.support.znode_acls import SUPER

pytestmark = pytest.mark.timeout(900)


class Login(Secured):
    """A namespace with an operator, beside a ZooKeeper with a plain and a secure port."""

    zk: secure_zookeeper.Server

    def put_login(self, name: str, **keys: str) -> None:
        authority, _ = self.zk.authority.pem()
        self.put_secret(name, {"ca.crt": authority, **keys})

    def wanted(self, cluster: str, port: int, *, secured: bool = True, **more: Any) -> None:
        """Apply a KafkaCluster, `secured` or plain."""
        place: dict[str, Any] = {"connect": self.zk.connect, "chroot": self.chroot(cluster)}
        if secured:
            authentication = {"secretName": "zookeeper", **more.pop("authentication", {})}
            place = {**place, "connect": self.zk.secure_connect, "authentication": authentication}
        brokers = {"replicas": 1, "config": CONFIG, **more.pop("brokers", {})}
        if "listeners" not in more:
            brokers["port"] = port
        self.kubectl.apply(
            {
                "apiVersion": "odradek.io/v1alpha1",
                "kind": "KafkaCluster",
                "metadata": {"name": cluster},
                "spec": {"zookeeper": place, "brokers": brokers, **more},
            }
        )

    def stranger(self, cluster: str) -> Any:
        """Return a client that does not say who it is."""
        client: Any = Client(self.zk.connect + self.chroot(cluster), 30)
        client.start(60)
        return client


CONFIG = {"offsets.topic.replication.factor": "1"}


@contextmanager
def running(api: ApiServer, folder: Path, namespace: str) -> Iterator[Login]:
    api.create_namespace(namespace)
    with (
        secure_zookeeper.Server(folder) as server,
        Operator(api, namespace, folder / "operator.log", "operator-0", modules=OFTEN) as operator,
    ):
        yield Login(api, server, namespace, operator)
    print((folder / "operator.log").read_text())


@pytest.fixture(scope="module")
def login(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Login]:
    with running(api, tmp_path_factory.mktemp("login"), f"login-{os.getpid()}") as found:
        yield found


def mounted(login: Login, secret: str, folder: Path) -> Path:
    """Write the files of a Secret as a pod has them; return the folder."""
    folder.mkdir()
    for name, text in texts(login.kube, login.namespace, secret).items():
        (folder / name).write_text(text)
    return folder


def root_is_told(login: Login, cluster: str) -> None:
    """Open the chroot of a cluster, see it told, and secure it again."""
    chroot = login.chroot(cluster)
    with login.zk.client() as admin:
        admin.add_auth("digest", SUPER)
        secured, _ = admin.get_acls(chroot)
        assert not any(map(acls.is_open, secured))
        admin.set_acls(chroot, OPEN_ACL_UNSAFE)
        login.kubectl("annotate", "kafkacluster", cluster, "root=open", "--overwrite")
        told = login.wait(cluster, "ZooKeeperSecured", "OpenZnodes")
        assert "everybody may change /: run kubectl exec" in told["message"]
        admin.set_acls(chroot, secured)
        login.kubectl("annotate", "kafkacluster", cluster, "root=secured", "--overwrite")
        login.wait(cluster, "ZooKeeperSecured", "Secured")


def test_brokers_log_in_and_secure_znodes_and_others_read_them_without_a_login(
    login: Login, tmp_path: Path
) -> None:
    port = free_port()
    login.wanted("main", port)
    missing = login.wait("main", "Ready", "ZooKeeperSecretMissing")
    assert "Secret zookeeper" in missing["message"]
    login.put_login("zookeeper", username=USER)
    unusable = login.wait("main", "Ready", "ZooKeeperSecretUnusable")
    assert "username and no password" in unusable["message"]
    login.put_login("zookeeper", username=USER, password="guess")
    refused = login.wait("main", "Ready", "ZooKeeperUnreachable")
    eventually(
        lambda: (
            f"login of user {USER} failed"
            in login.kubectl.condition("kafkacluster", "main", "Ready")["message"]
        ),
        "the reason",
        pause_s=0.3,
    )
    assert "guess" not in refused["message"]
    login.put_login("zookeeper", username=USER, password=PASSWORD)

    pods = login.pods("main", "127.0.0.1")

    def jaas() -> str:
        found = texts(login.kube, login.namespace, "main-zookeeper")
        return found.get("zookeeper.jaas", "")

    eventually(lambda: "pä" in jaas(), "the login", pause_s=0.2)
    eventually(pods.stateful_set, "the StatefulSet, which comes last", pause_s=0.2)
    broker = PodBroker(pods, 0, tmp_path / "broker", free_port())
    with ExitStack() as stack:
        stack.callback(broker.end)
        pods.play()
        broker.mount()
        broker.start()
        broker.wait_until_up()
        login.wait("main", "Ready", "BrokersReady")
        login.wait("main", "ZooKeeperSecured", "Secured")
        status = login.kubectl.get("kafkacluster", "main")["status"]
        assert status["zookeeper"] == {"setAcl": True}

        # What the operator creates is secured, too, and a stranger changes nothing of it.
        login.kubectl.apply(
            {
                "apiVersion": "odradek.io/v1alpha1",
                "kind": "Topic",
                "metadata": {"name": "orders"},
                "spec": {"clusterRef": {"name": "main"}, "partitions": 1},
            }
        )
        eventually(
            lambda: login.kubectl.condition("topic", "orders").get("reason") == "Synced",
            "the topic",
            pause_s=0.3,
        )
        stranger = login.stranger("main")
        stack.callback(stranger.close)
        stack.callback(stranger.stop)
        for path in ("/brokers/topics/orders", "/config/topics/orders", "/controller"):
            stranger.get(path)
            with pytest.raises(NoAuthError):
                stranger.set(path, b"{}")
        with pytest.raises(NoAuthError):
            stranger.get_children("/config/users")
        with pytest.raises(NoAuthError):
            stranger.delete("/controller")
        root_is_told(login, "main")

        # The exporter has no login, and none of its pod's files has anything of the brokers'.
        found = login.kubectl.get("deployment", "main-lag-exporter")
        (container,) = found["spec"]["template"]["spec"]["containers"]
        assert "--zookeeper-files=/etc/odradek-zookeeper" in container["args"]
        folder = mounted(login, "main-lag-exporter-zookeeper", tmp_path / "exporter")
        assert [one.name for one in folder.iterdir()] == ["ca.crt"]
        connect = login.zk.secure_connect + login.chroot("main")
        access = access_files.of_folder(folder)
        exporter = Exporter(Options(connect, 1.0, access=access))
        stack.callback(exporter.close)

        def reads() -> bool:
            exporter.round()
            return exporter.healthy

        wait_until(reads, "a round")
        # So has a driver, which commits below /consumers.
        driver: Any = group_znodes.connect(connect, 30_000, 60, access)
        stack.callback(driver.close)
        stack.callback(driver.stop)
        driver.create("/consumers/g/offsets/orders/0", b"1", makepath=True)
        assert acls.is_open(driver.get_acls("/consumers/g/offsets/orders/0")[0][0])

        # Another password restarts nobody; another user would lock brokers out.
        set_before = pods.stateful_set()
        assert set_before is not None
        login.put_login("zookeeper", username=USER, password="next")
        eventually(lambda: '"next"' in jaas(), "the password", pause_s=0.3)
        login.put_login("zookeeper", username="nobody", password=PASSWORD)
        unsafe = login.wait("main", "Ready", "UnsafeZooKeeperChange")
        assert "login of user nobody failed" in unsafe["message"]
        login.put_login("zookeeper", username=GREEK_USER, password=GREEK_PASSWORD)

        def unsafe_text() -> bool:
            found = login.kubectl.condition("kafkacluster", "main", "ZooKeeperSecured")
            return "setAcl" in found["message"]

        eventually(unsafe_text, "what to do first", pause_s=0.3)
        login.put_login("zookeeper", username=USER, password=PASSWORD)
        login.wait("main", "Ready", "BrokersReady")
        set_after = pods.stateful_set()
        assert set_after is not None
        assert set_after["spec"] == set_before["spec"]
    shown = everything(login)
    for word in ("pä", "next", "guess"):
        assert f'"{word}' not in shown
        assert f"={word}" not in shown


@pytest.mark.full(
    "tests/reconcile/test_zookeeper_login.py"
    "::test_brokers_log_in_and_secure_znodes_and_others_read_them_without_a_login"
)
def test_from_open_to_authenticated_zookeeper_nothing_is_lost(
    api: ApiServer, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        folder = tmp_path / "zookeeper"
        folder.mkdir()
        login = stack.enter_context(running(api, folder, f"login-roll-{os.getpid()}"))
        port = free_port()
        hosts = {number: f"127.0.0.{number + 1}" for number in range(3)}
        wanted = {"replicas": 3, "config": {**CONFIG, "min.insync.replicas": "2"}}
        login.wanted("main", port, secured=False, brokers=wanted)
        pods = login.pods("main", *hosts.values())
        eventually(lambda: pods.stateful_set() is not None, "the StatefulSet", pause_s=0.2)
        fleet = {
            number: PodBroker(pods, number, tmp_path / str(number), free_port()) for number in hosts
        }
        for one in fleet.values():
            stack.callback(one.end)
        pods.play()
        for one in fleet.values():
            one.mount()
            one.start()
        for one in fleet.values():
            one.wait_until_up()
        bootstrap = ",".join(f"{host}:{port}" for host in hosts.values())
        create_topic(bootstrap, "orders", 3, 3)
        login.wait("main", "Ready", "BrokersReady")
        rolls = dict.fromkeys(hosts, 0)

        def roll() -> bool:
            """Restart the brokers whose pods the operator deleted."""
            for number, one in fleet.items():
                name = f"main-broker-{number}"
                if login.kube.get("v1", "Pod", login.namespace, name) is None:
                    one.stop()
                    one.mount()
                    pods.play()
                    one.start()
                    rolls[number] += 1
            pods.play()
            found = login.kubectl.condition("kafkacluster", "main", "ZooKeeperSecured")
            return found.get("reason") in ("Secured", "OpenZnodes")

        sent: list[int] = []
        failed: list[object] = []
        stop = threading.Event()

        def produce() -> None:
            producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
            for number in itertools.count():
                if stop.is_set():
                    break

                def told(error: object, _: object, number: int = number) -> None:
                    (sent if error is None else failed).append(number)

                producer.produce("orders", str(number).encode(), on_delivery=told)
                producer.poll(0.01)
            producer.flush(60)

        thread = threading.Thread(target=produce)
        thread.start()
        stack.callback(stop.set)
        login.put_login("zookeeper", username=USER, password=PASSWORD)
        login.wanted("main", port, brokers=wanted)
        eventually(roll, "all brokers with the login and ACLs", timeout_s=500, pause_s=0.3)
        # Once with the login, once with ACLs.
        assert rolls == dict.fromkeys(hosts, 2)
        stop.set()
        thread.join()
        assert failed == []
        assert sorted(sent) == list(range(len(sent)))
        assert len(sent) > 100
        status = login.kubectl.condition("kafkacluster", "main", "ZooKeeperSecured")
        # What was there before is open, and said to be.
        assert status["reason"] == "OpenZnodes"
        assert "odradek zookeeper secure" in status["message"]


def test_operator_secures_what_it_creates_for_a_cluster_that_is_new(login: Login) -> None:
    """Its users and ACLs come before the brokers; so do those of a User."""
    login.put_login("of-new", username=USER, password=PASSWORD)
    login.kubectl.apply(
        {
            "apiVersion": "odradek.io/v1alpha1",
            "kind": "User",
            "metadata": {"name": "early"},
            "spec": {
                "clusterRef": {"name": "new"},
                "authentication": {"type": "scram-sha-512"},
                "authorization": {
                    "acls": [{"resource": {"type": "cluster"}, "operations": ["Describe"]}]
                },
            },
        }
    )
    login.wanted(
        "new",
        free_port(),
        authentication={"secretName": "of-new"},
        listeners=[INTERNAL],
        authorization=SIMPLE,
    )
    eventually(
        lambda: login.kubectl.condition("user", "early", "Ready").get("status") == "True",
        "the user",
        pause_s=0.2,
    )
    eventually(login.pods("new", "127.0.0.1").stateful_set, "the StatefulSet", pause_s=0.2)
    client = login.stranger("new")
    try:
        paths = (acls.ROOT, *acls.SECURE_ROOTS)
        roots = {path: client.get_acls(path)[0] for path in paths if client.exists(path)}
        assert {"/", "/config", "/kafka-acl"} <= roots.keys()
        assert [path for path, found in roots.items() if any(map(acls.is_open, found))] == []
        with pytest.raises(NoAuthError):
            client.get("/config/users/early")
    finally:
        client.stop()
        client.close()
