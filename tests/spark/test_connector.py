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

from odradek_spark import config, sinks
from tests.support.broker import STEADY, Cluster
from tests.support.clients import QUIET, consume_all, create_topic
from tests.support.sampling import some_of
from tests.support.sink_context import sink_context

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


@pytest.mark.parametrize("codec", some_of(CODECS, ("zstd",)))
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


@pytest.mark.parametrize("partitions", some_of([1, 3], [3]))
def test_rows_of_a_batch_that_is_written_again_have_the_same_headers(
    spark: SparkSession, cluster: Cluster, partitions: int
) -> None:
    topic = fresh_topic(cluster)
    context = sink_context("append", bootstrap=cluster.bootstrap)
    write = sinks.open_sink(config.TopicSink(topic, "n"), context)
    plain = spark.range(0, 7, 1, 1).selectExpr("id as n")
    write(plain, 3)
    # A shuffle yields the same rows in another order.
    for sources in (1, 4):
        shuffled = spark.range(0, 40, 1, sources).selectExpr("39 - id as id")
        shuffled = shuffled.repartition(partitions, "id")
        write(shuffled.selectExpr("id as n", "cast(id % 3 as string) as c"), 4)
    found: dict[tuple[str, str], set[str]] = {}
    sizes: dict[str, set[str]] = {}
    numbers = []
    for record in read(spark, cluster, topic).select("value", "headers").collect():
        headers = {each.key: bytes(each.value).decode() for each in record.headers}
        batch, row = headers["odradek-batch"], headers["odradek-row"]
        found.setdefault((batch, row), set()).add(bytes(record.value).decode())
        sizes.setdefault(batch, set()).add(headers["odradek-batch-rows"])
        numbers.append(json.loads(record.value)["n"])
    # Without a shuffle the order is that of the log.
    assert numbers[:7] == list(range(7))
    assert sizes == {"q:3": {"7"}, "q:4": {"40"}}
    assert sorted(batch for batch, _ in found) == ["q:3"] * 7 + ["q:4"] * 40
    assert all(len(values) == 1 for values in found.values())
