"""A log that strangers cannot flood: a few lines of each kind per period.

What peers do wrong is worth a line, but a peer may do it thousands of times per second. The kind of
a line is its text before arguments are put in. After a period the next line of a kind says how many
were left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LINES_PER_PERIOD: Final = 10
PERIOD_S: Final = 10.0


@dataclass(slots=True)
class _Period:
    began: float
    lines: int = 0
    left_out: int = 0


class RareLog:
    """Passes on to `logger` what does not come too often. `clock` is in seconds."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._periods: dict[str, _Period] = {}

    def log(self, level: int, text: str, *args: object, exc_info: bool = False) -> None:
        """Log `text` with its arguments, as `logging` does, unless there were too many.

        One without arguments says nothing new the second time.
        """
        if not self._logger.isEnabledFor(level):
            return
        now = self._clock()
        period = self._periods.get(text)
        if period is None or now - period.began >= PERIOD_S:
            left_out = 0 if period is None else period.left_out
            if left_out:
                self._logger.log(level, "left out %d lines like the next one", left_out)
            period = self._periods[text] = _Period(now)
        if period.lines < (LINES_PER_PERIOD if args else 1):
            period.lines += 1
            self._logger.log(level, text, *args, exc_info=exc_info)
        else:
            period.left_out += 1
