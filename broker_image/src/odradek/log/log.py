"""One partition on disk: segments, epochs, producers, and the rules of appending and reading.

Two locks. `_append_lock` serialises everything that writes (append, roll, truncate, retention) and
may be held across disk calls. `_state_lock` guards the few fields readers need (segment list, end
offset, published sizes) and is never held across a disk call, so a read is planned without waiting
for a slow write, roll or fsync.

An append is: check the header and the checksum, ask the producer state, patch offset and epoch, one
pwritev, publish. It never looks at records (but for keys on compacted topics and re-compression
where a topic demands it). A failed write is cut back; a failed disk takes the log offline, and
nothing on it is tried again.

Methods block and may be called from any thread. Those that can take long (`flush`, `truncate_to`,
an append with flush.messages set, a read far from the end) belong into `files.DiskThreads`.
"""

import contextlib
import random
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from odradek.config import TopicConfig
from odradek.log import batch, contents, files, replay, retention
from odradek.log.batch import CorruptBatchError, Header, Origin
from odradek.log.epochs import EpochCache
from odradek.log.files import Buffer, FileRetiredError, Region
from odradek.log.producers import ProducerStates, list_snapshots, snapshot_path
from odradek.log.segment import DELETED_SUFFIX, Segment, SegmentSettings, Tail
from odradek.protocol.errors import ErrorCode, KafkaError

Batches = Sequence[tuple[int, Header]]


def wall_clock_ms() -> int:
    """The time records are stamped with, ms since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a log needs of the process around it: clocks, chance, and whom to tell."""

    now_ms: Callable[[], int] = wall_clock_ms
    monotonic: Callable[[], float] = time.monotonic
    chance: random.Random = field(default_factory=random.Random)
    producer_expiry_ms: int = 7 * 24 * 3_600_000
    on_failure: Callable[["Log", OSError], None] = lambda log, error: None
    on_truncate: Callable[["Log"], None] = lambda log: None


class AppendInfo(NamedTuple):
    """Where a batch (or a follower's run of batches) now lies.

    `append_time_ms` is -1 unless the topic stamps records itself. `duplicate` means nothing was
    written: the offsets are those of the first time.
    """

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    size: int
    duplicate: bool


class LogSlice(NamedTuple):
    """What a read found: a piece of a segment file, or no region when nothing is there yet.

    `offset` is the one asked for; the region starts with the batch that holds it and may end inside
    a batch when max_bytes cut it, as Kafka's does. `more` tells that bytes below the bound follow.
    Whoever takes the slice closes the region.
    """

    offset: int
    region: Region | None
    more: bool

    @property
    def length(self) -> int:
        """Bytes of the region, 0 without one."""
        return self.region.length if self.region is not None else 0


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """Answer to a lookup by time."""

    offset: int
    timestamp: int
    leader_epoch: int


class Plan(NamedTuple):
    """Which bytes answer a read."""

    segment: Segment
    position: int
    length: int
    more: bool


class UnexpectedOffsetError(Exception):
    """A leader sent batches that do not continue this log."""


