"""Starts that find what a power loss may leave. `test_power_loss` found each of these."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.config import TopicConfig
from odradek.log.partition import checkpoints
from odradek.log.partition.log import Log
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
