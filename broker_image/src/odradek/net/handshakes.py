"""The threads for TLS handshakes: a few at a time, and why those fail that do."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from odradek.net.inline_future import InlineFuture, wake
from odradek.net.tls_records import SCRATCH_BYTES

# Handshakes that compute or wait for a thread.
HANDSHAKES_AT_ONCE: Final = 32
_HANDSHAKE_THREADS: Final = 2


class HandshakeError(ConnectionError):
    """A handshake failed; `cause` is one of CAUSES, the text says more."""

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause


CAUSES: Final = ("certificate", "disconnected", "no-tls", "protocol", "timeout")
"""Why handshakes fail: the peer's certificate or ours is refused; it went away; it does not speak
TLS; there is no common version or cipher, or the handshake is damaged; it took too long."""

_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST"})


class Handshakes:
    """The threads for the handshakes of all connections of a process."""

    def __init__(self, at_once: int = HANDSHAKES_AT_ONCE) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._threads = ThreadPoolExecutor(_HANDSHAKE_THREADS, "tls-handshake")
        self.failed: Counter[str] = Counter(dict.fromkeys(CAUSES, 0))
        # Where the event loop puts cipher text for a moment, of whichever connection.
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))

    async def step(self, work: Callable[[], None]) -> None:
        """Run one step of a handshake in a thread."""
        async with self._slots:
            await _Step(work).run_in(self._threads)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False)


class _Step:
    """Work in a thread, whose waiter goes on as soon as the event loop hears of its end.

    `run_in_executor` takes some more rounds of the event loop, and their system calls.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._end = InlineFuture[None](loop=self._loop)
        self._has_ended = False
        self._error: BaseException | None = None

    async def run_in(self, threads: ThreadPoolExecutor) -> None:
        """Do the work. Whoever is cancelled waits for its end: it uses what is closed then."""
        threads.submit(self._run)
        try:
            await self._end
        except asyncio.CancelledError:
            if not self._has_ended:
                self._end = InlineFuture[None](loop=self._loop)
                await self._end
            raise
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # no cycle with this frame: it would keep the connection's memory

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and nobody waits
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._has_ended = True
        wake(self._end)


def cause_of(error: ssl.SSLError) -> str:
    """Return which of CAUSES an error of OpenSSL is."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "disconnected"
    if reason in _NO_TLS:
        return "no-tls"
    if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
        return "certificate"
    return "protocol"
