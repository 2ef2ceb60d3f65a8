"""Starts Spark in this process's local mode, and says what is missing where it cannot.

Everything that the JVM says goes to a file, because it would garble the rows. Where the variable
PYSPARK_GATEWAY_PORT names a running JVM, pyspark takes that one.
"""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from odradek_spark.sql.errors import SqlError


def start(jars: list[Path], memory: str, folder: Path) -> SparkSession:
    """Start Spark with this heap (such as 1g), its files in `folder`. Raises SqlError."""
    builder = SparkSession.builder.appName("odradek-sql").master("local[*]")
    settings = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        # One machine reads what a person looks at: Spark's 200 tasks would take longer than it.
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.streaming.stopTimeout": "30s",
        "spark.sql.streaming.numRecentProgressUpdates": "10",
    }
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
    for name, value in settings.items():
        builder = builder.config(name, value)
    # pyspark logs each error of a query, with its plan and all frames, before it raises it.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger().addHandler(logging.NullHandler())  # py4j's tracebacks go to the root logger
    log = folder / "spark.log"
    try:
        with _output_to(log):
            session = builder.getOrCreate()
    except (PySparkException, OSError) as error:
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        reason = said[-1].strip() if said else str(error)
        raise SqlError(f"failed to start Spark (it needs Java 17 or 21): {reason}") from error
    # pyspark's own handler calls the JVM, perhaps in the middle of another call: see `interrupts`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Let processes that start meanwhile write to a file.

    Java says on stdout why it does not start.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    own = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    try:
        with log.open("ab") as output:
            for descriptor in own:
                os.dup2(output.fileno(), descriptor)
        yield
    finally:
        for descriptor, kept in own.items():
            os.dup2(kept, descriptor)
            os.close(kept)
