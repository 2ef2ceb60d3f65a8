"""One partition on disk: the rules of appending and of making durable.

An append is: check the header and the checksum, ask the producer state, patch offset and epoch, one
write, publish. It never looks at records (but for keys on compacted topics, re-compression where a
topic demands it, and the times of a batch whose header cannot be right about them). A failed write
is cut back; a failed disk takes the log offline, and nothing on it is tried again.

What readers see is in `reading`, how segments come and go in `segments`. Methods block and may be
called from any thread. Those that can take long (`flush`, `truncate_to`, `verify`) belong into
`files.DiskThreads`. An append makes nothing durable: where `flush.messages` wants it, `owes_flush`
says so, and whoever appended flushes before it tells anybody.
"""

import contextlib
import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from odradek.config import TopicConfig
from odradek.log.partition import conversion, retention
from odradek.log.partition.conversion import OldFormat
from odradek.log.partition.producers import snapshot_path
from odradek.log.partition.reading import Surroundings
from odradek.log.partition.segments import SegmentedLog
from odradek.log.records import batch, contents, incoming
from odradek.log.records.batch import Header, Origin
from odradek.log.records.incoming import Batches
from odradek.log.segment import files
from odradek.log.segment.files import FileRetiredError
from odradek.log.segment.index import MAX_RELATIVE_OFFSET
from odradek.properties import INT_MAX, LONG_MAX
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.regions import Buffer

_SOON_DECODED = 4096
"""Bytes of plain records that are decoded in about the time of a change of threads."""


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


class Prepared(NamedTuple):
    """One batch that passed every check that does not depend on where it will lie.

    `old` is what will be stored instead, on a topic of an old message format.
    """

    header: Header
    data: Buffer
    old: OldFormat | None


class UnexpectedOffsetError(Exception):
    """A leader sent batches that do not continue this log."""


