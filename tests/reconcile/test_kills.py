"""The operator killed at its n-th call of a flow: the same end every time.

A sample here; `make chaos` kills at every call of every flow, before and after it.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from kazoo.client import KazooClient

from odradek_operator.shared import zookeeper
from tests.reconcile import kills
from tests.reconcile.conftest import once_reachable
from tests.reconcile.kill_flows import FLOWS, World
from tests.reconcile.kills import Fuse, Lives
from tests.support import zookeeper as server
from tests.support.apiserver import ApiServer
from tests.support.sampling import FULL, how_many, some_of

SAMPLE = 1
# All kills of a flow take minutes: in so many tests one sees how far they are.
SHARES = how_many(1, full=20)
# One flow of each kind of resource, and the two that undo what was begun.
SAMPLED_FLOWS = (
    *("create and delete", "land in a table", "move and cancel", "grow and shrink"),
    *("run a job on schedule", "roll", "make a user"),
)


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
            once_reachable(session.require)
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


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("flow", some_of(tuple(FLOWS), SAMPLED_FLOWS))
def test_operator_killed_at_any_call_comes_to_the_same_end(
    worlds: Worlds, flow: str, share: int
) -> None:
    expected, calls = worlds.run(flow, Fuse())
    places = [(at, answered) for at in range(1, calls + 1) for answered in (False, True)]
    places = places[share::SHARES] if FULL else Random(f"{flow} 7").sample(places, SAMPLE)
    for at, answered in places:
        found, _ = worlds.run(flow, Fuse(at, answered))
        assert found == expected, f"killed at call {at}, answered: {answered}"
