"""The operator killed at its n-th call of a flow: the same end every time.

A sample here; `make chaos` kills at every call of every flow, before and after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from kazoo.client import KazooClient

from odradek.zk import znodes
from odradek_operator import throttle, zookeeper
from tests.reconcile import kills
from tests.reconcile.conftest import Place
from tests.reconcile.kills import API, Fuse, Lives
from tests.support import zookeeper as server
from tests.support.apiserver import ApiServer

EVERY = os.environ.get("ODRADEK_KILLS") == "all"
SAMPLE = 1


class World(Place):
    """A namespace, its znodes, and the resources of one flow."""

    lives: Lives

    def register_all(self) -> None:
        """A cluster of three brokers that are registrations only."""
        place = {"connect": self._connect, "chroot": f"/{self.namespace}"}
        body = self._body("KafkaCluster", "main", {})
        wanted = {"zookeeper": place, "brokers": {"replicas": 3}}
        self.lives.kube.create({**body, "spec": wanted})
        for path in znodes.PERSISTENT_PATHS:
            self.client.ensure_path(path)
        for broker_id in range(3):
            self.register(broker_id)

    def create(self, kind: str, name: str, **wanted: Any) -> None:
        self.lives.kube.create(self._body(kind, name, wanted))

    def _body(self, kind: str, name: str, wanted: dict[str, Any]) -> dict[str, Any]:
        return {
            "apiVersion": API,
            "kind": kind,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"clusterRef": {"name": "main"}, **wanted},
        }

    def change(self, kind: str, name: str, **wanted: Any) -> None:
        self.lives.kube.apply(self._body(kind, name, wanted))

    def body(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.lives.kube.get(API, kind, self.namespace, name)

    def reason(self, kind: str, name: str) -> str:
        body = self.body(kind, name)
        conditions = (body or {}).get("status", {}).get("conditions", ())
        return next((one["reason"] for one in conditions if one["type"] == "Ready"), "")

    def config(self, path: str) -> dict[str, str]:
        if not self.client.exists(path):
            return {}
        return znodes.decode_config(path, self.client.get(path)[0])

    def snapshot(self) -> dict[str, Any]:
        """Everything that must be the same whenever the operator died."""
        topics = self.client.get_children(znodes.TOPICS_PATH)
        resources = {
            kind: sorted(kills.summary(body) for body in self.lives.listed(kind))
            for kind in ("Topic", "Reassignment")
        }
        plans = self.lives.kube.select("v1", "ConfigMap", self.namespace)
        return {
            **resources,
            "plans": sum("plan.json" in one.get("data", {}) for one in plans),
            "topics": {one: self.read(one).partitions for one in topics},
            "configs": {one: self.config(znodes.topic_config_path(one)) for one in topics},
            "brokers": [self.config(znodes.broker_config_path(str(one))) for one in range(3)],
            "asked": self.requested(),
        }


def create_and_delete(world: World) -> Callable[[], bool]:
    """A topic is made, grows, is configured anew and goes with its data."""
    one = {"replicationFactor": 1, "deletionPolicy": "Delete", "adoption": "Never"}
    world.create("Topic", "t", partitions=1, config={"retention.ms": "5"}, **one)
    steps = iter(("grow", "delete"))

    def react() -> bool:
        topics = world.client.get_children(znodes.TOPICS_PATH)
        if world.client.exists(znodes.delete_topic_path("t")):
            world.finish_deletion("t")
        elif topics:
            world.elect("t")
        if world.body("Topic", "t") is None:
            return True
        if world.reason("Topic", "t") == "Synced":
            size = len(world.read("t").partitions) if topics else 0
            if size == 1:
                world.change("Topic", "t", partitions=2, config={"retention.ms": "6"}, **one)
            elif next(steps, None) is not None:
                body = world.body("Topic", "t")
                assert body is not None
                assert world.config(znodes.topic_config_path("t")) == {"retention.ms": "6"}
                world.lives.kube.delete(body)
        return False

    return react


MOVES = [
    {"topic": "t", "partition": 0, "replicas": [2, 1]},
    {"topic": "t", "partition": 1, "replicas": [0, 2]},
]
WANTED: dict[str, Any] = {
    "mode": "Explicit",
    "moves": MOVES,
    "throttleBytesPerSec": 5000,
    "maxConcurrentPartitions": 1,
}


def finished(world: World, name: str) -> bool:
    body = world.body("Reassignment", name)
    done = body is not None and body.get("status", {}).get("phase") in ("Completed", "Cancelled")
    return done and not (body or {})["metadata"].get("finalizers")


def move(world: World) -> Callable[[], bool]:
    """Two batches under a throttle."""
    world.make("t", (0, 1), (1, 2))
    world.create("Reassignment", "r", **WANTED)

    def react() -> bool:
        if world.requested():
            assert world.config(znodes.topic_config_path("t"))[throttle.FOLLOWERS]
            world.finish_moves()
        return finished(world, "r")

    return react


def move_and_cancel(world: World) -> Callable[[], bool]:
    """The first batch is done and the second asked for when everything shall go back."""
    world.make("t", (0, 1), (1, 2))
    world.create("Reassignment", "r", **WANTED)

    def react() -> bool:
        if world.requested():
            second = znodes.TopicPartition("t", 1) in world.requested()
            if second:
                world.change("Reassignment", "r", **WANTED, cancel=True)
            world.finish_moves()
        return finished(world, "r")

    return react


def widen(world: World) -> Callable[[], bool]:
    """A Topic asks for more replicas, and makes one Reassignment for it."""
    world.make("t", (0,), (1,))
    world.create("Topic", "t", partitions=2, replicationFactor=2, adoption="Force")
    world.create("Topic", "other", partitions=1, replicationFactor=1, adoption="Never")

    def react() -> bool:
        if world.client.exists(znodes.topic_path("other")):
            world.elect("other")
        if world.requested():
            world.finish_moves()
        made = [one["metadata"]["name"] for one in world.lives.listed("Reassignment")]
        synced = {world.reason("Topic", one) for one in ("t", "other")} == {"Synced"}
        return synced and bool(made) and all(finished(world, one) for one in made)

    return react


def widened(world: World) -> dict[str, Any]:
    """Where the new replicas land is of no matter."""
    found = world.snapshot()
    sizes = {
        name: sorted(map(len, replicas.values())) for name, replicas in found["topics"].items()
    }
    return {**found, "topics": sizes}


FLOWS: dict[str, tuple[Callable[[World], Callable[[], bool]], Callable[[World], Any]]] = {
    "create and delete": (create_and_delete, World.snapshot),
    "move": (move, World.snapshot),
    "move and cancel": (move_and_cancel, World.snapshot),
    "widen": (widen, widened),
}


class Worlds:
    """Makes worlds; each run of a flow gets one of its own."""

    def __init__(self, api: ApiServer, zk: server.Server, kube: kills.FusedKube) -> None:
        self._parts = (api, zk, kube)
        self._made = 0

    def run(self, name: str, fuse: Fuse) -> tuple[Any, int]:
        """Run a flow with a life that may end early; the end it comes to, and how many calls."""
        api, zk, kube = self._parts
        self._made += 1
        namespace = f"{name.replace(' ', '-')}-{self._made}"
        meta = {"name": namespace, "namespace": ""}
        kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        with zk.client() as root:
            root.ensure_path(f"/{namespace}")
        client: KazooClient
        session = zookeeper.ZooKeeper(f"{zk.connect}/{namespace}", lambda: None)
        try:
            session.require()
            with zk.client(f"/{namespace}") as client:
                world = World(api, zk, client, namespace)
                world.lives = Lives(kube, session, namespace)
                world.register_all()
                begin, snapshot = FLOWS[name]
                react = begin(world)
                if not world.lives.live(fuse, react):
                    assert world.lives.live(Fuse(), react)
                return snapshot(world), fuse.calls
        finally:
            session.close()


@pytest.fixture(scope="module")
def worlds(api: ApiServer, zk: server.Server) -> Worlds:
    return Worlds(api, zk, kills.client(api.kubeconfig))


@pytest.mark.timeout(7200 if EVERY else 300)
@pytest.mark.parametrize("flow", FLOWS)
def test_operator_killed_at_any_call_comes_to_the_same_end(worlds: Worlds, flow: str) -> None:
    expected, calls = worlds.run(flow, Fuse())
    places = [(at, answered) for at in range(1, calls + 1) for answered in (False, True)]
    if not EVERY:
        places = Random(f"{flow} 7").sample(places, SAMPLE)
    for at, answered in places:
        found, _ = worlds.run(flow, Fuse(at, answered))
        assert found == expected, f"killed at call {at}, answered: {answered}"
