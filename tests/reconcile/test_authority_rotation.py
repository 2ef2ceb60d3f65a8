"""A new CA for brokers that work: a producer that loses nothing, and brokers that go on in sync.

Brokers, ZooKeeper and API server are real; the operator lives in this process, so that its clock
can be put forward by the minutes for which a CA is published before it signs.
"""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from odradek_operator.cluster import reconcile
from odradek_operator.shared import certificates, kube
from odradek_operator.shared.apply import Platform, ReconcileContext
from odradek_operator.shared.zookeeper import Pool
from tests.reconcile import kills, secured_pods
from tests.reconcile.secured_pods import PodBroker, Pods
from tests.support import zookeeper
from tests.support.apiserver import ApiServer
from tests.support.broker import wait_until
from tests.support.ports import free_port

PORT_NAME = "internal"
TRUSTED = timedelta(minutes=6)
# Brokers look at their files every 30 seconds.
pytestmark = pytest.mark.timeout(1200)


class Rotation:
    """A KafkaCluster with three brokers, and an operator with a clock of its own."""

    def __init__(self, api: ApiServer, zk: zookeeper.Server, namespace: str, folder: Path) -> None:
        self.kube = kills.client(api.kubeconfig)
        self.namespace = namespace
        self.ahead = timedelta(0)
        self.port = free_port()
        self.folder = folder
        meta = {"name": namespace, "namespace": ""}
        self.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        listener = {
            "name": PORT_NAME,
            "port": self.port,
            "tls": True,
            "authentication": {"type": "scram-sha-512"},
        }
        self.kube.create(
            {
                "apiVersion": kills.API,
                "kind": "KafkaCluster",
                "metadata": {"name": "main", "namespace": namespace},
                "spec": {
                    "zookeeper": {"connect": zk.connect, "chroot": f"/{namespace}"},
                    "brokers": {"replicas": 3, "config": {"min.insync.replicas": "2"}},
                    "listeners": [listener],
                    "authorization": {"type": "simple"},
                },
            }
        )
        self.context = ReconcileContext(
            kube=self.kube,
            zookeepers=Pool(lambda: None),
            broker_image="registry.test/odradek-broker:1",
            platform=Platform("registry.test/odradek-spark:1", "IfNotPresent"),
            remember=lambda _: None,
            forget=lambda _: None,
            now=lambda: datetime.now(UTC) + self.ahead,
        )
        self.hosts = {number: f"127.0.0.{number + 1}" for number in range(3)}
        self.pods = Pods(self.kube, namespace, "main", self.hosts)
        self.brokers = [
            PodBroker(self.pods, number, folder / str(number), free_port()) for number in self.hosts
        ]

    def look(self, request: str = "") -> None:
        """Do one pass, and let kubelets and Kubernetes do their work."""
        body = kube.custom(self.kube, "KafkaCluster", self.namespace, "main")
        assert body is not None
        notes = {"odradek.io/renew-cluster-ca": request}
        asked = {**body, "metadata": {**body["metadata"], "annotations": notes}}
        reconcile.reconcile(self.context, asked, None)
        self.pods.play()

    def mount(self) -> None:
        for one in self.brokers:
            one.mount()

    def texts(self, name: str) -> dict[str, str]:
        return secured_pods.texts(self.kube, self.namespace, name)

    def client(self, bundle: str) -> dict[str, Any]:
        """Return the settings of a super user that trusts a bundle."""
        user = self.texts("main-operator")
        return {
            "bootstrap.servers": ",".join(f"{host}:{self.port}" for host in self.hosts.values()),
            "security.protocol": "SASL_SSL",
            "ssl.ca.pem": bundle,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user["username"],
            "sasl.password": user["password"],
            "log_level": 0,
        }

    def reloads(self) -> list[int]:
        """Return how often each broker took new certificates or trust."""
        return [one.text().count(" has new certificates") for one in self.brokers]

    def take_up(self) -> None:
        """Let brokers have the files of now, and wait until all have read them."""
        before = self.reloads()
        self.mount()

        def taken() -> bool:
            return all(after > one for one, after in zip(before, self.reloads(), strict=True))

        wait_until(taken, "brokers read their files")

    def restart(self, number: int, client: dict[str, Any]) -> None:
        """Restart a broker, whose connections begin anew, and wait until all are in sync."""
        one = self.brokers[number]
        ups = one.text().count(" is up\n")
        one.stop()
        one.start()
        wait_until(lambda: one.text().count(" is up\n") > ups, "the broker is back")
        self.await_sync(client)

    def await_sync(self, client: dict[str, Any]) -> None:
        admin = AdminClient(client)

        def in_sync() -> bool:
            found = admin.list_topics("orders", timeout=60).topics["orders"].partitions.values()
            return len(found) == 3 and all(len(one.isrs) == 3 for one in found)

        wait_until(in_sync, "all replicas in sync")


