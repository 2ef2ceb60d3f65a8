"""Access to the records inside a batch, for what its header does not tell."""

from collections.abc import Sequence

from odradek.log.records import batch, compression, legacy, records
from odradek.log.records.batch import CorruptBatchError, Header
from odradek.log.records.records import Record
from odradek.protocol.errors import ErrorCode, KafkaError

View = bytes | bytearray | memoryview


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
    cause = error.__cause__
    bomb = isinstance(cause, compression.CompressionError) and cause.too_large
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE if bomb else ErrorCode.CORRUPT_MESSAGE, str(error)
    )


def check_keys(data: View) -> None:
    """Refuse a batch with a record without key, which a compacted topic could never clean. Raises
    KafkaError INVALID_RECORD.
    """
    try:
        found = records.decode(data)
    except CorruptBatchError as error:
        raise unreadable(error) from error
    if any(record.key is None for record in found):
        raise KafkaError(ErrorCode.INVALID_RECORD, "a compacted topic takes only records with keys")
    _check_times(found)


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
    _check_times(found)
    largest = max(batch.NO_TIMESTAMP, *(record.timestamp for record in found))
    payload = memoryview(data)[batch.HEADER_SIZE :]
    sealed = batch.seal(header._replace(max_timestamp=largest), payload)
    return batch.parse(sealed), sealed


def _check_times(found: Sequence[Record]) -> None:
    """Refuse records before 1970, among them those whose time overflowed (INVALID_TIMESTAMP)."""
    for record in found:
        if record.timestamp < batch.NO_TIMESTAMP:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP, f"timestamp {record.timestamp} of a record"
            )


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


def marker_epoch(header: Header, data: View) -> int | None:
    """Return the coordinator epoch of a transaction marker; None for other or emptied control
    batches.

    The value of a marker is version i16, coordinator epoch i32 (Kafka's EndTxnMarker).
    """
    if header.record_count <= 0:
        return None
    try:
        value = records.decode(data, with_headers=False)[0].value
    except CorruptBatchError:
        return None
    return int.from_bytes(value[2:6], "big", signed=True) if value and len(value) >= 6 else None


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
