"""Compaction: the newest record of every key stays, at its offset; readers and restarts see one
log.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.log.partition import cleaner
from odradek.log.partition.log import Log
from odradek.log.records import batch, records
from odradek.log.records.batch import Header
from odradek.log.records.records import BatchOptions, Record
from odradek.log.segment.files import StoppedError
from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS, Partition, read_all
from tests.support.sampling import how_many
from tests.support.transactions import aborted_in, end, write

pytestmark = pytest.mark.usefixtures("without_fsync")
CONFIG = TopicConfig(
    cleanup_policy=("compact",),
    segment_bytes=600,
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0.1,
    file_delete_delay_ms=0,
    delete_retention_ms=1000,
)


def put(log: Log, pairs: list[tuple[bytes, bytes | None]], codec: int = 0) -> None:
    """One batch of (key, value) pairs; the high watermark follows."""
    data = records.encode(
        [Record(number, START_MS, key, value) for number, (key, value) in enumerate(pairs)],
        BatchOptions(codec=codec),
    )
    log.append_as_leader(data, 0)
    log.high_watermark = log.log_end_offset


def compact(log: Log, first_dirty: int = 0, max_keys: int = 10_000, now_ms: int = START_MS) -> int:
    dirty = cleaner.dirty_range(log, first_dirty, now_ms)
    end = cleaner.clean(log, dirty, max_keys, cleaner.Throttle())
    log.delete_due()
    return end


def survivors(written: list[Record], end: int) -> list[Record]:
    """What must be left of `written` when offsets below `end` were compacted."""
    newest = {one.key: one.offset for one in written if one.offset < end}
    return [one for one in written if one.offset >= end or newest[one.key] == one.offset]


@settings(max_examples=how_many(40, full=2000), deadline=None)
@given(
    batches=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from([b"a", b"b", b"c", b"d"]), st.binary(min_size=1, max_size=99)
            ),
            min_size=1,
            max_size=4,
        ),
        min_size=3,
        max_size=25,
    ),
    max_keys=st.integers(4, 20),
    codec=st.integers(0, 4),
)
def test_the_newest_record_of_each_key_stays_at_its_offset(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[tuple[bytes, bytes]]],
    max_keys: int,
    codec: int,
) -> None:
    partition = Partition(tmp_path_factory.mktemp("log") / "topic-0", CONFIG)
    log = partition.open(clean=True)
    for pairs in batches:
        put(log, [*pairs], codec)
    written, end, log_end = read_all(log), 0, log.log_end_offset
    while True:
        reached = compact(log, end, max_keys)
        if reached == end:
            break
        end = reached
        assert read_all(log) == survivors(written, end)
    assert end == log.segments.active.base_offset
    for clean in (True, False):
        (partition.close if clean else partition.crash)(log)
        log = partition.open(clean=clean)
        assert (read_all(log), log.log_end_offset) == (survivors(written, end), log_end)
    log.abandon()


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "topic-0", CONFIG)


@pytest.fixture
def log(partition: Partition) -> Log:
    return partition.open(clean=True)


def test_small_segments_are_merged(log: Log) -> None:
    for number in range(60):
        put(log, [(b"key%d" % (number % 3), bytes(80))])
    before = len(log.segments)
    end = compact(log)
    assert len(log.segments) == before, "copies are planned by the size of the originals"
    put(log, [(b"key0", bytes(80))])
    log.roll()
    compact(log, end)
    assert len(log.segments) <= 4
    assert log.segments[0].base_offset == 0


def test_tombstones_stay_for_delete_retention_and_then_go(partition: Partition, log: Log) -> None:
    put(log, [(b"gone", b"x" * 50), (b"kept", b"y" * 50)])
    put(log, [(b"gone", None)])
    for number in range(8):
        put(log, [(b"fill%d" % number, bytes(100))])
    log.roll()
    end = compact(log)
    assert [one.value for one in read_all(log) if one.key == b"gone"] == [None]
    for number in range(8):
        put(log, [(b"more%d" % number, bytes(100))])
    log.roll()
    end = compact(log, end)
    assert [one.value for one in read_all(log) if one.key == b"gone"] == [None]
    for age, segment in enumerate(reversed(log.segments[:-1])):
        seconds = START_MS // 1000 + 1000 - 10 * age
        os.utime(segment.log.path, (seconds, seconds))
    for number in range(8):
        put(log, [(b"last%d" % number, bytes(100))])
    log.roll()
    compact(log, end)
    assert [one for one in read_all(log) if one.key == b"gone"] == []
    assert [one.value for one in read_all(log) if one.key == b"kept"] == [b"y" * 50]


def test_nothing_at_or_above_the_high_watermark_is_cleaned(log: Log) -> None:
    for _ in range(20):
        put(log, [(b"k", bytes(100))])
    log.high_watermark = log.segments[1].base_offset
    assert cleaner.dirty_range(log, 0, START_MS).end == log.segments[1].base_offset


def test_min_compaction_lag_spares_young_segments(partition: Partition, log: Log) -> None:
    for _ in range(20):
        put(log, [(b"k", bytes(100))])
    object.__setattr__(log.config, "min_compaction_lag_ms", 5000)
    try:
        assert cleaner.dirty_range(log, 0, START_MS + 4999).dirty_bytes == 0
        assert cleaner.dirty_range(log, 0, START_MS + 5000).dirty_bytes > 0
    finally:
        object.__setattr__(log.config, "min_compaction_lag_ms", 0)


def test_control_batches_stay(log: Log) -> None:
    from odradek.log.records.batch import Origin

    marker = records.encode(
        [Record(0, START_MS, b"\0\0\0\1", b"\0\0\0\0\0\5")],
        BatchOptions(control=True, producer_id=4, producer_epoch=0),
    )
    for _ in range(3):
        log.append_as_leader(marker, 0, origin=Origin.COORDINATOR)
        put(log, [(b"k", bytes(300))])
    log.roll()
    compact(log)
    assert [one.offset for one in read_all(log)] == [0, 2, 4, 5]
    assert log.producers.get(4).coordinator_epoch == 5  # type: ignore[union-attr]


@pytest.mark.parametrize("commits", [True, False])
def test_marker_goes_once_nothing_is_left_of_its_transaction(
    partition: Partition, log: Log, commits: bool
) -> None:
    gone = write(log, 7, b"v" * 100, b"k"), end(log, 7, commit=commits)
    left = write(log, 7, b"w" * 100, b"other"), end(log, 7, commit=commits)
    clean = 0
    for _ in range(3):
        for number in range(8):
            put(log, [(b"k" if number else b"other", bytes(100))])
        log.roll()
        clean = compact(log, clean)
        for age, segment in enumerate(reversed(log.segments[:-1])):
            seconds = START_MS // 1000 + 1000 - 10 * age
            os.utime(segment.log.path, (seconds, seconds))
    offsets = [header.base_offset for header in headers(log) if header.producer_id == 7]
    # An empty batch tells the producer's sequence, and its marker ends the transaction.
    assert offsets == [*left]
    assert not {*gone} & {*offsets}
    noted = [(one.first_offset, one.last_offset) for one in aborted_in(log)]
    assert noted == ([] if commits else [left])
    partition.crash(log)
    for path in partition.folder.glob("*.snapshot"):
        path.unlink()
    log = partition.open(clean=False)
    log.high_watermark = log.log_end_offset
    assert log.last_stable_offset(log.high_watermark) == log.log_end_offset
    assert [(one.first_offset, one.last_offset) for one in aborted_in(log)] == noted


def headers(log: Log) -> list[Header]:
    return [header for segment in log.segments for _, header in segment.scan(0)]


@pytest.mark.parametrize("codec", range(5))
def test_a_producers_newest_batch_stays_as_an_empty_one(
    partition: Partition, log: Log, codec: int
) -> None:
    options = BatchOptions(codec=codec, producer_id=9, producer_epoch=0, base_sequence=0)
    data = records.make([(b"k", b"old")], START_MS, options)
    log.append_as_leader(data, 0)
    put(log, [(b"k", b"new")])
    log.roll()
    compact(log)
    assert [one.value for one in read_all(log)] == [b"new"]
    [first, *_] = log.segments
    [empty, _] = [header for _, header in first.scan(0)]
    assert (empty.record_count, empty.size, empty.codec) == (0, batch.HEADER_SIZE, 0)
    for path in partition.folder.glob("*.snapshot"):
        path.unlink()
    partition.crash(log)
    log = partition.open(clean=False)
    again = log.append_as_leader(data, 0)
    assert again.duplicate
    assert again.base_offset == 0


def test_a_segment_truncated_meanwhile_throws_the_copy_away(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        put(log, [(b"k", bytes(100))])
    dirty = cleaner.dirty_range(log, 0, START_MS)
    whole = cleaner._filter
    calls = iter(range(1000))

    def meddle(*args: object, **named: object) -> object:
        if next(calls) == 2:
            log.truncate_fully_and_start_at(500)
        return whole(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(cleaner, "_filter", meddle)
    with pytest.raises(Exception, match=r"\.log|No such file"):
        cleaner.clean(log, dirty, 100, cleaner.Throttle())
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)
    assert not list(Path(log.directory).glob("*.cleaned"))


def test_a_crash_at_every_step_of_a_swap_loses_and_revives_nothing(
    partition: Partition, log: Log
) -> None:
    """The folder is copied before each rename of a compaction and opened as it was then."""
    import os
    import shutil

    chance = random.Random(3)
    for _ in range(25):
        put(log, [(b"k%d" % chance.randrange(3), chance.randbytes(90))])
    written = read_all(log)
    copies: list[Path] = []
    rename = os.replace

    def copying(source: str, target: str) -> None:
        copies.append(partition.folder.parent / f"crash{len(copies)}" / "topic-0")
        shutil.copytree(partition.folder, copies[-1])
        rename(source, target)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "replace", copying)
        end = compact(log)
    assert len(copies) > 8
    cleaned = survivors(written, end)
    for folder in copies:
        again = Partition(folder, CONFIG).open(clean=False)
        found = read_all(again)
        assert again.log_end_offset == log.log_end_offset
        assert set(cleaned) <= set(found) <= set(written), folder
        again.abandon()


@pytest.mark.parametrize("rate", [0.0, 1e-300])
def test_a_throttle_of_next_to_nothing_waits_until_the_broker_stops(rate: float) -> None:
    waits: list[float] = []

    class SetLater(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            return True

    with pytest.raises(StoppedError):
        cleaner.Throttle(rate, SetLater()).spend(1)
    assert waits == [threading.TIMEOUT_MAX]


def test_the_throttle_waits_for_its_rate() -> None:
    now = [0.0]

    class NeverSet(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            now[0] += timeout or 0
            return False

    throttle = cleaner.Throttle(100.0, NeverSet(), lambda: now[0])
    for _ in range(10):
        throttle.spend(50)
    assert now[0] == pytest.approx(5.0)


def test_what_is_clean_is_read_once_only(log: Log) -> None:
    """The map of keys is made of the dirty part."""

    class Counting(cleaner.Throttle):
        spent = 0

        def spend(self, count: int) -> None:
            Counting.spent += count

    for number in range(20):
        put(log, [(b"k%d" % number, bytes(90))])
    log.roll()
    first_dirty = compact(log)
    put(log, [(b"new", bytes(90))])
    log.roll()
    dirty = cleaner.dirty_range(log, first_dirty, START_MS)
    assert 0 < dirty.dirty_bytes < dirty.clean_bytes
    cleaner.clean(log, dirty, 1000, Counting())
    copied = 2 * (dirty.clean_bytes + dirty.dirty_bytes)  # read, and written
    assert Counting.spent == dirty.dirty_bytes + copied


def test_a_compaction_that_is_stopped_leaves_the_log_as_it_was(
    partition: Partition, log: Log
) -> None:
    for number in range(40):
        put(log, [(b"k%d" % (number % 3), b"v" * 90)])
    log.high_watermark = log.log_end_offset
    before = {path.name: path.read_bytes() for path in partition.folder.glob("*.log")}
    dirty = cleaner.dirty_range(log, 0, partition.clock.now_ms())
    stopping = threading.Event()
    spent = 0

    def clock() -> float:
        nonlocal spent
        spent += 1
        if spent == 40:
            stopping.set()
        return 0.0

    with pytest.raises(StoppedError):
        cleaner.clean(log, dirty, 1000, cleaner.Throttle(float("inf"), stopping, clock))
    assert spent == 40
    assert {path.name: path.read_bytes() for path in partition.folder.glob("*.log*")} == before