class Log(SegmentedLog):
    """A partition's log. Built by `recovery.open_log`, which fills it from the files."""

    def __init__(
        self,
        directory: str,
        topic: str,
        partition: int,
        config: TopicConfig,
        surroundings: Surroundings,
    ) -> None:
        super().__init__(directory, topic, partition, config, surroundings)
        self._flush_lock = threading.Lock()
        self._last_flush = surroundings.monotonic()

    # -- facts ----------------------------------------------------------------------------------

    @property
    def latest_epoch(self) -> int:
        """Newest leader epoch that wrote here, -1 when none."""
        return self.epochs.latest

    # -- appending ------------------------------------------------------------------------------

    def append_as_leader(
        self, data: Buffer | Prepared, leader_epoch: int, *, origin: Origin = Origin.CLIENT
    ) -> AppendInfo:
        """Check one batch, unless `prepare` has, give it the next offsets and write it.

        Raises KafkaError with the code of the rule that was broken, KAFKA_STORAGE_ERROR when the
        disk failed.
        """
        prepared = data if isinstance(data, Prepared) else self.prepare(data, origin)
        size = prepared.header.length + batch.LOG_OVERHEAD
        self._check_fits_segment(size)
        now_ms = self._surroundings.now_ms()
        stamped = self.config.message_timestamp_type == "LogAppendTime"
        append_time_ms = now_ms if stamped else None
        with self._append_lock:
            self._refuse_if_gone()
            try:
                if prepared.old is not None:
                    return self._append_old_format(prepared.old, now_ms, append_time_ms)
                return self._append_checked(
                    prepared.data,
                    prepared.header,
                    size,
                    leader_epoch,
                    origin,
                    now_ms,
                    append_time_ms,
                )
            except OSError as error:
                raise self._storage_error(error) from error

    def looks_into(self, data: Buffer, origin: Origin) -> bool:
        """Tell whether `prepare` has records to unpack, which may take seconds: into a thread then.

        A few plain records are looked at sooner than a thread would be.
        """
        config = self.config
        demanded = (
            config.compression_type != "producer"
            or config.message_magic < 2
            or (origin is Origin.CLIENT and "compact" in config.cleanup_policy)
            or (
                origin is Origin.CLIENT
                and config.message_timestamp_type == "CreateTime"
                and batch.understates_time(data)
            )
            or (origin is Origin.CLIENT and batch.claims_many_records(data))
        )
        return demanded and (len(data) > _SOON_DECODED or batch.is_compressed(data))

    def prepare(self, data: Buffer, origin: Origin) -> Prepared:
        """Check one batch, and bring it to the codec and format of the topic. Touches no state.

        Raises KafkaError.
        """
        config = self.config
        # What an old format makes of the batch is measured, a set of messages one by one.
        limit = config.max_message_bytes if config.message_magic == 2 else INT_MAX
        header = batch.validate(data, origin, limit)
        stamped = config.message_timestamp_type == "LogAppendTime"
        if origin is Origin.CLIENT and header.codec and header.record_count > len(data):
            contents.check_count(header, data)
        if (
            origin is Origin.CLIENT
            and not stamped
            and header.max_timestamp < header.first_timestamp
        ):
            header, data = contents.date(header, data)
        difference_ms = LONG_MAX if stamped else config.message_timestamp_difference_max_ms
        batch.check_timestamps(header, self._surroundings.now_ms(), difference_ms)
        if origin is Origin.CLIENT and "compact" in config.cleanup_policy:
            contents.check_keys(data)
        if config.compression_type != "producer":
            header, data = contents.recompress(header, data, config.compression_type)
        old = None
        if config.message_magic < 2:
            old = conversion.for_old_topic(header, data, config.message_magic)
        return Prepared(header, data, old)

    def _check_fits_segment(self, size: int) -> None:
        if size > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size} bytes are over segment.bytes={self.config.segment_bytes}",
            )

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

    def _append_old_format(
        self, old: OldFormat, now_ms: int, append_time_ms: int | None
    ) -> AppendInfo:
        """As `_append_checked`, for a topic whose message.format.version is below 0.11."""
        base = self.log_end_offset
        data = old.message_set(base, append_time_ms)
        batches = list(batch.scan(data))
        largest = max(header.size for _, header in batches)
        if largest > self.config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"message of {largest} bytes is over max.message.bytes="
                f"{self.config.max_message_bytes}",
            )
        self._check_fits_segment(len(data))
        last = batches[-1][1].last_offset
        newest = max(header.max_timestamp for _, header in batches)
        self._write((data,), batches, len(data), last, newest, now_ms)
        time_ms = -1 if append_time_ms is None else append_time_ms
        return AppendInfo(base, last, time_ms, self.log_start_offset, len(data), False)

    def append_as_follower(self, data: Buffer) -> AppendInfo:
        """Write batches exactly as the leader sent them; a cut-off last one is left out.

        Raises KafkaError CORRUPT_MESSAGE for damaged bytes (nothing is written then),
        UnexpectedOffsetError when the batches do not continue this log, KAFKA_STORAGE_ERROR when
        the disk failed.
        """
        batches = incoming.checked(data)
        view = memoryview(data)
        now_ms = self._surroundings.now_ms()
        with self._append_lock, self._storage():
            start, size = self.log_start_offset, 0
            if not batches:
                return AppendInfo(self.log_end_offset, self.log_end_offset - 1, -1, start, 0, False)
            first = batches[0][1]
            if first.base_offset < self.log_end_offset:
                self._accept_overlap(first)
            for run in incoming.runs(batches, self.config.segment_bytes):
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
            self.roll(_lowest_offset(batches[0][1]))
            segment = self._segments[-1]
        segment.append(buffers, size, batches)
        with self._state_lock:
            segment.publish(batches, size)
            self.log_end_offset = last_offset + 1
        for at, header in batches:
            self.note_epoch(header)
            if header.producer_id >= 0:
                marker = None
                if header.attributes & batch.CONTROL:
                    whole = memoryview(b"".join(buffers))[at : at + header.size]
                    marker = contents.marker_epoch(header, whole)
                self.producers.update(header, marker)
        self.producers.end_offset = last_offset + 1

    # -- epochs ---------------------------------------------------------------------------------

    def assign_epoch(self, epoch: int) -> None:
        """Note that this broker leads with `epoch` from the log end on.

        Not where its batches will carry no epoch, so that followers could not note it.
        """
        if self.config.message_magic < 2:
            return
        with self._append_lock, self._storage():
            self.epochs.assign(epoch, self.log_end_offset)

    def note_epoch(self, header: Header) -> None:
        """Note the epoch of a batch that was written.

        The formats before 0.11 carry none. Behind such a batch the known epochs tell nothing any
        more, so they go, and replicas trust the high watermark, as in Kafka.
        """
        if header.magic == 2 and header.leader_epoch > self.epochs.latest:
            self.epochs.assign(header.leader_epoch, header.base_offset)
        elif header.magic < 2 and self.epochs.entries:
            self.epochs.clear()

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) when unknown. See
        `EpochCache.end_offset`.
        """
        return self.epochs.end_offset(epoch, self.log_end_offset)

    # -- durability -----------------------------------------------------------------------------

    @property
    def owes_flush(self) -> bool:
        """True when flush.messages appended records await their fsync."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    @property
    def committable_end(self) -> int:
        """End of what this replica holds as safely as flush.messages demands."""
        return self.recovery_point if self.owes_flush else self.log_end_offset

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
            while not self._flush_uncut(only_rolled):
                pass  # what was written anew behind a cut may not be on the disk

    def _flush_uncut(self, only_rolled: bool) -> bool:
        """Flush; False when the log was cut meanwhile."""
        with self._state_lock:
            cuts = self._cuts
            end = self._bases[-1] if only_rolled else self.log_end_offset
            first = max(bisect_right(self._bases, self.recovery_point) - 1, 0)
            number = len(self._segments) - 1 if only_rolled else len(self._segments)
            dirty = self._segments[first:number]
        if end <= self.recovery_point:
            return True
        for segment in dirty:
            with contextlib.suppress(FileRetiredError):
                segment.flush()
        for segment in dirty[1:]:
            self._sync_snapshot(segment.base_offset)
        self._sync_snapshot(end)
        self.epochs.flush()
        files.fsync_path(self.directory)
        with self._state_lock:
            if self._cuts != cuts:
                return False
            self.recovery_point = max(self.recovery_point, end)
        self._last_flush = self._surroundings.monotonic()
        return True

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
        deleted. What is under way ends first, and nothing of the folder is touched any more.
        """
        with self._append_lock:
            self.closed = True
            for segment in self.segments:
                segment.retire()


def _lowest_offset(header: Header) -> int:
    """Where a segment may begin whose first batch this is.

    The older formats tell the last offset only: then as low as the indexes reach, as in Kafka.
    """
    return header.base_offset if header.magic == 2 else header.last_offset - MAX_RELATIVE_OFFSET
