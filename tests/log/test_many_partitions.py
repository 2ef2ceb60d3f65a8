"""A partition at rest has no descriptor, and work for one topic looks at no other."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from odradek.log.directory import CLOSING_THREADS
from odradek.log.manager import LogManager, NewLog
from odradek.log.partition import checkpoints, recovery
from odradek.log.partition.log import Log
from odradek.log.segment import files
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition
from tests.log.conftest import Make
from tests.support import steps
from tests.support.logs import FakeClock, batch, new_log

pytestmark = pytest.mark.usefixtures("without_fsync")

PARTITIONS = 40


def open_below(folder: Path) -> list[str]:
    """Return the files of partitions below a folder that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
        if path.startswith(f"{folder}/") and path.endswith((".log", "index")):
            found.append(path)
    return found


def create(manager: LogManager, topic: str, partitions: int) -> None:
    keys = [TopicPartition(topic, number) for number in range(partitions)]
    assert not manager.make_missing({key: NewLog(TopicConfig()) for key in keys})


def test_partition_that_nobody_uses_has_no_descriptor(make: Make, tmp_path: Path) -> None:
    manager = make()
    create(manager, "t", PARTITIONS)
    assert not open_below(tmp_path)
    manager.close()
    manager = make()
    manager.housekeep()  # retention too
    assert not open_below(tmp_path)
    for log in manager.logs().values():
        log.append_as_leader(batch(b"value"), 0)
    assert len(open_below(tmp_path)) <= PARTITIONS
    manager.close()
    assert not open_below(tmp_path)
    manager = make()
    assert len(manager.logs()) == PARTITIONS
    assert not open_below(tmp_path)


def test_recovery_leaves_no_descriptor_open(make: Make, tmp_path: Path) -> None:
    manager = make()
    create(manager, "t", PARTITIONS)
    for log in manager.logs().values():
        log.append_as_leader(batch(b"value"), 0)
        log.roll()
        log.append_as_leader(batch(b"value"), 0)
    manager.close()
    for folder in "ab":
        (tmp_path / folder / ".kafka_cleanshutdown").unlink()
    manager = make()
    assert {log.log_end_offset for log in manager.logs().values()} == {2}
    assert not open_below(tmp_path)


