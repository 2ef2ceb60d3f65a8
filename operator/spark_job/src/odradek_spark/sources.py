"""From topics to DataFrames: Spark's Kafka source, and one view for each topic.

All topics of a group are one source, so a batch moves every topic forward and the checkpoint holds
one line of offsets. The records are parsed into columns once; views then name them:

- `records` holds all topics of the group,
- each topic known at the start has a view of its own name (in backticks where the name is no
  identifier), and another one with `_` for every other character where that name is free.

Beside the columns of the schema every record has `_topic`, `_partition`, `_offset`, `_timestamp`
and `_key`, and with json and csv `_corrupt`: the text of a record that does not fit the schema,
whose other columns are null. Nothing is dropped before the query sees it.
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

# A broker that restarts is away for tens of seconds, and must not end a query that could go on. The
# driver asks for offsets 30 times, an executor polls for 120 s, and then the task is tried again.
_PATIENCE = {
    "fetchOffset.numRetries": "30",
    "fetchOffset.retryIntervalMs": "2000",
    "kafkaConsumer.pollTimeoutMs": "120000",
    "kafka.default.api.timeout.ms": "20000",
    "kafka.request.timeout.ms": "15000",
    "kafka.reconnect.backoff.max.ms": "2000",
}


def source_options(bootstrap: str, places: Mapping[TopicPartition, int]) -> dict[str, str]:
    """Return the options of the Kafka source that reads the partitions of `places`, no others.

    Spark begins at `places` only while its checkpoint is new; `offsets.rewrite_start` is for later.
    """
    return {
        "kafka.bootstrap.servers": bootstrap,
        "failOnDataLoss": "true",
        "assign": offsets.assignment(places),
        "startingOffsets": offsets.starting_offsets(places),
        **_PATIENCE,
    }


def read_stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return the raw streaming records."""
    return spark.readStream.format("kafka").options(**options).load()


def schema_of(
    spark: SparkSession, job: config.Job, topics: Iterable[str], checkpoint: Path
) -> StructType | None:
    """Return the schema of the records' values; None where the format has none (text).

    A schema that was inferred is kept in the checkpoint, because a restart that infers another one
    could not read the state that the query left there. Raises JobConfigError.
    """
    if job.pipeline.format == "text":
        return None
    if job.pipeline.schema is not None:
        schema = parse_ddl(job.pipeline.schema)
    else:
        kept = checkpoint / "inferred_schema.ddl.json"
        if kept.exists():
            return StructType.fromJson(json.loads(kept.read_text(encoding="utf-8")))
        schema = infer_schema(spark, job.bootstrap, topics)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(schema.json(), encoding="utf-8")
    clash = sorted({*METADATA_COLUMNS, CORRUPT_COLUMN} & set(schema.fieldNames()))
    if clash:
        raise config.JobConfigError(f"job.schema: {', '.join(clash)} are names of Kafka's metadata")
    return schema


def parse_ddl(text: str) -> StructType:
    """Return the struct of a DDL string; raises JobConfigError with Spark's first line."""
    try:
        schema = StructType.fromDDL(text)
    except Exception as error:
        raise config.JobConfigError(f"job.schema: {first_line(error)}") from error
    if not isinstance(schema, StructType):
        raise config.JobConfigError(f"job.schema: {text!r} is not a list of columns")
    return schema


def infer_schema(spark: SparkSession, bootstrap: str, topics: Iterable[str]) -> StructType:
    """Return the schema of the JSON in the topics; raises JobConfigError where they are empty."""
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
            "job.schema is not given and the topics hold no record to infer it from"
        )
    # Spark's reader of JSON text is reached through the JVM: Python's needs a Python worker an
    # executor.
    text = spark.createDataFrame(rows, "value string")
    encoder = spark._jvm.org.apache.spark.sql.Encoders.STRING()  # type: ignore[union-attr]
    dataset = getattr(text._jdf, "as")(encoder)
    inferred = spark._jsparkSession.read().json(dataset).schema().json()
    return StructType.fromJson(json.loads(inferred))


def parse_records(raw: DataFrame, format_: str, schema: StructType | None) -> DataFrame:
    """Return Kafka's raw records with the columns of `schema` and the metadata columns."""
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
    """Return view name -> topic: each topic's own name, and an identifier where that is free.

    >>> view_names(["cluster-logs"])
    {'cluster-logs': 'cluster-logs', 'cluster_logs': 'cluster-logs'}
    """
    known = sorted(set(topics))
    # Spark's view names ignore case; the first of two topics that differ only there keeps the name.
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
    """Name the records for SQL."""
    records.createOrReplaceTempView(RECORDS_VIEW)
    for name, topic in view_names(topics).items():
        quoted = f"`{name}`"  # a topic's name holds no backtick
        records.where(F.col("_topic") == topic).createOrReplaceTempView(quoted)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says; Spark appends whole plans."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
