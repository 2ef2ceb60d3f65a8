"""Lets one fetch of a follower bring what several requests append.

A fetch costs a leader and its follower the same, however much it brings. The append that ends its
wait is often the first of several that are in the kernel already: requests of the same producer,
which come one by one through its buffer, and those of others. They are appended before the fetch is
answered, as long as each look at the sockets finds more of them, and for `MOST_S` at most. Where
nothing more is there, that takes one turn of the event loop, and no time is waited for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from odradek.replica.fetch_sessions import SessionWatchers

MOST_S: Final = 0.001
"""Seconds after which no further look at the sockets begins."""


async def gather(watchers: SessionWatchers) -> None:
    """Return once a look at the sockets has brought followers nothing more to fetch."""
    time = asyncio.get_running_loop().time
    until = time() + MOST_S
    moves = -1
    while moves != watchers.log_end_moves and time() < until:
        # Who was woken is called before what the event loop finds at the sockets in the same turn.
        moves = watchers.log_end_moves
        await asyncio.sleep(0)
