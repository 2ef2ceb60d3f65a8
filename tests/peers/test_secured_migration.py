"""From Apache Kafka 2.8.2 to this broker and back, with SCRAM over TLS and ACLs for everybody.

Two brokers, one of each kind, with the same settings of Kafka. Partitions have a replica on each,
so both replicate from each other, and a record is acknowledged once both have it. Either leads
while the other is away. A user with rights to one topic writes and reads all the time.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.broker.test_secure_listeners import refusal
from tests.support import certificates
from tests.support.broker import STEADY, Broker, Cluster, wait_until
from tests.support.clients import QUIET, make_topic
from tests.support.kafka_broker import OldKafkaBroker
from tests.support.kafka_peer import Tools
from tests.support.sampling import some_of
from tests.support.secure_broker import SecureBroker, jaas
from tests.support.traffic import Traffic

KAFKA, OURS = 1, 2
MECHANISM, PASSWORD = "SCRAM-SHA-512", "a-secret"
BROKERS = "brokers"
TOPIC = "moving"
CONFIGS = "kafka.admin.ConfigCommand"
# Who stays, and who leaves meanwhile.
ROLLS = [(OURS, KAFKA), (KAFKA, OURS)]


class SecretBroker(SecureBroker):
    protocols = {"SECRET": "SASL_SSL"}


class SecretKafka(OldKafkaBroker, SecretBroker):
    """Kafka with the same listeners."""


@dataclass(frozen=True)
class Mixed:
    """The cluster, and settings of users."""

    cluster: Cluster
    own: certificates.Issued

    def settings(self, user: str, *broker_ids: int) -> dict[str, str]:
        """Return librdkafka's settings of a user, who asks these brokers first, or any."""
        return {
            **self.own.client(),
            "bootstrap.servers": ",".join(
                secret(self.cluster.brokers[one]).secure_address("SECRET")
                for one in broker_ids or (KAFKA, OURS)
            ),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": PASSWORD,
        }

    def admin(self, *broker_ids: int) -> AdminClient:
        return AdminClient({**self.settings(BROKERS, *broker_ids), **QUIET})

    def new_user(self, name: str) -> None:
        """Make a user through whichever broker is the controller, with rights to what has TOPIC
        as its prefix.
        """
        admin = self.admin()
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = UserScramCredentialUpsertion(name, info, PASSWORD.encode())

        def is_made() -> bool:
            admin.alter_user_scram_credentials([made])[name].result(60)
            return True

        wait_until(is_made, f"{name} is a user")
        for one in admin.create_acls(rights(name)).values():
            one.result(60)

    def await_user(self, name: str, broker_id: int) -> None:
        """Wait until a broker lets a user in, and shows the topic that it has a right to."""
        client = AdminClient({**self.settings(name, broker_id), **QUIET})
        wait_until(
            lambda: TOPIC in client.list_topics(timeout=30).topics,
            f"broker {broker_id} knows {name}",
        )

    def leaders(self, *broker_ids: int) -> set[int]:
        """Return who leads partitions of the topic, as these brokers tell it."""
        found = self.admin(*broker_ids).list_topics(TOPIC, 30).topics[TOPIC].partitions
        return {one.leader for one in found.values()}

    def await_leader(self, broker_id: int) -> None:
        """Wait until a broker tells that it leads alone."""
        wait_until(lambda: self.leaders(broker_id) == {broker_id}, f"{broker_id} leads")

    def await_replicas(self) -> None:
        """Wait until both brokers tell that both have all records."""
        for broker_id in (KAFKA, OURS):

            def are_in_sync(broker_id: int = broker_id) -> bool:
                topics = self.admin(broker_id).list_topics(timeout=30).topics
                return all(
                    sorted(part.isrs) == [KAFKA, OURS]
                    for topic in (TOPIC, "__consumer_offsets")
                    for part in topics[topic].partitions.values()
                )

            wait_until(are_in_sync, f"broker {broker_id} sees both in sync", 240)


