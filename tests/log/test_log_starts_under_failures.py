"""Deleted records stay deleted, and others stay, when an operation fails halfway or overlaps."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek.log.partition import checkpoints
from odradek.log.records import records
from odradek.log.records.records import Record
from odradek.log.segment.files import SharedFile
from odradek.log.segment.segment import Segment
from odradek.protocol.errors import KafkaError
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition
from tests.log.conftest import COMPACTED, Make, dirty_log
from tests.support.logs import START_MS, Partition, batch, new_log, read_all

KEY = TopicPartition("t", 0)


def copied(*offsets: int) -> bytes:
    """Return one batch as a leader sends it."""
    return records.encode([Record(one, START_MS, b"k", b"%d" % one) for one in offsets])


def failing_at(nth: int, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that runs out of descriptors in its nth call."""
    calls = 0

    def run(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return method(*arguments, **named)

    return run


@pytest.mark.parametrize("nth", [1, 2])
def test_overlapping_append_that_fails_halfway_keeps_the_log_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    first, second = copied(0, 1, 2), copied(3, 4)
    config = TopicConfig(segment_bytes=max(len(first), len(second)))
    log = Partition(tmp_path / "topic-0", config).open(clean=True)
    log.truncate_fully_and_start_at(2)
    with monkeypatch.context() as patched:
        patched.setattr(Segment, "append", failing_at(nth, Segment.append))
        with pytest.raises(KafkaError):
            log.append_as_follower(first + second)
    assert log.start.to_checkpoint == 2
    if nth == 2:
        assert [one.offset for one in read_all(log)] == [2]
        log.append_as_follower(second)
    else:
        log.append_as_follower(first + second)
    assert [one.offset for one in read_all(log)] == [2, 3, 4]
    assert log.log_start_offset == log.start.to_checkpoint == 2


def test_log_that_starts_over_after_a_failed_append_forgets_the_old_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Partition(tmp_path / "topic-0", TopicConfig()).open(clean=True)
    log.truncate_fully_and_start_at(2)
    with monkeypatch.context() as patched:
        patched.setattr(Segment, "append", failing_at(1, Segment.append))
        with pytest.raises(KafkaError):
            log.append_as_follower(copied(0, 1, 2))
    log.truncate_fully_and_start_at(0)
    log.append_as_follower(copied(0, 1, 2))
    assert log.log_start_offset == log.start.to_checkpoint == 0


def test_a_log_start_that_falls_while_the_checkpoint_is_written_is_in_it_first(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(dirs=("a",))
    path = str(tmp_path / "a" / checkpoints.LOG_START_OFFSETS)
    log = new_log(manager, "t", 0, TopicConfig())
    log.append_as_leader(batch(b"a", b"b", b"c"), 0)
    log.high_watermark = 3
    log.advance_log_start(3)
    write = checkpoints.write_offsets
    falling = threading.Thread(target=lambda: log.truncate_fully_and_start_at(1))

    def fall_meanwhile(name: str, offsets: dict[TopicPartition, int]) -> None:
        if name == path and not falling.ident:
            falling.start()
            while log.log_start_offset != 1:
                pass
        write(name, offsets)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "write_offsets", fall_meanwhile)
        manager._directories[0].write_start_offsets()
        falling.join()
    assert checkpoints.read_offsets(path) == {KEY: 1}
    assert log.durable_log_start == 1


def test_forgetting_a_deleted_partition_is_retried(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(dirs=("a",), topic=COMPACTED)
    log = dirty_log(manager, "t")
    log.flush()
    assert manager.compact()
    path = str(tmp_path / "a" / checkpoints.CLEANER_OFFSETS)
    assert checkpoints.read_offsets(path) == {KEY: log.segments.bases[-1]}
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "write_offsets", failing_at(1, checkpoints.write_offsets))
        assert not manager.remove([KEY])
    assert manager.online_directories
    new_log(manager, "t", 0, COMPACTED)
    manager._directories[0].write_recovery_points()
    assert checkpoints.read_offsets(path) == {}


def open_files_in(folder: Path) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, by anybody
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in found if path.startswith(str(folder))]


@pytest.mark.parametrize("clean", [True, False])
def test_opening_a_log_that_fails_halfway_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    partition = Partition(tmp_path / "topic-0", TopicConfig())
    log = partition.open(clean=True)
    for _ in range(4):
        log.append_as_leader(batch(b"a"), 0)
        log.roll()
    partition.close(log)
    partition.recovery_point = 0
    nth = 0
    while True:
        nth += 1
        with monkeypatch.context() as patched:
            patched.setattr(SharedFile, "acquire", failing_at(nth, SharedFile.acquire))
            try:
                opened = partition.open(clean=clean)
            except OSError:
                assert open_files_in(partition.folder) == []
                continue
        assert len(read_all(opened)) == 4
        opened.abandon()
        break
    assert nth > (2 if clean else 10)
