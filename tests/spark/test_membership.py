"""Membership against a real ZooKeeper."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from odradek.zk import consumers
from odradek.zk.znodes import TopicPartition
from odradek_spark import membership
from tests.support import zookeeper
from tests.support.broker import wait_until

GROUP = "g"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SESSION_MS = 2000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zookeeper.Server]:
    with zookeeper.Server(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


class Side:
    """One driver's client and member, in a chroot of the test's own."""

    def __init__(self, zookeeper_connect: str) -> None:
        self.failures: list[Exception] = []
        self.client = membership.connect(zookeeper_connect, SESSION_MS, 30)
        self.member = membership.Member(
            self.client, GROUP, "pod", {"t": 1}, "static", self.failures.append
        )

    def end(self) -> None:
        self.member.leave()
        self.client.stop()
        self.client.close()


@pytest.fixture
def side(server: zookeeper.Server, request: pytest.FixtureRequest) -> Iterator[Callable[[], Side]]:
    chroot = f"/{abs(hash(request.node.name))}"
    with server.client() as client:
        client.ensure_path(chroot)
    sides: list[Side] = []

    def make() -> Side:
        sides.append(Side(server.connect + chroot))
        return sides[-1]

    yield make
    for made in sides:
        made.end()


def owners(client: KazooClient) -> dict[str, str]:
    path = consumers.owners_path(GROUP, "t")
    if not client.exists(path):
        return {}
    return {name: client.get(f"{path}/{name}")[0].decode() for name in client.get_children(path)}


def offset(client: KazooClient, partition: TopicPartition) -> bytes:
    path = consumers.offset_path(GROUP, partition.topic, partition.partition)
    return bytes(client.get(path)[0])


def test_member_is_registered_and_owns_its_partitions_as_old_consumers_do(
    side: Callable[[], Side],
) -> None:
    one = side()
    one.member.join([T0, T1], patience_s=1)
    name = one.member.consumer_id
    assert name.startswith("g_pod-")
    path = consumers.consumer_id_path(GROUP, name)
    data, stat = one.client.get(path)
    registration = consumers.decode_consumer(path, data)
    assert (registration.subscription, registration.pattern) == ({"t": 1}, "static")
    assert stat.ephemeralOwner == one.client.client_id[0]
    assert owners(one.client) == {"0": f"{name}-0", "1": f"{name}-0"}
    assert one.member.members() == 1
    one.member.leave()
    assert owners(one.client) == {}
    assert one.member.members() == 0


def test_offsets_are_plain_decimals_and_are_read_back(side: Callable[[], Side]) -> None:
    one = side()
    one.member.join([T0, T1], patience_s=1)
    assert one.member.committed([T0, T1]) == {}
    one.member.commit({T0: 5, T1: 0}, deadline_s=10)
    one.member.commit({T0: 12, T1: 0}, deadline_s=10)
    assert (offset(one.client, T0), offset(one.client, T1)) == (b"12", b"0")
    assert one.member.committed([T0, T1]) == {T0: 12, T1: 0}


def test_more_partitions_than_one_transaction_holds_are_all_committed(
    side: Callable[[], Side],
) -> None:
    one = side()
    many = {TopicPartition("t", number): number * 3 for number in range(450)}
    one.member.join([], patience_s=1)
    one.member.commit(many, deadline_s=30)
    assert one.member.committed(many) == many


def test_partition_of_a_living_member_is_not_taken(side: Callable[[], Side]) -> None:
    one, two = side(), side()
    one.member.join([T1], patience_s=1)
    with pytest.raises(membership.OwnedElsewhereError, match=one.member.consumer_id):
        two.member.join([T0, T1], patience_s=1)
    assert owners(one.client) == {"1": f"{one.member.consumer_id}-0"}
    assert one.member.members() == 1


def test_partition_of_a_dead_member_is_taken_when_its_session_ends(
    side: Callable[[], Side],
) -> None:
    two = side()
    hosts = two.client.hosts[0]
    connect = f"{hosts[0]}:{hosts[1]}{two.client.chroot}"
    program = f"""
import time
from odradek.zk.znodes import TopicPartition
from odradek_spark import membership
client = membership.connect({connect!r}, {SESSION_MS}, 30)
member = membership.Member(client, {GROUP!r}, "pod", {{"t": 1}}, "static", print)
member.join([TopicPartition("t", 0)], patience_s=1)
print(member.consumer_id, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as dead:
        assert dead.stdout is not None
        name = dead.stdout.readline().decode().strip()
        dead.kill()
    assert owners(two.client) == {"0": f"{name}-0"}
    two.member.join([T0], patience_s=60)
    assert owners(two.client) == {"0": f"{two.member.consumer_id}-0"}


def test_member_registers_again_after_its_session_expired(
    server: zookeeper.Server, side: Callable[[], Side]
) -> None:
    one, watcher = side(), side()
    one.member.join([T0], patience_s=1)
    before = one.client.client_id
    server.expire_session(before)
    wait_until(
        lambda: one.client.client_id not in (None, before) and owners(watcher.client) != {},
        "the member owns its partition again",
    )
    path = consumers.consumer_id_path(GROUP, one.member.consumer_id)
    wait_until(lambda: watcher.client.exists(path) is not None, "the member is registered again")
    assert watcher.client.exists(path).ephemeralOwner == one.client.client_id[0]
    one.member.commit({T0: 3}, deadline_s=30)
    assert offset(watcher.client, T0) == b"3"
    assert one.failures == []


def test_overtaken_member_cannot_commit_and_is_told(
    server: zookeeper.Server, side: Callable[[], Side]
) -> None:
    one, two = side(), side()
    one.member.join([T0], patience_s=1)
    one.member.commit({T0: 3}, deadline_s=10)
    # Another driver has the partition by the time that the first one is connected again.
    name = consumers.consumer_id_path(GROUP, one.member.consumer_id)
    owner = consumers.owner_path(GROUP, "t", 0)
    with_other = two.client.transaction()
    with_other.delete(name)
    with_other.delete(owner)
    with_other.create(owner, consumers.encode_owner("other", 0))
    with_other.commit()
    with pytest.raises(membership.OwnedElsewhereError, match="other"):
        one.member.commit({T0: 9}, deadline_s=10)
    assert offset(two.client, T0) == b"3"
    server.expire_session(one.client.client_id)
    wait_until(lambda: bool(one.failures), "the member is told that it is overtaken")
    assert isinstance(one.failures[0], membership.OwnedElsewhereError)


def test_commit_waits_for_a_zookeeper_that_restarts(tmp_path: Path) -> None:
    with zookeeper.Server(tmp_path) as server:
        one = Side(server.connect)
        try:
            one.member.join([T0], patience_s=1)
            server.kill()
            with pytest.raises(membership.CommitError):
                one.member.commit({T0: 1}, deadline_s=0.5)
            server.start()
            one.member.commit({T0: 2}, deadline_s=60)
            assert offset(one.client, T0) == b"2"
        finally:
            one.end()


def test_offset_node_that_somebody_deleted_is_made_again(side: Callable[[], Side]) -> None:
    one = side()
    one.member.join([T0], patience_s=1)
    one.member.commit({T0: 3}, deadline_s=10)
    one.client.delete(consumers.offset_path(GROUP, "t", 0))
    one.member.commit({T0: 4}, deadline_s=10)
    assert offset(one.client, T0) == b"4"
