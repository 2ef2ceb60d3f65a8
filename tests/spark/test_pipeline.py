"""From raw records to the sink in a real Spark, without brokers."""

from __future__ import annotations

import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession

from odradek_spark import config, pipeline, show, sinks, sources
from tests.spark.test_config import ENVIRONMENT, job_file

# collect() leaves its socket to the garbage collector (pyspark.serializers), which is not ours to
# close.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)

COUNTS = """
select window(at, '1 minute').start as minute, component, count(*) as lines
from cluster_logs group by window(at, '1 minute'), component
"""
RAW = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
LOGS = "at timestamp, component string"


def raw(spark: SparkSession, *values: str | None, topic: str = "cluster-logs") -> DataFrame:
    """Return records as Spark's Kafka source gives them."""
    text = """select cast('k' as binary) as key, cast(nullif(value, '') as binary) as value,
                     :topic as topic,
                     0 as partition, cast(position as bigint) as offset,
                     timestamp'2026-11-21 09:30:00' as timestamp
              from (select posexplode(:values) as (position, value))"""
    return spark.sql(text, args={"topic": topic, "values": [value or "" for value in values]})


def line(at: str, component: str) -> str:
    return f'{{"at": "{at}", "component": "{component}"}}'


def records(spark: SparkSession, *values: str | None, ddl: str = LOGS) -> DataFrame:
    return sources.parse_records(raw(spark, *values), "json", sources.parse_ddl(ddl))


def job(**changes: Any) -> config.Job:
    return config.parse_job(job_file(**changes), ENVIRONMENT)


def streaming(spark: SparkSession, folder: Path) -> DataFrame:
    folder.mkdir(exist_ok=True)
    stream = spark.readStream.schema(RAW).parquet(str(folder))
    return sources.parse_records(stream, "json", sources.parse_ddl(LOGS))


def test_json_becomes_columns_beside_kafkas_own(spark: SparkSession) -> None:
    row = records(spark, line("2026-11-21T09:13:01.123Z", "kubelet")).collect()[0]
    assert row["component"] == "kubelet"
    assert row["at"].timestamp() == datetime(2026, 11, 21, 9, 13, 1, 123000, UTC).timestamp()
    assert (row["_topic"], row["_partition"], row["_offset"], row["_key"]) == (
        "cluster-logs",
        0,
        0,
        "k",
    )
    assert row["_corrupt"] is None


def test_record_that_does_not_fit_is_kept_with_its_text(spark: SparkSession) -> None:
    rows = records(spark, "no json", None, line("x", "kubelet")).collect()
    assert [row["_corrupt"] for row in rows] == ["no json", None, line("x", "kubelet")]
    assert [row["component"] for row in rows] == [None, None, "kubelet"]


def test_csv_and_text_are_read(spark: SparkSession) -> None:
    schema = sources.parse_ddl("user string, `number of` int")
    row = sources.parse_records(raw(spark, "ann,3"), "csv", schema).collect()[0]
    assert (row["user"], row["number of"]) == ("ann", 3)
    assert sources.parse_records(raw(spark, "a,b"), "text", None).collect()[0]["value"] == "a,b"


@pytest.mark.parametrize("ddl", ["at timestampp", "((", "_offset long"])
def test_schema_without_sense_is_refused_in_one_line(
    spark: SparkSession, ddl: str, tmp_path: Path
) -> None:
    with pytest.raises(config.JobConfigError) as refusal:
        sources.schema_of(spark, job(job__schema=ddl), ["t"], tmp_path)
    assert "\n" not in str(refusal.value)


def test_sql_counts_lines_in_windows_over_the_topics_view(spark: SparkSession) -> None:
    lines = (
        line("2026-11-21T09:13:01.123Z", "kubelet"),
        line("2026-11-21T09:13:59.999Z", "kubelet"),
        line("2026-11-21T09:14:00.000Z", "kubelet"),
        line("2026-11-21T09:14:00.000Z", "etcd"),
    )
    result = pipeline.transform(records(spark, *lines), job(job__sql=COUNTS), ("cluster-logs",))
    found = {(f"{row['minute']:%M}", row["component"]): row["lines"] for row in result.collect()}
    assert found == {("13", "kubelet"): 2, ("14", "kubelet"): 1, ("14", "etcd"): 1}


