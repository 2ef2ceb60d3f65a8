"""Prints rows as a table that grows: columns get their widths from the first rows, and keep them.

On a terminal no line is longer than the terminal is wide: values are cut, and end with an ellipsis.
Into a file or a pipe nothing is cut. Control characters are shown as their escapes.
"""

import json
import shutil
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TextIO

import click

from odradek.terminal_text import plain

_SEPARATOR = " | "
_ELLIPSIS = "…"
_NARROWEST = 4
_FIRST_ROWS = 500


def notice(text: str) -> None:
    """Tell the user something on stderr, beside the rows on stdout."""
    click.echo(plain(text), err=True)


class GrowingTable:
    """Rows with a header. `roomy` leaves room in columns whose later values may be longer."""

    def __init__(self, output: TextIO, names: Sequence[str], roomy: bool = False) -> None:
        self.rows = 0
        self._output = output
        self._names = [plain(name) for name in names]
        self._width = shutil.get_terminal_size().columns if output.isatty() else None
        self._roomy = roomy
        self._waiting: list[list[str]] = []
        self._right: list[bool] = []
        self._widths: list[int] = []

    def add(self, row: Sequence[Any]) -> None:
        """Add a row; the first ones are held back until there are enough, or until `flush`."""
        if not self._widths:
            numeric = [isinstance(value, int | float | Decimal) for value in row]
            self._right = [
                before and now
                for before, now in zip(self._right or [True] * len(row), numeric, strict=True)
            ]
        self.rows += 1
        self._waiting.append([text_of(value) for value in row])
        if self._widths or len(self._waiting) >= _FIRST_ROWS:
            self.flush()

    def flush(self) -> None:
        """Print what was held back, and the header before the first rows."""
        if not self._widths:
            self._widths = self._choose_widths()
            self._line(self._names)
            self._write("-+-".join("-" * width for width in self._widths))
        for cells in self._waiting:
            self._line(cells)
        self._waiting.clear()
        self._output.flush()

    def _choose_widths(self) -> list[int]:
        columns = [list(cells) for cells in zip(self._names, *self._waiting, strict=True)]
        natural = [max(map(columns_of, cells), default=1) or 1 for cells in columns]
        self._right = self._right or [False] * len(columns)
        if self._width is None:
            return natural
        room = self._width - len(_SEPARATOR) * (len(natural) - 1)
        if self._roomy:
            even = room // max(1, len(natural))
            natural = [max(width, min(even, 16)) for width in natural]
        return fit(natural, room)

    def _line(self, cells: Sequence[str]) -> None:
        padded = [
            pad(cut(cell, width) if self._width else cell, width, right)
            for cell, width, right in zip(cells, self._widths, self._right, strict=True)
        ]
        self._write(_SEPARATOR.join(padded).rstrip())

    def _write(self, line: str) -> None:
        self._output.write((cut(line, self._width) if self._width else line) + "\n")


def print_table(output: TextIO, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print all rows and what they are called."""
    table = GrowingTable(output, names)
    for row in rows:
        table.add(row)
    table.flush()


def fit(widths: Sequence[int], room: int) -> list[int]:
    """Return the widths with the widest ones cut, until they fit or all are at their narrowest."""
    fitted = list(widths)
    while sum(fitted) > room and max(fitted) > _NARROWEST:
        widest = max(fitted)
        second = max((width for width in fitted if width < widest), default=_NARROWEST)
        count = fitted.count(widest)
        excess = sum(fitted) - room
        lower = max(second, _NARROWEST, widest - max(1, excess // count))
        for place, width in enumerate(fitted):
            if width == widest and sum(fitted) > room:
                fitted[place] = lower
    return fitted


def text_of(value: Any) -> str:
    """Return a value as one line of text; nested values as JSON, timestamps in UTC."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, bytes | bytearray):
        return f"0x{bytes(value).hex()}"
    if isinstance(value, datetime):
        moment = value.astimezone(UTC).replace(tzinfo=None)
        return moment.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, tuple | list | Mapping):
        return plain(json.dumps(_nested(value), ensure_ascii=False, default=text_of))
    return plain(str(value))


def _nested(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {text_of(key): _nested(one) for key, one in value.items()}
    if hasattr(value, "asDict"):  # a struct
        return {name: _nested(one) for name, one in zip(value.__fields__, value, strict=True)}
    if isinstance(value, tuple | list):
        return [_nested(one) for one in value]
    return text_of(value) if isinstance(value, datetime | date | Decimal | bytearray) else value


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns_of_character, text))


def _columns_of_character(one: str) -> int:
    if unicodedata.combining(one):
        return 0
    return 2 if unicodedata.east_asian_width(one) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Return the text within this many columns, with an ellipsis where it is cut."""
    if len(text) <= width and columns_of(text) <= width:
        return text
    kept, used = [], 1
    for one in text:
        used += _columns_of_character(one)
        if used > width:
            break
        kept.append(one)
    return "".join(kept) + _ELLIPSIS


def pad(text: str, width: int, right: bool) -> str:
    """Return the text with blanks, so that it takes this many columns or more."""
    blanks = " " * (width - columns_of(text))
    return blanks + text if right else text + blanks
