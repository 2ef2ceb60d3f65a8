"""What readers of a windowed job's sink see, by the rules of docs/jobs.md, while the job works.

The job groups known records by a minute of their time and by a key, and each row names its records.
All rows of a minute are written in one batch, so a reader who sees some and not all of them has
seen a part of a batch.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from confluent_kafka import Consumer, TopicPartition

from odradek_spark.sinks.topic import BATCH_HEADER, BATCH_ROWS_HEADER, ROW_HEADER
from odradek_spark.storage import LocalFolder
from tests.support.clients import settings
from tests.support.delta_table import DeltaTable
from tests.support.postgres import Postgres
from tests.support.s3_store import BUCKET, S3Store

KEYS = 5
"""How many rows a minute has."""
_READ_PAUSE_S = 0.1
_END_SECONDS = 60


class Row(NamedTuple):
    """One row of the result: a minute's start in seconds, a key, and which records it counts."""

    start: int
    key: int
    lines: int
    numbers: str


class Result(Protocol):
    """A sink as its readers see it. Threads may share it."""

    sink: dict[str, Any]
    """`spec.job.sink`."""

    def rows(self) -> list[Row]:
        """Return what a reader sees now."""

    def batches(self) -> int:
        """Return how many batches the sink has."""

    def unfinished(self) -> Collection[str]:
        """Return names of what was written and is of no batch that readers see."""


class DeltaResult:
    """A Delta table in the store."""

    def __init__(self, store: S3Store, name: str) -> None:
        self.sink: dict[str, Any] = {"delta": {"path": f"{store.url}/tables/{name}"}}
        self._table = DeltaTable(store.folder / BUCKET / "tables" / name)
        self._lock = threading.Lock()

    def rows(self) -> list[Row]:
        """Return the rows of the newest version."""
        with self._lock:
            found = self._table.rows()
        return [Row(one["start"], one["k"], one["lines"], one["numbers"]) for one in found]

    def batches(self) -> int:
        """Return the number in the table's transactions."""
        with self._lock:
            return self._table.batches()

    def unfinished(self) -> Collection[str]:
        """Return the data files that no commit names."""
        with self._lock:
            return self._table.files_without_commit()


class TableResult:
    """A table of PostgreSQL."""

    def __init__(self, postgres: Postgres, name: str) -> None:
        self._table = name.replace("-", "_")
        self.sink: dict[str, Any] = {"jdbc": {"url": postgres.url, "table": self._table}}
        self._session = postgres.session()
        self._lock = threading.Lock()

    def rows(self) -> list[Row]:
        """Return the rows by one statement, which sees one state of the database."""
        found = self._ask(self._table, f"select start, k, lines, numbers from {self._table}")
        return [Row(int(one[0]), int(one[1]), int(one[2]), one[3]) for one in found]

    def batches(self) -> int:
        """Return the number in the row that the sink keeps."""
        found = self._ask(
            "odradek_batches",
            f"select batch_id + 1 from odradek_batches where target = '{self._table}'",
        )
        return int(found[0][0]) if found else 0

    def unfinished(self) -> Collection[str]:
        """Return the writes in the staging tables."""
        listed = "select tablename from pg_tables where tablename like 'odradek_staging%'"
        names = [name for (name,) in self._ask("pg_tables", listed)]
        writes = (self._ask(name, f"select distinct odradek_write from {name}") for name in names)
        return {write for found in writes for (write,) in found}

    def _ask(self, table: str, text: str) -> list[list[str]]:
        """Return the answer, [] if there is no such table."""
        with self._lock:
            known = self._session.sql(f"select to_regclass('{table}') is not null")
            try:
                return self._session.sql(text) if known == [["t"]] else []
            except AssertionError as error:
                # A driver drops the staging table of the former one.
                if "does not exist" in str(error):
                    return []
                raise

    def close(self) -> None:
        """End the connection."""
        self._session.close()


