"""Turns topics into DataFrames: STREAM is every record, TABLE the newest record per key.

What holds: a row of a TABLE is the record with the highest offset of its key; where one key is in
several partitions, the latest timestamp decides between these. The key is the `key` column, or the
record's own key where there is no such column or no value. A record without a value deletes its
key. Records without a key are no rows of a TABLE, records without a value none of a STREAM.
Malformed records are neither's; Spark counts them, and those without a key, while it reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own guides use
from pyspark.sql.types import DataType, StringType, StructField, StructType

from odradek_spark import sources
from odradek_spark.broker_access import BrokerAccess
from odradek_spark.config import JobConfigError
from odradek_spark.errors import JobError
from odradek_spark.sql.catalog import Relation
from odradek_spark.sql.errors import SqlError

TEXT_SCHEMA = StructType([StructField("value", StringType())])
_COUNTS = "records left out of "
# A person waits: the limits are shorter than those of a job.
_PATIENCE = {
    "fetchOffset.numRetries": "3",
    "kafkaConsumer.pollTimeoutMs": "30000",
    "kafka.default.api.timeout.ms": "20000",
    "kafka.request.timeout.ms": "15000",
    "kafka.allow.auto.create.topics": "false",
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How many records of a relation were read and are no rows of it."""

    malformed: int = 0
    keyless: int = 0

    def __add__(self, other: LeftOut) -> LeftOut:
        return LeftOut(self.malformed + other.malformed, self.keyless + other.keyless)


def schema_of_ddl(columns: str) -> StructType:
    """Return the schema of a column list. Raises SqlError."""
    try:
        schema = sources.parse_ddl(columns)
    except JobConfigError as error:
        raise SqlError(str(error).removeprefix("job.schema: ")) from error
    problem = _problem_of_names(schema)
    if problem is not None:
        raise SqlError(problem)
    return schema


def _problem_of_names(schema: StructType) -> str | None:
    names = [name.casefold() for name in schema.fieldNames()]
    for name in names:
        if names.count(name) > 1:
            return f"the column {name} is there twice"
        if name in (*sources.METADATA_COLUMNS, sources.CORRUPT_COLUMN):
            return f"{name} is the name of a column that every table has"
    return None


def infer(spark: SparkSession, brokers: BrokerAccess, topic: str) -> StructType:
    """Return the schema of the JSON objects in a topic. Raises SqlError if there are none."""
    try:
        schema = sources.infer_schema(spark, brokers, [topic])
    except JobError as error:
        raise SqlError(
            f"topic {topic} has no record to infer columns from; name them in CREATE"
        ) from error
    if not schema.fields:
        raise SqlError(f"topic {topic} has no JSON objects; try format='text', or name the columns")
    problem = _problem_of_names(schema)
    if problem is not None:
        raise SqlError(f"in the JSON of topic {topic}, {problem}; name the columns in CREATE")
    return schema


def quoted(name: str) -> str:
    """Return a name as Spark reads it, whatever characters it has."""
    return f"`{name.replace('`', '``')}`"


def frame(
    spark: SparkSession,
    relation: Relation,
    brokers: BrokerAccess,
    extra: Mapping[str, bool],
    changes_from: str | None = None,
) -> DataFrame:
    """Return the rows of a relation, with those metadata columns that `extra` wants.

    As they are now; or, with `changes_from` (earliest or latest), each record as it comes. The
    changes of a TABLE are its records too, those that delete a key with its key alone.
    """
    options = {
        **brokers.source_options(),
        "subscribe": relation.topic,
        **_PATIENCE,
    }
    if changes_from is None:
        raw = spark.read.format("kafka").options(**options).load()
    else:
        options["startingOffsets"] = changes_from
        raw = spark.readStream.format("kafka").options(**options).load()
    metadata = [name for name in sources.METADATA_COLUMNS if extra.get(name)]
    rows = _counted(_parsed(raw, relation), relation)
    wanted = [*(quoted(field.name) for field in relation.schema.fields), *metadata]
    if relation.kind == "STREAM":
        return rows.where("not _deletes").select(*wanted)
    if changes_from is not None:
        shown = "true" if relation.key else "not _deletes"
        return rows.where(f"_identity is not null and {shown}").select(*wanted)
    return _newest(rows.where("_identity is not null")).select(*wanted)


