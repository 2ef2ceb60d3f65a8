"""Quotas shared by all connections of a broker: their number, their rate, and memory.

Connections are counted over all listeners, in total and per address (`max.connections`,
`max.connections.per.ip`), and new ones per second (KIP-612): of all, of a listener
(`max.connection.creation.rate`), and of an address (`connection_creation_rate` in ZooKeeper). Other
brokers are exempt from the total and from the rates: at the maximum, the connection of a broker
takes the place of the ordinary one that was used least recently, as in Kafka. Memory is counted in
`memory_quotas`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from odradek.net.memory_quotas import UNLIMITED, AnswerMemory, RequestMemory
from odradek.net.rare_log import RareLog
from odradek.protocol.api import ApiKey

FRAME_TIMEOUT_MS: Final = 30_000
UNLIMITED_RATE: Final = 2**31 - 1
# Places of brokers above the maximum when there is no ordinary connection to close.
BROKER_PLACES: Final = 64
# Addresses whose rates are remembered.
MOST_ADDRESSES: Final = 10_000
DEFAULT_ADDRESS: Final = "<default>"
# Connections among which the least recently used one is looked for.
_LOOKED_AT: Final = 1000
# No connection waits longer for the rate, as in Kafka.
_LONGEST_DELAY_S: Final = 1.0
_SHORTEST_DELAY_S: Final = 0.001
_CONTROL_KEYS: Final = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
    }
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of connections and of the memory that they take in the broker and in the kernel.

    A connection is closed when a frame that began to arrive, or an answer in our memory, moves too
    little in `frame_timeout_ms` (see `pace`). The kernel chooses a socket buffer of size 0 or less.
    """

    max_frame_bytes: int
    max_connections: int
    max_connections_per_ip: int
    max_idle_ms: int
    max_connections_of_ip: Mapping[str, int] = field(default_factory=dict)
    max_creation_rate: int = UNLIMITED_RATE
    max_queued_bytes: int = UNLIMITED
    max_answer_bytes: int = UNLIMITED
    frame_timeout_ms: int = FRAME_TIMEOUT_MS
    socket_send_bytes: int = UNLIMITED
    socket_receive_bytes: int = UNLIMITED


class Replaceable(Protocol):
    """A connection that may have to make room for that of a broker."""

    def idle_seconds(self) -> float:
        """Return the seconds without traffic."""

    def abort(self, reason: str) -> None:
        """Close the connection at once."""


class CreationRate:
    """Delays connections above `per_second`, after a burst of as many as one second has.

    `clock` is in seconds.
    """

    def __init__(self, per_second: int, clock: Callable[[], float]) -> None:
        self._interval = 1 / max(1, per_second)
        self._clock = clock
        self._next = clock() - _LONGEST_DELAY_S

    def delay_s(self) -> float:
        """Count a connection; return the seconds that it has to wait, 0 if none."""
        now = self._clock()
        self._next = max(self._next, now - 1) + self._interval
        delay_s = self._next - now
        return min(delay_s, _LONGEST_DELAY_S) if delay_s >= _SHORTEST_DELAY_S else 0.0

    def refusal_s(self) -> float:
        """Count a connection if it has to wait for nothing; else return how long, at least."""
        now = self._clock()
        following = max(self._next, now - 1) + self._interval
        if following - now >= _SHORTEST_DELAY_S:
            return min(following - now, _LONGEST_DELAY_S)
        self._next = following
        return 0.0

    def is_idle(self) -> bool:
        """Return whether a new one would be the same."""
        return self._next <= self._clock() - 1


