"""The commands of docs/how-to/back-up.md, with real brokers and a ZooKeeper of their own."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from kazoo.client import KazooClient

from tests.docs import blocks
from tests.support.broker import (
    STEADY,
    Broker,
    Cluster,
    await_partitions,
    start_together,
    wait_until,
)
from tests.support.clients import committed, consume_all, create_topic, produce_all, settings

DOCUMENT = "docs/how-to/back-up.md"
SETTINGS = {**STEADY, "offsets.topic.replication.factor": "2", "offsets.topic.num.partitions": "1"}
FORMER = [b"former-%d" % number for number in range(50)]
LOST_WRITES = 300
LATER = [b"later-%d" % number for number in range(50)]
LAST = [b"last-%d" % number for number in range(50)]


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

    def produce(self, topic: str, values: list[bytes], **more: object) -> None:
        produce_all(self.cluster.bootstrap, topic, values, 1, **more)

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


class Writer:
    """Lets ZooKeeper write all the time, within its context."""

    def __init__(self, connect: str) -> None:
        self._client = KazooClient(connect)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._zxid = 0

    def _write(self) -> None:
        while not self._over.is_set():
            path = self._client.create("/busy/n", b"x" * 1000, sequence=True, makepath=True)
            self._zxid = self._client.exists(path).czxid

    def wait(self, zxid: int = 1, more: int = 0) -> None:
        """Wait until ZooKeeper has written this transaction, and so many more from now on."""
        until = max(zxid, self._zxid + more)
        wait_until(lambda: self._zxid > until, f"transaction {until}")

    def __enter__(self) -> Writer:
        self._client.start(60)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._client.stop()
        self._client.close()


def birth_of(topic: str, connect: str) -> int:
    """Return the transaction that created a topic."""
    client = KazooClient(connect)
    client.start(60)
    try:
        return int(client.exists(f"/brokers/topics/{topic}").czxid)
    finally:
        client.stop()
        client.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Cluster(tmp_path, 2, SETTINGS, own_zookeeper=True) as cluster:
        create_topic(cluster.bootstrap, "kept", replicas=2)
        made = Machine(tmp_path, cluster)
        made.produce("kept", FORMER)
        made.commit("readers", "kept", 20)
        yield made


@pytest.mark.full(
    "tests/replica/test_topic_identities.py"
    "::test_log_of_the_topic_is_adopted_and_says_what_the_znode_says"
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


@pytest.mark.full(
    "tests/replica/test_topic_identities.py"
    "::test_log_of_the_topic_is_adopted_and_says_what_the_znode_says"
)
def test_an_older_copy_of_zookeeper_keeps_all_records_of_the_topics_that_it_knows(
    machine: Machine,
) -> None:
    lose_zookeeper_and_restore_an_older_copy(machine)
    # The copy gives a producer id away that the log has.
    machine.produce("kept", LAST, **{"enable.idempotence": False})
    for one in machine.cluster.brokers.values():
        one.kill()
    start_together(machine.cluster.brokers.values())
    machine.cluster.wait_for_members()
    every = {*FORMER, *LATER, *LAST}
    assert machine.values("kept", len(every)) == every
    assert machine.committed("readers", "kept") == 70
    # A topic that the copy does not know comes back with its records.
    create_topic(machine.cluster.bootstrap, "new", replicas=2)
    assert machine.values("new", len(LATER)) == set(LATER)


@pytest.mark.full(
    "tests/replica/test_topic_identities.py"
    "::test_log_of_the_topic_is_adopted_and_says_what_the_znode_says"
)
def test_records_of_a_topic_that_is_made_anew_late_are_kept_aside(machine: Machine) -> None:
    born = lose_zookeeper_and_restore_an_older_copy(machine)
    with Writer(machine.cluster.zookeeper.connect) as writer:
        writer.wait(born)
    create_topic(machine.cluster.bootstrap, "new", replicas=2)
    assert machine.values("new", 0) == set()
    for one in machine.cluster.brokers.values():
        (stray,) = one.log_dir.glob("new-0*-stray")
        assert b"later-49" in (stray / "00000000000000000000.log").read_bytes()


def lose_zookeeper_and_restore_an_older_copy(machine: Machine) -> int:
    """Copy, go on, and restore: the topic `new` is younger. Return the transaction of its birth."""
    with Writer(machine.cluster.zookeeper.connect) as writer:
        writer.wait()
        machine.run("copy-zookeeper-live")
        writer.wait(more=LOST_WRITES)
    create_topic(machine.cluster.bootstrap, "new", replicas=2)
    born = birth_of("new", machine.cluster.zookeeper.connect)
    # Leader epochs rise.
    for one in machine.cluster.brokers.values():
        assert one.terminate() == 0
        one.start()
        machine.cluster.wait_for_members()
    machine.produce("kept", LATER)
    machine.produce("new", LATER)
    machine.commit("readers", "kept", 70)
    machine.stop()
    machine.run("restore-zookeeper")
    machine.start()
    await_partitions(machine.cluster, "kept", 1)
    await_partitions(machine.cluster, "new", 0)
    # Nobody deletes the records of a topic that nobody knows.
    assert all(one.partition_folders("new") for one in machine.cluster.brokers.values())
    return born
