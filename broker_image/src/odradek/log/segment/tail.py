"""Positions of a segment's newest batches: reads near the end need no index and no scan."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from odradek.log.segment.placed import Placed

_TAIL_BATCHES = 128


class Tail:
    """At most 128 (last offset, position) pairs, one per batch; the oldest are dropped first."""

    __slots__ = ("_first", "_last_offsets", "_positions")

    def __init__(self) -> None:
        self._first = -1
        self._last_offsets = array("q")
        self._positions = array("q")

    def add(self, batches: Sequence[Placed], position: int) -> None:
        """Remember batches, which are written at `position` and follow those before."""
        last_offsets, positions = self._last_offsets, self._positions
        if not last_offsets:
            _, _, self._first, _, _ = batches[0]
        for at, _, _, last_offset, _ in batches:
            if len(last_offsets) >= _TAIL_BATCHES:
                half = _TAIL_BATCHES // 2
                self._first = last_offsets[half - 1] + 1
                del last_offsets[:half], positions[:half]
            last_offsets.append(last_offset)
            positions.append(position + at)

    def find(self, offset: int, end: int) -> tuple[int, int] | None:
        """Return start and end position of the first batch whose last offset is at least `offset`.

        None when that batch is not remembered; `end` is where the last one ends.
        """
        if offset < self._first:
            return None
        found = bisect_left(self._last_offsets, offset)
        count = len(self._last_offsets)
        if found == count:
            return None
        following = self._positions[found + 1] if found + 1 < count else end
        return self._positions[found], following
