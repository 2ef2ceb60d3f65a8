"""Runs the job's streaming query over one assignment after the other.

Between two runs other members may have read the partitions. `start` therefore compares the
checkpoint with the group's offsets. If both agree, Spark resumes by itself and reruns a pending
batch, unless all of it is committed. Otherwise the next batch begins at the group's offsets. It
skips a pending batch then, because its records belong to their new owners. It finishes the batch
first if nobody else read its partitions, because the sink may have it, and if the query has state,
because that may include the batch. Of a batch that it skips, and that the sink has, it commits the
partitions that are left to it. So records are read twice if a
member died between sink and commit and others took over, as with every consumer of a group, and no
record is lost.

Before each start and each batch `topic_guard` compares the topics and their logs with the group's
offsets. After a reset because of a topic made anew, the checkpoint's offsets of that topic and a
pending batch are forgotten first, so that a crash at any point leaves nothing of the former topic.
If the whole group was deleted, its checkpoint is, too: the group starts where a new one does.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from confluent_kafka import KafkaException
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from odradek.values import TopicPartition
from odradek_spark import (
    config,
    config_loading,
    group_znodes,
    landing,
    membership,
    migration,
    offsets,
    pipeline,
    sinks,
    sources,
    topic_guard,
)
from odradek_spark.broker_client import DriverClient
from odradek_spark.errors import FencedError, JobError, JobStalledError
from odradek_spark.pulse import QueryState
from odradek_spark.sinks.parquet_store import StorePathError
from odradek_spark.storage import EmptyFolder, StorageFolder

log = logging.getLogger(__name__)

_LEADER_PATIENCE_S = 120.0
_RETRY_PAUSE_S = 2.0

BatchDone = Callable[[int, float, bool], None]


class PausedError(RuntimeError):
    """A batch was not started because the query is about to end."""


class _MemberFence:
    """The right to write batches of these partitions, which the member owns."""

    def __init__(self, member: membership.GroupMembership) -> None:
        self._member = member
        self.epoch = member.epoch
        self.partitions: frozenset[TopicPartition] = frozenset()

    def require(self) -> None:
        self._member.require_owned(self.partitions, config.COMMIT_DEADLINE_S)


class Query:
    """Calls `batch_done` with number and seconds of each batch once it is committed, and with
    whether the checkpoint has state. `keeps_state` is that at the last start; None: before it.

    Calls `beat` every second while `start` waits for a batch.
    """

    def __init__(
        self,
        job: config.Job,
        checkpoint: StorageFolder,
        spark: SparkSession,
        member: membership.GroupMembership,
        client: DriverClient,
        batch_done: BatchDone,
        stop: threading.Event,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._job = job
        self._checkpoint = checkpoint
        self._spark = spark
        self._member = member
        self._client = client
        self._guard = topic_guard.TopicGuard(member, client, stop)
        self._batch_done = batch_done
        self._stop = stop
        self._beat = beat
        self._pausing = threading.Event()
        self._failure: Exception | None = None
        self._running: StreamingQuery | None = None
        self._is_recorded = self._is_noted = False
        self.keeps_state: bool | None = None

    def start(self, assigned: Collection[TopicPartition]) -> None:
        """Read the partitions `assigned`, which the member owns, and no others.

        Raises JobError, JobConfigError, JobStalledError, OwnershipLostError, CommitError,
        TopicChangedError.
        """
        self._pausing.clear()
        self._failure, self._is_noted = None, False
        known = offsets.progress(self._checkpoint)
        if known is not None and self._guard.is_forgotten({one.topic for one in known.ends}):
            log.warning(
                "group %s: its offsets were deleted; deleting its checkpoint", self._job.group
            )
            offsets.discard(self._checkpoint)
            known = None
        known = self._migrate(known, assigned)
        admission = self._admit(known, assigned)
        committed = admission.committed
        stateful = self.keeps_state = offsets.has_state(self._checkpoint)
        if known is not None and admission.lost:
            drop = stateful and not self._was_executed(known, committed)
            known = offsets.forget(self._checkpoint, known, admission.lost, drop)
        self._guard.record()
        self._leave_numbers_of_the_sink(known)
        if known is not None and offsets.can_resume(known, assigned, committed, stateful):
            # The member must know the offsets, to detect that others changed them.
            starts = offsets.resume_offsets(known, assigned, committed)
            self._member.commit(starts, config.COMMIT_DEADLINE_S)
            self._run(known.ends)
            return
        if known is not None and (
            (known.pending and stateful) or offsets.is_own_pending(known, assigned, committed)
        ):
            self._finish_pending(known, assigned, committed)
            if self._stop.is_set():
                return  # the batch is still running, and `finish` ends it
            known = offsets.progress(self._checkpoint)
            committed = self._member.committed(assigned)
        starts = offsets.resume_offsets(known, assigned, committed)
        starts |= self._initial_offsets(set(assigned) - starts.keys(), admission.known)
        # The next owner, or this driver after a crash, finds an offset for every partition.
        self._member.commit(starts, config.COMMIT_DEADLINE_S)
        offsets.rewrite_start(self._checkpoint, known, starts)
        self._run(starts)

    def await_end(self, seconds: int) -> bool:
        """Wait for `seconds`, and return whether all records are read.

        Raises JobError, JobConfigError, JobStalledError, OwnershipLostError or TopicChangedError.
        """
        assert self._running is not None
        try:
            is_read = bool(self._running.awaitTermination(seconds))
        except StreamingQueryException as error:
            if isinstance(
                self._failure,
                membership.OwnershipLostError
                | topic_guard.TopicChangedError
                | FencedError
                | config.JobConfigError,
            ):
                raise self._failure from error
            reason = sources.first_line(self._failure or error)
            refused = migration.refused_by_spark(f"{self._failure}\n{error}")
            if refused is not None:
                raise refused from error
            if sources.has_unreadable_time(f"{self._failure}\n{error}"):
                raise JobError(f"the query failed: {sources.UNREADABLE_TIME}") from error
            try:
                # Spark's words for offsets that are gone help nobody.
                self._guard.require_unchanged(self._batch_starts(), patience_s=0)
            except group_znodes.TRANSIENT as unknown:
                log.warning("failed to compare the topics: %r", unknown)
            if _is_mistake(self._failure or error):
                raise config.JobConfigError(f"the query: {reason}") from error
            raise JobError(f"the query failed: {reason}") from error
        if is_read:
            self._guard.require_unchanged({}, config.COMMIT_DEADLINE_S)
        return is_read

    def changed_topic(self) -> str | None:
        """Return which topic was deleted or made anew since the start, and None if there is none.

        Raises TRANSIENT errors and ZnodeError.
        """
        return self._guard.changed()

    def state(self) -> QueryState:
        """Return what the query does now; any thread may ask."""
        query = self._running
        if query is None:
            return QueryState.NONE
        if not query.isActive:
            return QueryState.ENDED
        status = query.status
        # A batch without new records moves the watermark (MicroBatchExecution).
        batch = status["isDataAvailable"] or status["message"].startswith("No new data but")
        return QueryState.BUSY if status["isTriggerActive"] and batch else QueryState.IDLE

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

    def _migrate(
        self, known: offsets.CheckpointProgress | None, assigned: Collection[TopicPartition]
    ) -> offsets.CheckpointProgress | None:
        """Begin a new checkpoint where the job wants one, or its query needs one.

        Raises JobStalledError, and JobConfigError for a query that cannot be: it deletes nothing.
        """
        discards = migration.wants_new_checkpoint(self._checkpoint, self._job)
        self._is_recorded = migration.is_recorded(self._checkpoint, self._job)
        is_another = not self._is_recorded and not migration.is_unknown(self._checkpoint)
        if not discards and is_another and known is not None:
            # The plan does not depend on the offsets.
            result = self._build(dict.fromkeys(assigned, 0), self._checkpoint)
            migration.require_same_plan(self._checkpoint, self._job, result)
            discards = migration.needs_new_checkpoint(self._checkpoint, result)
        if not discards:
            return known
        log.warning("group %s: another query: beginning a new checkpoint", self._job.group)
        if known is not None:
            result = self._build(dict.fromkeys(assigned, 0), EmptyFolder())
            pipeline.output_mode(result, self._job.pipeline.output_mode, self._job.sink)
            self._commit_executed(known, assigned)
        migration.begin(self._checkpoint, self._job)
        return None

    def _note(self, result: DataFrame) -> None:
        """Note after the first batch of a start whose the checkpoint is, and whether with state."""
        if self._is_noted:
            return
        if not self._is_recorded:
            migration.record(self._checkpoint, self._job, result)
        self.keeps_state = offsets.has_state(self._checkpoint)
        self._is_noted = True

    def _commit_executed(
        self, known: offsets.CheckpointProgress, assigned: Collection[TopicPartition]
    ) -> bool:
        """Commit a batch that is in the sink, whose driver died before it could.

        Return whether there was one.
        """
        if self._checkpoint.read("metadata") is None:
            # A driver that died while it deleted the checkpoint has done so.
            return False
        ends = offsets.uncommitted_ends(known, assigned, self._member.committed(assigned))
        if not ends or not self._holds(known.batch_id):
            return False
        self._member.commit(ends, config.COMMIT_DEADLINE_S)
        return True

    def _admit(
        self, known: offsets.CheckpointProgress | None, assigned: Collection[TopicPartition]
    ) -> topic_guard.AdmittedStart:
        """Return what the start may rely on, as `TopicGuard.admit` does.

        A batch that is in the sink is committed first where it cannot run again: its records are
        gone, or some of its partitions are not assigned any more.
        """
        own = offsets.own_offsets(known)
        try:
            admission = self._guard.admit(assigned, own)
        except JobStalledError as error:
            is_truncated = error.reason == topic_guard.DATA_TRUNCATED
            if known is None or not is_truncated or not self._commit_executed(known, assigned):
                raise
            return self._guard.admit(assigned, own)
        # Of a topic made anew there was a reset, whose offsets count as they are.
        topics = {part.topic for part in assigned}
        is_reset = any(part.topic in topics for part in admission.lost)
        if known is None or set(known.ends) <= set(assigned) or is_reset:
            return admission
        if not self._commit_executed(known, assigned):
            return admission
        return replace(admission, committed=self._member.committed(assigned))

    def _batch_starts(self) -> Mapping[TopicPartition, int]:
        """Return where the batch begins that Spark planned last; empty if it is finished."""
        known = offsets.progress(self._checkpoint)
        return {} if known is None else known.starts

    def _was_executed(
        self, known: offsets.CheckpointProgress, committed: Mapping[TopicPartition, int]
    ) -> bool:
        """Return whether a pending batch is known to be in the sink, and the state with it."""
        if committed == known.ends:
            return True
        return self._holds(known.batch_id)

    def _holds(self, batch_id: int, *, or_later: bool = False) -> bool:
        identity = offsets.query_id(self._checkpoint)
        job = self._job
        try:
            return sinks.holds(job.sink, job.group, identity, batch_id, or_later=or_later)
        except (Py4JJavaError, PySparkException) as error:
            raise JobError(f"the sink does not answer: {sources.first_line(error)}") from error

    def _leave_numbers_of_the_sink(self, known: offsets.CheckpointProgress | None) -> None:
        """Give the query a new id if the sink has batches that the checkpoint is yet to plan.

        The checkpoint lost them (a machine without power, a backup), or another one wrote them.
        The sink would take the next batches for copies, and drop their records.
        """
        if self._checkpoint.read("metadata") is None:
            return
        planned = 0 if known is None else known.batch_id + 1
        if self._holds(planned, or_later=True):
            log.warning(
                "group %s: the sink has batch %d or later, which is not in the checkpoint; "
                "its batches count as those of a new query from now on",
                self._job.group,
                planned,
            )
            offsets.renew_query_id(self._checkpoint)

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
            self._beat()

    def _initial_offsets(
        self, partitions: Collection[TopicPartition], known: Collection[str]
    ) -> dict[TopicPartition, int]:
        """Return the initial offsets of partitions without a committed offset.

        If the topic is one of `known`, or if the group has offsets in other partitions of it, the
        partition is new: read all its records.
        """
        if not partitions:
            return {}
        # Once per topic: each look asks for the offsets of all its partitions.
        read = {
            topic
            for topic in {part.topic for part in partitions}
            if topic in known or self._member.has_offsets(topic)
        }
        new = {part for part in partitions if part.topic in read}
        start: str | int = self._job.pipeline.starting_offsets
        if start not in ("earliest", "latest", "group"):
            start = config_loading.parse_timestamp_ms(str(start))
        deadline = time.monotonic() + _LEADER_PATIENCE_S
        try:
            while True:
                found = self._client.initial_offsets(new, "earliest")
                found |= self._client.initial_offsets(set(partitions) - new, start)
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

    def _run(
        self,
        starts: Mapping[TopicPartition, int],
        *,
        once: bool = False,
        committing: Collection[TopicPartition] | None = None,
    ) -> None:
        try:
            self._start(starts, once, committing)
        except AnalysisException as error:
            raise config.JobConfigError(f"the query: {sources.first_line(error)}") from error

    def _start(
        self,
        starts: Mapping[TopicPartition, int],
        once: bool,
        committing: Collection[TopicPartition] | None,
    ) -> None:
        result = self._build(starts, self._checkpoint)
        mode = pipeline.output_mode(result, self._job.pipeline.output_mode, self._job.sink)
        if not landing.infers(self._job):
            sinks.check(result, self._job.sink, mode)
        write: sinks.WriteBatch | None = None
        fence = _MemberFence(self._member)

        def run_batch(rows: DataFrame, batch_id: int) -> None:
            nonlocal write
            began = time.monotonic()
            try:
                if self._pausing.is_set():
                    raise PausedError(f"batch {batch_id} was not started: the query is ending")
                ends = offsets.batch_ends(self._checkpoint, batch_id)
                if committing is not None:
                    ends = {part: end for part, end in ends.items() if part in committing}
                fence.partitions = frozenset(ends)
                fence.require()
                self._guard.require_unchanged(self._batch_starts(), config.COMMIT_DEADLINE_S)
                if write is None:
                    # Spark wrote the query's id before the first batch.
                    identity = offsets.query_id(self._checkpoint)
                    context = sinks.SinkContext(
                        mode, identity, self._job.group, self._job.brokers, fence
                    )
                    write = sinks.open_sink(self._job.sink, context)
                if landing.infers(self._job):
                    rows = landing.rows_of(rows, self._job, mode, self._checkpoint)
                write(rows, batch_id)
                self._member.commit(ends, config.COMMIT_DEADLINE_S)
                self._note(result)
            except Exception as error:
                # Spark wraps this error in pages of stack traces, so keep the reason itself.
                self._failure = self._failure or error
                raise
            self._batch_done(batch_id, time.monotonic() - began, bool(self.keeps_state))

        writer = (
            result.writeStream.outputMode(mode)
            .queryName(self._job.group)
            .option("checkpointLocation", self._checkpoint.url)
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

    def _build(self, starts: Mapping[TopicPartition, int], checkpoint: StorageFolder) -> DataFrame:
        topics, format_ = self._member.topics, self._job.pipeline.format
        options = sources.source_options(self._job.brokers, starts, format_)
        raw = sources.read_stream(self._spark, options)
        if landing.infers(self._job):
            return raw
        schema = sources.schema_of(self._spark, self._job, topics, checkpoint)
        url = self._job.pipeline.registry
        records = sources.parse_records(raw, format_, schema, url)
        return landing.with_day(pipeline.transform(records, self._job, topics), self._job)


def _is_mistake(error: BaseException | None) -> bool:
    """Return whether a batch failed because of how the job is written.

    Some columns are refused only when they are written, and some plans when the first batch runs.
    """
    if isinstance(error, AnalysisException | StorePathError):
        return True
    return isinstance(error, CapturedException) and _is_mistake(error._cause)
