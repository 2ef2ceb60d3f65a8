"""One bit of a closed segment is not what it was: whoever reads there is told, and nobody gets
other records than those that were appended.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.log.partition import cleaner
from odradek.log.partition.log import Log
from odradek.log.records import batch as batches
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS, Partition, batch, flip, whole_records
from tests.support.sampling import how_many

pytestmark = pytest.mark.usefixtures("without_fsync")
CONFIG = TopicConfig(segment_bytes=900, index_interval_bytes=200, segment_index_bytes=800)
FLIPS = how_many(30, full=4000)

Entry = tuple[int, int, bytes | None, bytes | None, int]


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "topic-0", CONFIG)


def fill(log: Log) -> None:
    for number in range(40):
        log.append_as_leader(
            batch(
                b"value %d" % number,
                bytes(number % 90),
                b"third",
                timestamp=START_MS + number * 10,
                codec=number % 3,
                producer_id=number % 3,
                producer_epoch=0,
                base_sequence=number // 3 * 3,
            ),
            5 + number // 14 * 4,
        )


def entries(data: bytes) -> Iterator[Entry]:
    """What a consumer makes of fetched bytes, the leader epoch of each record included."""
    epochs = {header.base_offset: header.leader_epoch for _, header in batches.scan(data)}
    base = -1
    for record in whole_records(data):
        base = record.offset if record.offset in epochs else base
        yield record.offset, record.timestamp, record.key, record.value, epochs[base]


def read(log: Log, offset: int) -> list[Entry] | None:
    """What a consumer that stands at `offset` gets, None where it is told of damage."""
    try:
        piece = log.reader.read(offset, 700)
    except KafkaError as error:
        if error.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        return None
    assert piece.region is not None
    with piece.region as region:
        return [entry for entry in entries(region.read()) if entry[0] >= offset]


def lookup(log: Log, timestamp: int) -> int | None:
    """Offset by time, None where the lookup is told of damage."""
    try:
        found = log.reader.offset_for_timestamp(timestamp)
    except KafkaError as error:
        if error.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        return None
    assert found is not None
    return found.offset


def damaged_offsets(log: Log, truth: dict[int, Entry]) -> set[int]:
    """Offsets that cannot be read. Everything else must be what was appended, without a gap."""
    damaged: set[int] = set()
    for offset in truth:
        got = read(log, offset)
        if got is None:
            damaged.add(offset)
            continue
        assert got, offset
        assert got == [truth[offset + number] for number in range(len(got))]
    return damaged


def positions(path: Path, chance: random.Random, count: int) -> Iterator[int]:
    """Bits of a file: half of them in the headers of batches, where each has a meaning."""
    data = path.read_bytes()
    heads = [position for position, _ in batches.scan(data)] if path.suffix == ".log" else []
    for number in range(count):
        if heads and number % 2:
            yield (chance.choice(heads) + number // 2 % batches.HEADER_SIZE) * 8 + chance.randrange(
                8
            )
        else:
            yield chance.randrange(len(data) * 8)


def is_epoch_edge(hit: range) -> bool:
    """Whether the batch is the first or the last of an epoch, see `fill`."""
    number = hit.start // 3
    return number == 0 or number % 14 in (0, 13)


def batch_at(path: Path, byte: int) -> tuple[int, range]:
    """Position and offsets of the batch that holds a byte of a log file."""
    for position, header in batches.scan(path.read_bytes()):
        if position <= byte < position + header.size:
            return position, range(header.base_offset, header.last_offset + 1)
    raise AssertionError(f"no batch at {byte}")


@pytest.mark.parametrize("reopened", [False, True])
def test_a_flipped_bit_of_a_closed_segment_is_reported_and_never_served(
    partition: Partition, reopened: bool
) -> None:
    chance = random.Random(21)
    log = partition.open(clean=True)
    fill(log)
    truth = {offset: read(log, offset)[0] for offset in range(log.log_end_offset)}  # type: ignore[index]
    closed = [Path(segment.log.path) for segment in log.segments[:-1]]
    assert len(closed) > 4
    for number in range(FLIPS):
        path = closed[number % len(closed)]
        for bit in positions(path, chance, 2):
            position, hit = batch_at(path, bit // 8)
            if 12 <= bit // 8 - position < 16 and is_epoch_edge(hit):
                continue  # between two epochs any is possible, and nothing but the epoch changes
            if reopened:
                partition.close(log)
            flip(path, bit)
            if reopened:
                log = partition.open(clean=True)
            damaged = damaged_offsets(log, truth)
            assert set(hit) <= damaged, (path.name, bit)
            # A header that cannot be walked over hides what lies behind, up to an index entry.
            assert damaged <= set(range(hit.start - 6, hit.stop + 30)), "the rest stays readable"
            if reopened:
                log.abandon()
            flip(path, bit)
            if reopened:
                log = partition.open(clean=True)
    assert not damaged_offsets(log, truth)


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_flipped_bit_of_an_index_changes_no_read(
    partition: Partition, suffix: str, reopened: bool
) -> None:
    chance = random.Random(22)
    log = partition.open(clean=True)
    fill(log)
    truth = {offset: read(log, offset)[0] for offset in range(log.log_end_offset)}  # type: ignore[index]
    times = {START_MS + at: lookup(log, START_MS + at) for at in range(0, 390, 5)}
    for number in range(FLIPS // 4):
        segment = log.segments[number % (len(log.segments) - 1)]
        path = Path(segment.log.path).with_suffix(suffix)
        for bit in positions(path, chance, 1):
            if reopened:
                partition.close(log)
            flip(path, bit)
            if reopened:
                log = partition.open(clean=True)
            assert not damaged_offsets(log, truth), (path.name, bit)
            assert {at: lookup(log, at) for at in times} == times, (path.name, bit)
            log.segments[number % (len(log.segments) - 1)].rebuild_indexes()


def test_damage_is_told_with_file_and_position_once(
    partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    log = partition.open(clean=True)
    fill(log)
    path = Path(log.segments[0].log.path)
    (first, _), (second, header) = list(batches.scan(path.read_bytes()))[:2]
    assert first == 0
    flip(path, (second + 100) * 8)
    for _ in range(3):
        with pytest.raises(KafkaError, match=f"{path.name} is damaged.*at byte {second}"):
            log.reader.read(header.base_offset, 1)
    told = [message for message in caplog.messages if path.name in message]
    assert [message.count(path.name) for message in told] == [1]
    sound = log.reader.read(0, 1 << 20)
    assert sound.length == second, "what lies before the damage is served"
    assert sound.region is not None
    sound.region.close()


def test_lookups_by_time_pass_over_no_damage(partition: Partition) -> None:
    """A batch that claims to be older than it is would be left out."""
    log = partition.open(clean=True)
    fill(log)
    path = Path(log.segments[0].log.path)
    position, header = list(batches.scan(path.read_bytes()))[1]
    flip(path, (position + 35 + 4) * 8 + 7)  # the largest timestamp of the batch
    with pytest.raises(KafkaError) as caught:
        log.reader.offset_for_timestamp(header.max_timestamp)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_gaps_that_compaction_left_are_no_damage_and_hide_none(partition: Partition) -> None:
    partition.config = TopicConfig(
        segment_bytes=900,
        index_interval_bytes=200,
        segment_index_bytes=800,
        cleanup_policy=("compact",),
    )
    log = partition.open(clean=True)
    for number in range(120):
        log.append_as_leader(batch(b"v" * 30, key=b"%d" % (number % 7 * number % 41)), 0)
    log.high_watermark = log.log_end_offset
    dirty = cleaner.dirty_range(log, 0, partition.clock.now_ms())
    cleaner.clean(log, dirty, 1000, cleaner.Throttle())
    truth = {offset: read(log, offset) for offset in range(log.log_end_offset)}
    assert None not in truth.values()
    kept = {entries[0][0] for entries in truth.values() if entries}
    assert len(kept) < 80
    chance = random.Random(23)
    cleaned = [segment for segment in log.segments[:-1] if segment.size]
    for number in range(FLIPS // 4):
        path = Path(cleaned[number % len(cleaned)].log.path)
        for bit in positions(path, chance, 2):
            position, hit = batch_at(path, bit // 8)
            if bit // 8 - position < 8:
                continue  # an offset moved within a gap cannot be told from a true one
            flip(path, bit)
            assert read(log, hit.start) is None
            for offset in truth:
                got = read(log, offset)
                if got is not None and truth[offset] is not None:
                    assert got == truth[offset][: len(got)]  # type: ignore[index]
            flip(path, bit)
