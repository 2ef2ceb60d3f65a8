"""Turns topics into DataFrames: Spark's Kafka source, the schema, and one view per topic.

All topics of a group are one source, so each batch advances every topic and the checkpoint holds
one line of offsets. The records are parsed into columns once. Views name them:

- `records` has all topics of the group,
- each topic that exists at the start has a view of its own name (in backticks if the name is no
  identifier), and another one with `_` for all other characters if that name is free.

Beside the columns of the schema every record has `_topic`, `_partition`, `_offset`, `_timestamp`
and `_key`. With json, csv and avro it has `_corrupt` too: the text of a record that does not match
the schema (avro: its bytes in base64); its other columns are null. No record is dropped before the
query sees it. Format raw has the columns of Spark's own source, with key and value as bytes.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own guides use
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from odradek.values import TopicPartition
from odradek_spark import config, offsets, registry
from odradek_spark.broker_access import BrokerAccess
from odradek_spark.errors import JobError
from odradek_spark.storage import StorageFolder

RECORDS_VIEW = "records"
CORRUPT_COLUMN = "_corrupt"
METADATA_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_key")

UNREADABLE_TIME = (
    "a record has a time stamp that Spark cannot hold, of a year before -290307 or after 294247; "
    "apply spec.reset to go on behind it, and set message.timestamp.difference.max.ms of the topic "
    "to refuse such records"
)

_INFERRED_SCHEMA = "inferred_schema.ddl.json"
# What Spark infers of a record that is no JSON object.
_INFERRED_CORRUPT = "_corrupt_record"
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


def source_options(
    brokers: BrokerAccess, starts: Mapping[TopicPartition, int], format_: str
) -> dict[str, str]:
    """Return the options of the Kafka source that reads the partitions of `starts`, no others.

    Spark begins at `starts` only with a new checkpoint; later `offsets.rewrite_start` decides.
    """
    return {
        **brokers.source_options(),
        "failOnDataLoss": "true",
        "assign": offsets.assign_option(starts),
        "startingOffsets": offsets.starting_offsets(starts),
        "includeHeaders": str(format_ == "raw").lower(),
        **_RETRIES,
    }


def read_stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return the raw streaming records."""
    return spark.readStream.format("kafka").options(**options).load()


def schema_of(
    spark: SparkSession, job: config.Job, topics: Iterable[str], checkpoint: StorageFolder
) -> StructType | str | None:
    """Return the schema of the records' values; None if the format has none (text, raw).

    For avro it is the text of an Avro schema.

    An inferred schema is stored in the checkpoint, because with another one a restarted query could
    not read its state. Raises JobConfigError, or JobError while there is nothing to infer it from.
    """
    if job.pipeline.format in ("text", "raw"):
        return None
    if job.pipeline.format == "avro":
        return parse_avro(spark, _avro_text(spark, job, topics, checkpoint))
    if job.pipeline.schema is not None:
        schema = parse_ddl(job.pipeline.schema)
    else:
        stored = checkpoint.read(_INFERRED_SCHEMA)
        if stored is not None:
            return StructType.fromJson(json.loads(stored))
        schema = infer_schema(spark, job.brokers, topics)
        checkpoint.write(_INFERRED_SCHEMA, schema.json())
    _require_free(schema.fieldNames())
    return schema


def _avro_text(
    spark: SparkSession, job: config.Job, topics: Iterable[str], checkpoint: StorageFolder
) -> str:
    """Return the schema in the job, or the newest one of the registry when the job began."""
    url = job.pipeline.registry
    if job.pipeline.schema is not None or url is None:
        return str(job.pipeline.schema)
    number = registry.stored_id(checkpoint)
    if number is None:
        number = registry.newest_id(_sample(spark, job.brokers, topics))
        if number is None:
            raise JobError("job.schema is missing, and no record has the id of a schema")
        registry.store_id(checkpoint, number)
    return registry.schema_text(spark, url, number)


def _require_free(names: Iterable[str]) -> None:
    clash = sorted({*METADATA_COLUMNS, CORRUPT_COLUMN} & set(names))
    if clash:
        raise config.JobConfigError(f"job.schema: {', '.join(clash)} are names of metadata columns")


def parse_avro(spark: SparkSession, text: str) -> str:
    """Return an Avro schema for `parse_records`: a record whose one field has the schema `text`.

    Its bytes are those of the field. A record that does not match becomes null in this field, and
    so is told from one whose columns are all null. Raises JobConfigError.
    """
    jvm: Any = spark._jvm
    try:
        parsed = jvm.org.apache.avro.Schema.Parser().parse(text)
    except Exception as error:
        reason = getattr(error, "java_exception", None)
        shown = first_line(error) if reason is None else str(reason.toString()).splitlines()[0]
        raise config.JobConfigError(f"job.schema: {shown}") from error
    if str(parsed.getType().toString()) != "RECORD":
        raise config.JobConfigError("job.schema: an Avro schema must be a record")
    _require_free(field.name() for field in parsed.getFields())
    field = {"name": "value", "type": json.loads(text)}
    return json.dumps({"type": "record", "name": "odradek_record", "fields": [field]})