class Load:
    """A producer at work, with acks of all replicas."""

    def __init__(self, client: dict[str, Any]) -> None:
        self.sent: list[int] = []
        self.failed: list[object] = []
        self._stop = threading.Event()
        self._producer = Producer({**client, "acks": "all", "enable.idempotence": True})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return

            def told(error: object, _: object, number: int = number) -> None:
                (self.sent if error is None else self.failed).append(number)

            self._producer.produce("orders", str(number).encode(), on_delivery=told)
            self._producer.poll(0.02)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(60)


def read_all(client: dict[str, Any], count: int) -> list[int]:
    consumer = Consumer({**client, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition("orders", number, 0) for number in range(3)])
    found: list[int] = []

    def all_read() -> bool:
        found.extend(
            int(one.value() or b"") for one in consumer.consume(1000, 1.0) if not one.error()
        )
        return len(found) >= count

    wait_until(all_read, "all records")
    consumer.close()
    return found


@pytest.mark.full(
    "tests/reconcile/test_authority_secrets.py"
    "::test_everybody_trusts_the_next_authority_before_it_signs"
)
def test_brokers_and_a_producer_go_on_while_the_ca_is_replaced(
    api: ApiServer, zk: zookeeper.Server, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        one = Rotation(api, zk, f"rotation-{os.getpid()}", tmp_path)
        stack.callback(one.context.zookeepers.close)
        for broker in one.brokers:
            stack.callback(broker.end)
        # The first pass makes the pods, the second knows their addresses.
        for _ in range(3):
            one.look()
        one.mount()
        for broker in one.brokers:
            broker.start()
        for broker in one.brokers:
            broker.wait_until_up()
        first = one.texts("main-cluster-ca-cert")["ca.crt"]
        admin = AdminClient(one.client(first))
        (made,) = admin.create_topics([NewTopic("orders", 3, 3)]).values()
        made.result(60)

        one.look("begin")
        both = one.texts("main-cluster-ca-cert")["ca.crt"]
        assert len(certificates.load(both)) == 2
        one.take_up()
        # It took the bundle while both were trusted.
        load = Load(one.client(both))
        stack.callback(load.end)
        one.restart(2, one.client(both))

        one.ahead = TRUSTED
        one.look("sign")
        one.take_up()
        one.restart(0, one.client(both))

        one.ahead = 2 * TRUSTED
        one.look("drop")
        last = one.texts("main-cluster-ca-cert")["ca.crt"]
        assert len(certificates.load(last)) == 1
        assert last in both
        one.take_up()
        one.restart(1, one.client(last))
        load.end()
        assert load.failed == []
        assert len(load.sent) > 100
        assert sorted(read_all(one.client(last), len(load.sent))) == sorted(load.sent)
        # Who trusts the former one only is told that it is another cluster.
        with pytest.raises(KafkaException):
            AdminClient(one.client(first)).list_topics(timeout=5)
