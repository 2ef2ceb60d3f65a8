"""What `odradek local` prints: a line per step with its seconds, then addresses and a state.

On a terminal the step at work is shown with its seconds so far; elsewhere each line comes when it
is whole.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TextIO

from odradek.terminal_text import plain

_NAME: Final = 14
_TEXT: Final = 56
_REDRAW_S: Final = 0.2
_ERASE: Final = "\r\x1b[K"


@dataclass(slots=True)
class ShownStep:
    """A step at work; `text` may be set while it is."""

    name: str
    text: str
    began: float


class Display:
    """Prints to a stream."""

    def __init__(self, stream: TextIO, is_terminal: bool) -> None:
        self._stream = stream
        self.is_terminal = is_terminal
        self._drawn_at = 0.0
        self._passing = False

    def line(self, text: str = "") -> None:
        """Print a line."""
        self._clear()
        self._write(f"{plain(text)}\n")

    def note(self, text: str) -> None:
        """Print a line that is about the start, and not a step."""
        self.line(f"  note: {text}")

    def pairs(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print names and what they name."""
        width = max(len(name) for name, _ in rows)
        for name, text in rows:
            self.line(f"  {name:<{width}}  {text}".rstrip())

    @contextmanager
    def step(self, name: str, text: str) -> Iterator[ShownStep]:
        """Show a step while the block runs, and its seconds when it is done."""
        step = ShownStep(name, text, time.monotonic())
        self._drawn_at = 0.0
        self.tick(step)
        yield step
        self.line(self._step_line(step))

    def tick(self, step: ShownStep) -> None:
        """Show a step at work, on a terminal, a few times per second."""
        if self.is_terminal and time.monotonic() - self._drawn_at >= _REDRAW_S:
            self.passing(self._step_line(step))

    def _step_line(self, step: ShownStep) -> str:
        seconds = f" {time.monotonic() - step.began:5.1f} s"
        width = _TEXT
        if self.is_terminal:
            columns = shutil.get_terminal_size().columns
            width = max(0, min(width, columns - 1 - len(seconds) - _NAME - 2))
        return f"  {step.name:<{_NAME}}{step.text:<{width}}{seconds}"

    def passing(self, text: str) -> None:
        """Show a line that the next one replaces, on a terminal."""
        if self.is_terminal:
            columns = shutil.get_terminal_size().columns
            self._write(f"{_ERASE}{plain(text)[: columns - 1]}")
            self._passing = True
            self._drawn_at = time.monotonic()

    def end_passing(self) -> None:
        """Leave the line that the next one would replace, and go on below it."""
        if self._passing:
            self._write("\n")
            self._passing = False

    def _clear(self) -> None:
        if self._passing:
            self._write(_ERASE)
            self._passing = False

    def _write(self, text: str) -> None:
        # Nobody reads any more; what was started is still to be ended.
        with suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()
