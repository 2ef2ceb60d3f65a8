"""From raw records to the sink in a real Spark, without brokers."""

from __future__ import annotations

import json
import re
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own guides use
from pyspark.sql.avro.functions import to_avro

from odradek_spark import config, config_loading, pipeline, show, sinks, sources
from odradek_spark.broker_access import BrokerAccess
from odradek_spark.errors import JobError
from odradek_spark.sinks import console, jdbc
from odradek_spark.sinks.parquet import compact, write_batch
from odradek_spark.sinks.parquet_store import ParquetStore
from odradek_spark.storage import LocalFolder
from tests.spark.test_config import ENVIRONMENT, job_file
from tests.support.sink_context import sink_context

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
    return config_loading.parse_job(job_file(**changes), ENVIRONMENT)


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


def test_avro_becomes_columns_and_what_does_not_match_is_kept(spark: SparkSession) -> None:
    fields = [
        {"name": "user", "type": ["null", "string"]},
        {"name": "n", "type": ["null", "int"]},
    ]
    text = json.dumps({"type": "record", "name": "r", "fields": fields})
    schema = sources.schema_of(
        spark, job(job__format="avro", job__schema=text), ["t"], LocalFolder(Path("/nowhere"))
    )
    values = spark.sql("select * from values (0, 'ann', 3), (1, null, null) as v(o, user, n)")
    encoded = values.select(to_avro(F.struct("user", "n"), text).alias("value"), "o")
    bad = spark.sql("select cast('no' as binary) as value, 2 as o union all select null, 3")
    raw = encoded.union(bad).selectExpr(
        "cast('k' as binary) as key", "value", "'t' as topic", "0 as partition",
        "cast(o as bigint) as offset", "timestamp'2026-11-21 09:30:00' as timestamp",
    )  # fmt: skip
    rows = sources.parse_records(raw, "avro", schema).orderBy("_offset").collect()
    assert [(row["user"], row["n"]) for row in rows] == [("ann", 3), *[(None, None)] * 3]
    # A record of nulls is none that does not match.
    assert [row["_corrupt"] for row in rows] == [None, None, "bm8=", None]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("n int", "SchemaParseException"),
        ('"string"', "must be a record"),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "_key", "type": "int"}]}',
            "_key are names of metadata columns",
        ),
    ],
)
def test_avro_schema_without_sense_is_refused_in_one_line(
    spark: SparkSession, schema: str, why: str
) -> None:
    with pytest.raises(config.JobConfigError, match=why) as refusal:
        sources.parse_avro(spark, schema)
    assert "\n" not in str(refusal.value)


def test_raw_records_keep_their_bytes(spark: SparkSession) -> None:
    headers = "array(struct('h' as key, cast('x' as binary) as value)) as headers"
    found = raw(spark, "a").selectExpr("*", headers)
    row = sources.parse_records(found, "raw", None).collect()[0]
    assert (row["key"], row["value"], row["offset"], row["_key"]) == (b"k", b"a", 0, "k")
    assert row["headers"][0]["value"] == b"x"


@pytest.mark.parametrize("ddl", ["at timestampp", "((", "_offset long"])
def test_schema_without_sense_is_refused_in_one_line(
    spark: SparkSession, ddl: str, tmp_path: Path
) -> None:
    with pytest.raises(config.JobConfigError) as refusal:
        sources.schema_of(spark, job(job__schema=ddl), ["t"], LocalFolder(tmp_path))
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
        "def typo(records):\n    return record\n"
        "def column(records):\n    return records.select('nothing')\n"
        "def remote(records):\n    raise ConnectionError('away')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = records(spark, line("2026-11-21T09:13:01Z", "etcd"), line("2026-11-21T09:13:01Z", "x"))
    good = job(job__sql=None, job__python="users_module:only_etcd")
    assert pipeline.transform(rows, good, ()).count() == 1
    (tmp_path / "torn_module.py").write_text("def f(:\n")
    for reference, reason in (
        ("users_module:wrong", "not a DataFrame"),
        ("users_module:absent", "absent"),
        ("users_module:typo", "NameError: name 'record' is not defined"),
        ("users_module:column", "UNRESOLVED_COLUMN"),
        ("torn_module:f", "SyntaxError"),
    ):
        bad = job(job__sql=None, job__python=reference)
        with pytest.raises(config.JobConfigError, match=reason) as refusal:
            pipeline.transform(rows, bad, ())
        assert "\n" not in str(refusal.value)
    # What a function reads may be there the next time.
    with pytest.raises(ConnectionError):
        pipeline.transform(rows, job(job__sql=None, job__python="users_module:remote"), ())


