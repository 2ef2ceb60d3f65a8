"""Sink parquet: `parquet_store` shows each batch with one rename, and says what to compact.

Small batches are compacted before the next batch is written, so after the commit of the last one.
"""

import functools
import json
import logging
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from odradek_spark import config
from odradek_spark.sinks.interface import SinkContext, WriteBatch
from odradek_spark.sinks.parquet_store import SCHEMA_FILE, Merge, ParquetStore

log = logging.getLogger(__name__)


def open_parquet(sink: config.ParquetSink, context: SinkContext) -> WriteBatch:
    """Return the function that writes a batch. Raises parquet_store.StoreError, FencedError."""
    store = ParquetStore(Path(sink.path), context.mode, context.query_id, context.fence.epoch)

    def write(rows: DataFrame, batch_id: int) -> None:
        compact(rows.sparkSession, store)
        batch = store.begin(batch_id)
        write_batch(rows, batch.staging, sink.partition_by)
        context.fence.require()
        store.finish(batch)

    return write


def write_batch(rows: DataFrame, folder: Path, partition_by: tuple[str, ...]) -> None:
    """Write the rows to a folder, and beside them what a merge needs to know of them."""
    _write(rows, folder, partition_by)
    folder.mkdir(parents=True, exist_ok=True)
    schema = {"schema": rows.schema.jsonValue(), "partitionBy": partition_by}
    (folder / SCHEMA_FILE).write_text(json.dumps(schema), encoding="utf-8")


def compact(spark: SparkSession, store: ParquetStore) -> None:
    """Merge small batches if there are enough. A failed try is logged, and made again later."""
    merge = store.next_merge()
    if merge is None:
        return
    try:
        _merge(spark, merge)
    except PySparkException as error:
        log.warning("failed to compact %d folders: %s; retrying later", len(merge.parts), error)
        store.put_off_merge(merge)
        return
    store.finish_merge(merge)
    log.info("compacted %d folders into one", len(merge.parts))


def _merge(spark: SparkSession, merge: Merge) -> None:
    described = json.loads(merge.schema)
    schema: StructType = StructType.fromJson(described["schema"])
    partition_by = tuple(described["partitionBy"])
    for field in schema.fields:
        if field.name in partition_by:
            # As the folders are named: Spark would read 01 as the number 1.
            field.dataType = StringType()
    reader = spark.read.schema(schema)
    parts = (reader.parquet(f"file://{part}") for part in merge.parts)
    rows = functools.reduce(DataFrame.unionByName, parts).coalesce(merge.files)
    _write(rows, merge.staging, partition_by)


def _write(rows: DataFrame, folder: Path, partition_by: tuple[str, ...]) -> None:
    writer = rows.write.mode("overwrite")
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    writer.parquet(f"file://{folder}")
