"""What is told of aborted transactions where a log was damaged, cut, or changes meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.log.partition import cleaner, reading, recovery
from odradek.log.partition.log import Log
from odradek.log.partition.producers import ProducerStates
from odradek.log.partition.reading import aborted_between
from odradek.log.records import batch
from odradek.log.records.batch import Header
from odradek.log.segment.files import Region, SharedFile, StoppedError
from odradek.log.segment.names import TXN_INDEX_SUFFIX
from odradek.log.segment.segment import Segment
from odradek.log.segment.transaction_index import AbortedTxn, TransactionIndex
from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS, Partition, flip
from tests.support.sampling import how_many
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


def test_crash_while_old_segments_are_given_up_lets_no_aborted_record_count(
    partition: Partition, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is copied before each rename of retention, and opened as it was then."""
    log.flush()
    known, rename = aborted_in(log), os.replace
    copies: list[Partition] = []

    def copying(source: str, target: str) -> None:
        folder = partition.folder.parent / f"crash{len(copies)}" / "topic-0"
        shutil.copytree(partition.folder, folder)
        copies.append(Partition(folder, SMALL, recovery_point=log.recovery_point))
        rename(source, target)

    log.advance_log_start(log.segments.active.base_offset)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", copying)
        assert log.apply_retention() > 1
    for crashed in copies:
        again = crashed.open(clean=False)
        left = [one for one in known if one.last_offset >= again.log_start_offset]
        assert aborted_in(again) == left, crashed.folder
        again.abandon()


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


# -- what a read is told ------------------------------------------------------------------------


def test_read_is_told_of_no_more_than_it_reads(tmp_path: Path) -> None:
    log = Partition(tmp_path / "topic-0", TopicConfig(index_interval_bytes=100)).open(clean=True)
    for _ in range(500):
        write(log, 2)
        end(log, 2, commit=False)
    for offset in (0, 1, 500, 997):
        with read(log, offset, 400) as (region, told):
            assert len(region.read()) == 400 or offset > 990
        assert 2 <= len(told) < 8
        assert told == aborted_between(log.segments, offset, told[-1].first_offset + 1)


@given(
    actions=st.lists(st.tuples(st.integers(1, 3), st.sampled_from("wwca")), max_size=400),
    reads=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 3000)), max_size=10),
    segment_bytes=st.sampled_from([1000, 1 << 20]),
)
@settings(max_examples=how_many(30, full=1000), deadline=None)
def test_each_read_is_told_of_all_that_was_aborted_in_it(
    tmp_path_factory: pytest.TempPathFactory,
    actions: list[tuple[int, str]],
    reads: list[tuple[int, int]],
    segment_bytes: int,
) -> None:
    config = TopicConfig(segment_bytes=segment_bytes, index_interval_bytes=300)
    log = Partition(tmp_path_factory.mktemp("log") / "topic-0", config).open(clean=True)
    for producer_id, action in actions:
        if action == "w":
            write(log, producer_id)
        else:
            end(log, producer_id, commit=action == "c")
    log.high_watermark = log.log_end_offset
    stable, known = log.last_stable_offset(log.high_watermark), aborted_in(log)
    for offset, max_bytes in reads:
        if offset >= stable:
            continue
        with read(log, offset, max_bytes, stable) as (region, told):
            data = region.read()
        assert set(told) <= set(known)
        headers = [header for _, header in batch.scan(data)]
        last = headers[-1].last_offset
        assert {one for one in known if one.first_offset <= last and one.last_offset >= offset} <= {
            *told
        }
    log.abandon()


def test_many_short_transactions_hide_no_long_one(tmp_path: Path) -> None:
    index = TransactionIndex(str(tmp_path / "x"))
    known = [AbortedTxn(2, 2 * number + 1, 2 * number + 2, 0) for number in range(1000)]
    known.append(AbortedTxn(1, 0, 2001, 2002))
    index.replace(known)
    for offset, upto in [(0, 1), (0, 3), (900, 910), (1990, 2001), (2001, 2002), (0, 2002)]:
        told, is_all = index.between(offset, upto)
        assert told == [
            one for one in known if one.first_offset < upto and one.last_offset >= offset
        ]
        assert is_all


@contextlib.contextmanager
def read(
    log: Log, offset: int, max_bytes: int, upto: int | None = None
) -> Iterator[tuple[Region, list[AbortedTxn]]]:
    piece = log.reader.plan(offset, max_bytes, upto, committed=True)
    assert isinstance(piece.region, Region)
    with piece.region:
        yield piece.region, list(piece.aborted)


def delete_records(log: Log) -> None:
    log.advance_log_start(log.log_end_offset)


def retain(log: Log) -> None:
    delete_records(log)
    assert log.apply_retention(only_hidden=True) > 2
    log.delete_due()
    assert log.segments[0].base_offset > 2


def compact(log: Log) -> None:
    before = log.segments[:]
    dirty = cleaner.dirty_range(log, 0, START_MS)
    cleaner.clean(log, dirty, 10_000, cleaner.Throttle())
    assert log.segments[0] is not before[0]


def truncate(log: Log) -> None:
    log.truncate_to(1)


def meanwhile(monkeypatch: pytest.MonkeyPatch, log: Log, change: Callable[[Log], None]) -> None:
    """Change the log as soon as a read has its bytes, and before it is told what was aborted."""

    def hold(file: SharedFile, position: int, length: int) -> Region:
        region = Region(file, position, length)
        change(log)
        return region

    monkeypatch.setattr(reading, "Region", hold)


@pytest.mark.parametrize("change", [delete_records, retain, compact])
def test_change_beside_a_read_hides_nothing_that_was_aborted(
    log: Log, monkeypatch: pytest.MonkeyPatch, change: Callable[[Log], None]
) -> None:
    meanwhile(monkeypatch, log, change)
    with read(log, 0, 1) as (_, told):
        assert told[0] == AbortedTxn(2, 0, 1, 2)


def test_read_beside_a_truncation_gets_nothing(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile(monkeypatch, log, truncate)
    piece = log.reader.plan(0, 1, committed=True)
    assert (piece.region, piece.aborted) == (None, ())


@pytest.mark.parametrize("ends", [True, False])
def test_batches_that_are_not_noted_yet_are_undecided(
    log: Log, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    first = write(log, 1) if ends else log.log_end_offset
    note, seen = ProducerStates.note, []

    def look(states: ProducerStates, *batch: Any) -> None:
        log.high_watermark = log.log_end_offset
        seen.append(log.last_stable_offset(log.high_watermark))
        note(states, *batch)

    monkeypatch.setattr(ProducerStates, "note", look)
    if ends:
        end(log, 1, commit=False)
    else:
        write(log, 1)
    assert seen == [first]
