"""Runs the job's streaming query over one assignment after the other.

Between two runs other members may have read the partitions. `start` therefore compares the
checkpoint with the group's offsets. If both agree, Spark resumes by itself and reruns a pending
batch, unless all of it is committed. Otherwise the next batch begins at the group's offsets. It
skips a pending batch then, because its records belong to their new owners. Only a query with state
finishes the batch first, because its state may include that batch. So records are read twice if a
member died between sink and commit and others took over, as with every consumer of a group, and no
record is lost.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from odradek.values import TopicPartition
from odradek_spark import config, membership, offsets, pipeline, sinks, sources
from odradek_spark.broker_client import DriverClient
from odradek_spark.errors import JobError

log = logging.getLogger(__name__)

_LEADER_PATIENCE_S = 120.0
_RETRY_PAUSE_S = 2.0

BatchDone = Callable[[int, float], None]


class PausedError(RuntimeError):
    """A batch was not started because the query is about to end."""


class Query:
    """Calls `batch_done` with the number and seconds of each batch, once it is committed."""

    def __init__(
        self,
        job: config.Job,
        checkpoint: Path,
        spark: SparkSession,
        member: membership.GroupMembership,
        batch_done: BatchDone,
        stop: threading.Event,
    ) -> None:
        self._job = job
        self._checkpoint = checkpoint
        self._spark = spark
        self._member = member
        self._batch_done = batch_done
        self._stop = stop
        self._pausing = threading.Event()
        self._failure: Exception | None = None
        self._running: StreamingQuery | None = None

    def start(self, assigned: Collection[TopicPartition]) -> None:
        """Read the partitions `assigned`, which the member owns, and no others.

        Raises JobError, JobConfigError, OwnershipLostError, CommitError.
        """
        self._pausing.clear()
        self._failure = None
        known = offsets.progress(self._checkpoint)
        committed = self._member.committed(assigned)
        stateful = offsets.has_state(self._checkpoint)
        if known is not None and offsets.can_resume(known, assigned, committed, stateful):
            # The member must know the offsets, to detect that others changed them.
            starts = offsets.resume_offsets(known, assigned, committed)
            self._member.commit(starts, config.COMMIT_DEADLINE_S)
            self._run(known.ends)
            return
        if known is not None and known.pending and stateful:
            self._finish_pending(known, assigned, committed)
            if self._stop.is_set():
                return  # the batch is still running, and `finish` ends it
            known = offsets.progress(self._checkpoint)
            committed = self._member.committed(assigned)
        starts = offsets.resume_offsets(known, assigned, committed)
        starts |= self._initial_offsets(set(assigned) - starts.keys())
        # The next owner, or this driver after a crash, finds an offset for every partition.
        self._member.commit(starts, config.COMMIT_DEADLINE_S)
        offsets.rewrite_start(self._checkpoint, known, starts)
        self._run(starts)

    def await_end(self, seconds: int) -> bool:
        """Wait for `seconds`, and return whether all records are read.

        Raises JobError or OwnershipLostError.
        """
        assert self._running is not None
        try:
            return bool(self._running.awaitTermination(seconds))
        except StreamingQueryException as error:
            if isinstance(self._failure, membership.OwnershipLostError):
                raise self._failure from error
            reason = sources.first_line(self._failure or error)
            raise JobError(f"the query failed: {reason}") from error

    def finish(self) -> None:
        """End the query. A running batch may finish within STOP_GRACE_S; no other batch starts.

        The next `start` reruns or skips a batch that takes longer.
        """
        query, self._running = self._running, None
        if query is None:
            return
        self._pausing.set()
        deadline = time.monotonic() + config.STOP_GRACE_S
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(0.1)
        query.stop()

    def _finish_pending(
        self,
        known: offsets.CheckpointProgress,
        assigned: Collection[TopicPartition],
        committed: Mapping[TopicPartition, int],
    ) -> None:
        """Run the pending batch, and commit the partitions that nobody else has read since."""
        untouched = {
            partition
            for partition in assigned
            if committed.get(partition) in (None, known.starts.get(partition))
        }
        log.info("group %s: finishing pending batch %d first", self._job.group, known.batch_id)
        self._run(known.ends, once=True, committing=untouched)
        while not self._stop.is_set() and not self.await_end(1):
            pass

    def _initial_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the initial offsets of partitions without a committed offset.

        If the group has offsets in other partitions of the topic, the partition is new: read all
        its records.
        """
        if not partitions:
            return {}
        new = {part for part in partitions if self._member.has_offsets(part.topic)}
        start: str | int = self._job.pipeline.starting_offsets
        if start not in ("earliest", "latest", "group"):
            start = config.parse_timestamp_ms(str(start))
        client = DriverClient(self._job.bootstrap, f"odradek-start-{self._job.group}")
        deadline = time.monotonic() + _LEADER_PATIENCE_S
        try:
            while True:
                found = client.initial_offsets(new, "earliest")
                found |= client.initial_offsets(set(partitions) - new, start)
                starts = {part: offset for part, offset in found.items() if offset is not None}
                missing = sorted(set(partitions) - starts.keys())
                if not missing:
                    return starts
                if time.monotonic() >= deadline or self._stop.is_set():
                    raise JobError(
                        f"failed to find the initial offset of partition {missing[0]}: no leader"
                    )
                self._stop.wait(_RETRY_PAUSE_S)
        except KafkaException as error:
            raise JobError(f"failed to find the initial offsets: {error.args[0]}") from error
        finally:
            client.close()

    def _run(
        self,
        starts: Mapping[TopicPartition, int],
        *,
        once: bool = False,
        committing: Collection[TopicPartition] | None = None,
    ) -> None:
        result = self._build(starts)
        mode = pipeline.output_mode(result, self._job.pipeline.output_mode, self._job.sink)
        sinks.check(result, self._job.sink)
        write: sinks.WriteBatch | None = None

        def run_batch(rows: DataFrame, batch_id: int) -> None:
            nonlocal write
            began = time.monotonic()
            try:
                if self._pausing.is_set():
                    raise PausedError(f"batch {batch_id} was not started: the query is ending")
                if write is None:
                    # Spark wrote the query's id before the first batch.
                    identity = offsets.query_id(self._checkpoint)
                    context = sinks.SinkContext(mode, identity, self._job.bootstrap)
                    write = sinks.open_sink(self._job.sink, context)
                write(rows, batch_id)
                ends = offsets.batch_ends(self._checkpoint, batch_id)
                if committing is not None:
                    ends = {part: end for part, end in ends.items() if part in committing}
                self._member.commit(ends, config.COMMIT_DEADLINE_S)
            except Exception as error:
                # Spark wraps this error in pages of stack traces, so keep the reason itself.
                self._failure = self._failure or error
                raise
            self._batch_done(batch_id, time.monotonic() - began)

        writer = (
            result.writeStream.outputMode(mode)
            .queryName(self._job.group)
            .option("checkpointLocation", f"file://{self._checkpoint}")
            .foreachBatch(run_batch)
        )
        if once:
            writer = writer.trigger(once=True)
        elif self._job.trigger_ms is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._job.trigger_ms} milliseconds")
        log.info(
            "group %s: starting the query over %d partitions in output mode %s",
            self._job.group,
            len(starts),
            mode,
        )
        self._running = writer.start()

    def _build(self, starts: Mapping[TopicPartition, int]) -> DataFrame:
        topics = self._member.topics
        schema = sources.schema_of(self._spark, self._job, topics, self._checkpoint)
        raw = sources.read_stream(self._spark, sources.source_options(self._job.bootstrap, starts))
        records = sources.parse_records(raw, self._job.pipeline.format, schema)
        return pipeline.transform(records, self._job, topics)