class TopicResult:
    """A topic, read as docs/jobs.md says: duplicates dropped, batches taken when they are whole."""

    def __init__(self, bootstrap: str, name: str, partitions: int, checkpoint: Path) -> None:
        self._checkpoint = LocalFolder(checkpoint)
        self.sink: dict[str, Any] = {"topic": {"name": name}}
        self._consumer = Consumer(
            {**settings(bootstrap), "group.id": f"reader-of-{name}", "enable.auto.commit": False}
        )
        self._consumer.assign([TopicPartition(name, one, 0) for one in range(partitions)])
        self._batches: dict[str, dict[str, bytes]] = defaultdict(dict)
        self._sizes: dict[str, int] = {}
        # Of the batches that are whole.
        self._rows: list[Row] = []
        self._whole = 0
        self._lock = threading.Lock()

    def rows(self) -> list[Row]:
        """Return the rows of the batches that are whole."""
        with self._lock:
            self._read()
            return [*self._rows]

    def batches(self) -> int:
        """Return the highest number of a batch that is whole, and one more."""
        with self._lock:
            self._read()
            return self._whole

    def unfinished(self) -> Collection[str]:
        """Return the numbers of the batches that Spark has planned and not finished.

        Records are in the topic at once, so a part of a batch is there for a moment only.
        """
        planned = self._checkpoint.names("offsets")
        return {*filter(str.isdecimal, planned)} - {*self._checkpoint.names("commits")}

    def _read(self) -> None:
        while messages := self._consumer.consume(1000, 0.01):
            for message in messages:
                value = message.value()
                if message.error() is not None:
                    continue  # a broker is away, and the client tries again
                assert value is not None
                found = cast("list[tuple[str, bytes]]", message.headers())
                headers = {key: told.decode() for key, told in found}
                batch, row = headers[BATCH_HEADER], headers[ROW_HEADER]
                size = int(headers[BATCH_ROWS_HEADER])
                assert self._sizes.setdefault(batch, size) == size
                rows = self._batches[batch]
                is_new = row not in rows
                known = rows.setdefault(row, value)
                assert known == value, f"row {row} of batch {batch} is {known!r} and {value!r}"
                if is_new and len(rows) == size:
                    self._take(batch)

    def _take(self, batch: str) -> None:
        """Show the rows of a batch, which is whole."""
        for one in map(json.loads, self._batches[batch].values()):
            self._rows.append(Row(one["start"], one["k"], one["lines"], one["numbers"]))
        self._whole = max(self._whole, int(batch.rpartition(":")[2]) + 1)

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()


def parts_of_batches(rows: Collection[Row]) -> dict[int, int]:
    """Return the minutes that are not whole, or there twice, with their numbers of rows."""
    found = Counter(row.start for row in rows)
    return {start: count for start, count in found.items() if count != KEYS}


class Reader:
    """Reads a result over and over, and keeps what it may not have seen."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self.reads = 0
        self.sizes: set[int] = set()
        self.faults: list[str] = []

    def read(self, stop: threading.Event) -> None:
        """Read until the end, or until there is a fault."""
        before: set[Row] = set()
        while not stop.wait(_READ_PAUSE_S) and not self.faults:
            try:
                rows = self._result.rows()
            except Exception as error:
                self.faults.append(f"failed to read: {error!r}")
                return
            self.reads += 1
            self.sizes.add(len(rows))
            if parts := parts_of_batches(rows):
                self.faults.append(f"parts of batches: {parts}")
            if len(set(rows)) < len(rows) or not before <= set(rows):
                self.faults.append(f"rows are there twice, or went: {sorted(before - set(rows))}")
            before = set(rows)


@contextmanager
def reading(result: Result) -> Iterator[Reader]:
    """Read all the time, and fail if a part of a batch was seen."""
    reader, stop = Reader(result), threading.Event()
    thread = threading.Thread(target=reader.read, args=(stop,))
    thread.start()
    try:
        yield reader
    finally:
        stop.set()
        thread.join(_END_SECONDS)
    assert reader.faults == []
    assert reader.reads > len(reader.sizes) > 1


def folder_of_checkpoint(store: S3Store, namespace: str, name: str) -> Path:
    """Return where the checkpoint of a job at `store.url/checkpoints` is on this machine."""
    return store.folder / BUCKET / "checkpoints" / namespace / name
