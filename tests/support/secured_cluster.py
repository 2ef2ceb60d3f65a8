"""A broker with SCRAM over TLS and ACLs, for clients of ours; tests set up on its plain listener.

Everybody on the plain listener is a super user. Users come in on the other one, with their rights
and no others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from odradek.security import scram
from odradek.zk import znodes
from tests.support import certificates
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.clients import QUIET
from tests.support.secure_broker import SecureBroker, jaas

MECHANISM, BROKERS = "SCRAM-SHA-512", "brokers"
PASSWORD = "broker-s3cret"
# (kind, name, operation) of an ACL.
Right = tuple[ResourceType, str, AclOperation]


class _Broker(SecureBroker):
    protocols = {"SECRET": "SASL_SSL"}


class SecuredCluster:
    """The cluster, its certificate, and its users."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        authority: certificates.Authority,
        own: certificates.Issued,
    ) -> None:
        self.cluster = cluster
        self.authority = authority
        self.own = own
        self._folder = folder

    @property
    def bootstrap(self) -> str:
        """The addresses of the listener with TLS and SASL."""
        brokers = [one for one in self.cluster.brokers.values() if isinstance(one, _Broker)]
        return ",".join(one.secure_address("SECRET") for one in brokers)

    def add_user(self, name: str, password: str, *rights: Right) -> None:
        """Make a user with rights; the authorizer may learn of them a little later."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, **QUIET})
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = UserScramCredentialUpsertion(name, credential, password.encode())
        admin.alter_user_scram_credentials([made])[name].result(60)
        bindings = [
            AclBinding(
                kind,
                resource,
                ResourcePatternType.LITERAL,
                f"User:{name}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for kind, resource, operation in rights
        ]
        for one in admin.create_acls(bindings).values() if bindings else ():
            one.result(60)

    def await_rights(self, name: str, password: str, *topics: str) -> None:
        """Wait until the user sees topics on every broker."""
        for address in self.bootstrap.split(","):
            settings = {**self.settings(name, password), "bootstrap.servers": address}
            admin = AdminClient({**settings, **QUIET})
            wait_until(
                lambda admin=admin: set(topics) <= set(admin.list_topics(timeout=30).topics),  # type: ignore[misc]
                f"the rights of {name}",
            )

    def settings(self, name: str, password: str) -> dict[str, str]:
        """Return librdkafka's settings of a user."""
        return {
            **self.own.client(),
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": name,
            "sasl.password": password,
        }

    def properties(self, name: str, password: str, **others: str) -> Path:
        """Return a file with the settings of a user for Kafka's clients."""
        values = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": jaas(MECHANISM, username=name, password=password),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.own.authority_path),
            **others,
        }
        path = self._folder / f"{name}.properties"
        path.write_text("".join(f"{key}={text}\n" for key, text in values.items()))
        return path


@contextmanager
def running(folder: Path, brokers: int = 1, super_users: str = "") -> Iterator[SecuredCluster]:
    """Run brokers in a folder; `super_users` are more of them, such as `;User:admin`."""
    authority = certificates.Authority(folder)
    own = authority.issue("broker", ["127.0.0.1"])
    settings = {
        **STEADY,
        **own.settings(),
        "inter.broker.listener.name": "SECRET",
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "listener.name.secret.scram-sha-512.sasl.jaas.config": jaas(
            MECHANISM, username=BROKERS, password=PASSWORD
        ),
        "connection.failed.authentication.delay.ms": "1",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:{BROKERS};User:ANONYMOUS{super_users}",
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": str(brokers),
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": str(brokers),
        "transaction.state.log.min.isr": "1",
    }
    made = Cluster(folder, brokers, settings, kind=_Broker)
    made.zookeeper.start()
    # The first user comes from Kafka's tool, which writes to ZooKeeper.
    salt = b"of-the-brokers"
    salted = hashlib.pbkdf2_hmac("sha512", PASSWORD.encode(), salt, 4096)
    entry = {MECHANISM: scram.credential(MECHANISM, salted, salt, 4096).encoded()}
    with made.zookeeper.client() as client:
        path = znodes.config_path("users", BROKERS)
        client.create(path, znodes.encode_config(entry), makepath=True)
    with made as cluster:
        yield SecuredCluster(cluster, folder, authority, own)
