"""Encodes and decodes messages.

Functions with `in_slices` are for messages that may be large: they are generators that yield after
every few hundred elements, and return what the functions without do.

The first use of a class in a version compiles its code (see `compiler`); from then on a message
costs one call. What follows a message in its buffer is left alone, as Kafka does: `decode` tells
where the message ended, and it is the caller's choice to look further.
"""

import struct
from collections.abc import Generator
from itertools import islice
from typing import Any, Final, TypeVar

from odradek.protocol import compiler, schema
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.primitives import FIXED, MAX_ELEMENTS, MalformedError, TooManyElementsError
from odradek.protocol.regions import IN_MEMORY, Buffer, Part

__all__ = [
    "MalformedError",
    "TooManyElementsError",
    "decode",
    "decode_in_slices",
    "encode",
    "encode_in_slices",
    "encode_parts",
    "encode_parts_in_slices",
    "free_in_slices",
]

T = TypeVar("T")

# Bytes in memory from this size on travel as a part of their own instead of being copied together.
LARGE_PART_BYTES: Final = 16 * 1024
# Pieces of a large message that are joined together, which takes less than a millisecond.
PIECES_AT_ONCE: Final = 10_000

# Elements of arrays that are freed at once, which takes about a millisecond.
FREED_AT_ONCE: Final = 5000
VISITED_AT_ONCE: Final = 100
# Lists of so few elements are freed without a pause, those without arrays of their own together
# with what they are in.
SHORT: Final = 100

_decoders: dict[tuple[type, int], compiler.Decoder] = {}
_encoders: dict[tuple[type, int], compiler.Encoder] = {}
_without_records: dict[tuple[type, int], compiler.Encoder] = {}
"""Those of `_encoders` whose messages are one part."""
_sliced_decoders: dict[tuple[type, int], compiler.SlicedDecoder] = {}
_object_arrays: dict[type, tuple[str, ...]] = {}
_sliced_encoders: dict[tuple[type, int], compiler.SlicedEncoder] = {}
_UNREADABLE: Final = (struct.error, IndexError, UnicodeDecodeError, MalformedError)


def decode(
    cls: type[T], version: int, buffer: Buffer, offset: int = 0, most_elements: int = MAX_ELEMENTS
) -> tuple[T, int]:
    """Return the `cls` that starts at `offset`, and the position after it.

    Records are views of `buffer`; all else is copied. Raises MalformedError when the bytes are not
    such a message, TooManyElementsError when all its arrays have more than `most_elements`,
    KafkaError(UNSUPPORTED_VERSION) when there is no such version.
    """
    decoder = _decoders.get((cls, version))
    if decoder is None:
        _check_version(cls, version)
        decoder = _decoders[cls, version] = compiler.compile_decoder(cls, version)
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    try:
        return decoder(view, offset, len(view), most_elements)
    except TooManyElementsError:
        raise
    except _UNREADABLE as error:
        raise MalformedError(f"{cls.__name__} version {version}: {error}") from error


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
        return (yield from decoder(view, offset, len(view), MAX_ELEMENTS))
    except _UNREADABLE as error:
        raise MalformedError(f"{cls.__name__} version {version}: {error}") from error


def encode(message: object, version: int) -> bytes:
    """Return the bytes of a message whose records, if any, are in memory."""
    pieces: list[Any] = []
    _encoder(type(message), version)(message, pieces.append, pieces.append)
    return b"".join(pieces)


def encode_in_slices(message: object, version: int) -> Generator[None, None, bytes]:
    """As `encode`. The message must stay as it is meanwhile."""
    parts = yield from encode_parts_in_slices(message, version)
    return b"".join(parts)  # type: ignore[arg-type]  # no records in files


def encode_parts(message: object, version: int, start: bytes = b"") -> list[Part]:
    """Return bytes and file regions in the order of the wire, behind `start`.

    The caller then owns the regions.
    """
    kind = type(message), version
    encode_into = _without_records.get(kind)
    if encode_into is not None:
        small: list[Any] = [start]
        encode_into(message, small.append, small.append)
        return [b"".join(small)]
    encode_into = _encoders.get(kind) or _encoder(*kind)
    pieces = _Pieces((start,))
    encode_into(message, pieces.append, pieces.add_records)
    return [b"".join(pieces)] if pieces.parts is None else pieces.end()


def encode_parts_in_slices(
    message: object, version: int, start: bytes = b""
) -> Generator[None, None, list[Part]]:
    """As `encode_parts`, with more parts. The message must stay as it is meanwhile."""
    pieces = _Pieces((start,))
    encoder = _sliced_encoder(type(message), version)
    for _ in encoder(message, pieces.append, pieces.add_records):
        pieces.join_if_many()
        yield
    return pieces.end()


def free_in_slices(*messages: object) -> Generator[None, None, None]:
    """Free messages that nobody uses any more, or None, and the elements of their arrays.

    An element itself stays as it is for whoever keeps it, but for arrays of structures in it.
    """
    for message in messages:
        yield from _emptied([message])


def _emptied(elements: list[Any]) -> Generator[None, None, None]:
    """Empty a list of structures of one class, or of strings, and the large lists in them."""
    arrays = _arrays_of_objects(type(elements[-1]))
    while elements:
        is_short = len(elements) <= SHORT
        if arrays:
            for element in islice(reversed(elements), VISITED_AT_ONCE):
                for name in arrays:
                    inner = getattr(element, name)
                    if type(inner) is list and (
                        len(inner) > SHORT or (inner and _arrays_of_objects(type(inner[-1])))
                    ):
                        yield from _emptied(inner)
            del elements[-VISITED_AT_ONCE:]
        else:
            del elements[-FREED_AT_ONCE:]
        if not is_short:
            yield


def _arrays_of_objects(cls: type) -> tuple[str, ...]:
    """Return the fields of a structure that are arrays of anything but numbers."""
    found = _object_arrays.get(cls)
    if found is None:
        found = _object_arrays[cls] = tuple(
            field.name
            for field in (schema.of(cls).fields if schema.is_declared(cls) else ())
            if field.type.is_array and field.type.item not in FIXED
        )
    return found


class _Pieces(list[Any]):
    """Small pieces, which are joined, and `parts`: records that are large or in files stay apart.

    Nearly all answers are small pieces only.
    """

    parts: list[Part] | None = None

    def add_records(self, piece: Part) -> None:
        if isinstance(piece, IN_MEMORY) and len(piece) < LARGE_PART_BYTES:
            self.append(piece)
        else:
            self._join().append(piece)

    def join_if_many(self) -> None:
        """Join small pieces before they are so many that it takes long."""
        if len(self) > PIECES_AT_ONCE:
            self._join()

    def end(self) -> list[Part]:
        return self._join() if self or self.parts is None else self.parts

    def _join(self) -> list[Part]:
        if self.parts is None:
            self.parts = []
        self.parts.append(b"".join(self))
        self.clear()
        return self.parts


def _encoder(cls: type, version: int) -> compiler.Encoder:
    encoder = _encoders.get((cls, version))
    if encoder is None:
        _check_version(cls, version)
        encoder = _encoders[cls, version] = compiler.compile_encoder(cls, version)
        if not schema.has_records(cls):
            _without_records[cls, version] = encoder
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
