"""The commands of docs/how-to/back-up.md, with real brokers and a ZooKeeper of their own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.docs import blocks
from tests.support.broker import STEADY, Broker, Cluster, await_partitions, start_together
from tests.support.clients import committed, consume_all, create_topic, produce_all, settings

DOCUMENT = "docs/how-to/back-up.md"
SETTINGS = {**STEADY, "offsets.topic.replication.factor": "2", "offsets.topic.num.partitions": "1"}
FORMER = [b"former-%d" % number for number in range(50)]
LATER = [b"later-%d" % number for number in range(50)]


class Machine:
    """A cluster, and the folders that the commands of the document name."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.cluster = cluster
        self.backup = folder / "backup"
        self.backup.mkdir()
        self.zookeeper_data = folder / "zookeeper"

    def run(self, name: str, of: Broker | None = None) -> None:
        """Run the block of this name."""
        environment = {"BACKUP": str(self.backup), "ZOOKEEPER_DATA": str(self.zookeeper_data)}
        if of is not None:
            environment |= {"LOG_DIR": str(of.log_dir), "ID": str(of.broker_id)}
        blocks.run(blocks.take(DOCUMENT, name), environment, self.backup)

    def stop(self) -> None:
        """Stop brokers, then ZooKeeper."""
        for one in self.cluster.brokers.values():
            assert one.terminate() == 0
        self.cluster.zookeeper.close()

    def start(self) -> None:
        """Start ZooKeeper, then brokers, and wait until they serve."""
        self.cluster.zookeeper.start()
        start_together(self.cluster.brokers.values())
        self.cluster.wait_for_members()

    def produce(self, topic: str, values: list[bytes]) -> None:
        produce_all(self.cluster.bootstrap, topic, values)

    def values(self, topic: str, count: int) -> set[bytes]:
        return set(consume_all(self.cluster.bootstrap, topic, 1, count))

    def commit(self, group: str, topic: str, offset: int) -> None:
        client = Consumer({**settings(self.cluster.bootstrap), "group.id": group})
        client.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        client.close()

    def committed(self, group: str, topic: str) -> int:
        client = Consumer({**settings(self.cluster.bootstrap), "group.id": group})
        (found,) = committed(client, [TopicPartition(topic, 0)])
        client.close()
        return int(found.offset)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Cluster(tmp_path, 2, SETTINGS, own_zookeeper=True) as cluster:
        create_topic(cluster.bootstrap, "kept", replicas=2)
        made = Machine(tmp_path, cluster)
        made.produce("kept", FORMER)
        made.commit("readers", "kept", 20)
        yield made


@pytest.mark.full(
    "tests/docs/test_back_up.py"
    "::test_an_older_copy_of_zookeeper_keeps_all_records_of_the_topics_that_it_knows"
)
def test_a_cluster_that_was_copied_at_rest_comes_back_whole(machine: Machine) -> None:
    machine.stop()
    machine.run("copy-zookeeper")
    for one in machine.cluster.brokers.values():
        machine.run("copy", one)
    machine.start()
    create_topic(machine.cluster.bootstrap, "new", replicas=2)
    machine.produce("kept", LATER)
    machine.stop()
    for one in machine.cluster.brokers.values():
        shutil.rmtree(one.log_dir)
        machine.run("restore", one)
    machine.run("restore-zookeeper")
    machine.start()
    await_partitions(machine.cluster, "kept", 1)
    await_partitions(machine.cluster, "new", 0)
    assert machine.values("kept", len(FORMER)) == set(FORMER)
    assert machine.committed("readers", "kept") == 20


def test_an_older_copy_of_zookeeper_keeps_all_records_of_the_topics_that_it_knows(
    machine: Machine,
) -> None:
    machine.run("copy-zookeeper-live")
    create_topic(machine.cluster.bootstrap, "new", replicas=2)
    machine.produce("kept", LATER)
    machine.produce("new", LATER)
    machine.commit("readers", "kept", 70)
    machine.stop()
    machine.run("restore-zookeeper")
    machine.start()
    await_partitions(machine.cluster, "kept", 1)
    assert machine.values("kept", len(FORMER) + len(LATER)) == {*FORMER, *LATER}
    assert machine.committed("readers", "kept") == 70
    await_partitions(machine.cluster, "new", 0)
    # A topic that the copy does not know: its records stay on the disks, also if it is made anew.
    brokers = machine.cluster.brokers.values()
    assert all(one.partition_folders("new") for one in brokers)
    create_topic(machine.cluster.bootstrap, "new", replicas=2)
    assert machine.values("new", 0) == set()
    for one in brokers:
        (stray,) = one.log_dir.glob("new-0*-stray")
        assert b"later-49" in (stray / "00000000000000000000.log").read_bytes()
