"""What a batch must be to be taken, and what an append changes in it."""

from __future__ import annotations

import contextlib
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from odradek.log.records import batch as codec
from odradek.log.records import compression, records
from odradek.log.records.batch import CorruptBatchError, Header, Origin
from odradek.log.records.records import BatchOptions, Record
from odradek.protocol.errors import ErrorCode, KafkaError
from tests.support.logs import START_MS, batch

LIMIT = 1 << 20


def resealed(data: bytes, **changes: int) -> bytes:
    """The batch with header fields changed and the checksum right again."""
    header = codec.parse(data)._replace(**changes)
    return codec.seal(header, data[codec.HEADER_SIZE :])


def validated(data: bytes, origin: Origin = Origin.CLIENT, limit: int = LIMIT) -> Header:
    """The header of a batch that passes every check. Raises KafkaError."""
    header = codec.sole(data, limit)
    codec.validate(data, header, origin)
    return header


def refusal(data: bytes, origin: Origin = Origin.CLIENT, limit: int = LIMIT) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        validated(data, origin, limit)
    return caught.value.code


def test_a_batch_claims_no_more_records_than_it_has_room_for() -> None:
    small = records.make([(None, None)] * 5, START_MS)
    assert validated(small).record_count == 5
    claimed = resealed(small, record_count=6, last_offset_delta=5)
    assert refusal(claimed) is ErrorCode.INVALID_RECORD


def test_transactional_batches_need_a_transactional_id() -> None:
    data = records.make([(None, b"v")], START_MS, BatchOptions(producer_id=1, transactional=True))
    told = resealed(data, producer_epoch=0, base_sequence=0)
    assert refusal(told) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    validated(told, Origin.TRANSACTIONAL_CLIENT)
    validated(told, Origin.REPLICATION)


def test_a_sound_batch_is_taken() -> None:
    header = validated(batch(b"a", b"b"))
    assert (header.record_count, header.last_offset, header.producer_id) == (2, 1, -1)


def test_a_flipped_bit_anywhere_behind_the_epoch_is_corrupt() -> None:
    data = batch(b"some value")
    for position in range(17, len(data)):
        for bit in (1, 128):
            broken = bytearray(data)
            broken[position] ^= bit
            assert refusal(bytes(broken)) is ErrorCode.CORRUPT_MESSAGE, position


def test_where_a_batch_is_cut_off_there_is_none() -> None:
    data = batch(b"some value")
    for length in range(len(data)):
        assert refusal(data[:length]) is ErrorCode.INVALID_RECORD, length


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"record_count": 0, "last_offset_delta": 0}, ErrorCode.INVALID_RECORD),
        ({"record_count": 3}, ErrorCode.INVALID_RECORD),
        ({"record_count": -2}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 7}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": -1}, ErrorCode.CORRUPT_MESSAGE),
        ({"attributes": codec.CONTROL}, ErrorCode.INVALID_RECORD),
        ({"attributes": 5}, ErrorCode.INVALID_RECORD),
        ({"base_offset": 1}, ErrorCode.INVALID_RECORD),
        ({"base_offset": -1}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 9, "producer_epoch": 0}, ErrorCode.INVALID_RECORD),
    ],
)
def test_header_rules(changes: dict[str, int], code: ErrorCode) -> None:
    assert refusal(resealed(batch(b"a", b"b"), **changes)) is code


def test_coordinators_may_write_control_batches_skip_sequences_and_offsets() -> None:
    marker = resealed(
        batch(b"a"), base_offset=5, attributes=codec.CONTROL, producer_id=3, producer_epoch=0
    )
    assert validated(marker, Origin.COORDINATOR).is_control


def test_two_batches_at_once_are_refused() -> None:
    assert refusal(batch(b"a") + batch(b"b")) is ErrorCode.INVALID_RECORD


def test_old_formats_are_refused_where_magic_2_is_required() -> None:
    body = struct.pack(">bbiii", 1, 0, -1, 1, 0)[:18]
    message = struct.pack(">qiI", 0, 4 + len(body) + 8, 0) + body + bytes(8)
    assert refusal(message) is ErrorCode.INVALID_RECORD


def test_size_over_the_limit_is_too_large() -> None:
    data = batch(b"x" * 1000)
    assert refusal(data, limit=len(data) - 1) is ErrorCode.MESSAGE_TOO_LARGE
    assert validated(data, limit=len(data)).size == len(data)


