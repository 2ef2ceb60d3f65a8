"""Signals that ask for the end: noted when they come, looked at where nothing is half done."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

from odradek_local.errors import StopRequestedError

_ASKING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Counts SIGINT, SIGTERM and SIGHUP; one that is ignored, as by nohup, stays so."""

    def __init__(self) -> None:
        self.count = 0
        self._first = 0
        for number in _ASKING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        self._first = self._first or number

    def check(self) -> None:
        """Raise StopRequestedError if one came."""
        if self.count:
            raise StopRequestedError(self._first)

    def in_hurry(self) -> bool:
        """Return whether a second one came: what does not end is to be killed."""
        return self.count > 1
