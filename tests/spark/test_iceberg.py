"""The sink iceberg in a real Spark, on a volume."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from odradek_spark import config, config_loading, landing, pipeline, sinks
from odradek_spark.errors import FencedError, JobError
from odradek_spark.sinks import iceberg
from tests.support.sampling import how_many, some_of
from tests.support.sink_context import sink_context
from tests.support.spark_job import ENVIRONMENT, job_text

# collect() leaves its socket to the garbage collector (pyspark.serializers), which is not ours to
# close.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)


def rows(spark: SparkSession, *values: int) -> DataFrame:
    found = ", ".join(f"({value}, 'text {value}')" for value in values)
    return spark.sql(f"select * from values {found} as v(n, t)")


def read(spark: SparkSession, sink: config.IcebergSink) -> list[int]:
    """Read the table as anybody does who knows its path."""
    found = spark.read.format("iceberg").load(f"file://{sink.path}")
    return sorted(row["n"] for row in found.collect())


def snapshots(spark: SparkSession, sink: config.IcebergSink) -> list[Any]:
    table = iceberg._load(spark, sink.path)
    assert table is not None
    return list(table.snapshots())


@pytest.fixture
def sink(tmp_path: Path) -> config.IcebergSink:
    return config.IcebergSink(str(tmp_path / "it's here" / "table"))


def test_batch_is_in_the_table_once_however_often_and_by_whomever_it_is_run(
    spark: SparkSession, sink: config.IcebergSink
) -> None:
    assert not sinks.holds(sink, "g", "q", 0)
    assert (sinks.table_schema(spark, sink), sinks.count_rows(spark, sink)) == (None, None)
    first = sinks.open_sink(sink, sink_context("append", epoch=5))
    first(rows(spark, 1, 2), 0)
    first(rows(spark, 3), 1)
    first(rows(spark, 3), 1)
    assert not sinks.holds(sink, "g", "q", 2)
    successor = sinks.open_sink(sink, sink_context("append", epoch=9))
    successor(rows(spark, 3), 1)
    successor(rows(spark, 4), 2)
    assert sinks.holds(sink, "g", "q", 2)
    # Another checkpoint counts anew, and the former one is not forgotten.
    other = sinks.open_sink(sink, sink_context("append", epoch=10, query_id="r"))
    other(rows(spark, 5), 0)
    again = sinks.open_sink(sink, sink_context("append", epoch=11))
    again(rows(spark, 4), 2)
    assert read(spark, sink) == [1, 2, 3, 4, 5]
    assert sinks.count_rows(spark, sink) == 5
    # Each batch is one snapshot, and the table's creation.
    assert len(snapshots(spark, sink)) == 4 + 1


def test_table_that_was_deleted_under_the_job_is_told_and_made_anew(
    spark: SparkSession, sink: config.IcebergSink
) -> None:
    write = sinks.open_sink(sink, sink_context("append"))
    write(rows(spark, 1), 0)
    shutil.rmtree(sink.path)
    with pytest.raises(JobError, match="table has no table any more: somebody deleted it"):
        write(rows(spark, 2), 1)
    # The next driver begins it anew.
    sinks.open_sink(sink, sink_context("append", epoch=2))(rows(spark, 2), 1)
    assert read(spark, sink) == [2]


@pytest.mark.parametrize("mode", some_of(["append", "complete"], ["append"]))
def test_driver_that_wakes_up_after_its_successor_began_changes_nothing(
    spark: SparkSession, sink: config.IcebergSink, mode: str
) -> None:
    # It does not know that it is over: nothing stops it but the table.
    stale = sinks.open_sink(sink, sink_context(mode, epoch=5))
    stale(rows(spark, 1), 0)
    successor = sinks.open_sink(sink, sink_context(mode, epoch=6))
    successor(rows(spark, 1), 0)  # takes over, and has written nothing yet
    with pytest.raises(FencedError):
        stale(rows(spark, 2), 1)
    with pytest.raises(FencedError):
        sinks.open_sink(sink, sink_context(mode, epoch=5))(rows(spark, 2), 1)
    successor(rows(spark, 3), 1)
    with pytest.raises(FencedError):
        stale(rows(spark, 4), 2)
    assert read(spark, sink) == ([3] if mode == "complete" else [1, 3])


def test_driver_that_is_paused_within_its_commit_adds_nothing_however_late(
    spark: SparkSession, sink: config.IcebergSink, tmp_path: Path
) -> None:
    sinks.open_sink(sink, sink_context("append", epoch=5))(rows(spark, 1), 0)
    jvm: Any = spark._jvm
    staging = tmp_path / "it's here" / "table" / "_odradek" / "5"
    properties = {"warehouse": f"file://{sink.path}", "staging": str(staging)}
    catalog = jvm.io.odradek.iceberg.FencedCatalog()
    catalog.setConf(spark._jsc.hadoopConfiguration())
    catalog.initialize("paused", properties)
    name = jvm.org.apache.iceberg.catalog.TableIdentifier.parse("t")
    table = catalog.loadTable(name)
    # What a write does in its end, with metadata that it read before its successor came.
    late = table.updateProperties().set("late", "yes").set("commit.retry.num-retries", "0")
    successor = sinks.open_sink(sink, sink_context("append", epoch=6))
    # The version that it would commit is replaced, or was there and is deleted again.
    for batch in range(1, how_many(3, full=40)):
        successor(rows(spark, batch + 1), batch)
    hint = Path(sink.path, "metadata", "version-hint.text").read_text()
    with pytest.raises(Exception, match="CommitFailedException"):
        late.commit()
    assert Path(sink.path, "metadata", "version-hint.text").read_text() == hint
    found = iceberg._load(spark, sink.path)
    assert found is not None
    assert found.properties().get("late") is None


def test_version_that_another_driver_committed_meanwhile_is_not_replaced(
    spark: SparkSession, sink: config.IcebergSink
) -> None:
    sinks.open_sink(sink, sink_context("append", epoch=5))(rows(spark, 1), 0)
    jvm: Any = spark._jvm
    files = jvm.org.apache.hadoop.fs.Path("file:///").getFileSystem(
        spark._jsc.hadoopConfiguration()
    )
    metadata = Path(sink.path, "metadata")
    newest = metadata / f"v{metadata.joinpath('version-hint.text').read_text()}.metadata.json"
    before = newest.read_bytes()
    mine = metadata / "mine.metadata.json"
    mine.write_text("{}")
    staging = jvm.java.io.File(f"{sink.path}/_odradek/5").toPath()
    fenced = jvm.io.odradek.iceberg.FencedFiles(files, staging)
    path = jvm.org.apache.hadoop.fs.Path
    assert not fenced.rename(path(f"file://{mine}"), path(f"file://{newest}"))
    assert newest.read_bytes() == before
    assert not list(Path(sink.path, "_odradek", "5").iterdir())


def test_reader_sees_whole_batches_only(spark: SparkSession, sink: config.IcebergSink) -> None:
    write = sinks.open_sink(sink, sink_context("complete"))
    write(rows(spark, *[0] * 20), 0)
    stop, seen = threading.Event(), list[list[int]]()

    def look() -> None:
        while not stop.is_set():
            seen.append(read(spark, sink))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for batch in range(1, how_many(4, full=50)):
            write(rows(spark, *[batch] * 20), batch)
    finally:
        stop.set()
        reader.join()
    assert seen
    assert all(len(one) == 20 and len(set(one)) == 1 for one in seen)


def test_files_and_snapshots_stay_few_and_the_last_batch_known(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(iceberg, "KEPT_SNAPSHOTS", 2)
    sink = config.IcebergSink(str(tmp_path / "t"), optimize_every=5)
    write = sinks.open_sink(sink, sink_context("append"))
    batches = how_many(10, full=1000)
    for batch in range(batches):
        write(rows(spark, batch), batch)
    assert "failed to optimize" not in caplog.text
    assert len(snapshots(spark, sink)) == 2
    assert read(spark, sink) == list(range(batches))
    assert len(list(Path(sink.path, "data").glob("*.parquet"))) <= 5 + 2
    assert len(list(Path(sink.path, "metadata").iterdir())) < 60
    assert sinks.holds(sink, "g", "q", batches - 1)
    assert not sinks.holds(sink, "g", "q", batches)


def test_partitions_and_columns_that_come_later(spark: SparkSession, tmp_path: Path) -> None:
    sink = config.IcebergSink(str(tmp_path / "t"), ("day",), merge_schema=True)
    write = sinks.open_sink(sink, sink_context("append"))
    write(spark.sql("select 1 as n, date '2026-11-22' as day"), 0)
    more = "named_struct('x', 1) as of, date '2026-11-23' as day, cast(2 as smallint) as n"
    write(spark.sql(f"select 'new' as t, {more}"), 1)
    write(spark.sql("select named_struct('x', 1, 'y', 2) as of, date '2026-11-24' as day"), 2)
    schema = sinks.table_schema(spark, sink)
    assert schema is not None
    assert {field.name: field.dataType.simpleString() for field in schema.fields} == {
        "n": "int",
        "day": "date",
        "t": "string",
        "of": "struct<x:int,y:int>",
    }
    folders = {one.name for one in Path(sink.path, "data").iterdir()}
    assert folders == {"day=2026-11-22", "day=2026-11-23", "day=2026-11-24"}
    with pytest.raises(config.JobConfigError, match=r"column n of .* is a int, not a string"):
        write(spark.sql("select 'one' as n, current_date as day"), 3)
    fixed = config.IcebergSink(sink.path, ("day",))
    write = sinks.open_sink(fixed, sink_context("append", epoch=2))
    with pytest.raises(config.JobConfigError, match="has no column later"):
        write(spark.sql("select 1 as n, current_date as day, 1 as later"), 3)
    assert sinks.count_rows(spark, sink) == 3


def test_folder_of_something_else_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    sink = config.IcebergSink(str(tmp_path / "t"))
    Path(sink.path).mkdir()
    Path(sink.path, "mine.txt").write_text("mine")
    with pytest.raises(config.JobConfigError, match="has files that no Iceberg table has"):
        sinks.open_sink(sink, sink_context("append"))(rows(spark, 1), 0)
    file = config.IcebergSink(f"{sink.path}/mine.txt")
    with pytest.raises(config.JobConfigError, match=r"mine\.txt"):
        sinks.open_sink(file, sink_context("append"))(rows(spark, 1), 0)


def test_output_mode_update_is_refused(spark: SparkSession, sink: config.IcebergSink) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value as n")
    assert pipeline.output_mode(stream, None, sink) == "append"
    with pytest.raises(config.JobConfigError, match="outputMode update needs a sink that takes"):
        pipeline.output_mode(stream, "update", sink)


@pytest.mark.parametrize("path", ["s3a://lake/t", "gs://lake/t"])
def test_store_without_a_safe_commit_is_refused(path: str) -> None:
    with pytest.raises(config.JobConfigError, match="must be a path on the volume"):
        config_loading.parse_job(job_text(sink={"iceberg": {"path": path}}), ENVIRONMENT)


def test_records_of_a_topic_land() -> None:
    sink = {"iceberg": {"path": "/data/t", "partitionBy": ["day"], "mergeSchema": True}}
    job = config_loading.parse_job(job_text(sql=None, sink=sink), ENVIRONMENT)
    assert job.sink == config.IcebergSink("/data/t", ("day",), merge_schema=True)
    assert landing.infers(job)
    assert landing.partitions_by_day(job.sink)
