"""Lands records in a table as they are: the columns of JSON grow with the records.

A job without sql and python, and with a sink that takes new columns (`mergeSchema`), needs no
schema for JSON. The columns are those of the table. Before each batch is written, its records are
read once more to find fields that the table lacks, and these become columns. A field keeps the type
that it had first: a record with a value of another type has null there, and its text in `_corrupt`.

Avro of a schema registry has the columns of its newest schema that was seen.
"""

import json
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own guides use
from pyspark.sql.types import ArrayType, DataType, DateType, StructField, StructType

from odradek_spark import config, registry, sinks, sources
from odradek_spark.storage import StorageFolder

# A record whose keys are data would add a column per record.
MOST_COLUMNS = 1000
DAY = "day"
_TABLES = (config.DeltaSink, config.IcebergSink)
_NO_SCHEMA = '{"type": "record", "name": "none", "fields": []}'
_OWN = (*sources.METADATA_COLUMNS, sources.CORRUPT_COLUMN)


def infers(job: config.Job) -> bool:
    """Return whether the job finds the columns of its records batch by batch."""
    pipeline = job.pipeline
    given = (pipeline.schema, pipeline.sql, pipeline.python, pipeline.watermark)
    adds = isinstance(job.sink, _TABLES) and job.sink.merge_schema
    finds = pipeline.format == "json" or pipeline.registry is not None
    return finds and not any(given) and adds


def with_day(rows: DataFrame, job: config.Job) -> DataFrame:
    """Add `day`, the date of the record's time stamp in UTC, if the job partitions by it.

    Records that have such a field keep it, and so does what SQL or Python returns.
    """
    pipeline = job.pipeline
    has_query = pipeline.sql is not None or pipeline.python is not None
    names = {name.casefold() for name in rows.columns}
    if has_query or not partitions_by_day(job.sink) or DAY in names or "_timestamp" not in names:
        return rows
    return rows.withColumn(DAY, F.to_date("_timestamp"))


def partitions_by_day(sink: config.Sink) -> bool:
    """Return whether `day` is a folder of the table."""
    return isinstance(sink, _TABLES) and DAY in sink.partition_by


def rows_of(raw: DataFrame, job: config.Job, mode: str, checkpoint: StorageFolder) -> DataFrame:
    """Return a batch of raw records with the columns of the table, and with new ones.

    Raises JobConfigError for records whose fields cannot be columns, and JobError while a schema
    registry does not have their schema.
    """
    url = job.pipeline.registry
    if url is not None:
        schema = _newest_schema(raw, url, checkpoint)
        records = sources.parse_records(raw, "avro", schema, url)
    else:
        records = sources.parse_records(raw, "json", _grown(raw, job))
    rows = with_day(records, job)
    sinks.check(rows, job.sink, mode)
    return rows


def _newest_schema(raw: DataFrame, url: str, checkpoint: StorageFolder) -> str:
    """Return the Avro schema of the highest id in this batch and in those before."""
    seen, known = registry.newest_id(raw), registry.stored_id(checkpoint)
    newest = max((one for one in (seen, known) if one is not None), default=None)
    if newest is None:
        return sources.parse_avro(raw.sparkSession, _NO_SCHEMA)
    text = sources.parse_avro(raw.sparkSession, registry.schema_text(raw.sparkSession, url, newest))
    if newest != known:
        registry.store_id(checkpoint, newest)
    return text


def _grown(raw: DataFrame, job: config.Job) -> StructType:
    table = sinks.table_schema(raw.sparkSession, job.sink)
    known = StructType([] if table is None else [f for f in table.fields if f.name not in _OWN])
    reserved = set(_OWN)
    # JSON has no dates: such a column was made of the time stamp.
    if DAY in known.names and isinstance(known[DAY].dataType, DateType):
        known = StructType([field for field in known.fields if field.name != DAY])
        reserved.add(DAY)
    return grow(known, infer(raw), frozenset(reserved))


def infer(raw: DataFrame) -> StructType:
    """Return the fields of a batch's JSON objects; of those that are null everywhere none."""
    spark = raw.sparkSession
    text = raw.where(F.col("value").isNotNull()).select(F.col("value").cast("string"))
    # The JVM's reader of JSON text, because Python's needs a Python worker per executor.
    encoder = spark._jvm.org.apache.spark.sql.Encoders.STRING()  # type: ignore[union-attr]
    dataset = getattr(text._jdf, "as")(encoder)
    reader: Any = spark._jsparkSession.read()
    reader = reader.option("mode", "DROPMALFORMED").option("dropFieldIfAllNull", True)
    return StructType.fromJson(json.loads(reader.json(dataset).schema().json()))


def grow(known: StructType, seen: StructType, reserved: frozenset[str] = frozenset()) -> StructType:
    """Return `known` with the fields of `seen` that it lacks; a known field keeps its type.

    Raises JobConfigError for a field with the name of another column, or too many columns.
    """
    grown = _grow(known, seen, reserved)
    if len(grown.fields) > MOST_COLUMNS:
        raise config.JobConfigError(
            f"the records have more than {MOST_COLUMNS} fields; give a schema with those that count"
        )
    return grown


def _grow(known: StructType, seen: StructType, reserved: frozenset[str]) -> StructType:
    fields = {field.name: field for field in known.fields}
    taken = {name.casefold(): name for name in (*fields, *reserved)}
    for field in seen.fields:
        name = field.name
        if name in fields:
            old = fields[name]
            kind = _grow_type(old.dataType, field.dataType)
            fields[name] = StructField(name, kind, old.nullable, old.metadata)
            continue
        if name.casefold() in taken:
            raise config.JobConfigError(
                f"the records have a field {name}, and the table has a column "
                f"{taken[name.casefold()]}: one name for two; give a schema with the columns"
            )
        fields[name] = field
        taken[name.casefold()] = name
    return StructType(list(fields.values()))


def _grow_type(known: DataType, seen: DataType) -> DataType:
    if isinstance(known, StructType) and isinstance(seen, StructType):
        return _grow(known, seen, frozenset())
    if isinstance(known, ArrayType) and isinstance(seen, ArrayType):
        return ArrayType(_grow_type(known.elementType, seen.elementType), known.containsNull)
    return known
