"""Sink jdbc: each batch is applied to the table exactly once, in one transaction.

Spark's tasks insert their rows into a staging table, which only this driver uses. One transaction
on one connection then moves them into the table, so no reader sees a part of a batch. Table
`odradek_batches` beside it has a row per group and table: the query's id, the epoch and the last
batch. The transaction updates that row first. This locks it, finds no row if a later driver has
written its epoch there, and shows whether the batch was applied already.

Spark may run a task twice (its executor died, or speculation), and the order of rows then differs
after a shuffle. Each attempt inserts all its rows in one transaction, so the staging table has
whole attempts. The rows of one attempt per partition are taken.

- append: the rows are inserted; with `upsertKeys` they replace those of the same key,
- update: needs `upsertKeys`,
- complete: the rows replace all rows of the table.

Tables of earlier releases have a column `odradek_batch`, which goes on to name the batch.
"""

import hashlib
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own guides use
from pyspark.sql.types import ArrayType, DataType, StringType, StructField

from odradek_spark import config
from odradek_spark.errors import FencedError, JobError
from odradek_spark.sinks.interface import SinkContext, WriteBatch

BATCH_COLUMN = "odradek_batch"
BATCHES_TABLE = "odradek_batches"
CREDENTIALS = Path("/etc/odradek/credentials")

_WRITE, _PARTITION, _ATTEMPT = "odradek_write", "odradek_partition", "odradek_attempt"
RESERVED_COLUMNS = frozenset({BATCH_COLUMN, _WRITE, _PARTITION, _ATTEMPT})
_QUOTES = frozenset('"`')
_NO_BATCH = -1

_POSTGRESQL_DRIVER = "org.postgresql.Driver"
# Of PostgreSQL: the release that can keep NULL unique, and the SQLSTATE of a wrong ON CONFLICT.
_NULLS_NOT_DISTINCT = 15
_NO_UNIQUE_INDEX = "42P10"
_KEY_REPEATED = "21000"
_REPLACEMENT = "\ufffd"
# The driver's own transactions take no pause between their statements.
_IDLE_MS = 30_000

# Spark names the thread of a task "... task 0.0 in stage 1.0 (TID 7)". The TID is another one in
# each attempt. Spark has no function for it.
TASK_ATTEMPT = (
    "cast(regexp_extract(reflect('java.lang.Thread', 'currentThread'), 'TID ([0-9]+)', 1)"
    " as bigint)"
)


def open_jdbc(sink: config.JdbcSink, context: SinkContext) -> WriteBatch:
    """Return the function that writes a batch."""
    target: _Target | None = None

    def write(rows: DataFrame, batch_id: int) -> None:
        nonlocal target
        if target is None:
            target = _Target(_Database(rows.sparkSession, sink), sink, context, rows)
        token = target.stage(rows)
        context.fence.require()
        try:
            target.apply(token, batch_id)
        except Py4JJavaError as error:
            if sink.upsert_keys and _sql_state(error) == _KEY_REPEATED:
                raise config.JobConfigError(
                    "job.sink.jdbc.upsertKeys: a batch has several rows with the same "
                    f"{', '.join(sink.upsert_keys)}; the query must give one"
                ) from error
            raise

    return write


def holds(sink: config.JdbcSink, group: str, query_id: str, batch_id: int) -> bool:
    """Return whether the table has this batch of the query, or a later one.

    Raises the database's error if it does not answer.
    """
    database, names = _Database(SparkSession.active(), sink), _Names.of(sink.table, group)
    if not database.exists(names.batches):
        return False
    with database.transaction() as transaction:
        found = transaction.first(
            f"SELECT query_id, batch_id FROM {names.batches}"  # noqa: S608 - see below
            " WHERE consumer_group = ? AND target = ?",
            group,
            sink.table,
        )
    return found is not None and found[0] == query_id and batch_id <= int(found[1])


