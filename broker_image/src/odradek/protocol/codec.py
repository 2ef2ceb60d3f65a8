"""Encodes and decodes messages.

The first use of a class in a version compiles its code (see `compiler`); from then on a message
costs one call. What follows a message in its buffer is left alone, as Kafka does: `decode` tells
where the message ended, and it is the caller's choice to look further.
"""

import struct
from typing import Any, Final, TypeVar

from odradek.protocol import compiler, schema
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.primitives import MalformedError
from odradek.protocol.regions import IN_MEMORY, Buffer, Part

__all__ = ["MalformedError", "decode", "encode", "encode_parts"]

T = TypeVar("T")

# Bytes in memory from this size on travel as a part of their own instead of being copied together.
LARGE_PART_BYTES: Final = 16 * 1024

_decoders: dict[tuple[type, int], compiler.Decoder] = {}
_encoders: dict[tuple[type, int], compiler.Encoder] = {}


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
    pieces: list[Any] = []
    _encoder(type(message), version)(message, pieces.append, pieces.append)
    return b"".join(pieces)


def encode_parts(message: object, version: int) -> list[Part]:
    """Return bytes and file regions in the order of the wire; the caller then owns the regions."""
    parts: list[Part] = []
    small: list[Any] = []

    def add_records(piece: Part) -> None:
        if isinstance(piece, IN_MEMORY) and len(piece) < LARGE_PART_BYTES:
            small.append(piece)
            return
        parts.append(b"".join(small))
        small.clear()
        parts.append(piece)

    _encoder(type(message), version)(message, small.append, add_records)
    if small or not parts:
        parts.append(b"".join(small))
    return parts


def _encoder(cls: type, version: int) -> compiler.Encoder:
    encoder = _encoders.get((cls, version))
    if encoder is None:
        _check_version(cls, version)
        encoder = _encoders[cls, version] = compiler.compile_encoder(cls, version)
    return encoder


def _check_version(cls: type, version: int) -> None:
    versions = schema.of(cls).versions
    assert versions is not None, f"{cls.__name__} is a structure, not a message"
    if not versions[0] <= version <= versions[1]:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{cls.__name__} version {version}")
