"""The ACLs of znodes that Apache Kafka 2.8.2 and our broker make with `zookeeper.set.acl=true`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from odradek.zk.acls import SECURE_ROOTS
from tests.support.broker import STEADY, wait_until
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_peer import LIMIT_SECONDS, Tools
from tests.support.secure_zookeeper import BrokerWithLogin, Server
from tests.support.znode_acls import Acl, acls_below

SETTINGS = {
    **STEADY,
    "zookeeper.set.acl": "true",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
}
# Rates of connections by address, and features (KIP-584): our brokers have neither.
ONLY_KAFKA = {"/logs/config/ips", "/logs/feature"}
_SEQUENCE = re.compile(r"\d{10}$")
MIGRATOR = "kafka.admin.ZkSecurityMigrator"


class KafkaWithLogin(KafkaBroker):
    kafka_opts = ""

    def _command(self) -> list[str]:
        java, *others = super()._command()
        return [java, self.kafka_opts, *others]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("zk")) as running:
        yield running


def work_with(address: str) -> None:
    """Make znodes of each kind."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(60)
    for kind, name, setting in (
        (ResourceType.TOPIC, "orders", ("retention.ms", "100000")),
        (ResourceType.BROKER, "1", ("log.cleaner.threads", "1")),
    ):
        entry = ConfigEntry(*setting, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(60)
    for pattern in (ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED):
        binding = AclBinding(
            ResourceType.TOPIC,
            "orders",
            pattern,
            "User:alice",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        for future in admin.create_acls([binding]).values():
            future.result(60)
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    upsertion = UserScramCredentialUpsertion("alice", credential, b"secret")
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(60)


def of_one(
    kind: type[KafkaWithLogin | BrokerWithLogin], server: Server, folder: Path, chroot: str
) -> dict[str, Acl]:
    """Return the ACLs of all znodes that one broker makes, by path."""
    broker = kind(folder, 1, f"{server.connect}/{chroot}/logs", SETTINGS)
    broker.kafka_opts = server.kafka_opts().split()[-1]
    broker.start()
    try:
        work_with(broker.address)
        with server.client(f"/{chroot}/logs") as client:
            wait_until(
                lambda: client.exists("/brokers/topics/orders/partitions/0/state") is not None,
                "the state of the partition is there",
            )
        found = acls_below(server, f"/{chroot}")
        return {_SEQUENCE.sub("N", path): acl for path, acl in found.items()}
    finally:
        broker.kill()


def test_znodes_have_the_acls_that_kafka_gives_them(server: Server, tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    (tmp_path / "ours").mkdir()
    theirs = of_one(KafkaWithLogin, server, tmp_path / "kafka", "kafka")
    own = of_one(BrokerWithLogin, server, tmp_path / "ours", "ours")
    assert theirs.keys() - own.keys() == ONLY_KAFKA
    assert own == {path: acl for path, acl in theirs.items() if path in own}
    assert len(set(own.values())) == 3


@pytest.mark.full("tests/peers/test_znode_acls.py::test_znodes_have_the_acls_that_kafka_gives_them")
def test_commands_change_acls_as_kafkas_migration_tool_does(
    server: Server, tools: Tools, tmp_path: Path
) -> None:
    paths = [
        *(f"/brokers/topics/t{number}/partitions/0/state" for number in range(3)),
        "/brokers/ids/1",
        "/config/users/alice",
        "/config/brokers/1",
        "/config/topics/t0",
        "/config/changes/config_change_0000000000",
        "/delegation_token/tokens/x",
        "/kafka-acl/Topic/t0",
        "/kafka-acl-extended/prefixed/Topic/t",
        "/consumers/group/offsets",
        "/elsewhere",
        *SECURE_ROOTS,
    ]
    with server.client() as client:
        for chroot in ("by-kafka", "by-us"):
            for path in paths:
                client.ensure_path(f"/{chroot}{path}")
    jaas = server.kafka_opts().split()[-1]
    ours = [sys.executable, "-m", "odradek", "zookeeper"]
    before = acls_below(server, "/by-us")
    for what in ("secure", "unsecure"):
        java, *others = tools.command(
            MIGRATOR,
            *("--zookeeper.connect", f"{server.connect}/by-kafka"),
            f"--zookeeper.acl={what}",
        )
        subprocess.run([java, jaas, *others], check=True, timeout=LIMIT_SECONDS)
        # The second time changes nothing.
        for _ in range(2):
            subprocess.run(
                [*ours, what, "--zookeeper", f"{server.connect}/by-us"],
                env={**os.environ, "KAFKA_OPTS": jaas},
                check=True,
                timeout=LIMIT_SECONDS,
            )
        own = acls_below(server, "/by-us")
        assert own == acls_below(server, "/by-kafka")
        assert (own == before) == (what == "unsecure")
