"""Three brokers of this project and three of Apache Kafka 2.8.2, each with a ZooKeeper, on one
machine: measured by turns, so that it drifts for both. What counts is the ratio.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType

from kazoo.client import KazooClient

from odradek.net.client import PeerClient
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from odradek.zk import znodes
from tests.support.broker import Broker, Cluster, FreshBroker
from tests.support.kafka_broker import KafkaBroker

BROKERS = 3
# The same session for both; dead brokers are noticed no sooner than it ends.
SETTINGS = {
    "zookeeper.session.timeout.ms": "6000",
    "zookeeper.connection.timeout.ms": "60000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "auto.leader.rebalance.enable": "false",
    "delete.topic.enable": "true",
}
# Until the files of a deleted topic are removed, a minute by default. See `await_removal`.
DELETE_DELAY_MS = "100"
LIMIT_SECONDS = 180.0
PAUSE_SECONDS = 0.02


class KafkaAtItsBest(KafkaBroker):
    """With the threads that Kafka has by default, and the JVM's optimizing compiler."""

    defaults = MappingProxyType(
        {
            **KafkaBroker.defaults,
            "num.network.threads": "3",
            "num.io.threads": "8",
            "background.threads": "10",
            "log.cleaner.dedupe.buffer.size": "134217728",
        }
    )

    def _command(self) -> list[str]:
        _, *arguments = super()._command()
        kept = [one for one in arguments if not one.startswith("-X")]
        return ["java", "-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", *kept]


def both(folder: Path, stack: contextlib.ExitStack) -> dict[str, Cluster]:
    """The clusters by name, ours first, running until the stack ends."""
    clusters = {}
    kinds: dict[str, type[Broker]] = {"odradek": FreshBroker, "kafka 2.8.2": KafkaAtItsBest}
    for name, kind in kinds.items():
        directory = folder / name.partition(" ")[0]
        directory.mkdir()
        cluster = Cluster(directory, BROKERS, SETTINGS, kind=kind, own_zookeeper=True)
        clusters[name] = stack.enter_context(cluster)
    return clusters


class Figures:
    """What was measured, printed at once, and the medians' ratios at the end."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, list[float]]] = {}

    def note(self, name: str, what: str, value: float, unit: str) -> None:
        """Keep and print one figure of one system; the first system noted is the one above."""
        self._found.setdefault(f"{what}, {unit}" if unit else what, {}).setdefault(name, []).append(
            value
        )
        print(f"{name:12} {what:60} {value:10.2f} {unit}", flush=True)

    def print_ratios(self) -> None:
        """Print the medians of both, the ratio of the first to the second, and its spread.

        The spread is that of the rounds' own ratios, from the lowest to the highest.
        """
        for what, by_name in self._found.items():
            if len(by_name) == 1:
                continue  # there is nothing to compare with
            (one, first), (other, second) = by_name.items()
            above, below = statistics.median(first), statistics.median(second)
            ratios = [mine / theirs for mine, theirs in zip(first, second, strict=False) if theirs]
            if not ratios or not below:
                print(f"{what}: {one} {above:.2f}, {other} {below:.2f}", flush=True)
                continue
            print(
                f"{what}: {one} {above:.2f}, {other} {below:.2f}, ratio {above / below:.3f} "
                f"(rounds {min(ratios):.3f} to {max(ratios):.3f}, "
                f"median {statistics.median(ratios):.3f})",
                flush=True,
            )


def metadata(broker: Broker, names: Sequence[str] | None = None) -> MetadataResponse:
    """The topics with these names, or all, as one broker sees them; none is created."""
    asked = None if names is None else [MetadataRequestTopic(name=one) for one in names]
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)

    async def ask() -> MetadataResponse:
        client = PeerClient("127.0.0.1", broker.port, "bench")
        try:
            return await client.call(request, 5, 30_000)
        finally:
            await client.close()

    return asyncio.run(ask())


def wait_for(condition: Callable[[], bool], what: str, seconds: float = LIMIT_SECONDS) -> float:
    """The time on the performance counter at which the condition held."""
    until = time.perf_counter() + seconds
    while not condition():
        if time.perf_counter() > until:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(PAUSE_SECONDS)
    return time.perf_counter()


def await_removal(brokers: Sequence[Broker], name: str) -> None:
    """Wait until a deleted topic has no files, so that their memory is there for the next ones.

    A page that is free for long is one that a virtual machine may have given back to its host, and
    whose first use costs ten times as much. Brokers would pay for that by chance.
    """

    def are_gone() -> bool:
        return not any(True for one in brokers for _ in one.log_dir.glob(f"{name}-*"))

    wait_for(are_gone, f"the files of {name} are removed")


def controller_of(cluster: Cluster) -> Broker:
    """The broker that holds the office now."""
    with cluster.zookeeper.client() as keeper:
        data, _ = keeper.get(znodes.CONTROLLER_PATH)
        return cluster.brokers[znodes.decode_controller(znodes.CONTROLLER_PATH, data).broker_id]


def all_in_sync(teller: Broker, names: Sequence[str] | None = None) -> bool:
    """Whether every replica that a broker knows is in sync, of these topics or of all."""
    return all(
        len(one.isr_nodes) == len(one.replica_nodes)
        for topic in metadata(teller, names).topics
        for one in topic.partitions
    )


def restart(cluster: Cluster, broker: Broker) -> None:
    """Start a broker that was killed, and wait until every replica is in sync again."""
    broker.start()
    wait_for(lambda: all_in_sync(controller_of(cluster)), "every replica is in sync")


class Death:
    """The SIGKILL of a broker at rest, and when ZooKeeper drops its session: what happens from then
    on is the cluster's doing. Times are those of `time.perf_counter`.
    """

    def __init__(self, keeper: KazooClient, broker: Broker) -> None:
        self.session_ended = 0.0
        assert keeper.exists(znodes.broker_path(broker.broker_id), self._note) is not None
        time.sleep(random.uniform(4, 6))  # anywhere between two heartbeats
        broker.kill()
        self.killed = time.perf_counter()

    def _note(self, _: object) -> None:
        self.session_ended = time.perf_counter()
