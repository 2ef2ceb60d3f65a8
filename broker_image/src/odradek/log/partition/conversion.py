"""Conversion of message formats for old producers, old consumers, and old topics.

Records go through memory one batch at a time. That takes microseconds per record, so callers keep
it off the event loop where they can. The rules are those of Kafka 2.8. A produced message set
becomes one batch of the same codec. For an old consumer each batch becomes a message set of the
same codec, without record headers and without control batches. What old formats cannot express is
refused: producer ids and transactions with UNSUPPORTED_FOR_MESSAGE_FORMAT, zstd with
UNSUPPORTED_COMPRESSION_TYPE.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from odradek.log.partition.reading import LogReader
from odradek.log.records import batch, compression, contents, legacy, records
from odradek.log.records.batch import CorruptBatchError, Header
from odradek.log.records.records import BatchOptions, Record
from odradek.log.segment import batch_file
from odradek.log.segment.batch_file import CutOffError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.regions import FileRegion
from odradek.topic_config import TopicConfig

View = bytes | bytearray | memoryview

# How much larger than max.message.bytes a wrapper's content may be. Text packs to a tenth or less.
_UNPACKED_TO_PACKED = 128


# -- from old producers ---------------------------------------------------------------------------


def to_batch(data: View, config: TopicConfig, now_ms: int) -> bytes:
    """Return the magic-2 batch of a message set from a producer, offsets from 0 on.

    Uncompressed messages become one batch, as does a wrapper, which must be alone. Raises
    KafkaError: CORRUPT_MESSAGE for bytes that are no sound message set, cut-off ones included,
    MESSAGE_TOO_LARGE for a message over max.message.bytes or for far more of it when unpacked,
    INVALID_RECORD for a set that is sound but breaks a rule, INVALID_TIMESTAMP.
    """
    outer = _produced(data, config.max_message_bytes)
    codec = outer[0][1].codec
    limit = min(config.max_message_bytes * _UNPACKED_TO_PACKED, records.DEFAULT_LIMIT)
    found = _numbered(_dated(data, outer, limit, config, now_ms))
    try:
        return records.encode(found, BatchOptions(codec=codec))
    except CorruptBatchError as error:
        raise contents.unreadable(error) from error


def _produced(data: View, max_bytes: int) -> Sequence[tuple[int, Header]]:
    """Return the outer messages of a produced set. Each is whole and has a right checksum, all have
    one magic.
    """
    end = 0
    outer: list[tuple[int, Header]] = []
    try:
        for position, header in batch.scan(data):
            end = position + header.size
            if header.size > max_bytes:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"message of {header.size} bytes is over max.message.bytes={max_bytes}",
                )
            if len(outer) == records.MAX_OBJECTS:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE, f"more than {records.MAX_OBJECTS} messages"
                )
            batch.check_crc(data, position, header)
            outer.append((position, header))
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if not outer or end < len(data):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"message cut off at byte {len(data)}")
    magic = outer[0][1].magic
    if any(header.magic != magic for _, header in outer):
        raise KafkaError(ErrorCode.INVALID_RECORD, "messages of different magic")
    if len(outer) > 1 and any(header.codec != compression.NONE for _, header in outer):
        raise KafkaError(ErrorCode.INVALID_RECORD, "more than one compressed message")
    return outer


def _dated(
    data: View, outer: Sequence[tuple[int, Header]], limit: int, config: TopicConfig, now_ms: int
) -> Iterator[Record]:
    """Yield the records of a produced set of at most `limit` bytes unpacked, after checking their
    timestamps.
    """
    unlimited = config.message_timestamp_type == "LogAppendTime"
    limit_ms = config.message_timestamp_difference_max_ms
    for position, header in outer:
        if header.magic and header.is_log_append_time:
            raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "clients may not set log append time")
        for record in legacy.decode(data, position, limit, as_stored=False):
            timestamp = record.timestamp
            if timestamp < batch.NO_TIMESTAMP:
                raise KafkaError(ErrorCode.INVALID_TIMESTAMP, f"timestamp {timestamp}")
            if not (
                unlimited or timestamp == batch.NO_TIMESTAMP or abs(timestamp - now_ms) <= limit_ms
            ):
                raise KafkaError(
                    ErrorCode.INVALID_TIMESTAMP,
                    f"timestamp {timestamp} is more than {limit_ms} ms from {now_ms}",
                )
            yield record


def _numbered(found: Iterator[Record]) -> Iterator[Record]:
    """Yield the records with offsets as a batch has them. The offsets that producers send are not
    used.
    """
    for number, record in enumerate(found):
        yield Record(number, record.timestamp, record.key, record.value)


# -- into topics of an old format -----------------------------------------------------------------


class OldFormat(NamedTuple):
    """A batch unpacked for a topic whose message.format.version is below 0.11."""

    found: Sequence[Record]
    magic: int
    codec: int

    def message_set(self, base_offset: int, append_time_ms: int | None) -> bytes:
        """Return the bytes to store, with offsets from `base_offset` on."""
        first = self.found[0].offset
        shifted = [
            replace(
                record,
                offset=base_offset + record.offset - first,
                timestamp=record.timestamp if append_time_ms is None else append_time_ms,
            )
            for record in self.found
        ]
        return legacy.encode(
            shifted, self.magic, self.codec, append_time=append_time_ms is not None
        )


def for_old_topic(header: Header, data: View, magic: int) -> OldFormat:
    """Unpack a validated batch to store it as `magic`. Raises KafkaError."""
    if header.producer_id >= 0 or header.is_transactional or header.is_control:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"messages of magic {magic} have no producer id and no transactions",
        )
    if header.codec > compression.LZ4:
        raise _no_zstd(magic)
    try:
        found = records.decode(data)
    except CorruptBatchError as error:
        raise contents.unreadable(error) from error
    if any(record.headers for record in found):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"messages of magic {magic} have no headers"
        )
    return OldFormat(found, magic, header.codec)


def _no_zstd(magic: int) -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no zstd in magic {magic}")


# -- to old consumers -----------------------------------------------------------------------------


class Converted(NamedTuple):
    """A part of a log in an older format, and the offset behind that part."""

    data: bytes
    next_offset: int


def needs_conversion(region: FileRegion, magic: int) -> bool:
    """Return whether a region holds a batch of a newer format than `magic`.

    Raises KafkaError CORRUPT_MESSAGE or KAFKA_STORAGE_ERROR.
    """
    with _readable():
        return any(header.magic > magic for _, header in _batches(region))


def read_as_message_set(
    reader: LogReader, region: FileRegion, offset: int, upto: int | None, magic: int, room: int
) -> bytes:
    """Return about `room` bytes for a consumer that reads from `offset` and knows `magic`.

    `region` is the result of a read from there. When nothing of it is left after conversion, for
    instance because it holds transaction markers only, what follows below `upto` is read: a
    consumer without a message would never get past it. Empty only at the end. Raises KafkaError.
    """
    with _readable():
        piece = to_message_set(region, offset, magic, room)
        while not piece.data and piece.next_offset > offset:
            offset = piece.next_offset
            following = reader.read(offset, region.length, upto).region
            if following is None:
                break
            try:
                piece = to_message_set(following, offset, magic, room)
            finally:
                following.close()
    return piece.data


def to_message_set(region: FileRegion, offset: int, magic: int, room: int) -> Converted:
    """Convert the whole batches of a region for a consumer that reads from `offset`.

    The result has at most `room` bytes, or as many as the region if those are more; the first batch
    is in it however large it is. What does not fit is for the next fetch. The result is empty when
    nothing is left. Uncompressed records below `offset` are left out, because some old consumers
    need that. Raises CorruptBatchError and OSError, and KafkaError where what comes first cannot be
    converted: UNSUPPORTED_COMPRESSION_TYPE for zstd, UNSUPPORTED_FOR_MESSAGE_FORMAT for a batch
    that unpacks to more than the limit (Kafka takes all memory that it needs).
    """
    room = max(room, region.length)
    out: list[bytes] = []
    size, next_offset = 0, offset
    for data, header in _batches(region):
        try:
            piece = _older(data, header, offset, magic)
        except KafkaError:
            if out:
                break
            raise
        if out and size + len(piece) > room:
            break
        if piece:
            out.append(piece)
            size += len(piece)
        next_offset = header.last_offset + 1
    return Converted(b"".join(out), next_offset)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    except OSError as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


def _older(data: memoryview, header: Header, offset: int, magic: int) -> bytes:
    """Return one batch in an older format; nothing for markers and emptied batches.

    Raises KafkaError as `to_message_set`, and CorruptBatchError.
    """
    if header.magic <= magic:
        return bytes(data)
    if header.codec > compression.LZ4:
        raise _no_zstd(magic)
    if header.is_control or header.record_count <= 0:
        return b""
    try:
        found: Sequence[Record] = contents.decode(data)
    except CorruptBatchError as error:
        if not contents.is_too_large(error):
            raise
        raise KafkaError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, str(error)) from error
    if header.codec == compression.NONE:
        found = [record for record in found if record.offset >= offset]
    if not found:
        return b""
    return legacy.encode(found, magic, header.codec, append_time=header.is_log_append_time)


def _batches(region: FileRegion) -> Iterator[tuple[memoryview, Header]]:
    """Yield the whole batches of a region, checked. Raises CorruptBatchError and OSError."""
    end = region.position + region.length
    try:
        yield from batch_file.whole_batches(region.fd, end, region.position)
    except CutOffError:
        return  # where max_bytes cut the region
