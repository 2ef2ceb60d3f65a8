"""Calls between processes: they take time, get lost, arrive late, or find nobody.

A lost connection leaves it open whether the request arrives, as with TCP: it may still be in the
buffers of a stopped process, or come long after the caller has given up and asked again on another
connection. Requests of one client that are answered arrive in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from odradek.protocol.messages.control import UpdateMetadataRequest
from tests.simulator.world import Process, World

Serve = Callable[[Any, int], Awaitable[Any]]

CALL_TIMEOUT_S = 1.5
LATE_S = 4.0


@dataclass(slots=True)
class Weather:
    """How bad the network is now; shares of calls."""

    lost: float = 0.0
    # The connection breaks at once, and the request arrives all the same, much later. (Of
    # UpdateMetadata nothing in the protocol tells whether it is older than what is known.)
    late: float = 0.0
    slow: float = 0.02


class Network:
    """Who serves under which name, and which ways are cut."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.weather = Weather()
        self.cuts: set[tuple[str, str]] = set()
        self._servers: dict[str, tuple[Process, Serve]] = {}

    def listen(self, process: Process, serve: Serve) -> None:
        """Serve requests to the process's name."""
        self._servers[process.name] = process, serve

    def _delay(self) -> float:
        chance = self.world.chance
        if chance.random() < self.weather.slow:
            return chance.uniform(0.05, 0.5)
        return chance.uniform(0.0003, 0.003)

    async def call(self, source: Process, target: str, request: Any, version: int) -> Any:
        """The response. Raises ConnectionError or TimeoutError."""
        server, serve = self._servers.get(target, (None, None))
        chance = self.world.chance
        if server is None or serve is None or server.dead:
            await asyncio.sleep(self._delay())
            raise ConnectionError(f"nobody listens at {target}")
        future: asyncio.Future[Any] = source.loop.create_future()
        if chance.random() < self.weather.late and not isinstance(request, UpdateMetadataRequest):
            wait = chance.uniform(0, LATE_S)
            self.world.later(wait, server, self._serve, server, serve, request, version, None, None)
            await asyncio.sleep(self._delay())
            raise ConnectionError(f"the connection to {target} broke")
        if (source.name, target) not in self.cuts and chance.random() >= self.weather.lost:
            self.world.later(
                self._delay(), server, self._serve, server, serve, request, version, future, source
            )
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise TimeoutError(f"{target}: no answer") from None

    def _serve(
        self,
        server: Process,
        serve: Serve,
        request: Any,
        version: int,
        future: asyncio.Future[Any] | None,
        source: Process | None,
    ) -> None:
        async def answer() -> None:
            response = await serve(request, version)
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
    """What `net.client.PeerClient` offers, from one process to another."""

    def __init__(self, network: Network, source: Process, target: str) -> None:
        self._network = network
        self._source = source
        self._target = target

    async def call(self, request: Any, version: int, timeout_ms: int) -> Any:
        """Send a request and return its response."""
        return await self._network.call(self._source, self._target, request, version)

    async def close(self) -> None:
        """Nothing to close."""
