"""Runs queries on Spark: what is there now, or what comes, as a table that grows.

A name in a query is looked up when Spark does not know it, so that only those topics are read and
inferred that the query names. A continuous query reads STREAMs as they grow and looks a TABLE up
as it is at each batch; over a TABLE alone it shows the changes of that table.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from odradek import standard_output
from odradek.standard_output import StdoutError
from odradek_spark.broker_access import BrokerAccess
from odradek_spark.sql import output, relations
from odradek_spark.sql.catalog import Relation
from odradek_spark.sql.errors import SqlError

# Spark asks the brokers for new records as often, and keeps the progress of its last ten batches.
_BATCH_INTERVAL = "500 milliseconds"
_POLL_S = 1.0
_UNKNOWN_NAME = "TABLE_OR_VIEW_NOT_FOUND"
# Spark marks the nodes of a streaming plan with a tilde.
_RETRACTING = re.compile(r"^[\s:+~-]*(?:Aggregate|Distinct|Join|Deduplicate|Window)\b", re.M)


class Queries:
    """Runs one query at a time. `lookup` returns the relation of a name or raises SqlError."""

    def __init__(
        self,
        spark: SparkSession,
        brokers: BrokerAccess,
        lookup: Callable[[str], Relation],
        rows: TextIO,
        folder: Path,
    ) -> None:
        self._spark = spark
        self._brokers = brokers
        self._lookup = lookup
        self._rows = rows
        self._folder = folder

    def select(self, text: str, limit: int | None) -> None:
        """Print the rows of a query over what is there now, and their number."""
        found: dict[str, Relation] = {}
        try:
            frame = self._resolved(text if limit is None else f"{text}\nLIMIT {limit}", found)
            table = output.GrowingTable(self._rows, frame.columns)
            for row in frame.toLocalIterator():
                table.add(row)
            table.flush()
            self._rows.write(f"({table.rows} row{'' if table.rows == 1 else 's'})\n")
            self._rows.flush()
            self._tell(relations.left_out(_observed(self._spark, frame)))
        finally:
            self._forget(found)

    def emit_changes(
        self, text: str, limit: int | None, start: str, interrupted: threading.Event
    ) -> None:
        """Print rows as they come until `limit` rows, or until it is interrupted."""
        found: dict[str, Relation] = {}
        try:
            self._resolved(text, found)
            streams = [name for name, relation in found.items() if relation.kind == "STREAM"]
            for name in streams or found:
                self._register(name, found[name], text, start)
            frame = self._spark.sql(text)
            if not frame.isStreaming:
                raise SqlError("EMIT CHANGES needs a query over a stream or a table")
            if not streams and (len(found) > 1 or _needs_retraction(frame)):
                raise SqlError(
                    "a continuous query cannot aggregate or join TABLEs alone, whose rows are "
                    "replaced: ask without EMIT CHANGES, or declare a STREAM on the topic"
                )
            if limit != 0:
                self._follow(frame, limit, interrupted)
        finally:
            self._forget(found)

    def _resolved(self, text: str, found: dict[str, Relation]) -> DataFrame:
        """Return the query's DataFrame; `found` gets each name that was looked up for it."""
        while True:
            try:
                return self._spark.sql(text)
            except AnalysisException as error:
                name = _unknown_name(error)
                if name is None or name in found:
                    raise
                found[name] = self._lookup(name)
                self._register(name, found[name], text)

    def _register(
        self, name: str, relation: Relation, text: str, changes_from: str | None = None
    ) -> None:
        extra = relations.metadata_in(text)
        frame = relations.frame(self._spark, relation, self._brokers, extra, changes_from)
        frame.createOrReplaceTempView(relations.quoted(name))

    def _forget(self, found: Mapping[str, Relation]) -> None:
        for name in found:
            self._spark.catalog.dropTempView(name)

    def _follow(self, frame: DataFrame, limit: int | None, interrupted: threading.Event) -> None:
        table = output.GrowingTable(self._rows, frame.columns, roomy=True)
        done = threading.Event()
        unwritten: list[Exception] = []

        def show(batch: DataFrame, _: int) -> None:
            if done.is_set():
                return
            try:
                for row in batch.toLocalIterator():
                    table.add(row)
                    if table.rows == limit:
                        done.set()
                        break
                if table.rows:
                    table.flush()
            except (BrokenPipeError, StdoutError) as error:
                # Spark would make its own error of it.
                unwritten.append(error)
                done.set()

        checkpoint = tempfile.mkdtemp(dir=self._folder)
        writer = frame.writeStream.foreachBatch(show).trigger(processingTime=_BATCH_INTERVAL)
        query = _started(writer.option("checkpointLocation", checkpoint))
        counts = _Counts()
        try:
            while query.isActive and not interrupted.is_set() and not done.wait(_POLL_S):
                if counts.add(query):
                    self._tell(counts.fresh())
                standard_output.check_reader(self._rows)
            failure = query.exception()
            if failure is not None and not done.is_set() and not interrupted.is_set():
                raise failure
            if unwritten:
                raise unwritten[0]
        finally:
            done.set()
            query.stop()
            counts.add(query)
            self._tell(counts.fresh())
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _tell(self, counts: Mapping[str, relations.LeftOut]) -> None:
        for name, count in counts.items():
            for line in relations.describe_left_out(name, count):
                output.notice(line)


class _Counts:
    """Sums what the batches of a streaming query left out."""

    def __init__(self) -> None:
        self._last_batch = -1
        self._fresh: dict[str, relations.LeftOut] = {}

    def add(self, query: StreamingQuery) -> bool:
        """Add the batches since the last call; return whether they left something out."""
        for progress in query.recentProgress:
            if progress.batchId > self._last_batch and progress.numInputRows > 0:
                self._last_batch = progress.batchId
                for name, count in relations.left_out(progress.observedMetrics).items():
                    self._fresh[name] = self._fresh.get(name, relations.LeftOut()) + count
        return any(count.malformed or count.keyless for count in self._fresh.values())

    def fresh(self) -> dict[str, relations.LeftOut]:
        """Return what was added since the last call."""
        fresh, self._fresh = self._fresh, {}
        return fresh


def _started(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query that emits rows as they change, or, where Spark cannot, when they are final."""
    try:
        return writer.outputMode("update").start()
    except AnalysisException as error:
        with suppress(AnalysisException):
            return writer.outputMode("append").start()
        raise error


def _needs_retraction(frame: DataFrame) -> bool:
    """Return whether a row that replaces another one would have to take back what that one did."""
    plan = frame._jdf.queryExecution().analyzed().toString()
    return _RETRACTING.search(str(plan)) is not None


def _unknown_name(error: AnalysisException) -> str | None:
    if error.getCondition() != _UNKNOWN_NAME:
        return None
    name = (error.getMessageParameters() or {}).get("relationName", "")
    return name.strip("`").replace("`.`", ".").replace("``", "`") or None


def _observed(spark: SparkSession, frame: DataFrame) -> dict[str, Any]:
    """Return what a query observed while its rows were read: name -> values."""
    metrics = frame._jdf.queryExecution().observedMetrics()
    converters = spark._jvm.scala.jdk.javaapi.CollectionConverters  # type: ignore[union-attr]
    return {
        entry.getKey(): [entry.getValue().get(place) for place in range(entry.getValue().size())]
        for entry in converters.asJava(metrics).entrySet()
    }
