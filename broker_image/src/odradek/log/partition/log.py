"""The log of one partition: the rules of appending, truncation, retention and flushing.

An append checks the header and the checksum, asks the producer state, patches offset and epoch,
makes one write, and publishes. It reads records only where it must: for the keys of a compacted
topic, for a topic that demands another codec or an old format, and for the times of a batch whose
header cannot be right about them. A failed write is truncated away. A failed disk takes the log
offline, and nothing on it is retried.

A log has a list of segments (`segments`), a reader (`reading`) and a failure state (`failure`).
Appends under its lock, truncation and deletion of old segments are functions of `appending`,
`truncation` and `old_segments`. Methods block and may be called from any thread. Those that can
take long (`flush`, `truncate_to`, `reader.verify`) belong into `files.DiskThreads`. An append makes
nothing durable: where `flush.messages` asks for it, `flush_required` says so, and the caller of the
append flushes before it acknowledges.
"""

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from odradek.clock import wall_ms
from odradek.log.partition import appending, old_segments, replay, retention, truncation, validation
from odradek.log.partition.appending import AppendInfo
from odradek.log.partition.epochs import EpochCache
from odradek.log.partition.failure import LogFailure
from odradek.log.partition.flushing import Flusher
from odradek.log.partition.producers import (
    MOST_PRODUCERS,
    FormerProducers,
    ProducerNow,
    ProducerStates,
)
from odradek.log.partition.reading import LogReader
from odradek.log.partition.segments import SegmentList
from odradek.log.partition.start_offset import StartOffset
from odradek.log.partition.validation import Prepared
from odradek.log.records import incoming
from odradek.log.records.batch import Origin
from odradek.log.segment import files
from odradek.log.segment.segment import Segment, SegmentSettings
from odradek.properties import LONG_MAX
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.regions import Buffer
from odradek.topic_config import TopicConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """Clocks, randomness, bounds, and callbacks."""

    now_ms: Callable[[], int] = wall_ms
    monotonic: Callable[[], float] = time.monotonic
    chance: random.Random = field(default_factory=random.Random)
    producer_expiry_ms: int = 7 * 24 * 3_600_000
    most_producers: int = MOST_PRODUCERS
    verifies_transactions: Callable[[], bool] = lambda: False
    on_failure: Callable[["Log", OSError], None] = lambda log, error: None
    on_truncate: Callable[["Log"], None] = lambda log: None
    # Called in any thread, with locks of the log held.
    on_start_raised: Callable[["Log"], None] = lambda log: None
    request_housekeeping: Callable[["Log"], None] = lambda log: None
    # Called in any thread while a log is recovered, after each batch.
    is_stopping: Callable[[], bool] = lambda: False


