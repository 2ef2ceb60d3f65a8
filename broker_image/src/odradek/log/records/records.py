"""Records inside a magic-2 batch: encode, decode, rebuild.

The produce and fetch path never comes here. A record is, after decompression: length varint,
attributes i8, timestamp delta varlong, offset delta varint, key and value (varint length, -1 for
null), headers (varint count, then key and value each). Varints are zigzag, least significant group
first.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from odradek.log.records import batch, compression
from odradek.log.records.batch import CorruptBatchError, Header

DEFAULT_LIMIT = 128 * 1024 * 1024
"""Largest decompressed size of one batch, bytes."""

MAX_OBJECTS = 1 << 20
"""Most records and headers of one batch that are decoded: two bytes become a header of more than a
hundred."""

View = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Record:
    """One record. Timestamp in ms, absolute offset.

    Where headers are not decoded, `raw_headers` has them as they are stored, with their number.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    raw_headers: bytes | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Fields of a batch besides its records."""

    codec: int = compression.NONE
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    control: bool = False


_PLAIN = BatchOptions()


def encode(records: Iterable[Record], options: BatchOptions = _PLAIN) -> bytes:
    """Return one magic-2 batch holding `records`, at least one, whose offsets rise (gaps are
    allowed).
    """
    remaining = iter(records)
    first = last = next(remaining)
    body = bytearray()
    _put_record(body, first, first.offset, first.timestamp)
    count, newest = 1, first.timestamp
    for last in remaining:
        _put_record(body, last, first.offset, first.timestamp)
        count += 1
        newest = max(newest, last.timestamp)
    attributes = options.codec
    attributes |= batch.TRANSACTIONAL if options.transactional else 0
    attributes |= batch.CONTROL if options.control else 0
    header = Header(
        first.offset, 0, options.leader_epoch, 2, 0, attributes, last.offset - first.offset,
        first.timestamp, newest, options.producer_id, options.producer_epoch,
        options.base_sequence, count,
    )  # fmt: skip
    return batch.seal(header, compression.compress(options.codec, body))


def rebuild(header: Header, kept: Sequence[Record]) -> tuple[bytes, Header]:
    """Return the batch of `header` with only `kept` of its records, and its new header.

    Offsets, timestamps of records, producer fields and the last offset stay what they were; without
    records it is an empty batch, as compaction leaves it. That one names no codec: clients would
    decompress its nothing, and some never get past the error.
    """
    body = bytearray()
    for record in kept:
        _put_record(body, record, header.base_offset, header.first_timestamp)
    newest = header.max_timestamp
    if kept and not header.is_log_append_time:
        newest = max(record.timestamp for record in kept)
    attributes = header.attributes if kept else header.attributes & ~batch.CODEC_MASK
    payload = compression.compress(header.codec, body) if kept else b""
    fields = header._replace(attributes=attributes, record_count=len(kept), max_timestamp=newest)
    data = batch.seal(fields, payload)
    return data, batch.parse(data)


def make(
    values: Iterable[tuple[bytes | None, bytes | None]],
    timestamp: int,
    options: BatchOptions = _PLAIN,
    base_offset: int = 0,
) -> bytes:
    """Return one batch of (key, value) pairs, all with one timestamp, offsets from `base_offset`
    on.
    """
    return encode(
        [
            Record(base_offset + number, timestamp, key, value)
            for number, (key, value) in enumerate(values)
        ],
        options,
    )


def decode(
    data: View, position: int = 0, limit: int = DEFAULT_LIMIT, *, with_headers: bool = True
) -> list[Record]:
    """Return the records of the magic-2 batch at `position`.

    Raises CorruptBatchError; its cause is CompressionError if the batch unpacks to more than
    `limit` bytes or MAX_OBJECTS. Headers that are not decoded are no objects.
    """
    header = batch.parse(data, position)
    if header.magic != 2:
        raise CorruptBatchError(position, f"magic {header.magic}")
    if position + header.size > len(data):
        raise CorruptBatchError(position, "batch cut off")
    view = memoryview(data)[position : position + header.size]
    try:
        if header.record_count > MAX_OBJECTS:
            raise too_many_objects()
        body = compression.decompress(header.codec, view[batch.HEADER_SIZE :], limit)
        return list(_records(bytes(body), header, with_headers))
    except compression.CompressionError as error:
        raise CorruptBatchError(position, str(error)) from error
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptBatchError(position, "record cut off or unreadable") from error


def too_many_objects() -> compression.CompressionError:
    """Return the error for a batch of more than MAX_OBJECTS."""
    return compression.CompressionError(
        f"more than {MAX_OBJECTS} records and headers", too_large=True
    )


def _records(body: bytes, header: Header, with_headers: bool) -> Iterator[Record]:
    position = 0
    left = MAX_OBJECTS - header.record_count
    for _ in range(header.record_count):
        length, position = _varint(body, position)
        end = position + length
        if length < 0 or end > len(body):
            raise IndexError(end)
        delta, position = _varint(body, position + 1)
        timestamp = _as_int64(header.first_timestamp + delta)
        if header.is_log_append_time:
            timestamp = header.max_timestamp
        offset_delta, position = _varint(body, position)
        if not -(2**31) <= offset_delta < 2**31:  # Kafka reads an i32
            raise IndexError(position)
        key, position = _bytes(body, position, end)
        value, position = _bytes(body, position, end)
        offset = header.base_offset + offset_delta
        if not with_headers:
            if position >= end:
                raise IndexError(position)
            yield Record(offset, timestamp, key, value, raw_headers=body[position:end])
            position = end
            continue
        count, position = _varint(body, position)
        left -= max(count, 0)
        if left < 0:
            raise too_many_objects()
        headers = []
        for _ in range(count):
            name, position = _bytes(body, position, end)
            content, position = _bytes(body, position, end)
            headers.append(((name or b"").decode(), content))
        if position != end:
            raise IndexError(position)
        yield Record(offset, timestamp, key, value, tuple(headers))


def count(body: bytes, limit: int) -> int:
    """Return how many records decompressed bytes hold, -1 where they are not whole records; stop
    behind `limit`.
    """
    position = found = 0
    try:
        while position < len(body) and found <= limit:
            length, position = _varint(body, position)
            if length < 0:
                return -1
            position += length
            found += 1
    except IndexError:
        return -1
    return found if position <= len(body) else -1


def _as_int64(value: int) -> int:
    """Return `value` as Kafka's arithmetic in 64 bits leaves it: it wraps."""
    return (value + 2**63) % 2**64 - 2**63


def _bytes(body: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _varint(body, position)
    if length < 0:
        return None, position
    if position + length > end:
        raise IndexError(position + length)
    return body[position : position + length], position + length


def _varint(body: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise IndexError(position)


def _put_record(out: bytearray, record: Record, base_offset: int, first_timestamp: int) -> None:
    body = bytearray(1)
    _put_varint(body, _as_int64(record.timestamp - first_timestamp))
    _put_varint(body, record.offset - base_offset)
    _put_bytes(body, record.key)
    _put_bytes(body, record.value)
    if record.raw_headers is not None:
        body += record.raw_headers
    else:
        _put_varint(body, len(record.headers))
        for name, content in record.headers:
            _put_bytes(body, name.encode())
            _put_bytes(body, content)
    _put_varint(out, len(body))
    out += body


def _put_bytes(out: bytearray, content: bytes | None) -> None:
    if content is None:
        _put_varint(out, -1)
    else:
        _put_varint(out, len(content))
        out += content


def _put_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
