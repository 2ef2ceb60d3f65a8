"""Sink console: shows each batch in the driver's log; a rerun batch is shown again."""

import logging

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own guides use

from odradek_spark import config
from odradek_spark.sinks.interface import SinkContext, WriteBatch

log = logging.getLogger(__name__)

CONSOLE_ROWS = 100


def open_console(_: config.ConsoleSink, context: SinkContext) -> WriteBatch:
    """Return the function that writes a batch."""

    def write(rows: DataFrame, batch_id: int) -> None:
        # Persisted, because reading only some rows would not update the state of all partitions.
        kept = rows.select(F.to_json(F.struct("*")).alias("row")).persist()
        try:
            count = kept.count()
            context.fence.require()
            log.info("batch %d: %d rows", batch_id, count)
            for row in kept.limit(CONSOLE_ROWS).collect():
                log.info("batch %d: %s", batch_id, row["row"])
        finally:
            kept.unpersist()

    return write