def test_few_logs_are_opened_and_closed_by_all_threads(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash, each may have gigabytes to be read; at a stop, each waits for the disk."""
    threads = 4
    manager = make(dirs=("a",))
    create(manager, "t", CLOSING_THREADS)
    together = threading.Barrier(CLOSING_THREADS)
    close, open_log = Log.close, recovery.open_log

    def close_together(log: Log) -> None:
        together.wait(30)
        close(log)

    with monkeypatch.context() as patched:
        patched.setattr(Log, "close", close_together)
        manager.close()
    opening = threading.Barrier(threads)

    def open_together(*arguments: Any) -> tuple[Log, recovery.Report]:
        opening.wait(30)
        return open_log(*arguments)

    monkeypatch.setattr(recovery, "open_log", open_together)
    manager = make(dirs=("a",), num_recovery_threads_per_data_dir=str(threads))
    assert len(manager.logs()) == CLOSING_THREADS


def test_settings_of_a_topic_are_given_to_its_own_logs_only(make: Make) -> None:
    manager = make()
    kept, changed = TopicConfig(), TopicConfig(max_message_bytes=10)
    log = new_log(manager, "changed", 0, kept)

    def change() -> None:
        manager.update_topic_configs({"changed": changed})

    alone = steps.count(change)
    create(manager, "other", PARTITIONS)
    assert steps.count(change) == alone
    assert log.config is changed
    other = manager.get("other", 0)
    assert other is not None
    assert other.config == kept
    assert not manager.remove([TopicPartition("changed", 0)])
    manager.update_topic_configs({"changed": kept})
    assert log.config is changed, "it is not a log of the broker any more"


def test_rounds_of_housekeeping_do_not_look_at_logs_at_rest(make: Make) -> None:
    manager = make()
    create(manager, "t", PARTITIONS)
    manager.housekeep()  # what is due less often, such as retention
    few = steps.count(manager.housekeep)
    create(manager, "t", 2 * PARTITIONS)
    assert steps.count(manager.housekeep) == few
    some = manager.get("t", 0)
    assert some is not None
    some.append_as_leader(batch(b"value"), 0)
    some.roll()
    assert steps.count(manager.housekeep) > few, "a rolled segment is flushed"
    assert not some.has_unflushed_segments
    assert steps.count(manager.housekeep) == few


def test_flush_ms_counts_from_its_change_on(make: Make, clock: FakeClock) -> None:
    manager = make()
    log = new_log(manager, "t", 0, TopicConfig())
    log.append_as_leader(batch(b"value"), 0)
    clock.advance(10_000)
    manager.housekeep()
    assert log.recovery_point == 0
    manager.update_topic_configs({"t": TopicConfig(flush_ms=5000)})
    for end in (1, 2):
        manager.housekeep()
        assert log.recovery_point == end
        log.append_as_leader(batch(b"value"), 0)
        clock.advance(5000)


def test_round_whose_work_failed_is_followed_by_another(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    quarantines = manager._quarantines
    log = new_log(manager, "t", 0, TopicConfig(file_delete_delay_ms=0))
    log.append_as_leader(batch(b"value"), 0)
    log.roll()

    def fail(*_: object) -> None:
        raise ValueError("nobody foresaw it")

    with monkeypatch.context() as patched:
        patched.setattr(log.segments, "delete_due", fail)
        manager.housekeep()
    assert log.recovery_point == 1
    assert quarantines.held()["maintenance"] == 1
    manager.housekeep()
    assert quarantines.held()["maintenance"] == 0


def test_file_that_cannot_be_deleted_now_is_deleted_in_a_later_round(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    log = new_log(manager, "t", 0, TopicConfig(retention_bytes=0, file_delete_delay_ms=0))
    for _ in range(2):
        log.append_as_leader(batch(b"value"), 0)
        log.roll()
    log.high_watermark = 2

    def fail(path: str) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)

    assert log.apply_retention() == 2
    with monkeypatch.context() as patched:
        patched.setattr(files, "remove_if_there", fail)
        manager.housekeep()
    assert log.failure is None
    assert list(Path(log.directory).glob("*.deleted"))
    manager.housekeep()
    assert not list(Path(log.directory).glob("*.deleted"))


@pytest.mark.parametrize("write", [None, "shortage"])
def test_checkpoints_are_written_when_something_changed(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str | None
) -> None:
    manager = make(dirs=("a",), log_flush_offset_checkpoint_interval_ms="0")
    log = new_log(manager, "t", 0, TopicConfig())
    log.append_as_leader(batch(b"value"), 0)

    def checkpoint() -> None:
        manager.housekeep()
        manager.save_high_watermarks()

    written: list[str] = []
    write_offsets = checkpoints.write_offsets

    def noted(path: str, offsets: Mapping[TopicPartition, int]) -> None:
        write_offsets(path, offsets)
        written.append(Path(path).name)

    monkeypatch.setattr(checkpoints, "write_offsets", noted)
    checkpoint()
    written.clear()
    checkpoint()
    # That one in any case, to find out whether the disk still works.
    assert written == [checkpoints.RECOVERY_POINTS]
    log.high_watermark = 1
    log.flush()
    if write is not None:
        with monkeypatch.context() as patched:
            patched.setattr(checkpoints, "write_atomically", _without_descriptors)
            checkpoint()
    written.clear()
    checkpoint()
    assert set(written) == {checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS}
    for name in written:
        assert checkpoints.read_offsets(str(tmp_path / "a" / name)) == {TopicPartition("t", 0): 1}


def _without_descriptors(path: str, data: bytes) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
