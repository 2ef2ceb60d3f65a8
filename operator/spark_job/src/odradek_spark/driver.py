"""Runs one job: starts what it needs, runs a query per assignment, and stops everything in reverse.

1. Start the HTTP endpoint, so that the operator sees a starting driver.
2. Wait for the group's topics, start Spark (first, without Kubernetes), register the member in
   ZooKeeper.
3. Start a thread that measures the lag, one that looks whether batches run (`pulse`), and one that
   counts the rows of a table.
4. Acquire the assignment and run a query over it: source -> views -> foreachBatch(sink, then
   commit). Repeat after every rebalance.

The main thread waits for the end of the query, a signal, or a change of the group. If the
assignment changed, it ends the query, releases the partitions, and begins again. If a query fails,
the process exits with the reason in one line. The operator restarts it: it counts restarts and can
move the pod to another node.
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
from pyspark.sql import SparkSession

from odradek.clock import wall_ms
from odradek.properties import ConfigError
from odradek.zk import access_files, failures
from odradek.zk.client import OPEN, ZooKeeperAccess
from odradek.zk.znodes import ZnodeError
from odradek_spark import (
    cluster_conf,
    config,
    config_loading,
    endpoint,
    executors,
    group_znodes,
    lag,
    membership,
    sinks,
    sources,
    storage,
    topic_guard,
)
from odradek_spark.broker_client import DriverClient
from odradek_spark.errors import FencedError, JobError
from odradek_spark.kafka_offsets import KafkaOffsets
from odradek_spark.pulse import Activity, Pulse
from odradek_spark.query import Query

log = logging.getLogger(__name__)

_TOPICS_PATIENCE_S = 120.0
_START_PAUSE_S = 2.0
_WAIT_SLICE_S = 1
_RENEWAL_INTERVAL_S = 3600.0  # far below offsets.retention.minutes, a week


class Driver:
    """One run of one job."""

    def __init__(self, job: config.Job, environment: config.Environment) -> None:
        self._job = job
        self._environment = environment
        self._status = endpoint.Status()
        self._status_lock = threading.Lock()
        self._stop = threading.Event()
        self._pulse = Pulse(job.batch_timeout_s)
        self._batches = 0
        self._scale = executors.Scale(environment.executors_file, job.executor_instances)
        # Close functions, in the order in which their resources were opened.
        self._closers: list[Callable[[], object]] = []
        self.endpoint = endpoint.MetricsEndpoint(
            job.group,
            job.metrics_port,
            lambda: self._status,
            self._pulse.is_alive,
            host=job.metrics_host,
        )

    def run(self) -> bool:
        """Run until the query ends or a signal arrives. Raises JobError or JobConfigError.

        Return False if a signal arrived before an availableNow job had read all records.
        """
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
                    log.warning("failed to stop cleanly: %s", sources.first_line(error))
        return self._job.trigger_ms is not None or self._status.state == endpoint.COMPLETED

    def _run(self) -> None:
        self.endpoint.start()
        self._closers.append(self.endpoint.stop)
        client = DriverClient(self._job.brokers, f"odradek-lag-{self._job.group}", self._job.group)
        self._closers.append(client.close)
        if self._environment.on_kubernetes:
            # Executors would be made for topics that may never come.
            self._await_topics(client)
            spark = None if self._stop.is_set() else self._start_spark()
        else:
            # Brokers may start meanwhile.
            spark = self._start_spark()
            self._await_topics(client)
        if spark is None or self._stop.is_set():
            return
        member = self._join()
        watcher = threading.Thread(
            target=self._watch, args=(client, member), name="lag", daemon=True
        )
        watcher.start()
        self._closers.append(lambda: watcher.join(timeout=2 * config.REFRESH_INTERVAL_S))
        # The watcher has the other one: neither is for two threads.
        reader = DriverClient(
            self._job.brokers, f"odradek-start-{self._job.group}", self._job.group
        )
        self._closers.append(reader.close)
        query = Query(
            self._job,
            storage.open_folder(spark, self._job.checkpoint),
            spark,
            member,
            reader,
            self._on_batch,
            self._stop,
            self._pulse.beat,
        )
        observer = threading.Thread(
            target=self._observe, args=(spark, query), name="pulse", daemon=True
        )
        observer.start()
        self._closers.append(lambda: observer.join(timeout=2 * config.REFRESH_INTERVAL_S))
        # Not in the observer's thread: to count may take a Spark job, which waits for executors,
        # or until a batch leaves it a core. It ends with Spark.
        threading.Thread(target=self._count_rows, args=(spark,), name="rows", daemon=True).start()
        self._closers.append(self._stop.set)
        self._run_queries(query, member)

    def _await_topics(self, client: DriverClient) -> None:
        """Wait until all of the job's topics exist. Raises JobError after a time limit.

        A job may be applied together with its topics. A pattern may match no topic yet.
        """
        deadline = time.monotonic() + _TOPICS_PATIENCE_S
        while True:
            try:
                found = client.partitions(self._job.topics, self._job.topic_pattern)
                missing = sorted(set(self._job.topics) - {partition.topic for partition in found})
                reason = f"topic {', '.join(missing)} does not exist"
            except KafkaException as error:
                missing = ["?"]
                reason = (
                    f"the brokers at {self._job.brokers.bootstrap} do not answer: {error.args[0]}"
                )
            if not missing or self._stop.is_set():
                self._update(waits_for=None)
                return
            if time.monotonic() >= deadline:
                raise JobError(reason)
            self._update(waits_for=reason)
            log.info("waiting for topics: %s; retrying", reason)
            self._stop.wait(_START_PAUSE_S)

    def _join(self) -> membership.GroupMembership:
        client = self._connect_zookeeper()
        kafka = None
        if self._job.offset_store != config.ZOOKEEPER:
            kafka = KafkaOffsets(self._job.brokers, self._job.group)
            self._closers.append(kafka.close)
        pattern = self._job.topic_pattern
        subscription = {pattern: 1} if pattern is not None else dict.fromkeys(self._job.topics, 1)
        member = membership.GroupMembership(
            client,
            self._job.group,
            self._environment.pod_name,
            subscription,
            "static" if pattern is None else "white_list",
            kafka,
            dual_commit=self._job.offset_store == config.BOTH,
        )
        self._closers.append(member.leave)
        self._take_over(member)
        member.join()
        log.info("group %s: member %s, epoch %d", self._job.group, member.consumer_id, member.epoch)
        return member

    def _take_over(self, member: membership.GroupMembership) -> None:
        deadline = time.monotonic() + _TOPICS_PATIENCE_S
        while True:
            try:
                member.take_over()
                self._update(epoch=member.epoch)
                return
            except group_znodes.TRANSIENT as error:
                if time.monotonic() >= deadline or self._stop.is_set():
                    raise JobError(f"failed to raise the group's epoch: {error!r}") from error
                log.warning("group %s: failed to raise its epoch: %r", self._job.group, error)
            self._stop.wait(_START_PAUSE_S)

    @property
    def _owner_patience_s(self) -> float:
        # A dead driver's znodes exist until its session ends; ZooKeeper counts sessions in ticks,
        # hence the slack.
        return 2 * self._environment.session_timeout_ms / 1000 + 5

    def _connect_zookeeper(self) -> KazooClient:
        try:
            client = group_znodes.connect(
                self._job.zookeeper,
                self._environment.session_timeout_ms,
                _TOPICS_PATIENCE_S,
                self._zookeeper_access(),
            )
        except KazooTimeoutError as error:
            raise JobError(
                f"ZooKeeper at {self._job.zookeeper} does not answer: {error}"
            ) from error
        self._closers.append(client.close)
        self._closers.append(client.stop)
        return client

    def _zookeeper_access(self) -> ZooKeeperAccess:
        folder = self._job.zookeeper_files
        try:
            return OPEN if folder is None else access_files.of_folder(Path(folder))
        except ConfigError as error:
            raise JobError(f"zookeeperFiles: {error}") from error

    def _start_spark(self) -> SparkSession:
        # Spark creates folders in its working directory (artifacts, spark-warehouse), and the
        # image is read-only.
        folder = tempfile.mkdtemp(prefix="odradek-")
        os.chdir(folder)
        self._closers.append(lambda: shutil.rmtree(folder, ignore_errors=True))
        template = None
        if self._environment.on_kubernetes:
            template = str(Path(folder) / "executor.yaml")
            Path(template).write_text(
                cluster_conf.executor_pod_text(self._job, self._environment), encoding="utf-8"
            )
        builder = SparkSession.builder
        conf = cluster_conf.spark_conf(self._job, self._environment, template)
        if self._job.event_log is not None:
            storage.make_event_log_folder(conf, self._job.event_log)
        for name, value in conf.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        self._closers.append(spark.stop)
        return spark

    def _run_queries(self, query: Query, member: membership.GroupMembership) -> None:
        self._closers.append(query.finish)
        while not self._stop.is_set():
            self._pulse.beat()
            try:
                assigned = member.acquire_assignment(self._owner_patience_s, self._stop)
                if self._stop.is_set():
                    break
                log.info("group %s: assigned %d partitions", self._job.group, len(assigned))
                if assigned:
                    query.start(assigned)
                self._update(state=endpoint.RUNNING, keeps_state=query.keeps_state)
                if self._await_rebalance(query if assigned else None, member):
                    self._update(state=endpoint.COMPLETED)
                    log.info("group %s: all records are read", self._job.group)
                    return
            except (membership.OwnershipLostError, topic_guard.TopicChangedError) as error:
                log.warning("%s", error)
            except group_znodes.TRANSIENT as error:
                log.warning("group %s: transient error, retrying: %r", self._job.group, error)
                self._stop.wait(_START_PAUSE_S)  # a refusal comes at once
            except (membership.OwnedElsewhereError, membership.CommitError) as error:
                raise JobError(str(error)) from error
            query.finish()
        self._update(state=endpoint.STOPPING)

    def _await_rebalance(self, query: Query | None, member: membership.GroupMembership) -> bool:
        """Wait for a new assignment or a signal (False), or until all records are read (True).

        Once this member has read its own partitions, all records are read if nobody else owns any
        partition, or if others own the rest for longer than a dead driver could.
        """
        patience_ends = time.monotonic() + self._owner_patience_s
        is_read = query is None
        while not self._stop.is_set():
            self._pulse.beat()
            if query is not None and not is_read:
                is_read = query.await_end(_WAIT_SLICE_S)
            elif self._job.trigger_ms is None and (
                not member.others_own or time.monotonic() >= patience_ends
            ):
                return member.is_assignment_current()
            else:
                member.changed.wait(_WAIT_SLICE_S)
            if member.changed.is_set() and not self._keeps_assignment(query, member):
                return False
        return False

    def _keeps_assignment(self, query: Query | None, member: membership.GroupMembership) -> bool:
        try:
            # An idle query runs no batch that would find a topic made anew.
            return member.is_assignment_current() and not (query and query.changed_topic())
        except (*group_znodes.TRANSIENT, ZnodeError) as error:
            # The present assignment holds until ZooKeeper shows another one.
            log.warning(
                "group %s: failed to read the assignment: %r; retrying", self._job.group, error
            )
            member.changed.set()
            self._stop.wait(_WAIT_SLICE_S)  # nothing else waits while there is no query
            return True

    def _on_batch(self, number: int, seconds: float, keeps_state: bool) -> None:
        self._batches += 1
        self._update(
            batch_id=number,
            batch_seconds=seconds,
            committed_ms=wall_ms(),
            keeps_state=keeps_state,
        )

    def _observe(self, spark: SparkSession, query: Query) -> None:
        """Note executors and the signs of life of the batch loop, until the end."""
        while not self._stop.is_set():
            try:
                jobs = spark.sparkContext.statusTracker().getActiveJobsIds()
                self._pulse.observe(Activity(query.state(), bool(jobs), self._batches))
                self._update(
                    executors=executors.registered(spark),
                    batch_running_s=self._pulse.batch_running_s,
                )
                self._update(executors_wanted=self._scale.follow(spark))
            except Exception as error:
                # Spark is stopping, or its JVM is gone, which the main thread notices too.
                log.warning("failed to look at Spark: %s; retrying", sources.first_line(error))
            self._stop.wait(config.REFRESH_INTERVAL_S)

    def _count_rows(self, spark: SparkSession) -> None:
        """Note how many rows the table has, after batches that were committed, until the end."""
        counted = 0
        while not self._stop.is_set():
            batches = self._batches
            if batches != counted:
                try:
                    self._update(table_rows=sinks.count_rows(spark, self._job.sink))
                    counted = batches
                except Exception as error:
                    # The store does not answer, or Spark is stopping.
                    if not self._stop.is_set():
                        log.warning(
                            "failed to count the rows of the table: %s; retrying",
                            sources.first_line(error),
                        )
            self._stop.wait(config.REFRESH_INTERVAL_S)

    def _watch(self, client: DriverClient, member: membership.GroupMembership) -> None:
        """Measure the lag until the end. If a measurement fails, keep the last one and its time."""
        renewal_due = time.monotonic() + _RENEWAL_INTERVAL_S
        while not self._stop.is_set():
            try:
                self._update(measured=self._measure(client, member))
            except (KafkaException, KazooException, KazooTimeoutError) as error:
                log.warning(
                    "group %s: failed to measure lag: %s; retrying",
                    self._job.group,
                    failures.meaning(error),
                )
            if time.monotonic() >= renewal_due and self._renews_offsets(member):
                renewal_due = time.monotonic() + _RENEWAL_INTERVAL_S
            self._stop.wait(config.REFRESH_INTERVAL_S)

    def _renews_offsets(self, member: membership.GroupMembership) -> bool:
        try:
            member.renew_offsets()
        except (KafkaException, KazooException, KazooTimeoutError) as error:
            log.warning(
                "group %s: failed to renew offsets: %s; retrying",
                self._job.group,
                failures.meaning(error),
            )
            return False
        except FencedError as error:
            log.warning("group %s: failed to renew offsets: %s", self._job.group, error)
            member.changed.set()  # the main thread looks, too, and ends
            return False
        return True

    def _measure(self, client: DriverClient, member: membership.GroupMembership) -> lag.Measurement:
        partitions = client.partitions(self._job.topics, self._job.topic_pattern)
        committed = member.committed(partitions)
        former = member.former_commits(committed)
        ends = client.end_offsets(partitions)
        starts = client.start_offsets(lag.without_start(committed, ends, former))
        timestamps = client.timestamps(lag.unread(committed, starts, ends, former))
        members, now_ms = member.member_count(), wall_ms()
        return lag.measure(committed, ends, starts, timestamps, members, now_ms, former)

    def _update(self, **changes: object) -> None:
        with self._status_lock:
            self._status = replace(self._status, **changes)  # type: ignore[arg-type]

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        log.info("received signal %d; stopping", number)
        self._stop.set()


def load(path: str, environment: config.Environment) -> config.Job:
    """Read the job file. Raises JobConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise config.JobConfigError(f"cannot read the job file: {error}") from error
    return config_loading.parse_job(text, environment)


def environment() -> config.Environment:
    """Return the environment of this process. Raises JobConfigError."""
    return config_loading.parse_environment(os.environ, os.getuid(), os.getgid())
