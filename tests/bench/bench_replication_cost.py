"""What a megabyte with acks=all costs three brokers, of two revisions.

    python -m tests.bench.bench_replication_cost --against REV [rounds]
    python -m tests.bench.bench_replication_cost --against REV --counted

A bare socket per leader writes batches of 64 KiB, with five requests on the way as Java producers
have. Each round measures both revisions, one after the other: the processor time of the brokers,
and the speed. With `--counted` brokers run under valgrind, which counts the instructions that they
execute outside of the kernel (see `bench_instructions`). That is slow, and nearly the same on a
busy machine.
"""

from __future__ import annotations

import argparse
import contextlib
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient

from odradek.log.records import records
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.replica.appends import ACKS_ALL
from tests.bench.bench_instructions import CountedBroker
from tests.bench.bench_partitions import processor_s
from tests.bench.bench_produce_fetch import MEGA, PARTITIONS, broker_of, positive
from tests.bench.bench_requests import BATCH_BYTES, framed, receive
from tests.bench.side_by_side import BROKERS, Figures
from tests.support import revision
from tests.support.broker import STEADY, Broker, Cluster
from tests.support.clients import QUIET, create_topic

TOPIC: Final = "written"
UNDER_WAY: Final = 5
WARM_UP_REQUESTS: Final = 50
COUNTED_REQUESTS: Final = 100
REQUESTS: Final = 500


def running(folder: Path, kind: type[Broker]) -> Cluster:
    """Return three brokers of a kind."""
    folder.mkdir()
    return Cluster(folder, BROKERS, STEADY, kind=kind)


def requests_by_leader(cluster: Cluster) -> dict[int, bytes]:
    """Make the topic; return a Produce per leader, with a batch for each of its partitions."""
    create_topic(cluster.bootstrap, TOPIC, PARTITIONS, BROKERS)
    client = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    led: dict[int, list[int]] = defaultdict(list)
    for number, one in client.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions.items():
        led[one.leader].append(number)
    values = [(None, b"v" * 1000)] * (BATCH_BYTES // 1010)
    batch = records.make(values, time.time_ns() // MEGA)
    return {leader: framed(produced(numbers, batch), 8) for leader, numbers in led.items()}


def produced(partitions: list[int], batch: bytes) -> ProduceRequest:
    """Return a request with the batch for each of the partitions."""
    data = [PartitionProduceData(index=one, records=batch) for one in partitions]
    return ProduceRequest(
        acks=ACKS_ALL,
        timeout_ms=600_000,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=data)],
    )


def write(cluster: Cluster, by_leader: dict[int, bytes], requests: int) -> float:
    """Send so many requests to each leader; return the seconds until all were answered."""
    buffer = memoryview(bytearray(BATCH_BYTES))
    began = time.perf_counter()
    with selectors.DefaultSelector() as answers, contextlib.ExitStack() as stack:
        unsent: dict[int, int] = {}
        for leader, frame in by_leader.items():
            sock = stack.enter_context(cluster.brokers[leader].connect())
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answers.register(sock, selectors.EVENT_READ, leader)
            unsent[leader] = requests - UNDER_WAY
            for _ in range(UNDER_WAY):
                sock.sendall(frame)
        unanswered = requests * len(by_leader)
        while unanswered:
            for key, _ in answers.select():
                assert isinstance(key.fileobj, socket.socket)
                sock, leader = key.fileobj, key.data
                receive(sock, buffer)
                unanswered -= 1
                if unsent[leader]:
                    unsent[leader] -= 1
                    sock.sendall(by_leader[leader])
    return time.perf_counter() - began


def timed(roots: dict[str, Path], rounds: int) -> None:
    """Print the processor time and the speed of both, and the ratios."""
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        clusters = {
            name: stack.enter_context(running(Path(folder) / str(number), broker_of(root)))
            for number, (name, root) in enumerate(roots.items())
        }
        asked = {name: requests_by_leader(cluster) for name, cluster in clusters.items()}
        for name, cluster in clusters.items():
            write(cluster, asked[name], WARM_UP_REQUESTS)
        for number in range(rounds):
            for name in list(clusters)[:: 1 if number % 2 == 0 else -1]:
                brokers = clusters[name].brokers.values()
                megabytes = REQUESTS * sum(map(len, asked[name].values())) / MEGA
                before = sum(processor_s(one.pid) for one in brokers)
                seconds = write(clusters[name], asked[name], REQUESTS)
                spent = sum(processor_s(one.pid) for one in brokers) - before
                figures.note(name, "processor of three brokers", spent / megabytes * 1000, "s/GB")
                figures.note(name, "acks=all", megabytes / seconds, "MB/s")
    figures.print_ratios()


def counted(root: Path, requests: int) -> tuple[int, float]:
    """Return what three brokers execute in their lives, and how many megabytes were written."""
    kind = type("CountedBrokerOfRevision", (CountedBroker,), {"root": root, "protocols": {}})
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder) / "brokers", kind) as cluster,
    ):
        by_leader = requests_by_leader(cluster)
        write(cluster, by_leader, requests)
        found = 0
        for broker in cluster.brokers.values():
            assert isinstance(broker, CountedBroker)
            found += broker.instructions()
        return found, requests * sum(map(len, by_leader.values())) / MEGA


def count(roots: dict[str, Path]) -> None:
    """Print the instructions per megabyte of both, and their ratio."""
    each: list[float] = []
    for name, root in roots.items():
        idle, before = counted(root, WARM_UP_REQUESTS)
        spent, after = counted(root, WARM_UP_REQUESTS + COUNTED_REQUESTS)
        each.append((spent - idle) / (after - before))
        print(f"{name:12} {each[-1]:12.0f} instructions per MB", flush=True)
    print(f"ratio {each[0] / each[1]:.3f}")


def main() -> int:
    """Print what both revisions take."""
    parser = argparse.ArgumentParser(description="The cost of acks=all, of two revisions.")
    parser.add_argument("rounds", type=positive, nargs="?", default=5)
    parser.add_argument("--against", metavar="REV", required=True)
    parser.add_argument("--counted", action="store_true", help="instructions, under valgrind")
    options = parser.parse_args()
    if options.counted and shutil.which("valgrind") is None:
        print("bench_replication_cost: install valgrind", file=sys.stderr)
        return 2
    # Whatever ends the process, brokers and folders go first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with revision.sources(options.against) as root:
            roots = {"here": revision.ROOT, options.against: root}
            if options.counted:
                count(roots)
            else:
                timed(roots, options.rounds)
    except revision.UnknownRevisionError as error:
        print(f"bench_replication_cost: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench_replication_cost: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
