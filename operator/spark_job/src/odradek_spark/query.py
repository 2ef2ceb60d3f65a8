"""The job's query, over one share of the group's partitions after the other.

Between two runs of the query the group's share may have changed hands. `start` therefore compares
what the checkpoint knows with the group's offsets. Where both agree, Spark goes on by itself, and
repeats a batch that it did not finish, unless all of it is committed. Otherwise the next batch
begins at the group's offsets. A batch that was planned before and not finished is passed over then,
as its records belong to whoever owns them now; only a query with state runs it first, because its
state may be as of that batch. So records are read twice where a member died between sink and commit
and others took over, as with every consumer of a group, and never left out.
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
    """A batch was not begun because the query is about to end."""


class Query:
    """`batch_done` is told each batch's number and the seconds it took, once it is committed."""

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

    def start(self, share: Collection[TopicPartition]) -> None:
        """Read `share`, which the member owns, and nothing else.

        Raises JobError, JobConfigError, OwnershipLostError, CommitError.
        """
        self._pausing.clear()
        self._failure = None
        known = offsets.progress(self._checkpoint)
        committed = self._member.committed(share)
        stateful = offsets.has_state(self._checkpoint)
        if known is not None and offsets.can_resume(known, share, committed, stateful):
            # The member has to know the offsets, to notice that others moved them.
            places = offsets.resume_offsets(known, share, committed)
            self._member.commit(places, config.COMMIT_DEADLINE_S)
            self._run(known.ends)
            return
        if known is not None and known.pending and stateful:
            self._repeat(known, share, committed)
            if self._stop.is_set():
                return  # the batch is under way, and `finish` ends it
            known = offsets.progress(self._checkpoint)
            committed = self._member.committed(share)
        places = offsets.resume_offsets(known, share, committed)
        places |= self._beginnings(set(share) - places.keys())
        # Whoever takes a partition over, this driver after a crash included, finds it begun.
        self._member.commit(places, config.COMMIT_DEADLINE_S)
        offsets.rewrite_start(self._checkpoint, known, places)
        self._run(places)

    def await_end(self, seconds: int) -> bool:
        """Wait a little; True once everything is read. Raises JobError or OwnershipLostError."""
        assert self._running is not None
        try:
            return bool(self._running.awaitTermination(seconds))
        except StreamingQueryException as error:
            if isinstance(self._failure, membership.OwnershipLostError):
                raise self._failure from error
            reason = sources.first_line(self._failure or error)
            raise JobError(f"the query failed: {reason}") from error

    def finish(self) -> None:
        """End the query: a batch under way may finish, and no other begins.

        One that takes longer is stopped, and is run again or passed over by the next `start`.
        """
        query, self._running = self._running, None
        if query is None:
            return
        self._pausing.set()
        deadline = time.monotonic() + config.STOP_GRACE_S
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(0.1)
        query.stop()

    def _repeat(
        self,
        known: offsets.CheckpointProgress,
        share: Collection[TopicPartition],
        committed: Mapping[TopicPartition, int],
    ) -> None:
        """Finish a planned batch, committing what nobody else has read since."""
        untouched = {
            partition
            for partition in share
            if committed.get(partition) in (None, known.done.get(partition))
        }
        log.info("group %s: batch %d is finished first", self._job.group, known.batch_id)
        self._run(known.ends, once=True, committing=untouched)
        while not self._stop.is_set() and not self.await_end(1):
            pass

    def _beginnings(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where to begin partitions of which the group has no offset yet.

        In a topic that the group reads already a partition without offset is a new one, of which no
        record may be left out.
        """
        if not partitions:
            return {}
        new = {part for part in partitions if self._member.has_offsets(part.topic)}
        start: str | int = self._job.pipeline.starting_offsets
        if start not in ("earliest", "latest", "group"):
            start = config.parse_timestamp_ms(str(start))
        brokers = DriverClient(self._job.bootstrap, f"odradek-start-{self._job.group}")
        deadline = time.monotonic() + _LEADER_PATIENCE_S
        try:
            while True:
                found = brokers.begins(new, "earliest")
                found |= brokers.begins(set(partitions) - new, start)
                places = {part: offset for part, offset in found.items() if offset is not None}
                missing = sorted(set(partitions) - places.keys())
                if not missing:
                    return places
                if time.monotonic() >= deadline or self._stop.is_set():
                    raise JobError(f"no leader tells where partition {missing[0]} begins")
                self._stop.wait(_RETRY_PAUSE_S)
        except KafkaException as error:
            raise JobError(f"the brokers do not tell where to begin: {error.args[0]}") from error
        finally:
            brokers.close()

    def _run(
        self,
        places: Mapping[TopicPartition, int],
        *,
        once: bool = False,
        committing: Collection[TopicPartition] | None = None,
    ) -> None:
        result = self._build(places)
        mode = pipeline.output_mode(result, self._job.pipeline.output_mode, self._job.sink)
        sinks.check(result, self._job.sink)
        write: sinks.WriteBatch | None = None

        def run_batch(rows: DataFrame, batch_id: int) -> None:
            nonlocal write
            began = time.monotonic()
            try:
                if self._pausing.is_set():
                    raise PausedError(f"batch {batch_id} is left to the next run")
                if write is None:
                    # Spark has written the query's id by now, before the first batch.
                    identity = offsets.query_id(self._checkpoint)
                    context = sinks.SinkContext(mode, identity, self._job.bootstrap)
                    write = sinks.open_sink(self._job.sink, context)
                write(rows, batch_id)
                ends = offsets.batch_ends(self._checkpoint, batch_id)
                if committing is not None:
                    ends = {part: end for part, end in ends.items() if part in committing}
                self._member.commit(ends, config.COMMIT_DEADLINE_S)
            except Exception as error:
                # Spark wraps what happens here in pages of stack; the reason itself is kept aside.
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
            "group %s: the query reads %d partitions in output mode %s",
            self._job.group,
            len(places),
            mode,
        )
        self._running = writer.start()

    def _build(self, places: Mapping[TopicPartition, int]) -> DataFrame:
        topics = self._member.topics
        schema = sources.schema_of(self._spark, self._job, topics, self._checkpoint)
        raw = sources.read_stream(self._spark, sources.source_options(self._job.bootstrap, places))
        records = sources.parse_records(raw, self._job.pipeline.format, schema)
        return pipeline.transform(records, self._job, topics)
