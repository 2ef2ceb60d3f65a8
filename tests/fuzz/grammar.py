"""Requests written field by field from their declarations, with a few fields bent to their edges.

A first walk over the schema counts the places that can be bent; a second one bends some of them. It
writes bytes, not messages: a length may lie, a tag may be unknown, a text may be no UTF-8.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from odradek.handlers.dispatch import SERVED
from odradek.protocol import schema
from odradek.protocol.api import ApiKey
from odradek.protocol.primitives import LENGTH16, LENGTH32, STRUCTS, Kind, write_uvarint
from odradek.protocol.schema import Field
from tests.fuzz import aim, bent_batches, corpus, edges

EVERY_VERSION: list[tuple[ApiKey, int]] = [
    (ApiKey(key), version)
    for key, served in SERVED.items()
    for version in range(served.lowest, served.highest + 1)
]
# Of bodies; a frame may be a hundred times as large, and a few of them are enough.
ENORMOUS_SHARE = 0.03
ENORMOUS = (1000, 10_000, 50_000)
MOST_BYTES = 1 << 20

Setting = tuple[str, str | None] | None
"""The setting whose name and value a structure has, if it is one."""


def frame(random: Random) -> bytes:
    """Return a request that would not rightly harm the steady producer."""
    while True:
        made = of(*random.choice(EVERY_VERSION), random)
        if not aim.harms(made):
            return made


def of(key: ApiKey, version: int, random: Random) -> bytes:
    """Return a request of this key and version with up to four fields at their edges."""
    places = _places(key, version)
    count = random.choice((0, 1, 1, 1, 1, 2, 2, 3, 4))
    bent = frozenset(random.sample(range(places), min(count, places)))
    writer = _Writer(key, version, bent, random)
    writer.request()
    return bytes(writer.out[:MOST_BYTES])


@cache
def _places(key: ApiKey, version: int) -> int:
    """Return how many places of a request can be bent."""
    writer = _Writer(key, version, frozenset(), Random(0))
    writer.request()
    return writer.place


class _Writer:
    def __init__(self, key: ApiKey, version: int, bent: frozenset[int], random: Random) -> None:
        self.out = bytearray()
        self.place = 0
        self._key = key
        self._version = version
        self._api = SERVED[key].api
        self._flexible = self._api.is_flexible(version)
        self._bent = bent
        self._random = random

    def request(self) -> None:
        """Write everything."""
        self._header()
        self._structure(self._api.request)

    def _bends(self) -> bool:
        self.place += 1
        return self.place - 1 in self._bent

    def _header(self) -> None:
        random, key = self._random, self._key
        correlation = random.choice((-1, 2**31 - 1, 0)) if self._bends() else 7
        self.out += STRUCTS[Kind.INT16].pack(key) + STRUCTS[Kind.INT16].pack(self._version)
        self.out += LENGTH32.pack(correlation)
        bends = self._bends()
        if key is not ApiKey.CONTROLLED_SHUTDOWN or self._version > 0:
            # Only this client may write to the topic of the groups.
            client = random.choice((b"fuzz", b"fuzz", b"__admin_client"))
            length = len(client)
            if bends:
                client = edges.word(random)
                length = random.choice((len(client), len(client), *edges.LENGTHS16))
            self.out += LENGTH16.pack(length) + client
        bends = self._bends()
        if self._flexible:
            self.out += edges.tags(random) if bends else b"\0"

    def _structure(self, cls: type) -> None:
        declared = schema.of(cls)
        fields = declared.plain_fields(self._version)
        is_setting = {"name", "value"} <= {one.name for one in fields}
        setting = edges.config(self._random) if is_setting else None
        for field in fields:
            self._field(field, setting)
        if self._flexible:
            self._tags([*declared.tagged_fields(self._version)])

    def _tags(self, known: list[int]) -> None:
        if not self._bends():
            self.out += b"\0"
            return
        among = known[0] if known and self._random.random() < 0.5 else None
        self.out += edges.tags(self._random, among)

    def _field(self, field: Field, setting: Setting) -> None:
        if field.type.is_array:
            self._array(field)
        else:
            self._item(field, setting)

    def _item(self, field: Field, setting: Setting) -> None:
        kind = field.type.item
        if not isinstance(kind, Kind):
            self._structure(kind)
            return
        bends, random = self._bends(), self._random
        match kind:
            case Kind.STRING:
                value = self._text(field.name, setting)
                if bends and random.random() < 0.6:
                    self._sized(LENGTH16, edges.word(random))
                else:
                    self._sized(LENGTH16, value, lies=bends)
            case Kind.BYTES:
                self._sized(LENGTH32, bent_batches.subscription(random, bent=bends))
            case Kind.RECORDS:
                data = bent_batches.payload(random, self._version, bent=bends)
                self._sized(LENGTH32, data, lies=bends and random.random() < 0.2)
            case Kind.BOOL:
                flag = random.choice((0, 1, 2, 255)) if bends else self._plausible(field)
                self.out.append(int(flag))
            case Kind.UUID:
                self.out += random.randbytes(16) if bends else self._plausible(field)
            case _:
                number = edges.number(field.name, kind, random) if bends else self._plausible(field)
                self.out += STRUCTS[kind].pack(number)

    def _plausible(self, field: Field) -> Any:
        assert isinstance(field.type.item, Kind)
        return edges.plausible(self._key, field.name, field.type.item, self._random)

    def _text(self, name: str, setting: Setting) -> bytes | None:
        if setting is not None:
            text = setting[name == "value"]
        else:
            text = edges.plausible(self._key, name, Kind.STRING, self._random)
        return None if text is None else text.encode()

    def _sized(self, fixed: Any, data: bytes | None, *, lies: bool = False) -> None:
        """Write a length, or a lie, and the data."""
        random = self._random
        if self._flexible:
            length = 0 if data is None else len(data) + 1
            self.out += write_uvarint(random.choice(edges.COMPACT_LENGTHS) if lies else length)
        else:
            length = -1 if data is None else len(data)
            among = edges.LENGTHS16 if fixed is LENGTH16 else edges.LENGTHS32
            self.out += fixed.pack(random.choice(among) if lies else length)
        self.out += data or b""

    def _array(self, field: Field) -> None:
        bends, random = self._bends(), self._random
        start = len(self.out)
        self._item(field, None)
        element = bytes(self.out[start:])
        count = 0 if field.name in corpus.EMPTY else 1
        del self.out[start:]
        if not bends:
            self._counted(count, element * count)
            return
        if random.random() < ENORMOUS_SHARE:
            count = random.choice(ENORMOUS)
            self._counted(count, element * min(count, MOST_BYTES // max(len(element), 1)))
            return
        match random.randrange(6):
            case 0:
                self._counted(0, b"")
            case 1:
                self._counted(-1, b"")
            case 2:
                self._counted(random.choice(edges.LENGTHS32), element)
            case 3:
                count = random.choice((2, 2, 50))
                self._counted(count, element * count)
            case _:
                self._several(field)

    def _several(self, field: Field) -> None:
        """Write elements that differ, none of them bent."""
        count = self._random.choice((2, 3, 20))
        start, place = len(self.out), self.place
        for _ in range(count):
            self._item(field, None)
        elements = bytes(self.out[start:])
        del self.out[start:]
        self.place = place
        self._counted(count, elements)

    def _counted(self, count: int, elements: bytes) -> None:
        if self._flexible:
            self.out += write_uvarint((count + 1) % 2**32)
        else:
            self.out += LENGTH32.pack(count)
        self.out += elements
