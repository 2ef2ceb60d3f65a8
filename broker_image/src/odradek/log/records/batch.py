"""Record batches as bytes: their header, their checks and the few bytes a broker changes in them.

A broker moves batches, not records: everything an append or a recovery has to know stands in the
first 61 bytes of a magic-2 batch, and the CRC-32C over the rest is computed by a C library. `parse`
reads one header, `scan` walks the headers of a buffer, `check_crc` looks at every byte, `validate`
applies the rules for batches from outside, and `stamp` returns the buffers to write.

An append is short enough for the price of looking up a field by its name to count: what every
append runs unpacks a header once, and gives names to what it needs of it.

Layout of magic 2 (Kafka's message format, KIP-98), big-endian:

    offset  size  field
    0       8     base offset           outside the CRC: an append patches it
    8       4     length of what follows
    12      4     partition leader epoch  outside the CRC: an append patches it
    16      1     magic
    17      4     CRC-32C of bytes 21..end
    21      2     attributes: 0-2 codec, 3 log append time, 4 transactional, 5 control
    23      4     last offset delta
    27      8     first timestamp, ms
    35      8     max timestamp, ms
    43      8     producer id
    51      2     producer epoch
    53      4     base sequence
    57      4     record count
    61            records

Magic 0 and 1 entries (offset i64, size i32, CRC-32 u32, magic i8, attributes i8, in magic 1
timestamp i64, then key and value) are described by the same `Header`; their offset field is the
last offset.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from crc32c import crc32c

from odradek.protocol.errors import ErrorCode, KafkaError

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
LOG_OVERHEAD = 12
"""Bytes of base offset and length, which stand before what `length` counts."""
SEQUENCE = struct.Struct(">qiibI2xi")
"""The fields of a batch's header that tell whether it is sound behind another: base offset, length,
leader epoch, magic, CRC-32C, last offset delta.
"""
CRC_START = 21
"""Where the bytes begin that the checksum of magic 2 covers."""
LEADER_EPOCH_POSITION = 12
"""Where a batch of magic 2 has its leader epoch, an i32 that the checksum does not cover."""
MAGIC_POSITION = 16
"""Where every format says which it is."""
_ATTRIBUTES_POSITION = 22

_PATCH = struct.Struct(">qii")
_CRC_POSITION = 17
_LEGACY = struct.Struct(">qiIbb")
_LEGACY_TIMESTAMP = struct.Struct(">q")
_LEGACY_TIMESTAMP_POSITION = 18
_LEGACY_CRC_START = 16
_LEGACY_MIN_LENGTH = (14, 22)
_PREFIX = struct.Struct(">qiib")
PREFIX_SIZE = _PREFIX.size
SMALLEST_RECORD = 7
"""Bytes of a record without key, value and headers: length, attributes and five numbers, one byte
each but for the length, which counts the six others.
"""

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

NO_PRODUCER_ID = -1
NO_TIMESTAMP = -1
NO_EPOCH = -1
_NO_LIMIT_MS = 2**63 - 1

View = bytes | bytearray | memoryview

_tuple = tuple.__new__


class Origin(Enum):
    """Who appends. Clients are checked fully; coordinators may write without sequences, and end
    transactions. Only a client with a transactional id may write transactional batches.
    """

    CLIENT = "client"
    TRANSACTIONAL_CLIENT = "transactional client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


CLIENT = Origin.CLIENT
"""Every append needs it, and looking up a member of an enumeration is a call in Python 3.11."""
TRANSACTIONAL_CLIENT = Origin.TRANSACTIONAL_CLIENT


class CorruptBatchError(Exception):
    """Bytes that are no valid batch; `position` counts from the start of the buffer."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"{reason} at byte {position}")
        self.position = position
        self.reason = reason


class UnfinishedBatchError(CorruptBatchError):
    """Bytes that end before the batch does."""


class Header(NamedTuple):
    """The header of a batch. A named tuple, not a dataclass: it is built for every batch that
    passes.
    """

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """Compression: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        """True for transaction markers and their like."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """True when the records belong to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """True when max_timestamp holds for every record of the batch."""
        return bool(self.attributes & LOG_APPEND_TIME)


_LENGTH = Header._fields.index("length")
_LAST_OFFSET_DELTA = Header._fields.index("last_offset_delta")


