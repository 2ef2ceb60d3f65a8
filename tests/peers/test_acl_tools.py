"""Kafka's AclCommand, through ZooKeeper and through brokers: one reads what the other writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import authorization_asker
from tests.support.broker import Cluster, wait_until
from tests.support.kafka_peer import Tools

ACLS = "kafka.admin.AclCommand"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers with an authorizer; whoever comes from this machine may do everything."""
    made = Cluster(
        tmp_path_factory.mktemp("acls"), brokers=2, settings=authorization_asker.SETTINGS
    )
    made.zookeeper.start()
    with made.zookeeper.client() as client:
        authorization_asker.allow_administrator(client)
    with made:
        yield made


def at(cluster: Cluster, way: str) -> tuple[str, ...]:
    if way == "zookeeper":
        return ("--authorizer-properties", f"zookeeper.connect={cluster.zookeeper.connect}")
    return ("--bootstrap-server", cluster.bootstrap)


@pytest.mark.parametrize(("writer", "reader"), [("zookeeper", "brokers"), ("brokers", "zookeeper")])
def test_acls_are_added_listed_and_removed(
    cluster: Cluster, tools: Tools, writer: str, reader: str
) -> None:
    topic, prefix = f"orders-{writer}", f"app-{writer}-"
    user = ("--allow-principal", "User:CN=alice,O=a:b", "--allow-host", "10.0.0.1")
    tools.run(ACLS, *at(cluster, writer), "--add", *user, "--producer", "--topic", topic)
    prefixed = ("--resource-pattern-type", "prefixed", "--group", prefix)
    denied = ("--deny-principal", "User:bob", "--operation", "Read")
    tools.run(ACLS, *at(cluster, writer), "--add", *denied, *prefixed)

    def listed(*what: str) -> str:
        return tools.run(ACLS, *at(cluster, reader), "--list", *what)

    named = ("--topic", topic)
    wait_until(lambda: "CREATE" in listed(*named), "the ACLs of the topic are known")
    said = listed(*named)
    for operation in ("WRITE", "DESCRIBE", "CREATE"):
        entry = f"(principal=User:CN=alice,O=a:b, host=10.0.0.1, operation={operation}, "
        assert entry + "permissionType=ALLOW)" in said
    match = ("--resource-pattern-type", "match", "--group", f"{prefix}1")
    wait_until(lambda: "patternType=PREFIXED" in listed(*match), "the prefixed ACL is known")
    assert "(principal=User:bob, host=*, operation=READ, permissionType=DENY)" in listed(*match)

    removed = ("--remove", "--force")
    tools.run(ACLS, *at(cluster, reader), *removed, "--topic", topic)
    tools.run(ACLS, *at(cluster, reader), *removed, *prefixed)

    def left() -> str:
        return tools.run(ACLS, *at(cluster, writer), "--list")

    wait_until(lambda: topic not in left() and prefix not in left(), "no ACLs are left")
    with cluster.zookeeper.client() as client:
        assert topic not in client.get_children("/kafka-acl/Topic")
        assert prefix not in client.get_children("/kafka-acl-extended/prefixed/Group")
