"""Encodes and decodes messages.

Functions with `in_slices` are for messages that may be large: they are generators that yield after
every few hundred elements, and return what the functions without do.

The first use of a class in a version compiles its code (see `compiler`); from then on a message
costs one call. What follows a message in its buffer is left alone, as Kafka does: `decode` tells
where the message ended, and it is the caller's choice to look further.
"""

import struct
from collections.abc import Generator
from typing import Any, Final, TypeVar

from odradek.protocol import compiler, schema
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.primitives import MalformedError
from odradek.protocol.regions import IN_MEMORY, Buffer, Part

__all__ = [
    "MalformedError",
    "decode",
    "decode_in_slices",
    "encode",
    "encode_in_slices",
    "encode_parts",
    "encode_parts_in_slices",
]

T = TypeVar("T")

# Bytes in memory from this size on travel as a part of their own instead of being copied together.
LARGE_PART_BYTES: Final = 16 * 1024
# Pieces of a large message that are joined together, which takes less than a millisecond.
PIECES_AT_ONCE: Final = 10_000

_decoders: dict[tuple[type, int], compiler.Decoder] = {}
_encoders: dict[tuple[type, int], compiler.Encoder] = {}
_sliced_decoders: dict[tuple[type, int], compiler.SlicedDecoder] = {}
_sliced_encoders: dict[tuple[type, int], compiler.SlicedEncoder] = {}
_UNREADABLE: Final = (struct.error, IndexError, UnicodeDecodeError, MalformedError)


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
    except _UNREADABLE as error:
        raise MalformedError(f"{cls.__name__} version {version}: {error}") from error
    return message, end


def decode_in_slices(
    cls: type[T], version: int, buffer: Buffer, offset: int = 0
) -> Generator[None, None, tuple[T, int]]:
    """As `decode`. The buffer must stay as it is meanwhile."""
    decoder = _sliced_decoders.get((cls, version))
    if decoder is None:
        _check_version(cls, version)
        decoder = _sliced_decoders[cls, version] = compiler.compile_sliced_decoder(cls, version)
    view = memoryview(buffer)
    try:
        message, end = yield from decoder(view, offset, len(view))
    except _UNREADABLE as error:
        raise MalformedError(f"{cls.__name__} version {version}: {error}") from error
    return message, end


def encode(message: object, version: int) -> bytes:
    """Return the bytes of a message whose records, if any, are in memory."""
    pieces: list[Any] = []
    _encoder(type(message), version)(message, pieces.append, pieces.append)
    return b"".join(pieces)


def encode_in_slices(message: object, version: int) -> Generator[None, None, bytes]:
    """As `encode`. The message must stay as it is meanwhile."""
    pieces: list[Any] = []
    yield from _sliced_encoder(type(message), version)(message, pieces.append, pieces.append)
    return b"".join(pieces)


def encode_parts(message: object, version: int) -> list[Part]:
    """Return bytes and file regions in the order of the wire; the caller then owns the regions."""
    gathered = _Parts()
    _encoder(type(message), version)(message, gathered.small.append, gathered.add_records)
    return gathered.end()


def encode_parts_in_slices(message: object, version: int) -> Generator[None, None, list[Part]]:
    """As `encode_parts`, with more parts. The message must stay as it is meanwhile."""
    gathered = _Parts()
    encoder = _sliced_encoder(type(message), version)
    for _ in encoder(message, gathered.small.append, gathered.add_records):
        gathered.join_if_many()
        yield
    return gathered.end()


class _Parts:
    """Gathers pieces: small ones are joined, records that are large or in files stay apart."""

    __slots__ = ("_parts", "small")

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self.small: list[Any] = []

    def add_records(self, piece: Part) -> None:
        if isinstance(piece, IN_MEMORY) and len(piece) < LARGE_PART_BYTES:
            self.small.append(piece)
            return
        self._parts.append(b"".join(self.small))
        self.small.clear()
        self._parts.append(piece)

    def join_if_many(self) -> None:
        """Join small pieces before they are so many that it takes long."""
        if len(self.small) > PIECES_AT_ONCE:
            self._parts.append(b"".join(self.small))
            self.small.clear()

    def end(self) -> list[Part]:
        if self.small or not self._parts:
            self._parts.append(b"".join(self.small))
        return self._parts


def _encoder(cls: type, version: int) -> compiler.Encoder:
    encoder = _encoders.get((cls, version))
    if encoder is None:
        _check_version(cls, version)
        encoder = _encoders[cls, version] = compiler.compile_encoder(cls, version)
    return encoder


def _sliced_encoder(cls: type, version: int) -> compiler.SlicedEncoder:
    encoder = _sliced_encoders.get((cls, version))
    if encoder is None:
        _check_version(cls, version)
        encoder = _sliced_encoders[cls, version] = compiler.compile_sliced_encoder(cls, version)
    return encoder


def _check_version(cls: type, version: int) -> None:
    versions = schema.of(cls).versions
    assert versions is not None, f"{cls.__name__} is a structure, not a message"
    if not versions[0] <= version <= versions[1]:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{cls.__name__} version {version}")
