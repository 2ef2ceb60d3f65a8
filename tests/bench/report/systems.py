"""The systems of the report: this broker twice, Apache Kafka 2.8.2 with ZooKeeper, and 4.1.0 with
KRaft, each with fresh directories.

Kafka runs with the threads that it has by default and with 1 GiB of heap and G1, as its own scripts
start it. All have the same settings of replication.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import subprocess
import sys
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.bench.report import quorum
from tests.bench.side_by_side import DELETE_DELAY_MS, KafkaAtItsBest
from tests.support import kafka_peer
from tests.support.broker import (
    Broker,
    Cluster,
    FreshBroker,
    start_together,
    wait_until,
)
from tests.support.clients import QUIET
from tests.support.ports import free_port

OURS: Final = "odradek"
AGAIN: Final = "odradek again"
KAFKA: Final = "kafka 2.8.2"
NEWEST: Final = "kafka 4.1.0"
SYSTEMS: Final = (OURS, AGAIN, KAFKA, NEWEST)
PEERS: Final = (KAFKA, NEWEST)
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

SETTINGS: Final = MappingProxyType(
    {
        "default.replication.factor": "1",
        "offsets.topic.num.partitions": "3",
        "auto.create.topics.enable": "false",
        "auto.leader.rebalance.enable": "false",
        "log.segment.delete.delay.ms": DELETE_DELAY_MS,
        # Whatever the machine does meanwhile, nobody loses a session.
        "zookeeper.session.timeout.ms": "30000",
        "broker.session.timeout.ms": "30000",
    }
)
NEWEST_RELEASE: Final = kafka_peer.Release(
    "4.1.0",
    "pom-4.xml",
    ("kafka_2.13-4.1.0", "kafka-server-4.1.0", "kafka-clients-4.1.0", "slf4j-simple"),
)


class Running(Protocol):
    """Brokers that run: what a case needs of a system."""

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for clients."""

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """The brokers by id."""


class KRaftBroker(FreshBroker):
    """A broker and controller of Apache Kafka 4.1.0 in one process."""

    kind = "kraft"

    def __init__(
        self,
        directory: Path,
        broker_id: int,
        cluster_id: str,
        controllers: Mapping[int, int],
        settings: Mapping[str, str],
    ) -> None:
        voters = ",".join(f"{one}@127.0.0.1:{port}" for one, port in controllers.items())
        own = f"CONTROLLER://127.0.0.1:{controllers[broker_id]}"
        super().__init__(directory, broker_id, "unused:2181", settings)
        kept = [
            line
            for line in self._properties.read_text().splitlines()
            if not line.startswith(("zookeeper.", "broker.id=", "listeners="))
        ]
        kept += [
            "process.roles=broker,controller",
            f"node.id={broker_id}",
            f"listeners=PLAINTEXT://{self.address},{own}",
            "controller.listener.names=CONTROLLER",
            f"controller.quorum.voters={voters}",
        ]
        self._properties.write_text("\n".join(kept) + "\n")
        self._cluster_id = cluster_id

    def format(self) -> None:
        """Make the log directory one of this cluster, as Kafka wants it before the first start."""
        subprocess.run(
            [
                *("java", "-cp", kafka_peer.classpath(NEWEST_RELEASE), "kafka.tools.StorageTool"),
                *("format", "-t", self._cluster_id, "-c", str(self._properties)),
            ],
            check=True,
            capture_output=True,
        )

    def wait_until_up(self) -> None:
        """Wait until it answers as a broker of the cluster."""
        client = AdminClient({"bootstrap.servers": self.address, **QUIET})

        def answers() -> bool:
            assert self.running, self.log_text()[-3000:]
            with contextlib.suppress(KafkaException):
                return self.broker_id in client.list_topics(timeout=5).brokers
            return False

        wait_until(answers, f"{self.kind} {self.broker_id} answers")

    def _command(self) -> list[str]:
        heap = ("-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return ["java", *heap, quiet, "-cp", kafka_peer.classpath(NEWEST_RELEASE), "kafka.Kafka"]


class KRaftCluster:
    """Brokers 1 to N of Apache Kafka 4.1.0; a context manager that starts and ends them."""

    def __init__(self, directory: Path, brokers: int, settings: Mapping[str, str]) -> None:
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        controllers = {one: free_port() for one in range(1, brokers + 1)}
        self._brokers = {
            one: KRaftBroker(directory, one, cluster_id, controllers, settings)
            for one in controllers
        }

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """The brokers by id."""
        return self._brokers

    @functools.cached_property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(one.address for one in self._brokers.values())

    def controller(self) -> Broker:
        """Return the active controller. It asks until there is one."""
        found: list[int] = []

        def has_one() -> bool:
            found[:] = [
                one
                for one in (quorum.leader(each) for each in self._brokers.values() if each.running)
                if one in self._brokers
            ]
            return bool(found)

        wait_until(has_one, "the quorum has a leader")
        return self._brokers[found[0]]

    def __enter__(self) -> KRaftCluster:
        try:
            for one in self._brokers.values():
                one.format()
            start_together(self._brokers.values())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._brokers.values():
            one.kill()


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts systems. `python` has the dependencies of this project's brokers, and runs them."""

    python: str = sys.executable
    version: str = platform.python_version()

    @contextlib.contextmanager
    def start(
        self, name: str, folder: Path, brokers: int, settings: Mapping[str, str] = NOTHING
    ) -> Iterator[Running]:
        """A system with so many brokers in a new folder, until the context ends."""
        folder.mkdir()
        given = {
            **SETTINGS,
            "min.insync.replicas": str(min(brokers, 2)),
            "offsets.topic.replication.factor": str(brokers),
            **settings,
        }
        if name == NEWEST:
            with KRaftCluster(folder, brokers, given) as newest:
                yield newest
            return
        kind = KafkaAtItsBest if name == KAFKA else ours(self.python)
        with Cluster(folder, brokers, given, kind=kind, own_zookeeper=True) as cluster:
            yield cluster

    @contextlib.contextmanager
    def start_all(
        self, folder: Path, brokers: int, settings: Mapping[str, str] = NOTHING
    ) -> Iterator[dict[str, Running]]:
        """All systems by name, each with so many brokers, until the context ends."""
        with contextlib.ExitStack() as stack:
            yield {
                name: stack.enter_context(
                    self.start(name, folder / name.replace(" ", "-"), brokers, settings)
                )
                for name in SYSTEMS
            }


def ours(python: str) -> type[Broker]:
    """Return the kind of this project's brokers in an interpreter of theirs."""

    class OurBroker(FreshBroker):
        def _command(self) -> list[str]:
            return [python, "-m", "odradek", "broker"]

    return OurBroker
