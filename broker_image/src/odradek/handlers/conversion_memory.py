"""Memory for record formats of old clients: bounded in all, first come, first served.

A conversion holds its result until it goes to the connection, which counts it further on. What does
not fit waits (`odradek.conversion.max.bytes`). One that is larger than the limit runs alone.
Followers have memory of their own, so that consumers do not hold up replication.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

UNLIMITED = -1


class ConversionMemory:
    """Memory of at most `limit` bytes; there is no limit if it is 0 or less."""

    def __init__(self, limit: int = UNLIMITED) -> None:
        self._limit = limit
        self.taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def reserved(self, size: int) -> AsyncIterator[None]:
        """Hold `size` bytes; wait until they are free.

        Who holds memory must not ask for more: that could wait for ever.
        """
        if self._waiting or not self._fits(size):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give_back(size)
                raise
        else:
            self.taken += size
        try:
            yield
        finally:
            self._give_back(size)

    def _fits(self, size: int) -> bool:
        return not self.taken or self._limit <= 0 or self.taken + size <= self._limit

    def _give_back(self, size: int) -> None:
        self.taken -= size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.cancelled():
                self._waiting.popleft()
            elif self._fits(wanted):
                self._waiting.popleft()
                self.taken += wanted
                turn.set_result(None)
            else:
                return
