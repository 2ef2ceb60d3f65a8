"""Declarations of messages: slotted dataclasses whose fields name the versions they exist in.

    @message(versions=(0, 9), flexible_from=9)
    class ProduceRequest(Request[ProduceResponse]):
        transactional_id: str | None = string(since=3, nullable_since=3, default=None)
        acks: int = int16()

`message` and `struct` make the class a dataclass with keyword-only arguments and keep what was
declared as a `Schema`; `typing.dataclass_transform` tells type checkers the same. A field without a
default must be given by whoever builds the message. A field that the encoded version lacks is left
out; a decoded version that lacks it yields the default.

Messages are slotted but not frozen: decoding fills them slot by slot, which costs a third of
calling a frozen constructor.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Any, Final, Generic, TypeVar, dataclass_transform

from odradek.protocol.primitives import Kind

_FIELD_KEY: Final = "odradek.protocol"
UNBOUNDED: Final = 0x7FFF

T = TypeVar("T")
ResponseT = TypeVar("ResponseT")


class Request(Generic[ResponseT]):
    """Base of all requests; its argument is the type of the answer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class FieldType:
    """Type of a field: a primitive kind, a structure's class, or an array of either."""

    item: Kind | type
    is_array: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """One declared field; versions are inclusive, `nullable_since` None means never null."""

    name: str
    type: FieldType
    since: int
    until: int
    nullable_since: int | None
    tag: int | None
    default: Any
    default_factory: Callable[[], Any] | None

    def exists_in(self, version: int) -> bool:
        """Tell whether this version has the field at all."""
        return self.since <= version <= self.until

    def nullable_in(self, version: int) -> bool:
        """Tell whether null is allowed in this version."""
        return self.nullable_since is not None and version >= self.nullable_since

    def absent_value(self) -> Any:
        """Return the value of the field in versions without it."""
        if self.default_factory is not None:
            return self.default_factory()
        return self.default


@dataclass(frozen=True, slots=True)
class Schema:
    """What the codec needs to know of one class; only messages have versions of their own."""

    name: str
    fields: tuple[Field, ...]
    versions: tuple[int, int] | None = None
    flexible_from: int | None = None

    def is_flexible(self, version: int) -> bool:
        """Tell whether this version of the message has compact lengths and tags (KIP-482)."""
        return self.flexible_from is not None and version >= self.flexible_from

    def plain_fields(self, version: int) -> list[Field]:
        """Return the fields of this version in wire order, without tagged fields."""
        return [f for f in self.fields if f.tag is None and f.exists_in(version)]

    def tagged_fields(self, version: int) -> dict[int, Field]:
        """Return the tagged fields of this version by tag, in ascending order."""
        tagged = {f.tag: f for f in self.fields if f.tag is not None and f.exists_in(version)}
        return dict(sorted(tagged.items()))


_SCHEMAS: dict[type, Schema] = {}


def of(cls: type) -> Schema:
    """Return what `cls` declared; KeyError for a class that is no message or structure."""
    return _SCHEMAS[cls]


def has_arrays(cls: type) -> bool:
    """Return whether a message or structure has an array, in any version, at any depth."""
    types = [field.type for field in of(cls).fields]
    return any(
        one.is_array or (not isinstance(one.item, Kind) and has_arrays(one.item)) for one in types
    )


def has_records(cls: type) -> bool:
    """Return whether a message or structure has records, in any version, at any depth."""
    items = [field.type.item for field in of(cls).fields]
    return any(
        item is Kind.RECORDS if isinstance(item, Kind) else has_records(item) for item in items
    )


def is_declared(cls: type) -> bool:
    """Return whether `cls` is a message or structure."""
    return cls in _SCHEMAS


def _declare(
    item: Kind | type,
    since: int,
    until: int,
    nullable_since: int | None = None,
    tag: int | None = None,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    is_array: bool = False,
) -> Any:
    declared = (FieldType(item, is_array), since, until, nullable_since, tag)
    metadata = {_FIELD_KEY: declared}
    if default_factory is not MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def boolean(
    *, since: int = 0, until: int = UNBOUNDED, tag: int | None = None, default: Any = MISSING
) -> Any:
    """Declare a byte that is 0 or 1."""
    return _declare(Kind.BOOL, since, until, None, tag, default)


def int8(
    *, since: int = 0, until: int = UNBOUNDED, tag: int | None = None, default: Any = MISSING
) -> Any:
    """Declare a signed byte."""
    return _declare(Kind.INT8, since, until, None, tag, default)


def int16(
    *, since: int = 0, until: int = UNBOUNDED, tag: int | None = None, default: Any = MISSING
) -> Any:
    """Declare a signed 16-bit number."""
    return _declare(Kind.INT16, since, until, None, tag, default)


def int32(
    *, since: int = 0, until: int = UNBOUNDED, tag: int | None = None, default: Any = MISSING
) -> Any:
    """Declare a signed 32-bit number."""
    return _declare(Kind.INT32, since, until, None, tag, default)