def test_view_of_a_topic_that_a_pattern_may_match_later_is_waited_for(spark: SparkSession) -> None:
    later = job(topics=None, topicPattern="c.*", job__sql="select 1 from coming")
    with pytest.raises(JobError, match="coming"):
        pipeline.transform(records(spark), later, ("cluster-logs",))


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
    result = pipeline.transform(stream, job(job__sql=COUNTS), ("cluster-logs",))
    upserts = config.JdbcSink("jdbc:postgresql://h/d", "t", upsert_keys=("component",))
    assert pipeline.output_mode(result, None, upserts) == "update"
    assert pipeline.output_mode(result, "complete", upserts) == "complete"
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
            sinks.check(rows, sink, "append")
    with pytest.raises(config.JobConfigError, match="more than once"):
        sinks.check(spark.sql("select 1 as a, 2 as a"), config.ConsoleSink(), "append")
    with pytest.raises(config.JobConfigError, match="leaves no column"):
        sinks.check(spark.sql("select 1 as a"), config.ParquetSink("/data/x", ("a",)), "append")


def test_columns_named_as_the_sink_s_own_are_refused(spark: SparkSession) -> None:
    for sink, name in (
        (config.ParquetSink("/data/x"), "Batch_id"),
        (config.JdbcSink("jdbc:x", "t"), "odradek_batch"),
        (config.JdbcSink("jdbc:x", "t"), "ODRADEK_WRITE"),
    ):
        rows = spark.sql(f"select 1 as n, 2 as {name}")
        with pytest.raises(config.JobConfigError, match=f"column {name} has a name"):
            sinks.check(rows, sink, "append")
    sinks.check(spark.sql("select 1 as batch_id"), config.ParquetSink("/data/x"), "complete")