def secret(broker: Broker) -> SecretBroker:
    assert isinstance(broker, SecretBroker)
    return broker


def rights(user: str) -> list[AclBinding]:
    return [
        AclBinding(
            kind,
            name,
            ResourcePatternType.PREFIXED,
            f"User:{user}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for kind, name, operation in (
            (ResourceType.TOPIC, TOPIC, AclOperation.READ),
            (ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
            (ResourceType.GROUP, f"readers-of-{TOPIC}", AclOperation.READ),
        )
    ]


@pytest.fixture
def mixed(tmp_path: Path, tools: Tools) -> Iterator[Mixed]:
    own = certificates.Authority(tmp_path).issue("broker", ["127.0.0.1"])
    settings: Mapping[str, str] = {
        **STEADY,
        **own.settings(),
        # In PEM, Kafka 2.8 takes encrypted keys only.
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(own.pkcs12_path),
        "ssl.keystore.password": certificates.PASSWORD,
        "ssl.key.password": certificates.PASSWORD,
        "inter.broker.listener.name": "SECRET",
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "listener.name.secret.scram-sha-512.sasl.jaas.config": jaas(
            MECHANISM, username=BROKERS, password=PASSWORD
        ),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:{BROKERS}",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "2",
        "controlled.shutdown.enable": "true",
    }
    kinds = {KAFKA: SecretKafka}
    made = Cluster(tmp_path, 2, settings, kinds, SecretBroker)
    made.zookeeper.start()
    tools.run(
        CONFIGS,
        *("--zookeeper", made.zookeeper.connect, "--entity-type", "users"),
        *("--entity-name", BROKERS, "--alter"),
        *("--add-config", f"{MECHANISM}=[password={PASSWORD}]"),
    )
    with made as cluster:
        yield Mixed(cluster, own)


@pytest.mark.timeout(1200)
def test_secured_cluster_rolls_from_kafka_to_us_and_back(mixed: Mixed) -> None:
    shape = NewTopic(TOPIC, 2, replica_assignment=[[KAFKA, OURS], [OURS, KAFKA]])
    admin = mixed.admin()
    make_topic(admin, shape)
    mixed.new_user("writer")
    for broker_id in (KAFKA, OURS):
        mixed.await_user("writer", broker_id)
    wait_until(lambda: mixed.leaders() == {KAFKA, OURS}, "each leads a partition")
    with Traffic(mixed.cluster, TOPIC, mixed.settings("writer")) as traffic:
        traffic.await_progress("at first")
        for stays, leaves in some_of(ROLLS, ROLLS[:1]):
            mixed.await_replicas()
            stop(mixed, leaves)
            mixed.await_leader(stays)
            traffic.await_progress(f"without {leaves}")
            # Whoever is left makes users for both.
            user = f"made-by-{stays}"
            mixed.new_user(user)
            mixed.await_user(user, stays)
            mixed.cluster.brokers[leaves].start()
            mixed.await_replicas()
            mixed.await_user(user, leaves)
            traffic.await_progress(f"with {leaves} again")
        traffic.end()
    for broker_id in (KAFKA, OURS):
        check_refusals(mixed, broker_id)
    log = mixed.cluster.brokers[OURS].log_text()
    assert f"User:{BROKERS} is Denied" not in log
    assert "Traceback" not in log


def check_refusals(mixed: Mixed, broker_id: int) -> None:
    """Check that strangers stay out, and that users see only what they have rights to."""
    wrong = {**mixed.settings("writer", broker_id), "sasl.password": "guessed"}
    assert "invalid credentials with SASL mechanism" in refusal(wrong).str()
    client = AdminClient({**mixed.settings("writer", broker_id), **QUIET})
    assert client.list_topics(timeout=60).topics.keys() == {TOPIC}


def stop(mixed: Mixed, broker_id: int) -> None:
    mixed.cluster.brokers[broker_id].signal(signal.SIGTERM)
    mixed.cluster.brokers[broker_id].wait()
