"""What is told of aborted transactions where a log was damaged, cut, or changes meanwhile."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from odradek.config import TopicConfig
from odradek.log.partition import recovery
from odradek.log.partition.log import Log
from odradek.log.records.batch import Header
from odradek.log.segment.files import StoppedError
from odradek.log.segment.segment import TXN_INDEX_SUFFIX, Segment
from tests.support.logs import Partition, flip
from tests.support.transactions import aborted_in, end, write, write_plain

pytestmark = pytest.mark.usefixtures("without_fsync")
SMALL = TopicConfig(segment_bytes=500, index_interval_bytes=100, file_delete_delay_ms=0)
Batches = Iterator[tuple[int, Header]]
ENTRY = struct.Struct(">hqqqq")


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "topic-0", SMALL)


@pytest.fixture
def log(partition: Partition) -> Log:
    """A log of several segments with aborted transactions only."""
    log = partition.open(clean=True)
    for _ in range(12):
        write(log, 2)
        end(log, 2, commit=False)
    log.high_watermark = log.log_end_offset
    return log


def index_files(partition: Partition) -> list[Path]:
    return sorted(partition.folder.glob(f"*{TXN_INDEX_SUFFIX}"))


# -- what the files say -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "entry"),
    [
        pytest.param(1, (0, 2, 0, 1, 2), id="of the segment before"),
        pytest.param(0, (0, 2, 22, 23, 24), id="of a later segment"),
        pytest.param(-1, (0, 2, 24, 25, 26), id="behind the log end"),
        pytest.param(0, (0, 2, -1, 1, 2), id="without a beginning"),
        pytest.param(0, (0, 2, 0, 1, 3), id="of a decision behind the marker"),
        pytest.param(0, (0, 2, 0, 1, -1), id="of no decision"),
    ],
)
def test_index_with_an_entry_that_cannot_be_its_own_is_built_anew(
    partition: Partition, log: Log, number: int, entry: tuple[int, ...]
) -> None:
    told, whole = aborted_in(log), [path.read_bytes() for path in index_files(partition)]
    assert len(whole) > 3
    partition.close(log)
    index_files(partition)[number].write_bytes(ENTRY.pack(*entry))
    log = partition.open(clean=True)
    assert aborted_in(log) == told
    assert [path.read_bytes() for path in index_files(partition)] == whole
    partition.close(log)


@pytest.mark.parametrize("batches", [0, 5, 23])
def test_index_that_is_built_anew_does_not_hold_up_a_stop(
    partition: Partition, log: Log, batches: int
) -> None:
    told = aborted_in(log)
    partition.close(log)
    torn = index_files(partition)[-1]
    torn.write_bytes(torn.read_bytes()[:-1])
    before = [path.read_bytes() for path in index_files(partition)]
    looks = itertools.count()
    environment = replace(partition.environment(), is_stopping=lambda: next(looks) >= batches)
    known = recovery.Checkpointed(clean=True, recovery_point=log.log_end_offset)
    with pytest.raises(StoppedError):
        recovery.open_log(str(partition.folder), "topic", 0, SMALL, environment, known)
    assert next(looks) == batches + 1
    assert [path.read_bytes() for path in index_files(partition)] == before
    log = partition.open(clean=True)
    assert aborted_in(log) == told
    partition.close(log)


# -- producers' state that is read again --------------------------------------------------------


def test_open_transaction_stays_open_while_a_truncation_reads_the_batches_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(log, 1)
    for _ in range(3):
        write_plain(log)
    log.high_watermark = log.log_end_offset
    seen: set[int] = set()
    scan = Segment.scan

    def look(segment: Segment, position: int, end: int | None = None) -> Batches:
        seen.add(log.last_stable_offset(log.high_watermark))
        yield from scan(segment, position, end)

    monkeypatch.setattr(Segment, "scan", look)
    log.truncate_to(log.log_end_offset - 1)
    assert seen == {first}
    assert log.last_stable_offset(log.high_watermark) == first


MAGIC_AT = 16


def damage_header(log: Log, offset: int) -> None:
    """Damage the batch with `offset`, in the last segment: nobody finds the next one behind it."""
    found = log.segments.active.find(offset)
    assert found is not None
    flip(Path(log.segments.active.log.path), (found[0] + MAGIC_AT) * 8)


def read_again(how: str, partition: Partition, log: Log) -> Log:
    """Have the producers' state read from the batches."""
    if how == "truncation":
        assert log.truncate_to(log.log_end_offset - 1)
    else:
        partition.close(log)
        for path in partition.folder.glob("*.snapshot"):
            path.unlink()
        log = partition.open(clean=True)
    log.high_watermark = log.log_end_offset
    return log


@pytest.mark.parametrize("how", ["truncation", "start"])
def test_open_transactions_before_and_behind_damage_stay_open(tmp_path: Path, how: str) -> None:
    partition = Partition(tmp_path / "topic-0", TopicConfig(index_interval_bytes=100))
    log = partition.open(clean=True)
    first = write(log, 1)
    write_plain(log)
    damaged = write_plain(log)
    for _ in range(4):
        write_plain(log)
    second = write(log, 2)
    write_plain(log)
    damage_header(log, damaged)
    log = read_again(how, partition, log)
    assert log.last_stable_offset(log.high_watermark) == first
    end(log, 1, commit=True)
    log.high_watermark = log.log_end_offset
    assert log.last_stable_offset(log.high_watermark) == second
    partition.close(log)


@pytest.mark.parametrize("how", ["truncation", "start"])
@pytest.mark.parametrize("in_header", [True, False])
def test_transaction_whose_marker_is_damaged_stays_open_until_its_records_go(
    tmp_path: Path, how: str, in_header: bool
) -> None:
    partition = Partition(tmp_path / "topic-0", TopicConfig(index_interval_bytes=100))
    log = partition.open(clean=True)
    first = write(log, 1)
    marker = end(log, 1, commit=False)
    for _ in range(6):
        write_plain(log)
    if in_header:
        damage_header(log, marker)
    else:
        found = log.segments.active.find(marker)
        assert found is not None
        flip(Path(log.segments.active.log.path), (found[0] + found[1].size - 1) * 8)
    log = read_again(how, partition, log)
    assert log.last_stable_offset(log.high_watermark) == first
    log.advance_log_start(marker + 1)
    assert log.last_stable_offset(log.high_watermark) == log.high_watermark
    partition.close(log)
