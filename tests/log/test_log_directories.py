"""Log directories: who owns them, what survives, and what is written when."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from odradek.log.directory import Directory, LogDirError
from odradek.log.manager import LogManager, NewLog
from odradek.log.partition import checkpoints, producers
from odradek.log.partition.epochs import FILE_NAME as EPOCHS
from odradek.log.segment.segment import Segment
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition
from odradek.zk.admin import LONGEST_TOPIC_NAME
from tests.log.conftest import COMPACTED, Make, dirty_log
from tests.support.logs import FakeClock, batch, new_log, read_all


def crash(manager: LogManager) -> None:
    """End without closing: locks go, nothing is finished."""
    for log in manager.logs().values():
        log.abandon()
    for directory in manager._directories:
        os.close(directory.lock_fd)
        directory.lock_fd = -1
        directory.failure = OSError("crashed")


def test_partitions_survive_a_clean_restart(make: Make) -> None:
    first = make()
    for partition in range(4):
        log = new_log(first, "t", partition, TopicConfig())
        log.append_as_leader(batch(b"%d" % partition), 3)
    homes = {key: log.directory for key, log in first.logs().items()}
    in_each = Counter(map(os.path.dirname, homes.values()))
    assert set(in_each.values()) == {2}, "the emptier directory is taken"
    first.close()
    second = make()
    assert {key: log.directory for key, log in second.logs().items()} == homes
    for partition in range(4):
        reopened = second.get("t", partition)
        assert reopened is not None
        assert [one.value for one in read_all(reopened)] == [b"%d" % partition]
        assert reopened.latest_epoch == 3


def test_appended_records_survive_a_crash(make: Make) -> None:
    first = make()
    log = new_log(first, "t", 0, TopicConfig())
    for number in range(50):
        log.append_as_leader(batch(b"%d" % number), 0)
    crash(first)
    reopened = make().get("t", 0)
    assert reopened is not None
    assert [one.value for one in read_all(reopened)] == [b"%d" % number for number in range(50)]


def test_the_clean_mark_holds_for_one_start(make: Make, tmp_path: Path) -> None:
    make().close()
    assert (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    crash(make())
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize(
    ("wrong", "says"), [({"broker_id": 2}, "broker.id 1"), ({"cluster": "x"}, "cluster.id cluster")]
)
def test_a_directory_of_another_owner_refuses_the_start(
    make: Make, wrong: dict[str, object], says: str
) -> None:
    make().close()
    with pytest.raises(LogDirError, match=says) as caught:
        make(**wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"broker.id=\\uzzzz", b"\0" * 40])
def test_unreadable_ownership_refuses_the_start(make: Make, tmp_path: Path, content: bytes) -> None:
    make().close()
    (tmp_path / "a" / "meta.properties").write_bytes(content)
    with pytest.raises(LogDirError, match="the owner"):
        make()


def test_a_directory_in_use_refuses_the_start(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    script = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "a" / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LogDirError, match="in use"):
            make()


@pytest.mark.parametrize("second", ["a/", "b/../a", "link"])
def test_a_directory_that_is_there_twice_refuses_the_start(
    make: Make, tmp_path: Path, second: str
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(LogDirError, match=r"^log\.dirs has the same directory twice: /.*/a and /"):
        make(dirs=("a", second))
    assert [path.name for path in (tmp_path / "a").iterdir()] == [".lock"]


def test_a_directory_that_another_would_read_as_a_partition_refuses_the_start(
    make: Make, tmp_path: Path
) -> None:
    with pytest.raises(LogDirError, match=r"^log\.dirs has /.*/a/disk-1/logs inside /.*/a, under"):
        make(dirs=("a", "a/disk-1/logs"))
    assert not list((tmp_path / "a" / "disk-1").glob("*.log"))
    make(dirs=("a", "a/disk1")).close()


@pytest.mark.parametrize("other", ["a/disk-1", "b"])
def test_a_directory_that_another_links_to_as_a_partition_refuses_the_start(
    make: Make, tmp_path: Path, other: str
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "disk-1").symlink_to(tmp_path / "b")
    with pytest.raises(LogDirError, match=rf"^log\.dirs has /.*/{other} inside /.*/a, under"):
        make(dirs=("a", other))
    assert not list((tmp_path / "b").glob("*.log"))


@pytest.mark.parametrize(
    ("path", "reason"), [("file", "Not a directory"), ("loop", "Too many levels of symbolic links")]
)
def test_what_is_no_directory_is_said_to_be_none(
    make: Make, tmp_path: Path, path: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(LogDirError, match=rf"none of log\.dirs can be used: .*{reason}"):
        make(dirs=(path,))


def test_an_owner_from_before_kafka_wrote_cluster_ids_is_completed(
    make: Make, tmp_path: Path
) -> None:
    make().close()
    meta = tmp_path / "a" / "meta.properties"
    meta.write_text("#\n#Fri Nov 27 14:00:00 UTC 2026\nversion=0\nbroker.id=1\n")
    with pytest.raises(LogDirError, match=r"broker\.id 1"):
        make(broker_id=2)
    manager = make()
    manager.record_owner()
    manager.close()
    assert checkpoints.read_meta(str(meta)) == checkpoints.LogDirMeta(1, "cluster")


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


def test_what_was_written_behind_a_cut_is_not_taken_for_flushed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(make(), "t", 0, TopicConfig())
    for _ in range(10):
        log.append_as_leader(batch(b"old"), 0)
    flush_epochs, events = log.epochs.flush, list[str]()

    def cut_meanwhile() -> None:
        events.append("flushed")
        if len(events) == 1:
            log.truncate_to(5)
            for _ in range(10):
                log.append_as_leader(batch(b"new"), 1)
        flush_epochs()

    monkeypatch.setattr(type(log.epochs), "flush", lambda _: cut_meanwhile())
    log.flush()
    assert (log.recovery_point, len(events)) == (15, 2)


def test_checkpoint_that_waited_for_its_turn_holds_nothing_stale(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(dirs=("a",))
    log = new_log(manager, "t", 0, TopicConfig())
    log.append_as_leader(batch(b"value"), 0)

    class OvertakenBy(contextlib.nullcontext[None]):
        def __enter__(self) -> None:
            log.flush()

    [directory] = manager._directories
    with monkeypatch.context() as patched:
        patched.setattr(directory, "_checkpoint_lock", OvertakenBy())
        directory.write_recovery_points()
    path = str(tmp_path / "a" / checkpoints.RECOVERY_POINTS)
    assert checkpoints.read_offsets(path) == {("t", 0): 1}


def test_checkpoints_that_kafka_made_and_did_not_write_yet_say_nothing(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = make(dirs=("a",))
    new_log(manager, "t", 0, TopicConfig()).append_as_leader(batch(b"value"), 3)
    manager.close()
    names = checkpoints.RECOVERY_POINTS, checkpoints.LOG_START_OFFSETS, checkpoints.HIGH_WATERMARKS
    for name in (*names, checkpoints.CLEANER_OFFSETS, f"t-0/{EPOCHS}"):
        (tmp_path / "a" / name).write_bytes(b"")
    caplog.clear()
    manager = make(dirs=("a",))
    log = manager.get("t", 0)
    assert log is not None
    assert (log.log_end_offset, log.epochs.entries) == (1, [(3, 0)])
    assert [message for message in caplog.messages if "damaged" in message] == []


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


@pytest.mark.parametrize("write", ["housekeep", "close"])
def test_a_lost_checkpoint_of_log_start_offsets_is_written_again(
    make: Make, tmp_path: Path, write: str
) -> None:
    manager = make(dirs=("a",), log_flush_start_offset_checkpoint_interval_ms="0")
    path = tmp_path / "a" / checkpoints.LOG_START_OFFSETS
    log = new_log(manager, "t", 0, TopicConfig())
    log.append_as_leader(batch(b"a", b"b"), 0)
    log.high_watermark = 2
    log.advance_log_start(1)
    manager.housekeep()
    path.unlink()
    getattr(manager, write)()
    assert checkpoints.read_offsets(str(path)) == {("t", 0): 1}


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


def test_a_compacted_partition_can_start_anew_at_any_offset(make: Make) -> None:
    manager = make(dirs=("a",))
    log = new_log(manager, "t", 0, TopicConfig(cleanup_policy=("compact",)))
    for start in (0, 500, 20):
        log.append_as_leader(batch(b"old"), 0)
        log.flush()
        log.truncate_fully_and_start_at(start)
        assert (log.log_start_offset, log.log_end_offset) == (start, start)
        assert not manager.compact()
    log.append_as_leader(batch(b"new"), 1)
    assert [one.value for one in read_all(log)] == [b"new"]


def test_an_interrupted_deletion_is_finished_after_restart(make: Make, tmp_path: Path) -> None:
    manager = make(dirs=("a",))
    new_log(manager, "t", 0, TopicConfig())
    assert not manager.remove([TopicPartition("t", 0)])
    manager.close()
    second = make(dirs=("a",))
    second.housekeep()
    assert second.logs() == {}
    assert not list((tmp_path / "a").glob("t-0*"))


def test_high_watermarks_are_kept_per_directory(make: Make, tmp_path: Path) -> None:
    manager = make()
    for partition in range(2):
        log = new_log(manager, "t", partition, TopicConfig())
        log.append_as_leader(batch(b"a", b"b", b"c"), 0)
        log.high_watermark = 2 + partition
    manager.save_high_watermarks()
    manager.close()
    found = [
        checkpoints.read_offsets(str(tmp_path / name / checkpoints.HIGH_WATERMARKS))
        for name in ("a", "b")
    ]
    assert found == [{("t", 0): 2}, {("t", 1): 3}]
    second = make()
    marks = {key: log.high_watermark for key, log in second.logs().items()}
    assert marks == {("t", 0): 2, ("t", 1): 3}


def test_deleted_records_stay_deleted_after_restart(make: Make) -> None:
    manager = make()
    log = new_log(manager, "t", 0, TopicConfig())
    log.append_as_leader(batch(b"a", b"b", b"c"), 0)
    log.high_watermark = 3
    log.advance_log_start(2)
    manager.close()
    log = make().get("t", 0)  # type: ignore[assignment]
    assert log.log_start_offset == 2
    with pytest.raises(KafkaError) as caught:
        log.reader.read(1, 100)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert [one.value for one in read_all(log)] == [b"c"]


def test_a_log_start_inside_a_batch_that_is_copied_stays_in_the_checkpoint(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(dirs=("a",))
    path = str(tmp_path / "a" / checkpoints.LOG_START_OFFSETS)
    log = new_log(manager, "t", 0, TopicConfig())
    log.truncate_fully_and_start_at(2)
    manager.housekeep()
    assert log.durable_log_start == 2
    known: list[int] = []
    write = checkpoints.write_offsets

    def note(name: str, offsets: dict[TopicPartition, int]) -> None:
        write(name, offsets)
        known.append(checkpoints.read_offsets(path).get(TopicPartition("t", 0), 0))

    monkeypatch.setattr(checkpoints, "write_offsets", note)
    log.append_as_follower(batch(b"a", b"b", b"c"))
    assert (log.log_start_offset, log.log_end_offset, log.durable_log_start) == (2, 3, 2)
    assert set(known) <= {2}


def test_a_log_start_that_falls_is_in_the_checkpoint_before_records_come_back(
    make: Make, tmp_path: Path
) -> None:
    manager = make(dirs=("a",))
    log = new_log(manager, "t", 0, TopicConfig())
    log.append_as_leader(batch(b"a", b"b", b"c"), 0)
    log.high_watermark = 3
    log.advance_log_start(3)
    manager.housekeep()
    assert log.durable_log_start == 3
    log.truncate_fully_and_start_at(1)
    assert log.durable_log_start == 1
    path = str(tmp_path / "a" / checkpoints.LOG_START_OFFSETS)
    assert checkpoints.read_offsets(path) == {TopicPartition("t", 0): 1}


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("log.flush.offset.checkpoint.interval.ms", checkpoints.RECOVERY_POINTS),
        ("log.flush.start.offset.checkpoint.interval.ms", checkpoints.LOG_START_OFFSETS),
    ],
)
def test_each_checkpoint_is_written_at_its_own_interval(
    make: Make, clock: FakeClock, tmp_path: Path, key: str, name: str
) -> None:
    manager = make(dirs=("a",), **{key: "2000"})
    log = new_log(manager, "t", 0, TopicConfig())
    log.append_as_leader(batch(b"a", b"b", b"c"), 0)
    manager.housekeep()
    log.high_watermark = 3
    log.flush()
    log.advance_log_start(2)
    written = {
        path.name: path.read_bytes()
        for path in (tmp_path / "a").glob("*-checkpoint")
        if path.name in (checkpoints.RECOVERY_POINTS, checkpoints.LOG_START_OFFSETS)
    }
    for _ in range(2):
        clock.advance(1000)
        manager.housekeep()
    changed = {
        one for one, before in written.items() if (tmp_path / "a" / one).read_bytes() != before
    }
    assert changed == {name}


@pytest.mark.parametrize(
    "name", [f"{10**19 * 9}.log", f"{10**22}.log", "7.log", f"{10**22}.log.swap", "x.log.swap"]
)
def test_a_file_that_no_broker_named_is_no_segment(make: Make, tmp_path: Path, name: str) -> None:
    first = make()
    new_log(first, "t", 0, TopicConfig()).append_as_leader(batch(b"a"), 0)
    crash(first)
    (tmp_path / "a" / "t-0" / name).write_bytes(b"mine")
    log = make().get("t", 0)
    assert log is not None
    log.append_as_leader(batch(b"b"), 0)
    assert [one.value for one in read_all(log)] == [b"a", b"b"]
    assert (tmp_path / "a" / "t-0" / name).read_bytes() == b"mine"


def test_a_folder_whose_partition_no_request_can_name_is_left_alone(
    make: Make, tmp_path: Path
) -> None:
    for number in (str(2**31), "9" * 200, "\u0663"):
        (tmp_path / "a" / f"t-{number}").mkdir(parents=True)
    (tmp_path / "a" / f"t-{2**31 - 1}").mkdir()
    assert list(make(dirs=("a",)).logs()) == [TopicPartition("t", 2**31 - 1)]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\0" * 40, b"0\n5\nt 0 1\n", b"0\n1\nt zero 1\n"),
        b"0\n%b\nt 0 1\n" % (b"9" * 5000),
    ],
)
def test_damaged_checkpoints_cost_a_scan_and_no_record(
    make: Make, tmp_path: Path, content: bytes
) -> None:
    manager = make(dirs=("a",))
    new_log(manager, "t", 0, TopicConfig()).append_as_leader(batch(b"a"), 0)
    manager.close()
    for name in (
        checkpoints.RECOVERY_POINTS,
        checkpoints.LOG_START_OFFSETS,
        checkpoints.HIGH_WATERMARKS,
    ):
        (tmp_path / "a" / name).write_bytes(content)
    log = make(dirs=("a",)).get("t", 0)
    assert log is not None
    assert [one.value for one in read_all(log)] == [b"a"]


def test_retention_runs_in_the_background(make: Make, clock: FakeClock) -> None:
    topic = TopicConfig(segment_bytes=200, retention_bytes=400, file_delete_delay_ms=1000)
    manager = make(topic=topic)
    log = new_log(manager, "t", 0, topic)
    for _ in range(20):
        log.append_as_leader(batch(b"x" * 50), 0)
    log.high_watermark = 10
    clock.advance(300_001)
    manager.housekeep()
    assert 0 < log.log_start_offset <= 10, "nothing above the high watermark goes"
    assert list(Path(log.directory).glob("*.deleted"))
    clock.advance(1001)
    manager.housekeep()
    assert not list(Path(log.directory).glob("*.deleted"))


def test_flush_messages_says_when_an_fsync_is_owed(make: Make) -> None:
    log = new_log(make(), "t", 0, TopicConfig(flush_messages=3))
    for expected in (False, False, True):
        log.append_as_leader(batch(b"1"), 0)
        assert log.flush_required is expected
    assert log.committable_end == 0
    log.flush()
    assert (log.recovery_point, log.committable_end, log.flush_required) == (3, 3, False)


@pytest.mark.parametrize("limit", [0, 1])
def test_every_record_owes_an_fsync_with_flush_messages(make: Make, limit: int) -> None:
    log = new_log(make(), "t", 0, TopicConfig(flush_messages=limit))
    assert not log.flush_required
    log.append_as_leader(batch(b"1"), 0)
    assert (log.flush_required, log.committable_end) == (True, 0)
    log.flush()
    assert (log.flush_required, log.committable_end) == (False, 1)


def test_what_a_crash_left_unflushed_is_flushed_at_the_start(make: Make) -> None:
    manager = make(dirs=("a",))
    new_log(manager, "t", 0, TopicConfig()).append_as_leader(batch(b"1", b"2"), 0)
    crash(manager)
    log = make(dirs=("a",), topic=TopicConfig(flush_messages=1)).get("t", 0)
    assert log is not None
    assert (log.recovery_point, log.committable_end) == (2, 2)


def test_rolled_segments_are_flushed_in_the_background(make: Make) -> None:
    topic = TopicConfig(segment_bytes=200)
    manager = make(topic=topic)
    log = new_log(manager, "t", 0, topic)
    for _ in range(10):
        log.append_as_leader(batch(b"x" * 50), 0)
    assert log.recovery_point == 0
    manager.housekeep()
    assert log.recovery_point == log.segments.active.base_offset > 0


def test_a_changed_topic_config_counts_at_once(make: Make) -> None:
    manager = make()
    log = new_log(manager, "t", 0, TopicConfig())
    manager.update_topic_configs({"t": TopicConfig(max_message_bytes=10)})
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(batch(b"a"), 0)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_closing_ends_a_compaction_that_would_take_for_ever(make: Make, tmp_path: Path) -> None:
    compacted = TopicConfig(cleanup_policy=("compact",), segment_bytes=300)
    manager = make(dirs=("a",), topic=compacted, log_cleaner_io_max_bytes_per_second="1")
    log = new_log(manager, "t", 0, compacted)
    for number in range(20):
        log.append_as_leader(batch(b"value %d" % number), 0)
    log.high_watermark = log.log_end_offset
    written = read_all(log)
    compaction = threading.Thread(target=manager.compact)
    compaction.start()
    while manager._compactor._throttle._free_at == 0:
        time.sleep(0.001)
    manager.close()
    compaction.join()
    assert (tmp_path / "a" / checkpoints.CLEAN_SHUTDOWN).exists()
    again = make(dirs=("a",), topic=compacted).get("t", 0)
    assert again is not None
    assert read_all(again) == written


def test_snapshots_of_deleted_segments_go_too(make: Make, clock: FakeClock) -> None:
    topic = TopicConfig(segment_bytes=200, retention_bytes=0)
    manager = make(topic=topic)
    log = new_log(manager, "t", 0, topic)
    for _ in range(20):
        log.append_as_leader(batch(b"x" * 50), 0)
    log.high_watermark = log.log_end_offset
    log.apply_retention()
    assert len(log.segments) == 1
    assert producers.snapshot_offsets(os.listdir(log.directory)) == [20]
