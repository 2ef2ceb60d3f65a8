"""Builds and owns everything of one job, in this order, and takes it down in reverse.

1. HTTP endpoint, so that the operator sees a driver that starts
2. brokers: the group's topics exist; ZooKeeper: the member owns their partitions
3. Spark: source -> views -> query -> foreachBatch(sink, then commit)
4. a thread that measures lag and owns partitions that appear

The main thread waits for one of: the query ended, a signal, or the member was overtaken. A query
that fails ends the process with the reason in one line; starting it again is the operator's part,
which counts restarts and can move the pod to another node.
"""

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

from confluent_kafka import KafkaException
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from odradek.zk.znodes import TopicPartition
from odradek_spark import (
    cluster_conf,
    config,
    endpoint,
    lag,
    membership,
    offsets,
    pipeline,
    sinks,
    sources,
)
from odradek_spark.brokers import Brokers

log = logging.getLogger(__name__)

_TOPICS_PATIENCE_S = 120.0
_START_PAUSE_S = 2.0
_WAIT_SLICE_S = 1


class JobError(RuntimeError):
    """The job ended without success; the message is one line for the user."""


class Driver:
    """One run of one job."""

    def __init__(self, job: config.Job, environment: config.Environment) -> None:
        self._job = job
        self._environment = environment
        self._checkpoint = Path(environment.data) / "checkpoints" / job.group
        self._status = endpoint.Status()
        self._status_lock = threading.Lock()
        self._stop = threading.Event()
        self._failure: Exception | None = None
        # What is owned, in the order in which it was opened.
        self._closers: list[Callable[[], object]] = []
        self.endpoint = endpoint.Endpoint(
            job.group, job.metrics_port, lambda: self._status, self._healthy
        )

    def run(self) -> None:
        """Run until the query ends or a signal comes. Raises JobError or ConfigError."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            self._run()
        except BaseException:
            self._update(state=endpoint.FAILED)
            raise
        finally:
            for close in reversed(self._closers):
                try:
                    close()
                except Exception as error:
                    log.warning("while stopping: %s", sources.first_line(error))

    def _run(self) -> None:
        self.endpoint.start()
        self._closers.append(self.endpoint.stop)
        brokers = Brokers(self._job.bootstrap, f"odradek-lag-{self._job.group}")
        self._closers.append(brokers.close)
        partitions = self._await_topics(brokers)
        if self._stop.is_set():
            return
        member = self._join(partitions)
        spark = self._start_spark()
        result = self._build(spark, partitions, member)
        mode = pipeline.output_mode(result, self._job.pipeline.output_mode, self._job.sink)
        sinks.check(result, self._job.sink)
        query = self._start_query(result, mode, member)
        self._update(state=endpoint.RUNNING)
        watcher = threading.Thread(
            target=self._watch, args=(spark, brokers, member), name="lag", daemon=True
        )
        watcher.start()
        self._closers.append(lambda: watcher.join(timeout=2 * config.REFRESH_INTERVAL_S))
        self._closers.append(self._stop.set)
        self._await_end(query)

    def _await_topics(self, brokers: Brokers) -> list[TopicPartition]:
        """Return the partitions of the job's topics once all topics exist.

        A job may be applied together with its topics, so a missing topic is waited for. A pattern
        may match nothing yet.
        """
        deadline = time.monotonic() + _TOPICS_PATIENCE_S
        while True:
            try:
                found = brokers.partitions(self._job.topics, self._job.topic_pattern)
                missing = sorted(set(self._job.topics) - {partition.topic for partition in found})
                reason = f"topic {', '.join(missing)} does not exist"
            except KafkaException as error:
                found, missing = [], ["?"]
                reason = f"the brokers at {self._job.bootstrap} do not answer: {error.args[0]}"
            if not missing or self._stop.is_set():
                return found
            if time.monotonic() >= deadline:
                raise JobError(reason)
            log.info("waiting: %s", reason)
            self._stop.wait(_START_PAUSE_S)

    def _join(self, partitions: list[TopicPartition]) -> membership.Member:
        client = self._connect_zookeeper()
        pattern = self._job.topic_pattern
        subscription = {pattern: 1} if pattern is not None else dict.fromkeys(self._job.topics, 1)
        member = membership.Member(
            client,
            self._job.group,
            self._environment.pod_name,
            subscription,
            "static" if pattern is None else "white_list",
            self._fail,
        )
        try:
            member.join(partitions, self._owner_patience_s)
        except membership.OwnedElsewhereError as error:
            raise JobError(str(error)) from error
        self._closers.append(member.leave)
        log.info("group %s: member %s", self._job.group, member.consumer_id)
        return member

    @property
    def _owner_patience_s(self) -> float:
        # A dead driver's nodes live until its session ends; ZooKeeper counts sessions in ticks,
        # hence the slack.
        return 2 * self._environment.session_timeout_ms / 1000 + 5

    def _connect_zookeeper(self) -> KazooClient:
        try:
            client = membership.connect(
                self._job.zookeeper, self._environment.session_timeout_ms, _TOPICS_PATIENCE_S
            )
        except KazooTimeoutError as error:
            raise JobError(f"ZooKeeper at {self._job.zookeeper} does not answer") from error
        self._closers.append(client.close)
        self._closers.append(client.stop)
        return client

    def _start_spark(self) -> SparkSession:
        # Spark makes folders where it stands (artifacts, spark-warehouse); images are read-only.
        folder = tempfile.mkdtemp(prefix="odradek-")
        os.chdir(folder)
        self._closers.append(lambda: shutil.rmtree(folder, ignore_errors=True))
        template = None
        if self._environment.on_kubernetes:
            template = str(Path(folder) / "executor.yaml")
            Path(template).write_text(
                cluster_conf.executor_pod_text(self._environment), encoding="utf-8"
            )
        builder = SparkSession.builder
        conf = cluster_conf.spark_conf(self._job, self._environment, template)
        for name, value in conf.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        self._closers.append(spark.stop)
        return spark

    def _build(
        self, spark: SparkSession, partitions: list[TopicPartition], member: membership.Member
    ) -> DataFrame:
        schema = sources.schema_of(spark, self._job, self._checkpoint)
        committed = {}
        if self._job.pipeline.starting_offsets == "group" and offsets.is_new(self._checkpoint):
            committed = member.committed(partitions)
        options = sources.source_options(self._job, partitions, committed)
        raw = sources.read_stream(spark, options)
        records = sources.parse_records(raw, self._job.pipeline.format, schema)
        topics = tuple(dict.fromkeys(partition.topic for partition in partitions))
        return pipeline.transform(records, self._job, topics)

    def _start_query(
        self, result: DataFrame, mode: str, member: membership.Member
    ) -> StreamingQuery:
        write: sinks.WriteBatch | None = None

        def run_batch(rows: DataFrame, batch_id: int) -> None:
            nonlocal write
            began = time.monotonic()
            try:
                if write is None:
                    # Spark has written the query's id by now, before the first batch.
                    identity = offsets.query_id(self._checkpoint)
                    context = sinks.SinkContext(mode, identity, self._job.bootstrap)
                    write = sinks.open_sink(self._job.sink, context)
                write(rows, batch_id)
                ends = offsets.batch_ends(self._checkpoint, batch_id)
                member.claim_new(ends, self._owner_patience_s)
                member.commit(ends, config.COMMIT_DEADLINE_S)
            except Exception as error:
                # Spark wraps what happens here in pages of stack; the reason itself is kept aside.
                self._failure = self._failure or error
                raise
            self._update(batch_id=batch_id, batch_seconds=time.monotonic() - began)

        writer = (
            result.writeStream.outputMode(mode)
            .queryName(self._job.group)
            .option("checkpointLocation", f"file://{self._checkpoint}")
            .foreachBatch(run_batch)
        )
        if self._job.trigger_ms is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._job.trigger_ms} milliseconds")
        log.info("group %s: the query starts in output mode %s", self._job.group, mode)
        return writer.start()

    def _await_end(self, query: StreamingQuery) -> None:
        try:
            while not self._stop.is_set():
                if query.awaitTermination(_WAIT_SLICE_S):
                    self._update(state=endpoint.COMPLETED)
                    log.info("group %s: everything is read", self._job.group)
                    return
        except StreamingQueryException as error:
            raise JobError(f"the query failed: {self._reason(error)}") from error
        if self._failure is not None:
            query.stop()
            raise JobError(sources.first_line(self._failure)) from self._failure
        self._update(state=endpoint.STOPPING)
        # A batch under way may finish. One that takes longer is stopped and run again by the next
        # driver.
        deadline = time.monotonic() + config.STOP_GRACE_S
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(0.1)
        query.stop()

    def _reason(self, error: StreamingQueryException) -> str:
        if self._failure is not None:
            return sources.first_line(self._failure)
        return sources.first_line(error)

    def _watch(self, spark: SparkSession, brokers: Brokers, member: membership.Member) -> None:
        """Measure lag until the end; what does not answer leaves the last reading and its time."""
        while not self._stop.is_set():
            try:
                self._update(measured=self._measure(brokers, member), executors=_executors(spark))
            except (KafkaException, KazooException, KazooTimeoutError) as error:
                log.warning("group %s: lag is not known: %s", self._job.group, error)
            except membership.OwnedElsewhereError as error:
                self._fail(error)
            self._stop.wait(config.REFRESH_INTERVAL_S)

    def _measure(self, brokers: Brokers, member: membership.Member) -> lag.Measurement:
        partitions = brokers.partitions(self._job.topics, self._job.topic_pattern)
        member.claim_new(partitions, self._owner_patience_s)
        committed = member.committed(partitions)
        ends = brokers.ends(partitions)
        starts = brokers.starts(lag.uncommitted(committed, ends))
        stamps = brokers.timestamps(lag.behind(committed, ends))
        now_ms = int(time.time() * 1000)
        return lag.measure(committed, ends, starts, stamps, member.members(), now_ms)

    def _update(self, **changes: object) -> None:
        with self._status_lock:
            self._status = replace(self._status, **changes)  # type: ignore[arg-type]

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._stop.set()

    def _healthy(self) -> bool:
        return self._status.state not in (endpoint.FAILED, endpoint.COMPLETED)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        log.info("signal %d: stopping", number)
        self._stop.set()


def _executors(spark: SparkSession) -> int:
    # The driver's own block manager is in the map, too; with local[N] it is the only one, and
    # works.
    scala_context = spark.sparkContext._jsc.sc()
    known = int(scala_context.getExecutorMemoryStatus().size())
    return known if scala_context.isLocal() else known - 1


def load(path: str, environment: config.Environment) -> config.Job:
    """Read the job file. Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise config.ConfigError(f"cannot read the job file: {error}") from error
    return config.parse_job(text, environment)


def environment() -> config.Environment:
    """Return where this process runs. Raises ConfigError."""
    return config.parse_environment(os.environ, os.getuid(), os.getgid())
