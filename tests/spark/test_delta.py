"""The sink delta in a real Spark, on a volume and on a store that speaks S3."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from odradek_spark import config, pipeline, sinks, storage
from odradek_spark.errors import FencedError
from odradek_spark.sinks import delta
from odradek_spark.storage import HadoopFolder, LocalFolder
from tests.support.s3_store import S3Store
from tests.support.sampling import some_of
from tests.support.sink_context import sink_context

# collect() leaves its socket to the garbage collector (pyspark.serializers), which is not ours to
# close.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)

KINDS = pytest.mark.parametrize("kind", ["volume", "s3a"])


@pytest.fixture
def place(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where a table may be: a path on a volume, or a URL."""
    if kind == "volume":
        return str(tmp_path / "table")
    return f"{request.getfixturevalue('store').url}/{tmp_path.name}/table"


def rows(spark: SparkSession, *values: int) -> DataFrame:
    found = ", ".join(f"({value}, 'text {value}')" for value in values)
    return spark.sql(f"select * from values {found} as v(n, t)")


def read(spark: SparkSession, path: str) -> list[int]:
    return sorted(row["n"] for row in spark.read.format("delta").load(path).collect())


def history(spark: SparkSession, path: str) -> list[str]:
    found = spark.sql(f"describe history delta.`{path}`").collect()
    return [row["operation"] for row in sorted(found, key=lambda row: row["version"])]


@pytest.mark.parametrize("kind", ["s3a"])
def test_batch_is_in_the_table_once_however_often_and_by_whomever_it_is_run(
    spark: SparkSession, place: str
) -> None:
    sink = config.DeltaSink(place)
    first = sinks.open_sink(sink, sink_context("append", epoch=5))
    first(rows(spark, 1, 2), 0)
    first(rows(spark, 3), 1)
    first(rows(spark, 3), 1)
    assert not sinks.holds(sink, "g", "q", 2)
    successor = sinks.open_sink(sink, sink_context("append", epoch=9))
    successor(rows(spark, 3), 1)
    successor(rows(spark, 4), 2)
    assert sinks.holds(sink, "g", "q", 2)
    assert read(spark, place) == [1, 2, 3, 4]
    # Another checkpoint counts anew.
    other = sinks.open_sink(sink, sink_context("append", epoch=10, query_id="r"))
    other(rows(spark, 5), 0)
    assert read(spark, place) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["volume"])
@pytest.mark.parametrize("mode", some_of(["append", "complete", "update"], ["update"]))
def test_driver_that_wakes_up_after_its_successor_began_changes_nothing(
    spark: SparkSession, place: str, mode: str
) -> None:
    keys = ("n",) if mode == "update" else ()
    sink = config.DeltaSink(place, merge_keys=keys)
    # It does not know that it is over: nothing stops it but the table.
    stale = sinks.open_sink(sink, sink_context(mode, epoch=5))
    stale(rows(spark, 1), 0)
    successor = sinks.open_sink(sink, sink_context(mode, epoch=6))
    successor(rows(spark, 1), 0)  # takes over, and has written nothing yet
    stale(rows(spark, 2), 1)
    assert read(spark, place) == [1]
    late = sinks.open_sink(sink, sink_context(mode, epoch=5))
    with pytest.raises(FencedError):
        late(rows(spark, 2), 1)
    successor(rows(spark, 3), 1)
    assert read(spark, place) == ([3] if mode == "complete" else [1, 3])