def test_record_that_is_no_json_adds_no_column_to_a_schema_that_is_inferred(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = raw(spark, '{"n": 1}', "no JSON")
    monkeypatch.setattr(sources, "_sample", lambda *_: sample)
    found = sources.infer_schema(spark, BrokerAccess("b:1"), ["t"])
    assert found.fieldNames() == ["n"]


@pytest.mark.parametrize("name", ['n" int); drop table users; --', "n` int); drop table users; #"])
def test_column_that_would_end_its_quotes_in_sql_is_refused(spark: SparkSession, name: str) -> None:
    rows = spark.sql("select 1 as n").toDF(name)
    with pytest.raises(config.JobConfigError, match="has a quotation mark or a backtick") as told:
        sinks.check(rows, config.JdbcSink("jdbc:x", "t"), "append")
    assert "\n" not in str(told.value)
    sinks.check(rows, config.ConsoleSink(), "append")


def test_repeated_batch_is_in_the_parquet_result_once(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "out"
    context = sink_context("append")
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


def test_compacted_batches_have_the_same_rows_and_folders(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "out"
    store = ParquetStore(path, "append", "q", 1, fan_in=4)
    everything = []
    for number in range(4):
        rows = spark.sql(
            """select cast(:n as int) as n, timestamp'2026-11-21 09:13:00.000001' as at,
                      date'0001-01-01' as day, '01' as component
               union all select :n + 100, null, null, null""",
            args={"n": number},
        )
        compact(spark, store)
        batch = store.begin(number)
        write_batch(rows, batch.staging, ("component",))
        store.finish(batch)
        everything += [tuple(row) for row in rows.collect()]
    folders = {link.name for link in (path / "current").iterdir()}
    assert len(folders) == 4
    compact(spark, store)
    opened = (path / "current").resolve()
    assert [link.name for link in opened.iterdir()] == ["batch_id=3"]
    files = [*opened.glob("batch_id=3/component=*/*.parquet")]
    assert sorted(file.parent.name for file in files) == [
        "component=01",
        "component=__HIVE_DEFAULT_PARTITION__",
    ]
    # Whole folders may be read by the path itself, too.
    for place in (path, path / "current", opened):
        reader = spark.read.schema("n int, at timestamp, day date, component string")
        found = reader.parquet(str(place)).select("n", "at", "day", "component")
        seen = [tuple(row) for row in found.collect()]
        assert sorted(seen, key=str) == sorted(everything, key=str)
    assert len(show.read(path)[1]) == len(everything)


def test_complete_result_is_shown_as_of_the_last_batch(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "out"
    write = sinks.open_sink(config.ParquetSink(str(path)), sink_context("complete"))
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


def test_values_that_python_does_not_have_are_shown_as_text(tmp_path: Path) -> None:
    odd = pyarrow.array([b"a\xff", b"b\x1b[2J\n"])
    at = pyarrow.array([2**60, 0])
    table = {
        "text": pyarrow.Array.from_buffers(pyarrow.string(), 2, odd.buffers()),
        "at": at.view(pyarrow.timestamp("us", "UTC")),
        "day": pyarrow.array([2**30, None], pyarrow.int32()).view(pyarrow.date32()),
    }
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "part-0.parquet")
    lines = show.render(*show.read(tmp_path)).splitlines()
    assert [re.split("  +", line) for line in (lines[0], *lines[2:])] == [
        ["text", "at", "day"],
        [r"a\xff", "1152921504606846976 us since 1970", "1073741824 days since 1970"],
        [r"b\x1b[2J\n", "1970-01-01 00:00:00"],
    ]


def test_nothing_to_show_is_told(tmp_path: Path) -> None:
    with pytest.raises(show.NothingToShowError):
        show.read(tmp_path)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"jdbc:derby:{tmp_path}/db;create=true"


def read_table(spark: SparkSession, url: str) -> list[tuple[Any, ...]]:
    rows = spark.read.jdbc(url, "counts").drop(jdbc.BATCH_COLUMN).collect()
    return sorted(tuple(row) for row in rows)


def test_repeated_batch_is_in_the_database_once(spark: SparkSession, database: str) -> None:
    sink = config.JdbcSink(database, "counts")
    write = sinks.open_sink(sink, sink_context("append"))
    write(spark.sql("select 1 as n union all select 2"), 0)
    write(spark.sql("select 3 as n"), 1)
    write(spark.sql("select 3 as n"), 1)
    assert read_table(spark, database) == [(1,), (2,), (3,)]


def test_complete_result_replaces_the_table(spark: SparkSession, database: str) -> None:
    sink = config.JdbcSink(database, "counts")
    write = sinks.open_sink(sink, sink_context("complete"))
    write(spark.sql("select 'a' as c, 1 as n"), 0)
    write(spark.sql("select 'a' as c, 2 as n union all select 'b', 1"), 1)
    assert read_table(spark, database) == [("a", 2), ("b", 1)]


def test_console_computes_every_row_and_shows_some(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write = sinks.open_sink(config.ConsoleSink(), sink_context("append"))
    write(spark.range(console.CONSOLE_ROWS + 50).toDF("n"), 4)
    messages = [r.getMessage() for r in caplog.records if r.name == console.__name__]
    assert f"batch 4: {console.CONSOLE_ROWS + 50} rows" in messages
    assert messages.count('batch 4: {"n":7}') == 1
    assert len(messages) == 1 + console.CONSOLE_ROWS
