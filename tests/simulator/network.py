"""Calls between processes: they take time, get lost, arrive late, or are refused.

As with TCP, a request may arrive although its connection was lost: it may be in the buffers of a
stopped process, or arrive long after the caller retried on another connection. Requests of one
client that are answered arrive in their order.

`NEVER_LATE` are requests that do not arrive once their sender gave up. A marker that comes after
the coordinator wrote it again may end the producer's next transaction, which has the same epoch:
that is a weakness of protocol 2.8 (KIP-890 gives each transaction an epoch of its own).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from odradek.protocol.messages.transactions import WriteTxnMarkersRequest
from tests.simulator.world import Process, World

Serve = Callable[[Any, int, int], Awaitable[Any]]
"""Answers a request, given its version and the number of its connection."""

CALL_TIMEOUT_S = 1.5
LATE_S = 4.0
NEVER_LATE = (WriteTxnMarkersRequest,)


@dataclass(slots=True)
class Weather:
    """The present faults of the network, as fractions of calls."""

    lost: float = 0.0
    # The connection breaks at once, and the request still arrives, much later.
    late: float = 0.0
    slow: float = 0.02


class Network:
    """The processes by name, and the links that are cut."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.weather = Weather()
        self.cuts: set[tuple[str, str]] = set()
        # Requests that it names (source, target, request) do not arrive before `release_first`.
        self.holds: Callable[[str, str, Any], bool] = lambda source, target, request: False
        self._held: list[tuple[Process, Callable[[None, None], None]]] = []
        self._servers: dict[str, tuple[Process, Serve]] = {}
        self._connection_ids = itertools.count(1)

    def listen(self, process: Process, serve: Serve) -> None:
        """Serve requests to the process's name."""
        self._servers[process.name] = process, serve

    def _delay(self) -> float:
        chance = self.world.chance
        if chance.random() < self.weather.slow:
            return chance.uniform(0.05, 0.5)
        return chance.uniform(0.0003, 0.003)

    def connect(self) -> int:
        """Return the number of a new connection."""
        return next(self._connection_ids)

    async def call(
        self, source: Process, target: str, request: Any, version: int, connection_id: int
    ) -> Any:
        """Return the response. Raise ConnectionError or TimeoutError."""
        server, serve = self._servers.get(target, (None, None))
        chance = self.world.chance
        if server is None or serve is None or server.dead:
            await asyncio.sleep(self._delay())
            raise ConnectionError(f"nobody listens at {target}")
        future: asyncio.Future[Any] = source.loop.create_future()
        punctual = isinstance(request, NEVER_LATE)
        arrive = partial(
            self._serve, server, lambda: serve(request, version, connection_id), punctual
        )
        if self.holds(source.name, target, request):
            self._held.append((server, arrive))
        elif chance.random() < self.weather.late and not punctual:
            self.world.later(chance.uniform(0, LATE_S), server, arrive, None, None)
            await asyncio.sleep(self._delay())
            raise ConnectionError(f"the connection to {target} broke")
        elif (source.name, target) not in self.cuts and chance.random() >= self.weather.lost:
            self.world.later(self._delay(), server, arrive, future, source)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise TimeoutError(f"{target}: no answer") from None

    @property
    def held(self) -> int:
        """Return how many requests are held."""
        return len(self._held)

    def release_first(self) -> None:
        """Let the first held request arrive, whose caller gave up long ago."""
        server, arrive = self._held.pop(0)
        self.world.later(0, server, arrive, None, None)

    def _serve(
        self,
        server: Process,
        serve: Callable[[], Awaitable[Any]],
        punctual: bool,
        future: asyncio.Future[Any] | None,
        source: Process | None,
    ) -> None:
        # What a process sent before it died arrives all the same.
        if punctual and future is not None and future.done() and source and not source.dead:
            return

        async def answer() -> None:
            response = await serve()
            if future is None or source is None:
                return
            if (server.name, source.name) in self.cuts:
                return
            if self.world.chance.random() < self.weather.lost:
                return
            self.world.later(self._delay(), source, _resolve, future, response)

        server.spawn(answer())


def _resolve(future: asyncio.Future[Any], response: Any) -> None:
    if not future.done():
        future.set_result(response)


class Client:
    """Replaces `net.client.PeerClient`: a connection between processes.

    It is closed when an answer is missing.
    """

    def __init__(self, network: Network, source: Process, target: str) -> None:
        self._network = network
        self._source = source
        self._target = self.host = target
        self.port = 9092
        self._connection_id: int | None = None

    async def call(self, request: Any, version: int, timeout_ms: int) -> Any:
        """Send a request and return its response."""
        if self._connection_id is None:
            self._connection_id = self._network.connect()
        try:
            return await self._network.call(
                self._source, self._target, request, version, self._connection_id
            )
        except (OSError, asyncio.CancelledError):
            self._connection_id = None
            raise

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""
