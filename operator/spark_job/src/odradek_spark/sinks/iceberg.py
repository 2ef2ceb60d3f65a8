"""Sink iceberg: each batch is one snapshot of an Iceberg table on a volume, which names the batch.

Mode append adds the rows, complete replaces all. The summary of the snapshot has the epoch of the
driver and, per query, how many batches the table has of it, so a batch that is there already is
computed and dropped:

    odradek.epoch    5
    odradek.batches  {"GROUP:QUERY": 42}

The files are those of Iceberg's Hadoop catalog, and any reader finds them by the table's path.
Their commit is ours (java/io/odradek/iceberg): the new metadata go through the driver's folder
PATH/_odradek/EPOCH, and get their name as a link, which fails if another driver was first. A driver
that takes over moves the folders of earlier ones away, and from then on these cannot commit, not
even after a pause within their write.

After every `optimizeEvery` batches small files are merged, and all but the newest snapshots are
expired, with the files that only they need.
"""

import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own guides use
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    CharType,
    DataType,
    IntegerType,
    MapType,
    ShortType,
    StringType,
    StructType,
    VarcharType,
)

from odradek_spark import config
from odradek_spark.errors import FencedError, JobError
from odradek_spark.sinks.interface import SinkContext, WriteBatch

log = logging.getLogger(__name__)

# A reader has the files of its snapshot until so many newer ones are there.
KEPT_SNAPSHOTS = 100
_EPOCH, _BATCHES = "odradek.epoch", "odradek.batches"
_FOLDER = "_odradek"
_PROPERTIES = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_ANY_SCHEMA = "write.spark.accept-any-schema"
_TARGET_BYTES = 128 * 1024 * 1024


def open_iceberg(sink: config.IcebergSink, context: SinkContext) -> WriteBatch:
    """Return the function that writes a batch."""
    table = _IcebergTable(sink, context)
    return table.write


def holds(sink: config.IcebergSink, group: str, query_id: str, batch_id: int) -> bool:
    """Return whether the table has this batch of the query, or a later one."""
    table = _load(SparkSession.active(), sink.path)
    return table is not None and batch_id < _batches(table).get(f"{group}:{query_id}", 0)


def table_schema(spark: SparkSession, sink: config.IcebergSink) -> StructType | None:
    """Return the columns of the table, None if there is no table yet."""
    table = _load(spark, sink.path)
    return None if table is None else _schema(spark, table)


def count_rows(spark: SparkSession, sink: config.IcebergSink) -> int | None:
    """Return how many rows the table has; None if only its files could tell."""
    table = _load(spark, sink.path)
    snapshot = None if table is None else table.currentSnapshot()
    if snapshot is None:
        return None
    summary = snapshot.summary()
    deletes = ("total-position-deletes", "total-equality-deletes")
    if any(summary.get(name) not in (None, "0") for name in deletes):
        return None  # another writer's
    total = summary.get("total-records")
    return None if total is None else int(total)


