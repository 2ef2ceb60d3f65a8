"""The message formats before Kafka 0.11, magic 0 and 1, as bytes.

A message set is messages one after another, with no header around them. A message, big-endian:

    offset  size  field
    0       8     offset
    8       4     size of what follows
    12      4     CRC-32 of bytes 16..end
    16      1     magic
    17      1     attributes: 0-2 codec, 3 log append time (magic 1)
    18      8     timestamp, ms (magic 1 only; -1: none)
            4     key length, -1 for null, then the key
            4     value length, -1 for null, then the value

A compressed set is one message, the wrapper, whose value is the compressed set. The wrapper's
offset is that of the last message inside. Inside magic 0 the offsets are absolute, inside magic 1
they count from the first message of the wrapper (compaction may leave gaps, and the wrapper's
offset then tells where they belong: KIP-31). A wrapper with log append time dates all its messages;
one with create time has the largest of their times (KIP-32).

zstd never existed here. lz4 in magic 0 has a header that is wrong on purpose, see `lz4_header`.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from odradek.log.records import batch, compression, lz4_header
from odradek.log.records.batch import CorruptBatchError, Header
from odradek.log.records.compression import CompressionError
from odradek.log.records.records import (
    DEFAULT_LIMIT,
    MAX_OBJECTS,
    Record,
    too_many_objects,
)

View = bytes | bytearray | memoryview

_HEAD = struct.Struct(">qiIbb")
_OFFSET = _TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_CRC_START = 16
_TIMESTAMP_AT = 18
_KEY_AT = 18, 26
# The smallest size field: checksum, magic, attributes, (timestamp,) and two null lengths.
_MIN_SIZE = 14, 22


class _Message(NamedTuple):
    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def decode(
    data: View, position: int = 0, limit: int = DEFAULT_LIMIT, *, as_stored: bool = True
) -> Iterator[Record]:
    """Yield the records of the message at `position`: itself, or those inside if it is a wrapper.

    Offsets are absolute. `limit` bounds what a wrapper decompresses to, in bytes, and MAX_OBJECTS
    the messages inside. Messages as producers send them (`as_stored=False`) must be of their
    wrapper's magic; in old logs others occur. Raises CorruptBatchError, for a wrong checksum inside
    a wrapper too; that of the outer message is the caller's to check, see `batch.check_crc`.
    """
    outer, _ = _message(memoryview(data), position)
    codec = outer.attributes & batch.CODEC_MASK
    if codec == compression.NONE:
        yield Record(outer.offset, outer.timestamp, outer.key, outer.value)
        return
    try:
        body = _unwrapped(outer, codec, limit)
        base = _base_offset(outer, body)
        dated = bool(outer.magic and outer.attributes & batch.LOG_APPEND_TIME)
        for number, message in enumerate(_inside(body)):
            if number >= MAX_OBJECTS:
                raise too_many_objects()
            if message.magic != outer.magic and not as_stored:
                raise CorruptBatchError(0, f"magic {message.magic} in magic {outer.magic}")
            timestamp = outer.timestamp if dated else message.timestamp
            yield Record(base + message.offset, timestamp, message.key, message.value)
    except CompressionError as error:
        raise CorruptBatchError(position, str(error)) from error
    except CorruptBatchError as error:
        reason = f"{error.reason} at byte {error.position} of what is compressed"
        raise CorruptBatchError(position, reason) from error


def first_offset(data: View, header: Header) -> int:
    """Return the offset of the first record of a message or wrapper. Raises CorruptBatchError."""
    return header.base_offset if header.codec == compression.NONE else next(decode(data)).offset


def _unwrapped(outer: _Message, codec: int, limit: int) -> memoryview:
    """Return the message set inside a wrapper, at least one byte."""
    if outer.value is None:
        raise CompressionError("compressed message without value")
    if codec > compression.LZ4:
        raise CompressionError(f"compression codec {codec} in magic {outer.magic}")
    packed = outer.value
    if codec == compression.LZ4 and outer.magic == 0:
        packed = lz4_header.with_right_check(packed)
    body = memoryview(compression.decompress(codec, packed, limit))
    if not body:
        raise CompressionError("nothing inside a compressed message")
    return body


def _base_offset(outer: _Message, body: memoryview) -> int:
    """Return what to add to the offsets inside a wrapper."""
    if outer.magic == 0 or outer.offset == 0:
        return 0  # producers leave the wrapper's offset at 0
    at = last = 0
    while len(body) - at >= batch.LOG_OVERHEAD:
        last = at
        at += batch.LOG_OVERHEAD + max(0, _LENGTH.unpack_from(body, at + 8)[0])
    base: int = outer.offset - _OFFSET.unpack_from(body, last)[0]
    if base < 0:
        raise CorruptBatchError(last, f"wrapper offset {outer.offset} is below the last inside")
    return base


def _inside(body: memoryview) -> Iterator[_Message]:
    """Yield the messages of a decompressed set, each sound."""
    at = 0
    while at < len(body):
        message, end = _message(body, at)
        if message.attributes & batch.CODEC_MASK:
            raise CorruptBatchError(at, "another compressed message")
        if zlib.crc32(body[at + _CRC_START : end]) != _HEAD.unpack_from(body, at)[2]:
            raise CorruptBatchError(at, "wrong checksum")
        yield message
        at = end


def _message(view: memoryview, position: int) -> tuple[_Message, int]:
    """Return the message at `position`, and where it ends."""
    try:
        offset, size, _, magic, attributes = _HEAD.unpack_from(view, position)
    except struct.error:
        raise CorruptBatchError(position, "message cut off") from None
    if not 0 <= magic <= 1:
        raise CorruptBatchError(position, f"magic {magic} in a message of the old formats")
    end = position + batch.LOG_OVERHEAD + size
    if size < _MIN_SIZE[magic] or end > len(view):
        raise CorruptBatchError(position, f"message size {size}")
    timestamp = batch.NO_TIMESTAMP
    if magic == 1:
        (timestamp,) = _TIMESTAMP.unpack_from(view, position + _TIMESTAMP_AT)
    key, at = _nullable(view, position + _KEY_AT[magic], end)
    value, at = _nullable(view, at, end)
    if at != end:
        raise CorruptBatchError(position, "message longer than its key and value")
    return _Message(offset, magic, attributes, timestamp, key, value), end


def _nullable(view: memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    if position + 4 > end:
        raise CorruptBatchError(position, "length cut off")
    (length,) = _LENGTH.unpack_from(view, position)
    start = position + 4
    if length == -1:
        return None, start
    if not 0 <= length <= end - start:
        raise CorruptBatchError(position, f"length {length}")
    return bytes(view[start : start + length]), start + length


def encode(found: Sequence[Record], magic: int, codec: int, *, append_time: bool = False) -> bytes:
    """Return the message set of records whose offsets rise: a wrapper if `codec` compresses.

    Record headers are left out, because the formats have none. With `append_time` all records have
    one time, that of the append.
    """
    stamp = batch.LOG_APPEND_TIME if append_time and magic else 0
    relative_to = found[0].offset if magic and codec != compression.NONE else 0
    plain = b"".join(
        _encoded(record.offset - relative_to, magic, stamp, record.timestamp, record.key,
                 record.value)
        for record in found
    )  # fmt: skip
    if codec == compression.NONE:
        return plain
    packed = compression.compress(codec, plain)
    if codec == compression.LZ4 and magic == 0:
        packed = lz4_header.with_old_check(packed)
    newest = max(record.timestamp for record in found)
    return _encoded(found[-1].offset, magic, stamp | codec, newest, None, packed)


def _encoded(
    offset: int,
    magic: int,
    attributes: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
) -> bytes:
    parts = [bytes((magic, attributes))]
    if magic == 1:
        parts.append(_TIMESTAMP.pack(timestamp))
    for content in (key, value):
        if content is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            parts += [_LENGTH.pack(len(content)), content]
    checked = b"".join(parts)
    head = struct.pack(">qiI", offset, len(checked) + 4, zlib.crc32(checked))
    return head + checked


def rebuild(header: Header, kept: Sequence[Record]) -> tuple[bytes, Header]:
    """Return the message or wrapper of `header` with only the records `kept`, at least one, and its
    new header.
    """
    data = encode(kept, header.magic, header.codec, append_time=header.is_log_append_time)
    return data, batch.parse(data)
