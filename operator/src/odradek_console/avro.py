"""Values of a schema registry: their schemas, fetched and kept, and what the bytes say. Bounded.

A value begins with a byte 0 and the number of its schema. Whoever may write to a topic chooses the
bytes, so nothing is decoded whose size in memory they do not bound: schemas that contain themselves
(depth), and repeated types that may take no byte, or grow beyond what their bytes suggest.
"""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import fastavro
from fastavro.types import Schema

HEADER_BYTES: Final = 5
MOST_BYTES: Final = 64 * 1024
"""How large a value may be that is decoded."""
_MOST_PARTS: Final = 10_000
_PARTS_PER_BYTE: Final = 64
_MOST_SCHEMA_BYTES: Final = 1024 * 1024
_MOST_KEPT: Final = 500
_MOST_ASKED: Final = 20
_ANSWER_S: Final = 2.0
_ASK_AGAIN_S: Final = 15.0
_MAGIC: Final = 0
_PRIMITIVE_BYTES: Final = {"null": 0, "float": 4, "double": 8}


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


def decoded(content: bytes, schema: ValueSchema) -> str:
    """Return a value as JSON. Raises ValueError with the reason."""
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
        return json.dumps(found, indent=2, ensure_ascii=False, default=_plain)
    except ValueError:
        raise
    # What the bytes are made of is not ours: the library raises whatever they lead it to.
    except Exception as error:
        raise ValueError(f"not of this schema: {type(error).__name__}") from error


def _plain(value: object) -> str:
    """Return what JSON has no type for: bytes in hexadecimal digits, else as people read it."""
    return value.hex(" ") if isinstance(value, bytes) else str(value)


# --- what a schema may become -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Extent:
    """The bytes that a value takes at least, and the most parts of one without repetition."""

    least: int
    parts: int


def check_bounds(schema: Any) -> None:
    """Raise UnboundedSchemaError where bytes do not bound what is made of them."""
    _extent(schema, {}, ())


def _extent(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> _Extent:
    if isinstance(schema, list):
        branches = [_extent(one, named, within) for one in schema]
        return _bounded(
            1 + min((one.least for one in branches), default=0),
            1 + max((one.parts for one in branches), default=0),
        )
    if isinstance(schema, str):
        if schema not in named:
            return _Extent(_PRIMITIVE_BYTES.get(schema, 1), 1)
        if schema in within:
            raise UnboundedSchemaError(f"{schema} contains itself")
        return _extent(named[schema], named, within)
    kind = schema["type"]
    if kind in ("record", "error"):
        name = str(schema["name"])
        named[name] = schema
        fields = [_extent(one["type"], named, (*within, name)) for one in schema["fields"]]
        return _bounded(sum(one.least for one in fields), 1 + sum(one.parts for one in fields))
    if kind in ("array", "map"):
        item = _extent(schema["items" if kind == "array" else "values"], named, within)
        # A key takes a byte for its length.
        least = item.least + (kind == "map")
        if item.parts > _PARTS_PER_BYTE * least:
            raise UnboundedSchemaError("what repeats in it takes too few bytes")
        return _Extent(1, 1)
    if kind == "fixed":
        named[str(schema["name"])] = {"type": "bytes-of", "size": schema["size"]}
        return _Extent(int(schema["size"]), 1)
    if kind == "bytes-of":
        return _Extent(int(schema["size"]), 1)
    if kind == "enum":
        named[str(schema["name"])] = "int"
        return _Extent(1, 1)
    return _extent(kind, named, within)


def _bounded(least: int, parts: int) -> _Extent:
    if parts > _MOST_PARTS:
        raise UnboundedSchemaError(f"it has more than {_MOST_PARTS} parts")
    return _Extent(least, parts)


# --- the registry -------------------------------------------------------------------------------


def read_answer(number: int, body: bytes) -> ValueSchema:
    """Return the schema of a registry's answer, or why it is of no use here."""
    try:
        document = json.loads(body)
        text, kind = document["schema"], document.get("schemaType", "AVRO")
        if kind == "JSON":
            return ValueSchema(number, kind)
        if kind != "AVRO":
            return ValueSchema(number, str(kind)[:40], why=f"{str(kind)[:40]} is not decoded")
        if document.get("references"):
            return ValueSchema(number, kind, why="schemas with references are not decoded")
        parsed = fastavro.parse_schema(json.loads(text))
        check_bounds(parsed)
        name = parsed.get("name", "") if isinstance(parsed, dict) else ""
        return ValueSchema(number, kind, str(name), parsed)
    except UnboundedSchemaError as error:
        return ValueSchema(number, "AVRO", why=f"its schema is not safe to decode: {error}")
    # As with records: a schema that is none makes the library raise anything.
    except Exception as error:
        return ValueSchema(number, "AVRO", why=f"its schema is none: {type(error).__name__}")


class SchemaRegistry:
    """The schemas of one registry. Without a `url` there are none."""

    def __init__(self, url: str | None) -> None:
        self._url = None if url is None else url.rstrip("/")
        self._kept: OrderedDict[int, tuple[float, ValueSchema]] = OrderedDict()
        self._session: aiohttp.ClientSession | None = None

    async def schemas(self, contents: Iterable[bytes | None]) -> Schemas:
        """Return the schemas of these values; of some only, where many are new."""
        if self._url is None:
            return {}
        numbers = dict.fromkeys(one for each in contents if (one := number_of(each)) is not None)
        now = time.monotonic()
        due = [one for one in numbers if self._kept.get(one, (0.0, None))[0] <= now]
        asked = due[:_MOST_ASKED]
        for number, found in zip(asked, await asyncio.gather(*map(self._ask, asked)), strict=True):
            # A schema of a number never changes. Why there was none may.
            until = float("inf") if not found.why or found.parsed else now + _ASK_AGAIN_S
            self._kept[number] = (until, found)
        known = {one: self._kept[one][1] for one in numbers if one in self._kept}
        for one in known:
            self._kept.move_to_end(one)
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return known

    async def _ask(self, number: int) -> ValueSchema:
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
            return ValueSchema(number, "", why="the registry does not answer")
        except (aiohttp.ClientError, OSError) as error:
            return ValueSchema(number, "", why=f"the registry does not answer: {error}"[:300])
        if len(body) > _MOST_SCHEMA_BYTES:
            return ValueSchema(number, "", why="its schema is too large")
        if answer.status == 404:
            return ValueSchema(number, "", why="the registry has no such schema")
        if answer.status != 200:
            return ValueSchema(number, "", why=f"the registry answers with {answer.status}")
        return read_answer(number, body)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
