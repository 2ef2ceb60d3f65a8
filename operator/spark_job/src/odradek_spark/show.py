"""Reads a job's Parquet result as a table for `python3 -m odradek_spark show PATH`.

PATH is the job's sink.parquet.path. Its link `current` is resolved once, so that the rows are those
of one moment.
"""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
import pyarrow.parquet

from odradek.terminal_text import plain


class NothingToShowError(RuntimeError):
    """The path has no finished batch."""


def read(path: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return column names and rows of a result, rows sorted. Raises NothingToShowError."""
    link = path / "current"
    folder = link.resolve() if link.is_symlink() else path
    files = sorted(_finished(folder))
    if not files:
        raise NothingToShowError(f"{path} has no finished batch")
    partitioning = pyarrow.dataset.partitioning(flavor="hive")
    dataset = pyarrow.dataset.dataset(
        files, format="parquet", partitioning=partitioning, partition_base_dir=str(folder)
    )
    table = dataset.to_table()
    names = [name for name in table.column_names if name != "batch_id"]
    columns = [_values(table.column(name)) for name in names]
    rows = list(zip(*columns, strict=True))
    return names, sorted(rows, key=lambda row: tuple(_order(value) for value in row))


def _values(column: pyarrow.ChunkedArray) -> list[Any]:
    """Return a column's values; all of them as text if Python has no value for one."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_told(one) for one in column]


def _told(value: Any) -> str | None:
    """Return a value of Arrow as text, also one that is not UTF-8 or beyond the years 1 to 9999."""
    kind = value.type
    try:
        known = value.as_py()
        return None if known is None else _text(known)
    except (ValueError, OverflowError):
        if pyarrow.types.is_string(kind):
            return str(value.as_buffer().to_pybytes().decode(errors="backslashreplace"))
        if pyarrow.types.is_timestamp(kind):
            return f"{value.value} {kind.unit} since 1970"
        if pyarrow.types.is_date32(kind):
            return f"{value.value} days since 1970"
        return "(cannot be shown)"


def _finished(folder: Path) -> Iterator[str]:
    """Yield the Parquet files below a folder.

    Skips names that begin with an underscore or a dot: Spark uses them, and may delete them.
    """

    def ignore_missing(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for place, folders, names in os.walk(folder, onerror=ignore_missing, followlinks=True):
        folders[:] = filter(_is_result, folders)
        for name in filter(_is_result, names):
            if name.endswith(".parquet"):
                yield os.path.join(place, name)


def _is_result(name: str) -> bool:
    return not name.startswith(("_", "."))


def render(names: list[str], rows: list[tuple[Any, ...]]) -> str:
    """Return the table as text, with numbers aligned to the right."""
    names = [plain(name) for name in names]
    cells = [[_text(value) for value in row] for row in rows]
    widths = [
        max(len(name), *(len(row[i]) for row in cells)) if cells else len(name)
        for i, name in enumerate(names)
    ]
    numeric = [
        bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        for i in range(len(names))
    ]

    def line(values: list[str]) -> str:
        padded = (
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    rule = ["-" * width for width in widths]
    return "\n".join([line(names), line(rule), *(line(row) for row in cells)])


def _order(value: Any) -> tuple[bool, str, Any]:
    # None sorts last. Values of one column have one type; nested values sort by their text.
    plain = isinstance(value, int | float | str | datetime)
    return (value is None, "" if plain else str(value), value if plain else 0)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo else value
        return f"{moment:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, dict) and set(value) == {"start", "end"}:
        return f"{_text(value['start'])} - {_text(value['end'])}"
    return plain(str(value))
