"""Decides where a follower of a new leader truncates its log (KIP-101, KIP-279); pure.

The follower asks the leader where the follower's latest epoch ends in the leader's log. The leader
answers with that epoch, or the largest epoch below it that it knows, and the end of the epoch. Two
logs agree up to the smaller end of the last epoch that both know. If the follower does not have the
epoch of the answer, it truncates its later epochs and asks again.
"""

from __future__ import annotations

from dataclasses import dataclass

UNDEFINED = -1


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The end offset of an epoch, exclusive; both are -1 where it is unknown."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Truncation:
    """Truncate the log to `offset`; unless `complete`, then ask the leader again."""

    offset: int
    complete: bool


def decide(
    leaders: EpochEnd, own: EpochEnd, own_log_end: int, own_high_watermark: int
) -> Truncation:
    """Return where to truncate.

    `own` is the end of epoch `leaders.epoch` in the follower's log, or of the largest below it.
    """
    if leaders.end_offset == UNDEFINED:
        # The leader knows no epoch that old: only what is committed can be trusted.
        return Truncation(min(own_high_watermark, own_log_end), complete=True)
    if leaders.epoch == UNDEFINED or own.epoch == UNDEFINED:
        return Truncation(min(leaders.end_offset, own_log_end), complete=True)
    if own.epoch != leaders.epoch:
        return Truncation(min(own.end_offset, own_log_end), complete=False)
    return Truncation(min(own.end_offset, leaders.end_offset, own_log_end), complete=True)
