"""Brokers with an authorizer among themselves: they need rights like everybody else."""

from __future__ import annotations

from pathlib import Path

from tests.support import authorization_asker, zookeeper
from tests.support.broker import Cluster, wait_until
from tests.support.clients import consume_all, create_topic, produce_all
from tests.support.secure_broker import SecureBroker, jaas


class NamedBroker(SecureBroker):
    protocols = {"BROKERS": "SASL_PLAINTEXT"}


def test_brokers_that_an_acl_lets_in_replicate(tmp_path: Path) -> None:
    made = Cluster(tmp_path, brokers=2, settings=authorization_asker.SETTINGS)
    made.zookeeper.start()
    with made.zookeeper.client() as client:
        authorization_asker.allow_administrator(client)
    with made as cluster:
        create_topic(cluster.bootstrap, "t", replicas=2)
        sent = [b"%d" % number for number in range(100)]
        produce_all(cluster.bootstrap, "t", sent)
        assert sorted(consume_all(cluster.bootstrap, "t", 1, 100)) == sorted(sent)
        assert not any("refuse each other" in one.log_text() for one in cluster.brokers.values())
        assert not any("is Denied" in one.log_text() for one in cluster.brokers.values())


def test_broker_that_lets_no_broker_in_says_so(tmp_path: Path) -> None:
    chroot = zookeeper.Chroot()
    chroot.start()
    settings = {
        **authorization_asker.SETTINGS,
        "inter.broker.listener.name": "BROKERS",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.brokers.plain.sasl.jaas.config": jaas(
            "PLAIN", username="one", password="p", user_one="p"
        ),
        "super.users": "User:One;User:ANONYMOUS",
    }
    broker = NamedBroker(tmp_path, 1, chroot.connect, settings)
    broker.spawn()
    try:
        wait_until(lambda: "refuse each other's requests" in broker.log_text(), "it says so")
        assert "brokers are User:one on listener BROKERS" in broker.log_text()
        # The controller is refused by its own broker.
        wait_until(lambda: "Operation = ClusterAction" in broker.log_text(), "it refuses itself")
    finally:
        broker.kill()