def credentials(folder: Path = CREDENTIALS) -> dict[str, str]:
    """Return user and password from the mounted Secret; empty if none is mounted."""
    found = {}
    for option, name in (("user", "username"), ("password", "password")):
        path = folder / name
        if path.exists():
            found[option] = path.read_text(encoding="utf-8").strip()
    return found


def require_quotable(columns: Iterable[str]) -> None:
    """Raise JobConfigError for a name that would end what Spark's dialects quote it with.

    They escape nothing, and without a schema the names are those in the records: whoever may write
    to the topic would write SQL.
    """
    refused = [name for name in columns if _QUOTES.intersection(name)]
    if refused:
        raise config.JobConfigError(
            f"job.sink.jdbc: the name of column {refused[0]!r} has a quotation mark or a backtick"
        )


def _sql_state(error: Py4JJavaError) -> str | None:
    """Return the SQLSTATE of an error of PostgreSQL."""
    state = getattr(error.java_exception, "getSQLState", None)
    return None if state is None else state()


def _column_without_nul(field: StructField) -> Column:
    column = F.col(f"`{field.name.replace('`', '``')}`")
    return _without_nul(column, field.dataType).alias(field.name)


def _without_nul(value: Column, kind: DataType) -> Column:
    if isinstance(kind, StringType):
        return F.replace(value, F.lit("\0"), F.lit(_REPLACEMENT))
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return F.transform(value, lambda one: _without_nul(one, element))
    return value


class _Transaction:
    """One transaction of the driver's own connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, text: str, *parameters: str | int) -> int:
        """Run a statement, and return how many rows it changed."""
        with self._prepared(text, parameters) as statement:
            return int(statement.executeUpdate())

    def first(self, text: str, *parameters: str | int) -> tuple[str, ...] | None:
        """Return the columns of the first row as text, or None."""
        with self._prepared(text, parameters) as statement:
            found = statement.executeQuery()
            if not found.next():
                return None
            count = found.getMetaData().getColumnCount()
            return tuple(str(found.getString(number + 1)) for number in range(count))

    @contextmanager
    def _prepared(self, text: str, parameters: tuple[str | int, ...]) -> Iterator[Any]:
        statement = self._connection.prepareStatement(text)
        try:
            for number, value in enumerate(parameters, start=1):
                if isinstance(value, int):
                    statement.setLong(number, value)
                else:
                    statement.setString(number, value)
            yield statement
        finally:
            statement.close()


class _Database:
    """The sink's database, by Spark's own connections and dialect."""

    def __init__(self, spark: SparkSession, sink: config.JdbcSink) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._spark = spark
        self._url = sink.url
        self._properties = credentials()
        driver = sink.driver
        self._is_postgresql = sink.url.startswith("jdbc:postgresql:")
        if driver is None and self._is_postgresql:
            driver = _POSTGRESQL_DRIVER  # java.sql does not find drivers in jars of `spark.jars`
        if driver is not None:
            self._properties["driver"] = driver
        self._dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(sink.url)
        options = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(
            sink.url,
            sink.table,
            jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(self._properties),
        )
        self._connect = self._dialect.createConnectionFactory(options)

    @contextmanager
    def transaction(self) -> Iterator[_Transaction]:
        """Commit what the block does, or nothing of it."""
        connection = self._connect.apply(-1)
        try:
            connection.setAutoCommit(False)
            transaction = _Transaction(connection)
            if self._is_postgresql:
                # A driver that was paused, or lost its node, would hold its locks without end.
                transaction.execute(f"SET LOCAL idle_in_transaction_session_timeout = {_IDLE_MS}")
            yield transaction
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            connection.close()

    def quoted(self, *columns: str) -> str:
        """Return column names for SQL, separated by commas."""
        return ", ".join(self._dialect.quoteIdentifier(column) for column in columns)

    def long_type(self) -> str:
        """Return the database's type for 64-bit integers."""
        types = self._jvm.org.apache.spark.sql.types.DataTypes
        found = self._dialect.getJDBCType(types.LongType)
        return str(found.get().databaseTypeDefinition()) if found.isDefined() else "BIGINT"

    def major_version(self) -> int:
        """Return the server's release."""
        connection = self._connect.apply(-1)
        try:
            return int(connection.getMetaData().getDatabaseMajorVersion())
        finally:
            connection.close()

    def exists(self, table: str) -> bool:
        """Return whether a table exists and may be read."""
        connection = self._connect.apply(-1)  # a database that does not answer is not without it
        try:
            _Transaction(connection).first(self._dialect.getTableExistsQuery(table))
        except Py4JJavaError:
            return False
        finally:
            connection.close()
        return True

    def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns."""
        return self._spark.read.jdbc(self._url, table, properties=self._properties).columns

    def storable(self, rows: DataFrame) -> DataFrame:
        """Return rows whose texts the database can have: PostgreSQL has no character U+0000.

        One record with it would fail its batch, and with each restart again.
        """
        if not self._is_postgresql:
            return rows
        return rows.select(*map(_column_without_nul, rows.schema.fields))

    def create_like(self, rows: DataFrame, table: str) -> None:
        """Create a table for such rows, with Spark's types for the database."""
        self.insert(rows.limit(0), table)

    def insert(self, rows: DataFrame, table: str) -> None:
        """Insert the rows, each partition in a transaction; create the table if it is missing."""
        rows.write.jdbc(self._url, table, mode="append", properties=self._properties)


