"""Deletion of a log's old segments, as retention and the log start offset demand."""

from __future__ import annotations

from odradek.log.partition import retention
from odradek.log.partition.parts import LogParts
from odradek.log.partition.producers import drop_snapshots
from odradek.log.segment.segment import Segment


def delete(log: LogParts, *, only_hidden: bool) -> int:
    """As `Log.apply_retention`. Raises KafkaError."""
    if len(log.segments) == 1 and not log.segments.active.size:
        return 0
    # Looking at old segments may read from the disk. Appends need not wait for that.
    with log.failures.guard():
        seen = log.segments[:]
        facts = [_facts(segment) for segment in seen[:-1]] + [_facts_of_last(seen[-1])]
    with log.segments.append_lock, log.failures.guard():
        segments = log.segments[:]
        if segments[: len(seen)] != seen:
            return 0  # truncated or compacted meanwhile: the next round sees that
        end = log.log_end_offset
        # It was written to until now, or until it was rolled meanwhile.
        facts[-1] = _facts_of_last(seen[-1])
        if len(segments) > len(seen):
            end = segments[len(seen)].base_offset
        by_age = "delete" in log.config.cleanup_policy and not only_hidden
        limits = retention.RetentionLimits(
            log.config.retention_ms if by_age else -1,
            log.config.retention_bytes if by_age else -1,
        )
        doomed = retention.deletable(
            facts,
            end,
            log.high_watermark,
            log.log_start_offset,
            log.now_ms(),
            limits,
        )
        if doomed == len(segments):
            log.roll()
        if doomed:
            _delete_oldest(log, doomed)
        return doomed


def _delete_oldest(log: LogParts, count: int) -> None:
    start = log.log_start_offset
    dropped = log.segments.drop_oldest(count)
    # First what needs no descriptor: else the files would stay, and come back at the next start.
    log.segments.schedule_delete(dropped, log.delete_at)
    if log.log_start_offset > start:
        log.epochs.truncate_from_start(log.log_start_offset)
        log.producers.forget_deleted(log.log_start_offset)
    drop_snapshots(log.directory, below=log.segments.bases[0])


def _facts(segment: Segment) -> retention.SegmentFacts:
    return retention.SegmentFacts(
        segment.base_offset, segment.size, segment.newest_or_modified_ms()
    )


def _facts_of_last(segment: Segment) -> retention.SegmentFacts:
    """As `_facts`. An empty segment stays at any age, and a truncation that is under way may not
    have made its files yet.
    """
    if segment.size:
        return _facts(segment)
    return retention.SegmentFacts(segment.base_offset, 0, 0)
