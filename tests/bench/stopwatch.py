"""A broker that times its own Python: what its event loop does between system calls.

    python -m tests.bench.stopwatch broker FILE.properties

It is the broker with a clock around each system call of a request and around the checksum. What
lies between them is Python, and a median over requests is the same on a busy machine and on a quiet
one, unlike the processor time that the kernel accounts. The clocks are part of it: some 2
microseconds a request. A broker that gets SIGUSR1 writes what it found since the last one to the
file named by ODRADEK_STOPWATCH.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import socket
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import odradek.__main__
from odradek.log.records import batch

RESULT = "ODRADEK_STOPWATCH"
FEWEST = 100


class Stopwatch:
    """Sums up the time outside of timed calls, from one answer to the next."""

    def __init__(self) -> None:
        self.requests: list[float] = []
        self._python = 0.0
        self._began = perf_counter()

    def outside(self, call: Callable[..., Any], *, answers: bool = False) -> Callable[..., Any]:
        """The call with its time left out; one that `answers` ends a request."""

        def timed(*arguments: Any) -> Any:
            self._python += perf_counter() - self._began
            if answers:
                self.requests.append(self._python)
                self._python = 0.0
            try:
                return call(*arguments)
            finally:
                self._began = perf_counter()

        return timed

    def report(self, _number: int, _frame: FrameType | None) -> None:
        """Write the median request in microseconds, and how many there were."""
        found, self.requests = self.requests, []
        result = Path(os.environ[RESULT])
        answer = {
            "requests": len(found),
            "median_us": statistics.median(found) * 1e6 if len(found) >= FEWEST else None,
        }
        part = result.with_suffix(".part")
        part.write_text(json.dumps(answer))
        part.rename(result)


class _Epoll:
    """An epoll object that leaves out the time in which it waits."""

    def __init__(self, watch: Stopwatch) -> None:
        self._inner = select.epoll()
        self.poll = watch.outside(self._inner.poll)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def install(watch: Stopwatch) -> None:
    """Put clocks around what a request calls outside of Python."""
    module: Any
    for module, name in ((os, "pwrite"), (os, "sendfile"), (batch, "crc32c")):
        setattr(module, name, watch.outside(getattr(module, name)))
    kind: Any = socket.socket
    kind.recv_into = watch.outside(kind.recv_into)
    for name in ("send", "sendmsg"):
        setattr(kind, name, watch.outside(getattr(kind, name), answers=True))
    selector: Any = selectors.EpollSelector
    selector._selector_cls = staticmethod(lambda: _Epoll(watch))


if __name__ == "__main__":
    stopwatch = Stopwatch()
    install(stopwatch)
    signal.signal(signal.SIGUSR1, stopwatch.report)
    odradek.__main__.main()
