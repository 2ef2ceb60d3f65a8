"""Loads the classes of Spark and its connectors that most drivers need, and ends in order.

    python tests/support/spark_training.py FOLDER

Nobody listens where it looks for a broker and for a store.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own guides use

NOWHERE = "127.0.0.1:1"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.hadoop.fs.s3a.endpoint": f"http://{NOWHERE}",
    "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    "spark.hadoop.fs.s3a.attempts.maximum": "1",
    "spark.hadoop.fs.s3a.retry.limit": "0",
    "spark.hadoop.fs.s3a.access.key": "a",
    "spark.hadoop.fs.s3a.secret.key": "a",
}


def query(rows: DataFrame, folder: str, mode: str, write: Callable[[DataFrame, int], None]) -> None:
    """Run a query with a sink of Python's to its end."""
    started = (
        rows.writeStream.foreachBatch(write)
        .outputMode(mode)
        .trigger(availableNow=True)
        .option("checkpointLocation", f"{folder}/{mode}")
        .start()
    )
    started.awaitTermination()


def store(spark: SparkSession, folder: str) -> None:
    """Read and write files and tables, as they come and in windows."""

    def append(rows: DataFrame, _: int) -> None:
        values = rows.select(F.to_json(F.struct("*")).alias("value"))
        values.write.mode("append").parquet(f"{folder}/values")
        rows.write.format("delta").mode("append").save(f"{folder}/table")

    def count(rows: DataFrame, _: int) -> None:
        rows.write.mode("append").parquet(f"{folder}/counts")

    first = spark.sql("select 1 as a, timestamp'2026-01-01' as at")
    first.write.parquet(f"{folder}/source")
    source = spark.readStream.schema("a int, at timestamp").parquet(f"{folder}/source")
    parsed = F.from_json(F.to_json(F.struct("a", "at")), "a int, at timestamp")
    rows = source.select(parsed.alias("r")).select("r.*")
    query(rows, folder, "append", append)
    windows = rows.withWatermark("at", "0 seconds").groupBy(F.window("at", "1 minute"))
    query(windows.agg(F.count("*").alias("n"), F.sum("a")), folder, "update", count)
    table = spark.read.format("delta").load(f"{folder}/table")
    table.join(spark.read.parquet(f"{folder}/values")).collect()
    spark.sql(f"describe history delta.`{folder}/table`").collect()


def ask_in_vain(spark: SparkSession) -> None:
    """Ask a broker and a store that are not there."""
    jvm: Any = spark._jvm

    def list_offsets() -> None:
        rows = spark.read.format("kafka").option("kafka.bootstrap.servers", NOWHERE)
        rows = rows.option("kafka.default.api.timeout.ms", "1500").option("subscribe", "t")
        rows.option("kafka.request.timeout.ms", "1000").load().collect()

    def consume() -> None:
        settings = jvm.java.util.HashMap()
        bytes_ = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        for name, value in {
            "bootstrap.servers": NOWHERE,
            "group.id": "g",
            "key.deserializer": bytes_,
            "value.deserializer": bytes_,
        }.items():
            settings.put(name, value)
        consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
        partitions = jvm.java.util.ArrayList()
        partitions.add(jvm.org.apache.kafka.common.TopicPartition("t", 0))
        consumer.assign(partitions)
        consumer.seek(partitions[0], 0)
        consumer.poll(jvm.java.time.Duration.ofMillis(500))
        consumer.close()

    for ask in (list_offsets, consume, lambda: spark.read.parquet("s3a://nowhere/t")):
        try:
            ask()
        except Exception as error:
            print(str(error).partition("\n")[0])


def main(folder: str) -> None:
    """Load the classes."""
    builder = SparkSession.builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    store(spark, folder)
    ask_in_vain(spark)
    jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    # The JVM writes the archive at its end.
    jvm.stdin.close()
    jvm.wait()


if __name__ == "__main__":
    main(sys.argv[1])
