"""Group membership of the driver with a real ZooKeeper."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError

from odradek.values import BrokerId, TopicPartition
from odradek.zk import consumers, znodes
from odradek.zk.znodes import TopicAssignment
from odradek_spark import group_znodes, membership
from odradek_spark.errors import FencedError
from odradek_spark.kafka_offsets import KafkaOffsets
from tests.support import zookeeper
from tests.support.broker import wait_until

GROUP = "g"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
# Longer than the pauses of a busy machine.
SESSION_MS = 20_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zookeeper.Server]:
    with zookeeper.Server(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


class Side:
    """One driver's ZooKeeper client and membership, in the test's own chroot."""

    def __init__(
        self,
        zookeeper_connect: str,
        name: str = "pod",
        pattern: str | None = None,
        kafka: KafkaOffsets | None = None,
    ) -> None:
        self.client = group_znodes.connect(zookeeper_connect, SESSION_MS, 60)
        subscription = {pattern: 1} if pattern else {"t": 1}
        kind = "white_list" if pattern else "static"
        self.member = membership.GroupMembership(
            self.client, GROUP, name, subscription, kind, kafka
        )
        self.stop = threading.Event()

    def join(self, patience_s: float = 120) -> frozenset[TopicPartition]:
        """Register and acquire the assignment."""
        self.member.join()
        return self.take(patience_s)

    def take(self, patience_s: float = 120) -> frozenset[TopicPartition]:
        """Acquire the current assignment."""
        return self.member.acquire_assignment(patience_s, self.stop)

    def end(self) -> None:
        self.stop.set()
        self.member.leave()
        self.client.stop()
        self.client.close()


def set_topic(client: KazooClient, topic: str, partitions: int) -> None:
    """Write the topic's znode with this many partitions, as the controller does."""
    replicas = {number: (BrokerId(1),) for number in range(partitions)}
    data = znodes.encode_topic(TopicAssignment(replicas))
    path = znodes.topic_path(topic)
    if client.exists(path):
        client.set(path, data)
    else:
        client.create(path, data, makepath=True)


@pytest.fixture
def side(server: zookeeper.Server, request: pytest.FixtureRequest) -> Iterator[Callable[..., Side]]:
    chroot = f"/{abs(hash(request.node.name))}"
    with server.client() as client:
        client.ensure_path(chroot)
    with server.client(chroot) as client:
        set_topic(client, "t", 2)
    sides: list[Side] = []

    def make(
        name: str = "pod", pattern: str | None = None, kafka: KafkaOffsets | None = None
    ) -> Side:
        sides.append(Side(server.connect + chroot, name, pattern, kafka))
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
    side: Callable[..., Side],
) -> None:
    one = side()
    assert one.join() == {T0, T1}
    assert not one.member.others_own
    name = one.member.consumer_id
    assert name.startswith("g_pod-")
    path = consumers.consumer_id_path(GROUP, name)
    data, stat = one.client.get(path)
    registration = consumers.decode_consumer(path, data)
    assert (registration.subscription, registration.pattern) == ({"t": 1}, "static")
    assert stat.ephemeralOwner == one.client.client_id[0]
    assert owners(one.client) == {"0": f"{name}-0", "1": f"{name}-0"}
    assert one.member.member_count() == 1
    one.member.leave()
    assert owners(one.client) == {}
    assert one.member.member_count() == 0


def test_offsets_that_outlived_their_topic_are_known_until_they_are_written_again(
    side: Callable[..., Side],
) -> None:
    one = side()
    one.join()
    one.member.commit({T0: 5, T1: 7}, deadline_s=120)
    assert one.member.former_commits([T0, T1]) == set()
    one.client.delete(znodes.topic_path("t"))
    assert one.member.former_commits([T0, T1]) == set()
    set_topic(one.client, "t", 2)
    assert one.member.former_commits([T0, T1]) == {T0, T1}
    one.client.set(consumers.offset_path(GROUP, "t", 1), b"7")
    assert one.member.former_commits([T0, T1]) == {T0}


