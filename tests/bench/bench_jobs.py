"""Records per second of a Spark job, from this broker and from Apache Kafka 2.8.2 by turns.

    python -m tests.bench.bench_jobs [--rounds N] [--seconds S] [--share X]

One Spark application, a driver with two executors in processes of their own (Spark's local-cluster,
its standalone mode on one machine), runs the project's driver with the trigger availableNow over a
topic that was filled before: text records of 100 and of 1000 bytes. It keeps one record of a
thousand in a Parquet store, so that what takes time is to get records, and fails if one is missing.
Both brokers run all the time; in each round a job reads from both, in turn the one and the other
first, with the same offsets' store and the same settings. A first few rounds do not count: until
Java has compiled what it needs, Kafka's broker takes several times as long per record, and so do
executors for the first job. What is measured is the time that Spark
says its batches took (triggerExecution), without the start of Spark and of the driver. Beside it
stands the processor time of the broker, which depends less on what else the machine does.

A job reads to the ends of its partitions. There Kafka's broker keeps an executor waiting for half a
second per partition, and this one does not (ADR 20): two partitions per executor make a second per
job. It counts the more, the smaller the share. Who wants to know how fast both are before the end
takes a second from the time of Kafka's jobs.

For each size it prints the ratio of the speeds and its confidence interval of 95 %: Student's t on
the logarithms of the rounds' ratios. It ends with status 1 unless each ratio is at least 1.0 and
the lower bound of its interval at least 0.95. It starts no round that would end after S seconds,
and an interrupt prints what was measured so far.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import confluent_kafka
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from odradek_spark import cluster_conf, config, config_loading, show
from odradek_spark.driver import Driver
from tests.bench.bench_partitions import kinds, processor_s
from tests.support import spark_jars
from tests.support.broker import Cluster
from tests.support.clients import QUIET, create_topic

SIZES = (100, 1000)
RECORDS = {100: 3_000_000, 1000: 600_000}
PARTITIONS = 4
EXECUTORS = 2
KEPT_OF = 1000
MARK = b"kept"
WARM_UPS = 3
ROUNDS = 12
SECONDS = 540
GOAL, LEAST = 1.0, 0.95
# Two-sided 95 % quantiles of Student's t by degrees of freedom; 1.96 is the limit.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160)
T_BEYOND = 2.145
SETTINGS = {
    "zookeeper.session.timeout.ms": "30000",
    "auto.leader.rebalance.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
}


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of at least two ratios, and its confidence interval of 95 %."""
    logs = [math.log(one) for one in ratios]
    freedom = len(logs) - 1
    quantile = T[freedom - 1] if freedom <= len(T) else T_BEYOND
    middle = statistics.fmean(logs)
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def fill(bootstrap: str, size: int, records: int) -> None:
    """Make the topic of a size, with a mark in each record that the job is to keep."""
    create_topic(bootstrap, topic_of(size), PARTITIONS)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "batch.size": 65536,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 1_000_000,
            **QUIET,
        }
    )
    plain = os.urandom(size // 2).hex().encode()
    kept = MARK + plain[len(MARK) :]
    for number in range(records):
        value = plain if number % KEPT_OF else kept
        while True:
            try:
                producer.produce(topic_of(size), value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(300) == 0


def take_interrupts() -> None:
    """Let SIGINT and SIGTERM interrupt the bench; Spark and drivers set handlers of their own."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def topic_of(size: int) -> str:
    """Return the name of the topic with records of this size."""
    return f"bytes-{size}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Records per second, and the broker's seconds of processor time per million records."""

    speed: float
    broker_s: float

    def __str__(self) -> str:
        return f"{self.speed:.0f} records/s (broker {self.broker_s:.2f} s per million)"


class Progress(StreamingQueryListener):
    """Adds up what Spark says of batches: records, and milliseconds from trigger to commit."""

    def __init__(self) -> None:
        self.records = self.ms = 0
        self.ended = False

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to add."""

    def onQueryProgress(self, event: Any) -> None:
        """Add a batch."""
        self.records += event.progress.numInputRows
        self.ms += event.progress.durationMs["triggerExecution"]

    def onQueryIdle(self, event: Any) -> None:
        """Nothing to add."""

    def onQueryTerminated(self, event: Any) -> None:
        """Note that nothing follows."""
        self.ended = True


class SharedSpark(Driver):
    """The driver, in a Spark application that is there before and after it."""

    def __init__(
        self, job: config.Job, environment: config.Environment, spark: SparkSession
    ) -> None:
        super().__init__(job, environment)
        self._spark = spark

    def _start_spark(self) -> SparkSession:
        return self._spark


@dataclass
class Bench:
    """Brokers that are filled, and the application that reads from them."""

    folder: Path
    clusters: Mapping[str, Cluster]
    records: Mapping[int, int]
    master: str = f"local-cluster[{EXECUTORS},1,1024]"
    ratios: dict[int, list[float]] = field(default_factory=dict)
    _runs: int = 0

    def start(self) -> None:
        """Start Spark, and run each job a few times, so that everything is compiled."""
        self._environment = config_loading.parse_environment(
            {"ODRADEK_SPARK_MASTER": self.master, "ODRADEK_DATA": str(self.folder)},
            os.getuid(),
            os.getgid(),
        )
        names = list(self.clusters)
        job = self._job(names[0], SIZES[0])
        builder = SparkSession.builder
        for name, value in cluster_conf.spark_conf(job, self._environment, None).items():
            builder = builder.config(name, value)
        self._spark = builder.getOrCreate()
        take_interrupts()
        self._spark.sparkContext.setLogLevel("ERROR")
        for _ in range(WARM_UPS):
            for size in SIZES:
                for name in names:
                    print(f"warm-up: {size} bytes, {name}: {self.measure(name, size)}", flush=True)

    def stop(self) -> None:
        """Stop Spark."""
        self._spark.stop()

    def round(self, number: int) -> None:
        """Run each job over each size, and keep the ratios."""
        names = list(self.clusters)
        for size in SIZES:
            order = names if number % 2 == 0 else names[::-1]
            found = {name: self.measure(name, size) for name in order}
            first, second = (found[name] for name in names)
            ratio = first.speed / second.speed
            self.ratios.setdefault(size, []).append(ratio)
            told = "; ".join(f"{name} {found[name]}" for name in names)
            print(f"round {number + 1}: {size} bytes: {told}; ratio {ratio:.3f}", flush=True)

    def measure(self, name: str, size: int) -> Measured:
        """Run one job to its end."""
        self._runs += 1
        broker = self.clusters[name].brokers[1].pid
        used = processor_s(broker)
        progress = Progress()
        self._spark.streams.addListener(progress)
        job = self._job(name, size)
        try:
            if not SharedSpark(job, self._environment, self._spark).run():
                raise KeyboardInterrupt  # which the driver takes for a wish to stop
            until = time.monotonic() + 60
            while not progress.ended:  # Spark tells it from a thread of its own
                assert time.monotonic() < until, "Spark does not tell the end of the query"
                time.sleep(0.01)
        finally:
            take_interrupts()
            self._spark.streams.removeListener(progress)
            self._collect()
        assert progress.records == self.records[size], progress.records
        _, rows = show.read(self._out())
        assert len(rows) == self.records[size] // KEPT_OF, len(rows)
        per_million = (processor_s(broker) - used) / progress.records * 1_000_000
        return Measured(progress.records / progress.ms * 1000, per_million)

    def _collect(self) -> None:
        """Free what the former driver had, which Java holds: its clients, and their threads."""
        jvm: Any = self._spark._jvm
        jvm.System.gc()
        gc.collect()

    def _out(self) -> Path:
        return self.folder / f"out-{self._runs}"

    def _job(self, name: str, size: int) -> config.Job:
        cluster = self.clusters[name]
        document = {
            "group": f"bench-{self._runs}",
            "bootstrap": cluster.bootstrap,
            "zookeeper": cluster.zookeeper.connect,
            "topics": [topic_of(size)],
            "metricsPort": 0,
            "job": {
                "trigger": "availableNow",
                "format": "text",
                "sql": "select _partition, _offset from records "
                f"where startswith(value, '{MARK.decode()}')",
                "sink": {"parquet": {"path": str(self._out())}},
                "executors": {"instances": EXECUTORS, "cores": 1, "memory": "1Gi"},
            },
        }
        return config_loading.parse_job(json.dumps(document), self._environment)


def report(ratios: Mapping[int, Sequence[float]]) -> bool:
    """Print the ratios with their intervals, and return whether they are as good as the goal."""
    good = bool(ratios)
    for size, found in ratios.items():
        if len(found) < 2:
            print(f"{size} bytes: too few rounds for a confidence interval", flush=True)
            good = False
            continue
        middle, low, high = interval(found)
        print(
            f"{size} bytes: ratio {middle:.3f}, 95 % confidence {low:.3f} to {high:.3f}, "
            f"{len(found)} rounds; goal {GOAL}, lower bound {LEAST}",
            flush=True,
        )
        good = good and middle >= GOAL and low >= LEAST
    return good


def run(rounds: int, seconds: float, records: Mapping[int, int]) -> bool:
    """Measure, and return whether the goal is reached."""
    began = time.monotonic()
    systems = kinds()
    if len(systems) < 2:
        return False
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(mock.patch.dict(os.environ, _spark_environment(folder)))
        clusters = {}
        for name, kind in systems.items():
            directory = folder / name.partition(" ")[0]
            directory.mkdir()
            cluster = Cluster(directory, 1, SETTINGS, kind=kind, own_zookeeper=True)
            clusters[name] = stack.enter_context(cluster)
            for size in SIZES:
                fill(clusters[name].bootstrap, size, records[size])
        bench = Bench(folder, clusters, records)
        good = False
        with contextlib.suppress(KeyboardInterrupt):
            bench.start()
            stack.callback(bench.stop)
            longest = 0.0
            try:
                for number in range(rounds):
                    at = time.monotonic()
                    if at - began + longest > seconds:
                        break
                    bench.round(number)
                    longest = max(longest, time.monotonic() - at)
            finally:
                # Whatever ended it: an interrupt may end Spark first, too.
                good = report(bench.ratios)
        return good


def _spark_environment(folder: Path) -> dict[str, str]:
    return {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_jars.home()),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def main() -> int:
    """Print each round's figures, and the ratios with their confidence."""
    parser = argparse.ArgumentParser(description="A Spark job, from two brokers by turns.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="default: %(default)s")
    parser.add_argument("--share", type=float, default=1.0, help="of the records; default: 1.0")
    options = parser.parse_args()
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    take_interrupts()
    records = {
        size: max(1, int(count * options.share) // KEPT_OF) * KEPT_OF
        for size, count in RECORDS.items()
    }
    return 0 if run(options.rounds, options.seconds, records) else 1


if __name__ == "__main__":
    sys.exit(main())
