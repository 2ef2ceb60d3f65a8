"""Executes statements: keeps what was declared, and starts Spark when a statement needs it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from odradek import standard_output, thread_errors
from odradek.standard_output import StdoutError
from odradek.terminal_text import plain
from odradek_spark import connector
from odradek_spark.broker_access import BrokerAccess
from odradek_spark.sql import output, statements
from odradek_spark.sql.catalog import Catalog, Relation
from odradek_spark.sql.errors import SqlError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from odradek_spark.sql.topics import Topics

HELP = """\
CREATE TABLE|STREAM name [(column TYPE, ...)] WITH (topic='t', format='json', key='column')
                                                   formats: json, csv, text
SELECT ... FROM name-or-`topic` ... [LIMIT n]      what is there now
SELECT ... EMIT CHANGES [LIMIT n]                  what comes, until Ctrl-C
PRINT 'topic' [FROM BEGINNING] [LIMIT n]           records as they are, until Ctrl-C
SET 'auto.offset.reset'='earliest'|'latest'        where EMIT CHANGES begins
SET 'emit.changes'='true'|'false'                  whether every SELECT is a continuous one
SHOW [ALL] TOPICS | TABLES | STREAMS | PROPERTIES; DESCRIBE name; DROP TABLE|STREAM [IF EXISTS] name
EXIT"""

_PROPERTIES = {
    "auto.offset.reset": ("latest", ("earliest", "latest")),
    "emit.changes": ("false", ("true", "false")),
}


@dataclass(frozen=True, slots=True)
class ShellOptions:
    """How the shell was started: the cluster, and Spark's jars and heap."""

    brokers: BrokerAccess
    jars: str | None
    memory: str


