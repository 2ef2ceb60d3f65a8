"""Magic 0 and 1 as bytes: against Kafka's own output, and against kafka-python's codec (L4)."""

from __future__ import annotations

import contextlib
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek import message_format
from odradek.log.records import batch, compression, contents, legacy, lz4_header
from odradek.log.records.batch import CorruptBatchError
from odradek.log.records.records import Record
from tests.support.logs import START_MS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka.record import legacy_records
    from kafka.record.memory_records import MemoryRecords

CODECS = (compression.NONE, compression.GZIP, compression.SNAPPY, compression.LZ4)
VECTORS = [
    line.split() for line in Path(__file__).with_name("legacy_vectors.txt").read_text().splitlines()
]
VECTOR_IDS = ["-".join(vector[:3]) for vector in VECTORS]
APPENDED_MS = 1_700_000_009_000


def decode_all(data: bytes) -> list[Record]:
    """The records of a message set, every checksum verified."""
    found: list[Record] = []
    for position, header in batch.scan(data):
        batch.check_crc(data, position, header)
        found += legacy.decode(data, position)
    return found


def vector_records(magic: int, time: str) -> list[Record]:
    """What tests/support/LegacyVectors.java writes."""

    def dated(number: int) -> int:
        if magic == 0:
            return -1
        return APPENDED_MS if time == "LogAppendTime" else 1_700_000_000_000 + number

    return [
        Record(40, dated(1), b"a", b"first"),
        Record(41, dated(3), None, b" ".join([b"second"] * 6)),
        Record(44, dated(2), b"c", None),
    ]


@pytest.mark.parametrize(("magic", "codec", "time", "data"), VECTORS, ids=VECTOR_IDS)
def test_what_kafka_writes_is_read(magic: str, codec: str, time: str, data: str) -> None:
    assert decode_all(bytes.fromhex(data)) == vector_records(int(magic), time)


@pytest.mark.parametrize(("magic", "codec", "time", "data"), VECTORS, ids=VECTOR_IDS)
def test_the_same_records_become_what_kafka_writes(
    magic: str, codec: str, time: str, data: str
) -> None:
    number = compression.NAMES.index(codec)
    written = legacy.encode(
        vector_records(int(magic), time), int(magic), number, append_time=time == "LogAppendTime"
    )
    if number == compression.NONE:
        assert written.hex() == data
    kafkas, ours = (batch.parse(one) for one in (bytes.fromhex(data), written))
    fields = ("base_offset", "magic", "attributes", "max_timestamp")
    assert [getattr(ours, f) for f in fields] == [getattr(kafkas, f) for f in fields]
    assert decode_all(written) == vector_records(int(magic), time)
    if number == compression.LZ4:
        # The frame's header, whose check byte is wrong in magic 0.
        mark = bytes.fromhex("04224d18")
        start = written.index(mark), bytes.fromhex(data).index(mark)
        assert written[start[0] :][:7] == bytes.fromhex(data)[start[1] :][:7]


# -- kafka-python as the other side ---------------------------------------------------------------


