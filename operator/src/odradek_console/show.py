"""What is shown of numbers, times and the bytes of records. Pure.

What nobody knows is `unknown`, never 0.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from odradek_console import avro
from odradek_console.avro import Schemas

UNKNOWN: Final = "unknown"
CUT_BYTES: Final = 1024
"""How much of a key or value a list shows."""
WHOLE_BYTES: Final = 64 * 1024
"""How much of them the page of one record shows."""
_HEX_BYTES: Final = 512
_ROW: Final = 16
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NO_TIMESTAMP: Final = -1
_PLAIN: Final = frozenset("\t\n\r")


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes as text. `kind` is null, empty, json, text, avro, registry or binary; `size` in bytes.

    `note` says what else is known; `cut` whether there are more bytes than are shown.
    """

    kind: str
    text: str
    size: int
    cut: bool = False
    note: str = ""


def payload(
    content: bytes | None, most: int = CUT_BYTES, schemas: Schemas | None = None
) -> Payload:
    """Return what at most `most` bytes of a key, value or header look like.

    `schemas` are those of a registry, as far as they are known; None: there is no registry.
    """
    if content is None:
        return Payload("null", "null", 0)
    size = len(content)
    if not size:
        return Payload("empty", "empty", 0)
    cut = size > most
    number = avro.number_of(content)
    if number is not None:
        return _of_registry(content, number, most, schemas)
    text = _text(content[:most], cut)
    if text is None:
        return Payload("binary", _hex(content), size, size > _HEX_BYTES)
    if not cut and text.lstrip()[:1] in ("{", "["):
        pretty = _pretty(text)
        if pretty is not None:
            return Payload("json", pretty, size)
    return Payload("text", text, size, cut)


def _of_registry(content: bytes, number: int, most: int, schemas: Schemas | None) -> Payload:
    why, size = "", len(content)
    if schemas is not None:
        schema = schemas.get(number)
        try:
            if schema is None:
                raise ValueError("too many schemas are new: load this page again")
            text = avro.decoded(content, schema, most)
            note = f"schema {number}{f' ({schema.name})' if schema.name else ''} of the registry"
            return Payload(schema.kind.lower(), text[:most], size, len(text) > most, note)
        except ValueError as error:
            why = f": {error}"
    note = f"as a schema registry's clients write it: schema {number}, not decoded{why}"
    return Payload("registry", _hex(content), size, size > _HEX_BYTES, note)


def _text(content: bytes, cut: bool) -> str | None:
    for lost in range(4 if cut else 1):
        try:
            text = content[: len(content) - lost].decode()
        except UnicodeDecodeError:
            continue
        return text if all(one.isprintable() or one in _PLAIN for one in text) else None
    return None


def _pretty(text: str) -> str | None:
    try:
        return avro.as_json(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _hex(content: bytes) -> str:
    lines = []
    for begin in range(0, min(len(content), _HEX_BYTES), _ROW):
        row = content[begin : begin + _ROW]
        plain = "".join(chr(one) if 32 <= one < 127 else "." for one in row)
        lines.append(f"{begin:04x}  {row.hex(' '):{3 * _ROW - 1}}  {plain}")
    return "\n".join(lines)


def size(count: int | None) -> str:
    """Return bytes for people: `1.5 GiB`."""
    if count is None:
        return UNKNOWN
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit takes all")


def number(count: int | None) -> str:
    """Return a number with its thousands apart."""
    return UNKNOWN if count is None else f"{count:,}".replace(",", "\u202f")


def rate(amount: float | None) -> str:
    """Return a rate with one digit behind the point."""
    return UNKNOWN if amount is None else f"{amount:.1f}"


def time_of(unix_ms: float | None) -> str:
    """Return a time in UTC; a record's may be any number."""
    if unix_ms is None or unix_ms == _NO_TIMESTAMP:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (OverflowError, ValueError, OSError):
        return str(unix_ms)


def clock(unix_s: float | None) -> str:
    """Return the time of day, UTC."""
    return UNKNOWN if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%H:%M:%S")
