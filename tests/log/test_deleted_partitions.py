"""Deletion of partitions: what goes at once, what goes later, and what a new one inherits."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from odradek.log.directory import Directory
from odradek.log.manager import NewLog
from odradek.log.partition import checkpoints
from odradek.log.segment.segment import Segment
from odradek.protocol.errors import KafkaError
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition
from odradek.zk.admin import LONGEST_TOPIC_NAME
from tests.log.conftest import COMPACTED, Make, dirty_log
from tests.support.logs import FakeClock, batch, new_log


async def test_a_deleted_partition_is_gone_at_once_and_its_files_later(
    make: Make, tmp_path: Path, clock: FakeClock
) -> None:
    manager = make(dirs=("a",))
    log = new_log(manager, "t", 0, TopicConfig())
    log.append_as_leader(batch(b"old"), 0)
    region = log.reader.read(0, 100).region
    assert not await manager.delete([TopicPartition("t", 0)])
    assert manager.get("t", 0) is None
    again = new_log(manager, "t", 0, TopicConfig())
    assert again.log_end_offset == 0
    assert region is not None
    assert b"old" in region.read(), "a transfer that has begun goes on"
    region.close()
    doomed = list((tmp_path / "a").glob("t-0.*-delete"))
    assert len(doomed) == 1
    manager.housekeep()
    assert doomed[0].exists()
    clock.advance(60_001)
    manager.housekeep()
    assert not doomed[0].exists()


async def test_a_topic_with_the_longest_name_can_be_deleted(
    make: Make, tmp_path: Path, clock: FakeClock
) -> None:
    manager = make(dirs=("a",))
    name = "t" * LONGEST_TOPIC_NAME
    new_log(manager, name, 12345, TopicConfig())
    assert not await manager.delete([TopicPartition(name, 12345)])
    (deleted,) = (tmp_path / "a").glob("*-delete")
    assert deleted.name.startswith("ttt")
    assert "-12345." in deleted.name
    assert not [one for one in manager._directories if one.failure]
    manager.close()
    again = make(dirs=("a",))
    assert not again.logs(), "what was deleted is not taken for a partition"
    clock.advance(60_001)
    again.housekeep()
    assert not deleted.exists()


async def test_partitions_made_and_deleted_together_wait_for_the_disk_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    synced: list[str] = []
    monkeypatch.setattr(Directory, "sync_names", lambda self: synced.append(self.path))
    keys = [TopicPartition("t", partition) for partition in range(20)]
    assert not await manager.create_missing(dict.fromkeys(keys, NewLog(TopicConfig())))
    assert sorted(manager.logs()) == keys
    assert sorted(synced) == manager.online_directories
    synced.clear()
    assert not await manager.delete(keys)
    assert not manager.logs()
    assert sorted(synced) == manager.online_directories


def test_a_partition_deleted_under_a_flush_does_not_fail_its_directory(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(dirs=("a",))
    log = new_log(manager, "t", 0, TopicConfig())
    log.append_as_leader(batch(b"old"), 0)
    flush_epochs = log.epochs.flush

    def deleted_meanwhile() -> None:
        assert not manager.remove([TopicPartition("t", 0)])
        flush_epochs()

    monkeypatch.setattr(type(log.epochs), "flush", lambda _: deleted_meanwhile())
    with contextlib.suppress(KafkaError):
        log.flush()
    assert len(manager.online_directories) == 1


def test_a_partition_inherits_nothing_from_a_deleted_one_of_its_name(
    make: Make, tmp_path: Path
) -> None:
    manager = make(dirs=("a",), topic=COMPACTED)
    log = dirty_log(manager, "t")
    log.flush()
    assert manager.compact()
    manager.save_high_watermarks()
    manager.housekeep()
    names = checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS, checkpoints.CLEANER_OFFSETS
    found = [str(tmp_path / "a" / name) for name in names]
    assert all(checkpoints.read_offsets(path) for path in found)
    assert not manager.remove([TopicPartition("t", 0)])
    assert [checkpoints.read_offsets(path) for path in found] == [{}] * 3


def test_forgetting_a_partition_late_keeps_the_high_watermark_of_a_new_one(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(dirs=("a",))
    key = TopicPartition("t", 0)
    path = str(tmp_path / "a" / checkpoints.HIGH_WATERMARKS)
    former = new_log(manager, *key, TopicConfig())
    former.append_as_leader(batch(b"a", b"b"), 0)
    former.high_watermark = 2
    manager.save_high_watermarks()

    def fail(path: str, data: bytes) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "write_atomically", fail)
        assert not manager.remove([key])
    assert checkpoints.read_offsets(path) == {key: 2}
    log = new_log(manager, *key, TopicConfig())
    log.append_as_leader(batch(b"value"), 0)
    log.high_watermark = 1
    assert manager.save_high_watermarks()
    manager.housekeep()
    assert checkpoints.read_offsets(path) == {key: 1}


def test_no_work_on_a_deleted_log_touches_a_new_one_of_its_name(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(dirs=("a",))
    log = new_log(manager, "t", 0, TopicConfig(retention_bytes=0))
    log.append_as_leader(batch(b"old"), 0)
    log.high_watermark = 1
    assert not manager.remove([TopicPartition("t", 0)])
    new_log(manager, "t", 0, TopicConfig()).append_as_leader(batch(b"new"), 0)
    before = {path.name: path.read_bytes() for path in Path(log.directory).iterdir()}
    for work in (
        log.roll,
        lambda: log.truncate_to(0),
        log.apply_retention,
        log.delete_due,
        log.flush,
        lambda: log.assign_epoch(7),
        lambda: log.append_as_leader(batch(b"late"), 0),
        lambda: log.reader.read(0, 100),
    ):
        with pytest.raises(KafkaError):
            work()
    assert {path.name: path.read_bytes() for path in Path(log.directory).iterdir()} == before


def test_deletion_waits_for_the_append_under_way(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(dirs=("a",))
    log = new_log(manager, "t", 0, TopicConfig())
    deletion = threading.Thread(target=manager.remove, args=([("t", 0)],))
    append = Segment.append

    def delete_meanwhile(segment: Segment, *written: Any) -> None:
        deletion.start()
        deletion.join(0.2)
        assert os.path.exists(log.directory)
        append(segment, *written)

    monkeypatch.setattr(Segment, "append", delete_meanwhile)
    log.append_as_leader(batch(b"value"), 0)
    deletion.join()
    assert not os.path.exists(log.directory)


def test_an_interrupted_deletion_is_finished_after_restart(make: Make, tmp_path: Path) -> None:
    manager = make(dirs=("a",))
    new_log(manager, "t", 0, TopicConfig())
    assert not manager.remove([TopicPartition("t", 0)])
    manager.close()
    second = make(dirs=("a",))
    second.housekeep()
    assert second.logs() == {}
    assert not list((tmp_path / "a").glob("t-0*"))
