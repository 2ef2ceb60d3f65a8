"""What one request costs a real broker process, and what an idle connection does.

    python -m tests.bench.bench_requests

`Python` is what the event loop does between the system calls of a request, without the checksum,
the median of all requests (see `stopwatch`). `processor` is the kernel's account of the whole
process, sockets, files and checksums included; on a busy virtual machine it grows manifold. Before
a measurement the broker has nothing else left to do. Goals: Produce of one 64 KiB batch 60
microseconds of Python, a Fetch answer of 1 MiB 80, an idle connection 32 KiB.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from odradek.log.records import records
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
from tests.bench import stopwatch
from tests.bench.bench_partitions import processor_s
from tests.support.broker import Broker, Cluster, FreshBroker, wait_until
from tests.support.clients import QUIET, create_topic
from tests.support.memory_use import resident_bytes

BATCH_BYTES = 64 * 1024
MEBIBYTE = 1024 * 1024
IDLE_CONNECTIONS = 2000
CONNECTIONS = 3000
TOPICS = 1000
WARM_UP = 200
SECONDS = 5.0
AT_REST = 0.03
"""Share of a processor that a broker without requests may take."""


def framed(request: object, version: int) -> bytes:
    key = next(api.key for api in APIS.values() if api.request is type(request))
    header = headers.encode_request_header(headers.RequestHeader(key, version, 1, "bench"))
    body = header + codec.encode(request, version)
    return struct.pack(">i", len(body)) + body


def receive(sock: socket.socket, buffer: memoryview) -> None:
    """Read one answer and forget it; a TLS socket takes no flags."""
    head = b""
    while len(head) < 4:
        head += sock.recv(4 - len(head))
    left = struct.unpack(">i", head)[0]
    while left:
        left -= sock.recv_into(buffer, min(left, len(buffer)))


def await_rest(broker: Broker) -> None:
    """Return when what was asked before, topics to be made for instance, is done."""

    def rests() -> bool:
        before, began = processor_s(broker.pid), time.monotonic()
        time.sleep(1)
        return processor_s(broker.pid) - before < AT_REST * (time.monotonic() - began)

    wait_until(rests, f"broker {broker.broker_id} is at rest")


class TimedBroker(FreshBroker):
    """A broker that times its own Python."""

    @property
    def _answer(self) -> Path:
        return self.log_path.with_suffix(".stopwatch")

    def _command(self) -> list[str]:
        timed = [sys.executable, "-m", "tests.bench.stopwatch", "broker"]
        return ["env", f"{stopwatch.RESULT}={self._answer}", *timed]

    def python_us(self) -> float:
        """Microseconds of Python that the median request took since the last call."""
        os.kill(self.pid, signal.SIGUSR1)
        wait_until(self._answer.exists, "the stopwatch was read")
        found = json.loads(self._answer.read_text())
        self._answer.unlink()
        return float(found["median_us"])


def measure(what: str, broker: TimedBroker, frame: bytes, note: str = "") -> None:
    """Ask the same again and again, and print what that cost."""
    await_rest(broker)
    buffer = memoryview(bytearray(4 * MEBIBYTE))
    with broker.connect() as sock:
        for _ in range(WARM_UP):
            sock.sendall(frame)
            receive(sock, buffer)
        broker.python_us()
        count, began, before = 0, time.monotonic(), processor_s(broker.pid)
        while time.monotonic() - began < SECONDS:
            for _ in range(100):
                sock.sendall(frame)
                receive(sock, buffer)
            count += 100
        processor = (processor_s(broker.pid) - before) / count * 1e6
        python = broker.python_us()
    print(f"{what:<44}{python:>8.1f} us Python {processor:>8.1f} us processor  {note}", flush=True)


def bench_produce_and_fetch(cluster: Cluster, broker: TimedBroker) -> None:
    for topic in ("written", "short"):
        create_topic(cluster.bootstrap, topic)
    values = [(None, b"v" * 1000)] * (BATCH_BYTES // 1010)
    batch = records.make(values, time.time_ns() // 1_000_000)
    measure(f"Produce v8, one batch of {len(batch)}", broker, framed(produce("written", batch), 8))
    buffer = memoryview(bytearray(MEBIBYTE))
    with broker.connect() as sock:
        for _ in range(2 * MEBIBYTE // BATCH_BYTES):
            sock.sendall(framed(produce("short", batch), 8))
            receive(sock, buffer)
    for topic, note in (("short", "the open segment"), ("written", "a closed one, verified")):
        measure("Fetch v11, answer of 1 MiB", broker, framed(fetch(topic), 11), note)


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


def bench_metadata(cluster: Cluster, broker: TimedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    wanted = [NewTopic(f"topic-{number}", 3, 1) for number in range(TOPICS)]
    for done in admin.create_topics(wanted, operation_timeout=120, request_timeout=150).values():
        done.result(180)
    frame = framed(MetadataRequest(topics=None), 8)
    measure(f"Metadata v8 of all {TOPICS} topics", broker, frame)


def bench_idle_connections(broker: TimedBroker) -> None:
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


def bench_connecting(broker: TimedBroker) -> None:
    """One connection after the other: connect, ask for the versions, close."""
    hello = framed(ApiVersionsRequest(), 0)
    buffer = memoryview(bytearray(65536))
    await_rest(broker)
    began, before = time.monotonic(), processor_s(broker.pid)
    for _ in range(CONNECTIONS):
        with broker.connect() as sock:
            sock.sendall(hello)
            receive(sock, buffer)
    processor = (processor_s(broker.pid) - before) / CONNECTIONS * 1e6
    per_second = CONNECTIONS / (time.monotonic() - began)
    print(
        f"{CONNECTIONS} connections: {processor:.0f} us processor each, {per_second:.0f} per second"
    )


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Cluster(Path(directory), kind=TimedBroker, own_zookeeper=True) as cluster,
    ):
        broker = cluster.brokers[1]
        assert isinstance(broker, TimedBroker)
        bench_idle_connections(broker)
        bench_connecting(broker)
        bench_produce_and_fetch(cluster, broker)
        bench_metadata(cluster, broker)


if __name__ == "__main__":
    main()
