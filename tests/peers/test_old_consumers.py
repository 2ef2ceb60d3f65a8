"""Consumers of Kafka 0.10.2 that balance through ZooKeeper, unmodified, and this project's members
beside them in one group (Z6-Z8, G1)."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from odradek.values import TopicPartition
from odradek.zk import consumers
from odradek_spark import group_znodes, membership
from tests.support import kafka_peer
from tests.support.broker import Cluster, wait_until
from tests.support.clients import create_topic, produce_all
from tests.support.kafka_peer import Tools
from tests.support.spark_driver import Driver

pytestmark = pytest.mark.timeout(1200)

PARTITIONS = 4
PATIENCE_S = 120
# Longer than a busy machine keeps a living member from being heard.
SESSION_MS = 30_000


@pytest.fixture(scope="module")
def old_tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    """Kafka 0.10.2's command-line tools."""
    return Tools(tmp_path_factory.mktemp("old-tools"), log_level="INFO", release=kafka_peer.OLD)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[KazooClient]:
    with cluster.zookeeper.client() as running:
        yield running


class OldConsumer:
    """A console consumer of Kafka 0.10.2 as a child process."""

    def __init__(self, tools: Tools, cluster: Cluster, folder: Path, group: str, name: str) -> None:
        self.member = f"{group}_{name}"
        self._zookeeper = cluster.zookeeper
        self._path = consumers.consumer_id_path(group, self.member)
        self._said = folder / f"{name}.log"
        properties = {
            "group.id": group,
            "consumer.id": name,
            "auto.commit.interval.ms": "300",
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            "zookeeper.connection.timeout.ms": "60000",
            "rebalance.backoff.ms": "500",
            "rebalance.max.retries": "120",
        }
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        settings = tools.file(f"{group}-{name}.properties", text)
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                tools.command(
                    *("kafka.tools.ConsoleConsumer", "--zookeeper", cluster.zookeeper.connect),
                    *("--topic", group, "--consumer.config", str(settings)),
                    # What goes to stdout waits in a buffer; what is logged does not.
                    *("--formatter", "kafka.tools.LoggingMessageFormatter"),
                ),
                stdout=subprocess.DEVNULL,
                stderr=said,
            )

    def values(self) -> list[str]:
        """The records it got."""
        return re.findall(r"key:\S+, value:(.*) \(\S+\)$", self._said.read_text(), re.MULTILINE)

    def kill(self) -> None:
        """SIGKILL it and end its session, for which the others would wait."""
        self.process.kill()
        self.process.wait()
        self._zookeeper.end_session_of(self._path)


class OurMember:
    """A member by the Spark driver's code that takes its share whenever the group changes."""

    def __init__(self, cluster: Cluster, group: str, name: str) -> None:
        self._client = group_znodes.connect(cluster.zookeeper.connect, SESSION_MS, 60)
        self.member = membership.GroupMembership(self._client, group, name, {group: 1}, "static")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self.member.join()
        self._thread.start()

    def _follow(self) -> None:
        while not self._stop.is_set():
            self.member.acquire_assignment(PATIENCE_S, self._stop)
            self.member.changed.wait()

    def leave(self) -> None:
        self._stop.set()
        while self._thread.is_alive():
            # Again: a member that looks at its group just now forgets what came before.
            self.member.changed.set()
            self._thread.join(0.1)
        self.member.leave()
        self._client.stop()
        self._client.close()


@pytest.fixture
def start(
    old_tools: Tools, cluster: Cluster, tmp_path: Path
) -> Iterator[Callable[[str, str], OldConsumer]]:
    made: list[OldConsumer] = []

    def make(group: str, name: str) -> OldConsumer:
        made.append(OldConsumer(old_tools, cluster, tmp_path, group, name))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def owners(client: KazooClient, group: str) -> dict[int, str]:
    """Member id by partition, for partitions that have an owner."""
    found = {}
    for partition in range(PARTITIONS):
        path = consumers.owner_path(group, group, partition)
        with contextlib.suppress(NoNodeError):
            found[partition] = consumers.decode_owner(path, client.get(path)[0])[0]
    return found


def committed(client: KazooClient, group: str) -> dict[int, int]:
    partitions = [TopicPartition(group, number) for number in range(PARTITIONS)]
    found = group_znodes.read_offsets(client, group, partitions)
    return {partition.partition: offset for partition, offset in found.items()}


def await_owners(client: KazooClient, group: str, *members: str) -> None:
    """Wait until the partitions are owned by these members, one name for each partition."""
    wanted = dict(enumerate(members))
    wait_until(lambda: owners(client, group) == wanted, f"owners are {members}", PATIENCE_S)


def test_old_and_new_members_share_a_group_by_the_same_rules(
    cluster: Cluster, client: KazooClient, start: Callable[[str, str], OldConsumer]
) -> None:
    group = "mixed"
    create_topic(cluster.bootstrap, group, PARTITIONS)
    first = start(group, "a")
    await_owners(client, group, *4 * [first.member])
    path = consumers.consumer_id_path(group, first.member)
    registration = consumers.decode_consumer(path, client.get(path)[0])
    assert (registration.subscription, registration.pattern) == ({group: 1}, "white_list")
    ours = OurMember(cluster, group, "m")
    name = ours.member.consumer_id
    try:
        await_owners(client, group, *2 * [first.member], *2 * [name])
        second = start(group, "z")
        # Four partitions on three consumers: the first has one more.
        await_owners(client, group, *2 * [first.member], name, second.member)
        first.kill()
        await_owners(client, group, *2 * [name], *2 * [second.member])
    finally:
        ours.leave()
    await_owners(client, group, *4 * [second.member])


