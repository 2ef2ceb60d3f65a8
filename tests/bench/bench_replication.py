"""Replication of this broker and of Apache Kafka 2.8.2 by turns, to all of three brokers.

    python -m tests.bench.bench_replication [rounds]

The time from SIGKILL of a leader to the next acknowledged record of its partition, with acks=all
and min.insync.replicas=2, and how much of it followed the end of the dead broker's session in
ZooKeeper; and the throughput of acks=all. Clients and settings are the same for both.

Who writes after the kill looks for the new leader every 20 ms. librdkafka does so once a second,
which is more than what is to be measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from odradek.log.records import records
from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.bench import side_by_side
from tests.bench.bench_produce_fetch import PARTITIONS, produce
from tests.bench.side_by_side import (
    Death,
    Figures,
    controller_of,
    metadata,
    restart,
    wait_for,
)
from tests.support.broker import Broker, Cluster
from tests.support.clients import create_topic

KILLS_A_ROUND = 2
ACKS_ALL = -1
LIMIT_MS = int(side_by_side.LIMIT_SECONDS * 1000)


def led_by_another(
    brokers: Mapping[int, Broker], controller: Broker, topic: str
) -> tuple[int, Broker]:
    """A partition whose leader is not the controller, and that leader."""
    [found] = [one for one in metadata(controller).topics if one.name == topic]
    return next(
        (one.partition_index, brokers[one.leader_id])
        for one in found.partitions
        if one.leader_id != controller.broker_id
    )


async def write(
    brokers: Sequence[Broker],
    topic: str,
    partition: int,
    pause_s: float = side_by_side.PAUSE_SECONDS,
) -> float:
    """Write a record to whom one of the brokers names as leader, until it is acknowledged; the time
    on the performance counter then. The next broker is asked after a pause.
    """
    batch = records.make([(None, b"record")], time.time_ns() // 1_000_000)
    produced = PartitionProduceData(index=partition, records=batch)
    request = ProduceRequest(
        acks=ACKS_ALL,
        timeout_ms=LIMIT_MS,
        topic_data=[TopicProduceData(name=topic, partition_data=[produced])],
    )
    clients = {one.broker_id: PeerClient("127.0.0.1", one.port, "bench") for one in brokers}
    try:
        async with asyncio.timeout(side_by_side.LIMIT_SECONDS):
            for client in itertools.cycle(clients.values()):
                found = await client.call(
                    MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 5, LIMIT_MS
                )
                for one in found.topics[0].partitions:
                    if one.partition_index == partition and one.leader_id in clients:
                        answer = await clients[one.leader_id].call(request, 8, LIMIT_MS)
                        if answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE:
                            return time.perf_counter()
                await asyncio.sleep(pause_s)
    finally:
        for client in clients.values():
            await client.close()
    raise AssertionError("there are brokers")


def failover(cluster: Cluster, topic: str) -> tuple[float, float]:
    """Seconds from the SIGKILL, and from the session's end, to the next acknowledged record."""
    create_topic(cluster.bootstrap, topic, side_by_side.BROKERS, side_by_side.BROKERS)
    partition, leader = led_by_another(cluster.brokers, controller_of(cluster), topic)
    asyncio.run(write([leader], topic, partition))
    left = [one for one in cluster.brokers.values() if one is not leader]
    with cluster.zookeeper.client() as keeper:
        death = Death(keeper, leader)
        acknowledged = asyncio.run(write(left, topic, partition))
        wait_for(lambda: death.session_ended > 0, "the session ends")
    restart(cluster, leader)
    return acknowledged - death.killed, acknowledged - death.session_ended


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
