"""The quick look at batches that a fetch needs says what the thorough one says."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.log.partition.log import Log
from odradek.log.records import batch as batches
from odradek.log.records.batch import CorruptBatchError
from odradek.log.segment import batch_file
from odradek.log.segment.batch_file import BatchSequence
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from tests.support.logs import Partition, batch, flip
from tests.support.sampling import how_many

pytestmark = pytest.mark.usefixtures("without_fsync")
CASES = how_many(60, full=3000)
# Below, above, and far above what is read at once.
SIZES = (1, 100, 1000, 16_000, 65_000, 300_000)


def thoroughly(fd: int, end: int, start: int, sequence: BatchSequence) -> tuple[int, int]:
    """As `skip_sound`, of any size and format."""
    before = position = start
    try:
        for data, header in batch_file.whole_batches(fd, end, start):
            sequence.take(position, header)
            before, position = position, position + len(data)
    except CorruptBatchError:
        pass
    return before, position


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """A log whose closed segments have batches of many sizes and epochs."""
    chance = random.Random(31)
    config = TopicConfig(segment_bytes=1 << 20, max_message_bytes=1 << 20)
    log = Partition(tmp_path_factory.mktemp("log") / "topic-0", config).open(clean=True)
    for number in range(150):
        values = [chance.randbytes(chance.choice(SIZES)) for _ in range(chance.randint(1, 3))]
        log.append_as_leader(batch(*values), number // 10)
    assert len(log.segments) > 5
    yield log
    log.abandon()


def read(log: Log, offset: int, max_bytes: int) -> bytes | None:
    """Return what is served, None where the reader is told of damage."""
    try:
        piece = log.reader.read(offset, max_bytes)
    except KafkaError as error:
        if error.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        return None
    assert piece.region is not None
    with piece.region as region:
        return region.read()


def test_a_fetch_gets_the_same_with_and_without_the_quick_look(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(32)
    closed = log.segments[:-1]
    quick = batch_file.skip_sound
    shorter = refused = 0
    for _ in range(CASES):
        segment = chance.choice(closed)
        path = Path(segment.log.path)
        heads = [position for position, _ in batches.scan(path.read_bytes())]
        byte = chance.choice(
            (
                chance.choice(heads) + chance.randrange(batches.HEADER_SIZE),
                chance.randrange(segment.size),
            )
        )
        bit = byte * 8 + chance.randrange(8)
        offset = chance.randrange(segment.base_offset, segment.next_offset())
        max_bytes = chance.choice((1, 50_000, 250_000, 1 << 20))
        sound = read(log, offset, max_bytes)
        assert sound is not None
        flip(path, bit)
        try:
            monkeypatch.setattr(batch_file, "skip_sound", quick)
            found = read(log, offset, max_bytes)
            monkeypatch.setattr(
                batch_file, "skip_sound", lambda fd, end, start, sequence: (start, start)
            )
            assert found == read(log, offset, max_bytes), (path.name, bit, offset, max_bytes)
        finally:
            flip(path, bit)
        refused += found is None
        shorter += found is not None and len(found) < len(sound)
    assert refused, "damage was asked for"
    assert shorter, "something sound was before it"


def test_all_sound_batches_are_skipped_at_once(log: Log) -> None:
    segment = max(log.segments[:-1], key=lambda one: one.size)
    small = [
        (position, header)
        for position, header in batches.scan(Path(segment.log.path).read_bytes())
        if header.size <= 200_000
    ]
    fd = segment.log.acquire()
    try:
        for start, first in small:
            quickly, slowly = BatchSequence(first.base_offset), BatchSequence(first.base_offset)
            before, position = batch_file.skip_sound(fd, segment.size, start, quickly)
            assert position > start
            assert (before, position) == thoroughly(fd, position, start, slowly)
            assert (quickly.next_offset, quickly.leader_epoch) == (
                slowly.next_offset,
                slowly.leader_epoch,
            )
            # What ends the quick look ends the file, or is larger than what is read at once.
            beyond = (
                batches.parse(segment.read(position, 61)).size if position < segment.size else 0
            )
            assert not beyond or beyond > 200_000
    finally:
        segment.log.release()


@pytest.mark.parametrize(
    "what",
    ["older format", "offset that went back", "epoch that went back", "checksum", "cut off"],
)
def test_the_quick_look_ends_before_what_is_not_plainly_sound(tmp_path: Path, what: str) -> None:
    def stamped(base_offset: int, leader_epoch: int, values: int = 3) -> bytes:
        made = batch(*[b"value"] * values)
        header = batches.parse(made)
        return b"".join(
            bytes(one) for one in batches.stamp(made, header, base_offset, leader_epoch)
        )

    first, second = stamped(10, 4), stamped(13, 4)
    third = bytearray(stamped(16, 4))
    if what == "older format":
        third[batches.MAGIC_POSITION] = 1
    elif what == "offset that went back":
        third[:8] = (15).to_bytes(8, "big")
    elif what == "epoch that went back":
        third[12:16] = (3).to_bytes(4, "big")
    elif what == "checksum":
        third[-1] ^= 1
    else:
        del third[-1]
    path = tmp_path / "log"
    path.write_bytes(first + second + third + stamped(19, 5))
    fd = os.open(path, os.O_RDONLY)
    try:
        end = len(first + second + third)
        sequence = BatchSequence(0)
        found = batch_file.skip_sound(fd, end, 0, sequence)
        assert found == (len(first), len(first + second))
        assert (sequence.next_offset, sequence.leader_epoch) == (16, 4)
    finally:
        os.close(fd)
