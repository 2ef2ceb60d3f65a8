"""Transactions that Kafka wrote: what readers of committed records see, and are told."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.log.partition import cleaner, replay
from odradek.log.partition.log import Log
from odradek.log.partition.reading import aborted_between
from odradek.log.segment.files import StoppedError
from odradek.log.segment.names import TXN_INDEX_SUFFIX
from odradek.log.segment.transaction_index import AbortedTxn, TransactionIndex
from odradek.protocol.errors import KafkaError
from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS, Partition, read_all
from tests.support.sampling import how_many
from tests.support.transactions import aborted_in as aborted
from tests.support.transactions import end, write, write_plain

pytestmark = pytest.mark.usefixtures("without_fsync")
SMALL = TopicConfig(segment_bytes=500, index_interval_bytes=100, file_delete_delay_ms=0)
COMPACTED = TopicConfig(
    cleanup_policy=("compact",),
    segment_bytes=600,
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0.1,
    file_delete_delay_ms=0,
)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "topic-0", SMALL)


@pytest.fixture
def log(partition: Partition) -> Log:
    return partition.open(clean=True)


def replicate(log: Log) -> None:
    log.high_watermark = log.log_end_offset


def stable(log: Log) -> int:
    return log.last_stable_offset(log.high_watermark)


def index_files(partition: Partition) -> list[Path]:
    return sorted(partition.folder.glob(f"*{TXN_INDEX_SUFFIX}"))


def test_first_open_transaction_bounds_what_is_stable(log: Log) -> None:
    write_plain(log)
    first, second = write(log, 1), write(log, 2)
    replicate(log)
    assert (first, second, stable(log)) == (1, 2, 1)
    end(log, 1, commit=True)
    replicate(log)
    assert stable(log) == second
    end(log, 2, commit=False)
    replicate(log)
    assert stable(log) == log.high_watermark == 5


def test_transaction_is_undecided_until_its_marker_is_replicated(log: Log) -> None:
    write(log, 1)
    replicate(log)
    marker = end(log, 1, commit=True)
    assert stable(log) == 0
    log.high_watermark = marker
    assert stable(log) == 0
    replicate(log)
    assert stable(log) == marker + 1


@pytest.mark.parametrize("clean", [True, False])
def test_transaction_without_records_left_is_open_no_more(
    partition: Partition, log: Log, clean: bool
) -> None:
    write(log, 1)
    last = write(log, 1)
    write_plain(log)
    replicate(log)
    log.advance_log_start(last)
    assert stable(log) == last
    log.advance_log_start(last + 1)
    assert stable(log) == log.high_watermark == last + 2
    partition.log_start = last + 1
    (partition.close if clean else partition.crash)(log)
    log = partition.open(clean=clean)
    replicate(log)
    assert stable(log) == log.high_watermark
    end(log, 1, commit=False)
    assert aborted(log) == []


def test_retention_ends_transactions(partition: Partition, log: Log) -> None:
    write(log, 1)
    for _ in range(20):
        write_plain(log)
    replicate(log)
    assert stable(log) == 0
    object.__setattr__(log.config, "retention_bytes", 0)
    try:
        assert log.apply_retention() > 0
    finally:
        object.__setattr__(log.config, "retention_bytes", -1)
    assert stable(log) == log.high_watermark


def test_index_has_kafkas_bytes(partition: Partition, log: Log) -> None:
    write(log, 7)
    write(log, 8)
    end(log, 7, commit=False)
    end(log, 8, commit=False)
    [path] = index_files(partition)
    # Behind the first marker 8 is still open; behind the second nobody is.
    entries = [(0, 7, 0, 2, 1), (0, 8, 1, 3, 4)]
    assert path.read_bytes() == b"".join(struct.pack(">hqqqq", *entry) for entry in entries)


def test_committed_transactions_need_no_index(partition: Partition, log: Log) -> None:
    write(log, 1)
    end(log, 1, commit=True)
    end(log, 1, commit=False)  # of nothing
    replicate(log)
    assert (index_files(partition), aborted(log)) == ([], [])


def test_reader_is_told_what_was_aborted_within_its_range(log: Log) -> None:
    long = write(log, 1)
    for _ in range(20):
        write(log, 2)
        end(log, 2, commit=False)
    end(log, 1, commit=False)
    replicate(log)
    assert len(log.segments) > 3
    told = aborted_between(log.segments, 0, 3)
    assert [(one.producer_id, one.first_offset) for one in told] == [(2, 1), (1, long)]
    told = aborted_between(log.segments, 10, log.log_end_offset)
    assert [one.producer_id for one in told] == [2] * 16 + [1]
    assert all(one.last_offset >= 10 for one in told)


@pytest.mark.parametrize("clean", [True, False])
def test_restart_knows_open_and_aborted_transactions(
    partition: Partition, log: Log, clean: bool
) -> None:
    write(log, 1)
    for _ in range(12):
        write(log, 2)
        end(log, 2, commit=False)
    told = aborted(log)
    assert len(told) == 12
    (partition.close if clean else partition.crash)(log)
    log = partition.open(clean=clean)
    replicate(log)
    assert (stable(log), aborted(log)) == (0, told)
    end(log, 1, commit=True)
    replicate(log)
    assert stable(log) == log.high_watermark


@pytest.mark.parametrize("harm", ["gone", "torn", "old", "reversed"])
def test_index_is_built_anew_where_it_lacks_something(
    partition: Partition, log: Log, harm: str
) -> None:
    for _ in range(12):
        write(log, 2)
        end(log, 2, commit=False)
    told, whole = aborted(log), [path.read_bytes() for path in index_files(partition)]
    assert len(whole) > 3
    partition.crash(log) if harm == "gone" else partition.close(log)
    last = index_files(partition)[-1]
    data = last.read_bytes()
    if harm == "gone":
        last.unlink()
    elif harm == "torn":
        last.write_bytes(data[:-1])
    elif harm == "old":
        last.write_bytes(b"\0\1" + data[2:])
    else:
        first = index_files(partition)[0]
        first.write_bytes(first.read_bytes()[::-1][: len(data)])
    log = partition.open(clean=harm != "gone")
    assert aborted(log) == told
    assert [path.read_bytes() for path in index_files(partition)] == whole


def test_truncation_forgets_markers(partition: Partition, log: Log) -> None:
    for _ in range(12):
        write(log, 2)
        end(log, 2, commit=False)
    told = aborted(log)
    for offset in (20, 13, 12, 1, 0):
        log.truncate_to(offset)
        assert aborted(log) == [one for one in told if one.last_offset < offset]
        assert stable(log) == log.high_watermark == min(offset, log.high_watermark)
    write(log, 2)
    end(log, 2, commit=False)
    assert aborted(log) == [AbortedTxn(2, 0, 1, 2)]
    partition.close(log)
    assert aborted(partition.open(clean=True)) == [AbortedTxn(2, 0, 1, 2)]


def test_half_of_a_truncated_transaction_is_open_again(log: Log) -> None:
    write(log, 2)
    marker = end(log, 2, commit=False)
    replicate(log)
    log.truncate_to(marker)
    replicate(log)
    assert (stable(log), aborted(log)) == (0, [])


def test_follower_knows_what_its_leader_knows(tmp_path: Path, log: Log) -> None:
    follower = Partition(tmp_path / "copy-0", SMALL).open(clean=True)
    write(log, 1)
    for commit in (False, True, False):
        write(log, 2)
        end(log, 2, commit=commit)
    while follower.log_end_offset < log.log_end_offset:
        follower.append_as_follower(log.reader.read_bytes(follower.log_end_offset, 300))
    replicate(follower)
    assert (stable(follower), aborted(follower)) == (0, aborted(log))


def without_descriptors(index: TransactionIndex, aborted: AbortedTxn) -> None:
    raise OSError(errno.EMFILE, "no descriptor")


def test_failed_index_is_written_with_the_next_append(
    log: Log, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log, 2)
    with monkeypatch.context() as patched:
        patched.setattr(TransactionIndex, "append", without_descriptors)
        with pytest.raises(KafkaError, match="no descriptor"):
            end(log, 2, commit=False)
    assert index_files(partition) == []
    write(log, 2)
    assert [(one.first_offset, one.last_offset) for one in aborted(log)] == [(0, 1)]


def test_marker_that_a_crash_cuts_off_is_none(partition: Partition, log: Log) -> None:
    write(log, 2)
    end(log, 2, commit=False)
    write(log, 2)
    marker = end(log, 2, commit=False)
    partition.crash(log)
    path = log.segments.active.log.path
    os.truncate(path, os.stat(path).st_size - 1)
    log = partition.open(clean=False)
    replicate(log)
    assert log.log_end_offset == marker
    assert (stable(log), [one.last_offset for one in aborted(log)]) == (2, [1])


def test_entry_of_what_a_power_loss_undid_does_not_count(partition: Partition, log: Log) -> None:
    write(log, 1)
    marker = end(log, 1, commit=True)
    partition.crash(log)
    path = partition.folder / f"{0:020d}{TXN_INDEX_SUFFIX}"
    path.write_bytes(struct.pack(">hqqqq", 0, 1, 0, marker, marker + 1))
    assert aborted(partition.open(clean=False)) == []


def test_index_is_built_anew_by_the_next_start_if_one_is_stopped(
    partition: Partition, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(12):
        write(log, 2)
        end(log, 2, commit=False)
    told = aborted(log)
    partition.close(log)
    last = index_files(partition)[-1]
    last.write_bytes(last.read_bytes()[:-1])

    def stop(*_: object) -> None:
        raise StoppedError

    with monkeypatch.context() as patched:
        patched.setattr(replay, "rebuild_aborted", stop)
        with pytest.raises(StoppedError):
            partition.open(clean=True)
    assert aborted(partition.open(clean=True)) == told


# -- compaction ---------------------------------------------------------------------------------


def compact(log: Log, max_keys: int = 10_000) -> None:
    dirty = cleaner.dirty_range(log, 0, START_MS)
    cleaner.clean(log, dirty, max_keys, cleaner.Throttle())
    log.delete_due()


def test_aborted_record_supersedes_nothing_and_goes(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "topic-0", COMPACTED)
    log = partition.open(clean=True)
    kept = write_plain(log, b"k", b"committed")
    write(log, 1, b"aborted" * 40, b"k")
    marker = end(log, 1, commit=False)
    write(log, 2, b"decided" * 40, b"other")
    end(log, 2, commit=True)
    log.roll()
    replicate(log)
    told = aborted(log)
    compact(log)
    assert [(one.offset, one.key) for one in read_all(log) if one.value and len(one.value) > 6] == [
        (kept, b"k"),
        (3, b"other"),
    ]
    assert [(one.first_offset, one.last_offset) for one in told] == [(1, marker)]
    for clean in (True, False):
        assert aborted(log) == told
        (partition.close if clean else partition.crash)(log)
        log = partition.open(clean=clean)


def test_crash_within_a_compaction_leaves_what_was_aborted(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "topic-0", COMPACTED)
    log = partition.open(clean=True)
    for _ in range(8):
        write(log, 1, bytes(300), b"k")
        end(log, 1, commit=False)
    write(log, 2, bytes(300), b"k")
    log.roll()
    replicate(log)
    told = aborted(log)
    partition.close(log)
    path = log.segments[0].log.path
    os.replace(path, path + ".swap")  # the copy was the first segment itself
    log = partition.open(clean=True)
    replicate(log)
    assert (stable(log), aborted(log)) == (16, told)


def visible(log: Log) -> list[int]:
    """Return the base offsets of the batches that a reader of committed records keeps."""
    told = aborted(log)
    headers = [header for segment in log.segments for _, header in segment.scan(0)]
    return [
        header.base_offset
        for header in headers
        if header.record_count > 0
        and not header.is_control
        and not any(
            one.producer_id == header.producer_id
            and one.first_offset <= header.base_offset <= one.last_offset
            for one in told
        )
    ]


class EndOfProcessError(Exception):
    """Nothing of the process runs any more."""


@pytest.mark.parametrize("renames", range(16))
def test_crash_between_renames_of_a_compaction_leaves_what_was_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    partition = Partition(tmp_path / "topic-0", COMPACTED)
    log = partition.open(clean=True)
    for key in (b"a", b"b"):
        write_plain(log, key)
    for _ in range(3):
        write(log, 1, bytes(300), b"k")
        end(log, 1, commit=False)
    log.roll()
    partition.close(log)
    log = partition.open(clean=True)
    replicate(log)
    left, replace = renames, os.replace

    def replace_some(old: str, new: str) -> None:
        nonlocal left
        if left == 0:
            raise EndOfProcessError
        replace(old, new)
        left -= 1

    monkeypatch.setattr(os, "replace", replace_some)
    with contextlib.suppress(EndOfProcessError):
        compact(log, max_keys=1)  # which ends before what was aborted
    monkeypatch.undo()
    partition.crash(log)
    log = partition.open(clean=False)
    replicate(log)
    assert (stable(log), visible(log)) == (8, [0, 1])


def test_compaction_stops_where_a_transaction_is_open(tmp_path: Path) -> None:
    log = Partition(tmp_path / "topic-0", COMPACTED).open(clean=True)
    for _ in range(10):
        write_plain(log, b"k", bytes(200))
    first = write(log, 1, bytes(200), b"k")
    for _ in range(10):
        write_plain(log, b"k", bytes(200))
    replicate(log)
    assert cleaner.dirty_range(log, 0, START_MS).end <= first
    end(log, 1, commit=False)
    replicate(log)
    assert cleaner.dirty_range(log, 0, START_MS).end > first


# -- any history --------------------------------------------------------------------------------


@dataclass
class Model:
    """What a reader of committed records must get, from the history alone."""

    open: dict[int, int]
    aborted: list[tuple[int, int, int]]

    def stable(self, end: int) -> int:
        return min(self.open.values(), default=end)


ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 4)),
    st.tuples(st.just("commit"), st.integers(1, 4)),
    st.tuples(st.just("abort"), st.integers(1, 4)),
    st.tuples(st.just("plain"), st.just(0)),
    st.tuples(st.just("close"), st.just(0)),
    st.tuples(st.just("crash"), st.just(0)),
)


@settings(max_examples=how_many(60, full=3000), deadline=None)
@given(st.lists(ACTIONS, max_size=60))
def test_any_history_reads_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    partition = Partition(tmp_path_factory.mktemp("log") / "topic-0", SMALL)
    log, model = partition.open(clean=True), Model({}, [])
    for action, producer_id in actions:
        if action == "write":
            model.open.setdefault(producer_id, write(log, producer_id))
        elif action == "plain":
            write_plain(log)
        elif action in ("close", "crash"):
            (partition.close if action == "close" else partition.crash)(log)
            log = partition.open(clean=action == "close")
        else:
            marker = end(log, producer_id, commit=action == "commit")
            first = model.open.pop(producer_id, None)
            if action == "abort" and first is not None:
                model.aborted.append((producer_id, first, marker))
        replicate(log)
        assert stable(log) == model.stable(log.log_end_offset)
        assert [one[:3] for one in aborted(log)] == model.aborted
    for offset in range(0, log.log_end_offset, 3):
        told = aborted_between(log.segments, offset, offset + 5)
        wanted = [one for one in model.aborted if one[1] < offset + 5 and one[2] >= offset]
        assert [one[:3] for one in told] == wanted
    log.abandon()
