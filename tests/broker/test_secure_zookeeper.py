"""Brokers with `zookeeper.set.acl=true`: over TLS with a certificate, and with a login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kazoo.exceptions import NoAuthError

from tests.support.broker import STEADY, Broker, wait_until
from tests.support.secure_zookeeper import BrokerWithLogin, Server
from tests.support.znode_acls import acls_below

SETTINGS = {
    **STEADY,
    "zookeeper.set.acl": "true",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("zk")) as running:
        yield running


def ended(broker: BrokerWithLogin) -> tuple[int, str]:
    """Return the exit status of a broker that does not start, and the last line it wrote."""
    broker.spawn()
    return broker.wait(), broker.log_text().splitlines()[-1]


@pytest.mark.parametrize("way", ["mtls", "login"])
def test_broker_secures_all_that_it_creates(server: Server, tmp_path: Path, way: str) -> None:
    with_login = way == "login"
    settings = dict(SETTINGS)
    connect = server.connect
    if not with_login:
        settings |= server.tls_settings(server.authority.issue("broker"))
        connect = server.secure_connect
    own = BrokerWithLogin(tmp_path, 1, f"{connect}/{way}/deep", settings)
    own.kafka_opts = server.kafka_opts() if with_login else ""
    own.start()
    try:
        work_with(own)
        identity = ("sasl", "kafka") if with_login else ("x509", "CN=broker")
        found = acls_below(server, f"/{way}")
        assert {"/deep/brokers/ids/1", "/deep/controller", "/deep/config/users"} <= found.keys()
        for path, acl in found.items():
            sensitive = path.startswith(("/deep/config/users", "/deep/config/brokers"))
            if path.startswith("/deep/consumers"):
                assert acl == {("world", "anyone", 31)}, path
            elif sensitive:
                assert acl == {(*identity, 31)}, path
            else:
                assert acl == {(*identity, 31), ("world", "anyone", 1)}, path
        with server.client(f"/{way}/deep") as nobody:
            assert nobody.get_children("/brokers/topics")
            for path in ("/config/users", "/config/brokers"):
                with pytest.raises(NoAuthError):
                    nobody.get_children(path)
            with pytest.raises(NoAuthError):
                nobody.set("/brokers/topics/orders", b"{}")
            nobody.create("/consumers/old-group", b"")
    finally:
        assert own.terminate() == 0


def work_with(broker: Broker) -> None:
    """Make a topic, configs of each kind, a record and a commit."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(60)
    for kind, name, setting in (
        (ResourceType.TOPIC, "orders", ("retention.ms", "100000")),
        (ResourceType.BROKER, "1", ("log.cleaner.threads", "1")),
    ):
        entry = ConfigEntry(*setting, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(60)
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    producer.produce("orders", b"x")
    assert producer.flush(60) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["orders"])
    wait_until(lambda: consumer.poll(1) is not None, "the record arrives")
    consumer.commit(asynchronous=False)
    consumer.close()


def test_broker_that_cannot_log_in_ends_with_one_line_and_status_1(
    server: Server, tmp_path: Path
) -> None:
    # Enough for a try on a busy machine.
    limit = {"zookeeper.connection.timeout.ms": "10000"}
    own = BrokerWithLogin(tmp_path, 1, server.connect, limit)
    own.kafka_opts = server.kafka_opts(password="wrong")
    assert ended(own) == (
        1,
        f"odradek: no ZooKeeper at {server.connect} within 10000 ms: "
        "login of user kafka failed: the server refused it",
    )


def test_broker_without_rights_ends_with_one_line_and_status_1(
    server: Server, tmp_path: Path
) -> None:
    with server.client() as client:
        client.ensure_path("/foreign")
    own = BrokerWithLogin(tmp_path, 1, f"{server.connect}/foreign", {"zookeeper.set.acl": "true"})
    own.kafka_opts = server.kafka_opts()
    own.start()
    own.terminate()
    other = BrokerWithLogin(tmp_path, 2, f"{server.connect}/foreign", {})
    other.kafka_opts = ""
    status, line = ended(other)
    assert status == 1
    assert line.startswith("odradek: ")
    assert "zookeeper" in line.lower()
    assert "NoAuth" in line


def test_key_store_that_cannot_be_used_ends_the_start_with_status_2(tmp_path: Path) -> None:
    settings = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.keystore.location": str(tmp_path / "none.pem"),
    }
    own = BrokerWithLogin(tmp_path, 1, "127.0.0.1:1", settings)
    assert ended(own) == (
        2,
        "odradek: TLS to ZooKeeper: cannot use zookeeper.ssl.keystore.location="
        f"{tmp_path}/none.pem: No such file or directory",
    )
