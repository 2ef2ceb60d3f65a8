"""Produce and fetch over TLS and SASL_SSL, beside Apache Kafka 2.8.2.

    python -m tests.bench.bench_secured [rounds]
    python -m tests.bench.bench_secured --quick
    python -m tests.bench.bench_secured --protocols PLAINTEXT,SSL --sizes 1000 --only java
    python -m tests.bench.bench_secured --minutes 10 --python /tmp/image

Four clusters of three brokers on one machine: this project's, the same once more, Kafka's, and one
that acknowledges records and drops them (`dropping_broker`), each with a ZooKeeper. All have the
same certificate (ECDSA P-256), talk TLS among themselves, and serve the same outside clients:
librdkafka, and Kafka's ProducerPerformance and ConsumerPerformance in a JVM that goes on. Clients
and brokers speak TLS 1.3 and take, or prefer, AES-256-GCM: what OpenSSL and each cluster agree on
is printed, and Java offers nothing else. How fast that is depends on who computes it, OpenSSL here
and JSSE there: the versions that brokers have are printed, too. `--python` takes another Python
with another OpenSSL for this project's brokers, as `make bench` does (docs/performance.md).

The clusters are measured by turns, in another order each round, so that the machine drifts for all.
What counts is the ratio; that of the two equal clusters says how much of it is noise. With acks=1
topics have one replica, with acks=all three. Processor time is that of the three brokers, per
gigabyte that clients wrote or read; with acks=all it has the replication.

All clusters write as much in a round: what takes RUN_SECONDS, by the speeds of the round before.
Files of a topic are removed before the next run. Kept for a minute, as they are by default, they
would fill the memory with gigabytes that the kernel writes to disk during later runs.

The brokers that drop tell what a producer reaches where nothing is stored: a case in which this
project reaches 0.9 of that measures the client, whatever its ratio to Kafka is.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import confluent_kafka
from confluent_kafka.admin import AdminClient

from tests.bench import bench_produce_fetch, ratios, steadiness, stolen
from tests.bench.bench_partitions import processor_s
from tests.bench.report import interpreter, warmth
from tests.bench.side_by_side import (
    BROKERS,
    DELETE_DELAY_MS,
    SETTINGS,
    KafkaAtItsBest,
    await_removal,
)
from tests.bench.warm_tools import WarmTools
from tests.support import certificates, clients
from tests.support.broker import Broker, Cluster, FreshBroker
from tests.support.secure_broker import SecureBroker, jaas

PARTITIONS: Final = 6
SUITE: Final = "TLS_AES_256_GCM_SHA384"
LISTENERS: Final = {"PLAINTEXT": "PLAINTEXT", "SSL": "TLS", "SASL_SSL": "SECURE"}
SIZES: Final = (1000, 100, 10_000)
ACKS: Final = ("1", "all")
OURS, AGAIN, KAFKA, DROPS = "odradek", "odradek again", "kafka 2.8.2", "dropped"
GOALS: Final = {"produce": 1.2, "fetch": 1.0}
MEGA: Final = 1_000_000
# Of one run of the warm-up. Small records are few: clients need most of the time for them.
MEGABYTES: Final = {100: 40, 1000: 150, 10_000: 200}
MOST_MEGABYTES: Final = 1000
RUN_SECONDS: Final = 2.0
MOST_WARM_UPS: Final = 4
QUICK_SHARE: Final = 4
QUICK_MINUTES: Final = 7.5
USER, PASSWORD = "bench", "bench-secret"
ASK_VERSIONS: Final = (
    "import platform, ssl; print('Python', platform.python_version() + ',', ssl.OPENSSL_VERSION)"
)


class Secured(SecureBroker, FreshBroker):
    """A broker of this checkout with every listener."""

    protocols = {"TLS": "SSL", "SECURE": "SASL_SSL"}
    python = sys.executable
    program: tuple[str, ...] = ("odradek", "broker")

    def _command(self) -> list[str]:
        return [self.python, "-m", *self.program]


class Dropping(Secured):
    """The same, but for records: they are acknowledged and dropped."""

    program = ("tests.bench.dropping_broker",)


class SecuredKafka(KafkaAtItsBest, SecureBroker):
    """A broker of Kafka with the same listeners."""

    protocols = Secured.protocols


@dataclass(frozen=True, slots=True)
class Case:
    """What one run measures."""

    protocol: str
    client: str
    size: int
    acks: str

    def __str__(self) -> str:
        return f"{self.protocol} {self.client} {self.size} B, acks={self.acks}"


class Client:
    """The same outside client for all clusters; speeds are in megabytes per second."""

    def __init__(self, tools: WarmTools, own: certificates.Issued) -> None:
        self._tools = tools
        self._login = own.client()
        trust = f"ssl.truststore.type=PEM\nssl.truststore.location={own.authority_path}\n"
        tls = f"{trust}ssl.enabled.protocols=TLSv1.3\nssl.cipher.suites={SUITE}\n"
        login = f"sasl.mechanism=PLAIN\nsasl.jaas.config={_jaas()}\n"
        more = {"PLAINTEXT": "", "SSL": tls, "SASL_SSL": tls + login}
        self._files = {
            protocol: tools.file(f"{protocol}.properties", f"security.protocol={protocol}\n{text}")
            for protocol, text in more.items()
        }

    def log_in(self, cluster: Cluster) -> None:
        """Let librdkafka's clients know what the listeners of a cluster need."""
        login = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
        more = {"SSL": {}, "SASL_SSL": {"security.protocol": "SASL_SSL", **login}}
        for protocol, settings in more.items():
            clients.log_in(bootstrap(cluster, protocol), {**self._login, **settings})

    def produce(self, case: Case, cluster: Cluster, topic: str, count: int) -> float:
        """Write records."""
        address = bootstrap(cluster, case.protocol)
        if case.client == "librdkafka":
            return bench_produce_fetch.produce(
                address, topic, case.acks, records=count, record_bytes=case.size
            )
        return self._tools.produce(
            address, topic, count, case.size, acks=case.acks, config=self._files[case.protocol]
        )

    def fetch(self, case: Case, cluster: Cluster, topic: str, count: int) -> float:
        """Read them."""
        address = bootstrap(cluster, case.protocol)
        if case.client == "librdkafka":
            return bench_produce_fetch.consume(
                address, topic, records=count, record_bytes=case.size
            )
        return self._tools.consume(
            address, topic, count, case.size, config=self._files[case.protocol]
        )


