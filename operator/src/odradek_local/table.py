"""The table of a job as text: a few of its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

_SHOWN_ROWS: Final = 12
_LONGEST_CELL: Final = 48

Rows = tuple[list[str], list[tuple[Any, ...]]]


def read(path: Path) -> Rows | None:
    """Return the names and rows of a Parquet result; None while there are none."""
    # Loads Arrow, which takes half a second.
    from odradek_spark import show

    try:
        names, rows = show.read(path)
    except (show.NothingToShowError, OSError, ValueError):
        # Files of a batch may go while they are read, for the next batch.
        return None
    return (names, rows) if rows else None


def lines(found: Rows) -> list[str]:
    """Return the first rows as lines, and how many there are in all."""
    from odradek_spark import show

    names, rows = found
    shown = [tuple(map(_cut, row)) for row in rows[:_SHOWN_ROWS]]
    text = show.render(names, shown).splitlines()
    if len(rows) > len(shown):
        text.append(f"... {len(rows)} rows in all")
    return text


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST_CELL:
        return f"{value[: _LONGEST_CELL - 3]}..."
    return value
