"""Produce (acks=1) and consume by confluent-kafka, two systems by turns.

    python -m tests.bench.bench_produce_fetch [rounds]
    python -m tests.bench.bench_produce_fetch --against REV [rounds]

Each round measures both systems one after the other, and the next one the other way round, so that
the machine drifts for both. What counts is the ratio. Without a revision the other system is Apache
Kafka 2.8.2, whose jars are those of the tests, fetched with Maven on first use. With one it is this
broker as it was then: first that revision against itself, which says how much of a difference is
noise, then this checkout against it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import confluent_kafka

from tests.bench.side_by_side import Figures
from tests.support import kafka_peer, revision, zookeeper
from tests.support.broker import Broker, Cluster, FreshBroker, wait_until
from tests.support.clients import create_topic, settings
from tests.support.ports import free_port

PARTITIONS = 6
RECORD_BYTES = 1000
RECORDS = 200_000
WARM_UP_SHARE = 4
MEGA = 1_000_000


def produce(
    bootstrap: str,
    topic: str,
    acks: int | str = 1,
    *,
    records: int = RECORDS,
    record_bytes: int = RECORD_BYTES,
) -> float:
    """Megabytes a second."""
    producer = confluent_kafka.Producer(
        {
            **settings(bootstrap),
            "acks": acks,
            "linger.ms": 5,
            "batch.size": 65536,
            "queue.buffering.max.messages": 500_000,
        }
    )
    value = os.urandom(record_bytes)
    began = time.perf_counter()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(120) == 0
    return records * record_bytes / (time.perf_counter() - began) / MEGA


def consume(
    bootstrap: str, topic: str, *, records: int = RECORDS, record_bytes: int = RECORD_BYTES
) -> float:
    """Megabytes a second, from the beginnings to the ends."""
    consumer = confluent_kafka.Consumer(
        {
            **settings(bootstrap),
            "group.id": "bench",
            "enable.auto.commit": False,
            # A full queue stops it for a second, which a fast broker sees more often.
            "queued.max.messages.kbytes": 1_048_576,
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    left = records
    began = time.perf_counter()
    while left:
        left -= len(consumer.consume(min(left, 10_000), timeout=1))
    seconds = time.perf_counter() - began
    consumer.close()
    return records * record_bytes / seconds / MEGA


@contextlib.contextmanager
def apache_kafka(directory: Path) -> Iterator[str]:
    """A broker of Apache Kafka with its ZooKeeper; yields its address."""
    directory.mkdir()
    with zookeeper.Server(directory) as keeper:
        address = f"127.0.0.1:{free_port()}"
        properties = directory / "server.properties"
        properties.write_text(
            f"broker.id=1\nlisteners=PLAINTEXT://{address}\nlog.dirs={directory / 'data'}\n"
            f"zookeeper.connect={keeper.connect}\noffsets.topic.replication.factor=1\n"
        )
        with (directory / "kafka.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    "java",
                    "-Xms1g",
                    "-Xmx1g",
                    "-cp",
                    kafka_peer.classpath(),
                    "kafka.Kafka",
                    str(properties),
                ],
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(lambda: _answers(address), "Kafka answers", 120)
            yield address
        finally:
            process.kill()
            process.wait()


def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


def compare(systems: Mapping[str, str], rounds: int, records: int) -> None:
    """Measure two systems, given by their addresses, by turns, and print the ratios."""
    figures = Figures()
    for bootstrap in systems.values():
        create_topic(bootstrap, "warm-up", PARTITIONS)
        for measure in (produce, consume):
            measure(bootstrap, "warm-up", records=max(1, records // WARM_UP_SHARE))
    for number in range(rounds):
        topic = f"bench-{number}"
        for name in list(systems)[:: 1 if number % 2 == 0 else -1]:
            create_topic(systems[name], topic, PARTITIONS)
            for what, measure in (("produce", produce), ("consume", consume)):
                speed = measure(systems[name], topic, records=records)
                figures.note(name, what, speed, "MB/s")
    figures.print_ratios()


def against_kafka(rounds: int, records: int) -> None:
    """Compare this checkout with Apache Kafka."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        cluster = Cluster(Path(folder), kind=FreshBroker, own_zookeeper=True)
        systems = {
            "odradek": running.enter_context(cluster).bootstrap,
            "kafka 2.8.2": running.enter_context(apache_kafka(Path(folder) / "kafka")),
        }
        compare(systems, rounds, records)


def broker_of(root: Path) -> type[Broker]:
    """Return the kind of broker that runs the packages below a folder."""

    class BrokerOfRevision(FreshBroker):
        def _command(self) -> list[str]:
            path = revision.environment(root)["PYTHONPATH"]
            return ["env", f"PYTHONPATH={path}", *super()._command()]

    return BrokerOfRevision


@contextlib.contextmanager
def one_broker(root: Path) -> Iterator[str]:
    """A broker of the packages below a folder, with its ZooKeeper; yields its address."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(Path(folder), kind=broker_of(root), own_zookeeper=True) as cluster,
    ):
        yield cluster.bootstrap


def against_revision(wanted: str, rounds: int, records: int) -> None:
    """Compare a revision with itself, then this checkout with it."""
    with revision.sources(wanted) as root:
        for first, name in ((root, f"{wanted} again"), (revision.ROOT, "here")):
            print(f"--- {name} / {wanted}", flush=True)
            with one_broker(first) as one, one_broker(root) as other:
                compare({name: one, wanted: other}, rounds, records)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def main() -> int:
    """Print each round's figures and the medians' ratios."""
    parser = argparse.ArgumentParser(description="Produce and consume, two systems by turns.")
    parser.add_argument("rounds", type=positive, nargs="?", default=3)
    parser.add_argument("--against", metavar="REV", help="compare with a revision, not with Kafka")
    parser.add_argument(
        "--records", type=positive, default=RECORDS, help="records a round (default: %(default)s)"
    )
    options = parser.parse_args()
    # Whatever ends the process, brokers and folders go first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.against is None:
            against_kafka(options.rounds, options.records)
        else:
            against_revision(options.against, options.rounds, options.records)
    except revision.UnknownRevisionError as error:
        print(f"bench_produce_fetch: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench_produce_fetch: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
