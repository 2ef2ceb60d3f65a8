"""The operator at scale, against the real API server and the real ZooKeeper.

    python -m tests.bench.bench_operator [topics]

Applies 1 000 Topics at once, watches them in steady state, adds more up to `topics` (5 000), and
restarts the operator over all of them. A stand-in for the controller writes the partitions' states;
there are no brokers behind the registrations. Writes are those that the API server counted, without
the renewals of Leases; processor time is the operator's own, which tells more than the clock on a
machine that does other things too. So it is told of the others as well, and what the API server
takes for Topics that no operator looks at. Each figure is printed with its goal.

An operator that is restarted at once after Topics were made writes twice, as it would have without
a restart: that no partition lacks a replica any more, and that a broker may be evicted again.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from odradek.values import BrokerId
from odradek.zk import znodes
from tests.bench.bench_partitions import processor_s
from tests.reconcile import kills
from tests.reconcile.conftest import Operator, Place
from tests.support import zookeeper
from tests.support.apiserver import ApiServer
from tests.support.memory_use import resident_bytes

FIRST = 1000
APPLY_THREADS = 8
STEADY_MINUTES = 3
GIVE_UP_SECONDS = 2400.0
POLL_SECONDS = 0.5
SESSION_SECONDS = 90.0
NAMESPACE = "scale"
UNWATCHED = "unwatched"
WRITE_VERBS = "POST|PUT|PATCH|APPLY|DELETE|DELETECOLLECTION"
COUNTED = re.compile(
    rf'apiserver_request_total\{{.*resource="(?!leases)(\w+)".*verb="(?:{WRITE_VERBS})".*\}} (\S+)'
)


class StandInController:
    """Elects leaders for topics as they appear, by a thread that looks a few times a second."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._done: set[str] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> StandInController:
        claim = znodes.ControllerClaim(BrokerId(0), 1)
        self._place.client.create(
            znodes.CONTROLLER_PATH, znodes.encode_controller(claim), ephemeral=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(0.2):
            for topic in set(self._place.client.get_children(znodes.TOPICS_PATH)) - self._done:
                self._place.elect(topic)
                self._done.add(topic)


def topic_name(number: int) -> str:
    """Return the name of a Topic."""
    return f"topic-{number:05}"


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def api_writes(server: ApiServer) -> int:
    """Return how many writes the API server has counted, those of Leases left out."""
    text = server.call("get", "--raw", "/metrics")
    return int(sum(float(number) for _, number in COUNTED.findall(text)))


class Bench:
    """One namespace of Topics with its operator."""

    def __init__(
        self, server: ApiServer, ensemble: zookeeper.Server, place: Place, operator: Operator
    ) -> None:
        self.server = server
        self.ensemble = ensemble
        self.place = place
        self.operator = operator
        self.kube = kills.client(server.kubeconfig)

    @property
    def pid(self) -> int:
        """The operator's process."""
        assert self.operator._process is not None
        return self.operator._process.pid

    def others(self) -> dict[str, float]:
        """Return what those have computed that the operator works with."""
        assert self.ensemble._process is not None
        return {
            "the API server": processor_s(self.server._processes["apiserver"].pid),
            "etcd": processor_s(self.server._processes["etcd"].pid),
            "ZooKeeper": processor_s(self.ensemble._process.pid),
            "this program": time.process_time(),
        }

    def floor(self, topics: int) -> None:
        """Tell how long the API server takes for Topics that no operator looks at."""
        self.server.call("create", "namespace", UNWATCHED)
        began, others = time.monotonic(), self.others()
        self.apply(UNWATCHED, 0, topics)
        tell(f"{topics} Topics are taken by the API server in", time.monotonic() - began, "s")
        for name, seconds in self.others().items():
            tell(f"  processor time of {name}", seconds - others[name], "s")

    def apply(self, namespace: str, first: int, last: int) -> None:
        """Make Topics of these numbers, as fast as the API server takes them."""
        clients = [kills.client(self.server.kubeconfig) for _ in range(APPLY_THREADS)]

        def make(thread: int) -> None:
            for number in range(first + thread, last, APPLY_THREADS):
                made = self.place.topic(
                    topic_name(number),
                    partitions=1,
                    replicationFactor=3,
                    config={"retention.ms": "604800000"},
                )
                made["metadata"]["namespace"] = namespace
                clients[thread].create(made)

        with ThreadPoolExecutor(APPLY_THREADS) as threads:
            list(threads.map(make, range(APPLY_THREADS)))

    def is_ready(self, name: str) -> bool:
        """Whether a Topic is ready, by the API server's word."""
        found = self.kube.get(kills.API, "Topic", NAMESPACE, name)
        return found is not None and kills.summary(found)[1:] == ("Synced",)

    def wait_until_ready(self, first: int, last: int) -> None:
        """Wait for Topics in turn: lists of all of them would be most of the server's work."""
        until = time.monotonic() + GIVE_UP_SECONDS
        for number in range(first, last):
            while not self.is_ready(topic_name(number)):
                if time.monotonic() > until:
                    raise SystemExit(f"{number} of {last} after {GIVE_UP_SECONDS:.0f} s")
                time.sleep(POLL_SECONDS)

    def wait(self, what: str, wanted: int, probe: Any, pause: float) -> None:
        """Wait until `probe` returns so many."""
        until = time.monotonic() + GIVE_UP_SECONDS
        while (found := probe()) < wanted:
            if time.monotonic() > until:
                raise SystemExit(f"{what}: {found} of {wanted} after {GIVE_UP_SECONDS:.0f} s")
            time.sleep(pause)

    def make_ready(self, first: int, last: int) -> None:
        """Apply Topics and tell how long they take to be ready."""
        writes = api_writes(self.server)
        began, computed, others = time.monotonic(), processor_s(self.pid), self.others()
        self.apply(NAMESPACE, first, last)
        applied = time.monotonic() - began
        self.wait_until_ready(first, last)
        text = f"{last - first} Topics applied at once are Ready after"
        tell(text, time.monotonic() - began, "s", "60 for 1000" if first == 0 else "")
        tell("  of which until the last was applied", applied, "s")
        tell("  processor time of the operator", processor_s(self.pid) - computed, "s")
        for name, seconds in self.others().items():
            tell(f"  processor time of {name}", seconds - others[name], "s")
        each = (api_writes(self.server) - writes) / (last - first)
        tell("  writes for each, the user's among them", each, "")

    def rest(self, minutes: int) -> None:
        """Watch the operator while nobody wants anything."""
        # What the last Topics had to tell is told.
        time.sleep(15)
        writes, computed = api_writes(self.server), processor_s(self.pid)
        time.sleep(minutes * 60)
        done = (api_writes(self.server) - writes) / minutes
        busy = (processor_s(self.pid) - computed) / minutes
        tell("writes a minute in steady state", done, "", "1")
        tell("  processor time of the operator", busy, "s a minute")

    def weigh(self, topics: int) -> None:
        """Tell the memory of the operator."""
        mib = 1024 * 1024
        tell(f"memory with {topics} Topics", resident_bytes(self.pid) / mib, "MiB", "300")
        tell("  at most until now", peak_bytes(self.pid) / mib, "MiB", "300")

    def restart(self, topics: int) -> None:
        """Kill the operator, and tell how long the next one takes to look at everything."""
        self.operator.kill()
        writes = api_writes(self.server)
        began = time.monotonic()
        self.operator.start()

        def looked_at() -> int:
            try:
                return int(self.operator.metric('odradek_operator_reconcile_seconds_count{kind="T'))
            except OSError:
                return 0

        self.wait("topics are looked at", topics, looked_at, 0.5)
        tell(f"a restart converges {topics} Topics in", time.monotonic() - began, "s", "60")
        tell("  processor time of the operator", processor_s(self.pid), "s")
        tell("  writes", api_writes(self.server) - writes, "", "0")


class FreshOperator(Operator):
    """An operator that imports its libraries itself: start and memory are measured."""

    def _run(self, words: list[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "kopf", *words]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)


def tell(what: str, value: float, unit: str, goal: str = "") -> None:
    """Print one figure with its goal."""
    print(f"{what:48} {value:8.1f} {unit:12} {f'goal {goal}' if goal else ''}", flush=True)


@contextlib.contextmanager
def client_of(ensemble: zookeeper.Server) -> Iterator[KazooClient]:
    """Yield a client of the cluster's znodes whose session outlives a busy machine's pauses."""
    with ensemble.client() as root:
        root.ensure_path(f"/{NAMESPACE}")
    client = KazooClient(f"{ensemble.connect}/{NAMESPACE}", timeout=SESSION_SECONDS)
    client.start(timeout=SESSION_SECONDS)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Bench]:
    """Start everything."""
    for name in ("api", "zookeeper"):
        (folder / name).mkdir()
    with (
        ApiServer(folder / "api") as server,
        zookeeper.Server(folder / "zookeeper", tick_time_ms=5000) as ensemble,
    ):
        server.install_crds()
        server.call("create", "namespace", NAMESPACE)
        with client_of(ensemble) as client:
            place = Place(server, ensemble, client, NAMESPACE)
            place.create_cluster()
            log = folder / "operator.log"
            with (
                StandInController(place),
                FreshOperator(server, NAMESPACE, log, "operator-0") as operator,
            ):
                try:
                    place.wait_for("kafkacluster", "main", "BrokersReady")
                    yield Bench(server, ensemble, place, operator)
                except BaseException:
                    print(log.read_text()[-4000:], file=sys.stderr)
                    raise


def main(topics: int) -> None:
    """Print all figures."""
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as bench:
        first = min(FIRST, topics)
        bench.floor(first)
        bench.make_ready(0, first)
        bench.rest(STEADY_MINUTES)
        if topics > first:
            bench.make_ready(first, topics)
            bench.rest(1)
        bench.weigh(topics)
        bench.restart(topics)
        bench.weigh(topics)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000)
