"""Rolling restarts of brokers, with and without an exporter that asks them, by turns.

    python -m tests.bench.bench_exporter_roll [ROUNDS]

Three brokers are restarted one by one, each once all replicas are in sync again, while a producer
with acks=all writes. 1000 groups have 100 offsets each. They have the same coordinator, so a roll
moves all of them, and back. The exporter begins a round every 5 s, three times as often
as by default. Each round has a roll with it between two without. Ends with status 1 if the median
roll takes longer with the exporter than the goal allows, if a record is not acknowledged, or if the
exporter does not know every lag afterwards.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from odradek.net.client import PeerClient
from odradek.protocol.messages.groups import FindCoordinatorRequest
from tests.bench.bench_groups import GROUPS, PARTITIONS, SETTINGS, TIMEOUT_MS, TOPIC, fill
from tests.bench.ratios import ratio
from tests.fuzz.steady import SteadyProducer
from tests.support.broker import Broker, Cluster, FreshBroker, wait_until
from tests.support.clients import create_topic, settings
from tests.support.ports import free_port

BROKERS, ROUNDS = 3, 5
INTERVAL_S = 5
WRITTEN, WRITTEN_PARTITIONS = "written", 6
REPLICATED = {"min.insync.replicas": "2"}
WITHOUT, WITH, AGAIN = SYSTEMS = "without", "with the exporter", "without again"
MOST = 1.1
PATIENCE_S = 300


class RunningExporter:
    """An exporter's process and its page."""

    def __init__(self, connect: str, folder: Path) -> None:
        self._port = free_port()
        words = f"-m odradek_operator.exporter --zookeeper {connect} --port {self._port}"
        with (folder / "exporter.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *words.split(), f"--interval={INTERVAL_S}"], stdout=log, stderr=log
            )

    def lags(self) -> int:
        """Return how many lags the page has; 0 while there is no page."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}/metrics", timeout=60
            ) as page:
                body: bytes = page.read()
        except urllib.error.URLError:
            return 0
        return body.count(b"\nkafka_consumergroup_lag{")

    def await_all_lags(self) -> None:
        """Wait until the page has the lag of every group in every partition."""
        wanted = GROUPS * PARTITIONS
        wait_until(lambda: self.lags() == wanted, "the exporter knows every lag", PATIENCE_S)

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(60)


async def coordinator(broker: Broker) -> int:
    """Return the broker that coordinates the groups, which has made their topic then."""
    client = PeerClient("127.0.0.1", broker.port, "bench")
    try:
        while True:
            found = await client.call(FindCoordinatorRequest(key="group-0"), 1, TIMEOUT_MS)
            if not found.error_code:
                return int(found.node_id)
            await asyncio.sleep(0.1)
    finally:
        await client.close()


def await_replicas(admin: AdminClient) -> None:
    """Wait until all replicas are in sync."""

    def are_in_sync() -> bool:
        topics = admin.list_topics(timeout=30).topics.values()
        partitions = [one for topic in topics for one in topic.partitions.values()]
        return all(len(one.isrs) == len(one.replicas) for one in partitions)

    wait_until(are_in_sync, "all replicas are in sync", PATIENCE_S)


def roll_s(cluster: Cluster, admin: AdminClient) -> float:
    """Restart all brokers one by one; return the seconds that it takes."""
    began = time.monotonic()
    for broker in cluster.brokers.values():
        broker.terminate()
        broker.start()
        await_replicas(admin)
    return time.monotonic() - began


@contextmanager
def filled(folder: Path) -> Iterator[Cluster]:
    """Brokers with the groups, and with topics that have a replica on each."""
    replicas = {"offsets.topic.replication.factor": str(BROKERS)}
    with Cluster(folder, BROKERS, SETTINGS | replicas, kind=FreshBroker) as cluster:
        create_topic(cluster.bootstrap, TOPIC, PARTITIONS, BROKERS, REPLICATED)
        create_topic(cluster.bootstrap, WRITTEN, WRITTEN_PARTITIONS, BROKERS, REPLICATED)
        asyncio.run(fill(cluster.brokers[asyncio.run(coordinator(cluster.brokers[1]))]))
        yield cluster


@contextmanager
def beside(system: str, cluster: Cluster) -> Iterator[None]:
    """Run what the system has beside the brokers; afterwards it must know every lag again."""
    if system != WITH:
        yield
        return
    with closing(RunningExporter(cluster.zookeeper.connect, cluster.directory)) as exporter:
        exporter.await_all_lags()
        yield
        exporter.await_all_lags()


def rolls(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each roll. Raises SystemExit if a record is not acknowledged."""
    found: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    with tempfile.TemporaryDirectory() as name, filled(Path(name)) as cluster:
        admin = AdminClient(settings(cluster.bootstrap))
        with SteadyProducer(cluster.bootstrap, WRITTEN, WRITTEN_PARTITIONS) as producer:
            wait_until(lambda: producer.in_motion, "the producer is in motion")
            for _ in range(rounds):
                for system in SYSTEMS:
                    with beside(system, cluster):
                        began = time.monotonic()
                        seconds = roll_s(cluster, admin)
                    gap = producer.longest_gap_s(began)
                    print(f"{system:18} {seconds:6.1f} s, longest wait {gap:5.2f} s", flush=True)
                    found[system].append(seconds)
        if producer.failures:
            raise SystemExit(f"records were not acknowledged: {producer.failures[:5]}")
    return found


def main(arguments: list[str]) -> int:
    """Print the rolls and the ratios of their medians; return the exit status."""
    found = rolls(int(arguments[0]) if arguments else ROUNDS)
    for system, each in found.items():
        print(f"{system:18} median {statistics.median(each):6.1f} s")
    asked, noise = ratio(found[WITH], found[WITHOUT]), ratio(found[AGAIN], found[WITHOUT])
    print(f"with the exporter {asked}, without twice {noise}; goal at most {MOST}", flush=True)
    # What differs without the exporter, too, is not its doing.
    return int(asked.value > MOST * max(1.0, noise.value))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
