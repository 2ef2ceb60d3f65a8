"""Records keep what both formats can say, on the way in and on the way out (L4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.log.partition import conversion
from odradek.log.records import batch as batches
from odradek.log.records import compression, contents, legacy, lz4_header, records
from odradek.log.records.records import BatchOptions, Record
from odradek.log.segment.files import Region, SharedFile
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS

Store = Callable[..., Region]
CONFIG = TopicConfig()
OLD_CODECS = (compression.NONE, compression.GZIP, compression.SNAPPY, compression.LZ4)
CONTENT = st.none() | st.binary(max_size=60)
MESSAGES = st.lists(st.tuples(st.integers(-1, 2**41), CONTENT, CONTENT), min_size=1, max_size=12)


def message_set(
    messages: list[tuple[int, bytes | None, bytes | None]], magic: int, codec: int
) -> bytes:
    """As a producer sends it."""
    return legacy.encode(
        [
            Record(number, timestamp if magic else -1, key, value)
            for number, (timestamp, key, value) in enumerate(messages)
        ],
        magic,
        codec,
    )


def refusal(data: bytes, config: TopicConfig = CONFIG, now_ms: int = START_MS) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        conversion.to_batch(data, config, now_ms)
    return caught.value.code


# -- from old producers ---------------------------------------------------------------------------


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
@given(messages=MESSAGES)
def test_a_produced_set_becomes_one_batch_of_its_codec(
    magic: int, codec: int, messages: list[tuple[int, bytes | None, bytes | None]]
) -> None:
    data = conversion.to_batch(message_set(messages, magic, codec), CONFIG, START_MS)
    header = batches.sole(data, 1 << 20)
    batches.validate(data, header, batches.CLIENT)
    assert (header.codec, header.record_count) == (codec, len(messages))
    assert records.decode(data) == [
        Record(number, timestamp if magic else -1, key, value)
        for number, (timestamp, key, value) in enumerate(messages)
    ]


def test_offsets_of_producers_are_not_trusted() -> None:
    written = [Record(offset, START_MS, b"k", b"v") for offset in (7, 7, 900)]
    data = conversion.to_batch(legacy.encode(written, 1, compression.GZIP), CONFIG, START_MS)
    assert [one.offset for one in records.decode(data)] == [0, 1, 2]


SOUND = message_set([(START_MS, b"k", b"v"), (START_MS, b"k", b"w")], 1, compression.NONE)
PACKED = message_set([(START_MS, b"k", b"v")], 1, compression.GZIP)


def test_every_truncation_is_corrupt() -> None:
    for data in (SOUND, PACKED):
        for length in range(len(data)):
            if length != len(SOUND) // 2:  # exactly the first of two messages
                assert refusal(data[:length]) is ErrorCode.CORRUPT_MESSAGE, length


def test_a_flipped_bit_is_corrupt() -> None:
    for position in range(12, len(SOUND) // 2):
        broken = bytearray(SOUND)
        broken[position] ^= 1
        assert refusal(bytes(broken)) is ErrorCode.CORRUPT_MESSAGE, position


@pytest.mark.parametrize("size", [-1, 0, 13, 0x7FFFFFFF, -0x80000000])
def test_an_absurd_size_is_corrupt(size: int) -> None:
    broken = bytearray(SOUND)
    broken[8:12] = size.to_bytes(4, "big", signed=True)
    assert refusal(bytes(broken)) is ErrorCode.CORRUPT_MESSAGE


def nested(magic: int) -> bytes:
    inner = message_set([(START_MS, b"k", b"v")], magic, compression.GZIP)
    return legacy._encoded(
        0, magic, compression.GZIP, START_MS, None, compression.compress(compression.GZIP, inner)
    )


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_in_a_wrapper_is_corrupt(magic: int) -> None:
    assert refusal(nested(magic)) is ErrorCode.CORRUPT_MESSAGE


def test_sets_of_two_formats_and_several_wrappers_are_invalid() -> None:
    other = message_set([(0, b"k", b"v")], 0, compression.NONE)
    for data in (SOUND + other, PACKED + PACKED, SOUND + PACKED):
        assert refusal(data) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [compression.GZIP, compression.LZ4])
def test_what_unpacks_to_far_more_than_the_topic_takes_is_too_large(codec: int) -> None:
    config = TopicConfig(max_message_bytes=20_000)
    bomb, large = (message_set([(START_MS, None, bytes(n << 20))], 1, codec) for n in (4, 2))
    assert len(bomb) < config.max_message_bytes
    assert refusal(bomb, config) is ErrorCode.MESSAGE_TOO_LARGE
    assert conversion.to_batch(large, config, START_MS)


@pytest.mark.parametrize("codec", OLD_CODECS[1:])
def test_what_unpacks_to_more_than_a_batch_may_hold_in_memory_is_too_large(
    codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = message_set([(START_MS, None, bytes(4 << 20))], 1, codec)
    assert conversion.to_batch(bomb, CONFIG, START_MS)
    monkeypatch.setattr(records, "DEFAULT_LIMIT", 1 << 20)
    assert refusal(bomb) is ErrorCode.MESSAGE_TOO_LARGE


def test_a_message_over_the_limit_is_too_large_and_many_below_it_are_not() -> None:
    config = TopicConfig(max_message_bytes=len(SOUND) // 2)
    assert conversion.to_batch(SOUND, config, START_MS)
    smaller = TopicConfig(max_message_bytes=len(SOUND) // 2 - 1)
    assert refusal(SOUND, smaller) is ErrorCode.MESSAGE_TOO_LARGE


def test_a_set_of_very_many_messages_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_OBJECTS", 2)
    assert conversion.to_batch(SOUND, CONFIG, START_MS)
    assert refusal(SOUND + SOUND) is ErrorCode.MESSAGE_TOO_LARGE


def test_times_are_checked_record_by_record() -> None:
    config = TopicConfig(message_timestamp_difference_max_ms=1000)
    for codec in (compression.NONE, compression.GZIP):
        times = (START_MS, START_MS - 1001, START_MS)
        data = message_set([(time, b"k", b"v") for time in times], 1, codec)
        assert refusal(data, config) is ErrorCode.INVALID_TIMESTAMP
        stamping = replace(config, message_timestamp_type="LogAppendTime")
        assert conversion.to_batch(data, stamping, START_MS)
    undated = message_set([(0, b"k", b"v")], 0, compression.NONE)
    assert records.decode(conversion.to_batch(undated, config, START_MS))[0].timestamp == -1


@pytest.mark.parametrize("codec", [compression.NONE, compression.GZIP])
def test_a_set_that_poses_as_stamped_is_refused(codec: int) -> None:
    data = legacy.encode([Record(0, START_MS, b"k", b"v")], 1, codec, append_time=True)
    assert refusal(data) is ErrorCode.INVALID_TIMESTAMP


# -- to old consumers -----------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Store]:
    """Bytes as a region of a file."""
    files: list[SharedFile] = []

    def store(data: bytes, length: int | None = None) -> Region:
        path = tmp_path / f"{len(files)}"
        path.write_bytes(b"before" + data)
        files.append(SharedFile(str(path), read_only=True))
        return Region(files[-1], 6, len(data) if length is None else length)

    yield store
    for file in files:
        file.retire()


def converted(region: Region, magic: int, offset: int = 0) -> list[Record]:
    found: list[Record] = []
    data = conversion.to_message_set(region, offset, magic, 0).data
    for position, header in batches.scan(data):
        assert header.magic <= magic
        batches.check_crc(data, position, header)
        found += legacy.decode(data, position)
    return found


GAPPED = [
    Record(10, START_MS + 1, b"a", b"first", (("h", b"x"),)),
    Record(11, START_MS + 3, None, b"second"),
    Record(15, START_MS + 2, b"c", None),
]


def without_headers(found: list[Record], magic: int) -> list[Record]:
    return [Record(one.offset, one.timestamp if magic else -1, one.key, one.value) for one in found]


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_batches_become_sets_of_their_codec_with_their_offsets(
    stored: Store, magic: int, codec: int
) -> None:
    region = stored(records.encode(GAPPED, BatchOptions(codec=codec)))
    assert converted(region, magic) == without_headers(GAPPED, magic)
    data = conversion.to_message_set(region, 0, magic, 0).data
    assert {header.codec for _, header in batches.scan(data)} == {codec}
    if codec == compression.LZ4 and magic == 0:
        frame = data[data.index(bytes.fromhex("04224d18")) :]
        assert lz4_header.with_old_check(frame) == frame


@given(messages=MESSAGES, steps=st.lists(st.integers(1, 9), min_size=12, max_size=12))
def test_down_and_up_again_is_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    messages: list[tuple[int, bytes | None, bytes | None]],
    steps: list[int],
) -> None:
    offset, written = 0, []
    for (timestamp, key, value), step in zip(messages, steps, strict=False):
        offset += step
        written.append(Record(offset, timestamp, key, value))
    for codec in OLD_CODECS:
        batch = records.encode(written, BatchOptions(codec=codec))
        header = batches.parse(batch)
        old = conversion._older(memoryview(batch), header, 0, 1)
        assert [one for at, _ in batches.scan(old) for one in legacy.decode(old, at)] == written
        again = records.decode(conversion.to_batch(old, CONFIG, START_MS))
        assert [(one.timestamp, one.key, one.value) for one in again] == messages


def test_append_time_is_that_of_the_whole_set(stored: Store) -> None:
    for codec in (compression.NONE, compression.GZIP):
        data = records.encode(GAPPED, BatchOptions(codec=codec))
        parts = batches.stamp(data, batches.parse(data), 10, 0, START_MS + 99)
        region = stored(b"".join(parts))
        assert {one.timestamp for one in converted(region, 1)} == {START_MS + 99}
        out = conversion.to_message_set(region, 0, 1, 0).data
        assert all(header.is_log_append_time for _, header in batches.scan(out))


def test_reading_inside_a_batch_drops_what_lies_before_unless_compressed(stored: Store) -> None:
    plain = stored(records.encode(GAPPED))
    assert [one.offset for one in converted(plain, 1, offset=11)] == [11, 15]
    assert [one.offset for one in converted(plain, 1, offset=12)] == [15]
    packed = stored(records.encode(GAPPED, BatchOptions(codec=compression.GZIP)))
    assert [one.offset for one in converted(packed, 1, offset=12)] == [10, 11, 15]


def test_markers_and_emptied_batches_are_left_out_and_passed(stored: Store) -> None:
    marker = records.encode(
        [Record(3, START_MS, b"\0\0\0\1", b"\0" * 6)], BatchOptions(control=True, producer_id=1)
    )
    emptied, _ = records.rebuild(
        batches.parse(records.encode([Record(4, START_MS, b"k", b"v")])), []
    )
    region = stored(marker + emptied)
    assert conversion.to_message_set(region, 3, 1, 0) == (b"", 5)
    followed = stored(marker + emptied + records.encode(GAPPED))
    assert [one.offset for one in converted(followed, 1, 3)] == [10, 11, 15]


def test_batches_that_are_old_enough_pass_as_they_are(stored: Store) -> None:
    old = legacy.encode(GAPPED, 0, compression.SNAPPY)
    mixed = stored(old + records.encode([replace(GAPPED[0], offset=16)]))
    assert conversion.needs_conversion(mixed, 1)
    assert conversion.to_message_set(mixed, 0, 1, 0).data.startswith(old)
    assert not conversion.needs_conversion(stored(old), 0)
    newer = stored(legacy.encode(GAPPED, 1, compression.SNAPPY))
    assert not conversion.needs_conversion(newer, 1)
    assert conversion.needs_conversion(newer, 0)
    assert converted(newer, 0) == without_headers(GAPPED, 0)


def test_the_answer_is_bounded_by_the_piece_but_for_its_first_batch(stored: Store) -> None:
    many = [
        records.encode([Record(number * 10 + at, START_MS, b"k", b"v") for at in range(10)])
        for number in range(20)
    ]
    region = stored(b"".join(many))
    out = conversion.to_message_set(region, 0, 1, 0)
    assert 0 < len(out.data) <= region.length
    assert out.next_offset % 10 == 0
    assert 0 < out.next_offset < 200
    assert conversion.to_message_set(region, 0, 1, 1 << 20).next_offset == 200
    alone = stored(many[0])
    assert len(conversion.to_message_set(alone, 0, 1, 0).data) > alone.length


def test_a_batch_that_the_piece_cuts_off_is_left_to_the_next_fetch(stored: Store) -> None:
    first = records.encode(GAPPED)
    second = records.encode([Record(16, START_MS, b"k", b"v")])
    region = stored(first + second, len(first) + len(second) - 1)
    assert conversion.to_message_set(region, 0, 1, 0).next_offset == 16
    too_small = stored(first, len(first) - 1)
    assert not conversion.needs_conversion(too_small, 1)


def test_zstd_ends_a_piece_and_is_refused_where_it_comes_first(stored: Store) -> None:
    zstd = records.encode([Record(16, START_MS, b"k", b"v")], BatchOptions(codec=compression.ZSTD))
    assert (
        conversion.to_message_set(stored(records.encode(GAPPED) + zstd), 0, 1, 0).next_offset == 16
    )
    with pytest.raises(KafkaError) as caught:
        conversion.to_message_set(stored(zstd), 16, 1, 0)
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_damage_is_never_converted(stored: Store) -> None:
    data = bytearray(records.encode(GAPPED))
    data[-1] ^= 1
    with pytest.raises(KafkaError) as caught:
        conversion.needs_conversion(stored(bytes(data)), 1)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


# -- into topics of an old format -----------------------------------------------------------------


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_a_batch_for_an_old_topic_gets_its_offsets_there(magic: int, codec: int) -> None:
    written = [replace(one, offset=number, headers=()) for number, one in enumerate(GAPPED)]
    data = records.encode(written, BatchOptions(codec=codec))
    old = conversion.for_old_topic(batches.parse(data), data, magic)
    out = old.message_set(100, None)
    found = [one for at, _ in batches.scan(out) for one in contents.decode(out, at)]
    assert found == without_headers(
        [replace(one, offset=100 + number) for number, one in enumerate(written)], magic
    )


@pytest.mark.parametrize(
    ("options", "headers", "code"),
    [
        (BatchOptions(producer_id=1), (), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (BatchOptions(transactional=True), (), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (BatchOptions(control=True), (), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (BatchOptions(), (("h", b"x"),), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (BatchOptions(codec=compression.ZSTD), (), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
)
def test_what_the_old_formats_cannot_say_is_refused(
    options: BatchOptions, headers: tuple[tuple[str, bytes], ...], code: ErrorCode
) -> None:
    data = records.encode([Record(0, START_MS, b"k", b"v", headers)], options)
    with pytest.raises(KafkaError) as caught:
        conversion.for_old_topic(batches.parse(data), data, 1)
    assert caught.value.code is code
