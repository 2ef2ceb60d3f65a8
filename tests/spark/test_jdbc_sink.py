"""The JDBC sink with a real PostgreSQL and a real Spark."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from odradek_spark import config, sinks
from odradek_spark.errors import FencedError
from odradek_spark.sinks import jdbc
from tests.support.postgres import Postgres
from tests.support.sink_context import HandFence, sink_context

# collect() leaves its socket to the garbage collector (pyspark.serializers), which is not ours to
# close.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)

_numbers = itertools.count()
OpenSink = Callable[..., sinks.WriteBatch]


@pytest.fixture
def table() -> str:
    return f"counts_{next(_numbers)}"


@pytest.fixture
def opened(postgres: Postgres, table: str) -> OpenSink:
    def open_sink(
        mode: str = "append", epoch: int = 1, query: str = "q", keys: tuple[str, ...] = ()
    ) -> sinks.WriteBatch:
        sink = config.JdbcSink(postgres.url, table, upsert_keys=keys)
        return sinks.open_sink(sink, sink_context(mode, epoch, query))

    return open_sink


def numbers(spark: SparkSession, first: int, end: int, partitions: int = 1) -> DataFrame:
    return spark.range(first, end, 1, partitions).toDF("n")


def found(postgres: Postgres, table: str, columns: str = "n") -> list[list[str]]:
    return postgres.sql(f"select {columns} from {table} order by 1")


def test_batch_that_runs_again_is_applied_once(
    spark: SparkSession, postgres: Postgres, table: str, opened: OpenSink
) -> None:
    write = opened()
    write(numbers(spark, 0, 3), 0)
    write(numbers(spark, 3, 5), 1)
    opened()(numbers(spark, 3, 5), 1)
    opened(epoch=2)(numbers(spark, 3, 5), 1)
    assert found(postgres, table) == [[str(n)] for n in range(5)]
    sink = config.JdbcSink(postgres.url, table)
    held = [sinks.holds(sink, group, q, n) for group, q, n in (("g", "q", 1), ("g", "q", 2))]
    assert held == [True, False]
    assert not sinks.holds(sink, "g", "q2", 0)
    assert not sinks.holds(sink, "other", "q", 0)
    # A new checkpoint counts from 0 again.
    opened(epoch=3, query="q2")(numbers(spark, 5, 6), 0)
    assert found(postgres, table) == [[str(n)] for n in range(6)]
    left = postgres.sql(
        "select tablename from pg_tables where tablename like 'odradek_staging%_1'"
        " or tablename like 'odradek_staging%_2'"
    )
    assert left == []


def test_driver_whose_epoch_is_over_changes_nothing(
    spark: SparkSession,
    postgres: Postgres,
    table: str,
    opened: OpenSink,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stale, later = opened(epoch=1), opened(epoch=2)
    stale(numbers(spark, 0, 2), 0)
    passed, go_on = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def pause(_: HandFence) -> None:
        if threading.current_thread().name == "stale":
            passed.set()
            assert go_on.wait(120)

    monkeypatch.setattr(HandFence, "require", pause)

    def run() -> None:
        try:
            stale(numbers(spark, 2, 4), 1)
        except Exception as error:
            errors.append(error)

    paused = threading.Thread(target=run, name="stale")
    paused.start()
    # It has asked ZooKeeper, which let it pass, and it has staged its rows.
    assert passed.wait(120)
    later(numbers(spark, 2, 10), 1)
    go_on.set()
    paused.join(120)
    assert [type(error) for error in errors] == [FencedError], errors
    with pytest.raises(FencedError, match="its epoch is 2, this one's 1"):
        opened(epoch=1)(numbers(spark, 99, 100), 2)
    assert found(postgres, table) == [[str(n)] for n in range(10)]
    later(numbers(spark, 10, 11), 2)
    assert found(postgres, table) == [[str(n)] for n in range(11)]


def test_task_that_ran_twice_adds_its_rows_once(
    spark: SparkSession,
    postgres: Postgres,
    table: str,
    opened: OpenSink,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a speculation: the other attempt's rows came in another order, and in one part."""
    stage = jdbc._Target.stage

    def stage_twice(self: jdbc._Target, rows: DataFrame) -> str:
        token = stage(self, rows)
        postgres.sql(
            f"insert into {self._staging} select n, odradek_write, odradek_partition,"
            f" odradek_attempt + 1000 from {self._staging} where odradek_partition <> 1"
            " order by n desc"
        )
        # Tasks of a try that failed may come late, too.
        postgres.sql(
            f"insert into {self._staging} select n + 50, 'other', odradek_partition,"
            f" odradek_attempt - 1000 from {self._staging}"
        )
        return token

    monkeypatch.setattr(jdbc._Target, "stage", stage_twice)
    write = opened()
    write(numbers(spark, 0, 40, partitions=4), 0)
    write(numbers(spark, 40, 50, partitions=2), 1)
    assert sorted(int(row[0]) for row in found(postgres, table)) == list(range(50))