def int64(
    *, since: int = 0, until: int = UNBOUNDED, tag: int | None = None, default: Any = MISSING
) -> Any:
    """Declare a signed 64-bit number."""
    return _declare(Kind.INT64, since, until, None, tag, default)


def float64(
    *, since: int = 0, until: int = UNBOUNDED, tag: int | None = None, default: Any = MISSING
) -> Any:
    """Declare an IEEE 754 number of 64 bits."""
    return _declare(Kind.FLOAT64, since, until, None, tag, default)


def uuid(
    *, since: int = 0, until: int = UNBOUNDED, tag: int | None = None, default: Any = MISSING
) -> Any:
    """Declare the 16 bytes of a UUID; there are no arrays of them."""
    return _declare(Kind.UUID, since, until, None, tag, default)


def string(
    *,
    since: int = 0,
    until: int = UNBOUNDED,
    nullable_since: int | None = None,
    tag: int | None = None,
    default: Any = MISSING,
) -> Any:
    """Declare text in UTF-8."""
    return _declare(Kind.STRING, since, until, nullable_since, tag, default)


def binary(
    *,
    since: int = 0,
    until: int = UNBOUNDED,
    nullable_since: int | None = None,
    tag: int | None = None,
    default: Any = MISSING,
) -> Any:
    """Declare bytes that are copied out of the frame."""
    return _declare(Kind.BYTES, since, until, nullable_since, tag, default)


def records(
    *,
    since: int = 0,
    until: int = UNBOUNDED,
    nullable_since: int | None = None,
    tag: int | None = None,
    default: Any = MISSING,
) -> Any:
    """Declare record batches: decoded as a view of the frame, encoded from `Records`."""
    return _declare(Kind.RECORDS, since, until, nullable_since, tag, default)


def array(
    item: Kind | type,
    *,
    since: int = 0,
    until: int = UNBOUNDED,
    nullable_since: int | None = None,
    tag: int | None = None,
    default: Any = MISSING,
    default_factory: Any = MISSING,
) -> Any:
    """Declare a list of primitives or structures."""
    return _declare(
        item, since, until, nullable_since, tag, default, default_factory, is_array=True
    )


def nested(
    item: type,
    *,
    since: int = 0,
    until: int = UNBOUNDED,
    tag: int | None = None,
    default_factory: Any = MISSING,
) -> Any:
    """Declare one structure inside another."""
    return _declare(item, since, until, None, tag, MISSING, default_factory)


def _make(cls: type[T], versions: tuple[int, int] | None, flexible_from: int | None) -> type[T]:
    # `dataclass` would compile three methods per class: a quarter of a broker's start.
    made = dataclass(slots=True, kw_only=True, init=False, repr=False, eq=False)(cls)
    fields = []
    for declared in dataclasses.fields(made):  # type: ignore[arg-type]  # dataclass() just made it
        kind, since, until, nullable_since, tag = declared.metadata[_FIELD_KEY]
        factory = None if declared.default_factory is MISSING else declared.default_factory
        fields.append(
            Field(declared.name, kind, since, until, nullable_since, tag, declared.default, factory)
        )
    _SCHEMAS[made] = Schema(cls.__name__, tuple(fields), versions, flexible_from)
    for name, method in _METHODS.items():
        setattr(made, name, method)
    return made


def _first_init(self: Any, **values: Any) -> None:
    """Make the constructor of the class at its first use, as `codec` does with what it needs."""
    # Not a class that inherits it, whose own constructor would be lost.
    lines: Any = type(self).__mro__
    cls = next((one for one in lines if vars(one).get("__init__") is _first_init), type(self))
    declared = [(one.name, one.type, one) for one in dataclasses.fields(cls)]
    like = dataclasses.make_dataclass(cls.__name__, declared, kw_only=True, repr=False, eq=False)
    init = cls.__init__ = vars(like)["__init__"]
    init(self, **values)


def _shown(self: Any) -> str:
    values = (f"{one.name}={getattr(self, one.name)!r}" for one in of(type(self)).fields)
    return f"{type(self).__qualname__}({', '.join(values)})"


def _equals(self: object, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    names = [one.name for one in of(type(self)).fields]
    return all(getattr(self, name) == getattr(other, name) for name in names)


_METHODS: Final = {
    "__init__": _first_init,
    "__repr__": _shown,
    "__eq__": _equals,
    "__hash__": None,  # they change
}


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        boolean,
        int8,
        int16,
        int32,
        int64,
        float64,
        uuid,
        string,
        binary,
        records,
        array,
        nested,
    ),
)
def struct(cls: type[T]) -> type[T]:
    """Declare a structure that occurs inside messages."""
    return _make(cls, None, None)


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        boolean,
        int8,
        int16,
        int32,
        int64,
        float64,
        uuid,
        string,
        binary,
        records,
        array,
        nested,
    ),
)
def message(
    *, versions: tuple[int, int], flexible_from: int | None = None
) -> Callable[[type[T]], type[T]]:
    """Declare a request or response that exists in `versions` (first, last)."""

    def decorate(cls: type[T]) -> type[T]:
        return _make(cls, versions, flexible_from)

    return decorate
