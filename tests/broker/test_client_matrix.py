"""What records carry, through each client and codec: keys, headers, times, and ways to find them.

Clients of the same records: whatever one writes, the others read.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import aiokafka
import confluent_kafka
import pytest

from tests.support.broker import Cluster
from tests.support.clients import QUIET, create_topic, kafka

# kafka-python reads its message definitions by a function that Python 3.11 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BEGAN_MS = 1_700_000_000_000
COUNT = 12


@dataclass(frozen=True)
class Record:
    """What is written and has to come back."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def records() -> list[Record]:
    return [
        Record(
            number,
            BEGAN_MS + number * 1000,
            None if number % 4 == 0 else b"key %d" % number,
            None if number % 6 == 5 else b"value %d" % number * 30,
            (("number", b"%d" % number), ("number", b"again"), ("none", b"")),
        )
        for number in range(COUNT)
    ]


def fresh_topic(cluster: Cluster) -> str:
    name = f"matrix-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap, name)
    return name


# --- writers ------------------------------------------------------------------------------------


def write_librdkafka(bootstrap: str, topic: str, codec: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 30, "compression.type": codec, **QUIET}
    )
    for one in records():
        producer.produce(
            topic, one.value, one.key, 0, timestamp=one.timestamp, headers=list(one.headers)
        )
    assert producer.flush(120) == 0


def write_kafka_python(bootstrap: str, topic: str, codec: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        linger_ms=30,
        compression_type=None if codec == "none" else codec,
    )
    sent = [
        producer.send(
            topic,
            one.value,
            key=one.key,
            partition=0,
            timestamp_ms=one.timestamp,
            headers=list(one.headers),
        )
        for one in records()
    ]
    assert [one.get(120).offset for one in sent] == list(range(COUNT))
    producer.close()


def write_aiokafka(bootstrap: str, topic: str, codec: str) -> None:
    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            linger_ms=30,
            compression_type=None if codec == "none" else codec,
        )
        await producer.start()
        for one in records():
            await producer.send(
                topic,
                one.value,
                one.key,
                partition=0,
                timestamp_ms=one.timestamp,
                headers=list(one.headers),
            )
        await producer.stop()

    asyncio.run(write())


# --- readers ------------------------------------------------------------------------------------


def read_librdkafka(bootstrap: str, topic: str, start: int) -> list[Record]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, **QUIET}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, start)])
    found: list[Record] = []
    until = time.monotonic() + 120
    while len(found) < COUNT - start and time.monotonic() < until:
        one = consumer.poll(1)
        if one is not None:
            assert one.error() is None
            offset = one.offset()
            assert offset is not None
            found.append(
                Record(
                    offset,
                    one.timestamp()[1],
                    one.key(),
                    one.value(),
                    tuple(cast("list[tuple[str, bytes | None]]", one.headers() or [])),
                )
            )
    consumer.close()
    return found


def read_kafka_python(bootstrap: str, topic: str, start: int) -> list[Record]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    part = kafka.TopicPartition(topic, 0)
    consumer.assign([part])
    consumer.seek(part, start)
    found: list[Record] = []
    until = time.monotonic() + 120
    while len(found) < COUNT - start and time.monotonic() < until:
        found += [
            Record(one.offset, one.timestamp, one.key, one.value, tuple(one.headers))
            for one in consumer.poll(1000).get(part, [])
        ]
    consumer.close()
    return found


def read_aiokafka(bootstrap: str, topic: str, start: int) -> list[Record]:
    async def read() -> list[Record]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap)
        await consumer.start()
        part = aiokafka.TopicPartition(topic, 0)
        consumer.assign([part])
        consumer.seek(part, start)
        found = []
        for _ in range(COUNT - start):
            one = await asyncio.wait_for(consumer.getone(), 120)
            found.append(Record(one.offset, one.timestamp, one.key, one.value, tuple(one.headers)))
        await consumer.stop()
        return found

    return asyncio.run(read())


WRITERS: dict[str, Callable[[str, str, str], None]] = {
    "librdkafka": write_librdkafka,
    "kafka-python": write_kafka_python,
    "aiokafka": write_aiokafka,
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", WRITERS)
def test_records_of_any_client_are_the_same_to_all(
    cluster: Cluster, writer: str, codec: str
) -> None:
    topic = fresh_topic(cluster)
    WRITERS[writer](cluster.bootstrap, topic, codec)
    for read in (read_librdkafka, read_aiokafka, read_kafka_python):
        assert read(cluster.bootstrap, topic, 3) == records()[3:], read.__name__


def test_every_client_finds_offsets_by_time(cluster: Cluster) -> None:
    topic = fresh_topic(cluster)
    write_librdkafka(cluster.bootstrap, topic, "lz4")
    wanted = BEGAN_MS + 6500
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", **QUIET}
    )
    asked = [confluent_kafka.TopicPartition(topic, 0, wanted)]
    assert consumer.offsets_for_times(asked, 60)[0].offset == 7
    consumer.close()
    python = kafka.KafkaConsumer(bootstrap_servers=cluster.bootstrap)
    part = kafka.TopicPartition(topic, 0)
    assert python.offsets_for_times({part: wanted})[part].offset == 7
    python.close()

    async def by_aiokafka() -> int:
        other = aiokafka.AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap)
        await other.start()
        part = aiokafka.TopicPartition(topic, 0)
        found = await other.offsets_for_times({part: wanted})
        await other.stop()
        return int(found[part].offset)

    assert asyncio.run(by_aiokafka()) == 7


# --- kcat ---------------------------------------------------------------------------------------


def kcat(cluster: Cluster, *arguments: str, text: str = "") -> str:
    return subprocess.run(
        ["kcat", "-m60", "-b", cluster.bootstrap, "-q", *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    ).stdout


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_writes_and_reads_keys_and_headers(cluster: Cluster, codec: str) -> None:
    topic = fresh_topic(cluster)
    kcat(
        cluster,
        *("-P", "-t", topic, "-K:", "-H", "one=1", "-H", "two=2", "-z", codec),
        text="a:first\nb:second\n",
    )
    said = kcat(cluster, "-C", "-t", topic, "-e", "-f", "%k=%s %o %h\n")
    assert said == "a=first 0 one=1,two=2\nb=second 1 one=1,two=2\n"


def test_kcat_begins_at_a_time_an_offset_or_the_end(cluster: Cluster) -> None:
    topic = fresh_topic(cluster)
    write_librdkafka(cluster.bootstrap, topic, "zstd")

    def offsets(start: str) -> list[str]:
        return kcat(cluster, "-C", "-t", topic, "-e", "-f", "%o\n", "-o", start).split()

    assert offsets(f"s@{BEGAN_MS + 8001}") == ["9", "10", "11"]
    assert offsets("10") == ["10", "11"]
    assert offsets("-1") == ["11"]
    asked = f"{topic}:0:{BEGAN_MS + 2000}"
    assert kcat(cluster, "-Q", "-t", asked).strip() == f"{topic} [0] offset 2"