class _IcebergTable:
    """One table, written by one query of one driver."""

    def __init__(self, sink: config.IcebergSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._app_id = f"{context.group}:{context.query_id}"
        self._staging = Path(sink.path) / _FOLDER / str(context.fence.epoch)
        self._catalog = f"odradek_{uuid.uuid4().hex}"
        self._numbers: dict[str, int] | None = None

    @property
    def _name(self) -> str:
        return f"{self._catalog}.t"

    def write(self, rows: DataFrame, batch_id: int) -> None:
        spark = rows.sparkSession
        self._attach(spark)
        if self._numbers is None:
            self._numbers = self._take_over(rows)
        if batch_id < self._numbers.get(self._app_id, 0):
            log.info("batch %d is in %s already", batch_id, self._sink.path)
            rows.write.format("noop").mode("overwrite").save()
            return
        self._require_types(spark, rows.schema)
        self._context.fence.require()
        numbers = {**self._numbers, self._app_id: batch_id + 1}
        try:
            self._commit(rows, numbers)
        except (Py4JJavaError, PySparkException):
            self._require_staging()
            raise
        self._numbers = numbers
        every = self._sink.optimize_every
        if every and (batch_id + 1) % every == 0:
            self._optimize(spark, numbers)

    def _attach(self, spark: SparkSession) -> None:
        """Tell the session of the table; each query has a session of its own."""
        catalog = f"spark.sql.catalog.{self._catalog}"
        spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"{catalog}.catalog-impl", "io.odradek.iceberg.FencedCatalog")
        spark.conf.set(f"{catalog}.warehouse", _location(self._sink.path))
        spark.conf.set(f"{catalog}.staging", str(self._staging))
        spark.conf.set(f"{catalog}.cache-enabled", "false")

    def _commit(self, rows: DataFrame, numbers: Mapping[str, int]) -> None:
        writer = rows.writeTo(self._name).option("check-ordering", "false")
        if self._sink.merge_schema:
            writer = writer.option("merge-schema", "true")
        for name, value in self._summary(numbers).items():
            writer = writer.option(f"snapshot-property.{name}", value)
        if self._context.mode == "complete":
            writer.overwrite(F.lit(True))
        else:
            writer.append()

    def _summary(self, numbers: Mapping[str, int]) -> dict[str, str]:
        epoch = str(self._context.fence.epoch)
        return {_EPOCH: epoch, _BATCHES: json.dumps(numbers, separators=(",", ":"))}

    # --- the right to commit ----------------------------------------------------------------------

    def _take_over(self, rows: DataFrame) -> dict[str, int]:
        """End the right of earlier drivers, and return the number of batches per query.

        Creates the table if there is none. Raises FencedError if there is a later driver.
        """
        spark = rows.sparkSession
        self._make_staging()
        table = _load(spark, self._sink.path)
        if table is None:
            self._create(rows)
            return {}
        if _last_epoch(table) > self._context.fence.epoch:
            raise FencedError(f"a later driver writes to {self._sink.path}")
        if self._sink.merge_schema and table.properties().get(_ANY_SCHEMA) != "true":
            fenced = _java(spark).spark.Spark3Util.loadIcebergTable(
                spark._jsparkSession, self._name
            )
            fenced.updateProperties().set(_ANY_SCHEMA, "true").commit()
        return _batches(table)

    def _make_staging(self) -> None:
        mine = self._staging
        try:
            mine.parent.mkdir(parents=True, exist_ok=True)
            # Before it has a folder, which would be the right to commit.
            self._require_newest()
            mine.mkdir(exist_ok=True)
            # One look: the folder of a driver that comes after it is not to be touched.
            for other in self._require_newest():
                # At once, though it may have files.
                aside = mine / f"former-{uuid.uuid4().hex}"
                os.rename(other, aside)
                shutil.rmtree(aside, ignore_errors=True)
        except FileNotFoundError:
            self._require_staging()
            raise
        except (FileExistsError, NotADirectoryError) as error:
            raise config.JobConfigError(f"{self._sink.path}: {error.strerror}") from error

    def _require_newest(self) -> list[Path]:
        """Return the folders of other drivers. Raises FencedError if one is a later driver's."""
        others = [path for path in self._staging.parent.iterdir() if path != self._staging]
        if any(_number(path) > self._context.fence.epoch for path in others):
            shutil.rmtree(self._staging, ignore_errors=True)
            raise FencedError(f"a later driver writes to {self._sink.path}")
        return others

    def _require_staging(self) -> None:
        if not self._staging.is_dir():
            raise FencedError(f"a later driver writes to {self._sink.path}") from None

    def _create(self, rows: DataFrame) -> None:
        others = [one for one in Path(self._sink.path).iterdir() if one.name[0] not in "_."]
        if others:
            raise config.JobConfigError(f"{self._sink.path} has files that no Iceberg table has")
        # A column that is never null today may be tomorrow.
        text = rows.schema.json().replace('"nullable":false', '"nullable":true')
        empty = rows.sparkSession.createDataFrame([], StructType.fromJson(json.loads(text)))
        writer = empty.writeTo(self._name).using("iceberg")
        properties = _PROPERTIES | ({_ANY_SCHEMA: "true"} if self._sink.merge_schema else {})
        for name, value in properties.items():
            writer = writer.tableProperty(name, value)
        if self._sink.partition_by:
            first, *more = (F.col(f"`{name}`") for name in self._sink.partition_by)
            writer = writer.partitionedBy(first, *more)
        try:
            writer.create()
        except (Py4JJavaError, PySparkException):
            self._require_staging()
            raise

    def _require_types(self, spark: SparkSession, new: StructType) -> None:
        """Raise JobConfigError if a column has another type in the table, or is not there."""
        table = table_schema(spark, self._sink)
        if table is None:
            raise JobError(f"{self._sink.path} has no table any more: somebody deleted it")
        known = {field.name: field.dataType for field in table.fields}
        for field in new.fields:
            if field.name not in known:
                if self._sink.merge_schema:
                    continue
                raise config.JobConfigError(
                    f"{self._sink.path} has no column {field.name}; add it, or set mergeSchema"
                )
            if not _fits(known[field.name], field.dataType):
                raise config.JobConfigError(
                    f"column {field.name} of {self._sink.path} is a "
                    f"{known[field.name].simpleString()}, not a {field.dataType.simpleString()}"
                )

    # --- housekeeping -----------------------------------------------------------------------------

    def _optimize(self, spark: SparkSession, numbers: Mapping[str, int]) -> None:
        iceberg = _java(spark)
        try:
            table = iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, self._name)
            merging = iceberg.spark.actions.SparkActions.get(spark._jsparkSession)
            merging = merging.rewriteDataFiles(table).option("min-input-files", "2")
            merging = merging.option("target-file-size-bytes", str(_TARGET_BYTES))
            for name, value in self._summary(numbers).items():
                merging = merging.snapshotProperty(name, value)
            merging.execute()
            table.refresh()
            expiring = table.expireSnapshots().expireOlderThan(int(time.time() * 1000))
            expiring.retainLast(KEPT_SNAPSHOTS).commit()
        except (Py4JError, PySparkException) as error:
            self._require_staging()
            # Others may rewrite the same files at the same time.
            log.warning("failed to optimize %s: %s", self._sink.path, str(error).partition("\n")[0])


