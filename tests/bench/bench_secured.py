"""Produce and fetch over TLS and SASL_SSL, beside Apache Kafka 2.8.2.

    python -m tests.bench.bench_secured [rounds]
    python -m tests.bench.bench_secured --quick
    python -m tests.bench.bench_secured --protocols PLAINTEXT,SSL --sizes 1000

Four clusters of three brokers on one machine: this project's, the same once more, Kafka's, and one
that acknowledges records and drops them (`dropping_broker`), each with a ZooKeeper. All have the
same certificate (ECDSA P-256), talk TLS among themselves, and serve the same outside clients:
librdkafka, and Kafka's ProducerPerformance and ConsumerPerformance in a JVM that goes on. Clients
and brokers speak TLS 1.3 and take, or prefer, AES-256-GCM: what OpenSSL and each cluster agree on
is printed, and Java offers nothing else.

The clusters are measured by turns, in another order each round, so that the machine drifts for all.
What counts is the ratio; that of the two equal clusters says how much of it is noise. With acks=1
topics have one replica, with acks=all three. Processor time is that of the three brokers, per
gigabyte that clients wrote or read; with acks=all it has the replication.

The brokers that drop tell what a producer reaches where nothing is stored: a case in which this
project reaches 0.9 of that measures the client, whatever its ratio to Kafka is.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient

from tests.bench import bench_produce_fetch, ratios
from tests.bench.bench_partitions import processor_s
from tests.bench.side_by_side import BROKERS, SETTINGS, KafkaAtItsBest
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
# Of one run. Small records are few: clients need most of the time for them.
MEGABYTES: Final = {100: 40, 1000: 150, 10_000: 200}
QUICK_SHARE: Final = 4
# With `quick`, no round but the first begins that would end later than this after the start.
QUICK_SECONDS: Final = 450
USER, PASSWORD = "bench", "bench-secret"


class Secured(SecureBroker, FreshBroker):
    """A broker of this checkout with every listener."""

    protocols = {"TLS": "SSL", "SECURE": "SASL_SSL"}


class Dropping(Secured):
    """The same, but for records: they are acknowledged and dropped."""

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "tests.bench.dropping_broker"]


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
def clusters(folder: Path, own: certificates.Issued) -> Iterator[dict[str, Cluster]]:
    """The clusters by name, running."""
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
    }
    kinds: dict[str, type[Broker]] = {
        OURS: Secured,
        AGAIN: Secured,
        KAFKA: SecuredKafka,
        DROPS: Dropping,
    }
    with contextlib.ExitStack() as stack:
        found = {}
        for name, kind in kinds.items():
            directory = folder / name.replace(" ", "-")
            directory.mkdir()
            made = Cluster(directory, BROKERS, settings, kind=kind, own_zookeeper=True)
            found[name] = stack.enter_context(made)
        yield found


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
        self._clusters = found
        self._client = client
        self._share = share
        self._runs = 0

    def warm_up(self, cases: Sequence[Case]) -> None:
        """Run cases with records of one size, and forget what that took: JVMs compile meanwhile."""
        for case in cases:
            if case.size == cases[0].size:
                self.run(case, [*self._clusters])
        self.table = _table()

    def run(self, case: Case, names: Sequence[str]) -> None:
        """Run a case against clusters, one after the other."""
        self._runs += 1
        topic = f"bench-{self._runs}"
        count = max(1, MEGABYTES[case.size] * MEGA // case.size // self._share)
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
        speed = work(case, cluster, topic, count)
        spent = sum(processor_s(one.pid) for one in _all(cluster)) - before
        self.table.note(what, name, speed, spent / (count * case.size / MEGA / 1000))


def cases(options: argparse.Namespace) -> list[Case]:
    """Return what is measured; the quick form has one size of what is not TLS alone."""
    return [
        Case(protocol, client, size, acks)
        for protocol in options.protocols
        for size in (options.sizes[:1] if options.quick and protocol != "SSL" else options.sizes)
        for client in ("librdkafka", "java")
        for acks in ACKS
    ]


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
        "rounds", type=bench_produce_fetch.positive, nargs="?", help="default: 5; 3 with --quick"
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--protocols", type=listed, default=["SSL", "SASL_SSL"])
    parser.add_argument("--sizes", type=sizes, default=list(SIZES))
    return parser.parse_args()


def measure(options: argparse.Namespace) -> None:
    """Measure, and print the table."""
    rounds = options.rounds or (3 if options.quick else 5)
    started = time.monotonic()
    wanted = cases(options)
    with tempfile.TemporaryDirectory() as folder:
        own = certificates.Authority(Path(folder)).issue("broker", ["127.0.0.1", "localhost"])
        with clusters(Path(folder), own) as found, WarmTools(Path(folder), "512m") as tools:
            client = Client(tools, own)
            for name, cluster in found.items():
                client.log_in(cluster)
                print(f"{name}: {agreed(cluster, own)}, ECDSA P-256; Java offers {SUITE} only")
            bench = Bench(found, client, QUICK_SHARE if options.quick else 1)
            bench.warm_up(wanted)
            began = time.monotonic()
            print(f"warm after {began - started:.0f} s", flush=True)
            try:
                for number in range(rounds):
                    each = (time.monotonic() - began) / max(1, number)
                    if (
                        options.quick
                        and number
                        and time.monotonic() + each > started + QUICK_SECONDS
                    ):
                        print(f"{number} of {rounds} rounds: the machine is too slow for more")
                        break
                    turn = number % len(found)
                    for case in wanted:
                        names = [*found][turn:] + [*found][:turn]
                        bench.run(case, names if number % 2 == 0 else names[::-1])
                    print(f"round {number + 1}: {time.monotonic() - started:.0f} s", flush=True)
            finally:
                # Also of what an interruption has left.
                for line in bench.table.lines(GOALS):
                    print(line, flush=True)


def main() -> int:
    """Print each case's medians and ratios; return 130 if it was interrupted."""
    options = _options()
    # Whatever ends the process, brokers and folders go first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        measure(options)
    except KeyboardInterrupt:
        print("bench_secured: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
