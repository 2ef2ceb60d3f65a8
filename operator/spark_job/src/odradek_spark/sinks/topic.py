"""Sink topic: at least once, because a log is append-only, and Spark writes without transactions.

A batch that is written again, or a task that Spark repeats, leaves duplicates. A reader can tell
them, and a batch of which a part is missing, by the headers of each record:

- `odradek-batch`: QUERY:NUMBER, the query's id and the number of the batch,
- `odradek-row`: PARTITION:ROW, Spark's partition and the row's place in it,
- `odradek-batch-rows`: how many rows the batch has.

A row has the same headers each time if the query is deterministic. Without a shuffle the rows of a
partition are in the order of the log; after one their order depends on the network, so they are
sorted by their text first. Functions such as rand, and sums of floating point numbers after a
shuffle, may yield other rows in a second run.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own guides use

from odradek_spark import config
from odradek_spark.sinks.interface import SinkContext, WriteBatch

BATCH_HEADER = "odradek-batch"
ROW_HEADER = "odradek-row"
BATCH_ROWS_HEADER = "odradek-batch-rows"

# monotonically_increasing_id has the partition in the bits above these.
_ROW_BITS = 33


def open_topic(sink: config.TopicSink, context: SinkContext) -> WriteBatch:
    """Return the function that writes a batch."""
    options = {
        **context.brokers.source_options(),
        "topic": sink.name,
        "kafka.acks": "all",
        # Spark has a producer per executor and may rerun a task, so idempotence would not make this
        # exactly once; one request in flight preserves the order without it.
        "kafka.enable.idempotence": "false",
        "kafka.max.in.flight.requests.per.connection": "1",
        "kafka.delivery.timeout.ms": "120000",
        "includeHeaders": "true",
    }

    def write(rows: DataFrame, batch_id: int) -> None:
        # Persisted, because the first record must say how many rows the batch has.
        numbered = _numbered(rows, sink.key).persist()
        try:
            tags = {
                BATCH_HEADER: F.lit(f"{context.query_id}:{batch_id}"),
                ROW_HEADER: F.concat(
                    F.shiftright("row", _ROW_BITS),
                    F.lit(":"),
                    F.col("row").bitwiseAND(F.lit((1 << _ROW_BITS) - 1)),
                ),
                BATCH_ROWS_HEADER: F.lit(str(numbered.count())),
            }
            headers = F.array(
                *(
                    F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
                    for name, value in tags.items()
                )
            )
            records = numbered.select("key", "value", headers.alias("headers"))
            context.fence.require()
            records.write.format("kafka").options(**options).save()
        finally:
            numbered.unpersist()

    return write


def _numbered(rows: DataFrame, key: str | None) -> DataFrame:
    """Return key, value and number of each row; the number is the same in each run of the batch."""
    records = rows.select(
        (F.lit(None) if key is None else F.col(f"`{key}`")).cast("string").alias("key"),
        F.to_json(F.struct("*")).alias("value"),
    )
    if _is_shuffled(rows):
        records = records.sortWithinPartitions("value", "key")
    return records.withColumn("row", F.monotonically_increasing_id())


def _is_shuffled(rows: DataFrame) -> bool:
    # In foreachBatch the plan of `rows` hides the query's, but the lineage does not.
    return "ShuffledRowRDD" in rows._jdf.queryExecution().toRdd().toDebugString()