@dataclass(slots=True)
class _Names:
    """Names of tables beside the target, in its schema."""

    schema: str
    digest: str

    @classmethod
    def of(cls, table: str, group: str) -> "_Names":
        schema, dot, _ = table.rpartition(".")
        digest = hashlib.sha256(f"{group}/{table}".encode()).hexdigest()[:8]
        return cls(f"{schema}{dot}", digest)

    @property
    def batches(self) -> str:
        return f"{self.schema}{BATCHES_TABLE}"

    def staging(self, epoch: int | str) -> str:
        # Short, because PostgreSQL cuts names after 63 bytes, and two could become one.
        return f"{self.schema}odradek_staging_{self.digest}_{epoch}"


# Table names need no escaping in the statements below: whoever writes the job also writes its SQL.
class _Target:
    """The table of one query. Raises FencedError once a later driver has opened it."""

    def __init__(
        self, database: _Database, sink: config.JdbcSink, context: SinkContext, rows: DataFrame
    ) -> None:
        self._database = database
        self._table = sink.table
        self._context = context
        self._epoch = context.fence.epoch
        self._columns = rows.columns
        self._names = _Names.of(sink.table, context.group)
        self._key = (context.group, sink.table)
        upsert_keys = () if context.mode == "complete" else sink.upsert_keys
        self._create_tables(rows, upsert_keys)
        former = self._take_over()
        if former is not None:
            self._drop(self._names.staging(former))
        self._tagged = self._check_columns()
        self._is_first = True
        self._staging = self._names.staging(self._epoch)
        self._create_staging(rows)
        self._upsert_keys = upsert_keys

    def stage(self, rows: DataFrame) -> str:
        """Insert the rows into the staging table, and return what names them there."""
        token = uuid.uuid4().hex
        self._database.insert(
            self._database.storable(rows)
            .withColumn(_WRITE, F.lit(token))
            .withColumn(_PARTITION, F.spark_partition_id())
            .withColumn(_ATTEMPT, F.expr(TASK_ATTEMPT)),
            self._staging,
        )
        return token

    def apply(self, token: str, batch_id: int) -> None:
        """Move staged rows into the table, unless the batch was applied before."""
        context, batches = self._context, self._names.batches
        with self._database.transaction() as transaction:
            query_id, applied = self._lock_row(transaction)
            if query_id != context.query_id or applied < batch_id:
                tag = f"{context.query_id}:{batch_id}"
                for text in (*self._deletion(), self._insertion()):
                    values = {"token": token, "tag": tag}
                    transaction.execute(text.text, *(values[name] for name in text.parameters))
                transaction.execute(
                    f"UPDATE {batches} SET query_id = ?, batch_id = ?"  # noqa: S608 - see above
                    " WHERE consumer_group = ? AND target = ?",
                    context.query_id,
                    batch_id,
                    *self._key,
                )
            transaction.execute(f"DELETE FROM {self._staging}")  # noqa: S608 - see above
        self._is_first = False

    def _lock_row(self, transaction: _Transaction) -> tuple[str, int]:
        """Write the epoch into the row, which locks it; return its query and its last batch."""
        batches = self._names.batches
        changed = transaction.execute(
            f"UPDATE {batches} SET epoch = ?"  # noqa: S608 - see above
            " WHERE consumer_group = ? AND target = ? AND epoch <= ?",
            self._epoch,
            *self._key,
            self._epoch,
        )
        found = transaction.first(
            f"SELECT query_id, batch_id, epoch FROM {batches}"  # noqa: S608 - see above
            " WHERE consumer_group = ? AND target = ?",
            *self._key,
        )
        if found is None:
            raise JobError(
                f"{batches} has lost the row of group {self._key[0]}, table {self._table}"
            )
        if not changed:
            raise FencedError(
                f"a later driver of group {self._key[0]} writes to {self._table}: "
                f"its epoch is {found[2]}, this one's {self._epoch}"
            )
        return found[0], int(found[1])

    def _take_over(self) -> str | None:
        """Write the epoch into the row; return the former one if there is another driver's."""
        batches = self._names.batches
        with self._database.transaction() as transaction:
            found = transaction.first(
                f"SELECT epoch FROM {batches}"  # noqa: S608 - see above
                " WHERE consumer_group = ? AND target = ?",
                *self._key,
            )
            if found is None:
                transaction.execute(
                    f"INSERT INTO {batches} (consumer_group, target, query_id, epoch, batch_id)"  # noqa: S608 - see above
                    " VALUES (?, ?, ?, ?, ?)",
                    *self._key,
                    self._context.query_id,
                    self._epoch,
                    _NO_BATCH,
                )
                return None
            self._lock_row(transaction)
        return None if found[0] == str(self._epoch) else found[0]

    def _create_tables(self, rows: DataFrame, upsert_keys: tuple[str, ...]) -> None:
        database, batches = self._database, self._names.batches
        is_new = not database.exists(self._table)
        if is_new:
            database.create_like(rows, self._table)
        if upsert_keys:
            self._prepare_upserts(upsert_keys, is_new)
        if database.exists(batches):
            return
        number = database.long_type()
        try:
            with database.transaction() as transaction:
                transaction.execute(
                    f"CREATE TABLE {batches} (consumer_group VARCHAR(249) NOT NULL,"
                    " target VARCHAR(249) NOT NULL, query_id VARCHAR(64) NOT NULL,"
                    f" epoch {number} NOT NULL, batch_id {number} NOT NULL,"
                    " PRIMARY KEY (consumer_group, target))"
                )
        except Py4JJavaError:
            if not database.exists(batches):  # another job may have created it meanwhile
                raise

    def _prepare_upserts(self, keys: tuple[str, ...], is_new: bool) -> None:
        database, names = self._database, self._database.quoted(*keys)
        if is_new:
            # Rows without a value in a key are one row, too.
            nulls = "NULLS NOT DISTINCT" if database.major_version() >= _NULLS_NOT_DISTINCT else ""
            with database.transaction() as transaction:
                transaction.execute(f"CREATE UNIQUE INDEX ON {self._table} ({names}) {nulls}")
        try:
            with database.transaction() as transaction:
                transaction.first(
                    f"EXPLAIN INSERT INTO {self._table} ({names})"  # noqa: S608 - see above
                    f" SELECT {names} FROM {self._table} ON CONFLICT ({names}) DO NOTHING"
                )
        except Py4JJavaError as error:
            if _sql_state(error) != _NO_UNIQUE_INDEX:
                raise
            raise config.JobConfigError(
                f"job.sink.jdbc.upsertKeys: {self._table} has no unique index on {', '.join(keys)}"
            ) from error

    def _create_staging(self, rows: DataFrame) -> None:
        """Create an empty staging table with the types of the target's columns."""
        database = self._database
        self._drop(self._staging)
        columns, number = database.quoted(*self._columns), database.long_type()
        write, part, attempt = (database.quoted(name) for name in (_WRITE, _PARTITION, _ATTEMPT))
        selection = (
            f"SELECT {columns}, CAST('' AS VARCHAR(32)) AS {write}, CAST(0 AS INTEGER) AS {part},"  # noqa: S608 - see above
            f" CAST(0 AS {number}) AS {attempt} FROM {self._table}"
        )
        try:
            with database.transaction() as transaction:
                transaction.execute(f"CREATE TABLE {self._staging} AS {selection} WITH NO DATA")
        except Py4JJavaError:
            # A dialect without this statement: the types are then Spark's own.
            database.create_like(
                rows.withColumn(_WRITE, F.lit(""))
                .withColumn(_PARTITION, F.lit(0))
                .withColumn(_ATTEMPT, F.lit(0).cast("bigint")),
                self._staging,
            )

    def _check_columns(self) -> bool:
        """Return whether rows name their batch. Raises JobConfigError if a column is missing."""
        found = {name.lower() for name in self._database.columns(self._table)}
        missing = [name for name in self._columns if name.lower() not in found]
        if missing:
            raise config.JobConfigError(
                f"job.sink.jdbc: table {self._table} has no column {', '.join(missing)}"
            )
        return BATCH_COLUMN in found

    def _drop(self, table: str) -> None:
        if self._database.exists(table):
            with self._database.transaction() as transaction:
                transaction.execute(f"DROP TABLE {table}")

    def _deletion(self) -> Iterator["_Statement"]:
        if self._context.mode == "complete":
            yield _Statement(f"DELETE FROM {self._table}")  # noqa: S608 - see above
        elif self._tagged and self._is_first:
            # An earlier release may have written a part of the batch. Without an index the database
            # looks at all rows, so not in each batch.
            column = self._database.quoted(BATCH_COLUMN)
            yield _Statement(f"DELETE FROM {self._table} WHERE {column} = ?", ("tag",))  # noqa: S608

    def _insertion(self) -> "_Statement":
        quoted, columns, upsert_keys = self._database.quoted, self._columns, self._upsert_keys
        names, values = quoted(*columns), ", ".join(f"s.{quoted(name)}" for name in columns)
        parameters: tuple[str, ...] = ("token", "token")
        if self._tagged and self._context.mode != "complete":
            names, values = f"{names}, {quoted(BATCH_COLUMN)}", f"{values}, ?"
            parameters = ("tag", *parameters)
        text = (
            f"INSERT INTO {self._table} ({names}) SELECT {values} FROM {self._staging} s"  # noqa: S608 - see above
            f" JOIN (SELECT {quoted(_PARTITION)} AS part, MIN({quoted(_ATTEMPT)}) AS attempt"
            f" FROM {self._staging} WHERE {quoted(_WRITE)} = ? GROUP BY {quoted(_PARTITION)}) m"
            f" ON m.part = s.{quoted(_PARTITION)} AND m.attempt = s.{quoted(_ATTEMPT)}"
            f" WHERE s.{quoted(_WRITE)} = ?"
        )
        if upsert_keys:
            others = [name for name in columns if name not in upsert_keys]
            changes = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in others)
            then = f"UPDATE SET {changes}" if changes else "NOTHING"
            text = f"{text} ON CONFLICT ({quoted(*upsert_keys)}) DO {then}"
        return _Statement(text, parameters)


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement, and which values its parameters have: `token` or `tag` of the batch."""

    text: str
    parameters: tuple[str, ...] = ()
