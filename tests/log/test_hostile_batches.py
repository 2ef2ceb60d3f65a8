"""Batches whose headers claim what their records do not hold, and record times that overflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.config import TopicConfig
from odradek.log.records import batch as codec
from odradek.log.records import compression, records
from odradek.log.records.batch import Origin
from odradek.log.records.records import BatchOptions, Record
from odradek.protocol.errors import ErrorCode, KafkaError
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


@pytest.mark.parametrize("claimed", [2_001, 2**31 - 1])
def test_a_compressed_batch_holds_as_many_records_as_it_claims(
    tmp_path: Path, claimed: int
) -> None:
    log = Partition(tmp_path / "topic-0", TopicConfig()).open(clean=True)
    true = records.make([(None, b"")] * 2_000, START_MS, ZSTD)
    assert len(true) < 2_000, "so few bytes that the claim is looked into"
    assert log.needs_record_inspection(true, Origin.CLIENT)
    assert log.append_as_leader(true, 0).last_offset == 1_999
    header = codec.parse(true)._replace(record_count=claimed, last_offset_delta=claimed - 1)
    false = codec.seal(header, true[codec.HEADER_SIZE :])
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(false, 0)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 2_000


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
