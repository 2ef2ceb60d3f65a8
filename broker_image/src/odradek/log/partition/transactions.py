"""Where the transactions of a log begin: what a reader of committed records may not see yet.

A transaction is undecided while it is open, and while its marker is not replicated: another leader
may not have the marker. The last stable offset is where the first undecided transaction begins, or
the high watermark if that is lower (KIP-98).
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from odradek.log.records.batch import NO_PRODUCER_ID

NONE: Final = -1


class Transactions:
    """The open transactions of one partition, and those that ended a short time ago.

    One writer at a time. Any thread may ask for the last stable offset, and tell meanwhile what is
    replicated.
    """

    __slots__ = ("_ended", "_first_open", "_open", "first_producer")

    def __init__(self) -> None:
        # First offsets by producer id, rising.
        self._open: dict[int, int] = {}
        self._first_open = NONE
        self.first_producer = NO_PRODUCER_ID
        """The producer of the first open transaction, -1 without one."""
        # First and last offsets; the last is the marker's, and rises.
        self._ended: deque[tuple[int, int]] = deque()

    def restart(self, first_offsets: Iterable[tuple[int, int]] = ()) -> None:
        """Know only these open transactions: producer ids with first offsets."""
        self._open = dict(sorted(first_offsets, key=lambda one: one[1]))
        self._ended = deque()
        self._changed()

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note a transaction that begins behind all others."""
        self._open[producer_id] = first_offset
        self._changed()

    def end(self, producer_id: int, last_offset: int) -> None:
        """Note the marker of a producer's open transaction."""
        self._ended.append((self._open.pop(producer_id), last_offset))
        self._changed()

    def drop(self, producer_id: int) -> None:
        """Forget a producer's open transaction: none of its records is left."""
        del self._open[producer_id]
        self._changed()

    @property
    def open_producers(self) -> tuple[int, ...]:
        """The producers with an open transaction."""
        return tuple(self._open)

    @property
    def open_count(self) -> int:
        """How many transactions are open."""
        return len(self._open)

    @property
    def are_undecided(self) -> bool:
        """Return whether the last stable offset may be below the high watermark."""
        return bool(self._open or self._ended)

    def _changed(self) -> None:
        self.first_producer, self._first_open = next(
            iter(self._open.items()), (NO_PRODUCER_ID, NONE)
        )

    def forget_replicated(self, high_watermark: int) -> None:
        """Forget the ended transactions whose markers are replicated."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            ended.popleft()

    def first_open_beside(self, producer_id: int) -> int:
        """Return where the first open transaction of another producer begins, -1 without any."""
        return next((first for one, first in self._open.items() if one != producer_id), NONE)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset up to which every transaction is decided."""
        stable = high_watermark
        if NONE < self._first_open < stable:
            stable = self._first_open
        for first, last in tuple(self._ended):
            if last >= high_watermark and first < stable:
                stable = first
        return stable
