"""Batches that say of themselves that they hold nothing younger than some time before their first
record, as producers do that leave the field for the broker to fill."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.log.partition.log import Log
from odradek.log.records import batch as codec
from odradek.log.records import compression, records
from odradek.log.records.batch import Origin
from odradek.log.records.records import BatchOptions, Record
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS, Partition, read_all

TIMES = [START_MS, START_MS + 30, START_MS + 20]
CODECS = range(5)
PLAIN = BatchOptions()
PRODUCER = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=0)


def understated(
    claimed: int = -1, options: BatchOptions = PLAIN, value: bytes = b"v", **fields: int
) -> bytes:
    """A batch of records at `TIMES` that claims `claimed` for its largest timestamp."""
    found = [Record(number, time, b"k", value) for number, time in enumerate(TIMES)]
    data = records.encode(found, options)
    header = codec.parse(data)._replace(max_timestamp=claimed, **fields)
    return codec.seal(header, data[codec.HEADER_SIZE :])


def opened(tmp_path: Path, **config: object) -> tuple[Partition, Log]:
    partition = Partition(tmp_path / "topic-0", TopicConfig(**config))  # type: ignore[arg-type]
    return partition, partition.open(clean=True)


def stored_header(log: Log) -> codec.Header:
    region = log.reader.read(0, 1 << 20).region
    assert region is not None
    with region:
        data = region.read()
    header = codec.parse(data)
    codec.check_crc(data, 0, header)
    return header


def refusal(log: Log, data: bytes) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(data, 0)
    return caught.value.code


@pytest.mark.parametrize("codec_number", CODECS)
@pytest.mark.parametrize("claimed", [-1, 0, START_MS - 1])
def test_they_are_dated_by_their_records(tmp_path: Path, codec_number: int, claimed: int) -> None:
    _, log = opened(tmp_path)
    log.append_as_leader(understated(claimed, BatchOptions(codec=codec_number)), 3)
    header = stored_header(log)
    assert (header.max_timestamp, header.codec) == (START_MS + 30, codec_number)
    assert [one.timestamp for one in read_all(log)] == TIMES
    found = log.reader.offset_for_timestamp(START_MS + 1)
    assert found is not None
    assert (found.offset, found.timestamp) == (1, START_MS + 30)


def test_they_are_dated_where_they_are_compressed_anew(tmp_path: Path) -> None:
    _, log = opened(tmp_path, compression_type="gzip")
    log.append_as_leader(understated(), 0)
    header = stored_header(log)
    assert (header.max_timestamp, header.codec) == (START_MS + 30, compression.GZIP)


def test_their_producers_are_remembered_as_long_as_others(tmp_path: Path) -> None:
    partition, log = opened(tmp_path)
    first = log.append_as_leader(understated(options=PRODUCER), 0)
    log.producers.expire(partition.clock.now_ms())
    repeat = log.append_as_leader(understated(options=PRODUCER), 0)
    assert (repeat.base_offset, repeat.duplicate) == (first.base_offset, True)


def test_a_sound_batch_is_written_as_it_came(tmp_path: Path) -> None:
    _, log = opened(tmp_path)
    assert log.prepare(data := understated(START_MS + 40), Origin.CLIENT)[1] is data


def test_the_brokers_clock_needs_no_look_at_records(tmp_path: Path) -> None:
    _, log = opened(tmp_path, message_timestamp_type="LogAppendTime")
    data = understated(options=BatchOptions(codec=compression.GZIP))
    assert log.append_at_once(data, 0, Origin.CLIENT) is not None
    assert log.prepare(data, Origin.CLIENT)[1] is data


@pytest.mark.parametrize(
    ("data", "looks"),
    [
        (understated(options=BatchOptions(codec=compression.LZ4)), True),
        (understated(value=b"v" * 5000), True),
        (understated(), False),
        (understated(START_MS, BatchOptions(codec=compression.LZ4)), False),
        (understated(START_MS, value=b"v" * 5000), False),
        (b"", False),
        (understated()[:42], False),
    ],
    ids=["packed", "large", "small", "sound and packed", "sound and large", "nothing", "cut off"],
)
def test_they_are_looked_into_in_a_thread_where_that_can_take_long(
    tmp_path: Path, data: bytes, looks: bool
) -> None:
    _, log = opened(tmp_path)
    if len(data) < codec.HEADER_SIZE:
        with pytest.raises(KafkaError):
            log.append_at_once(data, 0, Origin.CLIENT)
    else:
        assert (log.append_at_once(data, 0, Origin.CLIENT) is None) is looks


def test_their_true_time_is_what_may_be_too_far_from_now(tmp_path: Path) -> None:
    partition, log = opened(tmp_path, message_timestamp_difference_max_ms=25)
    assert refusal(log, understated()) is ErrorCode.INVALID_TIMESTAMP
    partition.clock.advance(10)
    assert log.append_as_leader(understated(), 0).last_offset == 2


def test_what_cannot_be_unpacked_or_dated_is_refused(tmp_path: Path) -> None:
    _, log = opened(tmp_path)
    data = understated(options=BatchOptions(codec=compression.ZSTD))
    damaged = codec.seal(codec.parse(data), b"\xff" * 50)
    assert refusal(log, damaged) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(log, understated(first_timestamp=2**63 - 1)) is ErrorCode.INVALID_TIMESTAMP
    assert log.log_end_offset == 0
