"""What a client was given and has not asked beyond: it will, on the same connection, and soon.

A consumer leaves partitions out of its next fetch while it works on their records. If it is at the
end of all others, that fetch waits, and once the records are used up nobody can ask for more until
the wait is over. So such a wait is short at first (ADR 21).
"""

from collections.abc import Collection, Hashable, Iterable
from typing import Final

FIRST_WAIT_MS: Final = 5
"""A wait beside fresh records. They last for some milliseconds: a mebibyte at a gigabyte per s."""
LAST_WAIT_MS: Final = 320
KEYS: Final = 1000
"""So many partitions are remembered of a connection at most."""


class Unasked:
    """The partitions of a connection that its client has records of, and for how long to wait."""

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: dict[Hashable, int] = {}

    def wait_ms(self, asked: Iterable[Hashable], most_ms: int) -> int:
        """Return how long a fetch of these partitions may wait, at most `most_ms`."""
        waits = self._waits
        if not waits:
            return most_ms
        for key in asked:
            waits.pop(key, None)
        return min(most_ms, *waits.values()) if waits else most_ms

    def wait_beside_ms(self, asked: Collection[Hashable], most_ms: int) -> int:
        """As `wait_ms`, for a fetch of perhaps many partitions, which are quick to look up in."""
        waits = self._waits
        if not waits:
            return most_ms
        if len(asked) > len(waits):
            asked = [key for key in waits if key in asked]
        return self.wait_ms(asked, most_ms)

    def answer(self, given: Iterable[Hashable]) -> None:
        """Note of which partitions an answer has records.

        After one without any, the next wait is twice as long: perhaps the client has paused, or
        lost, the partitions that it does not ask for.
        """
        waits = self._waits
        fresh = dict.fromkeys(given, FIRST_WAIT_MS)
        if fresh:
            waits.update(fresh)
            if len(waits) > KEYS:
                waits.clear()
        elif waits:
            self._waits = {key: 2 * wait for key, wait in waits.items() if wait < LAST_WAIT_MS}
