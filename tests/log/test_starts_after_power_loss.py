"""Starts that find what a power loss may leave. `test_power_loss` found each of these."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from odradek.log.partition import checkpoints, epochs
from odradek.log.partition.log import Log
from odradek.log.records import batch as batches
from odradek.log.segment import files
from odradek.topic_config import TopicConfig
from tests.log.conftest import Make
from tests.support.logs import Partition, batch, read_all

CONFIG = TopicConfig(flush_messages=1)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "topic-0", CONFIG)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was synced."""
    names: list[str] = []
    real = os.fsync

    def note(fd: int) -> None:
        names.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        real(fd)

    monkeypatch.setattr(os, "fsync", note)
    return names


def sent(sequence: int, *values: bytes) -> bytes:
    return batch(*values, producer_id=7, producer_epoch=0, base_sequence=sequence)


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in read_all(log)]


def restart(partition: Partition, log: Log, spoil: Callable[[], object] = lambda: None) -> Log:
    partition.crash(log)
    spoil()
    return partition.open(clean=False)


def appended(log: Log, *numbers: int, epoch: int = 0) -> None:
    for number in numbers:
        log.append_as_leader(batch(b"%d" % number), epoch)


def test_a_clean_shutdown_counts_once(make: Make, tmp_path: Path, synced: list[str]) -> None:
    manager = make(dirs=("a",), load=False)
    manager.close()
    make(dirs=("a",)).close()
    assert (tmp_path / "a" / checkpoints.CLEAN_SHUTDOWN).exists()
    synced.clear()
    assert checkpoints.take_clean_mark(str(tmp_path / "a"))
    assert synced == ["a"]


def test_a_repeat_is_found_whose_batch_was_deleted_in_part(partition: Partition) -> None:
    log = partition.open(clean=True)
    first = log.append_as_leader(sent(0, b"0", b"1", b"2"), 0)
    log.high_watermark = 3
    log.advance_log_start(1)
    partition.log_start = 1
    again = restart(partition, log).append_as_leader(sent(0, b"0", b"1", b"2"), 0)
    assert again.duplicate
    assert (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset)


def test_leader_epochs_follow_the_batches_where_a_truncation_was_lost(
    partition: Partition,
) -> None:
    log = partition.open(clean=True)
    appended(log, 0, 1, 2, epoch=1)

    def lose_truncation() -> None:
        path = partition.folder / "leader-epoch-checkpoint"
        path.write_bytes(checkpoints.format_epochs([(1, 0), (2, 1)]))

    log = restart(partition, log, lose_truncation)
    assert log.log_end_offset == 3
    assert log.epochs.entries == [(1, 0)]
    again = restart(partition, log)
    assert again.epochs.entries == [(1, 0)], "the file says so, too"


def test_an_epoch_without_records_stays(partition: Partition) -> None:
    log = partition.open(clean=True)
    appended(log, 0, 1, epoch=1)
    log.assign_epoch(2)
    assert restart(partition, log).epochs.entries == [(1, 0), (2, 2)]


