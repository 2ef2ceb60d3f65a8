"""The connections of browsers: bounded in number and in silence, so that nobody keeps others out.

aiohttp takes connections until no file descriptor is left, and asyncio shows it those with TLS only
after the handshake. So they are accepted and counted here. At the bound, the one that has gone
without a complete request longest is closed, in a handshake or after it, but none that is being
answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from odradek import descriptors

MOST_CONNECTIONS: Final = 128
# Longer than proxies keep connections that nobody uses, which is a minute as a rule.
LONGEST_SILENCE_S: Final = 75.0
_BACKLOG: Final = 1024
_PAUSE_S: Final = 1.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Connection:
    """`end_of_silence` closes it, unless a request is complete before."""

    sock: socket.socket
    end_of_silence: asyncio.TimerHandle
    is_answered: bool = False


class Connections:
    """The open connections, by descriptor, in the order in which their silence began.

    They are at most `MOST_CONNECTIONS`, and half of the descriptors that the process may have.
    """

    def __init__(self) -> None:
        self._most = min(MOST_CONNECTIONS, descriptors.budget().connections)
        self._open: dict[int, _Connection] = {}

    def add(self, sock: socket.socket) -> bool:
        """Count a new connection; return False if there is no room for it."""
        self._forget_closed()
        if len(self._open) >= self._most and not self.close_most_silent():
            return False
        self._open[sock.fileno()] = _Connection(sock, _close_later(sock))
        return True

    def close_most_silent(self) -> bool:
        """Close the connection that has been silent longest; return False if none is."""
        for descriptor, one in self._open.items():
            if not one.is_answered:
                del self._open[descriptor]
                one.end_of_silence.cancel()
                _hang_up(one.sock)
                return True
        return False

    @contextlib.contextmanager
    def answering(self, request: web.Request) -> Iterator[None]:
        """A complete request is being answered: its connection stays open meanwhile."""
        sock = request.get_extra_info("socket")
        descriptor = -1 if sock is None else sock.fileno()
        one = self._open.get(descriptor)
        if one is None:
            yield
            return
        one.end_of_silence.cancel()
        one.is_answered = True
        try:
            yield
        finally:
            one.is_answered = False
            # If it was closed meanwhile, the descriptor may be another's.
            if self._open.get(descriptor) is one:
                one.end_of_silence = _close_later(one.sock)
                self._open[descriptor] = self._open.pop(descriptor)

    def _forget_closed(self) -> None:
        for descriptor, one in list(self._open.items()):
            if one.sock.fileno() < 0:
                del self._open[descriptor]
                one.end_of_silence.cancel()


CONNECTIONS: Final = web.AppKey("connections", Connections)


class ConsoleListener:
    """Takes connections for an aiohttp server."""

    def __init__(
        self, server: web.Server, connections: Connections, tls: ssl.SSLContext | None
    ) -> None:
        self._server = server
        self._connections = connections
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> None:
        """Listen on each address of a host, "" for every address. Raises OSError, UnicodeError."""
        loop = asyncio.get_running_loop()
        bound = await loop.create_server(asyncio.Protocol, host or None, port, start_serving=False)
        self._sockets += [one.dup() for one in bound.sockets]
        bound.close()
        for one in self._sockets:
            one.listen(_BACKLOG)
            self._start(self._accept(one))

    @property
    def addresses(self) -> list[Any]:
        """Return the addresses where it listens."""
        return [one.getsockname() for one in self._sockets]

    async def close(self) -> None:
        """Take no more connections, and end the handshakes of those that were taken."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._sockets:
            one.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue  # the peer has gone again
            except OSError as error:
                # Something else has the descriptors of this process, or of the machine.
                if not self._connections.close_most_silent():
                    log.warning("failed to take a connection: %s; trying again", error.strerror)
                    await asyncio.sleep(_PAUSE_S)
            else:
                if self._connections.add(sock):
                    self._start(self._hand_over(sock))
                else:
                    sock.close()
            # The descriptor of one that was closed is free after a turn of the loop.
            await asyncio.sleep(0)

    async def _hand_over(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # a handshake that failed
            await loop.connect_accepted_socket(self._server, sock, ssl=self._tls)


def _close_later(sock: socket.socket) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(LONGEST_SILENCE_S, _hang_up, sock)


def _hang_up(sock: socket.socket) -> None:
    """Let whoever has the socket find its end, and close it."""
    with contextlib.suppress(OSError):  # the peer has gone
        sock.shutdown(socket.SHUT_RDWR)
