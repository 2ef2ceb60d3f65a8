"""Access to the records inside a batch, for what its header does not tell."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from odradek.log.records import batch, compression, legacy, records
from odradek.log.records.batch import CorruptBatchError, Header
from odradek.log.records.records import BatchOptions, Record
from odradek.properties import LONG_MAX
from odradek.protocol.errors import ErrorCode, KafkaError

View = bytes | bytearray | memoryview

MOST_RECORD_ERRORS = 100
"""Records of a batch that a refusal names. Each takes a hundred bytes of an answer, and only seven
of the request."""


class RecordError(NamedTuple):
    """Why one record of a batch is refused; its index counts from 0 (KIP-467)."""

    batch_index: int
    message: str


class RecordsRefusedError(KafkaError):
    """A batch is refused for some of its records; `record_errors` names the first of them."""

    def __init__(self, code: ErrorCode, message: str, record_errors: Sequence[RecordError]) -> None:
        super().__init__(code, message)
        self.record_errors = tuple(record_errors)


def decode(data: View, position: int = 0, *, with_headers: bool = False) -> list[Record]:
    """Return the records of the batch at `position`, of any format. Raises CorruptBatchError.

    Nobody checks the headers of records when they are produced. Most readers need none, and without
    them they can read every batch that was accepted.
    """
    if len(data) - position > batch.MAGIC_POSITION and data[position + batch.MAGIC_POSITION] < 2:
        return list(legacy.decode(data, position))
    return records.decode(data, position, with_headers=with_headers)


def rebuild(header: Header, kept: Sequence[Record]) -> tuple[bytes, Header]:
    """Return the batch of `header`, in its own format, with only the records `kept`, and its new
    header.
    """
    if header.magic == 2:
        return records.rebuild(header, kept)
    return legacy.rebuild(header, kept)


def unreadable(error: CorruptBatchError) -> KafkaError:
    """Return the error for a batch that cannot be unpacked: MESSAGE_TOO_LARGE if it unpacks to more
    than the limit, else CORRUPT_MESSAGE.
    """
    code = ErrorCode.MESSAGE_TOO_LARGE if is_too_large(error) else ErrorCode.CORRUPT_MESSAGE
    return KafkaError(code, str(error))


def is_too_large(error: CorruptBatchError) -> bool:
    """Return whether a batch is not damaged, but unpacks to more than the limit."""
    cause = error.__cause__
    return isinstance(cause, compression.CompressionError) and cause.too_large


def check_records(
    header: Header, data: View, name: str, with_keys: bool, now_ms: int, difference_max_ms: int
) -> None:
    """Look at every record as Kafka's LogValidator does; `name` is that of the partition.

    Refuses records without key where `with_keys` (a compacted topic could never clean them), and
    create times before 1970 or more than `difference_max_ms` from `now_ms`. Raises
    RecordsRefusedError INVALID_RECORD or INVALID_TIMESTAMP, KafkaError for a batch that cannot be
    unpacked.
    """
    try:
        found = records.decode(data)
    except CorruptBatchError as error:
        raise unreadable(error) from error
    no_key = f"Compacted topic cannot accept message without key in topic partition {name}."
    errors: list[RecordError] = []
    has_wrong_time = False
    for index, record in enumerate(found):
        if with_keys and record.key is None:
            wrong: str | None = no_key
        else:
            wrong = _wrong_time(header, record, now_ms, difference_max_ms)
            has_wrong_time = has_wrong_time or wrong is not None
        if wrong is not None and len(errors) < MOST_RECORD_ERRORS:
            errors.append(RecordError(index, wrong))
    if has_wrong_time:
        raise RecordsRefusedError(ErrorCode.INVALID_TIMESTAMP, INVALID_TIMES, errors)
    if errors:
        raise RecordsRefusedError(
            ErrorCode.INVALID_RECORD, "One or more records have been rejected", errors
        )


INVALID_TIMES = "One or more records have been rejected due to invalid timestamp"


def _wrong_time(header: Header, record: Record, now_ms: int, difference_max_ms: int) -> str | None:
    """Return what is wrong with the time of a record that a client sent, None if nothing is."""
    if header.is_log_append_time:
        return (
            f"Invalid timestamp type in message with offset {record.offset}. "
            "Producer should not set timestamp type to LogAppendTime."
        )
    timestamp = record.timestamp
    if timestamp == batch.NO_TIMESTAMP:
        return None
    if timestamp >= 0 and abs(timestamp - now_ms) <= difference_max_ms:
        return None
    first = max(now_ms - difference_max_ms, 0)
    last = min(now_ms + difference_max_ms, LONG_MAX)
    return (
        f"Timestamp {timestamp} of message with offset {record.offset} is out of range. "
        f"The timestamp should be within [{first}, {last}]"
    )


def check_count(header: Header, data: View) -> None:
    """Refuse a batch that does not hold as many records as its header claims (INVALID_RECORD).

    Counts the records by their lengths, without making objects of them. Raises KafkaError.
    """
    payload = memoryview(data)[batch.HEADER_SIZE :]
    try:
        body = bytes(compression.decompress(header.codec, payload, records.DEFAULT_LIMIT))
    except compression.CompressionError as error:
        code = ErrorCode.MESSAGE_TOO_LARGE if error.too_large else ErrorCode.CORRUPT_MESSAGE
        raise KafkaError(code, str(error)) from error
    if records.count(body, header.record_count) != header.record_count:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"not the {header.record_count} records of the header"
        )


def date(header: Header, data: View) -> tuple[Header, View]:
    """Set the largest timestamp of a batch from its records, for lookups by time and retention.

    Raises KafkaError.
    """
    try:
        found = records.decode(data, with_headers=False)
    except CorruptBatchError as error:
        raise unreadable(error) from error
    largest = max(batch.NO_TIMESTAMP, *(record.timestamp for record in found))
    payload = memoryview(data)[batch.HEADER_SIZE :]
    sealed = batch.seal(header._replace(max_timestamp=largest), payload)
    return batch.parse(sealed), sealed


def recompress(header: Header, data: View, compression_type: str) -> tuple[Header, View]:
    """Convert a batch to a compression.type other than `producer`. Raises KafkaError."""
    if header.is_control:
        return header, data
    codec = compression.CODECS[compression_type]
    if codec == header.codec:
        return header, data
    payload = memoryview(data)[batch.HEADER_SIZE :]
    try:
        plain = compression.decompress(header.codec, payload, records.DEFAULT_LIMIT)
    except compression.CompressionError as error:
        code = ErrorCode.MESSAGE_TOO_LARGE if error.too_large else ErrorCode.CORRUPT_MESSAGE
        raise KafkaError(code, str(error)) from error
    attributes = header.attributes & ~batch.CODEC_MASK | codec
    sealed = batch.seal(header._replace(attributes=attributes), compression.compress(codec, plain))
    return batch.parse(sealed), sealed


_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")


class Marker(NamedTuple):
    """What a transaction marker says: the end of its producer's transaction."""

    coordinator_epoch: int
    commits: bool