class Log:
    """The log of one partition. `recovery.open_log` makes it from its files.

    Invariants, besides those that `SegmentList` and `EpochCache` assert:

    - An append raises the log end offset; only truncation lowers it.
    - high watermark <= log end offset. Every way to set it and every truncation sees to that. It is
      asserted where it is set, without the append lock, but not beside a truncation.
    - log start offset <= high watermark, but not after a start over above the high watermark
      (`truncate_fully_and_start_at`, or an overlapping batch), until replication sets it next.
    - The leader epochs of the cache rise with their offsets, and an append never adds a lower one.
    """

    def __init__(
        self,
        directory: str,
        topic: str,
        partition: int,
        config: TopicConfig,
        environment: LogEnvironment,
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.config = config
        self._name = f"{topic}-{partition}"
        # A copy in another log directory, which is to replace the current log (KIP-113).
        self.is_future = False
        # While a copy is made, the original keeps the records that the copy already has.
        self.compaction_paused = False
        self.environment = environment
        self.failures = LogFailure(self._name, lambda error: environment.on_failure(self, error))
        self.segments = SegmentList(directory, self.failures)
        self.start = StartOffset(self.segments)
        self.reader = LogReader(self.segments, self.failures)
        self.epochs = EpochCache(directory)
        self.producers = ProducerStates(
            environment.producer_expiry_ms,
            environment.most_producers,
            environment.verifies_transactions,
        )
        self._producers_forgotten = 0
        self._high_watermark = 0
        self._last_roll_by_time = -retention.ROLL_BY_TIME_INTERVAL_S
        self._append_lock = self.segments.append_lock
        self._flusher = Flusher(self.segments, self.epochs, self.failures, environment.monotonic)

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    def install(
        self, segments: Sequence[Segment], start: int, end: int, recovery_point: int
    ) -> None:
        """Take over the segments and offsets that recovery found."""
        self.segments.install(segments, start, end, recovery_point)
        self._high_watermark = start
        self.start.note_checkpointed(start)

    # -- offsets and state ----------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """First offset that readers may ask for."""
        return self.segments.log_start_offset

    @property
    def durable_log_start(self) -> int:
        """Log start offset that survives a crash. Replication reports this one."""
        return self.start.durable

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
        return self.segments.log_end_offset

    @property
    def recovery_point(self) -> int:
        """First offset that may not be on the disk itself yet."""
        return self.segments.recovery_point

    @property
    def high_watermark(self) -> int:
        """First offset that is not committed, as replication says; retention and compaction stop
        there.
        """
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        segments = self.segments
        start, end = segments.log_start_offset, segments.log_end_offset
        if offset > end:
            offset = end
        self._high_watermark = offset = offset if offset > start else start
        if self.producers.transactions.are_undecided:
            self.producers.transactions.forget_replicated(offset)
        assert offset <= end, f"{self._name}: log start above log end"

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset up to which readers of committed records may read: every transaction
        below it is decided.
        """
        producers = self.producers
        # Batches that another thread has written may still have to be noted.
        stable = min(high_watermark, producers.end_offset)
        transactions = producers.transactions
        if transactions.are_undecided:
            stable = transactions.last_stable_offset(stable)
        return max(stable, self.segments.log_start_offset)

    @property
    def latest_epoch(self) -> int:
        """Newest leader epoch that wrote here, -1 when none."""
        return self.epochs.latest

    @property
    def failure(self) -> OSError | None:
        """The error that took the log offline."""
        return self.failures.error

    @property
    def closed(self) -> bool:
        """True once the files are let go of."""
        return self.failures.closed

    def fail(self, error: OSError) -> None:
        """Take the log offline because another log of its directory failed."""
        self.failures.take_offline(error)

    # -- appending ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Hold off every change and flush; yield False, and hold off nothing, while a flush is
        under way.
        """
        if not self._flusher.lock.acquire(blocking=False):
            yield False
            return
        try:
            with self._append_lock:
                yield True
        finally:
            self._flusher.lock.release()

    def prepare(self, data: Buffer, origin: Origin) -> Prepared:
        """Check one batch, and convert it to the codec and message format of the topic.

        Changes nothing. Raises KafkaError.
        """
        now_ms = self.environment.now_ms()
        prepared = validation.prepare(data, origin, self.config, now_ms, self._name, at_once=False)
        assert prepared is not None
        return prepared

    def append_at_once(self, data: Buffer, leader_epoch: int, origin: Origin) -> AppendInfo | None:
        """As `append_as_leader`, but return None, and change nothing, where `prepare` may take
        seconds: use a thread for it then.
        """
        now_ms = self.environment.now_ms()
        prepared = validation.prepare(data, origin, self.config, now_ms, self._name, at_once=True)
        if prepared is None:
            return None
        return appending.append_prepared(self, prepared, leader_epoch, origin, now_ms)

    def append_as_leader(
        self, data: Buffer | Prepared, leader_epoch: int, *, origin: Origin = Origin.CLIENT
    ) -> AppendInfo:
        """Check one batch, unless `prepare` has, give it the next offsets and write it.

        Raises KafkaError with the code of the rule that was broken, KAFKA_STORAGE_ERROR when the
        disk failed, and VerificationNeededError as `ProducerStates.check`.
        """
        prepared = data if isinstance(data, tuple) else self.prepare(data, origin)
        now_ms = self.environment.now_ms()
        return appending.append_prepared(self, prepared, leader_epoch, origin, now_ms)

    def append_as_follower(self, data: Buffer) -> AppendInfo:
        """Write batches exactly as the leader sent them, without a last one that is cut off.

        Raises KafkaError CORRUPT_MESSAGE for damaged bytes (nothing is written then),
        UnexpectedOffsetError when the batches do not continue this log, KAFKA_STORAGE_ERROR when
        the disk failed.
        """
        batches = incoming.checked(data)
        view = memoryview(data)
        now_ms = self.environment.now_ms()
        segments = self.segments
        with self._append_lock, self.failures.guard():
            start, end = self.start.to_checkpoint, segments.log_end_offset
            size = 0
            if not batches:
                return AppendInfo(end, end - 1, -1, start, 0, False)
            if self.producers.end_offset != end:
                self.reload_producers()  # an append broke off behind its write
            first = batches[0][1]
            if incoming.have_gaps(batches, end):
                # Compaction removed batches, perhaps under a former cleanup.policy, and the leader
                # may know who wrote them.
                self.producers.forgetful = True
            try:
                if first.base_offset < end:
                    appending.accept_overlap(self, first)
                for run in incoming.runs(batches, self.config.segment_bytes):
                    begin, last = run[0][0], run[-1]
                    run_end = last[0] + last[1].size
                    appending.write_batches(self, view[begin:run_end], run, now_ms)
                    size += run_end - begin
            finally:
                if self.start.overlapped:
                    appending.restore_log_start(self)
            end = segments.log_end_offset
            return AppendInfo(first.base_offset, end - 1, -1, start, size, False)

    # -- rolling --------------------------------------------------------------------------------

    def may_roll_by_time(self) -> bool:
        """Return whether the last roll by time is long enough ago; if so, this is the last one."""
        now = self.environment.monotonic()
        if now - self._last_roll_by_time < retention.ROLL_BY_TIME_INTERVAL_S:
            return False
        self._last_roll_by_time = now
        return True

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a new segment at `base_offset`, by default the log end offset."""
        with self._append_lock, self.failures.guard():
            base = max(self.log_end_offset, base_offset or 0)
            self.segments.active.become_inactive()
            self.producers.write_snapshot(self.directory)
            fresh = Segment(self.directory, base, self.segment_settings())
            self.segments.roll_to(fresh, self.preallocated_bytes)
            self.request_housekeeping()

    @property
    def preallocated_bytes(self) -> int:
        """Initial size of a log file that will be written to."""
        return self.config.segment_bytes if self.config.preallocate else 0

    def segment_settings(self) -> SegmentSettings:
        """Return the settings of a segment that is made now."""
        config = self.config
        jitter = min(config.segment_jitter_ms, config.longest_segment_ms)
        return SegmentSettings(
            config.index_interval_bytes,
            config.segment_index_bytes,
            self.environment.now_ms(),
            self.environment.chance.randrange(jitter) if jitter > 0 else 0,
        )

    # -- truncation -----------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Drop everything from `offset` on; return False when the log already ended there.

        A leader epoch without records goes in any case: another leader may have written there.
        """
        return truncation.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next batch gets `offset`."""
        with self._append_lock:
            self.start.overlapped = 0
            truncation.start_over(self, offset)

    def now_ms(self) -> int:
        """Return the wall-clock time."""
        return self.environment.now_ms()

    def note_truncated(self) -> None:
        """Have the checkpoints written before bytes are rewritten."""
        self.environment.on_truncate(self)

    def lower_high_watermark(self, end: int) -> None:
        """Follow a truncation to `end`, which may be below the log start offset."""
        self._high_watermark = min(self._high_watermark, end)

    def reload_producers(self) -> None:
        """Read the producers' state from the files again. Raises OSError."""
        replay.rebuild(
            self.producers,
            self.directory,
            files.list_names(self.directory),
            self.segments[:],
            self.log_start_offset,
            self.log_end_offset,
            self.environment.now_ms(),
            self.log_end_offset,
            # Those of which nothing is left do not come back.
            is_compacted="compact" in self.config.cleanup_policy or self.producers.forgetful,
        )

    def skip_to(self, offset: int) -> None:
        """Let the log end with `offset`, without records up to there: its original lost them to
        compaction.
        """
        with self._append_lock, self.failures.guard():
            self.roll(offset)
            self.segments.skip_to(offset)
            self.producers.end_offset = offset
            self.producers.forgetful = True

    # -- log start offset, retention ------------------------------------------------------------

    def advance_log_start(self, offset: int) -> None:
        """Hide records below `offset` (DeleteRecords, or the leader's log start offset). Retention
        removes the files.

        Raises KafkaError OFFSET_OUT_OF_RANGE above the high watermark.
        """
        with self._append_lock, self.failures.guard():
            if offset > self._high_watermark:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{offset} is above the high watermark {self._high_watermark}",
                )
            self.raise_log_start(offset)

    def raise_log_start(self, offset: int) -> None:
        """Hide the records below `offset`, which is at most the log end offset, if there are any.
        The caller holds the append lock. Raises OSError.
        """
        if self.segments.raise_log_start(offset):
            self.epochs.truncate_from_start(offset)
            self.producers.forget_deleted(offset)
            self.environment.on_start_raised(self)

    def apply_retention(self, *, only_hidden: bool = False) -> int:
        """Delete old segments by log start offset and, unless `only_hidden`, by time and size;
        return how many.

        Their files are removed later.
        """
        start = self.log_start_offset
        try:
            return old_segments.delete(self, only_hidden=only_hidden)
        finally:
            if self.log_start_offset > start:
                self.environment.on_start_raised(self)
            self.request_housekeeping()

    @property
    def delete_at(self) -> float:
        """When the files of a segment that leaves the log now are removed (monotonic s)."""
        return self.environment.monotonic() + self.config.file_delete_delay_ms / 1000

    def delete_due(self) -> None:
        """Remove the files of deleted segments after file.delete.delay.ms."""
        self.segments.delete_due(self.environment.monotonic())

    def replace_segments(
        self, old: Sequence[Segment], copy: Segment, swap_suffix: str, truncations: int
    ) -> bool:
        """Replace compacted segments; see `SegmentList.replace`."""
        try:
            return self.segments.replace(old, copy, swap_suffix, truncations, self.delete_at)
        finally:
            self.request_housekeeping()

    # -- leader epochs --------------------------------------------------------------------------

    def assign_epoch(self, epoch: int) -> None:
        """Note that this broker leads with `epoch` from the log end offset on.

        Not on a topic whose batches carry no epoch: followers could not note it.
        """
        if self.config.message_magic < 2:
            return
        with self._append_lock, self.failures.guard():
            self.epochs.assign(epoch, self.log_end_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) when unknown. See
        `EpochCache.end_offset`.
        """
        return self.epochs.end_offset(epoch, self.log_end_offset)

    # -- flushing -------------------------------------------------------------------------------

    @property
    def flush_required(self) -> bool:
        """True when flush.messages or more records wait for their fsync."""
        return self.committable_end < self.log_end_offset

    @property
    def committable_end(self) -> int:
        """End of the records that this replica holds as safely as flush.messages demands."""
        segments = self.segments
        end, flushed = segments.log_end_offset, segments.recovery_point
        return flushed if end - flushed >= self.config.flush_messages else end

    @property
    def flush_is_due(self) -> bool:
        """True when flush.ms passed since the last flush, and there is something to flush."""
        if self.recovery_point >= self.log_end_offset:
            return False
        return self._flusher.waited_ms >= self.config.flush_ms

    @property
    def has_unflushed_segments(self) -> bool:
        """True when a whole rolled segment waits for its fsync."""
        return self.recovery_point < self.segments.bases[-1]

    def flush(self, *, only_rolled: bool = False) -> None:
        """Make everything written so far durable (or only the rolled segments). Appends go on
        meanwhile.

        A failed fsync takes the log offline: the data that the disk dropped cannot be recovered.
        """
        self._flusher.flush(only_rolled=only_rolled)

    # -- moving ---------------------------------------------------------------------------------

    def relocate(self, directory: str) -> None:
        """Rename the folder to `directory`. No other thread may use the log. Raises OSError."""
        os.rename(self.directory, directory)
        self._flusher.name_unsynced = True
        self.directory = self.epochs.directory = directory
        self.segments.relocate(directory)

    def read_file(self, name: str) -> bytes | None:
        """Return the content of a file of the folder, None without one. Raises KafkaError."""
        with self.failures.guard():
            try:
                return files.read_file(os.path.join(self.directory, name))
            except FileNotFoundError:
                return None

    def write_snapshot(self) -> None:
        """Write the producers' state. Raises KafkaError."""
        with self._append_lock, self.failures.guard():
            self.producers.write_snapshot(self.directory)

    # -- housekeeping, closing ------------------------------------------------------------------

    @property
    def needs_housekeeping(self) -> bool:
        """True while each round of housekeeping must look at the log: for the rest of a truncation,
        rolled segments without fsync, flush.ms, or files of deleted segments.
        """
        return bool(
            self.failures.unfinished
            or self.segments.has_deleted
            or self.has_unflushed_segments
            or self.config.flush_ms < LONG_MAX
        )

    def request_housekeeping(self) -> None:
        """Have the next rounds of housekeeping look at the log, if they must."""
        if self.needs_housekeeping:
            self.environment.request_housekeeping(self)

    def expire_producers(self) -> None:
        """Forget producers that were silent for the expiry time; log those of too many."""
        with self._append_lock:
            self.producers.expire(self.environment.now_ms())
        before, self._producers_forgotten = self._producers_forgotten, self.producers.forgotten
        if self._producers_forgotten > before:
            logger.warning(
                "%s: forgot %d producer ids of more than %d: retries of their batches may be "
                "stored twice",
                self._name,
                self._producers_forgotten - before,
                self.environment.most_producers,
            )

    def producers_now(self) -> list[ProducerNow]:
        """Return the producers as they are now."""
        with self._append_lock:
            return self.producers.all_now()

    def former_producers(self) -> FormerProducers:
        """Return what a new topic of this name has to know of this one's producers."""
        with self._append_lock:
            return self.producers.as_former()

    def release_idle(self) -> None:
        """Give back descriptors and maps that nobody used since the last call."""
        for segment in self.segments:
            segment.release_idle()

    def close(self) -> None:
        """Finish the indexes, write the producer snapshot, make all durable, close the files.

        Nothing is written or synced of a log that is as a clean shutdown left it, or is new.
        """
        with self._append_lock:
            if self.closed:
                return
            if self.failure is None:
                active = self.segments.active
                with self.failures.guard():
                    has_new_snapshot = self.producers.write_snapshot(self.directory)
                    active.become_inactive()
                self.flush()
                with self.failures.guard():
                    if active.changed:
                        active.flush()
                        if self.log_end_offset:  # of records that were flushed before a crash, too
                            self.epochs.flush()
                    if active.changed or has_new_snapshot:
                        self._flusher.sync_snapshot(self.log_end_offset)
            self.abandon()

    def abandon(self) -> None:
        """Close the files as they are, because the disk failed or the partition is deleted.

        Waits for changes under way; afterwards nothing in the folder is touched any more.
        """
        with self._append_lock:
            self.failures.close()
            for segment in self.segments:
                segment.retire()
