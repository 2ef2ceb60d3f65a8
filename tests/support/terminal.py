"""Programs on a terminal of their own: what a person types, and what they see."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

# The first terminal that the leader of a session opens becomes its controlling one: Ctrl-C is sent
# to it. No function between fork and exec, where the threads of clients may hang a child.
ON_TERMINAL = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)
for number in (0, 1, 2):
    os.dup2(terminal, number)
os.execvp(sys.argv[2], sys.argv[2:])
"""
CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """A program on a terminal of so many columns; a context manager that kills what still runs."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], columns: int = 110
    ) -> None:
        self._master, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, (40, columns))
        self._process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, os.ttyname(terminal), *command],
            env={**environment, "TERM": "dumb", "INPUTRC": os.devnull},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        self._terminal = terminal
        self._unread = ""

    def send(self, text: str) -> None:
        """Type this text."""
        os.write(self._master, text.encode())

    def read_until(self, *ends: str, seconds: float = 180) -> str:
        """Return what is seen from the last call up to the first text that ends in one of these."""
        until = time.monotonic() + seconds
        while True:
            places = [self._unread.find(end) + len(end) for end in ends if end in self._unread]
            if places:
                seen, self._unread = self._unread[: min(places)], self._unread[min(places) :]
                return seen
            if time.monotonic() > until:
                raise AssertionError(f"not within {seconds} s: {ends}; seen: {self._unread!r}")
            self._read()

    def _read(self) -> None:
        if not select.select([self._master], [], [], 0.5)[0]:
            assert self._process.poll() is None, f"ended; seen: {self._unread!r}"
            return
        self._unread += os.read(self._master, 65536).decode(errors="replace").replace("\r\n", "\n")

    def wait(self, seconds: float = 120) -> int:
        """Return the exit status of the program, once it has ended."""
        return self._process.wait(seconds)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)
        os.close(self._master)
