"""Three brokers that reach each other by SASL over TLS only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support import certificates
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.secure_broker import SecureBroker, jaas


class SecretBrokers(SecureBroker):
    protocols = {"BROKERS": "SASL_SSL"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("secret")
    own = certificates.Authority(folder).issue("broker", ["127.0.0.1"])
    settings = {
        **STEADY,
        **own.settings(),
        "ssl.client.auth": "required",
        "inter.broker.listener.name": "BROKERS",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.brokers.plain.sasl.jaas.config": jaas(
            "PLAIN", username="admin", password="broker-secret", user_admin="broker-secret"
        ),
        # Sessions end during the test, and are renewed.
        "connections.max.reauth.ms": "1000",
        "default.replication.factor": "3",
    }
    with Cluster(folder, 3, settings, kind=SecretBrokers) as running:
        yield running


def test_records_are_replicated_before_they_are_acknowledged(cluster: Cluster) -> None:
    settings: dict[str, str | int | float | bool] = {"bootstrap.servers": cluster.bootstrap}
    admin = AdminClient(settings)
    created = admin.create_topics([NewTopic("copied", 3, 3, config={"min.insync.replicas": "3"})])
    created["copied"].result(60)
    failures: list[KafkaError | None] = []
    producer = Producer({**settings, "acks": "all"})
    for number in range(300):
        producer.produce(
            "copied", b"%d" % number * 500, on_delivery=lambda error, _: failures.append(error)
        )
        producer.poll(0.01)
    assert producer.flush(120) == 0
    assert failures == [None] * 300
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["copied"])
        read: set[bytes] = set()

        def is_complete() -> bool:
            read.update(one.value() or b"" for one in consumer.consume(100, 1))
            return len(read) == 300

        wait_until(is_complete, "all records are read")
    finally:
        consumer.close()
    for broker in cluster.brokers.values():
        assert "quarantine" not in broker.log_text()
        assert "failed authentication" not in broker.log_text()
        assert "its session ended" not in broker.log_text()
        # They are there, and no other listener is the brokers'.
        address = broker.secure_address("BROKERS") if isinstance(broker, SecretBrokers) else ""
        assert connections_to(address) > 0


def connections_to(address: str) -> int:
    """Return how many connections of this machine there are to an address of the loopback."""
    port = int(address.rpartition(":")[2])
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(1 for line in lines if line.split()[2].endswith(f":{port:04X}"))


class MovingBrokers(SecureBroker):
    protocols = {"SECURE": "SASL_SSL"}


def write_to_all(settings: dict[str, str]) -> None:
    """Write a record that all replicas have."""
    failures: list[KafkaError | None] = []
    producer = Producer({**settings, "acks": "all", "message.timeout.ms": 90_000, "log_level": 0})
    producer.produce("moved", b"x", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(120) == 0
    assert failures == [None]


def test_rolling_restarts_go_from_plain_to_sasl_over_tls_with_acls(tmp_path: Path) -> None:
    """The steps of docs/security.md."""
    own = certificates.Authority(tmp_path).issue("broker", ["127.0.0.1"])
    mechanism, user, password = "SCRAM-SHA-512", "broker", "broker-secret"
    settings = {
        **own.settings(),
        "offsets.topic.num.partitions": "1",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "listener.name.secure.scram-sha-512.sasl.jaas.config": jaas(
            mechanism, username=user, password=password
        ),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS;User:broker",
    }
    with Cluster(tmp_path, 2, settings, kind=MovingBrokers) as cluster:
        plain = {"bootstrap.servers": cluster.bootstrap}
        admin = AdminClient({**plain})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = UserScramCredentialUpsertion(user, info, password.encode())
        admin.alter_user_scram_credentials([made])[user].result(60)
        topic = NewTopic("moved", 1, 2, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["moved"].result(60)
        brokers = [one for one in cluster.brokers.values() if isinstance(one, MovingBrokers)]
        moved = ("--override", "inter.broker.listener.name=SECURE")
        # The controller last: it asks the others on the listener that they have left.
        for broker in reversed(brokers):
            broker.terminate()
            broker.start(*moved)
            write_to_all(plain)
        secure = {
            **own.client(),
            "bootstrap.servers": ",".join(one.secure_address("SECURE") for one in brokers),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }
        for broker in brokers:
            only = f"listeners=SECURE://{broker.secure_address('SECURE')}"
            broker.terminate()
            broker.start(*moved, "--override", only, "--override", "super.users=User:broker")
            write_to_all(secure)
        assert not any("is Denied" in one.log_text() for one in brokers)
