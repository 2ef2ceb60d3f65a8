"""Appends to a log, under its append lock: what is written where, and what is noted of it.

Others append by the methods of `Log`. On a leader the producer state is asked first, and a batch
gets the next offsets and the leader epoch. Then one write, to a new segment if it is time to roll.
Producer and leader epoch are noted once the bytes are published. A note that fails takes nothing
back: the next append reads the producers' state from the files again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from odradek.log.partition import truncation
from odradek.log.partition.conversion import OldFormat
from odradek.log.partition.parts import LogParts
from odradek.log.partition.validation import Prepared
from odradek.log.records import batch, contents
from odradek.log.records.batch import Header, Origin
from odradek.log.records.incoming import Batches
from odradek.log.segment.index import MAX_RELATIVE_OFFSET
from odradek.log.segment.placed import Placed, placed
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.regions import Buffer
from odradek.topic_config import TopicConfig

_tuple = tuple.__new__


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


class UnexpectedOffsetError(Exception):
    """A leader sent batches that do not continue this log."""


def append_prepared(
    log: LogParts, prepared: Prepared, leader_epoch: int, origin: Origin, now_ms: int
) -> AppendInfo:
    """Append a batch that `validation.prepare` has checked. Raises as `Log.append_as_leader`."""
    header, data, old = prepared
    config = log.config
    size = header.length + batch.LOG_OVERHEAD
    if size > config.segment_bytes:
        raise _too_large(size, config)
    append_time_ms = now_ms if config.message_timestamp_type == "LogAppendTime" else None
    with log.segments.append_lock:
        log.failures.raise_if_unusable()
        try:
            if old is not None:
                return _append_old_format(log, old, now_ms, append_time_ms)
            return _append_checked(
                log, data, header, size, leader_epoch, origin, now_ms, append_time_ms
            )
        except OSError as error:
            raise log.failures.storage_error(error) from error


def _too_large(size: int, config: TopicConfig) -> KafkaError:
    return KafkaError(
        ErrorCode.RECORD_LIST_TOO_LARGE,
        f"{size} bytes are over segment.bytes={config.segment_bytes}",
    )


def _append_checked(
    log: LogParts,
    data: Buffer,
    header: Header,
    size: int,
    leader_epoch: int,
    origin: Origin,
    now_ms: int,
    append_time_ms: int | None,
) -> AppendInfo:
    """Append as leader. The caller holds the append lock. Raises KafkaError, OSError."""
    segments = log.segments
    start, base = segments.log_start_offset, segments.log_end_offset
    last = base + header.last_offset_delta
    newest_ms = header.max_timestamp if append_time_ms is None else append_time_ms
    time_ms = -1 if append_time_ms is None else append_time_ms
    by_producer = header.producer_id >= 0
    if log.producers.end_offset != base:
        log.reload_producers()  # an append broke off behind its write
    if by_producer:
        repeat = log.producers.check(header, origin, leader_epoch)
        if header.attributes & batch.CONTROL:
            log.producers.check_marker(header, contents.marker_of(header, data))
        if repeat is not None:
            if append_time_ms is not None:
                time_ms = repeat.timestamp
            return AppendInfo(repeat.first_offset, repeat.last_offset, time_ms, start, 0, True)
    buffers = batch.stamp(data, header, base, leader_epoch, append_time_ms)
    place = 0, size, base, last, newest_ms
    _write(log, buffers, size, (place,), last, newest_ms, now_ms, base)
    if by_producer:
        _note_producer(log, header, last, newest_ms, data)
    else:
        log.producers.end_offset = last + 1
    # Last, because it writes a file, which can fail: the batch is in the log all the same.
    log.epochs.note_batch(2, leader_epoch, base)
    return _tuple(AppendInfo, (base, last, time_ms, start, size, False))


def _append_old_format(
    log: LogParts, old: OldFormat, now_ms: int, append_time_ms: int | None
) -> AppendInfo:
    """As `_append_checked`, for a topic whose message.format.version is below 0.11."""
    start, base = log.segments.log_start_offset, log.segments.log_end_offset
    data = old.message_set(base, append_time_ms)
    batches = list(batch.scan(data))
    largest = max(header.size for _, header in batches)
    if largest > log.config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"message of {largest} bytes is over max.message.bytes={log.config.max_message_bytes}",
        )
    if len(data) > log.config.segment_bytes:
        raise _too_large(len(data), log.config)
    if log.producers.end_offset != base:
        log.reload_producers()  # an append broke off behind its write
    last = write_batches(log, memoryview(data), batches, now_ms)
    time_ms = -1 if append_time_ms is None else append_time_ms
    return AppendInfo(base, last, time_ms, start, len(data), False)


def accept_overlap(log: LogParts, first: Header) -> None:
    """Make room for a batch that begins below the log end offset, where that is no divergence.

    After DeleteRecords the leader's log start offset may lie inside a batch. A log that is
    empty and starts there takes that batch whole and hides its first records, as Kafka does.
    """
    end = log.log_end_offset
    if log.log_start_offset != end or first.last_offset < end:
        raise UnexpectedOffsetError(
            f"{log.topic}-{log.partition}: batch at {first.base_offset}, log ends at {end}"
        )
    # A crash before the log start offset is back must not bring deleted records back.
    log.start.overlapped = end
    truncation.start_over(log, first.base_offset)


def restore_log_start(log: LogParts) -> None:
    """Raise the log start offset again as far as the log reaches."""
    start = log.start.overlapped
    try:
        log.raise_log_start(min(start, log.log_end_offset))
    finally:
        if log.segments.log_start_offset >= start:
            log.start.overlapped = 0


def write_batches(log: LogParts, data: memoryview, batches: Batches, now_ms: int) -> int:
    """Write neighbouring batches as they are; return their last offset.

    Positions are those of a buffer that may begin before `data`, which holds just the batches.
    The caller holds the append lock.
    """
    begin, first = batches[0]
    last = batches[-1][1].last_offset
    places = [placed(at - begin, header) for at, header in batches]
    newest_ms = max(header.max_timestamp for _, header in batches)
    _write(log, (data,), len(data), places, last, newest_ms, now_ms, _lowest_offset(first))
    for at, header in batches:
        if header.producer_id >= 0:
            written = data[at - begin : at - begin + header.size]
            _note_producer(log, header, header.last_offset, header.max_timestamp, written)
    log.producers.end_offset = last + 1
    # Last, because it writes a file, which can fail: the batches are in the log all the same.
    log.epochs.note_batches(batches)
    return last


def _note_producer(log: LogParts, header: Header, last: int, timestamp: int, data: Buffer) -> None:
    """Note the batch of a producer that was written last; its end is in `data` if it is a
    marker.
    """
    if not header.attributes & batch.CONTROL:
        log.producers.note(header, last, timestamp, None)
        return
    marker = contents.marker_of(header, data)
    aborted = log.producers.aborted_by(header, last, marker)
    if aborted is not None:
        # First, because it writes a file, which can fail: the next append then reads the
        # producers' state again, and adds what the index lacks.
        log.segments.active.aborted.append(aborted)
    log.producers.note(header, last, timestamp, marker)


def _write(
    log: LogParts,
    buffers: Sequence[Buffer],
    size: int,
    batches: Sequence[Placed],
    last_offset: int,
    newest_ms: int,
    now_ms: int,
    lowest_offset: int,
) -> None:
    """Roll if due (as Kafka's LogSegment.shouldRoll says), to a segment that begins at
    `lowest_offset`; write and publish. The caller holds the append lock.
    """
    segments, config = log.segments, log.config
    segment = segments.entries[-1]
    written = segment.size
    if (
        written
        and (
            written + size > config.segment_bytes
            or segment.index.is_full
            or segment.time_index.is_full
            or (
                segment.age_for_roll(now_ms, newest_ms)
                > config.longest_segment_ms - segment.jitter_ms
                and log.may_roll_by_time()
            )
        )
    ) or not segment.accepts(last_offset):
        log.roll(lowest_offset)
    segments.append(buffers, size, batches, last_offset + 1)


def _lowest_offset(header: Header) -> int:
    """Return where a segment may begin whose first batch this is.

    The older formats tell the last offset only: then as low as the indexes reach, as in Kafka.
    """
    return header.base_offset if header.magic == 2 else header.last_offset - MAX_RELATIVE_OFFSET