def test_attempts_of_a_task_can_be_told_apart(spark: SparkSession) -> None:
    rows = numbers(spark, 0, 8, partitions=2).selectExpr(jdbc.TASK_ATTEMPT)
    one, two = ({row[0] for row in rows.collect()} for _ in range(2))
    assert len(one) == len(two) == 2
    assert min(two) > max(one)


@pytest.mark.full("tests/spark/test_iceberg.py::test_reader_sees_whole_batches_only")
def test_no_reader_sees_a_part_of_a_batch(
    spark: SparkSession, postgres: Postgres, table: str, opened: OpenSink
) -> None:
    size = 50
    write = opened("complete")
    write(spark.range(size).selectExpr("id as n", "0 as round"), 0)
    ended = threading.Event()
    seen: list[list[str]] = []

    def read() -> None:
        while not ended.is_set():
            seen.extend(postgres.sql(f"select count(*), min(round), max(round) from {table}"))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, 6):
            rows = spark.range(0, size, 1, 4).selectExpr("id as n", f"{number} as round")
            write(rows, number)
    finally:
        ended.set()
        reader.join(120)
    assert seen
    assert {(row[0], row[1] == row[2]) for row in seen} == {(str(size), True)}
    assert postgres.sql(f"select distinct round from {table}") == [["5"]]


def test_update_replaces_the_rows_of_a_key_and_no_others(
    spark: SparkSession, postgres: Postgres, table: str, opened: OpenSink
) -> None:
    write = opened("update", keys=("day", "page"))

    def batch(*rows: tuple[str | None, str, int]) -> DataFrame:
        return spark.createDataFrame(list(rows), "day string, page string, n int")

    write(batch(("mon", "a", 1), ("mon", "b", 2)), 0)
    write(batch(("mon", "b", 5), (None, "b", 7)), 1)
    write(batch((None, "b", 8)), 2)
    rows = postgres.sql(f"select coalesce(day, '-'), page, n from {table} order by 1, 2")
    assert rows == [["-", "b", "8"], ["mon", "a", "1"], ["mon", "b", "5"]]


def test_table_without_a_unique_key_is_refused_for_upserts(
    spark: SparkSession, postgres: Postgres, table: str, opened: OpenSink
) -> None:
    postgres.sql(f"create table {table} (n bigint)")
    with pytest.raises(config.JobConfigError, match="no unique index on n") as refusal:
        opened("update", keys=("n",))(numbers(spark, 0, 1), 0)
    assert "\n" not in str(refusal.value)


def test_two_rows_of_one_key_in_a_batch_are_refused(
    spark: SparkSession, postgres: Postgres, table: str, opened: OpenSink
) -> None:
    write = opened(keys=("n",))
    write(spark.sql("select 0L as n, 'a' as c union all select 1, 'a'"), 0)
    with pytest.raises(config.JobConfigError, match="several rows with the same n"):
        write(
            spark.sql("select 1L as n, 'b' as c union all select 2, 'b' union all select 1, 'c'"), 1
        )
    assert found(postgres, table, "n, c") == [["0", "a"], ["1", "a"]]


