"""Three brokers that reach each other by SASL over TLS only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import certificates, security_roll
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.secure_broker import SecureBroker, jaas
from tests.support.traffic import Traffic


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


@pytest.mark.full(
    "tests/broker/test_secure_cluster.py::test_records_are_replicated_before_they_are_acknowledged",
    "tests/peers/test_secured_migration.py::test_secured_cluster_rolls_from_kafka_to_us_and_back",
)
def test_rolling_restarts_go_from_plain_to_sasl_over_tls_with_acls(tmp_path: Path) -> None:
    """The steps of docs/security.md, while clients write and read all the time."""
    with security_roll.plain_brokers(tmp_path, 3) as roll:
        cluster = roll.cluster
        roll.make_users()
        with Traffic(cluster, security_roll.OF_PLAIN) as plain:
            plain.await_progress("before the first restart")
            for step in (1, 2):
                for broker in roll.brokers:
                    roll.restart(broker, step)
                    plain.await_progress(f"restart {step} of broker {broker.broker_id}")
            roll.give_rights()
            with Traffic(cluster, security_roll.OF_SECURE, roll.secure()) as secure:
                secure.await_progress("its first records")
                plain.end()
                for broker in roll.brokers:
                    roll.restart(broker, security_roll.LAST_STEP)
                    secure.await_progress(f"the last restart of broker {broker.broker_id}")
                secure.end()
        assert not any("is Denied" in one.log_text() for one in roll.brokers)
