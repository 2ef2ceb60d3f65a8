"""Decisions when to roll a segment and when to delete it. Plain values: no files, no clock."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What a decision needs of a segment; `newest_ms` is the time of its newest record, or of its
    file.
    """

    base_offset: int
    size: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """retention.ms and retention.bytes, -1 for no limit."""

    retention_ms: int
    retention_bytes: int


ROLL_BY_TIME_INTERVAL_S = 1.0
"""Least time between two rolls of a log because of segment.ms. Record times are the producer's
choice, and far apart they would make files for each batch.
"""


def deletable(
    segments: Sequence[SegmentFacts],
    log_end_offset: int,
    high_watermark: int,
    log_start_offset: int,
    now_ms: int,
    limits: RetentionLimits,
) -> int:
    """Return how many of the oldest segments may be deleted.

    A segment is deleted when it lies wholly below the log start offset, is older than retention.ms,
    or when the log still has retention.bytes without it; never one that holds records at or above
    the high watermark.
    """
    surplus = sum(segment.size for segment in segments) - limits.retention_bytes
    count = 0
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        upper = log_end_offset if last else segments[number + 1].base_offset
        if upper > high_watermark or (last and segment.size == 0):
            break
        below_start = not last and upper <= log_start_offset
        too_old = limits.retention_ms >= 0 and now_ms - segment.newest_ms > limits.retention_ms
        too_much = limits.retention_bytes >= 0 and surplus - segment.size >= 0
        if not (below_start or too_old or too_much):
            break
        surplus -= segment.size
        count += 1
    return count