def _jaas() -> str:
    return jaas("PLAIN", username=USER, password=PASSWORD)


def bootstrap(cluster: Cluster, protocol: str) -> str:
    """Return the addresses of the brokers' listeners with a protocol."""
    if protocol == "PLAINTEXT":
        return cluster.bootstrap
    return ",".join(_secured(one).secure_address(LISTENERS[protocol]) for one in _all(cluster))


def _all(cluster: Cluster) -> Sequence[Broker]:
    return list(cluster.brokers.values())


def _secured(broker: Broker) -> SecureBroker:
    assert isinstance(broker, SecureBroker)
    return broker


@contextlib.contextmanager
def clusters(folder: Path, own: certificates.Issued, python: str) -> Iterator[dict[str, Cluster]]:
    """The clusters by name, running; ours with an interpreter."""
    settings = {
        **SETTINGS,
        **own.settings(),
        # In PEM, Kafka 2.8 takes encrypted keys only.
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(own.pkcs12_path),
        "ssl.keystore.password": certificates.PASSWORD,
        "ssl.key.password": certificates.PASSWORD,
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.cipher.suites": SUITE,
        "inter.broker.listener.name": "TLS",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": jaas("PLAIN", **{f"user_{USER}": PASSWORD}),
        "offsets.topic.num.partitions": "3",
        "log.segment.delete.delay.ms": DELETE_DELAY_MS,
    }
    kinds: dict[str, type[Broker]] = {
        OURS: _run_by(python, Secured),
        AGAIN: _run_by(python, Secured),
        KAFKA: SecuredKafka,
        DROPS: _run_by(python, Dropping),
    }
    with contextlib.ExitStack() as stack:
        found = {}
        for name, kind in kinds.items():
            directory = folder / name.replace(" ", "-")
            directory.mkdir()
            made = Cluster(directory, BROKERS, settings, kind=kind, own_zookeeper=True)
            found[name] = stack.enter_context(made)
        yield found


def _run_by(python: str, kind: type[Secured]) -> type[Broker]:
    return type(kind.__name__, (kind,), {"python": python})


