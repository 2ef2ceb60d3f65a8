"""The request behind the one in progress, which waits for it: answers go out in order.

A fetch that waits for records would hold up what its client asks next on the same connection, for
as long as `max_wait_ms` says. So it looks here, and ends its wait early (ADR 20). Another fetch may
wait, as it would do by itself: else a client that always has two on the way would get empty answers
without end.
"""

from collections.abc import Callable
from typing import Final

from odradek.protocol.api import ApiKey

NOT_THERE: Final = -1


def _nothing() -> int:
    return NOT_THERE


class NextRequest:
    """The next request of a connection; `key` returns its API key, -1 until that has arrived."""

    __slots__ = ("_call", "_key")

    def __init__(self, key: Callable[[], int] = _nothing) -> None:
        self._key = key
        self._call: Callable[[], None] | None = None

    def is_held_up(self) -> bool:
        """Return whether there is one, and it is no fetch."""
        return self._key() not in (NOT_THERE, ApiKey.FETCH)

    def watch(self, call: Callable[[], None]) -> None:
        """Call `call` when one that is held up arrives, at once if it is there."""
        self._call = call
        self.arrived()

    def unwatch(self) -> None:
        """Call nothing any more."""
        self._call = None

    def arrived(self) -> None:
        """Note that bytes came behind the request in progress."""
        if self._call is not None and self.is_held_up():
            self._call()
