"""What all connections of a broker may hold together: places, and memory for requests.

Places are counted over all listeners, in all and by address, as `max.connections` and
`max.connections.per.ip` say. Memory is counted for requests that do not fit into a connection's
first buffer: before the rest of such a request is read, its whole size is set aside, and given back
when it is answered. As in Kafka (`queued.max.request.bytes`) a request may begin as long as
anything is left, so the bound can be exceeded by one; and since what has begun never waits again,
nobody waits for somebody who waits.
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
    """Bounds on what peers can make a broker hold, and on what the kernel holds for each of them.

    A socket's buffer of 0 or less is left to the kernel.
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
    """The places and the memory of one broker; its listeners share it. One event loop only."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.memory = RequestMemory(limits.max_queued_bytes)
        self._total = 0
        self._per_ip: Counter[str] = Counter()
        self._left = asyncio.Event()

    async def wait_for_place(self) -> None:
        """Return once there are fewer connections than allowed."""
        while self._total >= self.limits.max_connections:
            self._left.clear()
            await self._left.wait()

    def enter(self, host: str) -> bool:
        """Count a connection, unless its address has as many as it may have."""
        limits = self.limits
        most = limits.max_connections_of_ip.get(host, limits.max_connections_per_ip)
        if self._per_ip[host] >= most:
            return False
        self._total += 1
        self._per_ip[host] += 1
        return True

    def leave(self, host: str) -> None:
        """Uncount a connection that had entered."""
        self._total -= 1
        self._per_ip[host] -= 1
        if not self._per_ip[host]:
            del self._per_ip[host]
        self._left.set()


class RequestMemory:
    """Bytes of large requests that are being read or in work, at most about `limit`; no bound at 0
    or less.
    """

    def __init__(self, limit: int = UNLIMITED) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def limited(self) -> bool:
        """Tell whether there is a bound at all."""
        return self._limit > 0

    def take(self, size: int) -> bool:
        """Set memory aside; False when none is left."""
        if self.limited and self._taken >= self._limit:
            return False
        self._taken += size
        return True

    def give_back(self, size: int) -> None:
        """Return what was taken, and let those who wait try again."""
        self._taken -= size
        ready, self._waiting = self._waiting, deque()
        for retry in ready:
            retry()

    def when_free(self, retry: Callable[[], None]) -> None:
        """Call `retry` once, when something was given back."""
        self._waiting.append(retry)
