"""Where a follower cuts its log before it copies from a new leader (KIP-101, KIP-279), as a pure
function.

The follower asks the leader where its own latest epoch ends over there. The leader answers with
that epoch, or the largest one below it that it knows, and the epoch's end. Two logs agree up to the
smaller end of the last epoch that both know; when the follower lacks the epoch of the answer it
cuts its later epochs and asks again.
"""

from __future__ import annotations

from dataclasses import dataclass

UNDEFINED = -1


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The last offset of an epoch, exclusive; both -1 when nothing is known."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Truncation:
    """Cut the log to `offset`; unless `complete`, ask the leader again from what is left."""

    offset: int
    complete: bool


def decide(
    leaders: EpochEnd, own: EpochEnd, own_log_end: int, own_high_watermark: int
) -> Truncation:
    """`own` is what the follower's log knows of the epoch `leaders.epoch`, or of the largest below
    it.
    """
    if leaders.end_offset == UNDEFINED:
        # The leader knows no epoch that old: what is committed is all that can be trusted.
        return Truncation(min(own_high_watermark, own_log_end), complete=True)
    if leaders.epoch == UNDEFINED or own.epoch == UNDEFINED:
        return Truncation(min(leaders.end_offset, own_log_end), complete=True)
    if own.epoch != leaders.epoch:
        return Truncation(min(own.end_offset, own_log_end), complete=False)
    return Truncation(min(own.end_offset, leaders.end_offset, own_log_end), complete=True)