def versions(name: str, python: str) -> str:
    """Return what computes the cipher in a cluster's brokers."""
    if name == KAFKA:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
        return f"JSSE of {said.stderr.splitlines()[0]}"
    asked = subprocess.run([python, "-c", ASK_VERSIONS], capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def agreed(cluster: Cluster, own: certificates.Issued) -> str:
    """Return what a cluster and OpenSSL, without any wish, agree on."""
    context = ssl.create_default_context(cafile=str(own.authority_path))
    host, _, port = bootstrap(cluster, "SSL").split(",")[0].partition(":")
    with (
        socket.create_connection((host, int(port)), 60) as lower,
        context.wrap_socket(lower, server_hostname=host) as tls,
    ):
        cipher = tls.cipher()
        assert cipher is not None
        return f"{tls.version()} {cipher[0]}"


def _table() -> ratios.Table:
    return ratios.Table(OURS, KAFKA, AGAIN, DROPS)


class Bench:
    """Runs cases against all clusters, and keeps the figures."""

    def __init__(self, found: dict[str, Cluster], client: Client, share: int) -> None:
        self.table = _table()
        self.stolen: dict[str, stolen.Ticks] = {}
        self.loops: list[float] = []
        self._clusters = found
        self._client = client
        self._share = share
        self._runs = 0
        self._counts: dict[Case, int] = {}

    def warm_up(self, cases: Sequence[Case], most: int) -> None:
        """Run each case until Kafka's brokers are warm, and forget what that took but for speeds.

        Their JVMs compile meanwhile. They are warm if they took about as much processor time as in
        the time before, or after `most` times.
        """

        def do_pass(number: int) -> dict[str, float]:
            for case in cases:
                self.run(case, [*self._clusters])
            spent = sum(each[KAFKA][-1] for each in self.table.processor.values())
            self.table = _table()
            self.stolen.clear()
            self.loops.clear()
            print(f"warm-up {number + 1}: Kafka took {spent:.1f} s per GB, in all", flush=True)
            return {KAFKA: spent}

        warmth.warm_up(do_pass, most)

    def run(self, case: Case, names: Sequence[str]) -> None:
        """Run a case against clusters, one after the other."""
        self._runs += 1
        topic = f"bench-{self._runs}"
        first = max(1, MEGABYTES[case.size] * MEGA // case.size // self._share)
        count = self._counts.get(case, first)
        for name in names:
            cluster = self._clusters[name]
            replicas = 1 if case.acks == "1" else BROKERS
            # Over the listener that is measured: brokers tell its addresses.
            clients.create_topic(bootstrap(cluster, case.protocol), topic, PARTITIONS, replicas)
            self._measure(f"produce {case}", name, case, topic, count, self._client.produce)
            if case.acks == "1" and name != DROPS:
                what = f"fetch {case}".partition(",")[0]
                self._measure(what, name, case, topic, count, self._client.fetch)
            admin = AdminClient(clients.settings(bootstrap(cluster, case.protocol)))
            admin.delete_topics([topic])[topic].result(60)
            await_removal(_all(cluster), topic)
        speeds = self.table.speeds[f"produce {case}"].values()
        speed = statistics.median(each[-1] for each in speeds)
        self._counts[case] = records(case, speed, self._share)

    def _measure(
        self,
        what: str,
        name: str,
        case: Case,
        topic: str,
        count: int,
        work: Callable[[Case, Cluster, str, int], float],
    ) -> None:
        cluster = self._clusters[name]
        before = sum(processor_s(one.pid) for one in _all(cluster))
        self.loops.append(steadiness.loop_s())
        machine = stolen.now()
        speed = work(case, cluster, topic, count)
        self.stolen[f"run {self._runs}, {what}: {name}"] = stolen.now().since(machine)
        spent = sum(processor_s(one.pid) for one in _all(cluster)) - before
        self.table.note(what, name, speed, spent / (count * case.size / MEGA / 1000))


def records(case: Case, speed: float, share: int) -> int:
    """Return how many records of a case take RUN_SECONDS, or a share of them, at so many MB/s."""
    replicas = 1 if case.acks == "1" else BROKERS
    megabytes = min(speed * RUN_SECONDS, MOST_MEGABYTES / replicas) / share
    return max(1, int(megabytes * MEGA / case.size))


def cases(options: argparse.Namespace) -> list[Case]:
    """Return what is measured; the quick form has one size of what is not TLS alone."""
    every = [
        Case(protocol, client, size, acks)
        for protocol in options.protocols
        for size in (options.sizes[:1] if options.quick and protocol != "SSL" else options.sizes)
        for client in ("librdkafka", "java")
        for acks in ACKS
    ]
    return [one for one in every if options.only in str(one)]


def _options() -> argparse.Namespace:
    def listed(text: str) -> list[str]:
        found = text.split(",")
        if unknown := set(found) - set(LISTENERS):
            raise argparse.ArgumentTypeError(f"no protocol: {', '.join(sorted(unknown))}")
        return found

    def sizes(text: str) -> list[int]:
        if unknown := set(text.split(",")) - set(map(str, SIZES)):
            raise argparse.ArgumentTypeError(f"not among {SIZES}: {', '.join(sorted(unknown))}")
        return [int(one) for one in text.split(",")]

    parser = argparse.ArgumentParser(description="TLS and SASL_SSL beside Apache Kafka 2.8.2.")
    parser.add_argument(
        "rounds",
        type=bench_produce_fetch.positive,
        nargs="?",
        help="default: 5; 3 with --quick; as many as there is time for with --minutes",
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument(
        "--minutes",
        type=float,
        help="no round but the first begins that would end later than this after the start; "
        f"default: {QUICK_MINUTES:g} with --quick",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases that have it")
    parser.add_argument(
        "--python",
        type=interpreter.find,
        metavar="PROGRAM",
        help="runs this project's brokers, in a new environment with the locked dependencies, "
        "as in `make bench`",
    )
    parser.add_argument("--protocols", type=listed, default=["SSL", "SASL_SSL"])
    parser.add_argument("--sizes", type=sizes, default=list(SIZES))
    options = parser.parse_args()
    options.cases = cases(options)
    if not options.cases:
        parser.error(f"no case has {options.only!r} in its name, as 'SSL java 1000 B, acks=1' has")
    return options


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Measure, and print the table."""
    python = sys.executable
    if options.python is not None:
        python = interpreter.environment(options.python, folder / "environment")
    started = time.monotonic()
    own = certificates.Authority(folder).issue("broker", ["127.0.0.1", "localhost"])
    with clusters(folder, own, python) as found, WarmTools(folder, "512m") as tools:
        client = Client(tools, own)
        for name, cluster in found.items():
            client.log_in(cluster)
            print(f"{name}: {versions(name, python)}; {agreed(cluster, own)}, ECDSA P-256")
        print(f"clients: Java offers {SUITE} only; librdkafka {confluent_kafka.libversion()[0]}")
        bench = Bench(found, client, QUICK_SHARE if options.quick else 1)
        bench.warm_up(options.cases, 1 if options.quick else MOST_WARM_UPS)
        print(f"warm after {time.monotonic() - started:.0f} s", flush=True)
        try:
            _rounds(options, bench, [*found], started)
        finally:
            # Also of what an interruption has left.
            for line in bench.table.lines(GOALS):
                print(line, flush=True)
            print(stolen.said(bench.stolen))
            if bench.loops:
                print(steadiness.said(bench.loops))


def _rounds(options: argparse.Namespace, bench: Bench, names: list[str], started: float) -> None:
    """Measure by turns, for as many rounds, or as long, as the options say."""
    minutes = options.minutes or (QUICK_MINUTES if options.quick else math.inf)
    rounds = options.rounds or (3 if options.quick else sys.maxsize if options.minutes else 5)
    began = time.monotonic()
    for number in range(rounds):
        each = (time.monotonic() - began) / max(1, number)
        if number and time.monotonic() + each > started + 60 * minutes:
            print(f"{number} rounds: there is no time for another one")
            break
        turn = number % len(names)
        turned = names[turn:] + names[:turn]
        for case in options.cases:
            bench.run(case, turned if number % 2 == 0 else turned[::-1])
        print(f"round {number + 1}: {time.monotonic() - started:.0f} s", flush=True)


def main() -> int:
    """Print each case's medians and ratios.

    Return 130 if it was interrupted, and 2 for a Python that cannot run brokers.
    """
    options = _options()
    # Whatever ends the process, brokers and folders go first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure(options, Path(folder))
    except interpreter.UnusableError as error:
        print(f"bench_secured: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench_secured: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
