"""Judges whether a transfer moves fast enough for the memory that it holds.

A transfer is a request that arrives, or an answer that leaves. Whoever moves one byte now and then
would hold its memory for hours, so progress alone is not enough: in each window (30 s) a transfer
must move LEAST_RATE, and so much of its size that it takes LONGEST_S at most. The transfer is
looked at a few times per window. A window is counted in looks, not in time: while this process was
stopped, no peer was slow.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Bytes per second.
LEAST_RATE: Final = 1024
LONGEST_S: Final = 300


class Transfer(NamedTuple):
    """A transfer of `total` bytes, of which `moved` are done; `number` tells it from others."""

    number: int
    moved: int
    total: int


def least_bytes(total: int, seconds: float) -> float:
    """Return how much of a transfer of `total` bytes must move in so many seconds."""
    return seconds * max(LEAST_RATE, total / LONGEST_S)


class Pace:
    """The pace of the transfers of one connection, one after the other."""

    __slots__ = ("_looks", "_moved", "_number")

    def __init__(self) -> None:
        self._number = -1
        self._moved = 0
        self._looks = 0

    def is_too_slow(self, transfer: Transfer, looks_per_window: int, window_s: float) -> bool:
        """Look at a transfer; return whether it moved too little in a whole window."""
        if transfer.number != self._number:
            self._begin_window(transfer)
            return False
        needed = min(least_bytes(transfer.total, window_s), transfer.total - self._moved)
        if transfer.moved - self._moved >= needed:
            self._begin_window(transfer)
            return False
        self._looks += 1
        return self._looks >= looks_per_window

    def pause(self) -> None:
        """Forget the present window: nothing moves now, and not because of the peer."""
        self._number = -1

    def _begin_window(self, transfer: Transfer) -> None:
        self._number, self._moved, _ = transfer
        self._looks = 0
