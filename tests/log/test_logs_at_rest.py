"""A log that nobody used costs a stop nothing, and one that anybody changed is durable after it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.log.partition import truncation
from odradek.log.partition.log import Log
from odradek.topic_config import TopicConfig
from tests.support.logs import Partition, batch, read_all

Sync = list[str]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Sync:
    """Names of what is synced; nothing is, in fact."""
    names: Sync = []

    def note(fd: int) -> None:
        names.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))

    monkeypatch.setattr(os, "fsync", note)
    return names


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "topic-0", TopicConfig())


def written_files(partition: Partition) -> dict[str, int]:
    """Return when each file of the folder was changed last, ns."""
    return {one.name: one.stat().st_ctime_ns for one in partition.folder.iterdir()}


@pytest.mark.parametrize("records", [0, 3])
def test_a_log_that_nobody_used_is_neither_written_nor_synced(
    partition: Partition, synced: Sync, records: int
) -> None:
    log = partition.open(clean=True)
    for number in range(records):
        log.append_as_leader(batch(b"%d" % number), 0)
    partition.close(log)
    before = written_files(partition)
    synced.clear()
    log = partition.open(clean=True)
    assert len(read_all(log)) == records
    partition.close(log)
    assert written_files(partition) == before
    assert synced == []


def test_a_new_log_gets_no_snapshot(partition: Partition, synced: Sync) -> None:
    """The next start would have to remove it."""
    partition.close(partition.open(clean=True))
    assert not list(partition.folder.glob("*.snapshot"))
    assert synced == []


def test_a_new_preallocated_log_is_trimmed(tmp_path: Path, synced: Sync) -> None:
    config = TopicConfig(preallocate=True, segment_bytes=1 << 20)
    partition = Partition(tmp_path / "topic-0", config)
    log = partition.open(clean=True)
    path = Path(log.segments.active.log.path)
    assert path.stat().st_size == 1 << 20
    partition.close(log)
    assert path.stat().st_size == 0
    assert path.name in synced


def _append(log: Log) -> None:
    log.append_as_leader(batch(b"more"), 0)


def _append_and_flush(log: Log) -> None:
    _append(log)
    log.flush()


def _start_over(log: Log) -> None:
    truncation.start_over(log, 0)


@pytest.mark.parametrize(
    "change",
    [
        _append,
        _append_and_flush,
        Log.roll,
        lambda log: log.truncate_to(1),
        lambda log: log.truncate_to(0),
        _start_over,
    ],
)
def test_a_log_that_was_changed_is_synced(
    partition: Partition, synced: Sync, change: Callable[[Log], object]
) -> None:
    log = partition.open(clean=True)
    log.append_as_leader(batch(b"first"), 0)
    log.append_as_leader(batch(b"second"), 0)
    partition.close(log)
    log = partition.open(clean=True)
    change(log)
    known = read_all(log)
    synced.clear()
    partition.close(log)
    active = log.segments.active
    needed = [active.log.path]
    if active.size:
        needed += [active.index.file.path, active.time_index.file.path]
    assert {os.path.basename(path) for path in needed} <= set(synced)
    assert read_all(partition.open(clean=True)) == known


def test_stale_indexes_beside_an_empty_log_are_found(partition: Partition, synced: Sync) -> None:
    """A truncation to nothing syncs the log file only."""
    log = partition.open(clean=True)
    segment = log.segments.active
    indexes = [Path(one.file.path) for one in (segment.index, segment.time_index)]
    for number in range(40):
        log.append_as_leader(batch(b"%d" % number, bytes(1000), timestamp=number), 0)
    partition.close(log)
    stale = [one.read_bytes() for one in indexes]
    assert all(stale)
    log = partition.open(clean=True)
    log.truncate_to(0)
    partition.close(log)
    for path, data in zip(indexes, stale, strict=True):
        assert path.stat().st_size == 0
        path.write_bytes(data)
    log = partition.open(clean=True)
    for number in range(40):
        log.append_as_leader(batch(b"new %d" % number, bytes(900), timestamp=number + 1), 1)
    assert [one.value for one in read_all(log)][::2] == [b"new %d" % n for n in range(40)]
    for offset in range(0, 80, 7):
        found = log.segments.active.find(offset)
        assert found is not None
        assert found[1].base_offset == offset - offset % 2


def test_a_log_that_a_crash_left_is_synced(partition: Partition, synced: Sync) -> None:
    """What the process before did to its files may be in memory only."""
    partition.crash(partition.open(clean=True))
    synced.clear()
    log = partition.open(clean=False)
    partition.close(log)
    assert os.path.basename(log.segments.active.log.path) in synced


@pytest.mark.parametrize("recovery_point", [0, 1])
@pytest.mark.parametrize("more", [0, 1])
def test_leader_epochs_that_a_crash_left_are_synced(
    partition: Partition, synced: Sync, recovery_point: int, more: int
) -> None:
    """Else a power failure after the stop takes the epoch of records that stay."""
    log = partition.open(clean=True)
    log.append_as_leader(batch(b"first"), 3)
    partition.crash(log)
    partition.recovery_point = recovery_point
    synced.clear()
    log = partition.open(clean=False)
    for _ in range(more):
        log.append_as_leader(batch(b"more"), 3)
    partition.close(log)
    assert os.path.basename(log.epochs.path) in synced
