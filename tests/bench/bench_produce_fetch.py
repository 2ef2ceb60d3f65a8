"""Produce (acks=1) and consume by confluent-kafka, this broker and Apache Kafka 2.8.2 by turns.

    python -m tests.bench.bench_produce_fetch [rounds]

Each round measures both systems one after the other, so that the machine drifts for both. What
counts is the ratio. Kafka's jars are those of the tests, fetched with Maven on first use.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka

from tests.support import kafka_peer, zookeeper
from tests.support.broker import Cluster, wait_until
from tests.support.clients import QUIET, create_topic
from tests.support.ports import free_port

PARTITIONS = 6
RECORD_BYTES = 1000
RECORDS = 200_000
MEGA = 1_000_000


def produce(bootstrap: str, topic: str, acks: int | str = 1) -> float:
    """Megabytes a second."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "linger.ms": 5,
            "batch.size": 65536,
            "queue.buffering.max.messages": 500_000,
            **QUIET,
        }
    )
    value = os.urandom(RECORD_BYTES)
    began = time.perf_counter()
    for number in range(RECORDS):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(120) == 0
    return RECORDS * RECORD_BYTES / (time.perf_counter() - began) / MEGA


def consume(bootstrap: str, topic: str) -> float:
    """Megabytes a second, from the beginnings to the ends."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            **QUIET,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    left = RECORDS
    began = time.perf_counter()
    while left:
        left -= len(consumer.consume(min(left, 10_000), timeout=1))
    seconds = time.perf_counter() - began
    consumer.close()
    return RECORDS * RECORD_BYTES / seconds / MEGA


@contextlib.contextmanager
def apache_kafka(directory: Path) -> Iterator[str]:
    """A broker of Apache Kafka with its ZooKeeper; yields its address."""
    directory.mkdir()
    with zookeeper.Server(directory) as keeper:
        address = f"127.0.0.1:{free_port()}"
        settings = directory / "server.properties"
        settings.write_text(
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
                    str(settings),
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


def main(rounds: int) -> None:
    """Print each round's figures and the medians' ratios."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        cluster = Cluster(Path(folder))
        systems = {
            "odradek": running.enter_context(cluster).bootstrap,
            "kafka 2.8.2": running.enter_context(apache_kafka(Path(folder) / "kafka")),
        }
        found: dict[tuple[str, str], list[float]] = {}
        for number in range(rounds):
            for name, bootstrap in systems.items():
                topic = f"bench-{number}"
                create_topic(bootstrap, topic, PARTITIONS)
                for what, measure in (("produce", produce), ("consume", consume)):
                    speed = measure(bootstrap, topic)
                    found.setdefault((name, what), []).append(speed)
                    print(f"round {number + 1}: {name:12} {what} {speed:7.1f} MB/s", flush=True)
        for what in ("produce", "consume"):
            ours, theirs = (statistics.median(found[name, what]) for name in systems)
            print(f"{what}: odradek / kafka = {ours / theirs:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