def metadata_in(text: str) -> dict[str, bool]:
    """Return which metadata columns a query's text names: others would only widen SELECT *."""
    return {
        name: re.search(rf"(?<!\w){name}(?!\w)", text, re.I) is not None
        for name in sources.METADATA_COLUMNS
    }


def _parsed(raw: DataFrame, relation: Relation) -> DataFrame:
    """Return columns, metadata, `_malformed`, `_deletes` (no value) and `_identity` (the key)."""
    text = F.col("value").cast("string")
    key = F.col("key").cast("string")
    fields = relation.schema.fields
    malformed: Column = F.lit(False)
    if relation.format == "text":
        columns = [text.alias("value")]
    else:
        corrupt = StructField(sources.CORRUPT_COLUMN, StringType())
        ddl = StructType([*fields, corrupt]).toDDL()
        parse = F.from_json if relation.format == "json" else F.from_csv
        raw = raw.withColumn(
            "_row", parse(text, ddl, {"columnNameOfCorruptRecord": sources.CORRUPT_COLUMN})
        )
        row = F.col("_row")
        bad = row.isNull() | row.getField(sources.CORRUPT_COLUMN).isNotNull()
        malformed = F.col("value").isNotNull() & bad
        columns = [row.getField(field.name).alias(field.name) for field in fields]
    identity = key
    if relation.key is not None:
        place = [field.name for field in fields].index(relation.key)
        filled = F.coalesce(columns[place], _from_key(key, fields[place].dataType))
        columns[place] = filled.alias(relation.key)
        identity = F.coalesce(filled.cast("string"), key)
    return raw.select(
        *columns,
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
        key.alias("_key"),
        malformed.alias("_malformed"),
        F.col("value").isNull().alias("_deletes"),
        identity.alias("_identity"),
    )


def _from_key(key: Column, type_: DataType) -> Column:
    """Return the record's key as a column of this type, null where it is none."""
    return key.try_cast(type_)


def _counted(rows: DataFrame, relation: Relation) -> DataFrame:
    keyless = F.count_if(F.col("_identity").isNull() & ~F.col("_malformed"))
    counts = [F.count_if(F.col("_malformed")), keyless if relation.kind == "TABLE" else F.lit(0)]
    named = [counts[0].alias("malformed"), counts[1].cast("bigint").alias("keyless")]
    return rows.observe(f"{_COUNTS}{relation.name}", *named).where("not _malformed")


def _newest(rows: DataFrame) -> DataFrame:
    whole = F.struct(*map(quoted, rows.columns))
    in_partition = rows.groupBy("_identity", "_partition").agg(
        F.max_by(whole, F.col("_offset")).alias("_newest")
    )
    of_key = in_partition.groupBy("_identity").agg(
        F.max_by("_newest", F.col("_newest._timestamp")).alias("_newest")
    )
    return of_key.select("_newest.*").where("not _deletes")


def left_out(metrics: Mapping[str, Any]) -> dict[str, LeftOut]:
    """Return relation name -> what was left out, from the metrics that a query observed."""
    return {
        name.removeprefix(_COUNTS): LeftOut(row[0] or 0, row[1] or 0)
        for name, row in metrics.items()
        if name.startswith(_COUNTS)
    }


def describe_left_out(name: str, count: LeftOut) -> list[str]:
    """Return lines for the user."""
    lines = []
    if count.malformed:
        lines.append(f"{name}: {_records(count.malformed)} malformed and left out")
    if count.keyless:
        lines.append(
            f"{name}: {_records(count.keyless)} without a key and no row of a TABLE; "
            "declare a STREAM, or name a column with key='...'"
        )
    return lines


def _records(count: int) -> str:
    return "1 record is" if count == 1 else f"{count} records are"
