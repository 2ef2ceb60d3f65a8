"""Passes over resources that are as wanted: what they cost, and that changes are seen."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
from kazoo.client import KazooClient

from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch
from odradek.zk import znodes
from odradek_operator.loop.reconciler import Reconciler
from odradek_operator.shared import metrics
from odradek_operator.shared.spec import ClusterKey
from odradek_operator.shared.status import condition_of
from odradek_operator.shared.store import ResourceStore, key_of
from odradek_operator.shared.znode_cache import ZnodeCache
from odradek_operator.shared.zookeeper import Pool, UnreachableError
from tests.reconcile.conftest import elect, once_reachable, register
from tests.reconcile.in_memory import resource
from tests.support import zookeeper
from tests.support.kubectl import eventually
from tests.support.memory import MemoryKube, MemoryPool, context


class Operated:
    """Passes over a cluster and its topics, with the real ZooKeeper and no API server."""

    def __init__(self, connect: str, chroot: str, topics: int) -> None:
        place = {"connect": connect, "chroot": chroot}
        self._bodies = [
            resource("KafkaCluster", "c", zookeeper=place, brokers={"replicas": 1}),
            *(resource("Topic", f"t{one}", clusterRef={"name": "c"}) for one in range(topics)),
        ]
        self.kube, self._store = MemoryKube(*self._bodies), ResourceStore()
        for body in self._bodies:
            self._store.put(body)
        self.pool = Pool(lambda: None)
        self._reconciler = Reconciler(
            context(self.kube, cast("MemoryPool", self.pool)), self._store
        )

    def reconcile(self) -> None:
        """Do one pass over everything."""
        now = [
            self.kube.get("", body["kind"], "n", body["metadata"]["name"]) for body in self._bodies
        ]
        batch = {key_of(body): body for body in now if body is not None}
        for result in self._reconciler.reconcile("n", ClusterKey("n", "c"), batch).values():
            assert not isinstance(result, Exception), result

    def reason(self, name: str) -> str:
        """Reason of a Topic's Ready."""
        body = self.kube.get("", "Topic", "n", name)
        assert body is not None
        condition = condition_of(body["status"], "Ready")
        return str(condition and condition["reason"])


def writes() -> float:
    return sum(
        metrics.REGISTRY.get_sample_value("odradek_operator_writes_total", {"target": target}) or 0
        for target in ("zookeeper", "kubernetes")
    )


def reads() -> float:
    return metrics.REGISTRY.get_sample_value("odradek_operator_zookeeper_reads_total") or 0


@pytest.fixture
def chroot(zk: zookeeper.Server, request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    path = f"/{request.node.originalname}"
    with zk.client() as root:
        root.ensure_path(path)
    with zk.client(path) as client:
        for one in znodes.PERSISTENT_PATHS:
            client.ensure_path(one)
        register(client, 0)
        claim = znodes.ControllerClaim(BrokerId(0), 1)
        client.create(znodes.CONTROLLER_PATH, znodes.encode_controller(claim))
        yield path, client


def settle(operated: Operated, client: KazooClient, topics: int) -> None:
    def all_made() -> bool:
        operated.reconcile()
        return all(client.exists(znodes.topic_path(f"t{one}")) for one in range(topics))

    eventually(all_made, "all topics", pause_s=0.1)
    for one in range(topics):
        elect(client, f"t{one}")

    def all_ready() -> bool:
        operated.reconcile()
        return {operated.reason(f"t{one}") for one in range(topics)} == {"Synced"}

    eventually(all_ready, "all topics", pause_s=0.1)


def test_reconciler_over_many_topics_that_are_as_wanted_write_nothing_and_read_no_znode(
    zk: zookeeper.Server, chroot: tuple[str, KazooClient]
) -> None:
    topics = 40
    path, client = chroot
    operated = Operated(zk.connect, path, topics)
    try:
        settle(operated, client, topics)

        def done() -> tuple[float, float, int]:
            return reads(), writes(), len(operated.kube.statuses)

        def quiet() -> bool:
            before = done()
            for _ in range(5):
                operated.reconcile()
            return done() == before

        # Notices of what was just written may still come, after a first pass without any, too.
        eventually(quiet, "passes that ask for nothing", pause_s=0.1)

        changed = znodes.topic_config_path("t7")
        client.set(changed, znodes.encode_config({"retention.ms": "5"}))

        def mended() -> bool:
            operated.reconcile()
            return znodes.decode_config(changed, client.get(changed)[0]) == {}

        eventually(mended, "the configuration of before", pause_s=0.1)
        state = znodes.PartitionState(
            BrokerId(-1),
            LeaderEpoch(1),
            (BrokerId(0),),
            ControllerEpoch(1),
        )
        client.set(znodes.state_path("t9", 0), znodes.encode_state(state))

        def noticed() -> bool:
            operated.reconcile()
            return operated.reason("t9") == "WaitingForLeaders"

        eventually(noticed, "the lost leader", pause_s=0.1)
    finally:
        operated.pool.close()


def test_nothing_is_remembered_beyond_the_connection_that_would_tell_of_changes(
    zk: zookeeper.Server, chroot: tuple[str, KazooClient]
) -> None:
    path, client = chroot
    client.create("/a", b"1")
    pool = Pool(lambda: None)
    session = once_reachable(lambda: pool.get(zk.connect + path))
    try:
        assert [one and one.data for one in session.cached.read(["/a"]).values()] == [b"1"]
        zk.expire_session(session._client.client_id)
        client.set("/a", b"2")

        def anew() -> bool:
            try:
                (found,) = session.cached.read(["/a"]).values()
            except UnreachableError:
                return False
            return found is not None and found.data == b"2"

        eventually(anew, "the new value", pause_s=0.1)
    finally:
        pool.close()


def test_an_answer_from_before_a_change_is_not_remembered_after_its_notice() -> None:
    changes = iter([True, False])
    asked: list[str] = []

    def ask(paths: Any, notice: Any) -> dict[str, bytes | None]:
        asked.extend(paths)
        if next(changes):
            notice(type("Event", (), {"path": "/a"}))
        return {"/a": b"old" if len(asked) == 1 else b"new"}

    memory = ZnodeCache(ask)
    assert memory.get(["/a"]) == {"/a": b"old"}
    assert memory.get(["/a"]) == {"/a": b"new"}
    assert memory.get(["/a"]) == {"/a": b"new"}
    assert asked == ["/a", "/a"]
