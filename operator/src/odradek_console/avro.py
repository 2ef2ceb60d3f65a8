"""Values of a schema registry: their schemas, fetched and kept, and what the bytes say. Bounded.

A value begins with a byte 0 and the number of its schema. Whoever may write to a topic chooses the
bytes, so nothing is decoded whose size in memory they do not bound: schemas that contain themselves
(depth), and repeated types that may take no byte, or grow beyond what their bytes suggest. Of what
was decoded only as much becomes text as is shown.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import aiohttp
import fastavro
from fastavro.types import Schema

HEADER_BYTES: Final = 5
MOST_BYTES: Final = 64 * 1024
"""How large a value may be that is decoded."""
_MOST_PARTS: Final = 10_000
_PARTS_PER_BYTE: Final = 16
_MOST_SCHEMA_BYTES: Final = 1024 * 1024
_DEEPEST: Final = 200
_LONGEST_NAME: Final = 200
_MOST_KEPT: Final = 500
# Parsed, a schema takes some thirty times its bytes.
_MOST_KEPT_BYTES: Final = 4 * 1024 * 1024
_MOST_ASKED: Final = 20
_ANSWER_S: Final = 2.0
_ASK_AGAIN_S: Final = 15.0
_MAGIC: Final = 0
_PRIMITIVE_BYTES: Final = {
    **dict.fromkeys(("boolean", "int", "long", "bytes", "string"), 1),
    **{"null": 0, "float": 4, "double": 8},
}


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """A schema of a registry, or why there is none. `kind` is AVRO or JSON, as registries say."""

    number: int
    kind: str
    name: str = ""
    parsed: Schema | None = None
    why: str = ""


Schemas = Mapping[int, ValueSchema]


class UnboundedSchemaError(ValueError):
    """Bytes of this schema could take any amount of memory or time."""


def number_of(content: bytes | None) -> int | None:
    """Return the number of the schema at the head of a value; None: it has no such head."""
    if content is None or len(content) <= HEADER_BYTES or content[0] != _MAGIC:
        return None
    return int.from_bytes(content[1:HEADER_BYTES], "big")


def decoded(content: bytes, schema: ValueSchema, most: int = MOST_BYTES) -> str:
    """Return a value as JSON, cut behind `most` characters. Raises ValueError with the reason."""
    if schema.why:
        raise ValueError(schema.why)
    body = content[HEADER_BYTES:]
    if len(body) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES >> 10} KiB")
    try:
        if schema.kind == "JSON":
            found = json.loads(body)
        else:
            assert schema.parsed is not None
            stream = io.BytesIO(body)
            found = fastavro.schemaless_reader(stream, schema.parsed, None)
            if stream.tell() != len(body):
                raise ValueError("bytes are left behind it")
        return as_json(found, most)
    except ValueError:
        raise
    # What the bytes are made of is not ours: the library raises whatever they lead it to.
    except Exception as error:
        raise ValueError(f"not of this schema: {type(error).__name__}") from error


def as_json(value: object, most: float = math.inf) -> str:
    """Return a value as JSON for people; of longer texts somewhat more than `most` characters."""
    encoder = json.JSONEncoder(indent=2, ensure_ascii=False, default=_plain)
    pieces: list[str] = []
    length = 0
    for piece in encoder.iterencode(value):
        pieces.append(piece)
        length += len(piece)
        if length > most:
            break
    return _encodable("".join(pieces))


def _encodable(text: str) -> str:
    """Return a text that pages can have: JSON may name half of a pair of surrogates."""
    return text.encode(errors="backslashreplace").decode()


def _plain(value: object) -> str:
    """Return what JSON has no type for: bytes in hexadecimal digits, else as people read it."""
    return value.hex(" ") if isinstance(value, bytes) else str(value)


# --- what a schema may become -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Extent:
    """The most parts of a value without repetition, and how many more it has than its bytes allow.

    Each byte of a value allows `_PARTS_PER_BYTE`; what repeats may have no `excess`. `depth` counts
    what is in each other.
    """

    parts: int
    excess: int
    depth: int = 1


def check_bounds(schema: Any) -> None:
    """Raise UnboundedSchemaError where bytes do not bound what is made of them."""
    _extent(schema, {})


def _extent(schema: Any, named: dict[str, _Extent | None]) -> _Extent:
    """Return the extent of a schema; `named` has those so far, None while one is looked at.

    Each schema is looked at once, however often it is named.
    """
    if isinstance(schema, list):
        branches = [_extent(one, named) for one in schema]
        return _around(
            branches,
            1 + max((one.parts for one in branches), default=0),
            1 - _PARTS_PER_BYTE + max((one.excess for one in branches), default=0),
        )
    if isinstance(schema, str):
        # A primitive type stays one where a record has its name.
        if schema in _PRIMITIVE_BYTES:
            return _of_bytes(_PRIMITIVE_BYTES[schema])
        known = named[schema]
        if known is None:
            raise UnboundedSchemaError(f"{schema[:_LONGEST_NAME]} contains itself")
        return known
    kind = schema["type"]
    if kind in ("record", "error"):
        name = str(schema["name"])
        named[name] = None
        fields = [_extent(one["type"], named) for one in schema["fields"]]
        parts = 1 + sum(one.parts for one in fields)
        found = _around(fields, parts, 1 + sum(one.excess for one in fields))
        named[name] = found
        return found
    if kind in ("array", "map"):
        item = _extent(schema["items" if kind == "array" else "values"], named)
        # A key takes a byte for its length.
        if item.excess > (_PARTS_PER_BYTE if kind == "map" else 0):
            raise UnboundedSchemaError("what repeats in it takes too few bytes")
        return _around([item], 1, 1 - _PARTS_PER_BYTE)
    if kind in ("fixed", "enum"):
        found = _of_bytes(int(schema["size"]) if kind == "fixed" else 1)
        named[str(schema["name"])] = found
        return found
    return _extent(kind, named)


def _of_bytes(count: int) -> _Extent:
    return _Extent(1, 1 - _PARTS_PER_BYTE * count)


def _around(inside: list[_Extent], parts: int, excess: int) -> _Extent:
    if parts > _MOST_PARTS:
        raise UnboundedSchemaError(f"it has more than {_MOST_PARTS} parts")
    depth = 1 + max((one.depth for one in inside), default=0)
    # The library would use up the stack.
    if depth > _DEEPEST:
        raise UnboundedSchemaError(f"more than {_DEEPEST} types are in each other")
    return _Extent(parts, excess, depth)


def _unmarked(part: Any) -> Any:
    """Return a schema without the marks by which the library believes that it has checked one."""
    if isinstance(part, dict):
        kept = {name: each for name, each in part.items() if not name.startswith("__")}
        return {name: _unmarked(each) for name, each in kept.items()}
    if isinstance(part, list):
        return [_unmarked(each) for each in part]
    return part


# --- the registry -------------------------------------------------------------------------------


def read_answer(number: int, body: bytes) -> ValueSchema:
    """Return the schema of a registry's answer, or why it is of no use here."""
    found = _read_answer(number, body)
    return replace(
        found,
        kind=_encodable(found.kind),
        name=_encodable(found.name),
        why=_encodable(found.why),
    )


