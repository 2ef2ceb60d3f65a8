"""Sink delta: each batch is one commit of a Delta table, which names the batch.

Mode append adds the rows, complete replaces all, update merges by keys. The commit is a new file of
the table's log, which only one writer can create, and has the number of the transaction `txn`
GROUP:QUERY:

    (epoch of the driver << 30) + batches that the table has of this query

A driver first commits its own epoch with the number of batches that it found, for this query and
for those that the group had with other checkpoints. From then on a driver with a lower epoch cannot
commit: Delta drops a transaction whose number is not higher, and a transaction that began before
the new epoch conflicts with it. A batch that the table has already is
computed and dropped. So a batch is in the table once, whoever wrote it.

After every `optimizeEvery` batches small files are merged (OPTIMIZE), and once a day files that
no version of the last week needs are deleted (VACUUM). Neither changes what a reader sees.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own guides use
from pyspark.sql.types import StructType

from odradek_spark import config, storage
from odradek_spark.errors import FencedError
from odradek_spark.sinks.interface import SinkContext, WriteBatch

log = logging.getLogger(__name__)

_BATCH_BITS = 30
_VACUUM_INTERVAL_S = 24 * 3600.0
_APP_ID, _VERSION = "txnAppId", "txnVersion"
_LOG_PRUNED = "DELTA_CANNOT_VACUUM_LITE"


def open_delta(sink: config.DeltaSink, context: SinkContext) -> WriteBatch:
    """Return the function that writes a batch."""
    table = _Table(sink, context)
    return table.write


def holds(sink: config.DeltaSink, group: str, query_id: str, batch_id: int) -> bool:
    """Return whether the table has this batch of the query, or a later one."""
    spark = SparkSession.active()
    app_id = _app_id(group, query_id)
    return _exists(spark, sink.path) and batch_id < _batches(_last(spark, sink.path, app_id))


def table_schema(spark: SparkSession, sink: config.DeltaSink) -> StructType | None:
    """Return the columns of the table, None if there is no table yet."""
    if not _exists(spark, sink.path):
        return None
    return spark.read.format("delta").load(sink.path).schema


def count_rows(spark: SparkSession, sink: config.DeltaSink) -> int:
    """Return how many rows the table has; Delta knows it from its log."""
    return spark.read.format("delta").load(sink.path).count()


class _Table:
    """One table, written by one query of one driver."""

    def __init__(self, sink: config.DeltaSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._app_id = _app_id(context.group, context.query_id)
        self._batches: int | None = None
        self._vacuum_due = 0.0

    def write(self, rows: DataFrame, batch_id: int) -> None:
        if self._batches is None:
            self._batches = self._take_over(rows)
        if batch_id < self._batches:
            log.info("batch %d is in %s already", batch_id, self._sink.path)
            rows.write.format("noop").mode("overwrite").save()
            return
        self._context.fence.require()
        version = (self._context.fence.epoch << _BATCH_BITS) + batch_id + 1
        try:
            self._commit(rows, version)
        except Exception:
            if self._epoch_of(rows.sparkSession) > self._context.fence.epoch:
                raise FencedError(f"a later driver writes to {self._sink.path}") from None
            raise
        # Delta says nothing of a transaction that it dropped.
        self._context.fence.require()
        self._batches = batch_id + 1
        every = self._sink.optimize_every
        if every and (batch_id + 1) % every == 0:
            self._optimize(rows.sparkSession)

    def _commit(self, rows: DataFrame, version: int) -> None:
        if self._context.mode == "update":
            self._merge(rows, version)
            return
        mode = "overwrite" if self._context.mode == "complete" else "append"
        self._save(rows, mode, version)

    def _save(self, rows: DataFrame, mode: str, version: int) -> None:
        writer = rows.write.format("delta").mode(mode)
        writer = writer.option(_APP_ID, self._app_id).option(_VERSION, version)
        if self._sink.merge_schema:
            writer = writer.option("mergeSchema", "true")
        if self._sink.partition_by:
            writer = writer.partitionBy(*self._sink.partition_by)
        writer.save(self._sink.path)

    def _merge(self, rows: DataFrame, version: int) -> None:
        spark, keys = rows.sparkSession, self._sink.merge_keys
        kept = rows.persist()
        settings = {
            f"spark.databricks.delta.write.{_APP_ID}": self._app_id,
            f"spark.databricks.delta.write.{_VERSION}": str(version),
        }
        try:
            self._require_unique(kept)
            kept.createOrReplaceTempView("odradek_batch")
            for name, value in settings.items():
                spark.conf.set(name, value)
            evolving = "with schema evolution " if self._sink.merge_schema else ""
            same = " and ".join(f"old.{_quoted(key)} <=> new.{_quoted(key)}" for key in keys)
            spark.sql(
                f"merge {evolving}into {self._name} old using odradek_batch new on {same} "
                "when matched then update set * when not matched then insert *"
            )
        finally:
            for name in settings:
                spark.conf.unset(name)
            kept.unpersist()

    def _require_unique(self, rows: DataFrame) -> None:
        keys = self._sink.merge_keys
        repeated = rows.groupBy(*map(_quoted, keys)).agg(F.count(F.lit(1)).alias("_rows"))
        if repeated.where("_rows > 1").limit(1).collect():
            raise config.JobConfigError(
                f"job.sink.delta.mergeKeys: a batch has several rows with the same "
                f"{', '.join(keys)}; the query must give one"
            )

    @property
    def _name(self) -> str:
        return f"delta.{_quoted(self._sink.path)}"

    def _take_over(self, rows: DataFrame) -> int:
        """Commit this driver's epoch, and return the number of batches that the table has.

        Creates the table if there is none. Raises FencedError if it has a later epoch.
        """
        spark, epoch = rows.sparkSession, self._context.fence.epoch
        storage.require_put_if_absent(spark, self._sink.path)
        if not _exists(spark, self._sink.path):
            self._save(rows.limit(0), "append", epoch << _BATCH_BITS)
        transaction = _delta_log(spark, self._sink.path).startTransaction()
        others = _app_ids(spark, transaction, _app_id(self._context.group, "")) - {self._app_id}
        numbers = {app: int(transaction.txnVersion(app)) for app in (self._app_id, *others)}
        if any(_epoch(number) > epoch for number in numbers.values()):
            raise FencedError(f"a later driver writes to {self._sink.path}")
        raised = {
            app: (epoch << _BATCH_BITS) + _batches(number)
            for app, number in numbers.items()
            if _epoch(number) < epoch
        }
        if raised:
            _commit_numbers(spark, transaction, raised)
        return _batches(numbers[self._app_id])

    def _epoch_of(self, spark: SparkSession) -> int:
        try:
            return _epoch(_last(spark, self._sink.path, self._app_id))
        except (Py4JJavaError, PySparkException):
            return 0  # the store does not answer

    def _optimize(self, spark: SparkSession) -> None:
        try:
            spark.sql(f"optimize {self._name}")
            if time.monotonic() >= self._vacuum_due:
                self._vacuum(spark)
                self._vacuum_due = time.monotonic() + _VACUUM_INTERVAL_S
        except (Py4JJavaError, PySparkException) as error:
            # Others may rewrite the same files at the same time.
            log.warning("failed to optimize %s: %s", self._sink.path, _first_line(error))

    def _vacuum(self, spark: SparkSession) -> None:
        try:
            # Lite deletes only what the table's log names: a checkpoint may be in the same folder.
            spark.sql(f"vacuum {self._name} lite")
        except (Py4JJavaError, PySparkException) as error:
            if _LOG_PRUNED not in str(error):
                raise
            log.warning(
                "%s keeps files that its log names no more: the job rested for longer than Delta "
                "keeps the log. Run VACUUM of the table once, if nothing else is in its folder",
                self._sink.path,
            )


def _first_line(error: Exception) -> str:
    """Return what Spark says, without where it was."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else error
    return str(cause).partition("\n")[0]