class AddressRates:
    """How many connections each address may make per second. Used from one event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limits: Mapping[str, int] = {}
        self._rates: dict[str, CreationRate] = {}

    def limit(self, per_second: Mapping[str, int]) -> None:
        """Set the limit of each address; DEFAULT_ADDRESS: of each one that has none."""
        self._limits = per_second
        self._rates = {}

    def refusal_s(self, host: str) -> float:
        """Count a connection; above the rate of its address return how long to keep it off."""
        limits = self._limits
        limit = limits.get(host, limits.get(DEFAULT_ADDRESS)) if limits else None
        if limit is None:
            return 0.0
        rate = self._rates.get(host)
        if rate is None:
            if len(self._rates) >= MOST_ADDRESSES:
                self._forget()
            rate = self._rates[host] = CreationRate(limit, self._clock)
        return rate.refusal_s()

    def _forget(self) -> None:
        """Forget addresses that made no connection for a second, or else the first half."""
        kept = {host: rate for host, rate in self._rates.items() if not rate.is_idle()}
        if len(kept) >= MOST_ADDRESSES:
            kept = dict(islice(kept.items(), len(kept) // 2, None))
        self._rates = kept


class ConnectionQuotas:
    """The quotas of one broker, shared by its listeners. Used from one event loop only.

    `refused`, `delayed` and `closed` count connections by the reason; `log` is for lines about
    them.
    """

    def __init__(self, limits: ConnectionLimits, addresses: AddressRates | None = None) -> None:
        self.limits = limits
        self.addresses = addresses or AddressRates()
        self.answers = AnswerMemory(limits.max_answer_bytes)
        self.log = RareLog(logger)
        self.refused = Counter({"per-address": 0, "waiting": 0, "address-rate": 0})
        self.delayed = Counter({"rate": 0, "max-connections": 0, "descriptors": 0})
        self.closed = Counter(
            {
                "idle": 0,
                "slow-request": 0,
                "slow-answer": 0,
                "replaced": 0,
                "violation": 0,
                "authentication": 0,
            }
        )
        # Connections that are not read for a while: their clients are over a quota (KIP-219).
        self.muted = 0
        self._memory = RequestMemory(limits.max_queued_bytes)
        self._control_memory = RequestMemory(limits.max_queued_bytes)
        self._total = 0
        self._per_ip: Counter[str] = Counter()
        self._left = asyncio.Event()
        # Connections of ordinary clients, the oldest first.
        self._ordinary: dict[Replaceable, None] = {}
        self._rate: CreationRate | None = None

    @property
    def memory(self) -> RequestMemory:
        """Return the memory for large requests of clients."""
        return self._memory

    def memory_for(self, api_key: int) -> RequestMemory:
        """Return the memory for a large request. The controller's do not wait for clients'."""
        return self._control_memory if api_key in _CONTROL_KEYS else self._memory

    def creation_delay_s(self) -> float:
        """Count a new connection; return the seconds that it has to wait."""
        if self._rate is None:
            clock = asyncio.get_running_loop().time
            self._rate = CreationRate(self.limits.max_creation_rate, clock)
        return self._rate.delay_s()

    @property
    def free_places(self) -> int:
        """Return how many connections more are allowed."""
        return max(0, self.limits.max_connections - self._total)

    @property
    def full(self) -> bool:
        """Return whether there are as many connections as allowed."""
        return not self.free_places

    async def wait_for_place(self) -> None:
        """Wait until there are fewer connections than allowed."""
        while self.full:
            self._left.clear()
            await self._left.wait()

    def make_place(self) -> bool:
        """Make a place for a broker's connection at the maximum; return False if that fails.

        The least recently used ordinary connection is closed (Kafka: `closeExcessConnections`).
        """
        if not self.full:
            return True
        looked_at = list(islice(self._ordinary, _LOOKED_AT))
        if not looked_at:
            return self._total < self.limits.max_connections + BROKER_PLACES
        victim = max(looked_at, key=lambda one: one.idle_seconds())
        del self._ordinary[victim]
        victim.abort("replaced")
        return True

    def allows(self, host: str, waiting: int = 0) -> bool:
        """Return whether an address, of which some are `waiting`, may have another connection."""
        limits = self.limits
        most = limits.max_connections_of_ip.get(host, limits.max_connections_per_ip)
        return self._per_ip.get(host, 0) + waiting < most

    def enter(self, host: str) -> bool:
        """Count a connection; return False if its address has its maximum."""
        if not self.allows(host):
            return False
        self._total += 1
        self._per_ip[host] += 1
        return True

    def change_limits(self, limits: ConnectionLimits) -> None:
        """Change the limits for connections to come; those that are there stay."""
        if limits.max_creation_rate != self.limits.max_creation_rate:
            self._rate = None
        self.limits = limits
        self._left.set()

    def leave(self, host: str) -> None:
        """Stop counting a connection."""
        self._total -= 1
        self._per_ip[host] -= 1
        if not self._per_ip[host]:
            del self._per_ip[host]
        self._left.set()

    def add_ordinary(self, connection: Replaceable) -> None:
        """Remember a connection that is no broker's."""
        self._ordinary[connection] = None

    def discard_ordinary(self, connection: Replaceable) -> None:
        """Forget a connection that ended."""
        self._ordinary.pop(connection, None)
