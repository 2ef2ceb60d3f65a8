"""Record batches with a right checksum and wrong content, and fetches of what they left.

The checksum already rejects a damaged batch. Forged batches test what comes after it:
decompression, conversion between message formats, reading for consumers of old formats.
"""

from __future__ import annotations

import zlib
from random import Random

from crc32c import crc32c

from odradek.log.records import legacy, records
from odradek.log.records.records import BatchOptions, Record
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.fuzz import corpus

CRC_OF_BATCH = slice(17, 21)
BATCH_HEADER_BYTES = 61
MESSAGE_CRC_AT = 12
MESSAGE_HEADER_BYTES = 18
# More than any batch may unpack to.
BOMB_BYTES = 160_000_000


def frame(random: Random) -> bytes:
    """Return a Produce with a forged batch, or a Fetch whose version may require conversion."""
    if random.random() < 0.4:
        return corpus.frame_of(_fetch(random), random.choice((0, 1, 2, 3, 4, 9, 10, 12)))
    version = random.randrange(10)
    fitting = 2 if version >= 3 else min(version, 1)
    magic = fitting if random.random() < 0.9 else random.randrange(3)
    data = _batch(random) if magic == 2 else message_set(random, magic)
    partition = PartitionProduceData(index=0, records=data)
    topic = TopicProduceData(name=corpus.TOPIC, partition_data=[partition])
    request = ProduceRequest(acks=random.choice((0, 1, -1, -1)), timeout_ms=100, topic_data=[topic])
    return corpus.frame_of(request, version)


def _records(random: Random, *, headers: bool) -> list[Record]:
    return [
        Record(
            offset,
            random.choice((1_700_000_000_000 + offset, 0)),
            random.choice((None, b"key")),
            random.choice((None, b"value" * random.randrange(20))),
            (("name", b"content"),) if headers and random.random() < 0.3 else (),
        )
        for offset in range(random.randrange(1, 12))
    ]


def _damage(data: bytearray, first: int, random: Random) -> None:
    for _ in range(random.choice((0, 1, 1, 2, 8))):
        if len(data) > first:
            data[random.randrange(first, len(data))] = random.randrange(256)


def _batch(random: Random) -> bytes:
    options = BatchOptions(codec=random.randrange(5))
    data = bytearray(records.encode(_records(random, headers=True), options))
    _damage(data, random.choice((21, BATCH_HEADER_BYTES, BATCH_HEADER_BYTES)), random)
    data[CRC_OF_BATCH] = crc32c(data[21:]).to_bytes(4)
    return bytes(data)


def message_set(random: Random, magic: int) -> bytes:
    """Return an old message set with right checksums and damaged content."""
    found = _records(random, headers=False)
    data = bytearray(legacy.encode(found, magic, random.randrange(4)))
    _damage(data, random.choice((MESSAGE_HEADER_BYTES - 2, MESSAGE_HEADER_BYTES + 8)), random)
    position = 0
    while position + MESSAGE_HEADER_BYTES <= len(data):
        size = int.from_bytes(data[position + 8 : position + 12], signed=True)
        end = position + 12 + size
        if size < 6 or end > len(data):
            break
        at = position + MESSAGE_CRC_AT
        data[at : at + 4] = zlib.crc32(data[at + 4 : end]).to_bytes(4)
        position = end
    return bytes(data)


def _fetch(random: Random) -> FetchRequest:
    part = FetchPartition(
        partition=0,
        fetch_offset=random.randrange(2000),
        partition_max_bytes=random.choice((0, 100, 5000, 50_000)),
    )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=1,
        min_bytes=1,
        max_bytes=50_000,
        topics=[FetchTopic(topic=corpus.TOPIC, partitions=[part])],
    )


def bomb(codec: int, version: int) -> bytes:
    """Return a small Produce of many compressed zeros; before version 3 it must be unpacked."""
    found = [Record(0, 0, None, bytes(BOMB_BYTES), ())]
    if version >= 3:
        data = records.encode(found, BatchOptions(codec=codec))
    else:
        data = legacy.encode(found, min(version, 1), codec)
    partition = PartitionProduceData(index=0, records=data)
    topic = TopicProduceData(name=corpus.TOPIC, partition_data=[partition])
    return corpus.frame_of(ProduceRequest(acks=1, timeout_ms=100, topic_data=[topic]), version)