def test_age_of_commits_takes_one_look_at_each_topic(
    side: Callable[..., Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = side()
    one.join()
    one.member.commit({T0: 5, T1: 7}, deadline_s=120)
    looks: list[str] = []
    stat = group_znodes.GroupZnodes._stat

    def note(of_group: group_znodes.GroupZnodes, path: str) -> object:
        looks.append(path)
        return stat(of_group, path)

    monkeypatch.setattr(group_znodes.GroupZnodes, "_stat", note)
    assert one.member.former_commits([T0, T1]) == set()
    offset_paths = [consumers.offset_path(GROUP, "t", number) for number in (0, 1)]
    assert sorted(looks) == sorted([znodes.topic_path("t"), *offset_paths])


def test_member_that_could_not_register_does_so_when_it_takes_its_share(
    side: Callable[..., Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = side()
    with monkeypatch.context() as patched:
        patched.setattr(group_znodes, "_CALL_TIMEOUT_S", 0)
        one.member.join()
    assert one.take() == {T0, T1}
    assert one.member.member_count() == 1


def test_members_share_by_range_and_a_newcomer_waits_for_what_is_given_up(
    side: Callable[..., Side],
) -> None:
    one, two, three = side("a"), side("b"), side("c")
    set_topic(one.client, "t", 4)
    assert len(one.join()) == 4
    two.member.join()
    wait_until(one.member.changed.is_set, "the first one is told")
    assert not one.member.is_assignment_current()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(two.take)
        assert one.take() == {T0, T1}
        assert waiting.result(120) == {TopicPartition("t", 2), TopicPartition("t", 3)}
        three.member.join()
        last = pool.submit(three.take)
        assert one.take() == {T0, T1}
        assert two.take() == {TopicPartition("t", 2)}
        assert last.result(120) == {TopicPartition("t", 3)}
    names = [each.member.consumer_id for each in (one, two, three)]
    wanted = dict(zip("0123", (names[0], names[0], names[1], names[2]), strict=True))
    assert owners(one.client) == {part: f"{name}-0" for part, name in wanted.items()}


def test_claim_without_an_answer_does_not_keep_the_partition_from_its_next_owner(
    side: Callable[..., Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = side("a"), side("b")
    claim = group_znodes.GroupZnodes.claim
    lost: list[TopicPartition] = []

    def claim_and_lose_the_answer(
        of_group: group_znodes.GroupZnodes, partition: TopicPartition
    ) -> bool:
        is_mine = claim(of_group, partition)
        if partition == T1 and not lost:
            lost.append(partition)
            two.member.join()
            raise ConnectionLoss
        return is_mine

    monkeypatch.setattr(group_znodes.GroupZnodes, "claim", claim_and_lose_the_answer)
    assert one.join() == {T0}
    assert owners(one.client) == {"0": f"{one.member.consumer_id}-0"}
    assert two.take() == {T1}


def test_new_partitions_and_matching_topics_change_the_share(side: Callable[..., Side]) -> None:
    one = side(pattern="t|new.*")
    assert one.join() == {T0, T1}
    set_topic(one.client, "t", 3)
    wait_until(one.member.changed.is_set, "more partitions are noticed")
    assert len(one.take()) == 3
    set_topic(one.client, "news", 1)
    wait_until(one.member.changed.is_set, "a new topic is noticed")
    assert TopicPartition("news", 0) in one.take()
    assert one.member.topics == ("news", "t")
    set_topic(one.client, "other", 1)
    wait_until(one.member.changed.is_set, "any new topic is looked at")
    assert one.member.is_assignment_current()
    one.client.delete(znodes.topic_path("news"))
    wait_until(one.member.changed.is_set, "a deletion is noticed")
    assert len(one.take()) == 3


def test_looks_at_the_group_leave_one_watch_per_znode(side: Callable[..., Side]) -> None:
    one = side(pattern="t")
    one.join()
    for _ in range(5):
        one.member.target_assignment()
    kept = [
        watches
        for kind in ("_data_watchers", "_child_watchers")
        for watches in getattr(one.client, kind).values()
    ]
    assert {len(watches) for watches in kept} == {1}


def test_member_knows_whether_there_is_anything_beside_its_share(
    side: Callable[..., Side],
) -> None:
    one, two, three = side("a"), side("b"), side("c")
    for each in (one, two, three):
        each.member.join()
    assert three.member.target_assignment() == set()
    assert three.member.others_own
    assert one.member.target_assignment() == {T0}
    assert one.member.others_own
    one.client.delete(znodes.topic_path("t"))
    assert one.member.target_assignment() == set()
    assert not one.member.others_own


def test_threads_of_old_consumers_count_in_the_shares(side: Callable[..., Side]) -> None:
    one = side("b")
    set_topic(one.client, "t", 7)
    registration = consumers.ConsumerRegistration({"t": 2}, "static", 1)
    one.client.create(
        consumers.consumer_id_path(GROUP, "g_a"),
        consumers.encode_consumer(registration),
        makepath=True,
    )
    # Threads g_a-0 and g_a-1 come first: 3, 2 and 2 partitions.
    assert one.join() == {TopicPartition("t", 5), TopicPartition("t", 6)}


def test_offsets_are_plain_decimals_and_are_read_back(side: Callable[..., Side]) -> None:
    one = side()
    one.join()
    assert one.member.committed([T0, T1]) == {}
    assert not one.member.has_offsets("t")
    one.member.commit({T0: 5, T1: 0}, deadline_s=60)
    one.member.commit({T0: 12, T1: 0}, deadline_s=60)
    assert (offset(one.client, T0), offset(one.client, T1)) == (b"12", b"0")
    assert one.member.committed([T0, T1]) == {T0: 12, T1: 0}
    assert one.member.has_offsets("t")


def test_more_partitions_than_one_transaction_holds_are_all_committed(
    side: Callable[..., Side],
) -> None:
    one = side()
    many = {TopicPartition("t", number): number * 3 for number in range(450)}
    set_topic(one.client, "t", 450)
    one.join()
    one.member.commit(many, deadline_s=60)
    assert one.member.committed(many) == many


def test_partition_of_another_member_is_neither_taken_nor_committed(
    side: Callable[..., Side],
) -> None:
    one = side()
    owner = consumers.owner_path(GROUP, "t", 1)
    one.client.create(owner, b"stranger-0", makepath=True)
    with pytest.raises(membership.OwnedElsewhereError, match="t-1 of group g is owned by stranger"):
        one.join(patience_s=1)
    assert owners(one.client) == {"1": "stranger-0"}
    with pytest.raises(membership.OwnershipLostError):
        one.member.commit({T1: 3}, deadline_s=60)


def test_garbage_among_the_members_is_named(side: Callable[..., Side]) -> None:
    one = side()
    one.client.create(consumers.consumer_id_path(GROUP, "g_bad"), b"{", makepath=True)
    with pytest.raises(membership.OwnedElsewhereError, match="g_bad: is not JSON"):
        one.join(patience_s=1)


def test_partitions_of_a_dead_member_are_taken_when_its_session_ends(
    server: zookeeper.Server, side: Callable[..., Side]
) -> None:
    two = side()
    hosts = two.client.hosts[0]
    connect = f"{hosts[0]}:{hosts[1]}{two.client.chroot}"
    program = f"""
import threading, time
from odradek_spark import group_znodes, membership
from odradek_spark.errors import FencedError
from odradek_spark.kafka_offsets import KafkaOffsets
client = group_znodes.connect({connect!r}, {SESSION_MS}, 60)
member = membership.GroupMembership(client, {GROUP!r}, "pod", {{"t": 1}}, "static")
member.join()
member.acquire_assignment(120, threading.Event())
session, password = client.client_id
print(member.consumer_id, session, password.hex(), flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as dead:
        assert dead.stdout is not None
        name, session, password = dead.stdout.readline().decode().split()
        dead.kill()
    assert owners(two.client) == {"0": f"{name}-0", "1": f"{name}-0"}
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(two.join)
        wait_until(lambda: two.member.member_count() == 2, "the other one has joined")
        server.expire_session((int(session), bytes.fromhex(password)))
        assert waiting.result(120) <= {T0, T1}
    # If the session ended between the look at the members and the claim, there is a second look.
    wait_until(lambda: two.take() == {T0, T1}, "all partitions are taken")
    assert owners(two.client) == dict.fromkeys("01", f"{two.member.consumer_id}-0")


def test_member_keeps_its_share_over_an_expired_session_that_nobody_used(
    server: zookeeper.Server, side: Callable[..., Side]
) -> None:
    one, watcher = side(), side()
    one.join()
    one.member.commit({T0: 2}, deadline_s=60)
    before = one.client.client_id
    server.expire_session(before)
    wait_until(
        lambda: one.client.connected and one.client.client_id not in (None, before),
        "the member has a new session",
    )
    wait_until(one.member.changed.is_set, "the member is told")
    assert one.member.is_assignment_current()
    path = consumers.consumer_id_path(GROUP, one.member.consumer_id)
    assert watcher.client.exists(path).ephemeralOwner == one.client.client_id[0]
    assert owners(watcher.client) == dict.fromkeys("01", f"{one.member.consumer_id}-0")
    one.member.commit({T0: 3}, deadline_s=60)
    assert offset(watcher.client, T0) == b"3"


@pytest.mark.parametrize("trace", ["owner", "offset"])
def test_overtaken_member_cannot_commit(side: Callable[..., Side], trace: str) -> None:
    one, two = side(), side()
    one.join()
    one.member.commit({T0: 3}, deadline_s=60)
    # What is left when the session ended and another member took over for a while.
    away = two.client.transaction()
    away.delete(consumers.consumer_id_path(GROUP, one.member.consumer_id))
    away.delete(consumers.owner_path(GROUP, "t", 0))
    if trace == "owner":
        owner = consumers.owner_path(GROUP, "t", 0)
        away.create(owner, consumers.encode_owner("other", 0))
    else:
        away.set_data(consumers.offset_path(GROUP, "t", 0), b"5")
    away.commit()
    with pytest.raises(membership.OwnershipLostError):
        one.member.commit({T0: 9}, deadline_s=60)
    assert offset(two.client, T0) == (b"3" if trace == "owner" else b"5")
    assert one.member.owned == set()
    assert not one.member.is_assignment_current()
    assert owners(two.client) == ({"0": "other-0"} if trace == "owner" else {})


def test_member_that_has_not_committed_yet_loses_a_share_with_offsets_that_it_does_not_know(
    side: Callable[..., Side],
) -> None:
    one = side()
    one.join()
    path = consumers.offset_path(GROUP, "t", 0)
    one.client.create(path, b"5", makepath=True)
    one.client.delete(consumers.consumer_id_path(GROUP, one.member.consumer_id))
    with pytest.raises(membership.OwnershipLostError):
        one.member.commit({T0: 4}, deadline_s=60)
    assert offset(one.client, T0) == b"5"


@pytest.mark.parametrize("trace", ["group", "member"])
def test_member_of_a_group_that_somebody_deleted_registers_again(
    side: Callable[..., Side], trace: str
) -> None:
    one = side()
    one.join()
    one.member.commit({T0: 3}, deadline_s=60)
    path = consumers.consumer_id_path(GROUP, one.member.consumer_id)
    deleted = consumers.group_path(GROUP) if trace == "group" else path
    one.client.delete(deleted, recursive=True)
    with pytest.raises(group_znodes.TRANSIENT):
        one.member.target_assignment()
    assert one.member.is_assignment_current()
    assert one.client.exists(path)
    assert owners(one.client) == dict.fromkeys("01", f"{one.member.consumer_id}-0")
    one.member.commit({T0: 4}, deadline_s=60)
    assert offset(one.client, T0) == b"4"


class Coordinator(KafkaOffsets):
    """A coordinator that records commits, and has the offsets in `stored`."""

    def __init__(self) -> None:
        self.stored: dict[TopicPartition, int] = {}
        self.commits: list[dict[TopicPartition, int]] = []

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {part: self.stored[part] for part in partitions if part in self.stored}

    def commit(self, ends: Mapping[TopicPartition, int]) -> None:
        self.stored.update(ends)
        self.commits.append(dict(ends))


def test_offsets_that_expire_at_the_coordinator_are_renewed_by_the_registered_member(
    side: Callable[..., Side],
) -> None:
    kafka = Coordinator()
    one = side(kafka=kafka)
    one.join()
    one.member.commit({T0: 3, T1: 4}, deadline_s=60)
    one.member.commit({T0: 3, T1: 5}, deadline_s=60)
    one.member.renew_offsets()
    assert kafka.commits == [{T0: 3, T1: 4}, {T1: 5}, {T0: 3, T1: 5}]
    # One is gone already, and the other one was moved by somebody.
    kafka.stored = {T1: 0}
    one.member.renew_offsets()
    assert kafka.stored == {T0: 3, T1: 0}
    one.client.delete(consumers.consumer_id_path(GROUP, one.member.consumer_id))
    with pytest.raises(NoNodeError):
        one.member.renew_offsets()


def test_commit_waits_for_a_zookeeper_that_restarts(tmp_path: Path) -> None:
    with zookeeper.Server(tmp_path) as server:
        one = Side(server.connect)
        try:
            set_topic(one.client, "t", 2)
            one.join()
            server.kill()
            with pytest.raises(membership.CommitError):
                one.member.commit({T0: 1}, deadline_s=0.5)
            server.start()
            one.member.commit({T0: 2}, deadline_s=60)
            assert offset(one.client, T0) == b"2"
        finally:
            one.end()


def test_commit_ends_in_time_though_the_connection_goes_after_the_look_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zookeeper.Server(tmp_path) as server:
        one = Side(server.connect)

        def lose_the_connection() -> None:
            server.kill()
            wait_until(lambda: not one.client.connected, "the client knows that the server is gone")

        try:
            set_topic(one.client, "t", 2)
            one.join()
            with monkeypatch.context() as patched:
                patched.setattr(group_znodes, "_CALL_TIMEOUT_S", 0.5)
                patched.setattr(one.member, "_restore", lose_the_connection)
                with pytest.raises(membership.CommitError):
                    one.member.commit({T0: 1}, deadline_s=0.5)
            server.start()
            one.member.commit({T0: 2}, deadline_s=120)
            assert offset(one.client, T0) == b"2"
        finally:
            one.end()


def test_offset_node_that_somebody_deleted_is_made_again(side: Callable[..., Side]) -> None:
    one = side()
    one.join()
    one.member.commit({T0: 3}, deadline_s=60)
    one.client.delete(consumers.offset_path(GROUP, "t", 0))
    one.member.commit({T0: 4}, deadline_s=60)
    assert offset(one.client, T0) == b"4"


# --- epochs of drivers ----------------------------------------------------------------------------


def test_later_driver_ends_the_right_of_the_earlier_one_to_write(
    side: Callable[..., Side],
) -> None:
    one, two = side("a"), side("b")
    one.member.take_over()
    one.join()
    one.member.commit({T0: 1, T1: 1}, deadline_s=60)
    one.member.require_owned({T0, T1}, deadline_s=60)
    two.member.take_over()
    assert two.member.epoch > one.member.epoch
    path = consumers.epoch_path(GROUP)
    assert consumers.decode_epoch(path, two.client.get(path)[0]) == two.member.epoch
    for write in (
        lambda: one.member.commit({T0: 2}, deadline_s=60),
        lambda: one.member.require_owned({T0}, deadline_s=60),
        lambda: one.member.record_topics(one.member.incarnations(["t"]), ()),
        one.member.target_assignment,
    ):
        with pytest.raises(FencedError, match=f"its epoch is {two.member.epoch}"):
            write()
    assert offset(one.client, T0) == b"1"
    # Old consumers of the group have no epoch, and commit as before.
    three = side("c")
    three.member.join()
    assert three.member.epoch == 0
    three.member.require_owned((), deadline_s=60)


def test_driver_that_is_paused_between_check_and_commit_commits_nothing(
    side: Callable[..., Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = side("a"), side("b")
    one.member.take_over()
    one.join()
    one.member.commit({T0: 1}, deadline_s=60)
    check = group_znodes.GroupZnodes.require_epoch

    def check_and_pause(znodes_of: group_znodes.GroupZnodes) -> None:
        check(znodes_of)
        if two.member.epoch == 0:
            two.member.take_over()

    monkeypatch.setattr(group_znodes.GroupZnodes, "require_epoch", check_and_pause)
    with pytest.raises(FencedError):
        one.member.commit({T0: 2}, deadline_s=60)
    assert two.member.epoch > one.member.epoch
    assert offset(one.client, T0) == b"1"


def test_group_that_is_deleted_and_made_anew_stays_above_its_former_epochs(
    side: Callable[..., Side],
) -> None:
    one, two, three = side("a"), side("b"), side("c")
    one.member.take_over()
    one.join()
    one.client.delete(consumers.epoch_path(GROUP))
    with pytest.raises(FencedError, match="was deleted"):
        one.member.require_owned({T0}, deadline_s=60)
    two.member.take_over()
    three.member.take_over()
    assert one.member.epoch <= two.member.epoch < three.member.epoch


def test_group_of_a_restored_zookeeper_goes_on_above_its_former_epochs(
    side: Callable[..., Side],
) -> None:
    one, two = side("a"), side("b")
    one.member.take_over()
    path = consumers.epoch_path(GROUP)
    # The backup is older than a thousand starts.
    one.client.set(path, consumers.encode_epoch(one.member.epoch - 1000))
    two.member.take_over()
    assert two.member.epoch >= one.member.epoch
    one.client.set(path, consumers.encode_epoch(two.member.epoch + 5000))
    side("c").member.take_over()
    assert consumers.decode_epoch(path, one.client.get(path)[0]) == two.member.epoch + 5001


def test_offset_below_0_is_no_commit_and_is_replaced_by_one(side: Callable[..., Side]) -> None:
    one = side()
    path = consumers.offset_path(GROUP, "t", 0)
    one.client.create(path, b"-1", makepath=True)
    one.join()
    assert one.member.committed([T0]) == {}
    one.member.commit({T0: 4}, deadline_s=60)
    assert offset(one.client, T0) == b"4"
