"""What one request costs a real broker process, and what an idle connection does.

    python -m tests.bench.bench_requests

Processor time of the broker, from the kernel's account of it: `user` is Python and checksums,
`system` what the kernel does for it (sockets, and files: a Produce's write is there). The sum is
exact, the two are told apart by the clock's ticks, so rounds are long; the round with the least sum
counts. On a busy virtual machine both grow manifold. Before a measurement the broker has nothing
else left to do. Goals: Produce of one 64 KiB batch 60 microseconds besides checksum and write, a
Fetch answer of 1 MiB 80, an idle connection 32 KiB.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tempfile
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from crc32c import crc32c

from odradek.log import records
from odradek.protocol import codec, headers
from odradek.protocol.api import APIS
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.broker import Broker, Cluster, wait_until
from tests.support.clients import QUIET, create_topic
from tests.support.memory_use import resident_bytes

TICKS = os.sysconf("SC_CLK_TCK")
BATCH_BYTES = 64 * 1024
MEBIBYTE = 1024 * 1024
IDLE_CONNECTIONS = 2000
TOPICS = 1000
ROUNDS = 5
ROUND_SECONDS = 2.0
AT_REST = 0.03
"""Share of a processor that a broker without requests may take."""


def framed(request: object, version: int) -> bytes:
    key = next(api.key for api in APIS.values() if api.request is type(request))
    header = headers.encode_request_header(headers.RequestHeader(key, version, 1, "bench"))
    body = header + codec.encode(request, version)
    return struct.pack(">i", len(body)) + body


def processor_seconds(broker: Broker) -> tuple[float, float]:
    """User and system time that the process has had."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS


def receive(sock: socket.socket, buffer: memoryview) -> None:
    """Read one answer and forget it."""
    sock.recv_into(buffer[:4], 4, socket.MSG_WAITALL)
    left = struct.unpack_from(">i", buffer)[0]
    while left:
        left -= sock.recv_into(buffer, min(left, len(buffer)))


def await_rest(broker: Broker) -> None:
    """Return when what was asked before, topics to be made for instance, is done."""

    def rests() -> bool:
        before, began = sum(processor_seconds(broker)), time.monotonic()
        time.sleep(1)
        return sum(processor_seconds(broker)) - before < AT_REST * (time.monotonic() - began)

    wait_until(rests, f"broker {broker.broker_id} is at rest")


def cost(broker: Broker, frame: bytes) -> tuple[float, float]:
    """Microseconds of user and system time a request, of the cheapest round."""
    await_rest(broker)
    rounds: list[tuple[float, float]] = []
    buffer = memoryview(bytearray(4 * MEBIBYTE))
    with broker.connect() as sock:
        for _ in range(ROUNDS):
            count, began = 0, time.monotonic()
            before = processor_seconds(broker)
            while time.monotonic() - began < ROUND_SECONDS:
                for _ in range(100):
                    sock.sendall(frame)
                    receive(sock, buffer)
                count += 100
            after = processor_seconds(broker)
            user, system = ((b - a) / count * 1e6 for a, b in zip(before, after, strict=True))
            rounds.append((user, system))
    return min(rounds, key=sum)


def report(what: str, figures: tuple[float, float], note: str = "") -> None:
    print(f"{what:<44}{figures[0]:>8.1f} us user {figures[1]:>8.1f} us system  {note}")


def checksum_us(data: bytes) -> float:
    """Microseconds of a checksum over bytes that are not in the processor's nearest cache, as those
    from a socket are not.
    """
    copies = [bytearray(data) for _ in range(32)]
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for copy in copies:
            crc32c(copy)
        best = min(best, time.process_time() - began)
    return best / len(copies) * 1e6


def bench_produce_and_fetch(cluster: Cluster) -> None:
    broker = cluster.brokers[1]
    for topic in ("written", "short"):
        create_topic(cluster.bootstrap, topic)
    values = [(None, b"v" * 1000)] * (BATCH_BYTES // 1010)
    batch = records.make(values, time.time_ns() // 1_000_000)
    user, system = cost(broker, framed(produce("written", batch), 8))
    checksum = checksum_us(batch)
    report(
        f"Produce v8, one batch of {len(batch)}",
        (user, system),
        f"user time besides the checksum ({checksum:.1f} us): {user - checksum:.1f} us",
    )
    buffer = memoryview(bytearray(MEBIBYTE))
    with broker.connect() as sock:
        for _ in range(2 * MEBIBYTE // BATCH_BYTES):
            sock.sendall(framed(produce("short", batch), 8))
            receive(sock, buffer)
    for topic, note in (("short", "the open segment"), ("written", "a closed one, verified")):
        report("Fetch v11, answer of 1 MiB", cost(broker, framed(fetch(topic), 11)), note)


def produce(topic: str, batch: bytes) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=batch)
    return ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=topic, partition_data=[partition])],
    )


def fetch(topic: str) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MEBIBYTE)
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=50 * MEBIBYTE,
        topics=[FetchTopic(topic=topic, partitions=[asked])],
    )


def bench_metadata(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    wanted = [NewTopic(f"topic-{number}", 3, 1) for number in range(TOPICS)]
    for done in admin.create_topics(wanted, operation_timeout=120, request_timeout=150).values():
        done.result(180)
    frame = framed(MetadataRequest(topics=None), 8)
    report(f"Metadata v8 of all {TOPICS} topics", cost(cluster.brokers[1], frame))


def bench_idle_connections(cluster: Cluster) -> None:
    broker = cluster.brokers[1]
    hello = framed(ApiVersionsRequest(), 0)
    buffer = memoryview(bytearray(65536))
    before = resident_bytes(broker.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE_CONNECTIONS):
            sock = stack.enter_context(broker.connect())
            sock.sendall(hello)
            receive(sock, buffer)
        grown = resident_bytes(broker.pid) - before
    print(f"{IDLE_CONNECTIONS} idle connections: {grown / IDLE_CONNECTIONS / 1024:.1f} KiB each")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, Cluster(Path(directory)) as cluster:
        bench_idle_connections(cluster)
        bench_produce_and_fetch(cluster)
        bench_metadata(cluster)


if __name__ == "__main__":
    main()
