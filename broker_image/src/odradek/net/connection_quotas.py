"""Quotas shared by all connections of a broker: their number, and memory for requests.

Connections are counted over all listeners, in total and per address (`max.connections`,
`max.connections.per.ip`). Memory is counted for requests that do not fit into the first buffer of a
connection: the whole size is reserved before the rest of the request is read, and released when it
is answered. As in Kafka (`queued.max.request.bytes`) a request may start while any memory is left,
so one request can exceed the limit. A request that has started never waits again, so there is no
deadlock.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of connections and of the memory that they take in the broker and in the kernel.

    The kernel chooses a socket buffer of size 0 or less.
    """

    max_frame_bytes: int
    max_connections: int
    max_connections_per_ip: int
    max_idle_ms: int
    max_connections_of_ip: Mapping[str, int] = field(default_factory=dict)
    max_queued_bytes: int = UNLIMITED
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
        self._taken = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def limited(self) -> bool:
        """Return whether there is a limit."""
        return self._limit > 0

    def take(self, size: int) -> bool:
        """Reserve memory; return False if none is left."""
        if self.limited and self._taken >= self._limit:
            return False
        self._taken += size
        return True

    def give_back(self, size: int) -> None:
        """Release memory, and let waiting connections retry."""
        self._taken -= size
        ready, self._waiting = self._waiting, deque()
        for retry in ready:
            retry()

    def when_free(self, retry: Callable[[], None]) -> None:
        """Call `retry` once, when memory is released."""
        self._waiting.append(retry)
