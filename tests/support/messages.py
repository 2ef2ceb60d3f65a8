"""Hypothesis strategies for protocol messages, drawn from their declarations."""

import functools
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from odradek.protocol import schema
from odradek.protocol.api import APIS
from odradek.protocol.primitives import Kind
from odradek.protocol.schema import Field

_INTEGERS = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}
_PRIMITIVES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.BOOL: st.booleans(),
    Kind.FLOAT64: st.floats(allow_nan=False),
    Kind.UUID: st.binary(min_size=16, max_size=16),
    Kind.STRING: st.text(max_size=8) | st.just("x" * 200),
    Kind.BYTES: st.binary(max_size=8) | st.just(b"y" * 200),
    Kind.RECORDS: st.binary(max_size=8) | st.just(b"z" * 200),
    **{
        kind: st.integers(min_value=-(1 << bits - 1), max_value=(1 << bits - 1) - 1)
        for kind, bits in _INTEGERS.items()
    },
}


def every_message() -> Iterator[tuple[type[Any], int]]:
    """Yield each request and response class with each of its versions."""
    for entry in APIS.values():
        for version in range(entry.min_version, entry.max_version + 1):
            yield entry.request, version
            yield entry.response, version


def message_id(value: object) -> str:
    """Name a class or version in a test's id."""
    return value.__name__ if isinstance(value, type) else f"v{value}"


@functools.cache
def messages(cls: type[Any], version: int) -> st.SearchStrategy[Any]:
    """Return a strategy for messages whose fields outside `version` have their defaults."""
    fields = {f.name: _values(f, version) for f in schema.of(cls).fields}
    return st.builds(cls, **fields)


def _values(field: Field, version: int) -> st.SearchStrategy[Any]:
    if not field.exists_in(version):
        return st.builds(field.absent_value)
    item = field.type.item
    values = _PRIMITIVES[item] if isinstance(item, Kind) else messages(item, version)
    if field.type.is_array:
        values = st.lists(values, max_size=3)
    if field.nullable_in(version):
        values = st.none() | values
    return values


def sample(cls: type[Any], version: int, variant: str) -> Any:
    """Build the same message every time: `full` has a value in every field, `bare` has nulls."""
    return _Sampler(version, variant).structure(cls)


class _Sampler:
    """Fills fields with values that all differ, so that no two fields can change places unseen."""

    def __init__(self, version: int, variant: str) -> None:
        self._version = version
        self._bare = variant == "bare"
        self._count = 0

    def structure(self, cls: type[Any]) -> Any:
        values = {}
        for field in schema.of(cls).fields:
            if not field.exists_in(self._version) or (self._bare and field.tag is not None):
                values[field.name] = field.absent_value()
            else:
                values[field.name] = self._value(field)
        return cls(**values)

    def _value(self, field: Field) -> Any:
        if self._bare and field.nullable_in(self._version):
            return None
        if field.type.is_array:
            return [self._item(field.type.item) for _ in range(1 if self._bare else 2)]
        return self._item(field.type.item)

    def _item(self, item: Kind | type) -> Any:
        if not isinstance(item, Kind):
            return self.structure(item)
        self._count += 1
        if item is Kind.BOOL:
            return self._count % 2 == 1
        if item is Kind.STRING:
            return f"text-{self._count}-\u00e4" + "x" * (130 if self._count % 7 == 0 else 0)
        if item in (Kind.BYTES, Kind.RECORDS):
            return bytes((self._count % 256,)) * (self._count % 200)
        if item is Kind.FLOAT64:
            return self._count + 0.1
        if item is Kind.UUID:
            return bytes((self._count % 256,)) * 16
        if item is Kind.INT8:
            return self._count % 128
        return self._count * (257 if item is Kind.INT16 else -65_537)
