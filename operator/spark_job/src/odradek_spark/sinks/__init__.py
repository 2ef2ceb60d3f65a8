"""Writes micro-batches to their sink; a rerun batch does not appear twice.

Spark reruns a batch if the driver died before `commits/N` was in the checkpoint, with the same
number and over the same offsets. `open_sink` returns a function (rows, batch id) that returns only
when the sink has the batch, and that makes a rerun harmless. `interface` says what a sink promises;
each kind has a module.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from odradek_spark import config
from odradek_spark.sinks import delta, iceberg, jdbc, parquet_store
from odradek_spark.sinks.console import open_console
from odradek_spark.sinks.delta import open_delta
from odradek_spark.sinks.iceberg import open_iceberg
from odradek_spark.sinks.interface import Fence, SinkContext, WriteBatch
from odradek_spark.sinks.jdbc import open_jdbc
from odradek_spark.sinks.parquet import open_parquet
from odradek_spark.sinks.topic import open_topic

__all__ = [
    "Fence",
    "SinkContext",
    "WriteBatch",
    "check",
    "count_rows",
    "holds",
    "open_sink",
    "table_schema",
]


def check(result: DataFrame, sink: config.Sink, mode: str) -> None:
    """Raise JobConfigError if the sink cannot take the result's columns; call before the start.

    `mode` is the query's output mode.
    """
    columns = result.columns
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise config.JobConfigError(f"the query has column {', '.join(repeated)} more than once")
    wanted: tuple[str, ...] = ()
    reserved: frozenset[str] = frozenset()
    match sink:
        case config.ParquetSink(partition_by=names):
            wanted = names
            if mode == "append":
                # Readers would take the number in the folder's name for the column.
                reserved = frozenset({parquet_store.BATCH_FOLDER})
            if len(set(names)) == len(columns):
                raise config.JobConfigError(
                    "job.sink.parquet.partitionBy leaves no column for the files"
                )
        case config.DeltaSink(partition_by=names, merge_keys=keys):
            wanted = (*names, *keys)
            if len(set(names)) == len(columns):
                raise config.JobConfigError(
                    "job.sink.delta.partitionBy leaves no column for the files"
                )
        case config.IcebergSink(partition_by=names):
            wanted = names
        case config.JdbcSink(upsert_keys=names):
            wanted = names
            reserved = jdbc.RESERVED_COLUMNS
            jdbc.require_quotable(columns)
        case config.TopicSink(key=key):
            wanted = () if key is None else (key,)
    taken = [name for name in columns if name.lower() in reserved]
    if taken:
        raise config.JobConfigError(
            f"the query's column {', '.join(taken)} has a name that the sink itself uses"
        )
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise config.JobConfigError(f"job.sink: the query has no column {', '.join(missing)}")


def open_sink(sink: config.Sink, context: SinkContext) -> WriteBatch:
    """Return the function that writes a batch. Raises parquet_store.StoreError, FencedError."""
    match sink:
        case config.ParquetSink():
            return open_parquet(sink, context)
        case config.DeltaSink():
            return open_delta(sink, context)
        case config.IcebergSink():
            return open_iceberg(sink, context)
        case config.TopicSink():
            return open_topic(sink, context)
        case config.JdbcSink():
            return open_jdbc(sink, context)
        case config.ConsoleSink():
            return open_console(sink, context)


def holds(
    sink: config.Sink, group: str, query_id: str, batch_id: int, *, or_later: bool = False
) -> bool:
    """Return whether the sink would drop the batch of this query, as one that it has.

    With `or_later` also whether it would drop any later batch. A sink that drops none has none.
    """
    match sink:
        case config.ParquetSink(path=path):
            return parquet_store.holds(Path(path), query_id, batch_id, or_later=or_later)
        case config.DeltaSink():
            return delta.holds(sink, group, query_id, batch_id)
        case config.IcebergSink():
            return iceberg.holds(sink, group, query_id, batch_id)
        case config.JdbcSink():
            return jdbc.holds(sink, group, query_id, batch_id)
    return False


def table_schema(spark: SparkSession, sink: config.Sink) -> StructType | None:
    """Return the columns of a sink that is a table; None if it is none, or not created yet."""
    match sink:
        case config.DeltaSink():
            return delta.table_schema(spark, sink)
        case config.IcebergSink():
            return iceberg.table_schema(spark, sink)
    return None


def count_rows(spark: SparkSession, sink: config.Sink) -> int | None:
    """Return how many rows the table of a sink has; None if the sink is none, or cannot tell.

    Raises PySparkException and Py4JJavaError.
    """
    match sink:
        case config.DeltaSink():
            return delta.count_rows(spark, sink)
        case config.IcebergSink():
            return iceberg.count_rows(spark, sink)
    return None
