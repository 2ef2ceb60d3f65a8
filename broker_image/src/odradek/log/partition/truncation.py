"""Truncation of a log: at an offset, or whole, to start over at another one.

The log end offset is lowered first, so a truncation that fails halfway must not be left there: a
second attempt would find nothing to do and leave the producers' state of records that are gone.
After a shortage of descriptors or memory, the log refuses everything until the rest is done, which
is tried again by the next truncation and by each round of housekeeping. Any other error takes the
log directory offline, and recovery finishes the truncation at the next start.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable

from odradek.log.partition.parts import LogParts
from odradek.log.partition.producers import drop_snapshots
from odradek.log.partition.segments import delete_files
from odradek.log.records.batch import CorruptBatchError
from odradek.log.segment.files import is_shortage
from odradek.log.segment.segment import Segment
from odradek.protocol.errors import KafkaError


def truncate_to(log: LogParts, offset: int) -> bool:
    """As `Log.truncate_to`."""
    segments = log.segments
    with segments.append_lock:
        finish(log)
        return _truncate_to(log, offset)


def _truncate_to(log: LogParts, offset: int) -> bool:
    segments = log.segments
    with log.failures.guard():
        if offset >= segments.log_end_offset:
            log.epochs.truncate_from_end(segments.log_end_offset)
            return False
        if offset <= segments.log_start_offset or offset < segments.bases[0]:
            log.truncate_fully_and_start_at(offset)
            return True
        segment = segments.holding(offset)
        try:
            position, end = segment.truncation_point(offset)
        except CorruptBatchError as error:
            raise log.failures.damaged(segment, error) from error
        if end <= segments.log_start_offset:  # no readable record is left
            log.truncate_fully_and_start_at(segments.log_start_offset)
            return True
        dropped = segments.hide_from(segment, position, end)
        steps: list[Callable[[], object]] = [
            *_lowering_marks(log, end),
            lambda: delete_files(dropped[::-1]),
            lambda: segment.truncate_files(end, log.now_ms()),
            lambda: log.epochs.truncate_from_end(end),
            log.reload_producers,
            lambda: _keep_end(log, segment, end),
        ]
    _carry_out(log, steps)
    return True


def finish(log: LogParts) -> None:
    """Do what a truncation still has to do. Raises KafkaError KAFKA_STORAGE_ERROR."""
    failures = log.failures
    if not failures.unfinished:
        return
    with log.segments.append_lock:
        steps, failures.unfinished = failures.unfinished, []
        _carry_out(log, steps)


def _carry_out(log: LogParts, steps: list[Callable[[], object]]) -> None:
    """Do the steps of a truncation; the caller holds the append lock. Readers are served meanwhile:
    only what fails is left in `unfinished`. Raises as `finish`.
    """
    try:
        with log.failures.guard():
            while steps:
                try:
                    steps[0]()
                except OSError as error:
                    if is_shortage(error):
                        raise
                    reason = f"failed to finish a truncation: {error}"
                    raise OSError(errno.EIO, reason) from error
                del steps[0]
    except KafkaError:
        log.failures.unfinished = steps
        log.request_housekeeping()
        raise


def _keep_end(log: LogParts, last: Segment, end: int) -> None:
    """Make sure that the files tell the log end offset, also where compaction removed the
    records before it: else a restart would use offsets again that had other records.
    """
    with contextlib.suppress(CorruptBatchError):
        if last.next_offset() < end:
            log.roll()


def start_over(log: LogParts, offset: int) -> None:
    """Drop everything; the next batch gets `offset`. Raises KafkaError."""
    with log.segments.append_lock:
        finish(log)
        with log.failures.guard():
            # Checkpoints and readers look at the first segment, so there is always one. Its files
            # are made last: they may have the names of files that go.
            fresh = Segment(log.directory, offset, log.segment_settings())
            dropped = log.segments.hide_all(fresh)
            steps: list[Callable[[], object]] = [
                *_lowering_marks(log, offset),
                lambda: delete_files(dropped[::-1]),
                log.epochs.clear,
                lambda: drop_snapshots(log.directory),
                lambda: log.producers.clear(offset),
                lambda: fresh.create(log.preallocated_bytes),
            ]
        _carry_out(log, steps)


def _lowering_marks(log: LogParts, end: int) -> list[Callable[[], object]]:
    """Lower high watermark and recovery point to `end`; return the step that writes a lower
    recovery point or log start offset to the disk before bytes are rewritten.
    """
    log.lower_high_watermark(end)
    lowered = log.segments.lower_recovery_point(end) or log.start.may_be_checkpointed_higher
    return [log.note_truncated] if lowered or "compact" in log.config.cleanup_policy else []
