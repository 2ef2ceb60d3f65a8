"""Ends the processes of a start whose own process was killed; `processes.Guard` starts it.

It reads a line per process: `+PID` for a session to end, `-PID` for one that has ended, `release`
if there is nothing to do. The end of its input without that word means that the starter is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import Final

_PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.1


def main() -> None:
    """Read until the end, and end what is left then."""
    guarded: dict[int, None] = {}
    for line in sys.stdin:
        text = line.strip()
        if text == "release":
            return
        if text[:1] == "+":
            guarded[int(text[1:])] = None
        elif text[:1] == "-":
            guarded.pop(int(text[1:]), None)
    _signal(guarded, signal.SIGTERM)
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until and _signal(guarded, 0):
        time.sleep(_PAUSE_S)
    _signal(guarded, signal.SIGKILL)


def _signal(sessions: Iterable[int], number: int) -> bool:
    """Send a signal to sessions; return whether one of them is there."""
    found = False
    for session in sessions:
        try:
            os.killpg(session, number)
        except (ProcessLookupError, PermissionError):
            continue
        found = True
    return found


if __name__ == "__main__":
    main()
