"""Records that land in a table as they are, in a real Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from odradek_spark import config, landing, sinks
from odradek_spark.storage import LocalFolder
from tests.spark.guarded_groups import Group, Run
from tests.support.clients import produce_all
from tests.support.sampling import some_of
from tests.support.sink_context import sink_context
from tests.support.spark_job import local_job

# collect() leaves its socket to the garbage collector (pyspark.serializers), which is not ours to
# close.
pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
    ),
    # Its parser reads the columns that tests write.
    pytest.mark.usefixtures("spark"),
]


def ddl(text: str) -> StructType:
    found = StructType.fromDDL(text) if text else StructType([])
    assert isinstance(found, StructType)
    return found


@pytest.mark.parametrize(
    ("known", "seen", "grown"),
    [
        ("", "a long", "a long"),
        ("a long", "", "a long"),
        ("a long", "b string", "a long, b string"),
        # The type of a column stays.
        ("a long", "a string", "a long"),
        ("a struct<b: long>", "a string", "a struct<b: long>"),
        ("a struct<b: long>", "a struct<b: string, c: long>", "a struct<b: long, c: long>"),
        (
            "a array<struct<b: long>>",
            "a array<struct<c: long>>",
            "a array<struct<b: long, c: long>>",
        ),
    ],
)
def test_columns_grow_and_keep_their_types(known: str, seen: str, grown: str) -> None:
    assert landing.grow(ddl(known), ddl(seen)).simpleString() == ddl(grown).simpleString()


@pytest.mark.parametrize("seen", ["A long", "_offset long", "day long", "b long, B long"])
def test_field_with_the_name_of_another_column_is_refused(seen: str) -> None:
    with pytest.raises(config.JobConfigError, match="one name for two"):
        landing.grow(ddl("a long"), ddl(seen), frozenset({"_offset", "day"}))


def test_records_whose_keys_are_data_are_refused() -> None:
    most = landing.MOST_COLUMNS
    wide = ", ".join(f"c{number} long" for number in range(most))
    assert len(landing.grow(ddl(""), ddl(wide)).fields) == most
    with pytest.raises(config.JobConfigError, match="more than 1000 fields"):
        landing.grow(ddl(wide), ddl("more long"))


class Landed:
    """A table into which batches of JSON records are landed."""

    def __init__(self, spark: SparkSession, sink: config.Sink) -> None:
        self._spark = spark
        self._job = replace(local_job(sql=None, sink={"console": {}}), sink=sink)
        assert landing.infers(self._job)
        self._checkpoint = LocalFolder(Path(f"{self._job.sink.path}-checkpoint"))  # type: ignore[union-attr]
        self._write = sinks.open_sink(sink, sink_context("append"))
        self._batches = 0

    def add(self, *values: object) -> None:
        raw = self._raw(*values)
        self._write(landing.rows_of(raw, self._job, "append", self._checkpoint), self._batches)
        self._batches += 1

    def _raw(self, *values: object) -> DataFrame:
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        rows = [(None if text == "null" else text,) for text in texts]
        return self._spark.createDataFrame(rows, "value string").selectExpr(
            "cast(null as binary) as key",
            "cast(value as binary) as value",
            "'t' as topic",
            "0 as partition",
            "monotonically_increasing_id() as offset",
            "timestamp '2026-11-22 23:30:00' as timestamp",
        )

    def rows(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._job.sink.path)  # type: ignore[union-attr]


def test_new_fields_become_columns_and_values_of_another_type_are_kept_as_text(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Landed(spark, config.DeltaSink(str(tmp_path / "t"), ("day",), merge_schema=True))
    # Nothing tells what the columns are, yet nothing is lost.
    table.add("null", "broken", {"later": None})
    table.add({"n": 1, "of": {"x": 1}})
    table.add({"n": "two", "more": True, "of": {"x": 2, "y": "z"}}, {"n": 3, "later": 1.5})
    found = table.rows()
    names = {"n", "of", "more", "later", "day", "_corrupt", "_offset", "_timestamp"}
    assert names <= set(found.columns)
    assert dict(found.dtypes)["n"] == "bigint"
    assert dict(found.dtypes)["of"] == "struct<x:bigint,y:string>"
    shown = {(row["n"], row["more"], row["later"], row["_corrupt"]) for row in found.collect()}
    wrong = json.dumps({"n": "two", "more": True, "of": {"x": 2, "y": "z"}})
    assert {(None, None, None, "broken"), (1, None, None, None), (3, None, 1.5, None)} <= shown
    assert wrong in {row[3] for row in shown}
    assert {str(row["day"]) for row in found.select("day").collect()} == {"2026-11-22"}
    assert sinks.count_rows(spark, table._job.sink) == 6
    with pytest.raises(config.JobConfigError, match="a field day, and the table has a column day"):
        table.add({"day": "Monday"})


@pytest.mark.parametrize(
    "kind", some_of([config.DeltaSink, config.IcebergSink], [config.IcebergSink])
)
def test_names_of_nested_fields_may_be_any(
    kind: type[config.DeltaSink | config.IcebergSink], spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    table = Landed(spark, kind(path, merge_schema=True))
    table.add({"labels": {"app.kubernetes.io/name": "x"}, "list": [{"@id": 1}]})
    table.add({"labels": {"first-name": "y"}, "list": [{"a`b": 2}]})
    found = sinks.table_schema(spark, table._job.sink)
    assert found is not None
    text = found.simpleString()
    assert "labels:struct<app.kubernetes.io/name:string,first-name:string>" in text
    assert "list:array<struct<@id:bigint,a`b:bigint>>" in text
    assert sinks.count_rows(spark, table._job.sink) == 2


@pytest.mark.full(
    "tests/spark/test_landing.py::test_new_fields_become_columns_and_values_of_another_type_are_kept_as_text"
)
def test_day_of_the_records_is_theirs(spark: SparkSession, tmp_path: Path) -> None:
    table = Landed(spark, config.DeltaSink(str(tmp_path / "t"), ("day",), merge_schema=True))
    table.add({"n": 1, "day": "Monday"})
    table.add({"n": 2, "day": "Tuesday"})
    assert sorted(row["day"] for row in table.rows().collect()) == ["Monday", "Tuesday"]


def test_topic_lands_in_its_table_and_a_given_schema_grows_with_the_job(
    group: Callable[..., Group], run: Callable[..., Run], tmp_path: Path, spark: SparkSession
) -> None:
    one = group()
    sink = {"delta": {"path": str(tmp_path / "t"), "mergeSchema": True, "partitionBy": ["day"]}}

    def land(schema: str | None, *values: bytes) -> Run:
        produce_all(one.cluster.bootstrap, one.name, values)
        made = run(one, sql=None, schema=schema, sink=sink)
        # Where that of a table in a store is.
        made.checkpoint = tmp_path / "t" / "_checkpoints"
        made.read_all()
        return made

    land(None, b'{"n": 1}')
    land(None, b'{"n": 2, "a": "x"}')
    land("n long, b double", b'{"n": 3, "b": 0.5}')
    found = spark.read.format("delta").load(sink["delta"]["path"])  # type: ignore[arg-type]
    rows = sorted((row["n"], row["a"], row["b"], row["_offset"]) for row in found.collect())
    assert rows == [(1, None, None, 0), (2, "x", None, 1), (3, None, 0.5, 2)]
    with pytest.raises(config.JobConfigError, match="n"):
        land("n string", b'{"n": 4}')