@pytest.mark.full(
    "tests/spark/test_delta.py::test_driver_that_wakes_up_after_its_successor_began_changes_nothing"
)
def test_driver_with_a_former_checkpoint_changes_nothing_once_the_new_one_s_began(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = config.DeltaSink(str(tmp_path / "table"))
    stale = sinks.open_sink(sink, sink_context("append", epoch=5, query_id="former"))
    stale(rows(spark, 1), 0)
    successor = sinks.open_sink(sink, sink_context("append", epoch=6, query_id="new"))
    successor(rows(spark, 2), 0)
    stale(rows(spark, 2), 1)
    with pytest.raises(FencedError):
        sinks.open_sink(sink, sink_context("append", 5, "former"))(rows(spark, 2), 1)
    assert read(spark, sink.path) == [1, 2]
    # The user takes the former checkpoint again.
    third = sinks.open_sink(sink, sink_context("append", epoch=7, query_id="former"))
    third(rows(spark, 1), 0)
    third(rows(spark, 3), 1)
    assert read(spark, sink.path) == [1, 2, 3]


@pytest.mark.full(
    "tests/spark/test_delta.py::test_driver_that_wakes_up_after_its_successor_began_changes_nothing"
)
def test_transaction_that_began_before_the_successor_took_over_cannot_be_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = str(tmp_path / "table")
    sink = config.DeltaSink(place)
    stale = sinks.open_sink(sink, sink_context("append", epoch=5))
    stale(rows(spark, 1), 0)
    # What Delta does in a write: read the query's number, and commit later.
    transaction = delta._delta_log(spark, place).startTransaction()
    transaction.txnVersion("g:q")
    sinks.open_sink(sink, sink_context("append", epoch=6))(rows(spark, 1), 0)
    with pytest.raises(Exception, match="ConcurrentTransactionException"):
        delta._commit_numbers(spark, transaction, {"g:q": (5 << 30) + 2})


def test_commit_file_that_another_writer_made_meanwhile_is_not_replaced(
    spark: SparkSession, store: S3Store
) -> None:
    url = f"{store.url}/once/_delta_log/{0:020d}.json"
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(url)
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    # Both found that there is none.
    first, second = files.create(path, True), files.create(path, True)
    first.write(bytearray(b"first"))
    first.close()
    second.write(bytearray(b"second"))
    with pytest.raises(Exception, match="Status Code: 412"):
        second.close()
    assert HadoopFolder(spark, f"{store.url}/once").read(f"_delta_log/{0:020d}.json") == "first"


def test_store_that_would_replace_commits_is_refused(
    spark: SparkSession, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.require_put_if_absent(spark, f"{store.url}/asked")
    conf = spark._jsc.hadoopConfiguration()
    name = "fs.s3a.audit.execution.interceptors"
    before = conf.get(name)
    conf.unset(name)
    conf.set("fs.s3a.impl.disable.cache", "true")
    try:
        with pytest.raises(config.JobConfigError, match="ignores If-None-Match"):
            storage.require_put_if_absent(spark, f"{store.url}/asked")
    finally:
        conf.set(name, before)
        conf.unset("fs.s3a.impl.disable.cache")


def test_merge_changes_rows_by_key_and_refuses_two_of_one_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = str(tmp_path / "it's `here`")
    sink = config.DeltaSink(place, merge_keys=("k", "part"), partition_by=("part",))
    write = sinks.open_sink(sink, sink_context("update"))

    def counts(*found: tuple[str | None, int]) -> DataFrame:
        schema = "k string, part int, n long"
        return spark.createDataFrame([(key, 1, count) for key, count in found], schema)

    write(counts(("a", 1), (None, 1)), 0)
    write(counts((None, 2), ("b", 1)), 1)
    write(counts((None, 2), ("b", 1)), 1)
    found = spark.read.format("delta").load(place).collect()
    assert {(row["k"], row["n"]) for row in found} == {("a", 1), (None, 2), ("b", 1)}
    assert len(found) == 3
    with pytest.raises(config.JobConfigError, match="several rows with the same"):
        write(counts(("c", 1), ("c", 2)), 2)
    assert not spark.conf.get("spark.databricks.delta.write.txnAppId", "")


def test_small_files_are_merged_after_so_many_batches(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = str(tmp_path / "table")
    write = sinks.open_sink(config.DeltaSink(place, optimize_every=2), sink_context("append"))
    for batch in range(3):
        write(rows(spark, batch), batch)
    assert "failed to optimize" not in caplog.text
    assert {"OPTIMIZE", "VACUUM END"} <= set(history(spark, place))
    assert len(spark.read.format("delta").load(place).inputFiles()) == 2
    assert read(spark, place) == [0, 1, 2]


@pytest.mark.full("tests/spark/test_delta.py::test_small_files_are_merged_after_so_many_batches")
def test_files_of_a_table_go_when_its_retention_is_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    """How long a new table keeps them, `sparkConf` of its job says (docs/jobs.md)."""
    table = tmp_path / "table"
    sink = config.DeltaSink(str(table), optimize_every=4)
    kept = {
        "logRetentionDuration": "interval 2 days",
        "deletedFileRetentionDuration": "interval 0 days",
    }
    for name, value in kept.items():
        spark.conf.set(f"spark.databricks.delta.properties.defaults.{name}", value)
    try:
        write = sinks.open_sink(sink, sink_context("append", epoch=5))
        for batch in range(8):
            write(rows(spark, batch), batch)
    finally:
        for name in kept:
            spark.conf.unset(f"spark.databricks.delta.properties.defaults.{name}")
    former = {path.name for path in (table / "_delta_log").glob("0*.json")}
    three_days_ago = time.time() - 3 * 86400
    for path in (table / "_delta_log").iterdir():
        os.utime(path, (three_days_ago, three_days_ago))
    write = sinks.open_sink(sink, sink_context("append", epoch=9))
    for batch in range(8, 20):
        write(rows(spark, batch), batch)
    left = {path.name for path in (table / "_delta_log").glob("0*.json")}
    assert len(former & left) < len(former) / 2
    assert len(list(table.glob("*.parquet"))) < 20
    assert read(spark, str(table)) == list(range(20))


def test_a_table_whose_log_was_pruned_is_written_to_and_the_log_says_what_to_do(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Delta refuses to vacuum by a log that does not reach back to the last time."""
    table = tmp_path / "table"
    properties = {"deletedFileRetentionDuration": "interval 0 days", "checkpointInterval": "2"}
    for name, value in properties.items():
        spark.conf.set(f"spark.databricks.delta.properties.defaults.{name}", value)
    try:
        first = sinks.open_sink(config.DeltaSink(str(table)), sink_context("append", epoch=5))
        for batch in range(3):
            first(rows(spark, batch), batch)
    finally:
        for name in properties:
            spark.conf.unset(f"spark.databricks.delta.properties.defaults.{name}")
    spark.sql(f"optimize delta.`{table}`")
    # What Delta does with a log of a month ago at its next checkpoint.
    for path in (table / "_delta_log").glob("0*.json"):
        if int(path.stem) < 2:
            path.unlink()
    checkpoint = table / "checkpoint/metadata"
    checkpoint.parent.mkdir()
    checkpoint.write_text("{}")
    second = config.DeltaSink(str(table), optimize_every=1)
    sinks.open_sink(second, sink_context("append", epoch=9))(rows(spark, 3), 3)
    assert "failed to optimize" not in caplog.text
    assert "Run VACUUM of the table once" in caplog.text
    assert checkpoint.exists()
    assert read(spark, str(table)) == list(range(4))


@pytest.mark.parametrize(
    ("mode", "keys", "expected"),
    [(None, (), "append"), (None, ("n",), "update"), ("update", ("n",), "update")],
)
def test_merge_keys_choose_the_output_mode(
    spark: SparkSession, mode: str | None, keys: tuple[str, ...], expected: str
) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value as n")
    assert pipeline.output_mode(stream, mode, config.DeltaSink("/data/t", (), keys)) == expected


@pytest.mark.parametrize(("mode", "keys"), [("update", ()), ("append", ("n",))])
def test_output_mode_that_does_not_fit_the_keys_is_refused(
    spark: SparkSession, mode: str, keys: tuple[str, ...]
) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value as n")
    with pytest.raises(config.JobConfigError, match=r"job\.sink\.delta\.mergeKeys"):
        pipeline.output_mode(stream, mode, config.DeltaSink("/data/t", (), keys))


@KINDS
def test_folder_is_read_and_replaced(
    spark: SparkSession, kind: str, place: str, tmp_path: Path
) -> None:
    folder = storage.open_folder(spark, place)
    assert isinstance(folder, LocalFolder if kind == "volume" else HadoopFolder)
    assert folder.read("offsets/3") is None
    assert folder.names("offsets") == []
    folder.remove("offsets/3")
    folder.write("offsets/3", "v1\nä")
    # Spark's own client may not replace it; the driver must.
    folder.write("offsets/3", "v1\nö")
    folder.write("offsets/4", "")
    assert folder.read("offsets/3") == "v1\nö"
    assert sorted(folder.names("offsets")) == ["3", "4"]
    folder.remove("offsets/3")
    folder.remove("offsets")
    assert folder.names("offsets") == []


def test_url_without_a_client_is_refused_in_one_line(spark: SparkSession) -> None:
    for url in ("gs://bucket/path", "abfs://container@account/path"):
        with pytest.raises(config.JobConfigError) as refusal:
            storage.open_folder(spark, url)
        assert "the image has no client for it" in str(refusal.value)
        assert "\n" not in str(refusal.value)
