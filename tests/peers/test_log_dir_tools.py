"""Moves between the directories of brokers: Kafka's ReassignPartitionsCommand with `log_dirs`, and
moves that Kafka began or ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.admin import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from odradek.zk import znodes
from tests.support.broker import STEADY, Broker, Cluster, wait_until
from tests.support.clients import consume_all, produce_all
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_peer import Tools
from tests.support.traffic import Traffic

REASSIGN = "kafka.admin.ReassignPartitionsCommand"
LOG_DIRS = "kafka.admin.LogDirsCommand"
LIMIT = "replica.alter.log.dirs.io.max.bytes.per.second"
SLOW, FAST = "20000", "500000000"
PIECE = "20000"


class TwoDisks(Broker):
    """A broker with two log directories."""

    def __init__(
        self, directory: Path, broker_id: int, connect: str, settings: Mapping[str, str]
    ) -> None:
        self.disks = [str(directory / f"broker-{broker_id}-disk-{number}") for number in (1, 2)]
        super().__init__(
            directory, broker_id, connect, {**settings, "log.dirs": ",".join(self.disks)}
        )

    def disk_of(self, folder: str) -> list[str]:
        """The directories that have this folder."""
        return [disk for disk in self.disks if (Path(disk) / folder).is_dir()]

    def other_disk(self, folder: str) -> str:
        [disk] = self.disk_of(folder)
        return next(one for one in self.disks if one != disk)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers with two log directories each."""
    settings = {
        **STEADY,
        "replica.fetch.max.bytes": PIECE,
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "2",
    }
    directory = tmp_path_factory.mktemp("cluster")
    kinds = dict.fromkeys((1, 2), TwoDisks)
    with Cluster(directory, brokers=2, settings=settings, kinds=kinds) as running:
        yield running


def disks(cluster: Cluster, number: int) -> TwoDisks:
    broker = cluster.brokers[number]
    assert isinstance(broker, TwoDisks)
    return broker


def make(cluster: Cluster, topic: str, replicas: Sequence[Sequence[int]], records: int) -> None:
    """Create a topic whose partition 0 has so many records of 10 kB."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    shape = NewTopic(topic, len(replicas), replica_assignment=[list(one) for one in replicas])
    admin.create_topics([shape])[topic].result(120)
    settings = {"enable.idempotence": True, "batch.size": PIECE, "log_level": 0}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
    for _ in range(records):
        producer.produce(topic, bytes(10_000), partition=0)
        producer.poll(0)
    assert producer.flush(120) == 0


def wanted(
    tools: Tools, topic: str, replicas: Sequence[Sequence[int]], places: Sequence[Sequence[str]]
) -> Path:
    """The file that asks for these replicas in these directories."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": list(one), "log_dirs": list(place)}
        for number, (one, place) in enumerate(zip(replicas, places, strict=True))
    ]
    return tools.file(f"{topic}.json", json.dumps({"version": 1, "partitions": partitions}))


def limits(cluster: Cluster) -> set[str]:
    """The limits of moves between directories that ZooKeeper has."""
    with cluster.zookeeper.client() as client:
        paths = [path for path in map(znodes.broker_config_path, "12") if client.exists(path)]
        entries = [znodes.decode_config(path, client.get(path)[0]) for path in paths]
    return {one[LIMIT] for one in entries if LIMIT in one}


@pytest.mark.full(
    "tests/peers/test_log_dir_tools.py::test_a_move_is_cancelled_and_refused_where_it_cannot_be",
    "tests/replica/test_directory_moves.py::test_records_are_taken_and_served_all_the_while",
)
def test_replicas_move_between_directories_under_load_throttled_and_verified(
    cluster: Cluster, tools: Tools
) -> None:
    make(cluster, "moved", [[1, 2], [2, 1]], records=500)
    one, two = disks(cluster, 1), disks(cluster, 2)
    wait_until(lambda: bool(one.disk_of("moved-0") and two.disk_of("moved-0")), "folders")
    targets = [
        [one.other_disk("moved-0"), two.other_disk("moved-0")],
        ["any", one.other_disk("moved-1")],
    ]
    file = wanted(tools, "moved", [[1, 2], [2, 1]], targets)
    at = (REASSIGN, "--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", file)
    with Traffic(cluster, "moved") as traffic:
        said = tools.run(*at, "--execute", "--replica-alter-log-dirs-throttle", SLOW)
        assert f"The replica-alter-dir throttle limit was set to {SLOW} B/s" in said
        assert "Successfully started log directory moves for: moved-0-1,moved-1-1,moved-0-2" in said
        traffic.await_progress("while replicas move")
        slow = tools.run(*at, "--verify")
        assert "Reassignment of replica moved-0-1 is still in progress." in slow
        assert limits(cluster) == {SLOW}
        described = described_by(tools, cluster, "moved")
        assert (one.other_disk("moved-0"), "moved-0", True) in described
        tools.run(*at, "--execute", "--additional", "--replica-alter-log-dirs-throttle", FAST)
        wait_until(
            lambda: (
                one.disk_of("moved-0") == [targets[0][0]]
                and two.disk_of("moved-0") == [targets[0][1]]
                and one.disk_of("moved-1") == [targets[1][1]]
            ),
            "the replicas have moved",
        )
        traffic.end()
    assert sum(traffic.read.values()) == len(traffic.acknowledged) + 500
    verified = tools.run(*at, "--verify")
    for replica in ("moved-0-1", "moved-0-2", "moved-1-1"):
        assert f"Reassignment of replica {replica} completed successfully." in verified
    assert limits(cluster) == set()
    assert (targets[0][0], "moved-0", False) in described_by(tools, cluster, "moved")