@pytest.mark.parametrize("shift", [-1001, 1001])
def test_create_times_far_from_now_are_refused(shift: int) -> None:
    header = codec.parse(batch(b"a", timestamp=START_MS + shift))
    assert not codec.has_valid_times(header, START_MS, 1000)
    assert codec.has_valid_times(header, START_MS, 1001)


def test_records_without_timestamp_are_never_too_far() -> None:
    assert codec.has_valid_times(codec.parse(batch(b"a", timestamp=-1)), START_MS, 0)


def test_stamping_with_create_time_changes_sixteen_bytes_and_keeps_the_checksum() -> None:
    data = batch(b"a", b"b")
    written = b"".join(codec.stamp(data, codec.parse(data), 1000, 7))
    assert written[16:] == data[16:]
    stored = codec.parse(written)
    assert (stored.base_offset, stored.leader_epoch, stored.last_offset) == (1000, 7, 1001)
    codec.check_crc(written, 0, stored)


def test_stamping_with_append_time_dates_every_record_and_seals_anew() -> None:
    data = batch(b"a", b"b", codec=compression.GZIP)
    written = b"".join(codec.stamp(data, codec.parse(data), 10, 1, START_MS + 5))
    stored = codec.parse(written)
    codec.check_crc(written, 0, stored)
    assert stored.is_log_append_time
    assert crc32c(written[21:]) == stored.crc
    assert [one.timestamp for one in records.decode(written)] == [START_MS + 5] * 2
    assert [one.offset for one in records.decode(written)] == [10, 11]


HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3)
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2**31 - 1).map(lambda gap: gap % 1000),
        st.integers(0, 2**62),
        st.none() | st.binary(max_size=50),
        st.none() | st.binary(max_size=200),
        HEADERS.map(tuple),
    ),
    min_size=1,
    max_size=10,
)


@given(RECORDS, st.integers(0, 4), st.integers(0, 2**40))
def test_records_come_back_as_they_went_in(
    raw: list[tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]],
    codec_number: int,
    base: int,
) -> None:
    written, offset = [], base
    for gap, timestamp, key, value, headers in raw:
        written.append(Record(offset, timestamp, key, value, headers))
        offset += 1 + gap
    data = records.encode(written, BatchOptions(codec=codec_number))
    assert records.decode(data) == written
    codec.check_crc(data, 0, codec.parse(data))


@pytest.mark.parametrize("codec_number", [1, 2, 3, 4])
def test_a_decompression_bomb_costs_no_more_than_the_limit(codec_number: int) -> None:
    bomb = compression.compress(codec_number, bytes(20_000_000))
    with pytest.raises(compression.CompressionError) as caught:
        compression.decompress(codec_number, bomb, 1_000_000)
    assert caught.value.too_large


@pytest.mark.parametrize("codec_number", [1, 2, 3, 4])
def test_output_of_exactly_the_limit_is_allowed(codec_number: int) -> None:
    data = bytes(range(256)) * 1000
    packed = compression.compress(codec_number, data)
    assert bytes(compression.decompress(codec_number, packed, len(data))) == data
    with pytest.raises(compression.CompressionError):
        compression.decompress(codec_number, packed, len(data) - 1)


@pytest.mark.parametrize("codec_number", [1, 2, 3, 4])
@given(noise=st.binary(max_size=200))
def test_noise_is_never_more_than_a_named_error(codec_number: int, noise: bytes) -> None:
    try:
        compression.decompress(codec_number, noise, 10_000)
    except compression.CompressionError:
        return
    # Noise that happens to be valid (an empty input, a raw snappy block) is fine.


@given(st.binary(max_size=300))
def test_scanning_noise_never_leaves_the_buffer(noise: bytes) -> None:
    with contextlib.suppress(CorruptBatchError):
        for position, header in codec.scan(noise):
            assert position + header.size <= len(noise)


@given(st.data())
def test_damaged_records_inside_a_batch_are_corrupt_or_readable(data: st.DataObject) -> None:
    whole = bytearray(batch(b"abc", b"defgh"))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(codec.HEADER_SIZE, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    try:
        assert len(records.decode(bytes(whole))) == 2
    except CorruptBatchError:
        return