def parse(buffer: View, position: int = 0) -> Header:
    """Read the header at `position`, which must be wholly inside `buffer`; records may be cut off.

    Raises CorruptBatchError for an impossible length or magic, or when the header itself is cut
    off.
    """
    if len(buffer) - position < PREFIX_SIZE:
        raise UnfinishedBatchError(position, "batch header cut off")
    magic = buffer[position + MAGIC_POSITION]
    if magic == 2:
        try:
            fields = HEADER.unpack_from(buffer, position)
        except struct.error:
            raise UnfinishedBatchError(position, "batch header cut off") from None
        if fields[_LENGTH] < HEADER_SIZE - LOG_OVERHEAD:
            raise CorruptBatchError(position, f"batch length {fields[_LENGTH]}")
        if fields[_LAST_OFFSET_DELTA] < 0:
            raise CorruptBatchError(position, f"last offset delta {fields[_LAST_OFFSET_DELTA]}")
        return _tuple(Header, fields)
    if magic > 2:
        raise CorruptBatchError(position, f"magic {magic}")
    return _parse_legacy(buffer, position, magic)


def _parse_legacy(buffer: View, position: int, magic: int) -> Header:
    length_needed = _LEGACY_TIMESTAMP_POSITION + 8 * magic
    if len(buffer) - position < length_needed:
        raise UnfinishedBatchError(position, "message header cut off")
    offset, length, crc, _, attributes = _LEGACY.unpack_from(buffer, position)
    if length < _LEGACY_MIN_LENGTH[magic]:
        raise CorruptBatchError(position, f"message size {length}")
    timestamp = NO_TIMESTAMP
    if magic == 1:
        (timestamp,) = _LEGACY_TIMESTAMP.unpack_from(buffer, position + _LEGACY_TIMESTAMP_POSITION)
    return Header(
        offset, length, NO_EPOCH, magic, crc, attributes & 0x0F, 0, timestamp, timestamp,
        NO_PRODUCER_ID, -1, -1, 1,
    )  # fmt: skip


def scan(buffer: View, position: int = 0) -> Iterator[tuple[int, Header]]:
    """Yield (position, header) of each whole batch in `buffer`; a cut-off last batch ends the walk.

    Only headers are read. Raises CorruptBatchError where a header is impossible.
    """
    end = len(buffer)
    while end - position >= PREFIX_SIZE:
        size = (
            int.from_bytes(buffer[position + 8 : position + 12], "big", signed=True) + LOG_OVERHEAD
        )
        if size <= end - position or size < PREFIX_SIZE:
            header = parse(buffer, position)
            yield position, header
            position += size
        else:
            return


def begins_transactional(buffer: View) -> bool:
    """Return whether the first batch is a transactional one."""
    return (
        len(buffer) > _ATTRIBUTES_POSITION
        and buffer[MAGIC_POSITION] == 2
        and bool(buffer[_ATTRIBUTES_POSITION] & TRANSACTIONAL)
    )


def check_crc(buffer: View, position: int, header: Header) -> None:
    """Compute the checksum of the whole batch at `position`. Raises CorruptBatchError if it is
    wrong.
    """
    end = position + header.length + LOG_OVERHEAD
    if header.magic == 2:
        computed = crc32c(memoryview(buffer)[position + CRC_START : end])
    else:
        computed = zlib.crc32(memoryview(buffer)[position + _LEGACY_CRC_START : end])
    if computed != header.crc:
        raise CorruptBatchError(position, f"checksum {computed:#010x}, stored {header.crc:#010x}")


def _view(records: View) -> memoryview:
    return records if type(records) is memoryview else memoryview(records)


def sole(records: View, max_bytes: int) -> Header:
    """Return the header of the one magic-2 batch that `records` are, of at most `max_bytes`.

    Only the header is read. Raises KafkaError: CORRUPT_MESSAGE for an impossible header,
    MESSAGE_TOO_LARGE, INVALID_RECORD where there is no whole batch or more than one.
    """
    try:
        header = parse(records)
    except UnfinishedBatchError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from error
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if header.magic != 2:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"magic {header.magic} where 2 is required")
    size, given = header.length + LOG_OVERHEAD, len(records)
    if size > given:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"batch of {size} bytes cut off at {given}")
    if size < given:
        raise KafkaError(ErrorCode.INVALID_RECORD, "more than one batch for a partition")
    if size > max_bytes:
        raise too_large(size, max_bytes)
    return header