def test_table_without_a_column_of_the_query_is_refused(
    spark: SparkSession, postgres: Postgres, table: str, opened: OpenSink
) -> None:
    postgres.sql(f"create table {table} (n bigint)")
    with pytest.raises(config.JobConfigError, match="has no column words, more"):
        opened()(spark.sql("select 1L as n, 'a' as words, 'b' as more"), 0)


def test_driver_that_is_paused_in_its_transaction_does_not_hold_up_its_successor(
    spark: SparkSession,
    postgres: Postgres,
    table: str,
    opened: OpenSink,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Longer than a busy machine lets a transaction wait that goes on.
    monkeypatch.setattr(jdbc, "_IDLE_MS", 1000)
    stale = opened(epoch=1)
    stale(numbers(spark, 0, 1), 0)
    lock_row = jdbc._Target._lock_row
    later: list[sinks.WriteBatch] = []

    def lock_and_pause(self: jdbc._Target, transaction: Any) -> tuple[str, int]:
        found = lock_row(self, transaction)
        if not later:
            later.append(opened(epoch=2))
            later[0](numbers(spark, 1, 2), 1)
        return found

    monkeypatch.setattr(jdbc._Target, "_lock_row", lock_and_pause)
    with pytest.raises(Exception, match=r"idle-in-transaction|closed"):
        stale(numbers(spark, 1, 2), 1)
    assert found(postgres, table) == [["0"], ["1"]]


TYPES = """
select true as flag, cast(1 as byte) as tiny, cast(2 as short) as small, 3 as whole, 4L as big,
       cast(1.5 as float) as single, cast(2.5 as double) as twice, 3.25bd as exact, 'text' as words,
       date'2026-11-23' as day, timestamp'2026-11-23 06:00:00.123456' as moment,
       cast('bytes' as binary) as raw, array('a', 'b') as list, cast(null as int) as nothing
"""


def test_types_are_those_that_spark_gives_a_table(
    spark: SparkSession, postgres: Postgres, table: str, opened: OpenSink
) -> None:
    rows = spark.sql(TYPES)
    driver = {"driver": "org.postgresql.Driver"}
    rows.write.jdbc(postgres.url, f"{table}_by_spark", properties=driver)
    opened()(rows, 0)
    columns = (
        "select column_name, data_type, udt_name, numeric_precision, numeric_scale"
        " from information_schema.columns where table_name = '{}' order by ordinal_position"
    )
    assert postgres.sql(columns.format(table)) == postgres.sql(columns.format(f"{table}_by_spark"))
    everything = f"select * from {table}"
    assert postgres.sql(everything) == postgres.sql(f"{everything}_by_spark")


def test_rows_go_into_a_table_that_somebody_made_with_its_types_and_defaults(
    spark: SparkSession, postgres: Postgres, table: str, opened: OpenSink
) -> None:
    postgres.sql(
        f"create table {table} (id serial primary key, n numeric(20, 2) not null, c varchar(9),"
        " odradek_batch varchar(64))"
    )
    # An earlier release had written one of two rows when its driver died.
    postgres.sql(f"insert into {table} (n, c, odradek_batch) values (1, 'a', 'q:0')")
    opened()(spark.sql("select 1L as n, 'a' as c union all select 2, 'b'"), 0)
    rows: Any = postgres.sql(f"select n, c, odradek_batch from {table} order by n")
    assert rows == [["1.00", "a", "q:0"], ["2.00", "b", "q:0"]]


def test_text_that_the_database_cannot_have_is_replaced_in_it(
    spark: SparkSession, postgres: Postgres, table: str, opened: OpenSink
) -> None:
    nul = "cast(X'610062' as string)"
    lists = f"array({nul}, null) as list, collect_list({nul}) as found, array(array({nul})) as pair"
    opened()(spark.sql(f"select {nul} as `a text`, {lists}, X'00' as bytes"), 0)
    rows = postgres.sql(f'select "a text", list, found, pair, bytes from {table}')
    assert rows == [
        ["a\ufffdb", "{a\ufffdb,NULL}", "{a\ufffdb}", "{{a\ufffdb}}", "\\x00"],
    ]
