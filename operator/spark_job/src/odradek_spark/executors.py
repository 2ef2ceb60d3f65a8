"""Changes the number of executors of a running driver.

Spark starts missing executors and forgets pods that still wait, but leaves those that run, so they
are ended here. A task on an executor that is ended runs again elsewhere and does not count as
failed; the results of a batch do not change.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def registered(spark: SparkSession) -> int:
    """Return how many executors run. With local[N] it is the driver itself."""
    scala_context = spark.sparkContext._jsc.sc()
    if scala_context.isLocal():
        return int(scala_context.getExecutorMemoryStatus().size())
    return int(scala_context.getExecutorIds().size())


class Scale:
    """The number of executors in a file that the kubelet renews; `first` is what Spark began with.

    Without a path, or without a number in the file, Spark keeps its own.
    """

    def __init__(self, path: str | None, first: int) -> None:
        self._path = path
        self._followed = first

    def follow(self, spark: SparkSession) -> int | None:
        """Make Spark run as many executors as the file says, and return that number."""
        wanted = self._read()
        if wanted is not None and wanted != self._followed:
            log.info("from %d to %d executors", self._followed, wanted)
            resize(spark, wanted)
            self._followed = wanted
        return wanted

    def _read(self) -> int | None:
        try:
            text = Path(self._path).read_text(encoding="ascii").strip() if self._path else ""
        except (OSError, ValueError):
            return None
        return int(text) if text.isdigit() else None


def resize(spark: SparkSession, wanted: int) -> None:
    """Make Spark run so many executors, which must not have dynamic allocation."""
    jvm: Any = spark.sparkContext._jvm
    scala_context = spark.sparkContext._jsc.sc()
    known = scala_context.getExecutorIds()
    surplus = known.size() - wanted
    if surplus > 0:
        # The youngest, which have the least in their caches.
        ids = sorted((known.apply(place) for place in range(known.size())), key=int)[-surplus:]
        listed = jvm.PythonUtils.toSeq(ids)
        scala_context.killExecutors(listed)
    nothing = getattr(getattr(jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()
    scala_context.requestTotalExecutors(wanted, 0, nothing)