def _batches(number: int) -> int:
    """Return the batches that a transaction's number tells; it is -1 before the first one."""
    return max(number, 0) & ((1 << _BATCH_BITS) - 1)


def _epoch(number: int) -> int:
    return max(number, 0) >> _BATCH_BITS


def _delta_log(spark: SparkSession, path: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)


def _exists(spark: SparkSession, path: str) -> bool:
    delta_log = _delta_log(spark, path)
    none = spark._jvm.scala.Option.empty()  # type: ignore[union-attr]
    return int(delta_log.update(False, none, none).version()) >= 0


def _app_id(group: str, query_id: str) -> str:
    return f"{group}:{query_id}"


def _app_ids(spark: SparkSession, transaction: Any, prefix: str) -> set[str]:
    """Return which transactions the table has a number of."""
    jvm: Any = spark._jvm
    numbers = transaction.snapshot().transactions()
    found = map(str, jvm.scala.jdk.javaapi.CollectionConverters.asJava(numbers).keySet())
    return {app_id for app_id in found if app_id.startswith(prefix)}


def _last(spark: SparkSession, path: str, app_id: str) -> int:
    """Return the number of the query's last transaction, -1 if there is none."""
    return int(_delta_log(spark, path).startTransaction().txnVersion(app_id))


def _commit_numbers(spark: SparkSession, transaction: Any, numbers: Mapping[str, int]) -> None:
    """Commit nothing but these queries' numbers.

    Fails if another transaction of a query was committed since this one began.
    """
    jvm: Any = spark._jvm
    delta = jvm.org.apache.spark.sql.delta
    actions = jvm.java.util.ArrayList()
    for app_id, number in numbers.items():
        actions.add(delta.actions.SetTransaction(app_id, number, jvm.scala.Option.empty()))
    operation = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
    transaction.commit(
        jvm.scala.jdk.javaapi.CollectionConverters.asScala(actions).toList(), operation
    )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
