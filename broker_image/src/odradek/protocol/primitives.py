"""The primitive types of the wire format: fixed-size numbers and variable-length integers.

All numbers are big-endian. Flexible versions (KIP-482) write lengths as unsigned varints, one more
than the real length, with 0 for null; older versions write int16 or int32 lengths with -1 for
null.
"""

import struct
from enum import Enum
from typing import Final

from odradek.protocol.regions import Buffer


class MalformedError(Exception):
    """The bytes are not the message they claim to be."""


class TooManyElementsError(MalformedError):
    """Bytes that announce more array elements than the caller takes."""


class Kind(Enum):
    """Type of one field that is not a structure."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT64 = "float64"
    UUID = "uuid"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"


# Kind -> (struct format character, bytes on the wire)
FIXED: Final[dict[Kind, tuple[str, int]]] = {
    Kind.BOOL: ("?", 1),
    Kind.INT8: ("b", 1),
    Kind.INT16: ("h", 2),
    Kind.INT32: ("i", 4),
    Kind.INT64: ("q", 8),
    Kind.FLOAT64: ("d", 8),
    Kind.UUID: ("16s", 16),
}
STRUCTS: Final = {kind: struct.Struct(">" + char) for kind, (char, _) in FIXED.items()}
NO_UUID: Final = bytes(16)
"""The id of what has none, as Kafka's `Uuid.ZERO_UUID`."""
LENGTH16: Final = STRUCTS[Kind.INT16]
LENGTH32: Final = STRUCTS[Kind.INT32]

MAX_UVARINT: Final = 0xFFFFFFFF
# What almost every length is.
SHORT_UVARINTS: Final = [bytes((value,)) for value in range(0x80)]
# Elements of all arrays of a message together. One that takes a byte or two on the wire becomes an
# object of a hundred, so the size of a frame alone bounds too little. What a controller tells of
# 100 000 partitions with three replicas has to pass.
MAX_ELEMENTS: Final = 1_000_000
# Tagged fields of a message or header that its schema does not know. Each takes two bytes and half
# a microsecond; Kafka's own messages have a few at most.
MAX_UNKNOWN_TAGS: Final = 10_000
# Strings are never longer in either style: the older one counts in int16.
MAX_STRING: Final = 0x7FFF


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return (value, next position) of an unsigned varint of at most five bytes.

    Raises MalformedError when it is longer or exceeds 32 bits, IndexError when the buffer ends.
    """
    value = 0
    for shift in range(0, 35, 7):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > MAX_UVARINT:
                break
            return value, position
    raise MalformedError("varint exceeds 32 bits")


def write_uvarint(value: int) -> bytes:
    """Return `value`, from 0 to 2**32 - 1, as an unsigned varint."""
    if value < 0x80:
        return SHORT_UVARINTS[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tagged_fields(
    buffer: Buffer, position: int, end: int, allowed: int = MAX_UNKNOWN_TAGS
) -> tuple[int, int]:
    """Skip a section of unknown tagged fields; return the position after it, and how many more
    fields are allowed.

    Raises MalformedError when there are more than `allowed`.
    """
    count, position = read_uvarint(buffer, position)
    if count > allowed:
        raise MalformedError("too many tagged fields")
    for _ in range(count):
        _tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > end:
            raise MalformedError("tagged field exceeds the message")
    return position, allowed - count