def parse_ddl(text: str) -> StructType:
    """Return the struct of a DDL string. Raises JobConfigError."""
    try:
        schema = StructType.fromDDL(text)
    except Exception as error:
        raise config.JobConfigError(f"job.schema: {first_line(error)}") from error
    if not isinstance(schema, StructType):
        raise config.JobConfigError(f"job.schema: {text!r} is not a list of columns")
    return schema


def infer_schema(spark: SparkSession, brokers: BrokerAccess, topics: Iterable[str]) -> StructType:
    """Return the schema of the JSON in the topics; raises JobError while they are empty."""
    records = _sample(spark, brokers, topics)
    rows = [(row[0],) for row in records.select(F.col("value").cast("string")).collect()]
    if not rows:
        raise JobError("job.schema is missing, and the topics have no record to infer it from")
    # The JVM's reader of JSON text, because Python's needs a Python worker per executor.
    text = spark.createDataFrame(rows, "value string")
    encoder = spark._jvm.org.apache.spark.sql.Encoders.STRING()  # type: ignore[union-attr]
    dataset = getattr(text._jdf, "as")(encoder)
    inferred = spark._jsparkSession.read().json(dataset).schema().json()
    fields = StructType.fromJson(json.loads(inferred)).fields
    return StructType([field for field in fields if field.name != _INFERRED_CORRUPT])


def _sample(spark: SparkSession, brokers: BrokerAccess, topics: Iterable[str]) -> DataFrame:
    return (
        spark.read.format("kafka")
        .options(**brokers.source_options())
        .option("subscribe", ",".join(topics))
        .load()
        .where(F.col("value").isNotNull())
        .limit(config.INFERENCE_SAMPLE_RECORDS)
    )


def parse_records(
    raw: DataFrame, format_: str, schema: StructType | str | None, registry_url: str | None = None
) -> DataFrame:
    """Return the raw records with the columns of `schema` and the metadata columns.

    With `registry_url`, Avro records have the header of the schema registry there.
    """
    text = F.col("value").cast("string")
    metadata: list[Column] = [
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
        F.col("key").cast("string").alias("_key"),
    ]
    if format_ == "raw":
        return raw.select("*", *metadata)
    if isinstance(schema, str):
        plain = F.col("value")
        if registry_url is not None:
            (field,) = json.loads(schema)["fields"]
            plain = registry.decoded(raw.sparkSession, registry_url, json.dumps(field["type"]))
        record = from_avro(plain, schema, {"mode": "PERMISSIVE"})["value"]
        is_corrupt = F.col("_parsed").isNull() & F.col("value").isNotNull()
        corrupt = F.when(is_corrupt, F.base64("value")).alias(CORRUPT_COLUMN)
        return raw.select(record.alias("_parsed"), "value", *metadata).select(
            "_parsed.*", corrupt, *METADATA_COLUMNS
        )
    if schema is None:
        return raw.select(text.alias("value"), *metadata)
    with_corrupt = StructType([*schema.fields, StructField(CORRUPT_COLUMN, StringType())])
    parse = F.from_json if format_ == "json" else F.from_csv
    parsed = parse(text, _ddl(with_corrupt), {"columnNameOfCorruptRecord": CORRUPT_COLUMN})
    return raw.select(parsed.alias("_parsed"), *metadata).select(
        "_parsed.*", *(metadata_column for metadata_column in METADATA_COLUMNS)
    )


def _ddl(schema: StructType) -> str:
    return ", ".join(f"{_quoted(field.name)} {_type(field.dataType)}" for field in schema.fields)


def _type(kind: DataType) -> str:
    """Return a type for DDL; Spark's own text does not quote the names of nested fields."""
    match kind:
        case StructType():
            fields = (f"{_quoted(field.name)}: {_type(field.dataType)}" for field in kind.fields)
            return f"struct<{', '.join(fields)}>"
        case ArrayType():
            return f"array<{_type(kind.elementType)}>"
        case MapType():
            return f"map<{_type(kind.keyType)}, {_type(kind.valueType)}>"
    return str(kind.simpleString())


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


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


def has_unreadable_time(text: str) -> bool:
    """Return whether a query failed with this text because of a record's time stamp."""
    return "ArithmeticException: long overflow" in text and "KafkaRecordToRowConverter" in text


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; Spark appends whole plans."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        # Its own text only says which call failed. The JVM may be gone.
        with contextlib.suppress(Py4JError):
            text = str(error.java_exception.toString())
    return (text.strip().splitlines() or [type(error).__name__])[0]