def test_views_hold_their_own_topic_and_records_holds_all(spark: SparkSession) -> None:
    both = raw(spark, "a", "b", topic="one.x").union(raw(spark, "c", topic="two"))
    parsed = sources.parse_records(both, "text", None)
    sql = """select (select count(*) from `one.x`) as one, (select count(*) from one_x) as alias,
                    (select count(*) from two) as two, (select count(*) from records) as all_"""
    result = pipeline.transform(parsed, job(job__sql=sql), ("one.x", "two"))
    assert tuple(result.collect()[0]) == (2, 2, 1, 3)


def test_python_function_transforms_records(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_module.py").write_text(
        "def only_etcd(records):\n    return records.where(\"component = 'etcd'\")\n"
        "def wrong(records):\n    return 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = records(spark, line("2026-11-21T09:13:01Z", "etcd"), line("2026-11-21T09:13:01Z", "x"))
    good = job(job__sql=None, job__python="users_module:only_etcd")
    assert pipeline.transform(rows, good, ()).count() == 1
    for name, reason in (("wrong", "not a DataFrame"), ("absent", "absent")):
        bad = job(job__sql=None, job__python=f"users_module:{name}")
        with pytest.raises(config.JobConfigError, match=reason):
            pipeline.transform(rows, bad, ())


@pytest.mark.parametrize("sql", ["select nothing from cluster_logs", "selec 1", "select 1 from t"])
def test_sql_that_does_not_fit_is_refused_in_one_line(spark: SparkSession, sql: str) -> None:
    with pytest.raises(config.JobConfigError, match="the query") as refusal:
        pipeline.transform(records(spark), job(job__sql=sql), ("cluster-logs",))
    assert "\n" not in str(refusal.value)


def test_watermark_needs_a_time_stamp(spark: SparkSession) -> None:
    for column, reason in (("component", "not a timestamp"), ("absent", "not among")):
        wanted = {"column": column, "delay": "1 minute"}
        with pytest.raises(config.JobConfigError, match=reason):
            pipeline.transform(records(spark), job(job__sql=None, job__watermark=wanted), ())


def test_output_mode_is_append_where_spark_accepts_it_and_complete_otherwise(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = streaming(spark, tmp_path / "in")
    sink = config.ParquetSink("/data/x")

    def mode(requested: str | None = None, **changes: Any) -> str:
        result = pipeline.transform(stream, job(**changes), ("cluster-logs",))
        return pipeline.output_mode(result, requested, sink)

    assert mode(job__sql="select component from cluster_logs") == "append"
    assert mode(job__sql=COUNTS) == "complete"
    late = {"column": "at", "delay": "1 minute"}
    assert mode(job__sql=COUNTS, job__watermark=late) == "append"
    assert mode("complete", job__sql=COUNTS, job__watermark=late) == "complete"
    with pytest.raises(config.JobConfigError, match="outputMode append"):
        mode("append", job__sql=COUNTS)
    with pytest.raises(config.JobConfigError, match="sink that takes changes"):
        mode("update", job__sql=COUNTS)


def test_columns_that_a_sink_cannot_take_are_refused(spark: SparkSession) -> None:
    rows = records(spark)
    for sink in (
        config.ParquetSink("/data/x", ("absent",)),
        config.TopicSink("t", "absent"),
    ):
        with pytest.raises(config.JobConfigError, match="no column absent"):
            sinks.check(rows, sink)
    with pytest.raises(config.JobConfigError, match="more than once"):
        sinks.check(spark.sql("select 1 as a, 2 as a"), config.ConsoleSink())
    with pytest.raises(config.JobConfigError, match="leaves no column"):
        sinks.check(spark.sql("select 1 as a"), config.ParquetSink("/data/x", ("a",)))


def test_repeated_batch_is_in_the_parquet_result_once(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "out"
    context = sinks.SinkContext("append", "q", "")
    sink = config.ParquetSink(str(path), ("component",))
    first = spark.sql("select 'etcd' as component, 1 as n union all select 'kubelet', 2")
    sinks.open_sink(sink, context)(first, 0)
    sinks.open_sink(sink, context)(first, 0)
    sinks.open_sink(sink, context)(spark.sql("select 'etcd' as component, 3 as n"), 1)
    names, rows = show.read(path)
    assert sorted(names) == ["component", "n"]
    assert sorted(rows) == sorted([(1, "etcd"), (2, "kubelet"), (3, "etcd")])
    seen = spark.read.parquet(str(path)).select("n", "component").collect()
    assert sorted(tuple(row) for row in seen) == sorted(rows)


def test_complete_result_is_shown_as_of_the_last_batch(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "out"
    write = sinks.open_sink(config.ParquetSink(str(path)), sinks.SinkContext("complete", "q", ""))
    write(spark.sql("select timestamp'2026-11-21 09:13:00' as minute, 'etcd' as c, 5 as lines"), 0)
    write(spark.sql("select timestamp'2026-11-21 09:13:00' as minute, 'etcd' as c, 70 as lines"), 1)
    assert spark.read.parquet(str(path / "current")).count() == 1
    assert show.render(*show.read(path)) == (
        "minute               c     lines\n"
        "-------------------  ----  -----\n"
        "2026-11-21 09:13:00  etcd     70"
    )


def test_result_can_be_read_while_the_next_batch_comes_and_goes(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"n": [1]}), tmp_path / "part-0.parquet")
    ended = threading.Event()

    def stage() -> None:
        while not ended.is_set():
            (tmp_path / "_staging/batch_id=1/_temporary/0").mkdir(parents=True)
            shutil.rmtree(tmp_path / "_staging")

    staging = threading.Thread(target=stage)
    staging.start()
    try:
        for _ in range(1000):
            assert show.read(tmp_path) == (["n"], [(1,)])
    finally:
        ended.set()
        staging.join()


def test_nothing_to_show_is_told(tmp_path: Path) -> None:
    with pytest.raises(show.NothingToShowError):
        show.read(tmp_path)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"jdbc:derby:{tmp_path}/db;create=true"


def read_table(spark: SparkSession, url: str) -> list[tuple[Any, ...]]:
    rows = spark.read.jdbc(url, "counts").drop(sinks.BATCH_COLUMN).collect()
    return sorted(tuple(row) for row in rows)


def test_repeated_batch_is_in_the_database_once(spark: SparkSession, database: str) -> None:
    sink = config.JdbcSink(database, "counts")
    write = sinks.open_sink(sink, sinks.SinkContext("append", "q", ""))
    write(spark.sql("select 1 as n union all select 2"), 0)
    write(spark.sql("select 3 as n"), 1)
    write(spark.sql("select 3 as n"), 1)
    assert read_table(spark, database) == [(1,), (2,), (3,)]


def test_complete_result_replaces_the_table(spark: SparkSession, database: str) -> None:
    sink = config.JdbcSink(database, "counts")
    write = sinks.open_sink(sink, sinks.SinkContext("complete", "q", ""))
    write(spark.sql("select 'a' as c, 1 as n"), 0)
    write(spark.sql("select 'a' as c, 2 as n union all select 'b', 1"), 1)
    assert read_table(spark, database) == [("a", 2), ("b", 1)]


def test_console_computes_every_row_and_shows_some(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write = sinks.open_sink(config.ConsoleSink(), sinks.SinkContext("append", "q", ""))
    write(spark.range(sinks.CONSOLE_ROWS + 50).toDF("n"), 4)
    messages = [r.getMessage() for r in caplog.records if r.name == sinks.__name__]
    assert f"batch 4: {sinks.CONSOLE_ROWS + 50} rows" in messages
    assert messages.count('batch 4: {"n":7}') == 1
    assert len(messages) == 1 + sinks.CONSOLE_ROWS
