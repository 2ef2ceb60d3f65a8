"""Avro of a schema registry in a real Spark. The registry is a small HTTP server that answers as
Confluent's does: no real one runs here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own guides use
from pyspark.sql.avro.functions import to_avro

from odradek_spark import config, config_loading, landing, registry, sinks, sources
from odradek_spark.errors import JobError
from odradek_spark.storage import LocalFolder
from tests.support.schema_registry import FakeRegistry, serving
from tests.support.sink_context import sink_context
from tests.support.spark_job import ENVIRONMENT, job_text, local_job

# collect() leaves its socket to the garbage collector (pyspark.serializers), which is not ours to
# close.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)


def record(**types: str) -> str:
    fields = [
        {"name": name, "type": ["null", kind], "default": None} for name, kind in types.items()
    ]
    return json.dumps({"type": "record", "name": "r", "fields": fields})


TEXT = '{"type": "record", "name": "r", "fields": [{"name": "t", "type": "string"}]}'


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeRegistry]:
    with serving() as running:
        running.schemas[1] = {"schema": record(n="int")}
        running.schemas[2] = {"schema": record(n="long", t="string")}
        yield running


def written(spark: SparkSession, number: int, schema: str, row: str) -> DataFrame:
    """Return one record as a producer with a registry writes it."""
    header = f"concat(X'00', unhex(lpad(hex({number}), 8, '0')))"
    found = spark.sql(f"select {row}")
    body = to_avro(F.struct(*found.columns), schema)
    return found.select(F.concat(F.expr(header), body).alias("value"))


def raw(values: DataFrame) -> DataFrame:
    return values.selectExpr(
        "cast('k' as binary) as key", "value", "'t' as topic", "0 as partition",
        "monotonically_increasing_id() as offset", "timestamp'2026-11-21 09:30:00' as timestamp",
    )  # fmt: skip


def test_records_of_every_schema_become_columns_of_one_and_others_are_kept(
    spark: SparkSession, fake: FakeRegistry
) -> None:
    old, new = (fake.schemas[number]["schema"] for number in (1, 2))
    bad = "values (X'00'), (X'01000000010206'), (X'0000000001FF'), (null) as v(value)"
    values = (
        written(spark, 1, old, "1 as n")
        .union(written(spark, 2, new, "2L as n, 'x' as t"))
        .union(spark.sql(f"select * from {bad}"))
    )
    assert registry.newest_id(values) == 2
    schema = sources.parse_avro(spark, new)
    found = sources.parse_records(raw(values), "avro", schema, fake.url).collect()
    assert [(row["n"], row["t"]) for row in found] == [(1, None), (2, "x"), *[(None, None)] * 4]
    corrupt = [row["_corrupt"] for row in found]
    assert corrupt == [None, None, "AA==", "AQAAAAECBg==", "AAAAAAH/", None]
    # Each schema is asked for once per process.
    assert fake.asked["/base/schemas/ids/1"] == 1


# Lengths of a string: of more bytes than a heap has, and than an array may have.
@pytest.mark.parametrize("length", ["EEFFFFFF0F", "FEFFFFFF0F"])
def test_record_that_says_it_has_more_than_memory_is_kept_as_others_that_do_not_match(
    spark: SparkSession, fake: FakeRegistry, length: str
) -> None:
    new = sources.parse_avro(spark, fake.schemas[2]["schema"])
    # Neither a number nor null, then the string.
    bomb = spark.sql(f"select X'00000000020002{length}' as value")
    found = sources.parse_records(raw(bomb), "avro", new, fake.url).collect()
    assert [(row["t"], row["_corrupt"] is None) for row in found] == [(None, False)]
    # Without a registry Spark reads the bytes itself.
    plain = sources.parse_avro(spark, TEXT)
    bomb = spark.sql(f"select X'{length}' as value")
    found = sources.parse_records(raw(bomb), "avro", plain).collect()
    assert [(row["t"], row["_corrupt"] is None) for row in found] == [(None, False)]


def test_bytes_that_are_no_id_of_a_registry_are_no_header(
    spark: SparkSession, fake: FakeRegistry
) -> None:
    new = fake.schemas[2]["schema"]
    values = spark.sql("select X'00FFFFFFFF02' as value").union(
        written(spark, 2, new, "2L as n, 'x' as t")
    )
    assert registry.newest_id(values) == 2
    schema = sources.parse_avro(spark, new)
    found = sources.parse_records(raw(values), "avro", schema, fake.url).collect()
    assert [(row["n"], row["_corrupt"]) for row in found] == [(None, "AP////8C"), (2, None)]


@pytest.mark.full(
    "tests/spark/test_registry.py::test_records_of_every_schema_become_columns_of_one_and_others_are_kept"
)
def test_columns_of_a_table_are_those_of_the_newest_schema_that_was_seen(
    spark: SparkSession, fake: FakeRegistry, tmp_path: Path
) -> None:
    old, new = (fake.schemas[number]["schema"] for number in (1, 2))
    sink = config.DeltaSink(str(tmp_path / "t"), merge_schema=True)
    job = local_job(sql=None, sink={"console": {}}, format="avro", schemaRegistry={"url": fake.url})
    job = replace(job, sink=sink)
    assert landing.infers(job)
    checkpoint = LocalFolder(tmp_path / "checkpoint")
    write = sinks.open_sink(sink, sink_context("append"))

    def land(batch: int, values: DataFrame) -> None:
        write(landing.rows_of(raw(values), job, "append", checkpoint), batch)

    # Nothing tells what the columns are, and nothing is lost.
    land(0, spark.sql("select X'FF' as value"))
    land(1, written(spark, 2, new, "1L as n, 'x' as t"))
    land(2, written(spark, 1, old, "2 as n"))
    found = spark.read.format("delta").load(sink.path)
    rows = {(row["n"], row["t"], row["_corrupt"]) for row in found.collect()}
    assert rows == {(None, None, "/w=="), (1, "x", None), (2, None, None)}
    assert registry.stored_id(checkpoint) == 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "there is no schema 7"),
        ({"schema": "{}", "schemaType": "PROTOBUF"}, "schema 7 is of type PROTOBUF, not AVRO"),
        ({"schema": "{}", "references": [{"name": "r"}]}, "schema 7 has references"),
        ({"schema": "no"}, "schema 7 is no Avro schema"),
    ],
)
def test_schema_that_the_registry_does_not_have_is_told(
    spark: SparkSession, fake: FakeRegistry, answer: dict[str, Any] | None, why: str
) -> None:
    if answer is not None:
        fake.schemas[7] = answer
    with pytest.raises(JobError, match=f"schema registry {fake.url}: {why}"):
        registry.schema_text(spark, fake.url, 7)
    fake.schemas.pop(7, None)


def test_record_of_an_unknown_schema_fails_its_batch_and_is_not_skipped(
    spark: SparkSession, fake: FakeRegistry
) -> None:
    text = fake.schemas[1]["schema"]
    values = raw(written(spark, 6, text, "1 as n"))
    schema = sources.parse_avro(spark, text)
    with pytest.raises(Exception, match="there is no schema 6") as failure:
        sources.parse_records(values, "avro", schema, fake.url).collect()
    # That line is what the user gets to see.
    assert "there is no schema 6" in sources.first_line(failure.value)
    # It is asked for again.
    fake.schemas[6] = fake.schemas[1]
    assert sources.parse_records(values, "avro", schema, fake.url).collect()[0]["n"] == 1
    del fake.schemas[6]


def test_registry_that_does_not_answer_is_asked_again_unless_it_refuses(
    spark: SparkSession, fake: FakeRegistry
) -> None:
    fake.schemas[5] = fake.schemas[1]
    fake.failures += [503]
    assert json.loads(registry.schema_text(spark, fake.url, 5))["name"] == "r"
    fake.failures += [401]
    with pytest.raises(JobError, match="no answer for schema 4: HTTP status 401"):
        registry.schema_text(spark, fake.url, 4)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({"schemaRegistry": {"url": "http://r"}}, "goes with format avro"),
        ({"format": "avro", "schemaRegistry": {}}, r"schemaRegistry\.url"),
        ({"format": "avro", "schemaRegistry": {"url": "r:8081"}}, r"schemaRegistry\.url"),
        ({"format": "avro", "schemaRegistry": {"url": "http://me:pw@r"}}, r"schemaRegistry\.url"),
    ],
)
def test_impossible_registry_is_refused(job: dict[str, Any], why: str) -> None:
    with pytest.raises(config.JobConfigError, match=why):
        config_loading.parse_job(job_text(**job), ENVIRONMENT)
