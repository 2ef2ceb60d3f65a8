"""After a crash, or with damaged files beside the log, reads are what they were."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from odradek.log.partition.log import Log
from odradek.log.records.batch import CorruptBatchError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS, Partition, batch, read_all, whole_records
from tests.support.sampling import how_many

pytestmark = pytest.mark.usefixtures("without_fsync")
CONFIG = TopicConfig(segment_bytes=1500, index_interval_bytes=200, segment_index_bytes=800)
SIDE_FILES = (".index", ".timeindex", ".snapshot")


def fill(log: Log, batches: int = 60) -> None:
    for number in range(batches):
        log.append_as_leader(
            batch(
                b"value %d" % number,
                bytes(number % 90),
                timestamp=START_MS + (number * 7) % 50 + number,
                codec=number % 5,
                producer_id=number % 3,
                producer_epoch=0,
                base_sequence=number // 3 * 2,
            ),
            number // 20,
        )


def first_at(log: Log, offset: int) -> int:
    """Offset of the first record a reader at `offset` gets to see."""
    with log.reader.read(offset, 1).region as region:  # type: ignore[union-attr]
        found = whole_records(region.read())
    return next(record.offset for record in found if record.offset >= offset)


def everything(log: Log) -> tuple[object, ...]:
    """All a reader or a follower can learn from a log."""
    return (
        log.log_start_offset,
        log.log_end_offset,
        read_all(log),
        [first_at(log, offset) for offset in range(log.log_end_offset)],
        [log.reader.offset_for_timestamp(START_MS + later) for later in range(-1, 130)],
        log.epochs.entries,
        {pid: log.producers.get(pid).last_sequence for pid in range(3) if log.producers.get(pid)},  # type: ignore[union-attr]
    )


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "topic-0", CONFIG)


def test_torn_tail_is_cut_to_last_valid_batch(partition: Partition) -> None:
    """The file is cut at every byte of its last two batches."""
    log = partition.open(clean=True)
    sizes = [log.append_as_leader(batch(value), 0).size for value in (b"1", b"22", b"333")]
    whole = read_all(log)
    partition.crash(log)
    path = Path(log.segments.active.log.path)
    data = path.read_bytes()
    assert len(data) == sum(sizes)
    for cut in range(1, sizes[2] + sizes[1] + 1):
        path.write_bytes(data[:-cut])
        kept = 2 if cut <= sizes[2] else 1
        log = partition.open(clean=False)
        assert read_all(log) == whole[:kept], cut
        assert path.stat().st_size == sum(sizes[:kept])
        assert log.append_as_leader(batch(b"next"), 0).base_offset == kept
        log.abandon()


@pytest.mark.parametrize("clean", [True, False])
def test_random_tails_are_dropped(partition: Partition, clean: bool) -> None:
    chance = random.Random(4)
    log = partition.open(clean=True)
    fill(log, 10)
    known = everything(log)
    partition.close(log)
    for _ in range(how_many(50, full=1000)):
        with open(log.segments.active.log.path, "ab") as file:
            file.write(chance.randbytes(chance.randint(1, 1024)))
        log = partition.open(clean=clean)
        assert everything(log) == known
        partition.close(log)


def test_a_lost_page_in_the_tail_ends_the_log_there(partition: Partition) -> None:
    """Power loss may leave zeros where the file grew but data never arrived."""
    log = partition.open(clean=True)
    fill(log, 10)
    known = read_all(log)
    partition.crash(log)
    path = Path(log.segments.active.log.path)
    path.write_bytes(path.read_bytes() + bytes(4096))
    assert read_all(partition.open(clean=False)) == known


def test_damage_in_an_unflushed_segment_drops_everything_behind_it(partition: Partition) -> None:
    log = partition.open(clean=True)
    fill(log)
    segments = tuple(log.segments)
    assert len(segments) > 3
    partition.crash(log)
    path = Path(segments[1].log.path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    log = partition.open(clean=False)
    assert segments[1].base_offset < log.log_end_offset < segments[2].base_offset
    assert len(read_all(log)) == log.log_end_offset
    assert partition.report is not None
    assert partition.report.dropped_segments == len(segments) - 2


def test_segments_below_the_recovery_point_are_not_scanned(partition: Partition) -> None:
    log = partition.open(clean=True)
    fill(log)
    log.flush(only_rolled=True)
    partition.recovery_point = log.recovery_point
    known = everything(log)
    partition.crash(log)
    log = partition.open(clean=False)
    assert partition.report is not None
    assert partition.report.scanned_segments == 1
    assert everything(log) == known


def damage(path: Path, how: str, chance: random.Random) -> None:
    size = path.stat().st_size
    if how == "missing":
        path.unlink()
    elif how == "zeroed":
        path.write_bytes(bytes(size))
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "garbage":
        path.write_bytes(chance.randbytes(size))
    else:
        path.write_bytes(path.read_bytes()[: size // 2 - 3])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["missing", "zeroed", "empty", "garbage", "torn"])
def test_damaged_side_files_change_no_read(partition: Partition, how: str, clean: bool) -> None:
    chance = random.Random(7)
    log = partition.open(clean=True)
    fill(log)
    known = everything(log)
    partition.close(log)
    backup = partition.folder.parent / "backup"
    shutil.copytree(partition.folder, backup)
    targets = [
        path
        for path in sorted(backup.iterdir())
        if path.suffix in SIDE_FILES or path.name == "leader-epoch-checkpoint"
    ]
    assert len(targets) > 12
    for target in [*targets, None]:
        shutil.rmtree(partition.folder)
        shutil.copytree(backup, partition.folder)
        for path in [target] if target else targets:
            damage(partition.folder / path.name, how, chance)
        log = partition.open(clean=clean)
        assert everything(log) == known, target
        log.abandon()


def test_interrupted_deletions_and_compactions_are_tidied(partition: Partition) -> None:
    log = partition.open(clean=True)
    fill(log)
    known = everything(log)
    partition.close(log)
    first, second, third = sorted(partition.folder.glob("*.log"))[:3]
    (partition.folder / (first.name + ".deleted")).write_bytes(b"x")
    (partition.folder / (second.name + ".cleaned")).write_bytes(b"x")
    third.rename(third.with_name(third.name + ".swap"))
    (partition.folder / "00000000000000099999.index").write_bytes(b"orphan")
    stranger = partition.folder / f"{int(third.stem)}.log"
    stranger.write_bytes(b"INFO up")
    log = partition.open(clean=True)
    assert everything(log) == known
    assert stranger.exists()
    assert not [path for path in partition.folder.iterdir() if path.suffix in (".deleted", ".swap")]
    assert not (partition.folder / "00000000000000099999.index").exists()


def test_a_log_that_ends_below_its_start_begins_anew_there(partition: Partition) -> None:
    log = partition.open(clean=True)
    fill(log, 5)
    partition.crash(log)
    partition.log_start = 500
    log = partition.open(clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)
    assert log.append_as_leader(batch(b"a"), 9).base_offset == 500


def test_a_flipped_bit_in_a_header_is_reported_and_not_skipped(partition: Partition) -> None:
    log = partition.open(clean=True)
    fill(log)
    partition.close(log)
    path = Path(log.segments[0].log.path)
    data = bytearray(path.read_bytes())
    data[16] = 77
    path.write_bytes(data)
    log = partition.open(clean=True)
    with pytest.raises(KafkaError) as caught:
        log.reader.read(0, 100)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("clean", [True, False])
def test_damage_anywhere_never_fails_a_start_nor_serves_wrong_bytes(
    partition: Partition, clean: bool
) -> None:
    """Random bytes anywhere in any file: what is still read has right checksums and rising
    offsets.
    """
    chance = random.Random(11)
    log = partition.open(clean=True)
    fill(log, 40)
    values = {record.offset: record.value for record in read_all(log)}
    partition.close(log)
    backup = partition.folder.parent / "backup"
    shutil.copytree(partition.folder, backup)
    for _ in range(how_many(60, full=1000)):
        shutil.rmtree(partition.folder)
        shutil.copytree(backup, partition.folder)
        files = sorted(one for one in partition.folder.iterdir() if one.stat().st_size)
        path = chance.choice(files)
        data = bytearray(path.read_bytes())
        at = chance.randrange(len(data))
        data[at : at + chance.randint(1, 40)] = chance.randbytes(chance.randint(1, 40))
        path.write_bytes(data)
        log = partition.open(clean=clean)
        for offset in range(log.log_start_offset, log.log_end_offset, 7):
            try:
                region = log.reader.read(offset, 300).region
            except KafkaError as error:
                if error.code is ErrorCode.CORRUPT_MESSAGE:
                    continue
                raise
            if region is None:
                continue
            with region:
                found = region.read()
            try:
                for record in whole_records(found):
                    assert values[record.offset] == record.value, path.name
            except CorruptBatchError:
                continue  # a checksum tells the reader
        log.abandon()
