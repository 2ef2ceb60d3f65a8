"""The operator's writes of users to a real ZooKeeper: what they change, what they leave alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from odradek.quotas.entities import QuotaKey
from odradek.security import acl_znodes
from odradek.security.acls import (
    AclEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from odradek.values import Principal
from odradek.zk.operations import Operation
from odradek_operator.shared import client_users, user_znodes, zookeeper
from tests.reconcile.conftest import once_reachable
from tests.support import zookeeper as server

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")
APPS = ResourcePattern(ResourceType.GROUP, "app-", PatternType.PREFIXED)


def allow(user: str, operation: AclOperation) -> AclEntry:
    return AclEntry(Principal("User", user), PermissionType.ALLOW, operation)


@pytest.fixture
def ours(zk: server.Server, request: pytest.FixtureRequest) -> Iterator[zookeeper.ZooKeeper]:
    """A session of the operator's in a chroot that does not exist yet."""
    pool = zookeeper.Pool(lambda: None)
    chroot = f"/users-{os.getpid()}/{request.node.name}"
    try:
        yield once_reachable(lambda: pool.get(zk.connect + chroot))
    finally:
        pool.close()


@pytest.fixture
def theirs(zk: server.Server, ours: zookeeper.ZooKeeper) -> Iterator[KazooClient]:
    """A session of somebody else's in the same chroot."""
    ours.ensure(())
    with zk.client("/" + ours.connect.partition("/")[2]) as client:
        yield client


def notices(client: KazooClient, parent: str) -> list[str]:
    names = sorted(client.get_children(parent))
    return [client.get(f"{parent}/{name}")[0].decode() for name in names]


def test_credentials_and_quotas_of_a_user_stand_side_by_side(
    ours: zookeeper.ZooKeeper, theirs: KazooClient
) -> None:
    user = "CN=a,O=b"
    path = "/config/users/CN%3Da%2CO%3Db"
    assert user_znodes.set_password(ours, user, SHA_512, "secret")
    assert user_znodes.set_quotas(ours, user, {QuotaKey.PRODUCE: 1024, QuotaKey.REQUEST: 55})
    held = json.loads(theirs.get(path)[0])
    credential = held["config"].pop(SHA_512)
    assert credential.endswith(",iterations=4096")
    assert "secret" not in credential
    assert held == {
        "version": 1,
        "config": {"producer_byte_rate": "1024", "request_percentage": "55.0"},
    }
    assert user_znodes.is_of_password(credential, SHA_512, "secret")
    assert not user_znodes.is_of_password(credential, SHA_512, "Secret")
    assert not user_znodes.is_of_password(credential, SHA_256, "secret")
    said = '{"version":2,"entity_path":"users/CN%3Da%2CO%3Db"}'
    assert notices(theirs, "/config/changes") == [said] * 2

    assert user_znodes.set_quotas(ours, user, {QuotaKey.FETCH: 7})
    assert json.loads(theirs.get(path)[0])["config"] == {
        SHA_512: credential,
        "consumer_byte_rate": "7",
    }
    assert user_znodes.delete_credentials(ours, user)
    assert theirs.get(path)[0] == b'{"version":1,"config":{"consumer_byte_rate":"7"}}'
    assert user_znodes.set_quotas(ours, user, {})
    assert theirs.get(path)[0] == b'{"version":1,"config":{}}'


def test_what_is_as_wanted_is_not_written_again(
    ours: zookeeper.ZooKeeper, theirs: KazooClient
) -> None:
    assert not user_znodes.delete_credentials(ours, "nobody")
    assert not user_znodes.update_acls(ours, ORDERS, (), [allow("nobody", AclOperation.READ)])
    user_znodes.set_password(ours, "shop", SHA_256, "one")
    user_znodes.update_acls(ours, ORDERS, [allow("shop", AclOperation.READ)])
    before = theirs.exists("/config/users/shop").mzxid, theirs.exists("/kafka-acl/Topic/orders")
    assert not user_znodes.set_password(ours, "shop", SHA_256, "one")
    assert not user_znodes.update_acls(ours, ORDERS, [allow("shop", AclOperation.READ)])
    after = theirs.exists("/config/users/shop").mzxid, theirs.exists("/kafka-acl/Topic/orders")
    assert before == after
    assert user_znodes.set_password(ours, "shop", SHA_256, "two")


@pytest.mark.parametrize("damaged", ["", "salt=", "salt=a,stored_key=b,server_key=c,iterations=1"])
def test_damaged_credential_is_nobodys_password(damaged: str) -> None:
    assert not user_znodes.is_of_password(damaged, SHA_256, "")


def test_endless_iterations_are_not_computed() -> None:
    entry = user_znodes.scram_entry(SHA_256, "one")
    long = entry.replace("iterations=4096", "iterations=2000000000")
    assert not user_znodes.is_of_password(long, SHA_256, "one")