def _read_answer(number: int, body: bytes) -> ValueSchema:
    try:
        document = json.loads(body)
        text, kind = document["schema"], document.get("schemaType", "AVRO")
        if kind == "JSON":
            return ValueSchema(number, kind)
        if kind != "AVRO":
            return ValueSchema(number, str(kind)[:40], why=f"{str(kind)[:40]} is not decoded")
        if document.get("references"):
            return ValueSchema(number, kind, why="schemas with references are not decoded")
        parsed = fastavro.parse_schema(_unmarked(json.loads(text)))
        check_bounds(parsed)
        name = parsed.get("name", "") if isinstance(parsed, dict) else ""
        return ValueSchema(number, kind, str(name)[:_LONGEST_NAME], parsed)
    except UnboundedSchemaError as error:
        return ValueSchema(number, "AVRO", why=f"its schema is not safe to decode: {error}")
    # As with records: a schema that is none makes the library raise anything.
    except Exception as error:
        return ValueSchema(number, "AVRO", why=f"its schema is none: {type(error).__name__}")


class _Kept(NamedTuple):
    """A schema, until when it counts (monotonic), and its bytes."""

    until_s: float
    schema: ValueSchema
    size: int


class SchemaRegistry:
    """The schemas of one registry. Without a `url` there are none."""

    def __init__(self, url: str | None) -> None:
        self._url = None if url is None else url.rstrip("/")
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._session: aiohttp.ClientSession | None = None
        # Large schemas take a good part of a second each; in turn, they leave room for pages.
        self._parsing = asyncio.Semaphore(1)

    async def schemas(self, contents: Iterable[bytes | None]) -> Schemas:
        """Return the schemas of these values; of some only, where many are new."""
        if self._url is None:
            return {}
        numbers = dict.fromkeys(one for each in contents if (one := number_of(each)) is not None)
        now = time.monotonic()
        due = [one for one in numbers if one not in self._kept or self._kept[one].until_s <= now]
        asked = due[:_MOST_ASKED]
        for number, answer in zip(asked, await asyncio.gather(*map(self._ask, asked)), strict=True):
            found, size = answer
            # A schema of a number never changes. Why there was none may.
            until_s = float("inf") if not found.why or found.parsed else now + _ASK_AGAIN_S
            self._kept[number] = _Kept(until_s, found, size)
        known = {one: self._kept[one].schema for one in numbers if one in self._kept}
        for one in known:
            self._kept.move_to_end(one)
        while (
            len(self._kept) > _MOST_KEPT
            or sum(one.size for one in self._kept.values()) > _MOST_KEPT_BYTES
        ):
            self._kept.popitem(last=False)
        return known

    async def _ask(self, number: int) -> tuple[ValueSchema, int]:
        """Return what a number stands for, and the bytes of its schema."""
        body = await self._fetch(number)
        if isinstance(body, str):
            return ValueSchema(number, "", why=body), 0
        async with self._parsing:
            return await asyncio.to_thread(read_answer, number, body), len(body)

    async def _fetch(self, number: int) -> bytes | str:
        """Return the answer of the registry, or why there is none."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
            self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            async with self._session.get(
                f"{self._url}/schemas/ids/{number}", allow_redirects=False
            ) as answer:
                body = await answer.content.read(_MOST_SCHEMA_BYTES + 1)
                while not answer.content.at_eof() and len(body) <= _MOST_SCHEMA_BYTES:
                    body += await answer.content.read(_MOST_SCHEMA_BYTES + 1)
        except TimeoutError:
            return "the registry does not answer"
        except (aiohttp.ClientError, OSError) as error:
            return f"the registry does not answer: {error}"[:300]
        if len(body) > _MOST_SCHEMA_BYTES:
            return "its schema is too large"
        if answer.status == 404:
            return "the registry has no such schema"
        if answer.status != 200:
            return f"the registry answers with {answer.status}"
        return body

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
