"""Payloads that are built validly and then bent in one field: record batches, and what consumers
put into JoinGroup and SyncGroup.

The checksum is made right again, so that the broker has to look at the field itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from random import Random

from crc32c import crc32c

from odradek.log.records import compression, records
from odradek.log.records.records import BatchOptions, Record
from tests.fuzz import forge
from tests.fuzz.edges import NOW_MS

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)
_COUNTS = (-2, -1, 0, 1, 2, 2**31 - 1, -(2**31), 2**31 - 2, 65_536)
_LONGS = (-2, -1, 0, 1, INT64_MAX, INT64_MIN, INT64_MAX - 1, 2**31, NOW_MS + 604_800_000)
_SHORTS = (-2, -1, 0, 1, 2, 32_767, -32_768)
# Every field of a batch header: where it is, how it is packed, and its edges.
_HEADER: tuple[tuple[int, str, tuple[int, ...]], ...] = (
    (0, ">q", _LONGS),  # base offset
    (8, ">i", (*_COUNTS, 49, 48, 50)),  # length
    (12, ">i", _COUNTS),  # leader epoch
    (16, ">b", (-1, 0, 1, 2, 3, 127, -128)),  # magic
    (21, ">h", (*range(8), 8, 16, 32, 48, 64, 128, -1, 32_767)),  # attributes
    (23, ">i", _COUNTS),  # last offset delta
    (27, ">q", _LONGS),  # first timestamp
    (35, ">q", _LONGS),  # newest timestamp
    (43, ">q", (-2, -1, 0, 1, 2, INT64_MAX, INT64_MIN)),  # producer id
    (51, ">h", _SHORTS),  # producer epoch
    (53, ">i", _COUNTS),  # base sequence
    (57, ">i", (*_COUNTS, 1_048_577)),  # records
)
_VARINTS = (-2, -1, 0, 1, 63, 64, 2**31 - 1, -(2**31), INT64_MAX, INT64_MIN, 2**32)


def payload(random: Random, version: int, *, bent: bool) -> bytes:
    """Return what a Produce of a version carries."""
    if version < 3:
        return forge.message_set(random, min(version, 1))
    data = _batch(random)
    if bent:
        data = random.choice((_bend_header, _bend_header, _bend_records, _shape))(data, random)
    return data


def _options(random: Random) -> BatchOptions:
    plain = BatchOptions(codec=random.choice((0, 0, 0, 1, 2, 3, 4)))
    if random.random() < 0.7:
        return plain
    return replace(
        plain,
        producer_id=random.randrange(5),
        producer_epoch=random.choice((0, 0, 1, 32_767)),
        base_sequence=random.choice((0, 1, 2**31 - 1)),
        transactional=random.random() < 0.1,
        control=random.random() < 0.1,
    )


def _record(random: Random, offset: int) -> Record:
    name = random.choice((b"key", b"other", b"k" * 100, b"\0\1\0\5group\0\6fuzzed\0\0\0\0"))
    value = random.choice((b"value", b"", None, b"v" * 1000, b"\0\3" + bytes(30)))
    headers = (("name", b"content"), ("", None)) if random.random() < 0.2 else ()
    return Record(offset, NOW_MS, random.choice((name, name, None)), value, headers)


def _batch(random: Random) -> bytes:
    found = [_record(random, offset) for offset in range(random.choice((1, 1, 2, 5)))]
    return records.encode(found, _options(random))


def _sealed(data: bytearray) -> bytes:
    data[forge.CRC_OF_BATCH] = crc32c(data[21:]).to_bytes(4)
    return bytes(data)


def _bend_header(data: bytes, random: Random) -> bytes:
    bent = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2))):
        at, form, edges = random.choice(_HEADER)
        struct.pack_into(form, bent, at, random.choice(edges))
    return _sealed(bent)


def _bend_records(data: bytes, random: Random) -> bytes:
    """Replace the records by one whose lengths, deltas or number of headers lie."""
    lie = random.randrange(8)

    def say(place: int, truth: int) -> bytes:
        return _varint(random.choice(_VARINTS) if place == lie else truth)

    body = b"\0" + say(0, 0) + say(1, 0) + say(2, 3) + b"key" + say(3, 5) + b"value"
    body += say(4, 1) + say(5, 4) + b"name" + say(6, 1) + b"x"
    made = say(7, len(body)) + body
    if random.random() < 0.2:  # a thousand times what is there, in a few bytes
        many = b"\0\0\0\1\1" + _varint(100_000) + b"\0\1" * 100_000
        made = _varint(len(many)) + many
    codec = random.randrange(5)
    bent = bytearray(data[: forge.BATCH_HEADER_BYTES])
    struct.pack_into(">h", bent, 21, codec)
    struct.pack_into(">i", bent, 23, 0)
    struct.pack_into(">i", bent, 57, 1)
    bent += compression.compress(codec, made)
    struct.pack_into(">i", bent, 8, len(bent) - 12)
    return _sealed(bent)


def _shape(data: bytes, random: Random) -> bytes:
    """Return the batch in another number or length."""
    shapes: tuple[Callable[[], bytes], ...] = (
        lambda: data * random.choice((2, 50)),
        lambda: data[: random.randrange(len(data))],
        lambda: data + bytes(random.randrange(1, 80)),
        lambda: data[: forge.BATCH_HEADER_BYTES],
        lambda: b"",
        lambda: data + data[:20],
    )
    return random.choice(shapes)()


def _varint(value: int) -> bytes:
    coded = (value << 1) ^ (value >> 63)
    out = bytearray()
    while coded >= 0x80:
        out.append(coded & 0x7F | 0x80)
        coded >>= 7
    out.append(coded)
    return bytes(out)


def subscription(random: Random, *, bent: bool) -> bytes:
    """Return a consumer's subscription or assignment (version, topics, user data)."""
    lie = random.randrange(5) if bent else -1

    def say(place: int, form: str, truth: int, edges: tuple[int, ...]) -> bytes:
        return struct.pack(form, random.choice(edges) if place == lie else truth)

    data = say(0, ">h", random.choice((0, 1)), _SHORTS) + say(1, ">i", 1, _COUNTS)
    data += say(2, ">h", 6, _SHORTS) + b"fuzzed" + say(3, ">i", 0, _COUNTS)
    return data[: random.randrange(len(data))] if lie == 4 else data
