"""Exactly once under faults: two Java programs of one group copy a topic in transactions.

A broker is killed meanwhile, the coordinator of transactions (or, in long runs, of the group), and
starts again. The programs abort a quarter of their transactions, and start over after any error.
ODRADEK_JUDGE=kafka runs it against Apache Kafka.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from odradek.coordination import partitioning
from tests.support import clients, jvm, kafka_peer
from tests.support.broker import Cluster, wait_until
from tests.support.judged_cluster import TRANSACTIONS, judged_cluster
from tests.support.sampling import some_of

PROGRAM = Path(__file__).with_name("TransactionalCopy.java")
VERSION = "4.1.0"
COPIERS = 2
GROUP = "copiers"
# Whose coordinator dies: the topic of its records, and their key.
VICTIMS = {"__transaction_state": "copier-0", "__consumer_offsets": GROUP}
PARTITIONS = 4
PART = 100
# Transactions that must be committed before a broker dies, and while it is dead.
SOME = 8


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers, of which one may die."""
    with judged_cluster(tmp_path, TRANSACTIONS) as running:
        yield running


class Copier:
    """A process that copies; what it says is in its output."""

    def __init__(self, cluster: Cluster, folder: Path, number: int) -> None:
        classpath = kafka_peer.classpath(kafka_peer.clients(VERSION))
        everything = f"{jvm.compiled(PROGRAM, classpath)}:{classpath}"
        self._output = folder / f"copier-{number}.log"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    *(*kafka_peer.JAVA, kafka_peer.scratch(folder), "-Xmx128m", "-cp", everything),
                    *(PROGRAM.stem, cluster.bootstrap, GROUP, "source", "target"),
                    *(f"copier-{number}", str(number)),
                ],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )

    def said(self) -> str:
        return self._output.read_text()

    def committed(self) -> int:
        assert self._process.poll() is None, self.said()[-4000:]
        return self.said().count("committed\n")

    def end(self) -> int:
        self._process.communicate(timeout=120)
        return self._process.returncode


@pytest.fixture
def copiers(cluster: Cluster, tmp_path: Path) -> Iterator[list[Copier]]:
    """Two members of the group, which end with the test at the latest."""
    clients.create_topic(cluster.bootstrap, "source", PARTITIONS, 3)
    clients.create_topic(cluster.bootstrap, "target", PARTITIONS, 3)
    running = [Copier(cluster, tmp_path, number) for number in range(COPIERS)]
    try:
        yield running
    finally:
        for one in running:
            one.end()


def write(cluster: Cluster, part: int) -> None:
    values = [b"%d" % number for number in range(part * PART, (part + 1) * PART)]
    clients.produce_all(cluster.bootstrap, "source", values, PARTITIONS)


def await_commits(copiers: list[Copier], count: int) -> None:
    """Wait until so many transactions are committed."""
    wait_until(lambda: sum(one.committed() for one in copiers) >= count, "more is copied")


def await_members(cluster: Cluster) -> None:
    """Wait until each copier has its share of the partitions."""
    admin = AdminClient(clients.settings(cluster.bootstrap))

    def are_members() -> bool:
        group = admin.describe_consumer_groups([GROUP])[GROUP].result(120)
        shares = [len(one.assignment.topic_partitions) for one in group.members]
        return shares == [PARTITIONS // COPIERS] * COPIERS

    wait_until(are_members, "each copier has its share")


def coordinator(cluster: Cluster, topic: str, key: str) -> int:
    """Return the broker that leads the partition of a group's or an id's records."""
    admin = AdminClient(clients.settings(cluster.bootstrap))
    partitions = admin.list_topics(timeout=120).topics[topic].partitions
    return partitions[partitioning.partition_of(key, len(partitions))].leader


@pytest.mark.parametrize("topic", some_of([*VICTIMS], ["__transaction_state"]))
def test_each_record_is_copied_once_though_a_coordinator_dies(
    cluster: Cluster, copiers: list[Copier], topic: str
) -> None:
    await_members(cluster)
    write(cluster, 0)
    await_commits(copiers, SOME)
    victim = coordinator(cluster, topic, VICTIMS[topic])
    cluster.crash(victim)
    before = sum(one.committed() for one in copiers)
    write(cluster, 1)
    await_commits(copiers, before + SOME)
    cluster.brokers[victim].start()
    write(cluster, 2)
    wanted = sorted(b"%d" % number for number in range(3 * PART))
    clients.consume_all(cluster.bootstrap, "target", PARTITIONS, len(wanted))
    assert [one.end() for one in copiers] == [0] * COPIERS
    said = "\n".join(one.said()[-2000:] for one in copiers)
    assert sorted(clients.consume_all(cluster.bootstrap, "target", PARTITIONS, 0)) == wanted, said
    everything = clients.consume_all(
        cluster.bootstrap, "target", PARTITIONS, 0, **{"isolation.level": "read_uncommitted"}
    )
    assert len(everything) > len(wanted), "some transactions were aborted"
