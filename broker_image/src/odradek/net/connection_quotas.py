"""Quotas shared by all connections of a broker: their number, and memory for requests.

Connections are counted over all listeners, in total and per address (`max.connections`,
`max.connections.per.ip`). Memory (`queued.max.request.bytes`) is counted for requests that do not
fit into the first buffer of a connection: each step by which the buffer grows is reserved before
more of the request is read, and all are released when it is answered. So a peer takes no memory by
announcing a large request. While no memory is left, only the request that began first is read on,
and may exceed the limit: there is no deadlock, and one that stalls is closed by the listener.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

UNLIMITED: Final = -1
FRAME_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of connections and of the memory that they take in the broker and in the kernel.

    A connection is closed when a frame began to arrive and nothing more of it comes for
    `frame_timeout_ms`. The kernel chooses a socket buffer of size 0 or less.
    """

    max_frame_bytes: int
    max_connections: int
    max_connections_per_ip: int
    max_idle_ms: int
    max_connections_of_ip: Mapping[str, int] = field(default_factory=dict)
    max_queued_bytes: int = UNLIMITED
    frame_timeout_ms: int = FRAME_TIMEOUT_MS
    socket_send_bytes: int = UNLIMITED
    socket_receive_bytes: int = UNLIMITED


class ConnectionQuotas:
    """The quotas of one broker, shared by its listeners. Used from one event loop only."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.memory = RequestMemory(limits.max_queued_bytes)
        self._total = 0
        self._per_ip: Counter[str] = Counter()
        self._left = asyncio.Event()

    async def wait_for_place(self) -> None:
        """Wait until there are fewer connections than allowed."""
        while self._total >= self.limits.max_connections:
            self._left.clear()
            await self._left.wait()

    def enter(self, host: str) -> bool:
        """Count a connection; return False if its address has its maximum."""
        limits = self.limits
        most = limits.max_connections_of_ip.get(host, limits.max_connections_per_ip)
        if self._per_ip[host] >= most:
            return False
        self._total += 1
        self._per_ip[host] += 1
        return True

    def change_limits(self, limits: ConnectionLimits) -> None:
        """Change the limits for connections to come; those that are there stay."""
        self.limits = limits
        self._left.set()

    def leave(self, host: str) -> None:
        """Stop counting a connection."""
        self._total -= 1
        self._per_ip[host] -= 1
        if not self._per_ip[host]:
            del self._per_ip[host]
        self._left.set()


class RequestMemory:
    """Bytes of large requests that are being read or processed, at most about `limit`.

    There is no limit if it is 0 or less.
    """

    def __init__(self, limit: int = UNLIMITED) -> None:
        self._limit = limit
        self.limited = limit > 0
        # By the owner of the request, in the order in which requests began.
        self._taken: dict[object, int] = {}
        self._total = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def full(self) -> bool:
        """Return whether no memory is left."""
        return self.limited and self._total >= self._limit

    def take(self, owner: object, size: int) -> bool:
        """Reserve memory for a request, `size` bytes in all.

        Return False if none is left, unless the request of this owner began first.
        """
        taken = self._taken.get(owner, 0)
        if size <= taken:
            return True
        if self.full and owner is not next(iter(self._taken)):
            return False
        self._taken[owner] = size
        self._total += size - taken
        return True

    def give_back(self, owner: object) -> None:
        """Release the memory of a request, and let waiting connections retry."""
        taken = self._taken.pop(owner, 0)
        if not taken:
            return
        self._total -= taken
        ready, self._waiting = self._waiting, deque()
        for retry in ready:
            retry()

    def when_free(self, retry: Callable[[], None]) -> None:
        """Call `retry` once, when memory is released."""
        self._waiting.append(retry)