def too_large(size: int, max_bytes: int) -> KafkaError:
    """Return the error for a batch of `size` bytes, which are more than `max_bytes`."""
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"batch of {size} bytes is over max.message.bytes={max_bytes}",
    )


def validate(records: View, header: Header, origin: Origin) -> None:
    """Check that the batch whose header `sole` returned is well-formed.

    Raises KafkaError: CORRUPT_MESSAGE for a wrong checksum, INVALID_RECORD for a batch that is
    sound but breaks a rule (count and offset range, offsets of a client that do not begin at 0,
    control batch from a client, producer id without sequence), as Kafka's ProduceRequest and
    LogValidator do; TRANSACTIONAL_ID_AUTHORIZATION_FAILED for a transactional batch of a client
    that shows no transactional id.
    """
    (
        base_offset, length, _, _, crc, attributes, last_offset_delta, _, _,
        producer_id, producer_epoch, base_sequence, record_count,
    ) = header  # fmt: skip
    computed = crc32c(_view(records)[CRC_START:])
    if computed != crc:
        reason = f"checksum {computed:#010x}, stored {crc:#010x}"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, reason)
    if record_count <= 0 or record_count != last_offset_delta + 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{record_count} records with a last offset delta of {last_offset_delta}",
        )
    codec = attributes & CODEC_MASK
    if codec == 0:
        room = (length + LOG_OVERHEAD - HEADER_SIZE) // SMALLEST_RECORD
        if record_count > room:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"{record_count} records in a batch that has room for {room}",
            )
    elif codec > 4:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"compression codec {codec}")
    if origin is CLIENT or origin is TRANSACTIONAL_CLIENT:
        if base_offset != 0:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"base offset {base_offset} where 0 is required"
            )
        if attributes & CONTROL:
            raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
        if attributes & TRANSACTIONAL:
            if origin is CLIENT:
                raise KafkaError(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "a transactional batch in a request without a transactional id",
                )
            if producer_id < 0:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD, "a transactional batch without a producer id"
                )
        if producer_id >= 0 and base_sequence < 0:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"producer {producer_id} sent base sequence {base_sequence}",
            )
    elif attributes & CONTROL and NO_PRODUCER_ID in (producer_id, producer_epoch):
        raise KafkaError(ErrorCode.INVALID_RECORD, "a marker without a producer id and epoch")


def has_valid_times(header: Header, now_ms: int, difference_max_ms: int) -> bool:
    """Return whether create times are at most `difference_max_ms` from `now_ms`. A batch of a
    client that poses as stamped has no valid times.

    Looks at the first and the largest timestamp, which bound what a well-behaved producer sends.
    """
    return not header.attributes & LOG_APPEND_TIME and (
        difference_max_ms >= _NO_LIMIT_MS
        or all(
            timestamp == NO_TIMESTAMP or abs(timestamp - now_ms) <= difference_max_ms
            for timestamp in (header.first_timestamp, header.max_timestamp)
        )
    )


def stamp(
    records: View,
    header: Header,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int | None = None,
) -> Sequence[View]:
    """Return the buffers to write one after another.

    With create time only the first 16 bytes are new and the checksum stays; they are patched in
    place where `records` can be written to, which saves gathering. with `append_time_ms`
    the whole header is new, says log append time, and carries a new checksum.
    """
    view = _view(records)
    if append_time_ms is None:
        if view.readonly:
            return _PATCH.pack(base_offset, header.length, leader_epoch), view[_PATCH.size :]
        _PATCH.pack_into(view, 0, base_offset, header.length, leader_epoch)
        return (view,)
    stored = header._replace(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=header.attributes | LOG_APPEND_TIME,
        max_timestamp=append_time_ms,
    )
    head = bytearray(HEADER.pack(*stored))
    crc = crc32c(view[HEADER_SIZE:], crc32c(head[CRC_START:]))
    struct.pack_into(">I", head, _CRC_POSITION, crc)
    return head, view[HEADER_SIZE:]


def seal(header: Header, payload: View) -> bytes:
    """Return a whole magic-2 batch of `header` and the stored records; length and checksum are
    computed.
    """
    header = header._replace(length=HEADER_SIZE - LOG_OVERHEAD + len(payload), magic=2, crc=0)
    out = bytearray(HEADER.pack(*header))
    out += payload
    struct.pack_into(">I", out, _CRC_POSITION, crc32c(memoryview(out)[CRC_START:]))
    return bytes(out)
