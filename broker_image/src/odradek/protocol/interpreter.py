"""The reference codec: walks the declaration of a message field by field.

It is the reference that tests hold the compiled codec equal to, and says plainly what the wire
format is. Nothing on a hot path uses it.
"""

import struct
from typing import Any, TypeVar

from odradek.protocol import schema
from odradek.protocol.primitives import (
    FIXED,
    LENGTH16,
    LENGTH32,
    MAX_ELEMENTS,
    MAX_STRING,
    MAX_UNKNOWN_TAGS,
    STRUCTS,
    Kind,
    MalformedError,
    read_uvarint,
    write_uvarint,
)
from odradek.protocol.regions import Buffer, Part, part_length
from odradek.protocol.schema import Field

T = TypeVar("T")


def decode(cls: type[T], version: int, buffer: Buffer, offset: int = 0) -> tuple[T, int]:
    """Return the message at `offset` and the position after it; raises MalformedError."""
    view = memoryview(buffer)
    reader = _Reader(view, offset, version, schema.of(cls).is_flexible(version))
    try:
        message: T = reader.structure(cls)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedError(f"{cls.__name__} version {version}: {error}") from error
    return message, reader.position


def encode(message: object, version: int) -> list[Part]:
    """Return the pieces of `message` in the order of the wire."""
    cls = type(message)
    writer = _Writer(version, schema.of(cls).is_flexible(version))
    writer.structure(cls, message)
    return writer.parts


class _Reader:
    def __init__(self, view: memoryview, position: int, version: int, flexible: bool) -> None:
        self.view = view
        self.position = position
        self.version = version
        self.flexible = flexible
        self.elements_left = MAX_ELEMENTS
        self.unknown_tags_left = MAX_UNKNOWN_TAGS

    def structure(self, cls: type) -> Any:
        declared = schema.of(cls)
        values = {f.name: self.field(f) for f in declared.plain_fields(self.version)}
        if self.flexible:
            values.update(self.tagged_section(declared.tagged_fields(self.version)))
        for field in declared.fields:
            if field.name not in values:
                values[field.name] = field.absent_value()
        return cls(**values)

    def tagged_section(self, known: dict[int, Field]) -> dict[str, Any]:
        values = {}
        count = self.uvarint()
        self.unknown_tags_left -= max(count - len(known), 0)
        if self.unknown_tags_left < 0:
            raise MalformedError("too many tagged fields")
        for _ in range(count):
            tag, size = self.uvarint(), self.uvarint()
            stop = self.position + size
            if stop > len(self.view):
                raise MalformedError("tagged field exceeds the message")
            if tag in known:
                values[known[tag].name] = self.field(known[tag])
                if self.position != stop:
                    raise MalformedError("tagged field of wrong size")
            self.position = stop
        return values

    def field(self, field: Field) -> Any:
        nullable = field.nullable_in(self.version)
        if not field.type.is_array:
            return self.item(field.type.item, nullable)
        count = self.length(LENGTH32, nullable)
        if count is None:
            return None
        # Every element takes a byte at least, so the loop ends no later than the buffer.
        if count > len(self.view) - self.position:
            raise MalformedError("array exceeds the message")
        self.elements_left -= count
        if self.elements_left < 0:
            raise MalformedError("too many elements")
        return [self.item(field.type.item, False) for _ in range(count)]

    def item(self, item: Kind | type, nullable: bool) -> Any:
        if not isinstance(item, Kind):
            return self.structure(item)
        if item in FIXED:
            (value,) = STRUCTS[item].unpack_from(self.view, self.position)
            self.position += STRUCTS[item].size
            return value
        length = self.length(LENGTH16 if item is Kind.STRING else LENGTH32, nullable)
        if length is None:
            return None
        stop = self.position + length
        if stop > len(self.view) or (item is Kind.STRING and length > MAX_STRING):
            raise MalformedError("length exceeds the message")
        piece = self.view[self.position : stop]
        self.position = stop
        if item is Kind.STRING:
            return str(piece, "utf-8")
        return bytes(piece) if item is Kind.BYTES else piece

    def length(self, fixed: struct.Struct, nullable: bool) -> int | None:
        length: int
        if self.flexible:
            length = self.uvarint() - 1
        else:
            (length,) = fixed.unpack_from(self.view, self.position)
            self.position += fixed.size
        if length >= 0:
            return length
        if not nullable:
            raise MalformedError("null where none is allowed")
        return None

    def uvarint(self) -> int:
        value, self.position = read_uvarint(self.view, self.position)
        return value


class _Writer:
    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.parts: list[Part] = []

    def structure(self, cls: type, value: object) -> None:
        declared = schema.of(cls)
        for field in declared.plain_fields(self.version):
            self.field(field, getattr(value, field.name))
        if self.flexible:
            self.tagged_section(declared.tagged_fields(self.version), value)

    def tagged_section(self, tagged: dict[int, Field], value: object) -> None:
        present = {
            tag: field
            for tag, field in tagged.items()
            if getattr(value, field.name) != field.absent_value()
        }
        self.parts.append(write_uvarint(len(present)))
        for tag, field in present.items():
            body = _Writer(self.version, flexible=True)
            body.field(field, getattr(value, field.name))
            self.parts.append(write_uvarint(tag))
            self.parts.append(write_uvarint(sum(map(part_length, body.parts))))
            self.parts.extend(body.parts)

    def field(self, field: Field, value: Any) -> None:
        if not field.type.is_array:
            self.item(field.type.item, value, field.nullable_in(self.version))
            return
        if value is None:
            self.null(LENGTH32, field.nullable_in(self.version))
            return
        self.length(LENGTH32, len(value))
        for element in value:
            self.item(field.type.item, element, False)

    def item(self, item: Kind | type, value: Any, nullable: bool) -> None:
        if not isinstance(item, Kind):
            self.structure(item, value)
            return
        if item in FIXED:
            self.parts.append(STRUCTS[item].pack(value))
            return
        fixed = LENGTH16 if item is Kind.STRING else LENGTH32
        if value is None:
            self.null(fixed, nullable)
            return
        piece: Part = value.encode() if item is Kind.STRING else value
        if item is Kind.STRING and part_length(piece) > MAX_STRING:
            raise ValueError("string too long")
        self.length(fixed, part_length(piece))
        self.parts.append(piece)

    def null(self, fixed: struct.Struct, nullable: bool) -> None:
        if not nullable:
            raise TypeError("null where none is allowed")
        self.length(fixed, -1)

    def length(self, fixed: struct.Struct, length: int) -> None:
        self.parts.append(write_uvarint(length + 1) if self.flexible else fixed.pack(length))
