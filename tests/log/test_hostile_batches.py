"""Batches whose headers claim what their records do not hold, and record times that overflow."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from odradek.log.records import batch as codec
from odradek.log.records import compression, contents, legacy, records
from odradek.log.records.batch import CorruptBatchError, Origin
from odradek.log.records.records import MAX_OBJECTS, BatchOptions, Record
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from tests.log.test_compaction import compact
from tests.support.logs import START_MS, Partition, read_all

ZSTD = BatchOptions(codec=compression.ZSTD)
LONG_MAX = 2**63 - 1


def overflowing(*keys: bytes) -> bytes:
    """Return a batch whose second and later records have times above int64."""
    found = [Record(number, number, key, b"v") for number, key in enumerate(keys)]
    data = records.encode(found)
    header = codec.parse(data)._replace(first_timestamp=LONG_MAX, max_timestamp=LONG_MAX)
    return codec.seal(header, data[codec.HEADER_SIZE :])


@pytest.mark.parametrize("claimed", [2_001, records.MAX_OBJECTS])
def test_a_compressed_batch_holds_as_many_records_as_it_claims(
    tmp_path: Path, claimed: int
) -> None:
    log = Partition(tmp_path / "topic-0", TopicConfig()).open(clean=True)
    true = records.make([(None, b"")] * 2_000, START_MS, ZSTD)
    assert len(true) < 2_000, "so few bytes that the claim is looked into"
    assert log.append_at_once(true, 0, Origin.CLIENT) is None
    assert log.append_as_leader(true, 0).last_offset == 1_999
    header = codec.parse(true)._replace(record_count=claimed, last_offset_delta=claimed - 1)
    false = codec.seal(header, true[codec.HEADER_SIZE :])
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(false, 0)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 2_000


def test_a_batch_has_no_more_records_than_readers_decode(tmp_path: Path) -> None:
    log = Partition(tmp_path / "topic-0", TopicConfig()).open(clean=True)
    small = records.make([(None, b"")], START_MS, ZSTD)
    count = records.MAX_OBJECTS + 1
    header = codec.parse(small)._replace(record_count=count, last_offset_delta=count - 1)
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(codec.seal(header, small[codec.HEADER_SIZE :]), 0)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_record_time_above_int64_does_not_stop_a_compaction(tmp_path: Path) -> None:
    compacted = TopicConfig(cleanup_policy=("compact",))
    log = Partition(tmp_path / "topic-0", compacted).open(clean=True)
    log.append_as_leader(overflowing(b"a", b"b"), 0, origin=Origin.COORDINATOR)
    log.append_as_leader(overflowing(b"a"), 0, origin=Origin.COORDINATOR)
    log.roll()
    log.high_watermark = log.log_end_offset
    compact(log)
    assert [(one.offset, one.key) for one in read_all(log)] == [(1, b"b"), (2, b"a")]
    assert read_all(log)[0].timestamp == -(2**63), "it wraps, as in Kafka"


def test_clients_write_no_record_time_above_int64_to_a_compacted_topic(tmp_path: Path) -> None:
    compacted = TopicConfig(cleanup_policy=("compact",))
    log = Partition(tmp_path / "topic-0", compacted).open(clean=True)
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(overflowing(b"a", b"b"), 0)
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP


def null_headers(*counts: int) -> bytes:
    """Return a compressed batch with one record per count of null headers; a negative count has
    none.
    """
    body = bytearray()
    for number, count in enumerate(counts):
        record = bytearray(2)  # attributes, and no time after the first record's
        for value in (number, -1, -1, count):
            records._put_varint(record, value)
        record += b"\x01\x01" * max(count, 0)
        records._put_varint(body, len(record))
        body += record
    plain = [Record(number, START_MS, b"", b"") for number in range(len(counts))]
    header = codec.parse(records.encode(plain, ZSTD))
    return codec.seal(header, compression.compress(compression.ZSTD, body))


@pytest.mark.parametrize(
    "counts",
    [
        (3 * MAX_OBJECTS,),
        (MAX_OBJECTS // 2, MAX_OBJECTS // 2),
        (-MAX_OBJECTS, MAX_OBJECTS),
        (MAX_OBJECTS,),
    ],
)
def test_a_batch_of_too_many_headers_is_refused(tmp_path: Path, counts: tuple[int, ...]) -> None:
    bomb = null_headers(*counts)
    assert len(bomb) < 4096
    compacted = TopicConfig(cleanup_policy=("compact",))
    log = Partition(tmp_path / "topic-0", compacted).open(clean=True)
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(bomb, 0)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == 0


def test_a_batch_that_was_accepted_can_be_read_whatever_its_headers(tmp_path: Path) -> None:
    """Lookups by time, and a topic that is compacted later, need keys and times only."""
    topic = Partition(tmp_path / "topic-0", TopicConfig())
    log = topic.open(clean=True)
    bomb = null_headers(MAX_OBJECTS, 3)
    log.append_as_leader(bomb, 0)
    log.append_as_leader(records.make([(b"k", b"newer")], START_MS + 1), 0)
    log.high_watermark = log.log_end_offset
    found = log.reader.offset_for_timestamp(START_MS)
    assert found is not None
    assert (found.offset, found.timestamp) == (0, START_MS)
    log.config = TopicConfig(cleanup_policy=("compact",))
    log.roll()
    compact(log)
    assert [one.value for one in read_all(log)] == [b"newer"]


def far_record() -> bytes:
    """Return a batch of one record whose offset is far beyond what an answer can hold."""
    record = bytearray(2)  # attributes, and no time after the first record's
    for value in (2**68, -1, -1, 0):
        records._put_varint(record, value)
    body = bytearray()
    records._put_varint(body, len(record))
    header = codec.parse(records.make([(b"", b"")], START_MS))
    return codec.seal(header, body + record)


def test_a_record_whose_offset_is_beyond_int32_cannot_be_read(tmp_path: Path) -> None:
    """Kafka cannot, either. Lookups by time would answer with an offset beyond int64."""
    log = Partition(tmp_path / "topic-0", TopicConfig()).open(clean=True)
    log.append_as_leader(far_record(), 0)
    log.high_watermark = log.log_end_offset
    with pytest.raises(KafkaError) as caught:
        log.reader.offset_for_timestamp(START_MS)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_compacted_topic_takes_no_record_whose_offset_is_beyond_int32(tmp_path: Path) -> None:
    compacted = TopicConfig(cleanup_policy=("compact",))
    log = Partition(tmp_path / "topic-0", compacted).open(clean=True)
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(far_record(), 0)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_compaction_keeps_headers_as_they_are(tmp_path: Path) -> None:
    log = Partition(tmp_path / "topic-0", TopicConfig(cleanup_policy=("compact",))).open(clean=True)
    headers = (("a", b"1"), ("", None), ("a", b""))
    found = [
        Record(number, START_MS, key, b"v", headers) for number, key in enumerate((b"a", b"b"))
    ]
    log.append_as_leader(records.encode(found, ZSTD), 0)
    log.append_as_leader(records.make([(b"a", b"newer")], START_MS), 0)
    log.roll()
    log.high_watermark = log.log_end_offset
    compact(log)
    assert [(one.offset, one.headers) for one in read_all(log)] == [(1, headers), (2, ())]


def test_a_batch_of_too_many_headers_takes_little_memory() -> None:
    bomb = null_headers(3 * MAX_OBJECTS)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError):
            records.decode(bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


def test_a_batch_that_claims_too_many_records_is_not_unpacked() -> None:
    true = records.make([(None, b"")], START_MS, ZSTD)
    header = codec.parse(true)._replace(record_count=MAX_OBJECTS + 1)
    with pytest.raises(CorruptBatchError) as caught:
        records.decode(codec.seal(header, true[codec.HEADER_SIZE :]))
    assert contents.unreadable(caught.value).code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_of_many_small_records_is_decoded() -> None:
    found = [Record(number, number, b"k", None, (("h", None),) * 3) for number in range(50_000)]
    assert records.decode(records.encode(found, ZSTD)) == found


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_of_too_many_messages_is_refused(
    monkeypatch: pytest.MonkeyPatch, magic: int
) -> None:
    monkeypatch.setattr(legacy, "MAX_OBJECTS", 1000)
    found = [Record(number, -1, b"k", None) for number in range(1001)]
    assert list(legacy.decode(legacy.encode(found[:1000], magic, compression.GZIP)))
    with pytest.raises(CorruptBatchError) as caught:
        list(legacy.decode(legacy.encode(found, magic, compression.GZIP)))
    assert contents.unreadable(caught.value).code is ErrorCode.MESSAGE_TOO_LARGE
