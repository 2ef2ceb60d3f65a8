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