def test_acls_of_others_stay_and_each_change_has_its_notice(
    ours: zookeeper.ZooKeeper, theirs: KazooClient
) -> None:
    mine, other = allow("shop", AclOperation.IDEMPOTENT_WRITE), allow("eve", AclOperation.READ)
    assert user_znodes.update_acls(ours, ORDERS, [mine])
    assert theirs.get("/kafka-acl/Topic/orders")[0] == (
        b'{"version":1,"acls":[{"principal":"User:shop","permissionType":"Allow",'
        b'"operation":"IdempotentWrite","host":"*"}]}'
    )
    assert user_znodes.update_acls(ours, APPS, [mine, other])
    assert user_znodes.update_acls(ours, ORDERS, [other])
    assert user_znodes.read_acls(ours, [ORDERS]) == {ORDERS: (mine, other)}
    assert user_znodes.update_acls(ours, ORDERS, (), [mine])
    assert user_znodes.read_acls(ours, [ORDERS, APPS]) == {ORDERS: (other,), APPS: (mine, other)}
    assert user_znodes.update_acls(ours, ORDERS, (), [mine, other])
    assert theirs.exists("/kafka-acl/Topic/orders") is None
    assert notices(theirs, "/kafka-acl-changes") == ["TOPIC:orders"] * 4
    assert notices(theirs, "/kafka-acl-extended-changes") == [
        '{"version":1,"resourceType":"GROUP","name":"app-","patternType":"PREFIXED"}'
    ]


def test_write_of_another_in_between_is_kept(
    ours: zookeeper.ZooKeeper, theirs: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_znodes.set_quotas(ours, "shop", {QuotaKey.FETCH: 1})
    commit, faster = ours.commit, [b'{"version":1,"config":{"SCRAM-SHA-256":"x"}}']

    def overtake(wanted: Sequence[Operation]) -> None:
        if faster:
            theirs.set("/config/users/shop", faster.pop())
        commit(wanted)

    monkeypatch.setattr(ours, "commit", overtake)
    assert user_znodes.set_quotas(ours, "shop", {QuotaKey.PRODUCE: 2})
    assert json.loads(theirs.get("/config/users/shop")[0])["config"] == {
        "SCRAM-SHA-256": "x",
        "producer_byte_rate": "2",
    }


def test_acls_beyond_what_a_znode_holds_are_refused_and_removed(
    ours: zookeeper.ZooKeeper, theirs: KazooClient
) -> None:
    many = [
        AclEntry(Principal("User", f"user-{one:06}"), PermissionType.ALLOW, AclOperation.READ)
        for one in range(8000)
    ]
    with pytest.raises(user_znodes.FullZnodeError, match="the limit is"):
        user_znodes.update_acls(ours, ORDERS, many)
    # Kafka fills a znode up to what ZooKeeper takes.
    path = acl_znodes.acl_path(ORDERS)
    ours.ensure(acl_znodes.persistent_paths())
    theirs.create(path, acl_znodes.encode_acls(many))
    assert user_znodes.update_acls(ours, ORDERS, (), many[:1])
    assert acl_znodes.decode_acls(path, theirs.get(path)[0]) == tuple(many[1:])
    with pytest.raises(user_znodes.FullZnodeError, match="the limit is"):
        user_znodes.update_acls(ours, ORDERS, many[:1])


def test_passwords_are_not_logged(
    ours: zookeeper.ZooKeeper, theirs: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    user_znodes.set_password(ours, "shop", SHA_256, "word-of-mouth")
    credential = json.loads(theirs.get("/config/users/shop")[0])["config"][SHA_256]
    assert "/config/users/shop" in caplog.text
    assert "word-of-mouth" not in caplog.text
    assert credential not in caplog.text


HOSTILE = {
    "not-json": b"{not json",
    "not-text": b"\xff\xfe",
    "unknown-version": b'{"version":9,"acls":[]}',
    "no-object": b"[]",
    "deep": b"[" * 100_000,
    "huge": b"x" * 900_000,
    "no-principal": b'{"version":1,"acls":[{"principal":"shop","permissionType":"Allow"}]}',
}


def test_acls_that_cannot_be_read_are_named_and_hide_no_others(
    ours: zookeeper.ZooKeeper, theirs: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    mine = allow("shop", AclOperation.READ)
    for pattern in (ORDERS, APPS):
        user_znodes.update_acls(ours, pattern, [mine])
    for name, data in HOSTILE.items():
        theirs.create(f"/kafka-acl/Topic/{name}", data)
    secret = [make_digest_acl("somebody", "else", all=True)]
    theirs.create("/kafka-acl/Topic/secret", b"", secret)
    theirs.set_acls("/kafka-acl-extended/prefixed/Topic", secret)
    for reader in (ours, ours.cached):
        caplog.clear()
        assert user_znodes.every_acl(reader) == {ORDERS: (mine,), APPS: (mine,)}
        assert all(f"znode /kafka-acl/Topic/{name}: " in caplog.text for name in HOSTILE)
        for refused in ("/kafka-acl/Topic/secret", "/kafka-acl-extended/prefixed/Topic"):
            assert re.search(rf"does not let me read \S*{refused}", caplog.text)
    for name, data in HOSTILE.items():
        assert theirs.get(f"/kafka-acl/Topic/{name}")[0] == data


def test_user_of_the_operators_own_goes_past_what_cannot_be_read(
    ours: zookeeper.ZooKeeper, theirs: KazooClient
) -> None:
    mine, other = allow("odradek-job.n.g", AclOperation.READ), allow("eve", AclOperation.READ)
    user_znodes.set_password(ours, "odradek-job.n.g", SHA_256, "one")
    user_znodes.update_acls(ours, ORDERS, [mine, other])
    theirs.create("/kafka-acl/Topic/bad", b"{not json")
    client_users.remove(ours, "odradek-job.n.g")
    assert theirs.get("/config/users/odradek-job.n.g")[0] == b'{"version":1,"config":{}}'
    assert user_znodes.read_acls(ours, [ORDERS]) == {ORDERS: (other,)}
    assert theirs.get("/kafka-acl/Topic/bad")[0] == b"{not json"
