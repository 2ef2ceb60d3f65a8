"""Avro records with the header of a schema registry: a byte 0, and the id of their schema.

The schemas are those of Confluent's `GET /schemas/ids/ID` (java/io/odradek/avro). Executors turn
each record into plain Avro of one schema, which the table or the query has: the one in the job, or
else that of the highest id. A registry numbers its schemas upward, so this is the newest.
"""

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own guides use
from pyspark.sql.types import BinaryType

from odradek_spark.errors import JobError
from odradek_spark.storage import StorageFolder

_FUNCTION = "odradek_registry_decode"
_NEWEST = "registry_schema_id"


def newest_id(raw: DataFrame) -> int | None:
    """Return the highest id in the headers of these records, None if no record has one."""
    # An id is positive: a larger number is that of other bytes.
    marked = raw.where(
        "octet_length(value) >= 5 and substring(value, 1, 1) = X'00'"
        " and substring(value, 2, 1) < X'80'"
    )
    number = F.conv(F.hex(F.substring("value", 2, 4)), 16, 10).cast("int")
    found = marked.select(F.max(number)).collect()[0][0]
    return None if found is None else int(found)


def schema_text(spark: SparkSession, url: str, number: int) -> str:
    """Return the Avro schema of an id. Raises JobError: a registry may have it later."""
    jvm: Any = spark._jvm
    try:
        return str(jvm.io.odradek.avro.Registry.at(url).schema(number).toString())
    except Py4JJavaError as error:
        raise JobError(str(error.java_exception.getMessage())) from error


def decoded(spark: SparkSession, url: str, schema: str) -> Column:
    """Return the records' values as plain Avro of `schema`; null for what cannot be read so."""
    kind = "io.odradek.avro.RegistryDecoder"
    spark.udf.registerJavaFunction(_FUNCTION, kind, BinaryType())
    return F.call_function(_FUNCTION, F.col("value"), F.lit(url), F.lit(schema))


def stored_id(checkpoint: StorageFolder) -> int | None:
    """Return the id of the schema that the job has taken."""
    text = checkpoint.read(_NEWEST)
    return int(text) if text is not None and text.strip().isdigit() else None


def store_id(checkpoint: StorageFolder, number: int) -> None:
    """Keep the id of the schema that the job takes."""
    checkpoint.write(_NEWEST, str(number))
