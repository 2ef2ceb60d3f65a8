"""Loading that is told to stop, or fails: no log is worse off than before."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odradek.log.directory import LogDirError
from odradek.log.manager import LogManager
from odradek.log.partition import checkpoints, recovery
from odradek.log.partition.log import Log
from odradek.log.segment.files import StoppedError
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition
from tests.log.conftest import Make
from tests.support.logs import Partition, batch, new_log, read_all

LOGS = 5


def filled(make: Make) -> LogManager:
    """Logs of ten records each, of which the first five are synced."""
    manager = make(dirs=("a",))
    for number in range(LOGS):
        log = new_log(manager, "t", number, TopicConfig())
        for value in range(10):
            log.append_as_leader(batch(b"%d" % value), 0)
            if value == 4:
                log.flush()
    return manager


def crash(manager: LogManager) -> None:
    [directory] = manager._directories
    directory.write_recovery_points()
    for log in manager.logs().values():
        log.abandon()
    manager.close()
    Path(directory.path, checkpoints.CLEAN_SHUTDOWN).unlink()


def stopped_after(manager: LogManager, opened: int) -> None:
    """Load until so many logs are open."""
    count = itertools.count(1)

    def config_of(topic: str) -> TopicConfig:
        if next(count) > opened:
            manager.stop_loading()
        return TopicConfig()

    manager._topic_config = config_of
    with pytest.raises(StoppedError):
        manager.load()


def state(folder: Path) -> dict[str, bytes]:
    return {
        name: (folder / name).read_bytes()
        for name in (
            checkpoints.RECOVERY_POINTS,
            checkpoints.LOG_START_OFFSETS,
            checkpoints.HIGH_WATERMARKS,
        )
        if (folder / name).exists()
    }


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in read_all(log)]


@pytest.mark.parametrize("opened", range(LOGS))
def test_a_directory_that_was_closed_cleanly_stays_clean(
    make: Make, tmp_path: Path, opened: int
) -> None:
    filled(make).close()
    before = state(tmp_path / "a")
    stopped = make(dirs=("a",), load=False)
    stopped_after(stopped, opened)
    stopped.close()
    assert (tmp_path / "a" / checkpoints.CLEAN_SHUTDOWN).exists()
    assert state(tmp_path / "a") == before
    again = make(dirs=("a",))
    assert again._directories[0].was_clean
    for log in again.logs().values():
        assert (log.recovery_point, len(values(log))) == (10, 10)


def test_a_stop_before_the_first_log_keeps_the_mark(make: Make, tmp_path: Path) -> None:
    filled(make).close()
    stopped = make(dirs=("a",), load=False)
    stopped.stop_loading()
    with pytest.raises(StoppedError):
        stopped.load()
    stopped.close()
    assert (tmp_path / "a" / checkpoints.CLEAN_SHUTDOWN).exists()
    assert len(make(dirs=("a",)).logs()) == LOGS


@pytest.mark.parametrize("opened", range(LOGS))
def test_a_directory_after_a_crash_is_not_taken_for_clean(
    make: Make, tmp_path: Path, opened: int
) -> None:
    crash(filled(make))
    points = checkpoints.read_offsets(str(tmp_path / "a" / checkpoints.RECOVERY_POINTS))
    assert set(points.values()) == {5}
    stopped = make(dirs=("a",), load=False)
    stopped_after(stopped, opened)
    loaded = set(stopped.logs())
    assert len(loaded) == opened
    stopped.close()
    assert not (tmp_path / "a" / checkpoints.CLEAN_SHUTDOWN).exists()
    # Those that were recovered and synced need not be read again, and all others must be.
    assert checkpoints.read_offsets(str(tmp_path / "a" / checkpoints.RECOVERY_POINTS)) == {
        TopicPartition("t", number): 10 if TopicPartition("t", number) in loaded else 5
        for number in range(LOGS)
    }
    again = make(dirs=("a",))
    assert not again._directories[0].was_clean
    assert [len(values(log)) for log in again.logs().values()] == [10] * LOGS


@pytest.fixture
def damaged(tmp_path: Path) -> Partition:
    """Segments of two batches with rising epochs, as after a crash; the last batch is torn."""
    partition = Partition(tmp_path / "original" / "topic-0")
    log = partition.open(clean=True)
    for number in range(8):
        log.append_as_leader(
            batch(b"%d" % number, producer_id=7, producer_epoch=0, base_sequence=number), number
        )
        if number % 2:
            log.roll()
    log.append_as_leader(batch(b"torn"), 8)
    path = Path(log.segments.active.log.path)
    partition.crash(log)
    path.write_bytes(path.read_bytes()[:-1])
    return partition


def test_recovery_may_break_off_at_each_batch(damaged: Partition, tmp_path: Path) -> None:
    whole = tmp_path / "whole" / "topic-0"
    shutil.copytree(damaged.folder, whole)
    expected = replace(damaged, folder=whole).open(clean=False)
    contents = values(expected), expected.epochs.entries, expected.log_end_offset
    assert expected.log_end_offset == 8
    for batches in range(8):
        folder = tmp_path / f"stopped-{batches}" / "topic-0"
        shutil.copytree(damaged.folder, folder)
        looks = itertools.count()
        environment = replace(
            damaged.environment(),
            is_stopping=lambda: next(looks) >= batches,  # noqa: B023
        )
        known = recovery.Checkpointed(clean=False, recovery_point=0)
        with pytest.raises(StoppedError):
            recovery.open_log(str(folder), "topic", 0, damaged.config, environment, known)
        assert next(looks) == batches + 1, "it stops at once"
        log = replace(damaged, folder=folder).open(clean=False)
        assert (values(log), log.epochs.entries, log.log_end_offset) == contents
        assert log.producers.snapshot_offset == expected.producers.snapshot_offset
        log.close()
    expected.close()


def test_a_start_that_is_refused_a_directory_writes_nothing_in_it(
    make: Make, tmp_path: Path
) -> None:
    manager = filled(make)
    manager.close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir() if path.is_file()}
    (tmp_path / "a" / checkpoints.RECOVERY_POINTS).write_text("damaged")
    before[checkpoints.RECOVERY_POINTS] = b"damaged"
    stranger = make(dirs=("b", "a"), broker_id=2, load=False)
    with pytest.raises(LogDirError, match=r"belongs to broker\.id 1, this is 2"):
        stranger.load()
    stranger.close()
    after = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir() if path.is_file()}
    assert after == before


def test_a_start_without_descriptors_keeps_the_marks(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(make).close()
    marks = [tmp_path / name / checkpoints.CLEAN_SHUTDOWN for name in ("a", "b")]
    make(dirs=("a", "b")).close()
    real = os.open
    for most in itertools.count():
        opened = itertools.count(1)

        def scarce(*given: Any, **named: Any) -> int:
            if next(opened) > most:  # noqa: B023
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return real(*given, **named)

        starting = make(dirs=("a", "b"), load=False)
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", scarce)
            with contextlib.suppress(LogDirError):
                starting.load()
                break
        starting.close()
        assert [mark.exists() for mark in marks] == [True, True], most
    assert most > 5
    assert [each.was_clean for each in starting._directories] == [True, True]
