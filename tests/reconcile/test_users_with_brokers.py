"""Users of a broker that asks for passwords, certificates and ACLs: what its clients can do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    Producer,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from odradek_operator.shared import certificates as operator_certificates
from tests.broker.test_secure_listeners import exchange
from tests.reconcile import users
from tests.reconcile.conftest import Operator, Place
from tests.reconcile.users import SECURED, acl, by_secret, secret, user
from tests.support import certificates
from tests.support.apiserver import ApiServer
from tests.support.broker import STEADY, Cluster
from tests.support.clients import QUIET, make_topic
from tests.support.kubectl import eventually
from tests.support.secure_broker import SecureBroker

NAMESPACE = "users-with-brokers"
MECHANISM = "SCRAM-SHA-512"
# Each test has a topic of its own.
TOPICS = ("words", "certified", "limited", "left")


class AskingBroker(SecureBroker):
    protocols = {"SECRET": "SASL_SSL", "CERTIFIED": "SSL"}


class Asked(Place):
    """A broker that asks who clients are, its KafkaCluster, and an operator."""

    broker: AskingBroker
    folder: Path
    own: certificates.Issued

    def admin(self) -> AdminClient:
        """Return a client that may do everything."""
        return AdminClient({"bootstrap.servers": self.broker.address, **QUIET})

    def by_password(self, name: str, password: str) -> dict[str, str]:
        """Return librdkafka's settings of a user with a password."""
        return {
            **self.own.client(),
            "bootstrap.servers": self.broker.secure_address("SECRET"),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": name,
            "sasl.password": password,
            "log_level": "0",
        }

    def by_certificate(self, name: str) -> dict[str, str]:
        """Return librdkafka's settings of a user, as its Secret has them."""
        held = secret(self, name)
        for part in ("user.key", "user.crt"):
            (self.folder / f"{name}-{part}").write_text(held[part])
        return {
            **self.own.client(),
            "bootstrap.servers": self.broker.secure_address("CERTIFIED"),
            "ssl.key.location": str(self.folder / f"{name}-user.key"),
            "ssl.certificate.location": str(self.folder / f"{name}-user.crt"),
            "log_level": "0",
        }


