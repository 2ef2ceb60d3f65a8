"""Brokers that go from a plain listener to SASL over TLS with ACLs, by rolling restarts.

The steps are those of docs/security.md, "From plain to TLS, SASL and ACLs".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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

from tests.support import certificates
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.clients import QUIET, make_topic
from tests.support.secure_broker import SecureBroker, jaas

# Each for the clients of one listener.
OF_PLAIN, OF_SECURE = TOPICS = "of-plain", "of-secure"
PARTITIONS = 2
MECHANISM = "SCRAM-SHA-512"
BROKERS, SHOP = "broker", "shop"
PASSWORD = "a-secret"


class MovingBroker(SecureBroker):
    """A broker with both listeners; `Roll` overrides what a step has not yet, or not any more."""

    protocols = {"SECURE": "SASL_SSL"}


class Roll:
    """The cluster on its way, and what clients of either listener need."""

    def __init__(self, cluster: Cluster, own: certificates.Issued) -> None:
        self.cluster = cluster
        self._own = own

    @property
    def brokers(self) -> list[MovingBroker]:
        """Return the brokers, that with the highest id first: the first one is the controller."""
        brokers = [one for one in self.cluster.brokers.values() if isinstance(one, MovingBroker)]
        return brokers[::-1]

    def plain(self) -> dict[str, str]:
        """Return the settings of clients on the plain listener."""
        return {"bootstrap.servers": self.cluster.bootstrap}

    def secure(self, user: str = SHOP) -> dict[str, str]:
        """Return the settings of a user on the listener with SASL and TLS."""
        return {
            **self._own.client(),
            "bootstrap.servers": ",".join(one.secure_address("SECURE") for one in self.brokers),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": PASSWORD,
        }

    def restart(self, broker: MovingBroker, step: int) -> None:
        """Restart a broker with the settings of a step, and wait until its replicas are in sync."""
        broker.terminate()
        broker.start(*_overrides(broker, step))
        self._await_replicas(self.secure(BROKERS) if step == LAST_STEP else self.plain())

    def make_users(self) -> None:
        """Make the users of the brokers and of a producer, by a broker without an authorizer."""
        admin = AdminClient({**self.plain(), **QUIET})
        for user in (BROKERS, SHOP):
            info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
            made = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
            admin.alter_user_scram_credentials([made])[user].result(60)

    def give_rights(self) -> None:
        """Let the user write to its topic, and read it with its group, wherever it asks."""
        admin = AdminClient({**self.secure(BROKERS), **QUIET})
        made = [
            AclBinding(
                kind,
                name,
                ResourcePatternType.LITERAL,
                f"User:{SHOP}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for kind, name, operation in (
                (ResourceType.TOPIC, OF_SECURE, AclOperation.WRITE),
                (ResourceType.TOPIC, OF_SECURE, AclOperation.READ),
                (ResourceType.GROUP, f"readers-of-{OF_SECURE}", AclOperation.READ),
            )
        ]
        for created in admin.create_acls(made).values():
            created.result(60)
        for broker in self.brokers:
            first = {"bootstrap.servers": broker.secure_address("SECURE")}

            def shows_it(first: dict[str, str] = first) -> bool:
                # A client that knows more brokers may ask another one.
                client = AdminClient({**self.secure(), **first, **QUIET})
                return OF_SECURE in client.list_topics(timeout=30).topics

            wait_until(shows_it, f"broker {broker.broker_id} knows the rights")

    def _await_replicas(self, settings: dict[str, str]) -> None:
        admin = AdminClient({**settings, **QUIET})

        def are_in_sync() -> bool:
            partitions = [
                one
                for topic in admin.list_topics(timeout=30).topics.values()
                for one in topic.partitions.values()
            ]
            return all(len(one.isrs) == len(one.replicas) for one in partitions)

        wait_until(are_in_sync, "all replicas are in sync")


PLAIN_STEP, LAST_STEP = 0, 3


def _overrides(broker: MovingBroker, step: int) -> list[str]:
    """Return the settings that a broker has in a step, where they differ from those of the end."""
    changed = {"inter.broker.listener.name": "PLAINTEXT" if step < 2 else "SECURE"}
    if step == PLAIN_STEP:
        changed |= {
            "listeners": f"PLAINTEXT://{broker.address}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
            "authorizer.class.name": "",
            "super.users": "",
            "sasl.mechanism.inter.broker.protocol": "GSSAPI",
        }
    if step == LAST_STEP:
        changed |= {
            "listeners": f"SECURE://{broker.secure_address('SECURE')}",
            "listener.security.protocol.map": "SECURE:SASL_SSL",
            "super.users": f"User:{BROKERS}",
        }
    return [word for item in changed.items() for word in ("--override", "=".join(item))]


class _PlainAtFirst(MovingBroker):
    """A broker whose first start has nothing but the plain listener."""

    _was_started = False

    def spawn(self, *arguments: str) -> None:
        if not self._was_started:
            arguments = (*_overrides(self, PLAIN_STEP), *arguments)
            self._was_started = True
        super().spawn(*arguments)


@contextmanager
def plain_brokers(folder: Path, count: int) -> Iterator[Roll]:
    """Run brokers with topics that have a replica on each, of which one may be away."""
    own = certificates.Authority(folder).issue("broker", ["127.0.0.1"])
    settings = {
        **STEADY,
        **own.settings(),
        "offsets.topic.replication.factor": str(count),
        "offsets.topic.num.partitions": "1",
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "listener.name.secure.scram-sha-512.sasl.jaas.config": jaas(
            MECHANISM, username=BROKERS, password=PASSWORD
        ),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{BROKERS}",
    }
    with Cluster(folder, count, settings, kind=_PlainAtFirst) as cluster:
        roll = Roll(cluster, own)
        admin = AdminClient({**roll.plain(), **QUIET})
        for topic in TOPICS:
            config = {"min.insync.replicas": str(count - 1)}
            make_topic(admin, NewTopic(topic, PARTITIONS, count, config=config))
        yield roll
