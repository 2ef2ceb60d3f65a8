"""Which records of a batch are named when it is refused (KIP-467)."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.log.records import batch as codec
from odradek.log.records import compression, contents, records
from odradek.log.records.batch import Origin
from odradek.log.records.records import BatchOptions, Record
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS, Partition

COMPACTED = TopicConfig(cleanup_policy=("compact",))
STRICT = TopicConfig(message_timestamp_difference_max_ms=1000)
NO_KEY = "Compacted topic cannot accept message without key in topic partition topic-0."
REJECTED = "One or more records have been rejected"


def batch(*found: tuple[bytes | None, int], codec_number: int = compression.NONE) -> bytes:
    """Return a batch of records with these keys, each so many ms after the broker's time."""
    made = [Record(number, START_MS + ms, key, b"v") for number, (key, ms) in enumerate(found)]
    return records.encode(made, BatchOptions(codec=codec_number))


def refusal(folder: Path, config: TopicConfig, data: bytes) -> contents.RecordsRefusedError:
    log = Partition(folder / "topic-0", config).open(clean=True)
    with pytest.raises(contents.RecordsRefusedError) as caught:
        log.append_as_leader(data, 0)
    assert log.log_end_offset == 0
    return caught.value


@pytest.mark.parametrize("codec_number", [compression.NONE, compression.ZSTD])
def test_records_without_key_are_named_on_a_compacted_topic(
    tmp_path: Path, codec_number: int
) -> None:
    data = batch((b"k", 0), (None, 0), (b"", 0), (None, 0), codec_number=codec_number)
    refused = refusal(tmp_path, COMPACTED, data)
    assert (refused.code, refused.message) == (ErrorCode.INVALID_RECORD, REJECTED)
    assert refused.record_errors == ((1, NO_KEY), (3, NO_KEY))


def test_records_too_far_from_now_are_named(tmp_path: Path) -> None:
    refused = refusal(tmp_path, STRICT, batch((b"k", 0), (b"k", -1001), (b"k", 1000), (b"k", 1001)))
    assert refused.code is ErrorCode.INVALID_TIMESTAMP
    assert refused.message == f"{REJECTED} due to invalid timestamp"
    window = f"[{START_MS - 1000}, {START_MS + 1000}]"
    assert refused.record_errors == tuple(
        (
            number,
            f"Timestamp {START_MS + ms} of message with offset {number} is out of range. "
            f"The timestamp should be within {window}",
        )
        for number, ms in ((1, -1001), (3, 1001))
    )


def test_one_wrong_time_among_missing_keys_decides_the_code(tmp_path: Path) -> None:
    both = TopicConfig(cleanup_policy=("compact",), message_timestamp_difference_max_ms=1000)
    refused = refusal(tmp_path, both, batch((None, 0), (None, 5000), (b"k", 5000)))
    assert refused.code is ErrorCode.INVALID_TIMESTAMP
    first, second, third = refused.record_errors
    assert (first.message, second.message) == (NO_KEY, NO_KEY), "the key is looked at first"
    assert third.message.startswith(f"Timestamp {START_MS + 5000} of message with offset 2 ")


def test_every_record_is_named_where_the_batch_poses_as_stamped(tmp_path: Path) -> None:
    data = batch((b"k", 0), (b"k", 0))
    header = codec.parse(data)._replace(attributes=codec.LOG_APPEND_TIME)
    refused = refusal(tmp_path, TopicConfig(), codec.seal(header, data[codec.HEADER_SIZE :]))
    assert refused.code is ErrorCode.INVALID_TIMESTAMP
    assert [one.batch_index for one in refused.record_errors] == [0, 1]


def test_so_many_records_are_named_and_no_more(tmp_path: Path) -> None:
    data = batch(*[(None, 0)] * (contents.MOST_RECORD_ERRORS + 1))
    named = refusal(tmp_path, COMPACTED, data).record_errors
    assert [one.batch_index for one in named] == list(range(contents.MOST_RECORD_ERRORS))


def test_a_wrong_time_after_the_last_record_that_is_named_decides_the_code(tmp_path: Path) -> None:
    both = TopicConfig(cleanup_policy=("compact",), message_timestamp_difference_max_ms=1000)
    data = batch(*[(None, 0)] * contents.MOST_RECORD_ERRORS, (b"k", 5000))
    assert refusal(tmp_path, both, data).code is ErrorCode.INVALID_TIMESTAMP


def test_a_header_that_lies_about_its_times_is_refused_without_names(tmp_path: Path) -> None:
    log = Partition(tmp_path / "topic-0", STRICT).open(clean=True)
    data = batch((b"k", 0))
    header = codec.parse(data)._replace(max_timestamp=START_MS + 10**9)
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(codec.seal(header, data[codec.HEADER_SIZE :]), 0)
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
    assert not isinstance(caught.value, contents.RecordsRefusedError)


def test_a_large_batch_with_wrong_times_is_for_a_thread(tmp_path: Path) -> None:
    log = Partition(tmp_path / "topic-0", STRICT).open(clean=True)
    for ms, needed in ((0, False), (5000, True)):
        large = batch(*[(b"k" * 100, ms)] * 100)
        assert (log.append_at_once(large, 0, Origin.CLIENT) is None) is needed