@pytest.fixture(scope="module")
def asked(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder = tmp_path_factory.mktemp("asked")
    own = certificates.Authority(folder).issue("broker", ["127.0.0.1"])
    clients = operator_certificates.make_authority("clients", datetime.now(UTC))
    (folder / "clients.pem").write_text(clients.certificate)
    settings = {
        **STEADY,
        **own.settings(),
        "sasl.enabled.mechanisms": MECHANISM,
        "listener.name.certified.ssl.client.auth": "required",
        "listener.name.certified.ssl.truststore.type": "PEM",
        "listener.name.certified.ssl.truststore.location": str(folder / "clients.pem"),
        "connection.failed.authentication.delay.ms": "1",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        # The test itself is an administrator on the plain listener.
        "super.users": "User:ANONYMOUS",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
    }
    api.create_namespace(NAMESPACE)
    with (
        Cluster(folder, 1, settings, kind=AskingBroker) as cluster,
        cluster.zookeeper.client() as client,
    ):
        place = Asked(api, cluster.zookeeper, client, NAMESPACE)
        (place.broker,) = cluster.brokers.values()  # type: ignore[assignment]
        place.folder, place.own = folder, own
        for topic in TOPICS:
            make_topic(place.admin(), NewTopic(topic, 1, 1))
        users.make_secret(place, "main-clients-ca", **{"ca.crt": clients.certificate})
        users.make_secret(place, "main-clients-ca", **{"ca.key": clients.key})
        connect, slash, chroot = cluster.zookeeper.connect.partition("/")
        place.kubectl.apply(
            {
                "apiVersion": "odradek.io/v1alpha1",
                "kind": "KafkaCluster",
                "metadata": {"name": "main"},
                "spec": {
                    "zookeeper": {"connect": connect, "chroot": slash + chroot or "/"},
                    "brokers": {"replicas": 2},
                    **SECURED,
                },
            }
        )
        log = folder / "operator.log"
        often = ("tests.reconcile.frequent_users",)
        with Operator(api, NAMESPACE, log, "operator-0", modules=often):
            yield place
        print(log.read_text())


def rights(topic: str) -> dict[str, Any]:
    """Produce and consume, as `exchange` does."""
    return {"acls": [acl("topic", topic, "Read", "Write"), acl("group", f"of-{topic}", "Read")]}


def send(producer: Producer, topic: str) -> KafkaError | None:
    """Produce one record and return the error that it had."""
    outcome: list[KafkaError | None] = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(60)
    return outcome[0] if outcome else KafkaError(KafkaError._TIMED_OUT)


def once_known(asked: Asked, settings: dict[str, str], topic: str) -> None:
    """Wait until the broker knows of a user and of all its rights."""

    producer, group = Producer(settings), ConsumerGroupTopicPartitions(f"of-{topic}")
    # Its answers come only as long as it lives.
    admin = AdminClient({**settings})

    def may() -> bool:
        assert send(producer, topic) is None
        found = admin.list_consumer_group_offsets([group], request_timeout=30)
        return all(one.result(60) is not None for one in found.values())

    eventually(may, "the rights", pause_s=0.2)


def test_client_works_with_what_its_secret_says(asked: Asked) -> None:
    users.make_secret(asked, "vault", password="own-word")
    asked.kubectl.apply(
        user("words-user", authorization=rights("words")),
        user("denied-user", authentication=by_secret("vault")),
    )
    asked.wait_for("user", "words-user", "Synced")
    assert asked.kubectl.condition("user", "words-user", "Effective")["status"] == "True"
    settings = asked.by_password("words-user", secret(asked, "words-user")["password"])
    once_known(asked, settings, "words")
    values = [b"%d" % number for number in range(10)]
    assert set(values) <= set(exchange(settings, "words", values))
    # Who has a password but no rights.
    asked.wait_for("user", "denied-user", "Synced")
    stranger = Producer(asked.by_password("denied-user", "own-word"))
    error = send(stranger, "words")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_client_works_with_the_certificate_of_its_secret(asked: Asked) -> None:
    asked.kubectl.apply(user("seal", "tls", authorization=rights("certified")))
    asked.wait_for("user", "seal", "Synced")
    settings = asked.by_certificate("seal")
    once_known(asked, settings, "certified")
    assert exchange(settings, "certified", [b"one"])[-1] == b"one"


def test_quota_of_a_user_throttles_its_clients(asked: Asked) -> None:
    asked.kubectl.apply(
        user("slow", authorization=rights("limited"), quotas={"producerByteRate": 100})
    )
    asked.wait_for("user", "slow", "Synced")
    settings = asked.by_password("slow", secret(asked, "slow")["password"])
    once_known(asked, settings, "limited")
    throttled: list[float] = []
    producer = Producer(
        {**settings, "throttle_cb": lambda event: throttled.append(event.throttle_time)}
    )

    def is_throttled() -> bool:
        producer.produce("limited", b"x" * 1000)
        producer.poll(0.1)
        return bool(throttled)

    eventually(is_throttled, "a throttle time", pause_s=0.1)


def test_deletion_shuts_a_user_out_and_leaves_the_rights_made_by_hand(asked: Asked) -> None:
    asked.kubectl.apply(user("leaver", authorization=rights("left")))
    asked.wait_for("user", "leaver", "Synced")
    settings = asked.by_password("leaver", secret(asked, "leaver")["password"])
    once_known(asked, settings, "left")
    by_hand = AclBinding(
        ResourceType.TOPIC,
        "left",
        ResourcePatternType.LITERAL,
        "User:leaver",
        "*",
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )
    admin = asked.admin()
    admin.create_acls([by_hand])[by_hand].result(60)
    producer = Producer(settings)
    assert send(producer, "left") is None

    began = time.monotonic()
    users.delete(asked, "user", "leaver")

    def newcomer() -> bool:
        errors: list[KafkaError] = []
        client = Producer({**settings, "error_cb": errors.append})
        client.poll(1)
        return any(one.code() == KafkaError._AUTHENTICATION for one in errors)

    # As in Kafka: the connection that is there stays, and may do nothing more.
    def denied() -> bool:
        error = send(producer, "left")
        return error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    eventually(denied, "the open connection to be denied", pause_s=0.1)
    print(f"an open connection was denied {time.monotonic() - began:.2f} s after the deletion")
    eventually(newcomer, "a new connection to be refused", pause_s=0.1)
    print(f"a new connection was refused {time.monotonic() - began:.2f} s after the deletion")
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,  # type: ignore[arg-type]  # its types do not say so
        ResourcePatternType.ANY,
        "User:leaver",
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    (left,) = admin.describe_acls(everything).result(60)
    assert (left.name, left.operation) == ("left", AclOperation.DESCRIBE)
