"""Messages to bytes and back.

The first use of a class in a version compiles its code (see `compiler`); from then on a message
costs one call. What follows a message in its buffer is left alone, as Kafka does: `decode` tells
where the message ended, and it is the caller's choice to look further.
"""

import struct
from collections.abc import Iterable
from typing import Any, Final, TypeVar

from odradek.protocol import compiler, schema
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.primitives import Kind, MalformedError
from odradek.protocol.regions import Buffer, Part

__all__ = ["MalformedError", "decode", "encode", "encode_parts"]

T = TypeVar("T")

# Bytes in memory from this size on travel as a part of their own instead of being copied together.
LARGE_PART_BYTES: Final = 16 * 1024

_decoders: dict[tuple[type, int], compiler.Decoder] = {}
_encoders: dict[tuple[type, int], compiler.Encoder] = {}
_with_records: set[type] = set()


def decode(cls: type[T], version: int, buffer: Buffer, offset: int = 0) -> tuple[T, int]:
    """Return the `cls` that starts at `offset`, and the position after it.

    Records are views of `buffer`; all else is copied. Raises MalformedError when the bytes are not
    such a message, KafkaError(UNSUPPORTED_VERSION) when there is no such version.
    """
    decoder = _decoders.get((cls, version))
    if decoder is None:
        _check_version(cls, version)
        decoder = _decoders[cls, version] = compiler.compile_decoder(cls, version)
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    try:
        message, end = decoder(view, offset, len(view))
    except (struct.error, IndexError, UnicodeDecodeError, MalformedError) as error:
        raise MalformedError(f"{cls.__name__} version {version}: {error}") from error
    return message, end


def encode(message: object, version: int) -> bytes:
    """Return the bytes of a message whose records, if any, are in memory."""
    return b"".join(_pieces(message, version))


def encode_parts(message: object, version: int) -> list[Part]:
    """Return bytes and file regions in the order of the wire; the caller then owns the regions."""
    pieces = _pieces(message, version)
    if type(message) not in _with_records:
        return [b"".join(pieces)]
    return list(_join_small(pieces))


def _pieces(message: object, version: int) -> list[Any]:
    cls = type(message)
    encoder = _encoders.get((cls, version))
    if encoder is None:
        _check_version(cls, version)
        encoder = _encoders[cls, version] = compiler.compile_encoder(cls, version)
        if _holds_records(cls):
            _with_records.add(cls)
    pieces: list[Part] = []
    encoder(message, pieces.append)
    return pieces


def _join_small(pieces: Iterable[Part]) -> Iterable[Part]:
    """Yield file regions and large buffers as they are, with what lies between them joined."""
    small: list[bytes | bytearray | memoryview] = []
    for piece in pieces:
        if isinstance(piece, bytes | bytearray | memoryview) and len(piece) < LARGE_PART_BYTES:
            small.append(piece)
            continue
        yield b"".join(small)
        small.clear()
        yield piece
    if small:
        yield b"".join(small)


def _holds_records(cls: type) -> bool:
    items = [field.type.item for field in schema.of(cls).fields]
    return any(
        item is Kind.RECORDS if isinstance(item, Kind) else _holds_records(item) for item in items
    )


def _check_version(cls: type, version: int) -> None:
    versions = schema.of(cls).versions
    assert versions is not None, f"{cls.__name__} is a structure, not a message"
    if not versions[0] <= version <= versions[1]:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{cls.__name__} version {version}")