def marker_of(header: Header, data: View) -> Marker | None:
    """Return the marker in a control batch; None for other or emptied control batches.

    Its value is version i16, coordinator epoch i32 (Kafka's EndTxnMarker).
    """
    if header.record_count <= 0:
        return None
    try:
        record = records.decode(data, with_headers=False)[0]
    except CorruptBatchError:
        return None
    value = record.value
    if not value or len(value) < 6:
        return None
    return Marker(int.from_bytes(value[2:6], "big", signed=True), is_commit(record))


def make_marker(producer_id: int, producer_epoch: int, marker: Marker, now_ms: int) -> bytes:
    """Return the control batch that ends the producer's transaction, for a leader to append."""
    kind = 1 if marker.commits else 0
    return records.make(
        [(_MARKER_KEY.pack(0, kind), _MARKER_VALUE.pack(0, marker.coordinator_epoch))],
        now_ms,
        BatchOptions(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
            control=True,
        ),
    )


def is_commit(marker: Record) -> bool:
    """Return whether a control record commits its producer's transaction.

    Its key is version i16, type i16: 0 abort, 1 commit (Kafka's ControlRecordType).
    """
    return marker.key is not None and marker.key[2:4] == b"\0\1"


def first_since(header: Header, data: View, timestamp: int, offset: int) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record of a batch, from `offset` on, that is not
    older than `timestamp`; None when there is none.

    Raises CorruptBatchError.
    """
    batch.check_crc(data, 0, header)
    for record in decode(data):
        if record.timestamp >= timestamp and record.offset >= offset:
            return record.offset, record.timestamp
    return None