def described(said: str, group: str, columns: Mapping[str, int]) -> dict[int, dict[str, str]]:
    rows = [line.split() for line in said.splitlines() if line.split()[:1] == [group]]
    return {
        int(row[columns["partition"]]): {name: row[at] for name, at in columns.items()}
        for row in rows
    }


@pytest.mark.full(
    "tests/peers/test_old_tools.py::test_old_consumers_read_what_old_and_new_producers_wrote"
)
def test_old_consumers_read_everything_though_one_is_killed_and_their_tools_show_it(
    cluster: Cluster,
    client: KazooClient,
    start: Callable[[str, str], OldConsumer],
    old_tools: Tools,
) -> None:
    group = "old"
    create_topic(cluster.bootstrap, group, PARTITIONS)
    for number in range(PARTITIONS):
        # The console consumer of a group without offsets begins at the end.
        client.create(consumers.offset_path(group, group, number), b"0", makepath=True)
    members = [start(group, "a"), start(group, "b")]
    first, second = members
    await_owners(client, group, *2 * [first.member], *2 * [second.member])
    values = [str(number) for number in range(400)]

    def produce(part: list[str]) -> None:
        produce_all(cluster.bootstrap, group, [value.encode() for value in part], PARTITIONS)

    def read() -> Counter[str]:
        return Counter(value for one in members for value in one.values())

    produce(values[:200])
    wait_until(lambda: set(read()) == set(values[:200]), "all is read", PATIENCE_S)
    wait_until(
        lambda: committed(client, group) == dict.fromkeys(range(PARTITIONS), 50),
        "offsets are committed",
        PATIENCE_S,
    )
    third = start(group, "c")
    members.append(third)
    await_owners(client, group, *2 * [first.member], second.member, third.member)
    first.kill()
    produce(values[200:])
    left = [*2 * [second.member], *2 * [third.member]]
    await_owners(client, group, *left)
    wait_until(lambda: set(read()) == set(values), "all is read", PATIENCE_S)
    wait_until(
        lambda: committed(client, group) == dict.fromkeys(range(PARTITIONS), 100),
        "offsets are committed",
        PATIENCE_S,
    )
    # What was committed before the crash is not read again.
    again = read()
    assert {again[value] for value in values[:200]} == {1}

    at = ("--zookeeper", cluster.zookeeper.connect)
    said = old_tools.run("kafka.tools.ConsumerOffsetChecker", *at, "--group", group)
    columns = {"partition": 2, "offset": 3, "end": 4, "lag": 5, "owner": 6}
    rows = described(said, group, columns)
    assert rows.keys() == set(range(PARTITIONS))
    for partition, row in rows.items():
        assert (row["offset"], row["end"], row["lag"]) == ("100", "100", "0")
        assert row["owner"] == f"{left[partition]}-0"
    groups = "kafka.admin.ConsumerGroupCommand"
    assert group in old_tools.run(groups, *at, "--list").split()
    said = old_tools.run(groups, *at, "--describe", "--group", group)
    columns = {"partition": 1, "offset": 2, "end": 3, "lag": 4, "owner": 5}
    rows = described(said, group, columns)
    assert rows.keys() == set(range(PARTITIONS))
    for partition, row in rows.items():
        assert (row["offset"], row["end"], row["lag"]) == ("100", "100", "0")
        assert row["owner"] == left[partition]


@pytest.mark.timeout(2400)
@pytest.mark.full(
    "tests/peers/test_old_consumers.py::test_old_and_new_members_share_a_group_by_the_same_rules"
)
def test_spark_driver_shares_its_group_with_an_old_consumer(
    cluster: Cluster, client: KazooClient, start: Callable[[str, str], OldConsumer], tmp_path: Path
) -> None:
    group = "job"
    driver = Driver(cluster, tmp_path, group)
    driver.session_ms = 30_000  # no share changes hands but as the test has it
    try:
        driver.produce(range(60))
        driver.start()
        driver.await_committed(60)
        [ours] = client.get_children(consumers.consumer_ids_path(group))
        assert owners(client, group) == {0: ours, 1: ours}
        # Its name comes before the driver's, so partition 0 is the old one's share.
        old = start(group, "a")
        await_owners(client, group, old.member, ours)
        driver.produce(range(60, 160))
        driver.await_committed(160)
        # It counts a record as read a moment before it shows it.
        wait_until(lambda: len(old.values()) + len(driver.rows()) >= 160, "all is shown")
        read_by_old = Counter(json.loads(value)["n"] for value in old.values())
        assert read_by_old
        assert Counter(driver.rows()) + read_by_old == Counter(range(160))
        old.kill()
        await_owners(client, group, ours, ours)
        driver.produce(range(160, 200))
        driver.await_committed(200)
        assert Counter(driver.rows()) + read_by_old == Counter(range(200))
        assert driver.terminate() == 0
        assert driver.registered() == []
    finally:
        driver.kill()
