"""Gaps that compaction made are no loss: a start after a crash keeps what is behind them.

The topic may be compacted no more, and the recovery points may be older than that, or gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from odradek.log.manager import LogManager
from odradek.log.partition import checkpoints
from odradek.log.partition.log import Log
from odradek.topic_config import TopicConfig
from tests.log.conftest import COMPACTED, Make
from tests.support.logs import batch, new_log, read_all

pytestmark = pytest.mark.usefixtures("without_fsync")
DELETED = replace(COMPACTED, cleanup_policy=("delete",), retention_ms=-1)


def written(manager: LogManager) -> Log:
    """Four segments. Compaction leaves only the first record of the first, nothing of epoch 2."""
    log = new_log(manager, "t", 0, replace(COMPACTED, min_cleanable_dirty_ratio=0.0))
    log.append_as_leader(batch(b"first", key=b"other"), 1)
    old = batch(*[b"old".ljust(40)] * 3)  # too large to be merged with others
    for epoch, data in ((1, old), (2, old), (3, batch(b"new"))):
        log.assign_epoch(epoch)
        log.append_as_leader(data, epoch)
        log.roll()
    log.append_as_leader(batch(b"last"), 3)
    log.high_watermark = log.log_end_offset
    return log


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in read_all(log)]


def crashed(make: Make, home: Path, spoil: Callable[[Path], object], topic: TopicConfig) -> Log:
    """Start on a copy of what a running broker has on the disk."""
    copy = home.with_name("copy")
    shutil.copytree(home, copy)
    spoil(copy)
    log = make(dirs=(copy.name,), topic=topic).get("t", 0)
    assert log is not None
    return log


def nothing(home: Path) -> None:
    pass


def lose_recovery_points(home: Path) -> None:
    (home / checkpoints.RECOVERY_POINTS).unlink()


def damage_recovery_points(home: Path) -> None:
    (home / checkpoints.RECOVERY_POINTS).write_bytes(bytes(20))


def lose_all_checkpoints(home: Path) -> None:
    for path in home.glob("*-checkpoint"):
        path.unlink()


@pytest.mark.parametrize(
    "spoil", [nothing, lose_recovery_points, damage_recovery_points, lose_all_checkpoints]
)
def test_records_behind_a_gap_stay_in_a_topic_that_is_compacted_no_more(
    make: Make, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    manager = make(dirs=("a",))
    log = written(manager)
    home = manager._home_of(log)
    home.write_recovery_points()
    while manager.compact():
        pass
    assert values(log) == [b"first", b"new", b"last"]
    again = crashed(make, tmp_path / "a", spoil, DELETED)
    assert values(again) == [b"first", b"new", b"last"]
    assert again.log_end_offset == log.log_end_offset


def test_records_behind_a_gap_stay_in_a_folder_from_elsewhere(make: Make, tmp_path: Path) -> None:
    """No checkpoint of this directory knows it."""
    manager = make(dirs=("a",))
    log = written(manager)
    while manager.compact():
        pass
    other = make(dirs=("b",))
    other._online()[0].write_recovery_points()

    def bring_folder(copy: Path) -> None:
        shutil.copytree(tmp_path / "a" / "t-0", copy / "t-0")

    assert values(crashed(make, tmp_path / "b", bring_folder, DELETED)) == values(log)


def test_an_epoch_whose_batches_were_compacted_stays(make: Make, tmp_path: Path) -> None:
    """A replica that was away learns from it where its own records of the epoch before end."""
    manager = make(dirs=("a",))
    log = written(manager)
    manager._home_of(log).write_recovery_points()
    while manager.compact():
        pass
    again = crashed(make, tmp_path / "a", nothing, COMPACTED)
    assert again.epochs.entries == log.epochs.entries == [(1, 0), (2, 4), (3, 7)]
