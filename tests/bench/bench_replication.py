"""Replication of this broker and of Apache Kafka 2.8.2 by turns, to all of three brokers.

    python -m tests.bench.bench_replication [rounds]

The time from SIGKILL of a leader to the next acknowledged record of its partition, with acks=all
and min.insync.replicas=2, and how much of it followed the end of the dead broker's session in
ZooKeeper; and the throughput of acks=all. Clients and settings are the same for both.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer

from tests.bench import side_by_side
from tests.bench.bench_produce_fetch import PARTITIONS, produce
from tests.bench.side_by_side import (
    Figures,
    SessionEnd,
    controller_of,
    metadata,
    restart,
    wait_for,
)
from tests.support.broker import Broker, Cluster
from tests.support.clients import QUIET, create_topic

KILLS_A_ROUND = 2


def led_by_another(cluster: Cluster, topic: str) -> tuple[int, Broker]:
    """A partition whose leader is not the controller, and that leader."""
    controller = controller_of(cluster)
    [found] = [one for one in metadata(controller).topics if one.name == topic]
    return next(
        (one.partition_index, cluster.brokers[one.leader_id])
        for one in found.partitions
        if one.leader_id != controller.broker_id
    )


def failover(cluster: Cluster, topic: str) -> tuple[float, float]:
    """Seconds from the SIGKILL, and from the session's end, to the next acknowledged record."""
    create_topic(cluster.bootstrap, topic, side_by_side.BROKERS, side_by_side.BROKERS)
    partition, leader = led_by_another(cluster, topic)
    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 20,
            "topic.metadata.refresh.fast.interval.ms": 20,
            **QUIET,
        }
    )

    def write() -> None:
        producer.produce(
            topic,
            b"record",
            partition=partition,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        assert producer.flush(side_by_side.LIMIT_SECONDS) == 0
        assert not failures

    write()
    with cluster.zookeeper.client() as keeper:
        session = SessionEnd(keeper, leader)
        time.sleep(random.uniform(0, 2))  # anywhere between two of its heartbeats
        leader.kill()
        killed = time.perf_counter()
        write()
        acknowledged = time.perf_counter()
        wait_for(lambda: session.at > 0, "the session ends")
    restart(cluster, leader)
    return acknowledged - killed, acknowledged - session.at


def main(rounds: int) -> None:
    """Print each round's figures, and the medians' ratios."""
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        clusters = side_by_side.both(Path(folder), stack)
        for number in range(rounds):
            for name, cluster in clusters.items():
                topic = f"throughput-{number}"
                create_topic(cluster.bootstrap, topic, PARTITIONS, side_by_side.BROKERS)
                figures.note(
                    name, "acks=all", produce(cluster.bootstrap, topic, acks="all"), "MB/s"
                )
            for kill in range(KILLS_A_ROUND):
                for name, cluster in clusters.items():
                    since_kill, since_end = failover(cluster, f"failover-{number}-{kill}")
                    figures.note(name, "leader killed, next record", since_kill * 1000, "ms")
                    figures.note(name, "of that after its session", since_end * 1000, "ms")
    figures.print_ratios()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