class Log:
    """A partition's log. Built by `recovery.open_log`, which fills it from the files."""

    def __init__(
        self,
        directory: str,
        topic: str,
        partition: int,
        config: TopicConfig,
        surroundings: Surroundings,
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.config = config
        self.epochs = EpochCache(directory)
        self.producers = ProducerStates(surroundings.producer_expiry_ms)
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        self.failure: OSError | None = None
        self.closed = False
        self._surroundings = surroundings
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._high_watermark = 0
        self._append_lock = threading.RLock()
        self._state_lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._last_flush = surroundings.monotonic()
        self._deleted: list[tuple[float, Segment]] = []

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    # -- facts ----------------------------------------------------------------------------------

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments as they are now, oldest first; never empty once the log is open."""
        with self._state_lock:
            return tuple(self._segments)

    @property
    def active(self) -> Segment:
        """The segment that is being written."""
        return self._segments[-1]

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def latest_epoch(self) -> int:
        """Newest leader epoch that wrote here, -1 when none."""
        return self.epochs.latest

    @property
    def high_watermark(self) -> int:
        """What the replica manager says is committed; retention and compaction stop there."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self._high_watermark = max(self.log_start_offset, min(offset, self.log_end_offset))

    @property
    def append_blocks(self) -> bool:
        """True when appends fsync (flush.messages) and so belong into a thread."""
        return self.config.flush_messages < 2**31

    def install(self, segments: Sequence[Segment], log_end_offset: int) -> None:
        """Take over segments, oldest first. For `recovery` and `cleaner`, which make them."""
        with self._state_lock:
            self._segments = list(segments)
            self._bases = [segment.base_offset for segment in segments]
            self.log_end_offset = log_end_offset

    # -- appending ------------------------------------------------------------------------------

    def append_as_leader(
        self, data: Buffer, leader_epoch: int, *, origin: Origin = Origin.CLIENT
    ) -> AppendInfo:
        """Check one batch, give it the next offsets and write it.

        Raises KafkaError with the code of the rule that was broken, KAFKA_STORAGE_ERROR when the
        disk failed.
        """
        config = self.config
        header = batch.validate(data, origin, config.max_message_bytes)
        now_ms = self._surroundings.now_ms()
        batch.check_timestamps(header, now_ms, config.message_timestamp_difference_max_ms)
        if origin is Origin.CLIENT and "compact" in config.cleanup_policy:
            contents.check_keys(data)
        if config.compression_type != "producer":
            header, data = contents.recompress(header, data, config.compression_type)
        size = header.length + batch.LOG_OVERHEAD
        if size > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"batch of {size} bytes is over segment.bytes={config.segment_bytes}",
            )
        append_time_ms = now_ms if config.message_timestamp_type == "LogAppendTime" else None
        with self._append_lock:
            if self.failure is not None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure))
            try:
                return self._append_checked(
                    data, header, size, leader_epoch, origin, now_ms, append_time_ms
                )
            except OSError as error:
                raise self._storage_error(error) from error

    def _append_checked(
        self,
        data: Buffer,
        header: Header,
        size: int,
        leader_epoch: int,
        origin: Origin,
        now_ms: int,
        append_time_ms: int | None,
    ) -> AppendInfo:
        """The part of an append that needs the lock."""
        if header.producer_id >= 0:
            repeat = self.producers.check(header, origin)
            if repeat is not None:
                first, last = repeat.first_offset, repeat.last_offset
                time_ms = -1 if append_time_ms is None else repeat.timestamp
                return AppendInfo(first, last, time_ms, self.log_start_offset, 0, True)
        base = self.log_end_offset
        stored, buffers = batch.stamp(data, header, base, leader_epoch, append_time_ms)
        last = base + header.last_offset_delta
        self._write(buffers, ((0, stored),), size, last, stored.max_timestamp, now_ms)
        return AppendInfo(
            base,
            last,
            -1 if append_time_ms is None else append_time_ms,
            self.log_start_offset,
            size,
            False,
        )

    def append_as_follower(self, data: Buffer) -> AppendInfo:
        """Write batches exactly as the leader sent them; a cut-off last one is left out.

        Raises KafkaError CORRUPT_MESSAGE for damaged bytes (nothing is written then),
        UnexpectedOffsetError when the batches do not continue this log, KAFKA_STORAGE_ERROR when
        the disk failed.
        """
        batches = _checked(data)
        view = memoryview(data)
        now_ms = self._surroundings.now_ms()
        with self._append_lock, self._storage():
            start, size = self.log_start_offset, 0
            if not batches:
                return AppendInfo(self.log_end_offset, self.log_end_offset - 1, -1, start, 0, False)
            first = batches[0][1]
            if first.base_offset < self.log_end_offset:
                self._accept_overlap(first)
            for run in _runs(batches, self.config.segment_bytes):
                begin, last = run[0][0], run[-1]
                end = last[0] + last[1].size
                shifted = [(at - begin, header) for at, header in run]
                newest = max(header.max_timestamp for _, header in run)
                self._write(
                    [view[begin:end]], shifted, end - begin, last[1].last_offset, newest, now_ms
                )
                size += end - begin
            self._raise_log_start(start)
            return AppendInfo(
                first.base_offset, self.log_end_offset - 1, -1, self.log_start_offset, size, False
            )

    def _accept_overlap(self, first: Header) -> None:
        """Make room for a batch that begins below the log end, where that is no divergence.

        A log that is empty because its start lies inside a batch of the leader's (DeleteRecords)
        takes that batch whole and hides its first records, as Kafka does.
        """
        end = self.log_end_offset
        if self.log_start_offset != end or first.last_offset < end:
            raise UnexpectedOffsetError(
                f"{self.topic}-{self.partition}: batch at {first.base_offset}, log ends at {end}"
            )
        self.truncate_fully_and_start_at(first.base_offset)

    def _write(
        self,
        buffers: Sequence[Buffer],
        batches: Batches,
        size: int,
        last_offset: int,
        newest_ms: int,
        now_ms: int,
    ) -> None:
        """Roll if due, write, publish; called with the append lock."""
        segment, config = self._segments[-1], self.config
        if (
            segment.size
            and retention.must_roll(
                segment.size + size,
                config.segment_bytes,
                segment.age_for_roll(now_ms, newest_ms),
                config.segment_ms - segment.jitter_ms,
                segment.has_full_index,
            )
        ) or not segment.accepts(last_offset):
            self.roll(batches[0][1].base_offset)
            segment = self._segments[-1]
        segment.append(buffers, size, batches)
        with self._state_lock:
            segment.publish(batches, size)
            self.log_end_offset = last_offset + 1
        for at, header in batches:
            if header.leader_epoch > self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                marker = None
                if header.attributes & batch.CONTROL:
                    whole = memoryview(b"".join(buffers))[at : at + header.size]
                    marker = contents.marker_epoch(header, whole)
                self.producers.update(header, marker)
        self.producers.end_offset = last_offset + 1
        if last_offset - self.recovery_point >= config.flush_messages - 1:
            self.flush()

    # -- rolling --------------------------------------------------------------------------------

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a new segment at `base_offset`, by default the log end."""
        with self._append_lock, self._storage():
            base = max(self.log_end_offset, base_offset or 0)
            previous = self.active
            previous.become_inactive()
            self.producers.write_snapshot(self.directory)
            if previous.base_offset == base:  # empty: the new one takes its name
                with self._state_lock:
                    self._segments.pop()
                    self._bases.pop()
                previous.retire()
            fresh = self._new_segment(base)
            with self._state_lock:
                self._segments.append(fresh)
                self._bases.append(base)

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self.directory, base_offset, self.segment_settings())
        segment.create()
        return segment

    def segment_settings(self) -> SegmentSettings:
        """Settings of a segment made now."""
        config = self.config
        jitter = min(config.segment_jitter_ms, config.segment_ms)
        return SegmentSettings(
            config.index_interval_bytes,
            config.segment_index_bytes,
            self._surroundings.now_ms(),
            self._surroundings.chance.randrange(jitter) if jitter > 0 else 0,
        )

    # -- reading --------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, upto: int | None = None, *, min_one: bool = True
    ) -> LogSlice:
        """Plan a read from `offset`, of batches wholly below `upto` (default: the log end).

        With `min_one` the first batch goes out whole even if it is larger than `max_bytes`. Raises
        KafkaError OFFSET_OUT_OF_RANGE below the log start or above the log end, CORRUPT_MESSAGE
        where the log is damaged, KAFKA_STORAGE_ERROR when the disk failed.
        """
        while True:
            plan = self._plan(offset, max_bytes, upto, min_one)
            if plan is None:
                return LogSlice(offset, None, False)
            try:
                region = Region(plan.segment.log, plan.position, plan.length)
            except FileRetiredError:
                continue  # deleted or replaced since: the next look sees it
            except OSError as error:
                raise self._storage_error(error) from error
            return LogSlice(offset, region, plan.more)

    def readable_bytes(self, offset: int, max_bytes: int, upto: int | None = None) -> int:
        """How many bytes `read` would return, without opening anything. Raises as `read`."""
        plan = self._plan(offset, max_bytes, upto, True)
        return plan.length if plan is not None else 0

    def _plan(self, offset: int, max_bytes: int, upto: int | None, min_one: bool) -> Plan | None:
        if self.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure))
        with self._state_lock:
            end = self.log_end_offset
            if not self.log_start_offset <= offset <= end:
                raise self._out_of_range(offset)
            bound = end if upto is None or upto > end else upto
            if offset >= bound:
                return None
            number = max(bisect_right(self._bases, offset) - 1, 0)
            segment = self._segments[number]
            size, tail = segment.size, segment.tail
            last = number == len(self._segments) - 1
            next_base = end if last else self._bases[number + 1]
            first = tail.find(offset, size)
            limit: int | None = size
            if bound < next_base:
                near = tail.find(bound, size)
                limit = near[0] if near is not None else None
        try:
            if first is None:
                hit = segment.find(offset, size)
                if hit is None:  # compaction left nothing from `offset` to the end of the segment
                    if next_base >= bound:
                        return None
                    return self._plan(next_base, max_bytes, upto, min_one)
                first = hit[0], hit[0] + hit[1].size
            if limit is None:
                beyond = segment.find(bound, size)
                limit = beyond[0] if beyond is not None else size
        except FileRetiredError:
            return self._plan(offset, max_bytes, upto, min_one)
        except CorruptBatchError as error:
            raise self._damaged(segment, error) from error
        except OSError as error:
            raise self._storage_error(error) from error
        position, first_end = first
        length = min(max_bytes, limit - position)
        if min_one:
            length = max(length, min(first_end, limit) - position)
        if length <= 0:
            return None
        return Plan(segment, position, length, position + length < limit or bound > next_base)

    def _out_of_range(self, offset: int) -> KafkaError:
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{offset} is not within {self.log_start_offset} and {self.log_end_offset} "
            f"of {self.topic}-{self.partition}",
        )

    def _damaged(self, segment: Segment, error: CorruptBatchError) -> KafkaError:
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{self.topic}-{self.partition} segment {segment.base_offset}: {error}",
        )

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """First record not older than `timestamp` (ms), from the log start on; None when there is
        none.
        """
        with self._storage():
            for segment in self.segments:
                try:
                    if segment.max_timestamp < timestamp:
                        continue
                    for position, header in segment.batches_since(timestamp, self.log_start_offset):
                        data = segment.read(position, header.size)
                        hit = contents.first_since(header, data, timestamp, self.log_start_offset)
                        if hit is not None:
                            return TimestampOffset(hit[0], hit[1], header.leader_epoch)
                except FileRetiredError:
                    continue
                except CorruptBatchError as error:
                    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        return None

    # -- epochs ---------------------------------------------------------------------------------

    def assign_epoch(self, epoch: int) -> None:
        """Note that this broker leads with `epoch` from the log end on."""
        with self._append_lock, self._storage():
            self.epochs.assign(epoch, self.log_end_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) when unknown. See
        `EpochCache.end_offset`.
        """
        return self.epochs.end_offset(epoch, self.log_end_offset)

    # -- truncation, deletion -------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Drop everything from `offset` on; False when the log already ended there or before."""
        with self._append_lock, self._storage():
            if offset >= self.log_end_offset:
                return False
            if offset <= self.log_start_offset or offset < self._bases[0]:
                self.truncate_fully_and_start_at(offset)
                return True
            kept = max(bisect_left(self._bases, offset), 1)
            segment = self._segments[kept - 1]
            position, end = segment.cut_for(offset)
            if end < self.log_start_offset:  # the start lies inside the batch that is cut
                self.truncate_fully_and_start_at(self.log_start_offset)
                return True
            # Whoever reads stops short of the cut before the bytes go.
            with self._state_lock:
                dropped = self._segments[kept:]
                del self._segments[kept:], self._bases[kept:]
                segment.size, segment.tail = position, Tail()
                self.log_end_offset = end
            self._lower_marks(end)
            for doomed in reversed(dropped):
                self._delete_now(doomed)
            segment.truncate_files(end, self._surroundings.now_ms())
            self.epochs.truncate_from_end(end)
            self._reload_producers()
            return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next batch gets `offset`."""
        with self._append_lock, self._storage():
            with self._state_lock:
                dropped = self._segments
                self._segments, self._bases = [], []
                self.log_end_offset = self.log_start_offset = offset
            self._lower_marks(offset)
            for segment in reversed(dropped):
                self._delete_now(segment)
            self.epochs.clear()
            self._drop_snapshots(lambda at: True)
            self.producers.clear(offset)
            self.install([self._new_segment(offset)], offset)

    def _lower_marks(self, end: int) -> None:
        """Bring marks down to `end`; a lower recovery point is on disk before bytes are
        rewritten.
        """
        self._high_watermark = min(self._high_watermark, end)
        if self.recovery_point > end:
            self.recovery_point = end
            self._surroundings.on_truncate(self)

    def _delete_now(self, segment: Segment) -> None:
        segment.retire()
        for path in segment.paths():
            files.remove_if_there(path)

    def _reload_producers(self) -> None:
        replay.rebuild(
            self.producers,
            self.directory,
            self._segments,
            self.log_start_offset,
            self.log_end_offset,
            self._surroundings.now_ms(),
        )

    def _drop_snapshots(self, doomed: Callable[[int], bool]) -> None:
        for at in list_snapshots(self.directory):
            if doomed(at):
                files.remove_if_there(snapshot_path(self.directory, at))

    def advance_log_start(self, offset: int) -> None:
        """Hide records below `offset` (DeleteRecords, or the leader's start); files go with
        retention.

        Raises KafkaError OFFSET_OUT_OF_RANGE above the high watermark.
        """
        with self._append_lock, self._storage():
            if offset > self._high_watermark:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{offset} is above the high watermark {self._high_watermark}",
                )
            self._raise_log_start(offset)

    def _raise_log_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            with self._state_lock:
                self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)

    def apply_retention(self) -> int:
        """Delete old segments by log start offset, time and size; return how many. Files go
        later.
        """
        # Looking at old segments may read from the disk, which appends need not wait for.
        with self._storage():
            segments = self.segments
            facts = [self._facts(segment) for segment in segments]
        with self._append_lock, self._storage():
            if tuple(self._segments[: len(segments)]) != segments:
                return 0  # truncated or compacted meanwhile: the next round sees it
            if len(self._segments) == len(segments):
                facts[-1] = self._facts(self.active)
            by_age = "delete" in self.config.cleanup_policy
            doomed = retention.deletable(
                facts,
                self.log_end_offset
                if len(self._segments) == len(segments)
                else self._bases[len(segments)],
                self._high_watermark,
                self.log_start_offset,
                self._surroundings.now_ms(),
                retention.Limits(
                    self.config.retention_ms if by_age else -1,
                    self.config.retention_bytes if by_age else -1,
                ),
            )
            if doomed == 0:
                return 0
            if doomed == len(self._segments):
                self.roll()
            return self._retire_oldest(doomed)

    def _facts(self, segment: Segment) -> retention.SegmentFacts:
        return retention.SegmentFacts(
            segment.base_offset, segment.size, segment.newest_or_modified_ms()
        )

    def _retire_oldest(self, count: int) -> int:
        with self._state_lock:
            gone = self._segments[:count]
            del self._segments[:count], self._bases[:count]
        if gone:
            self._raise_log_start(self._bases[0])
            self.schedule_delete(gone)
            self._drop_snapshots(lambda at: at < self._bases[0])
        return len(gone)

    def schedule_delete(self, segments: Sequence[Segment]) -> None:
        """Rename segments to `.deleted`; `delete_due` removes them after file.delete.delay.ms."""
        due = self._surroundings.monotonic() + self.config.file_delete_delay_ms / 1000
        for segment in segments:
            segment.rename_suffix("", DELETED_SUFFIX)
            segment.retire()
            self._deleted.append((due, segment))

    def delete_due(self) -> None:
        """Remove files whose delay is over."""
        now = self._surroundings.monotonic()
        with self._append_lock, self._storage():
            due = [segment for at, segment in self._deleted if at <= now]
            self._deleted = [entry for entry in self._deleted if entry[0] > now]
            for segment in due:
                self._delete_now(segment)

    # -- durability -----------------------------------------------------------------------------

    @property
    def flush_is_due(self) -> bool:
        """True when flush.ms passed since the last flush, and there is something to flush."""
        waited = (self._surroundings.monotonic() - self._last_flush) * 1000
        return self.recovery_point < self.log_end_offset and waited >= self.config.flush_ms

    @property
    def has_unflushed_segments(self) -> bool:
        """True when a whole rolled segment awaits its fsync."""
        return self.recovery_point < self._bases[-1]

    def flush(self, *, only_rolled: bool = False) -> None:
        """Make everything written so far durable (or only the rolled segments); appends go on
        meanwhile.

        A failed fsync takes the log offline: what the disk dropped cannot be asked for again.
        """
        with self._flush_lock, self._storage():
            with self._state_lock:
                end = self._bases[-1] if only_rolled else self.log_end_offset
                first = max(bisect_right(self._bases, self.recovery_point) - 1, 0)
                number = len(self._segments) - 1 if only_rolled else len(self._segments)
                dirty = self._segments[first:number]
            if end <= self.recovery_point:
                return
            for segment in dirty:
                with contextlib.suppress(FileRetiredError):
                    segment.flush()
            for segment in dirty[1:]:
                self._sync_snapshot(segment.base_offset)
            self._sync_snapshot(end)
            self.epochs.flush()
            files.fsync_path(self.directory)
            with self._state_lock:
                self.recovery_point = max(self.recovery_point, min(end, self.log_end_offset))
            self._last_flush = self._surroundings.monotonic()

    def _sync_snapshot(self, offset: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            files.fsync_path(snapshot_path(self.directory, offset))

    def expire_producers(self) -> None:
        """Forget producers that were silent for the expiry time."""
        with self._append_lock:
            self.producers.expire(self._surroundings.now_ms())

    def release_idle(self) -> None:
        """Give back descriptors and maps that nobody used since the last call."""
        for segment in self.segments:
            segment.release_idle()

    def close(self) -> None:
        """Finish indexes, write the producer snapshot, make everything durable, close files."""
        with self._append_lock:
            if self.closed:
                return
            if self.failure is None:
                with self._storage():
                    self.producers.write_snapshot(self.directory)
                    self.active.become_inactive()
                self.flush()
                with self._storage():
                    self.active.flush()
                    self._sync_snapshot(self.log_end_offset)
            self.abandon()

    def abandon(self) -> None:
        """Let go of the files as they are; used when the disk failed or the partition is
        deleted.
        """
        self.closed = True
        for segment in self.segments:
            segment.retire()

    # -- failure --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _storage(self) -> Iterator[None]:
        """Refuse work on a failed log, and turn a disk error into KAFKA_STORAGE_ERROR."""
        if self.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure))
        try:
            yield
        except OSError as error:
            raise self._storage_error(error) from error

    def _storage_error(self, error: OSError) -> KafkaError:
        if files.is_disk_failure(error) and self.failure is None:
            self.failure = error
            self._surroundings.on_failure(self, error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    def fail(self, error: OSError) -> None:
        """Take the log offline because its directory failed elsewhere."""
        if self.failure is None:
            self.failure = error


def _checked(data: Buffer) -> Batches:
    """The whole batches of a follower's bytes, each with a right checksum, offsets rising."""
    expected = -1
    try:
        batches = list(batch.scan(data))
        for position, header in batches:
            batch.check_crc(data, position, header)
            if header.base_offset < expected:
                raise CorruptBatchError(position, f"offset {header.base_offset} goes back")
            expected = header.last_offset + 1
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return batches


def _runs(batches: Batches, segment_bytes: int) -> Iterator[Batches]:
    """Split batches into runs that fit into one segment each, in size and in offsets."""
    run: list[tuple[int, Header]] = []
    size = 0
    for entry in batches:
        header = entry[1]
        far = run and header.last_offset - run[0][1].base_offset > 2**31 - 1
        if run and (size + header.size > segment_bytes or far):
            yield run
            run, size = [], 0
        run.append(entry)
        size += header.size
    if run:
        yield run
