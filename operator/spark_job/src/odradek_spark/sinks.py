"""Writes micro-batches to their sink; a rerun batch does not appear twice.

Spark reruns a batch if the driver died before `commits/N` was in the checkpoint, with the same
number and over the same offsets. `open_sink` returns a function (rows, batch id) that returns only
when the sink has the batch, and that makes a rerun harmless:

- parquet: `parquet_store` moves a batch to its place with one rename and drops the second copy,
- jdbc: column `odradek_batch` of every row names its batch, whose rows are deleted first; mode
  complete replaces the whole result in one transaction,
- topic: at least once, because a log is append-only; the header `odradek-batch` of a duplicate
  equals that of the first record, so a reader can detect it,
- console: the log shows the batch again.

Every sink computes the whole batch, also in a rerun, because the query's state depends on it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own guides use

from odradek_spark import config
from odradek_spark.parquet_store import ParquetStore

log = logging.getLogger(__name__)

CONSOLE_ROWS = 100
BATCH_COLUMN = "odradek_batch"
BATCH_HEADER = "odradek-batch"
CREDENTIALS = Path("/etc/odradek/credentials")

WriteBatch = Callable[[DataFrame, int], None]


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink needs to know about its query. `bootstrap` is the group's own cluster."""

    mode: str
    query_id: str
    bootstrap: str


def check(result: DataFrame, sink: config.Sink) -> None:
    """Raise JobConfigError if the sink cannot take the result's columns; call before the start."""
    columns = result.columns
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise config.JobConfigError(f"the query has column {', '.join(repeated)} more than once")
    wanted: tuple[str, ...] = ()
    match sink:
        case config.ParquetSink(partition_by=names):
            wanted = names
            if len(set(names)) == len(columns):
                raise config.JobConfigError(
                    "job.sink.parquet.partitionBy leaves no column for the files"
                )
        case config.TopicSink(key=key):
            wanted = () if key is None else (key,)
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise config.JobConfigError(f"job.sink: the query has no column {', '.join(missing)}")


def open_sink(sink: config.Sink, context: SinkContext) -> WriteBatch:
    """Return the function that writes a batch. Raises parquet_store.StoreError."""
    match sink:
        case config.ParquetSink():
            return _parquet(sink, context)
        case config.TopicSink():
            return _topic(sink, context)
        case config.JdbcSink():
            return _jdbc(sink, context)
        case config.ConsoleSink():
            return _console


def _parquet(sink: config.ParquetSink, context: SinkContext) -> WriteBatch:
    store = ParquetStore(Path(sink.path), context.mode, context.query_id)

    def write(rows: DataFrame, batch_id: int) -> None:
        batch = store.begin(batch_id)
        writer = rows.write.mode("overwrite")
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        writer.parquet(f"file://{batch.staging}")
        store.finish(batch)

    return write


def _console(rows: DataFrame, batch_id: int) -> None:
    # Persisted, because reading only some rows would not update the state of all partitions.
    kept = rows.select(F.to_json(F.struct("*")).alias("row")).persist()
    try:
        count = kept.count()
        log.info("batch %d: %d rows", batch_id, count)
        for row in kept.limit(CONSOLE_ROWS).collect():
            log.info("batch %d: %s", batch_id, row["row"])
    finally:
        kept.unpersist()


def _topic(sink: config.TopicSink, context: SinkContext) -> WriteBatch:
    options = {
        "kafka.bootstrap.servers": context.bootstrap,
        "topic": sink.name,
        "kafka.acks": "all",
        # Spark has a producer per executor and may rerun a task, so idempotence would not make this
        # exactly once; one request in flight preserves the order without it.
        "kafka.enable.idempotence": "false",
        "kafka.max.in.flight.requests.per.connection": "1",
        "kafka.delivery.timeout.ms": "120000",
        "includeHeaders": "true",
    }

    def write(rows: DataFrame, batch_id: int) -> None:
        tag = f"{context.query_id}:{batch_id}"
        key = F.lit(None) if sink.key is None else F.col(f"`{sink.key}`")
        headers = F.array(
            F.struct(F.lit(BATCH_HEADER).alias("key"), F.lit(tag.encode()).alias("value"))
        )
        rows.select(
            key.cast("string").alias("key"),
            F.to_json(F.struct("*")).alias("value"),
            headers.alias("headers"),
        ).write.format("kafka").options(**options).save()

    return write


def credentials(folder: Path = CREDENTIALS) -> dict[str, str]:
    """Return user and password from the mounted Secret; empty if none is mounted."""
    found = {}
    for option, name in (("user", "username"), ("password", "password")):
        path = folder / name
        if path.exists():
            found[option] = path.read_text(encoding="utf-8").strip()
    return found


def _jdbc(sink: config.JdbcSink, context: SinkContext) -> WriteBatch:
    properties = credentials()
    if sink.driver is not None:
        properties["driver"] = sink.driver

    def append(rows: DataFrame, table: str, mode: str) -> None:
        writer = rows.write
        if BATCH_COLUMN in rows.columns:
            # Spark's default type for text may not be comparable (Derby's CLOB).
            writer = writer.option("createTableColumnTypes", f"{BATCH_COLUMN} VARCHAR(64)")
        writer.jdbc(sink.url, table, mode=mode, properties=properties)

    # The table's name needs no escaping: whoever writes the job also writes its SQL.
    def write_append(rows: DataFrame, batch_id: int) -> None:
        tag = f"{context.query_id}:{batch_id}"
        tagged = rows.withColumn(BATCH_COLUMN, F.lit(tag))
        # Creates the table if it is missing, so that the deletion finds it.
        append(rows.sparkSession.createDataFrame([], tagged.schema), sink.table, "append")
        jvm: Any = rows.sparkSession._jvm
        dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(sink.url)
        column = dialect.quoteIdentifier(BATCH_COLUMN)
        delete = f"DELETE FROM {sink.table} WHERE {column} = ?"  # noqa: S608 - see above
        _execute(rows, sink, properties, [(delete, tag)])
        append(tagged, sink.table, "append")

    def write_complete(rows: DataFrame, _: int) -> None:
        staging = f"{sink.table}_odradek_staging"
        append(rows, staging, "overwrite")
        append(rows.sparkSession.createDataFrame([], rows.schema), sink.table, "append")
        delete = f"DELETE FROM {sink.table}"  # noqa: S608 - see above
        insert = f"INSERT INTO {sink.table} SELECT * FROM {staging}"  # noqa: S608 - see above
        _execute(rows, sink, properties, [(delete, None), (insert, None)])

    return write_complete if context.mode == "complete" else write_append


def _execute(
    rows: DataFrame,
    sink: config.JdbcSink,
    properties: dict[str, str],
    statements: list[tuple[str, str | None]],
) -> None:
    """Run statements, each with at most one text parameter, in one transaction."""
    jvm: Any = rows.sparkSession._jvm
    if sink.driver is not None:
        jvm.java.lang.Class.forName(sink.driver)
    arguments = jvm.java.util.Properties()
    for name, value in properties.items():
        if name != "driver":
            arguments.setProperty(name, value)
    connection = jvm.java.sql.DriverManager.getConnection(sink.url, arguments)
    try:
        connection.setAutoCommit(False)
        for text, parameter in statements:
            statement = connection.prepareStatement(text)
            if parameter is not None:
                statement.setString(1, parameter)
            statement.executeUpdate()
            statement.close()
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    finally:
        connection.close()
