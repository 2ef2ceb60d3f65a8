"""One broker of this project and one of Apache Kafka 2.8.2 with more and more partitions, by turns.

    python -m tests.bench.bench_partitions [partitions ...]

Topics of 100 partitions are created until a broker has as many as each step says. At each step:
the processor time per new partition, descriptors and maps of the broker's process, its memory per
partition, its processor time while nobody does anything, that of a stop, of the start after it, and
of the start after SIGKILL, each until every partition is led. Last, that of the deletion.

It counts processor time of the broker's process, which depends less on what else the machine does
than time on a clock. What grows no faster than the number of partitions has the same figure per
partition in each step. Kafka holds a descriptor and two maps per partition: the limits of the
machine (ulimit -n, vm.max_map_count) must allow that.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.side_by_side import Figures, KafkaAtItsBest, wait_for
from tests.support import kafka_peer
from tests.support.broker import Broker, Cluster, FreshBroker
from tests.support.clients import QUIET
from tests.support.memory_use import resident_bytes

STEPS = (1000, 3000, 6000)
PER_TOPIC = 100
IDLE_SECONDS = 15.0
REQUEST_SECONDS = 280.0
SETTINGS = {
    "zookeeper.session.timeout.ms": "30000",
    "auto.leader.rebalance.enable": "false",
    "delete.topic.enable": "true",
}
KIB = 1024
MS = 1000


def processor_s(pid: int) -> float:
    """Return the seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def maps(pid: int) -> int:
    """Return how many maps a process has."""
    with Path(f"/proc/{pid}/maps").open() as lines:
        return sum(1 for _ in lines)


class Subject:
    """A broker that is measured."""

    def __init__(self, name: str, cluster: Cluster, figures: Figures) -> None:
        self.partitions = 0
        self._name = name
        self._figures = figures
        self._cluster = cluster
        self._broker: Broker = cluster.brokers[1]
        self._admin = AdminClient(
            {"bootstrap.servers": cluster.bootstrap, "socket.timeout.ms": 290_000, **QUIET}
        )
        self._topics: list[str] = []
        self._empty_bytes = resident_bytes(self._broker.pid)

    def _note(self, what: str, value: float, unit: str) -> None:
        self._figures.note(self._name, f"{self.partitions} partitions: {what}", value, unit)

    def grow(self, partitions: int) -> None:
        """Create topics until there are so many partitions."""
        began, before = processor_s(self._broker.pid), self.partitions
        while self.partitions < partitions:
            name = f"many-{len(self._topics)}"
            count = min(PER_TOPIC, partitions - self.partitions)
            made = self._admin.create_topics(
                [NewTopic(name, count, 1)], request_timeout=REQUEST_SECONDS
            )
            made[name].result()
            self._topics.append(name)
            self.partitions += count
        self._await_leaders()
        used = processor_s(self._broker.pid) - began
        self._note("creation, each new one", used / (self.partitions - before) * MS, "ms")

    def look(self) -> None:
        """Note what the partitions take while nobody uses them."""
        pid = self._broker.pid
        used, began = processor_s(pid), time.monotonic()
        time.sleep(IDLE_SECONDS)
        share = (processor_s(pid) - used) / (time.monotonic() - began)
        self._note("idle, of one processor", share * 100, "%")
        self._note("descriptors", descriptors(pid), "")
        self._note("maps", maps(pid), "")
        taken = resident_bytes(pid) - self._empty_bytes
        self._note("memory, each", taken / self.partitions / KIB, "KiB")

    def restart(self) -> None:
        """Stop and start the broker, kill and start it."""
        broker = self._broker
        broker.terminate()
        broker.start()
        self._await_leaders()
        self._note("start after a stop", processor_s(broker.pid), "s")
        self._cluster.crash(1)
        broker.start()
        self._await_leaders()
        self._note("start after SIGKILL", processor_s(broker.pid), "s")
        self._note("descriptors after it", descriptors(broker.pid), "")

    def delete(self) -> None:
        """Delete all topics, as far as their folders lose their names."""
        began = processor_s(self._broker.pid)
        deleted = self._admin.delete_topics(self._topics, request_timeout=REQUEST_SECONDS)
        for answer in deleted.values():
            answer.result()
        wait_for(self._is_empty, "every folder is gone or renamed")
        used = processor_s(self._broker.pid) - began
        self._note("deletion, each", used / self.partitions * MS, "ms")

    def _is_empty(self) -> bool:
        names = (one.name for one in self._broker.log_dir.iterdir())
        return not any(one.startswith("many-") and not one.endswith("-delete") for one in names)

    def _await_leaders(self) -> None:
        def all_led() -> bool:
            try:
                topics = self._admin.list_topics(timeout=60).topics.values()
            except KafkaException:  # the broker has just started
                return False
            led = [part.leader == 1 for one in topics for part in one.partitions.values()]
            return len(led) == self.partitions and all(led)

        wait_for(all_led, f"{self.partitions} partitions have a leader")


def kinds() -> dict[str, type[Broker]]:
    """Return the kinds of brokers that this machine can run, ours first."""
    found: dict[str, type[Broker]] = {"odradek": FreshBroker}
    try:
        kafka_peer.classpath()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"bench_partitions: without Apache Kafka: {error}", file=sys.stderr)
    else:
        found["kafka 2.8.2"] = KafkaAtItsBest
    return found


def main(steps: Sequence[int]) -> None:
    """Print the figures of each step, and the ratios."""
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        subjects = []
        for name, kind in kinds().items():
            directory = Path(folder, name.partition(" ")[0])
            directory.mkdir()
            cluster = Cluster(directory, 1, SETTINGS, kind=kind, own_zookeeper=True)
            subjects.append(Subject(name, stack.enter_context(cluster), figures))
        for partitions in steps:
            for subject in subjects:
                subject.grow(partitions)
                subject.look()
                subject.restart()
        for subject in subjects:
            subject.delete()
    figures.print_ratios()


if __name__ == "__main__":
    main([int(one) for one in sys.argv[1:]] or STEPS)