def _fits(table: DataType, new: DataType) -> bool:
    """Return whether values of a type go unchanged into a column of the table."""
    match table, new:
        case StructType(), StructType():
            known = {field.name: field.dataType for field in table.fields}
            fields = [field for field in new.fields if field.name in known]
            return all(_fits(known[field.name], field.dataType) for field in fields)
        case ArrayType(), ArrayType():
            return _fits(table.elementType, new.elementType)
        case MapType(), MapType():
            return _fits(table.keyType, new.keyType) and _fits(table.valueType, new.valueType)
        case IntegerType(), ByteType() | ShortType():
            return True
        case StringType(), CharType() | VarcharType():
            return True
    return table == new


def _number(folder: Path) -> int:
    return int(folder.name) if folder.name.isdigit() else -1


def _location(path: str) -> str:
    return f"file://{path}"  # Hadoop takes %20 for three characters


def _java(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.iceberg


def _load(spark: SparkSession, path: str) -> Any | None:
    """Return the table as it is now, None if there is none."""
    tables = _java(spark).hadoop.HadoopTables(spark._jsc.hadoopConfiguration())
    return tables.load(_location(path)) if tables.exists(_location(path)) else None


def _schema(spark: SparkSession, table: Any) -> StructType:
    found = _java(spark).spark.SparkSchemaUtil.convert(table.schema())
    return StructType.fromJson(json.loads(str(found.json())))


def _last_summary(table: Any) -> Mapping[str, str]:
    """Return the summary of the newest snapshot of a job; others may have written after it."""
    snapshot = table.currentSnapshot()
    while snapshot is not None:
        summary = snapshot.summary()
        if summary.get(_BATCHES) is not None:
            return {name: str(summary.get(name)) for name in (_EPOCH, _BATCHES)}
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)
    return {}


def _batches(table: Any) -> dict[str, int]:
    return {str(k): int(v) for k, v in json.loads(_last_summary(table).get(_BATCHES, "{}")).items()}


def _last_epoch(table: Any) -> int:
    return int(_last_summary(table).get(_EPOCH, "0"))