@pytest.fixture(autouse=True, scope="module")
def codecs_for_kafka_python() -> Iterator[None]:
    """Its codecs come with libraries that are not installed; cramjam's stand in."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("has_snappy", "has_lz4"):
            patch.setattr(f"kafka.codec.{name}", lambda: True)
        stand_ins = {
            "snappy_encode": lambda data: bytes(cramjam.snappy.compress_raw(data)),
            "snappy_decode": lambda data: compression.decompress(2, data, 1 << 20),
            "lz4_encode": lambda data: bytes(cramjam.lz4.compress(data)),
            "lz4_decode": lambda data: bytes(cramjam.lz4.decompress(data)),
            "lz4_encode_old_kafka": lambda data: lz4_header.with_old_check(
                bytes(cramjam.lz4.compress(data))
            ),
            "lz4_decode_old_kafka": lambda data: bytes(
                cramjam.lz4.decompress(lz4_header.with_right_check(data))
            ),
        }
        for name, stand_in in stand_ins.items():
            patch.setattr(legacy_records, name, stand_in)
        yield


CONTENT = st.none() | st.binary(max_size=60)
MESSAGES = st.lists(
    st.tuples(st.integers(1, 1000), st.integers(0, 2**41), CONTENT, CONTENT),
    min_size=1,
    max_size=12,
)


def with_offsets(
    messages: list[tuple[int, int, bytes | None, bytes | None]], magic: int, base: int
) -> list[Record]:
    """Records whose offsets rise by the given steps, as compaction leaves them."""
    found, offset = [], base
    for step, timestamp, key, value in messages:
        offset += step
        found.append(Record(offset, timestamp if magic else -1, key, value))
    return found


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
@given(messages=MESSAGES, base=st.integers(0, 2**40))
def test_kafka_python_reads_what_is_written(
    magic: int,
    codec: int,
    messages: list[tuple[int, int, bytes | None, bytes | None]],
    base: int,
) -> None:
    written = with_offsets(messages, magic, base)
    reader = MemoryRecords(legacy.encode(written, magic, codec))
    found: list[Record] = []
    while (entry := reader.next_batch()) is not None:
        assert entry.validate_crc()
        for record in entry:
            assert record.validate_crc()
            timestamp = -1 if record.timestamp is None else record.timestamp
            found.append(Record(record.offset, timestamp, record.key, record.value))
    assert found == written


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
@given(messages=MESSAGES)
def test_what_kafka_python_writes_is_read(
    magic: int, codec: int, messages: list[tuple[int, int, bytes | None, bytes | None]]
) -> None:
    builder = legacy_records.LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for number, (_, timestamp, key, value) in enumerate(messages):
        assert builder.append(number, timestamp, key, value) is not None
    assert decode_all(bytes(builder.build())) == [
        Record(number, timestamp if magic else -1, key, value)
        for number, (_, timestamp, key, value) in enumerate(messages)
    ]


# -- damage ---------------------------------------------------------------------------------------


def sealed(magic: int, attributes: int, value: bytes | None, offset: int = 0) -> bytes:
    """One message with a right checksum and whatever else is asked for."""
    body = bytes([magic, attributes]) + (struct.pack(">q", START_MS) if magic else b"")
    body += struct.pack(">i", -1)
    body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(magic: int, inside: bytes, codec: int = compression.GZIP, offset: int = 0) -> bytes:
    packed = compression.compress(codec, inside)
    if codec == compression.LZ4 and magic == 0:
        packed = lz4_header.with_old_check(packed)
    return sealed(magic, codec, packed, offset)


def broken_inside(magic: int) -> bytes:
    inside = bytearray(sealed(magic, 0, b"value"))
    inside[-1] ^= 1
    return bytes(inside)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda m: wrapper(m, wrapper(m, sealed(m, 0, b"v"))), "another compressed message"),
        (lambda m: wrapper(m, broken_inside(m)), "wrong checksum"),
        (lambda m: wrapper(m, sealed(m, 0, b"v")[:-1]), "message size"),
        (lambda m: wrapper(m, sealed(m, 0, b"v") + b"\0" * 5), "message cut off"),
        (lambda m: wrapper(m, b""), "nothing inside"),
        (lambda m: sealed(m, compression.GZIP, None), "without value"),
        (lambda m: sealed(m, compression.GZIP, b"no gzip"), "."),
        (lambda m: wrapper(m, sealed(m, 0, b"v"), compression.ZSTD), "codec 4"),
        (lambda m: sealed(m, 7, b"v"), "codec 7"),
        (lambda m: wrapper(m, b"\0" * 8 + b"\x7f\xff\xff\xff" + b"\0" * 30), "message size"),
        (lambda m: wrapper(m, b"\0" * 8 + b"\x80\0\0\0" + b"\0" * 30), "message size"),
        (lambda m: wrapper(m, b"\0" * 16 + b"\2" + b"\0" * 30), "magic 2"),
    ],
)  # fmt: skip
def test_damage_inside_a_wrapper_is_named(
    magic: int, damage: Callable[[int], bytes], reason: str
) -> None:
    with pytest.raises(CorruptBatchError, match=reason):
        list(legacy.decode(damage(magic)))


def test_a_wrapper_offset_below_the_last_inside_is_corrupt() -> None:
    data = wrapper(1, sealed(1, 0, b"v", 0) + sealed(1, 0, b"v", 5), offset=4)
    with pytest.raises(CorruptBatchError, match="below the last"):
        list(legacy.decode(data))


def test_messages_of_another_magic_are_read_from_the_disk_and_refused_from_producers() -> None:
    data = wrapper(1, sealed(0, 0, b"v", 7), offset=7)
    assert [one.offset for one in legacy.decode(data)] == [7]
    with pytest.raises(CorruptBatchError, match="magic 0 in magic 1"):
        list(legacy.decode(data, as_stored=False))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_bomb_costs_no_more_than_the_limit(codec: int) -> None:
    data = wrapper(1, sealed(1, 0, bytes(3_000_000)), codec)
    with pytest.raises(CorruptBatchError, match=r"more than \d+ bytes"):
        list(legacy.decode(data, limit=1_000_000))


@given(st.data())
def test_noise_in_a_message_set_is_corrupt_or_readable(data: st.DataObject) -> None:
    magic = data.draw(st.sampled_from([0, 1]))
    codec = data.draw(st.sampled_from(CODECS))
    whole = bytearray(legacy.encode(vector_records(magic, "CreateTime"), magic, codec))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(12, len(whole) - 1))] = data.draw(st.integers(0, 255))
    whole = whole[: data.draw(st.integers(0, len(whole)))]
    with contextlib.suppress(CorruptBatchError):
        for position, header in batch.scan(whole):
            assert position + header.size <= len(whole)
            contents.decode(whole, position)


# -- the check byte of lz4 ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0x02CC5D05),
        (b"a", 0x550D7456),
        (b"abc", 0x32D153FF),
        (b"Nobody inspects the spammish repetition", 0xE2293B2F),
    ],
)
def test_xxhash32_gives_the_published_values(data: bytes, value: int) -> None:
    assert lz4_header.xxhash32(data) == value


@pytest.mark.parametrize("flags", [0x60, 0x68], ids=["plain", "with content size"])
def test_the_right_check_byte_is_that_of_any_lz4_reader(flags: int) -> None:
    frame = bytes.fromhex("04224d18") + bytes([flags, 0x40])
    frame += struct.pack("<Q", 3) if flags & 8 else b""
    frame += b"\0" + struct.pack("<I", 3 | 0x80000000) + b"abc" + bytes(4)
    with pytest.raises(compression.CompressionError):
        compression.decompress(compression.LZ4, frame, 100)
    right = lz4_header.with_right_check(frame)
    assert bytes(compression.decompress(compression.LZ4, right, 100)) == b"abc"
    old = lz4_header.with_old_check(right)
    assert old != right
    assert lz4_header.with_right_check(old) == right


# -- names of versions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "magic"),
    [
        ("0.8.2", 0), ("0.9.0", 0), ("0.9.0.1", 0), ("0.10.0-IV0", 1), ("0.10.2", 1),
        ("0.10.2.2", 1), ("0.11.0", 2), ("0.11.0-IV2", 2), ("1.0", 2), ("2.8", 2), ("2.8.2", 2),
        ("2.8-IV1", 2),
    ],
)  # fmt: skip
def test_each_version_has_its_magic(version: str, magic: int) -> None:
    assert message_format.magic_of(version) == magic


@pytest.mark.parametrize("version", ["", "0.9", "0.12.0", "2.9", "3.0", "2.8-IV2", "2.8-IV", "x"])
def test_unknown_versions_are_refused(version: str) -> None:
    with pytest.raises(ValueError, match="is not a valid version"):
        message_format.magic_of(version)
