"""Produce and Fetch by bare sockets: requests made once, answers read and thrown away.

Such a client takes next to nothing, so that what is measured is the server.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

from odradek.log.records import records
from odradek.protocol import codec, headers
from odradek.protocol.api import APIS, ApiKey
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.bench.bench_requests import framed, receive
from tests.bench.report.floors import BATCH_BYTES, PARTITIONS, SENT_BYTES

PRODUCE_VERSION: Final = 8
FETCH_VERSION: Final = 11
# Requests under way on the connection, as many as a Java producer has by default.
UNDER_WAY: Final = 5
_SIZE: Final = struct.Struct(">i")

Connect = Callable[[], socket.socket]


def batch(size: int) -> bytes:
    """Return a batch of about so many bytes, of records of 1000 bytes at most."""
    record = min(1000, size)
    values = [(None, b"v" * record)] * max(1, size // (record + 10))
    return records.make(values, time.time_ns() // 1_000_000)


def produce_frame(topic: str, partitions: int, data: bytes) -> bytes:
    """Return a Produce request with acks=1 that has a batch for each of the first partitions."""
    written = [PartitionProduceData(index=one, records=data) for one in range(partitions)]
    return framed(
        ProduceRequest(
            acks=1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name=topic, partition_data=written)],
        ),
        PRODUCE_VERSION,
    )


def fetch_frame(topic: str) -> bytes:
    """Return a Fetch request for the first mebibyte of partition 0."""
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=SENT_BYTES)
    return framed(
        FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=SENT_BYTES,
            topics=[FetchTopic(topic=topic, partitions=[asked])],
        ),
        FETCH_VERSION,
    )


def check(connect: Connect, frame: bytes) -> None:
    """Send a Produce request, and fail if a partition refuses it."""
    with connect() as sock:
        sock.sendall(frame)
        with sock.makefile("rb") as answers:
            (size,) = _SIZE.unpack(answers.read(_SIZE.size))
            answer = answers.read(size)
    api = APIS[ApiKey.PRODUCE]
    _, position = headers.decode_response_header(api, PRODUCE_VERSION, answer)
    response, _ = codec.decode(ProduceResponse, PRODUCE_VERSION, answer, position)
    for topic in response.responses:
        for one in topic.partition_responses:
            assert one.error_code == 0, one


def rate(
    connect: Connect,
    frame: bytes,
    seconds: float,
    most_under_way: int = UNDER_WAY,
    most: float = math.inf,
) -> tuple[float, int]:
    """Send the same request for so long, and so often at most.

    Returns answers per second, and how many there were.
    """
    buffer = memoryview(bytearray(SENT_BYTES))
    with connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.perf_counter()
        until = began + seconds
        under_way = answered = 0
        while True:
            sent = answered + under_way
            if under_way < most_under_way and sent < most and time.perf_counter() < until:
                sock.sendall(frame)
                under_way += 1
                continue
            if not under_way:
                return answered / (time.perf_counter() - began), answered
            receive(sock, buffer)
            under_way -= 1
            answered += 1


def six_batches(topic: str) -> bytes:
    """Return a Produce request of six batches of 64 KiB."""
    return produce_frame(topic, PARTITIONS, batch(BATCH_BYTES))
