"""Clients from before Kafka 0.11 write and read what new ones read and write (L4, P1-P3)."""

from __future__ import annotations

import socket
import struct
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from typing import cast

import pytest

from odradek.log.records import batch as batches
from odradek.log.records import compression, contents, legacy
from odradek.log.records.records import BatchOptions, Record, encode
from odradek.protocol import codec, headers
from odradek.protocol.api import APIS
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.protocol.schema import Request, ResponseT
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.clients import consume_all, create_topic, kafka, produce_all
from tests.support.ports import free_port

# kafka-python reads its message definitions by a function that Python 3.11 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

START_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4")
OLD_VERSIONS = {0: 0, 1: 0, 2: 1}
"""Version of Produce, and the magic of its time."""


METRICS_PORT = free_port()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A single broker that shows its metrics."""
    settings = {**STEADY, "odradek.metrics.port": str(METRICS_PORT)}
    with Cluster(tmp_path_factory.mktemp("cluster"), settings=settings) as running:
        yield running


def conversions(topic: str) -> list[float]:
    """What the broker counted: message sets taken apart, answers converted."""
    with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return [
        float(line.rpartition(" ")[2])
        for way in ("produce", "fetch")
        for line in text.splitlines()
        if line.startswith(f'odradek_topic_{way}_conversions_total{{topic="{topic}"}}')
    ]


def read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        assert part, "closed instead of answered"
        data += part
    return data


def ask(cluster: Cluster, request: Request[ResponseT], version: int) -> ResponseT:
    """Send a request and decode what comes back."""
    api = next(one for one in APIS.values() if one.request is type(request))
    header = headers.RequestHeader(api.key, version, 7, "test")
    data = headers.encode_request_header(header) + codec.encode(request, version)
    with cluster.brokers[1].connect() as connection:
        connection.sendall(struct.pack(">i", len(data)) + data)
        answer = read(connection, struct.unpack(">i", read(connection, 4))[0])
    _, position = headers.decode_response_header(api, version, answer)
    return cast("ResponseT", codec.decode(api.response, version, answer, position)[0])


def fresh(cluster: Cluster, **config: str) -> str:
    """A topic for one test."""
    name = f"old-{uuid.uuid4().hex[:8]}"
    settings = {key.replace("_", "."): value for key, value in config.items()}
    create_topic(cluster.bootstrap, name, config=settings)
    wait_until(lambda: offsets_before(cluster, name, -1)[0] == ErrorCode.NONE, f"{name} is led")
    return name


def produce(cluster: Cluster, topic: str, data: bytes, version: int) -> tuple[int, int]:
    """(error code, base offset) of a Produce."""
    entry = TopicProduceData(
        name=topic, partition_data=[PartitionProduceData(index=0, records=data)]
    )
    found = ask(cluster, ProduceRequest(acks=1, timeout_ms=5000, topic_data=[entry]), version)
    one = found.responses[0].partition_responses[0]
    return one.error_code, one.base_offset


def offsets_before(
    cluster: Cluster, topic: str, timestamp: int, most: int = 10
) -> tuple[int, list[int]]:
    """(error code, offsets) of a ListOffsets of version 0."""
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp, max_num_offsets=most)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])]
    )
    one = ask(cluster, request, 0).topics[0].partitions[0]
    return one.error_code, list(one.old_style_offsets)


def fetch(
    cluster: Cluster, topic: str, version: int, offset: int = 0, max_bytes: int = 1 << 20
) -> tuple[int, bytes]:
    """(error code, bytes) of a Fetch."""
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        topics=[FetchTopic(topic=topic, partitions=[part])],
    )
    one = ask(cluster, request, version).responses[0].partition_responses[0]
    return one.error_code, bytes(cast("bytes", one.record_set))


def records_of(data: bytes, magic: int) -> list[Record]:
    """Everything in an answer, which holds only batches of `magic`."""
    found: list[Record] = []
    for position, header in batches.scan(data):
        assert header.magic == magic
        batches.check_crc(data, position, header)
        found += contents.decode(data, position)
    return found


def sent(count: int, magic: int = 1, start: int = 0) -> list[Record]:
    return [
        Record(
            at, START_MS + at if magic else -1, b"k%d" % at, None if at % 4 == 3 else b"v%d" % at
        )
        for at in range(start, start + count)
    ]


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_every_consumer_reads_what_an_old_producer_sent(
    cluster: Cluster, version: int, name: str
) -> None:
    topic, magic, number = fresh(cluster), OLD_VERSIONS[version], compression.NAMES.index(name)
    for base in (0, 5):
        data = legacy.encode(sent(5, magic, base), magic, number)
        assert produce(cluster, topic, data, version) == (ErrorCode.NONE, base)
    written = sent(10, magic)
    undated = [Record(one.offset, -1, one.key, one.value) for one in written]
    for fetch_version, read_magic in ((0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (11, 2)):
        error, data = fetch(cluster, topic, fetch_version)
        assert error == ErrorCode.NONE
        assert records_of(data, read_magic) == (written if read_magic else undated)
    assert consume_all(cluster.bootstrap, topic, 1, 10) == [one.value for one in written]
    assert conversions(topic) == [2, 4]


def test_old_consumers_begin_where_they_ask_to(cluster: Cluster) -> None:
    topic = fresh(cluster)
    values = [b"%d" % at for at in range(50)]
    produce_all(cluster.bootstrap, topic, values, **{"linger.ms": 200})
    for offset in (0, 1, 49):
        assert [one.offset for one in records_of(fetch(cluster, topic, 2, offset)[1], 1)] == list(
            range(offset, 50)
        )
    assert fetch(cluster, topic, 2, 50) == (ErrorCode.NONE, b"")
    assert fetch(cluster, topic, 2, 51)[0] == ErrorCode.OFFSET_OUT_OF_RANGE


def test_small_fetches_get_to_the_end(cluster: Cluster) -> None:
    topic = fresh(cluster)
    for number in range(20):
        data = encode(sent(3), BatchOptions(codec=number % 4))
        assert produce(cluster, topic, data, 8)[0] == ErrorCode.NONE
    for version, magic in ((1, 0), (3, 1)):
        offset, found = 0, []
        while offset < 60:
            error, data = fetch(cluster, topic, version, offset, max_bytes=200)
            assert error == ErrorCode.NONE
            new = [one for one in records_of(data, magic) if one.offset >= offset]
            assert new
            found += new
            offset = new[-1].offset + 1
        assert [one.offset for one in found] == list(range(60))


def test_versions_before_3_cut_off_a_first_batch_that_is_too_large(cluster: Cluster) -> None:
    topic = fresh(cluster)
    produce_all(cluster.bootstrap, topic, [b"x" * 5000])
    error, data = fetch(cluster, topic, 2, max_bytes=1000)
    assert (error, len(data)) == (ErrorCode.NONE, 1000)
    assert list(batches.scan(data)) == []
    error, data = fetch(cluster, topic, 3, max_bytes=1000)
    assert [one.value for one in records_of(data, 1)] == [b"x" * 5000]


def test_conversion_can_be_switched_off(cluster: Cluster) -> None:
    topic = fresh(cluster, message_downconversion_enable="false")
    produce_all(cluster.bootstrap, topic, [b"x"])
    assert fetch(cluster, topic, 3) == (ErrorCode.UNSUPPORTED_VERSION, b"")
    assert fetch(cluster, topic, 4)[0] == ErrorCode.NONE


def test_zstd_is_not_for_old_consumers(cluster: Cluster) -> None:
    topic = fresh(cluster)
    data = encode(sent(3), BatchOptions(codec=compression.ZSTD))
    assert produce(cluster, topic, data, 8)[0] == ErrorCode.NONE
    assert fetch(cluster, topic, 3) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, b"")


@pytest.mark.parametrize(("format_version", "magic"), [("0.9.0.1", 0), ("0.10.2", 1)])
def test_a_topic_of_an_old_format_stores_and_serves_it(
    cluster: Cluster, format_version: str, magic: int
) -> None:
    topic = fresh(cluster, message_format_version=format_version)
    data = legacy.encode(sent(4, 0), 0, compression.NONE)
    assert produce(cluster, topic, data, 1) == (ErrorCode.NONE, 0)
    data = encode(sent(4), BatchOptions(codec=compression.GZIP))
    assert produce(cluster, topic, data, 8) == (ErrorCode.NONE, 4)
    for version in (magic and 2, 4, 11):
        error, data = fetch(cluster, topic, version)
        assert error == ErrorCode.NONE
        assert [one.offset for one in records_of(data, magic)] == list(range(8))
    values = [one.value for one in sent(4)] * 2
    assert consume_all(cluster.bootstrap, topic, 1, 8) == values


def test_version_0_of_list_offsets_names_segment_starts_and_the_end(cluster: Cluster) -> None:
    topic = fresh(cluster, segment_bytes="2000")
    for _ in range(4):
        produce_all(cluster.bootstrap, topic, [b"x" * 1500])
    now_ms = time.time_ns() // 1_000_000
    for timestamp, most, found in (
        (-2, 10, [0]),
        (-1, 1, [4]),
        (-1, 10, [4, 3, 2, 1, 0]),
        (1, 10, []),
        (now_ms + 3_600_000, 2, [4, 3]),
        (now_ms + 3_600_000, 10, [4, 3, 2, 1, 0]),
    ):
        assert offsets_before(cluster, topic, timestamp, most) == (ErrorCode.NONE, found)


# -- what must not get in -------------------------------------------------------------------------


def message(magic: int, attributes: int, value: bytes, timestamp: int = START_MS) -> bytes:
    return legacy._encoded(0, magic, attributes, timestamp, b"k", value)


def damaged(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def bad_input(magic: int) -> dict[str, tuple[bytes, ErrorCode]]:
    one = legacy.encode(sent(1, magic), magic, compression.NONE)
    packed = legacy.encode(sent(3, magic), magic, compression.GZIP)
    corrupt, gzip = ErrorCode.CORRUPT_MESSAGE, compression.GZIP
    bomb = compression.compress(gzip, legacy._encoded(0, magic, 0, 0, None, bytes(140 << 20)))
    return {
        "torn": (one + one[:-1], corrupt),
        "wrong checksum": (damaged(one, len(one) - 1, b"\xff"), corrupt),
        "wrong checksum of a wrapper": (damaged(packed, len(packed) - 1, b"\xff"), corrupt),
        "absurd size": (damaged(one, 8, b"\x7f\xff\xff\xff"), corrupt),
        "negative size": (damaged(one, 8, b"\xff\xff\xff\xff"), corrupt),
        "wrapper in a wrapper": (
            message(magic, gzip, compression.compress(gzip, packed)),
            corrupt,
        ),
        "two wrappers": (packed + packed, corrupt),
        "unknown codec": (message(magic, 7, b"v"), corrupt),
        "zstd": (message(magic, 4, compression.compress(4, one)), corrupt),
        "bomb": (message(magic, gzip, bomb), ErrorCode.MESSAGE_TOO_LARGE),
        "too large": (message(magic, 0, bytes(1_100_000)), ErrorCode.MESSAGE_TOO_LARGE),
    }


@pytest.mark.parametrize("version", [1, 2])
def test_bad_messages_are_refused_and_nothing_is_written(cluster: Cluster, version: int) -> None:
    topic = fresh(cluster)
    for what, (data, code) in bad_input(OLD_VERSIONS[version]).items():
        assert produce(cluster, topic, data, version)[0] == code, what
        assert offsets_before(cluster, topic, -1, 1)[1] == [0], what
    good = legacy.encode(sent(1), OLD_VERSIONS[version], compression.NONE)
    assert produce(cluster, topic, good, version) == (ErrorCode.NONE, 0)


def test_rules_of_the_topic_hold_for_old_producers(cluster: Cluster) -> None:
    compacted = fresh(cluster, cleanup_policy="compact")
    keyless = legacy.encode([Record(0, START_MS, None, b"v")], 1, compression.GZIP)
    assert produce(cluster, compacted, keyless, 2)[0] == ErrorCode.CORRUPT_MESSAGE
    recent = fresh(cluster, message_timestamp_difference_max_ms="1000")
    assert produce(cluster, recent, keyless, 2)[0] == ErrorCode.INVALID_TIMESTAMP
    packed = fresh(cluster, compression_type="lz4")
    assert produce(cluster, packed, keyless, 2)[0] == ErrorCode.NONE
    ((_, header),) = batches.scan(fetch(cluster, packed, 11)[1])
    assert header.codec == compression.LZ4


# -- a real client --------------------------------------------------------------------------------


# As those of its time, it needs one more library for the lz4 of magic 0.
@pytest.mark.parametrize(
    ("api_version", "name"),
    [(version, name) for version in ((0, 8, 2), (0, 9)) for name in ("none", "gzip", "snappy")]
    + [((0, 10, 1), name) for name in CODECS],
    ids=str,
)
def test_kafka_python_of_old_versions_writes_and_reads(
    cluster: Cluster, api_version: Sequence[int], name: str
) -> None:
    topic = fresh(cluster)
    settings = {"bootstrap_servers": cluster.bootstrap, "api_version": tuple(api_version)}
    producer = kafka.KafkaProducer(
        **settings,
        compression_type=None if name == "none" else name,
        acks="all",
        linger_ms=20,
        enable_idempotence=False,
    )
    values = [b"value %d" % at for at in range(200)]
    futures = [producer.send(topic, value, key=b"k", partition=0) for value in values]
    assert [future.get(120).offset for future in futures] == list(range(200))
    producer.close()
    assert consume_all(cluster.bootstrap, topic, 1, 200) == values
    consumer = kafka.KafkaConsumer(**settings, consumer_timeout_ms=60_000)
    part = kafka.TopicPartition(topic, 0)
    consumer.assign([part])
    consumer.seek(part, 3)
    found = []
    for record in consumer:
        found.append((record.offset, record.value))
        if record.offset == 199:
            break
    consumer.close()
    assert found == list(enumerate(values))[3:]