def test_rebuilt_leader_epochs_are_written_at_once(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that breaks off must not leave a file with some of them."""
    log = partition.open(clean=True)
    for epoch in (1, 2, 3):
        appended(log, epoch, epoch=epoch)
    path = partition.folder / "leader-epoch-checkpoint"
    written: list[bytes] = []

    def note(path: str, data: bytes) -> bool:
        written.append(data)
        return files.write_in_place(path, data)

    monkeypatch.setattr(epochs, "write_in_place", note)
    restart(partition, log, lambda: path.write_bytes(bytes(9)))
    assert written == [checkpoints.format_epochs([(1, 0), (2, 1), (3, 2)])]


def rolled(partition: Partition) -> Log:
    """Three segments, of two records each."""
    log = partition.open(clean=True)
    appended(log, 0, 1)
    log.roll()
    appended(log, 2, 3)
    log.roll()
    appended(log, 4, 5)
    return log


def lose_end(log: Log) -> None:
    """The file of the second segment lacks its last batch."""
    path = log.segments[1].log.path
    os.truncate(path, os.path.getsize(path) // 2)


def test_a_log_ends_where_a_rolled_segment_lost_whole_batches(partition: Partition) -> None:
    log = rolled(partition)
    again = restart(partition, log, lambda: lose_end(log))
    assert values(again) == [b"0", b"1", b"2"]
    appended(again, 3)
    assert values(again) == [b"0", b"1", b"2", b"3"]


def test_a_gap_that_compaction_may_have_made_stays(partition: Partition) -> None:
    partition.config = replace(CONFIG, cleanup_policy=("compact",))
    log = rolled(partition)
    again = restart(partition, log, lambda: lose_end(log))
    assert values(again) == [b"0", b"1", b"2", b"4", b"5"]


def test_a_gap_that_a_leader_sent_stays(partition: Partition) -> None:
    log = partition.open(clean=True)
    appended(log, 0, 1)
    log.skip_to(5)
    appended(log, 5)
    assert values(restart(partition, log)) == [b"0", b"1", b"5"]


def test_truncated_batches_do_not_follow_newer_ones(partition: Partition) -> None:
    log = partition.open(clean=True)
    appended(log, 0, 1, 2, epoch=1)
    path = Path(log.segments.active.log.path)
    former = path.read_bytes()
    log.truncate_to(1)
    appended(log, 1, epoch=2)

    def bring_back_end() -> None:
        path.write_bytes(path.read_bytes() + former[path.stat().st_size :])

    again = restart(partition, log, bring_back_end)
    assert again.log_end_offset == 2
    assert again.epochs.entries == [(1, 0), (2, 1)]
    assert values(again) == [b"0", b"1"]


def test_a_snapshot_of_truncated_records_is_not_used(partition: Partition) -> None:
    log = partition.open(clean=True)
    appended(log, 0)
    log.append_as_leader(sent(0, b"1"), 0)
    log.roll()
    [path] = partition.folder.glob("*.snapshot")
    former = path.read_bytes()
    log.truncate_to(1)
    appended(log, 1, 2, epoch=1)
    again = restart(partition, log, lambda: path.write_bytes(former))
    assert again.producers.get(7) is None
    assert not path.exists()


PREALLOCATED = replace(CONFIG, preallocate=True, segment_bytes=4096)


def test_a_flush_after_a_roll_syncs_the_finished_segment(
    partition: Partition, synced: list[str]
) -> None:
    """Its records were synced, but not that its file ends behind them."""
    partition.config = PREALLOCATED
    log = partition.open(clean=True)
    appended(log, 0)
    log.flush()
    log.roll()
    appended(log, 1)
    synced.clear()
    log.flush()
    assert "00000000000000000000.log" in synced


def test_zeros_behind_a_segment_that_ends_at_the_recovery_point_are_cut(
    partition: Partition,
) -> None:
    partition.config = PREALLOCATED
    log = partition.open(clean=True)
    appended(log, 0, 1)
    log.flush()
    partition.recovery_point = log.recovery_point
    path = log.segments.active.log.path
    log.roll()
    appended(log, 2)
    again = restart(partition, log, lambda: os.truncate(path, 4096))
    assert values(again) == [b"0", b"1", b"2"]
    assert again.segments[0].size < 4096
    assert all(header for _, header in batches.scan(Path(path).read_bytes()))


def test_a_flipped_bit_costs_no_records_behind_it(partition: Partition) -> None:
    """No checksum covers base offsets. Here one looks as if its batch was the last."""
    log = partition.open(clean=True)
    appended(log, 0, 1, 2)
    log.roll()
    appended(log, 3)
    log.flush()
    partition.recovery_point = log.recovery_point
    path = Path(log.segments[0].log.path)
    damaged = bytearray(path.read_bytes())
    damaged[7 + len(damaged) // 3] ^= 4  # 1 becomes 5
    again = restart(partition, log, lambda: path.write_bytes(damaged))
    assert path.read_bytes() == damaged
    assert again.log_end_offset == 4
