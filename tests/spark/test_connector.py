"""Spark's Kafka connector against a real broker: it writes and reads every codec (P1-P3, S1)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    StringType,
    StructField,
    StructType,
)

from tests.support.broker import STEADY, Cluster
from tests.support.clients import QUIET, consume_all, create_topic
from tests.support.sampling import some_of

# collect() leaves its socket to the garbage collector (pyspark.serializers), which is not ours to
# close.
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
    ),
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COUNT = 20
BEGAN_MS = 1_700_000_000_000
HEADERS = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
RECORDS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", ArrayType(HEADERS)),
    ]
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), settings=STEADY) as running:
        yield running


def fresh_topic(cluster: Cluster) -> str:
    name = f"spark-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap, name)
    return name


def read(spark: SparkSession, cluster: Cluster, topic: str, **options: Any) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
    reader = reader.option("subscribe", topic).option("includeHeaders", "true")
    for name, value in options.items():
        reader = reader.option(name, json.dumps(value))
    return reader.load()  # one partition, so in order


@pytest.mark.parametrize("codec", some_of(CODECS, ("none", "zstd")))
def test_keys_values_and_headers_are_written_and_come_back(
    spark: SparkSession, cluster: Cluster, codec: str
) -> None:
    topic = fresh_topic(cluster)
    written = [
        (
            bytearray(b"key %d" % number) if number % 3 else None,
            bytearray(b"value %d " % number * 30),
            [("number", bytearray(b"%d" % number)), ("again", bytearray(b""))],
        )
        for number in range(COUNT)
    ]
    (
        spark.createDataFrame(written, RECORDS)
        .coalesce(1)
        .write.format("kafka")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("kafka.compression.type", codec)
        .option("topic", topic)
        .save()
    )
    found = read(spark, cluster, topic).select("key", "value", "headers").collect()
    assert [(one.key, one.value, [tuple(each) for each in one.headers]) for one in found] == written
    values = [bytes(value) for _, value, _ in written]
    assert consume_all(cluster.bootstrap, topic, 1, COUNT) == values


def test_reading_begins_and_ends_at_offsets_and_at_times(
    spark: SparkSession, cluster: Cluster
) -> None:
    topic = fresh_topic(cluster)
    for begin, codec in zip(range(0, COUNT, 4), CODECS, strict=True):
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "compression.type": codec,
                "linger.ms": 50,
                **QUIET,
            }
        )
        for number in range(begin, begin + 4):
            producer.produce(topic, b"value " * 20, timestamp=BEGAN_MS + number * 1000)
        assert producer.flush(60) == 0

    def offsets(**options: Any) -> list[int]:
        return [one.offset for one in read(spark, cluster, topic, **options).collect()]

    def at(place: int) -> dict[str, dict[str, int]]:
        return {topic: {"0": place}}

    assert offsets() == list(range(COUNT))
    assert offsets(startingOffsets=at(3), endingOffsets=at(9)) == list(range(3, 9))
    first, last = BEGAN_MS + 6500, BEGAN_MS + 9000
    times = {"startingOffsetsByTimestamp": at(first), "endingOffsetsByTimestamp": at(last)}
    assert offsets(**times) == [7, 8]
