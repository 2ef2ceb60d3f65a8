"""A znode that cannot be read stops the one User that it concerns: passes on a real ZooKeeper."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from odradek_operator.loop.reconciler import Reconciler
from odradek_operator.shared import user_znodes, zookeeper
from odradek_operator.shared.spec import FINALIZER, ClusterKey
from odradek_operator.shared.store import ResourceStore, key_of
from tests.reconcile.conftest import once_reachable
from tests.reconcile.in_memory import cluster, resource
from tests.reconcile.users import SECURED
from tests.support import zookeeper as server
from tests.support.memory import MemoryKube, MemoryPool, context

MOST_PASSES = 6
BAD_JSON = b"{not json"
NOBODYS = [make_digest_acl("somebody", "else", all=True)]


@pytest.fixture
def ours(zk: server.Server, request: pytest.FixtureRequest) -> Iterator[zookeeper.ZooKeeper]:
    """A session of the operator's in a chroot of its own."""
    pool = zookeeper.Pool(lambda: None)
    try:
        chroot = f"/unreadable-users-{os.getpid()}/{request.node.name}"
        made = once_reachable(lambda: pool.get(zk.connect + chroot))
        made.ensure(["/brokers/ids", "/config/users", "/config/changes"])
        made.ensure(["/kafka-acl/Topic", "/kafka-acl-changes"])
        yield made
    finally:
        pool.close()


@pytest.fixture
def theirs(zk: server.Server, ours: zookeeper.ZooKeeper) -> Iterator[KazooClient]:
    with zk.client("/" + ours.connect.partition("/")[2]) as client:
        yield client


def allow(topic: str) -> dict[str, Any]:
    """An ACL with the defaults that the API server fills in."""
    named = {"type": "topic", "name": topic, "patternType": "literal"}
    return {"resource": named, "operations": ["Read"], "type": "allow", "host": "*"}


def user(name: str, *topics: str, deleted: bool = False, **status: Any) -> dict[str, Any]:
    body = resource(
        "User",
        name,
        deleted=deleted,
        clusterRef={"name": "c"},
        authentication={"type": "scram-sha-512"},
        authorization={"acls": [allow(one) for one in topics]},
    )
    body["metadata"]["finalizers"] = [FINALIZER]
    return body | ({"status": status} if status else {})


class World:
    """Users of one cluster, and passes over them."""

    def __init__(self, ours: zookeeper.ZooKeeper, *users: dict[str, Any]) -> None:
        owner = cluster(**SECURED)
        self.names = [one["metadata"]["name"] for one in users]
        self.kube = MemoryKube(owner, *users)
        self._store = ResourceStore()
        self._store.put(owner)
        stand_in: Any = {"zk:2181": ours}
        self._context = context(self.kube, MemoryPool(stand_in))

    def user(self, name: str) -> dict[str, Any]:
        found = self.kube.get("odradek.io/v1alpha1", "User", "n", name)
        assert found is not None
        return found

    def ready(self, name: str) -> tuple[str, str]:
        """Reason and message of a User's condition Ready."""
        conditions = self.user(name).get("status", {}).get("conditions", [])
        return next(
            ((one["reason"], one["message"]) for one in conditions if one["type"] == "Ready"),
            ("", ""),
        )

    def run(self) -> None:
        """Run the passes that Users take from their creation to their end."""
        for _ in range(MOST_PASSES):
            batch = {key_of(one): one for one in map(self.user, self.names)}
            for body in batch.values():
                self._store.put(body)
            done = Reconciler(self._context, self._store).reconcile(
                "n", ClusterKey("n", "c"), batch
            )
            assert not [one for one in done.values() if isinstance(one, Exception)], done


def test_each_unreadable_znode_stops_only_the_user_that_it_concerns(
    ours: zookeeper.ZooKeeper, theirs: KazooClient
) -> None:
    theirs.create(user_znodes.user_path("damaged"), BAD_JSON)
    theirs.create(user_znodes.user_path("refused"), b"", NOBODYS)
    theirs.create(user_znodes.user_path("huge"), b"x" * 900_000)
    theirs.create("/kafka-acl/Topic/bad", BAD_JSON)
    theirs.create("/kafka-acl/Topic/secret", b"", NOBODYS)
    names = ("damaged", "refused", "huge")
    users = [*(user(one, "good") for one in names)]
    users += [user("acl", "good", "bad"), user("secret", "secret"), user("sound", "good")]
    world = World(ours, *users)
    world.run()
    assert world.ready("sound")[0] == "Synced"
    for name, reason, path in (
        ("damaged", "ZnodeUnreadable", "/config/users/damaged"),
        ("refused", "ZooKeeperRefuses", "/config/users/refused"),
        ("huge", "ZnodeUnreadable", "/config/users/huge"),
        ("acl", "ZnodeUnreadable", "/kafka-acl/Topic/bad"),
        ("secret", "ZooKeeperRefuses", "/kafka-acl/Topic/secret"),
    ):
        told, message = world.ready(name)
        assert (name, told) == (name, reason)
        assert path in message
    assert theirs.get("/config/users/damaged")[0] == BAD_JSON
    assert theirs.get("/config/users/huge")[0] == b"x" * 900_000
    assert theirs.get("/kafka-acl/Topic/bad")[0] == BAD_JSON

    # Mended, it is taken up.
    theirs.delete("/kafka-acl/Topic/bad")
    world.run()
    assert world.ready("acl")[0] == "Synced"


def test_deletion_removes_all_that_can_be_read_and_waits_for_the_rest(
    ours: zookeeper.ZooKeeper, theirs: KazooClient
) -> None:
    world = World(ours, user("leaving", "aaa", "good"))
    world.run()
    assert world.ready("leaving")[0] == "Synced"
    assert b"User:leaving" in theirs.get("/kafka-acl/Topic/good")[0]
    sound = theirs.get("/kafka-acl/Topic/aaa")[0]
    theirs.set("/kafka-acl/Topic/aaa", BAD_JSON)
    former = world.user("leaving")["status"]

    world = World(ours, user("leaving", "aaa", "good", deleted=True, **former))
    world.run()
    assert theirs.exists("/kafka-acl/Topic/good") is None
    assert theirs.get("/config/users/leaving")[0] == b'{"version":1,"config":{}}'
    assert theirs.get("/kafka-acl/Topic/aaa")[0] == BAD_JSON
    reason, message = world.ready("leaving")
    assert reason == "ZnodeUnreadable"
    assert "/kafka-acl/Topic/aaa" in message
    assert world.user("leaving")["metadata"]["finalizers"]

    theirs.set("/kafka-acl/Topic/aaa", sound)
    world.run()
    assert theirs.exists("/kafka-acl/Topic/aaa") is None
    assert not world.user("leaving")["metadata"].get("finalizers")
