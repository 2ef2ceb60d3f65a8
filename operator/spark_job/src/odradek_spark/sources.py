"""Turns topics into DataFrames: Spark's Kafka source, the schema, and one view per topic.

All topics of a group are one source, so each batch advances every topic and the checkpoint holds
one line of offsets. The records are parsed into columns once. Views name them:

- `records` has all topics of the group,
- each topic that exists at the start has a view of its own name (in backticks if the name is no
  identifier), and another one with `_` for all other characters if that name is free.

Beside the columns of the schema every record has `_topic`, `_partition`, `_offset`, `_timestamp`
and `_key`. With json and csv it has `_corrupt` too: the text of a record that does not match the
schema; its other columns are null. No record is dropped before the query sees it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own guides use
from pyspark.sql.types import StringType, StructField, StructType

from odradek.values import TopicPartition
from odradek_spark import config, offsets

RECORDS_VIEW = "records"
CORRUPT_COLUMN = "_corrupt"
METADATA_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_key")

_NOT_IDENTIFIER = re.compile(r"\W", re.ASCII)

# A broker restart takes tens of seconds and must not fail the query. The driver requests offsets up
# to 30 times, an executor polls for 120 s, and then Spark retries the task.
_RETRIES = {
    "fetchOffset.numRetries": "30",
    "fetchOffset.retryIntervalMs": "2000",
    "kafkaConsumer.pollTimeoutMs": "120000",
    "kafka.default.api.timeout.ms": "20000",
    "kafka.request.timeout.ms": "15000",
    "kafka.reconnect.backoff.max.ms": "2000",
}


def source_options(bootstrap: str, starts: Mapping[TopicPartition, int]) -> dict[str, str]:
    """Return the options of the Kafka source that reads the partitions of `starts`, no others.

    Spark begins at `starts` only with a new checkpoint; later `offsets.rewrite_start` decides.
    """
    return {
        "kafka.bootstrap.servers": bootstrap,
        "failOnDataLoss": "true",
        "assign": offsets.assign_option(starts),
        "startingOffsets": offsets.starting_offsets(starts),
        **_RETRIES,
    }


def read_stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return the raw streaming records."""
    return spark.readStream.format("kafka").options(**options).load()


def schema_of(
    spark: SparkSession, job: config.Job, topics: Iterable[str], checkpoint: Path
) -> StructType | None:
    """Return the schema of the records' values; None if the format has none (text).

    An inferred schema is stored in the checkpoint, because with another one a restarted query could
    not read its state. Raises JobConfigError.
    """
    if job.pipeline.format == "text":
        return None
    if job.pipeline.schema is not None:
        schema = parse_ddl(job.pipeline.schema)
    else:
        stored = checkpoint / "inferred_schema.ddl.json"
        if stored.exists():
            return StructType.fromJson(json.loads(stored.read_text(encoding="utf-8")))
        schema = infer_schema(spark, job.bootstrap, topics)
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_text(schema.json(), encoding="utf-8")
    clash = sorted({*METADATA_COLUMNS, CORRUPT_COLUMN} & set(schema.fieldNames()))
    if clash:
        raise config.JobConfigError(f"job.schema: {', '.join(clash)} are names of metadata columns")
    return schema


def parse_ddl(text: str) -> StructType:
    """Return the struct of a DDL string. Raises JobConfigError."""
    try:
        schema = StructType.fromDDL(text)
    except Exception as error:
        raise config.JobConfigError(f"job.schema: {first_line(error)}") from error
    if not isinstance(schema, StructType):
        raise config.JobConfigError(f"job.schema: {text!r} is not a list of columns")
    return schema


def infer_schema(spark: SparkSession, bootstrap: str, topics: Iterable[str]) -> StructType:
    """Return the schema of the JSON in the topics; raises JobConfigError if they are empty."""
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", ",".join(topics))
        .load()
        .where(F.col("value").isNotNull())
        .select(F.col("value").cast("string"))
        .limit(config.INFERENCE_SAMPLE_RECORDS)
    )
    rows = [(row[0],) for row in records.collect()]
    if not rows:
        raise config.JobConfigError(
            "job.schema is missing, and the topics have no record to infer it from"
        )
    # The JVM's reader of JSON text, because Python's needs a Python worker per executor.
    text = spark.createDataFrame(rows, "value string")
    encoder = spark._jvm.org.apache.spark.sql.Encoders.STRING()  # type: ignore[union-attr]
    dataset = getattr(text._jdf, "as")(encoder)
    inferred = spark._jsparkSession.read().json(dataset).schema().json()
    return StructType.fromJson(json.loads(inferred))


def parse_records(raw: DataFrame, format_: str, schema: StructType | None) -> DataFrame:
    """Return the raw records with the columns of `schema` and the metadata columns."""
    text = F.col("value").cast("string")
    metadata: list[Column] = [
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
        F.col("key").cast("string").alias("_key"),
    ]
    if schema is None:
        return raw.select(text.alias("value"), *metadata)
    with_corrupt = StructType([*schema.fields, StructField(CORRUPT_COLUMN, StringType())])
    parse = F.from_json if format_ == "json" else F.from_csv
    parsed = parse(text, _ddl(with_corrupt), {"columnNameOfCorruptRecord": CORRUPT_COLUMN})
    return raw.select(parsed.alias("_parsed"), *metadata).select(
        "_parsed.*", *(metadata_column for metadata_column in METADATA_COLUMNS)
    )


def _ddl(schema: StructType) -> str:
    return ", ".join(
        f"`{field.name.replace('`', '``')}` {field.dataType.simpleString()}"
        for field in schema.fields
    )


def view_names(topics: Iterable[str]) -> dict[str, str]:
    """Return view name -> topic: each topic's own name, and an identifier if that is free.

    >>> view_names(["cluster-logs"])
    {'cluster-logs': 'cluster-logs', 'cluster_logs': 'cluster-logs'}
    """
    known = sorted(set(topics))
    # Spark's view names ignore case; of two topics that differ only in case the first one counts.
    taken = {name.casefold() for name in known} | {RECORDS_VIEW}
    names = {topic: topic for topic in known if topic.casefold() != RECORDS_VIEW}
    aliases: dict[str, list[str]] = {}
    for topic in known:
        aliases.setdefault(_NOT_IDENTIFIER.sub("_", topic).casefold(), []).append(topic)
    for alias, owners in aliases.items():
        if alias not in taken and len(owners) == 1:
            names[_NOT_IDENTIFIER.sub("_", owners[0])] = owners[0]
    return names


def register_views(records: DataFrame, topics: Iterable[str]) -> None:
    """Register the views of the records for SQL."""
    records.createOrReplaceTempView(RECORDS_VIEW)
    for name, topic in view_names(topics).items():
        quoted = f"`{name}`"  # topic names contain no backtick
        records.where(F.col("_topic") == topic).createOrReplaceTempView(quoted)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; Spark appends whole plans."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