class SqlSession:
    """A shell's state. `close` ends Spark and deletes its files."""

    def __init__(self, options: ShellOptions, rows: TextIO) -> None:
        self._options = options
        self._rows = rows
        self._catalog = Catalog()
        self._properties = {name: default for name, (default, _) in _PROPERTIES.items()}
        self._known_topics: Topics | None = None
        self._spark: SparkSession | None = None
        self._folder = tempfile.TemporaryDirectory(
            prefix="odradek-sql-", ignore_cleanup_errors=True
        )

    def close(self) -> None:
        """End Spark; nothing that was declared outlives the shell."""
        if self._spark is not None:
            with suppress(Exception):  # its JVM may be gone
                self._spark.stop()
        self._folder.cleanup()

    @property
    def topics(self) -> Topics:
        """The cluster's topics."""
        if self._known_topics is None:
            from odradek_spark.sql.topics import Topics

            self._known_topics = Topics(self._options.brokers)
        return self._known_topics

    def execute(self, text: str) -> bool:
        """Execute a statement; return False after EXIT. Raises SqlError, KeyboardInterrupt."""
        statement = statements.parse(text)
        if isinstance(statement, statements.Leave):
            return False
        with _one_line_errors():
            self._execute(statement)
        return True

    def _execute(self, statement: statements.Statement) -> None:
        match statement:
            case statements.CreateRelation():
                self._create(statement)
            case statements.Drop():
                self._drop(statement)
            case statements.Show():
                self._show(statement.what)
            case statements.Describe():
                self._describe(statement.name)
            case statements.Print():
                self._print(statement)
            case statements.Assign():
                self._assign(statement)
            case statements.RunQuery():
                self._query(statement)
            case _:
                self._say(HELP)

    def _say(self, text: str) -> None:
        self._rows.write(f"{text}\n")
        self._rows.flush()

    def _create(self, wanted: statements.CreateRelation) -> None:
        known = self._catalog.find(wanted.name)
        if known is not None and wanted.if_not_exists:
            output.notice(f"{known.kind} {known.name} is there already")
            return
        if known is not None and not wanted.or_replace:
            raise SqlError(f"{known.kind} {known.name} is there already; DROP it, or OR REPLACE")
        self.topics.require(wanted.topic)
        schema = self._schema(wanted.columns, wanted.format, wanted.topic)
        key = _key_column(wanted, schema)
        relation = Relation(wanted.kind, wanted.name, wanted.topic, wanted.format, schema, key)
        self._catalog.put(relation)
        columns = ", ".join(schema.fieldNames())
        inferred = " inferred" if wanted.columns is None and wanted.format == "json" else ""
        output.notice(
            f"{wanted.kind} {wanted.name} on topic {wanted.topic},{inferred} columns {columns}"
        )

    def _schema(self, columns: str | None, format_: str, topic: str) -> StructType:
        spark = self._spark_session()
        from odradek_spark.sql import interrupts, relations

        if format_ == "text":
            if columns is not None:
                raise SqlError("format text has one column, value: leave the columns out")
            return relations.TEXT_SCHEMA
        if columns is not None:
            return interrupts.run(spark, lambda _: relations.schema_of_ddl(columns))
        if format_ == "csv":
            raise SqlError("format csv needs columns")
        return interrupts.run(spark, lambda _: relations.infer(spark, self._options.brokers, topic))

    def _drop(self, wanted: statements.Drop) -> None:
        if self._catalog.drop(wanted.kind, wanted.name):
            output.notice(f"{wanted.kind} {wanted.name} dropped; its topic stays")
        elif wanted.if_exists:
            output.notice(f"there is no {wanted.kind} {wanted.name}")
        else:
            raise SqlError(f"there is no {wanted.kind} {wanted.name}")

    def _show(self, what: str) -> None:
        if what in ("TOPICS", "ALL TOPICS"):
            listed = [
                (one.name, one.partitions, one.replicas)
                for one in self.topics.summaries().values()
                if what == "ALL TOPICS" or not one.is_internal
            ]
            output.print_table(self._rows, ("Topic", "Partitions", "Replicas"), listed)
        elif what == "PROPERTIES":
            output.print_table(self._rows, ("Property", "Value"), self._properties.items())
        else:
            kind: statements.Kind = "TABLE" if what == "TABLES" else "STREAM"
            rows = [
                (one.name, one.topic, one.format, one.key or "")
                for one in self._catalog.of_kind(kind)
            ]
            output.print_table(self._rows, (kind.capitalize(), "Topic", "Format", "Key"), rows)

    def _describe(self, name: str) -> None:
        relation = self._relation(name)
        rows = [
            (field.name, field.dataType.simpleString(), "key" if field.name == relation.key else "")
            for field in relation.schema.fields
        ]
        output.print_table(self._rows, ("Column", "Type", "Key"), rows)
        kind = relation.kind if self._catalog.find(name) else "not declared, read as a STREAM"
        self._say(plain(f"topic {relation.topic}, format {relation.format}, {kind}"))

    def _relation(self, name: str) -> Relation:
        """Return what was declared under a name, or the topic of this name as a STREAM."""
        known = self._catalog.find(name)
        if known is not None:
            self.topics.require(known.topic)
            return known
        if name not in self.topics.summaries():
            raise SqlError(f"{name} is neither a table, a stream nor a topic")
        schema = self._schema(None, "json", name)
        return Relation("STREAM", name, name, "json", schema, None)

    def _print(self, wanted: statements.Print) -> None:
        from odradek_spark.sql import topics

        records = self.topics.records(
            wanted.topic,
            wanted.from_beginning,
            idle=lambda: standard_output.check_reader(self._rows),
        )
        for record in islice(records, wanted.limit):
            self._say(plain(topics.describe(record)))

    def _assign(self, wanted: statements.Assign) -> None:
        name = wanted.name.lower()
        if name not in _PROPERTIES:
            raise SqlError(f"{wanted.name} is no property; there are {', '.join(_PROPERTIES)}")
        default, allowed = _PROPERTIES[name]
        value = default if wanted.value is None else wanted.value.lower()
        if value not in allowed:
            raise SqlError(f"{name} is one of {', '.join(allowed)}, not {wanted.value!r}")
        was, self._properties[name] = self._properties[name], value
        output.notice(f"{name} is {value} (it was {was})")

    def _query(self, wanted: statements.RunQuery) -> None:
        spark = self._spark_session()
        from odradek_spark.sql import interrupts, queries

        runner = queries.Queries(
            spark,
            self._options.brokers,
            self._relation,
            self._rows,
            Path(self._folder.name),
        )
        if wanted.emit_changes or self._properties["emit.changes"] == "true":
            start = self._properties["auto.offset.reset"]
            interrupts.run(
                spark,
                lambda interrupted: runner.emit_changes(
                    wanted.text, wanted.limit, start, interrupted
                ),
            )
        else:
            interrupts.run(spark, lambda _: runner.select(wanted.text, wanted.limit))

    def _spark_session(self) -> SparkSession:
        if self._spark is None:
            from odradek_spark.sql import local_spark

            try:
                jars = connector.jars(self._options.jars)
            except connector.MissingJarsError as error:
                raise SqlError(str(error)) from None
            output.notice("Starting Spark (local mode) ...")
            began = time.monotonic()
            self._spark = local_spark.start(jars, self._options.memory, Path(self._folder.name))
            output.notice(f"Spark started in {time.monotonic() - began:.1f} s")
        return self._spark


def _key_column(wanted: statements.CreateRelation, schema: StructType) -> str | None:
    """Return the key as the schema spells it. Raises SqlError if it is none of its columns."""
    if wanted.key is None:
        return None
    for field in schema.fields:
        if field.name.casefold() == wanted.key.casefold():
            if field.dataType.typeName() in ("array", "map", "struct"):
                raise SqlError(f"the key {field.name} is of a type that is no key")
            return field.name
    raise SqlError(f"the key {wanted.key} is none of the columns {', '.join(schema.fieldNames())}")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Raise SqlError for what Spark says in many lines, and for threads that cannot be started."""
    try:
        yield
    except (SqlError, BrokenPipeError, StdoutError):
        raise
    except Exception as error:
        if thread_errors.is_no_thread(error):
            raise SqlError(thread_errors.NO_THREAD) from error
        from odradek_spark.sql.spark_errors import one_line

        raise SqlError(one_line(error)) from error