def described_by(tools: Tools, cluster: Cluster, topic: str) -> set[tuple[str, str, bool]]:
    """Directory, partition and whether it is a future log that lags, as Kafka's tool tells them."""
    said = tools.run(
        *(LOG_DIRS, "--bootstrap-server", cluster.bootstrap, "--describe", "--topic-list", topic)
    )
    [answer] = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return {
        (place["logDir"], partition["partition"], partition["offsetLag"] > 0)
        if partition["isFuture"]
        else (place["logDir"], partition["partition"], False)
        for broker in answer["brokers"]
        for place in broker["logDirs"]
        for partition in place["partitions"]
    }


def test_a_replica_that_moves_to_another_broker_goes_to_the_directory_that_was_named(
    cluster: Cluster, tools: Tools
) -> None:
    make(cluster, "away", [[1], [1], [1]], records=10)
    two = disks(cluster, 2)
    file = wanted(tools, "away", [[2], [2], [2]], [[two.disks[1]]] * 3)
    at = (REASSIGN, "--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", file)
    said = tools.run(*at, "--execute", "--timeout", "60000")
    assert "Successfully started log directory move" in said
    for partition in range(3):
        folder = f"away-{partition}"
        wait_until(lambda folder=folder: two.disk_of(folder) == [two.disks[1]], folder)  # type: ignore[misc]
    under_way = (REASSIGN, "--bootstrap-server", cluster.bootstrap, "--list")
    wait_until(
        lambda: "No partition reassignments found." in tools.run(*under_way), "the move has ended"
    )


def test_a_move_is_cancelled_and_refused_where_it_cannot_be(cluster: Cluster, tools: Tools) -> None:
    make(cluster, "cancelled", [[1]], records=200)
    one = disks(cluster, 1)
    [here] = one.disk_of("cancelled-0")
    file = wanted(tools, "cancelled", [[1]], [[one.other_disk("cancelled-0")]])
    at = (REASSIGN, "--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", file)
    tools.run(*at, "--execute", "--replica-alter-log-dirs-throttle", "1000")
    # The tool asks for the current directory.
    said = tools.run(*at, "--cancel")
    assert "Successfully started log directory move for: cancelled-0-1" in said
    assert one.disk_of("cancelled-0") == [here]
    verified = tools.run(*at, "--verify", statuses=[0, 1])
    assert "is not being moved" in verified
    nowhere = wanted(tools, "cancelled", [[1]], [["/nowhere"]])
    at = (*at[:-1], nowhere)
    refused = tools.run(*at, "--execute", statuses=[1])
    assert "LogDirNotFoundException" in refused


def ask(broker: Broker, topic: str, path: str) -> None:
    """Ask one broker to move its replica of a topic's partition 0."""

    async def call() -> None:
        client = PeerClient("127.0.0.1", broker.port, "asker")
        wanted_topic = AlterReplicaLogDirTopic(name=topic, partitions=[0])
        request = AlterReplicaLogDirsRequest(
            dirs=[AlterReplicaLogDir(path=path, topics=[wanted_topic])]
        )
        answer = await client.call(request, 1, 60_000)
        await client.close()
        assert [one.error_code for one in answer.results[0].partitions] == [ErrorCode.NONE]

    asyncio.run(call())


@pytest.mark.full("tests/peers/test_swap.py::test_each_serves_what_the_other_wrote")
def test_kafka_and_this_broker_go_on_with_each_others_moves(tmp_path: Path) -> None:
    disks = [tmp_path / "disk-1", tmp_path / "disk-2"]
    settings = {
        **STEADY,
        "log.dirs": ",".join(map(str, disks)),
        "replica.fetch.max.bytes": PIECE,
        "segment.bytes": "200000",
    }
    cluster = Cluster(tmp_path, settings=settings)
    ours = cluster.brokers[1]
    kafka = KafkaBroker(tmp_path, 1, cluster.zookeeper.connect, settings, port=ours.port)
    folder = "passed-on-0"

    def target() -> Path:
        return next(disk for disk in disks if not (disk / folder).exists())

    with cluster:
        try:
            make(cluster, "passed-on", [[1]], records=100)
            written = 100
            for former, following in ((ours, kafka), (kafka, ours)):
                former.terminate()
                former.start("--override", f"{LIMIT}={SLOW}")
                produce_all(cluster.bootstrap, "passed-on", [b"more"])
                written += 1
                place = target()
                ask(former, "passed-on", str(place))
                wait_until(
                    lambda place=place: any(  # type: ignore[misc]
                        log.stat().st_size for log in place.glob(f"{folder}.*-future/*.log")
                    ),
                    "something is copied",
                )
                former.kill()
                assert not (place / folder).exists()
                cluster.zookeeper.end_session_of(znodes.broker_path(1))
                following.start()
                wait_until(lambda place=place: (place / folder).exists(), "moved")  # type: ignore[misc]
                produce_all(cluster.bootstrap, "passed-on", [b"more"])
                written += 1
                found = consume_all(cluster.bootstrap, "passed-on", 1, written)
                assert found == [bytes(10_000)] * 100 + [b"more"] * (written - 100)
                assert len([disk for disk in disks if (disk / folder).exists()]) == 1
        finally:
            kafka.kill()
