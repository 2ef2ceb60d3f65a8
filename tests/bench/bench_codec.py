"""Microseconds that messages and answered requests cost.

    python -m tests.bench.bench_codec

The last rows go through a real listener on loopback, with the client in the same process, so they
include both ends and the event loop.
"""

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial

from odradek.net.client_info import ClientInfo
from odradek.net.connection_quotas import ConnectionLimits, ConnectionQuotas
from odradek.net.listener import Listener
from odradek.protocol import codec, headers, interpreter
from odradek.protocol.api import APIS, ApiKey
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from odradek.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from odradek.protocol.regions import Part, total_length

BATCH_BYTES = 64 * 1024
VERSIONS = {"plain": 8, "flexible": 9}


def produce_request() -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=bytes(BATCH_BYTES))
    topic = TopicProduceData(name="cluster-logs", partition_data=[partition])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def produce_response() -> ProduceResponse:
    partition = PartitionProduceResponse(index=0, base_offset=123_456)
    topic = TopicProduceResponse(name="cluster-logs", partition_responses=[partition])
    return ProduceResponse(responses=[topic])


def fetch_request(partitions: int) -> FetchRequest:
    asked = [
        FetchPartition(partition=number, fetch_offset=99, partition_max_bytes=1_048_576)
        for number in range(partitions)
    ]
    topics = [FetchTopic(topic="cluster-logs", partitions=asked)]
    return FetchRequest(replica_id=2, max_wait_ms=500, min_bytes=1, topics=topics)


def fetch_response(partitions: int) -> FetchResponse:
    found = [
        FetchablePartitionResponse(partition=number, high_watermark=100, record_set=b"")
        for number in range(partitions)
    ]
    topics = [FetchableTopicResponse(topic="cluster-logs", partition_responses=found)]
    return FetchResponse(responses=topics)


def metadata_response(topics: int) -> MetadataResponse:
    partitions = [
        MetadataResponsePartition(
            partition_index=number, leader_id=1, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3]
        )
        for number in range(3)
    ]
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="broker-1", port=9092)],
        topics=[
            MetadataResponseTopic(name=f"topic-{number}", partitions=partitions)
            for number in range(topics)
        ],
    )


def microseconds(call: Callable[[], object]) -> float:
    """Return the best of several rounds, each of about a tenth of a second."""
    call()
    began = time.perf_counter()
    call()
    repeats = max(1, int(0.1 / max(time.perf_counter() - began, 1e-7)))
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(repeats):
            call()
        best = min(best, (time.perf_counter() - began) / repeats)
    return best * 1e6


def report(name: str, value: float) -> None:
    print(f"{name:<58}{value:>10.2f} us")


def answer_produce(frame: memoryview) -> Sequence[Part]:
    """Do what a broker does with a request, except for the log."""
    header, position = headers.decode_request_header(frame)
    entry = APIS[header.api_key]
    codec.decode(entry.request, header.api_version, frame, position)
    return headers.encode_response(
        entry, header.api_version, header.correlation_id, produce_response()
    )


def produce_frame(version: int) -> bytes:
    header = headers.RequestHeader(ApiKey.PRODUCE, version, 1, "producer-1")
    return headers.encode_request_header(header) + codec.encode(produce_request(), version)


def bench_messages() -> None:
    for name, version in VERSIONS.items():
        frame = memoryview(produce_frame(version))
        report(
            f"Produce {name}: header, decode, answer",
            microseconds(partial(answer_produce, frame)),
        )
    for partitions in (1, 100):
        for version in (11, 12):
            asked = memoryview(codec.encode(fetch_request(partitions), version))
            found = fetch_response(partitions)
            report(
                f"Fetch v{version} of {partitions}: decode",
                microseconds(partial(codec.decode, FetchRequest, version, asked)),
            )
            report(
                f"Fetch v{version} of {partitions}: encode",
                microseconds(partial(codec.encode_parts, found, version)),
            )
    answer = metadata_response(1000)
    for version in (8, 9):
        encoded = memoryview(codec.encode(answer, version))
        report(
            f"Metadata v{version} of 1000 topics: encode",
            microseconds(partial(codec.encode, answer, version)),
        )
        report(
            f"Metadata v{version} of 1000 topics: decode",
            microseconds(partial(codec.decode, MetadataResponse, version, encoded)),
        )
    report(
        "Metadata v8 of 1000 topics: encode, interpreted",
        microseconds(lambda: interpreter.encode(answer, 8)),
    )


async def bench_listener(requests: int = 2000) -> None:
    async def dispatch(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        return answer_produce(frame)

    limits = ConnectionLimits(2 * BATCH_BYTES, 10, 10, 60_000)
    listener = Listener("127.0.0.1", 0, ConnectionQuotas(limits), dispatch)
    await listener.start()
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", listener.port)) as sock:
        sock.setblocking(False)
        payload = produce_frame(8)
        frame = struct.pack(">i", len(payload)) + payload
        answer = bytearray(4096)
        for in_flight in (1, 5):
            began = time.perf_counter()
            answer_bytes = 4 + total_length(answer_produce(memoryview(payload)))
            for _ in range(requests // in_flight):
                await loop.sock_sendall(sock, frame * in_flight)
                received = 0
                while received < in_flight * answer_bytes:
                    received += await loop.sock_recv_into(sock, answer)
            spent = (time.perf_counter() - began) / requests
            report(f"Produce through a listener, {in_flight} in flight", spent * 1e6)
    await listener.close()


def main() -> None:
    bench_messages()
    asyncio.run(bench_listener())


if __name__ == "__main__":
    main()
