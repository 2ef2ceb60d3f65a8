"""A small HTTP server in a thread of its own, for probes and metrics: nobody can exhaust it.

One thread waits for all peers, so that those who connect and send nothing take no threads. Their
number is bounded: a new connection closes the oldest of those that have not asked yet. So a probe,
which asks at once, is served however many others are silent. Quick answers are given by that
thread, slow ones by a pool, behind which quick ones do not wait. An exchange ends after a time, and
each connection serves one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote, urlsplit

MOST_CONNECTIONS: Final = 32
MOST_HEAD_BYTES: Final = 8 * 1024
LONGEST_EXCHANGE_S: Final = 30.0
POOL_THREADS: Final = 2
_BACKLOG: Final = 1024
_ACCEPTED_AT_ONCE: Final = 8
_STOP_PAUSE_S: Final = 0.01
_PLAIN: Final = {"Content-Type": "text/plain; charset=utf-8"}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request without its body; the names of headers are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A status line without the version, headers, and the body."""

    status: str
    headers: Mapping[str, str]
    body: bytes


def plain(status: HTTPStatus, text: str) -> HttpAnswer:
    """Return an answer of one line of text."""
    return HttpAnswer(f"{status} {status.phrase}", _PLAIN, f"{text}\n".encode())


class HttpServer:
    """Serves a port of one address, or of every one (`host` is ""). Raises OSError if it cannot.

    `port` 0 is any free one, which the attribute then names.

    `quick` answers what needs no waiting, from the server's thread, or returns None. Then `slow`
    answers, in a pool.
    """

    def __init__(
        self,
        port: int,
        quick: Callable[[HttpRequest], HttpAnswer | None],
        slow: Callable[[HttpRequest], HttpAnswer],
        host: str = "",
    ) -> None:
        self._quick = quick
        self._slow = slow
        # The oldest first.
        self._silent: dict[asyncio.Task[object], None] = {}
        self._asked: dict[asyncio.Task[object], None] = {}
        self._pool = ThreadPoolExecutor(POOL_THREADS, "metrics")
        self._sock = _bound(host, port)
        self.port: int = self._sock.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    @property
    def connection_count(self) -> int:
        """Return the number of open connections."""
        return len(self._silent) + len(self._asked)

    def stop(self) -> None:
        """Close all connections and the port, and end the thread."""
        with contextlib.suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        with contextlib.closing(self._loop), self._sock:
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._exchange, sock=self._sock, limit=MOST_HEAD_BYTES, backlog=_ACCEPTED_AT_ONCE
        )
        self._sock.listen(_BACKLOG)  # asyncio accepts as many at once as it lets wait
        async with server:
            await self._stopping.wait()
            # Connections that are being accepted while it closes are never closed by asyncio.
            self._loop.remove_reader(self._sock)
            await asyncio.sleep(0)
            server.close()
            while exchanges := asyncio.all_tasks() - {asyncio.current_task()}:
                # Only those that began close their connections; others begin first.
                for one in [*self._silent, *self._asked]:
                    one.cancel()
                await asyncio.wait(exchanges, timeout=_STOP_PAUSE_S)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this as a task"
        self._silent[task] = None
        self._make_room()
        try:
            async with asyncio.timeout(LONGEST_EXCHANGE_S):
                writer.write(await self._response(reader, task))
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, asyncio.CancelledError):
            writer.transport.abort()  # the peer is gone or too slow, or has to make room
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        finally:
            self._silent.pop(task, None)
            self._asked.pop(task, None)

    async def _response(self, reader: asyncio.StreamReader, task: asyncio.Task[object]) -> bytes:
        try:
            request = _parsed(await reader.readuntil(b"\r\n\r\n"))
        except (ValueError, asyncio.LimitOverrunError):
            return _encoded(plain(HTTPStatus.BAD_REQUEST, "no HTTP request"))
        del self._silent[task]
        self._asked[task] = None
        answer = await self._answer(request)
        return _encoded(answer, with_body=request.method != "HEAD")

    def _make_room(self) -> None:
        if len(self._silent) + len(self._asked) > MOST_CONNECTIONS:
            oldest = next(iter(self._silent if len(self._silent) > 1 else self._asked))
            self._silent.pop(oldest, None)
            self._asked.pop(oldest, None)
            oldest.cancel()

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        try:
            quick = self._quick(request)
            if quick is not None:
                return quick
            return await self._loop.run_in_executor(self._pool, self._slow, request)
        except Exception:
            logger.exception("failed to answer %s %s", request.method, request.path)
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, "failed; the log says why")


def _bound(host: str, port: int) -> socket.socket:
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual)


def _parsed(head: bytes) -> HttpRequest:
    """Return the request of a head. Raises ValueError."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(version)
    url = urlsplit(target)
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return HttpRequest(method, unquote(url.path), url.query, headers)


def _encoded(answer: HttpAnswer, *, with_body: bool = True) -> bytes:
    headers = {**answer.headers, "Content-Length": len(answer.body), "Connection": "close"}
    lines = [f"HTTP/1.1 {answer.status}", *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head + answer.body if with_body else head
