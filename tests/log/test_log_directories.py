"""Log directories: who owns them, what survives, and what happens when one of them fails."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek import config as configuration
from odradek.config import TopicConfig
from odradek.log import checkpoints, files, producers
from odradek.log.directory import Directory, LogDirError
from odradek.log.manager import LogManager, NewLog
from odradek.log.reading import Surroundings
from odradek.log.segment import Segment
from odradek.protocol.errors import ErrorCode, KafkaError
from tests.support.logs import FakeClock, batch, new_log, read_all

Make = Callable[..., LogManager]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, clock: FakeClock, failures: list[str]) -> Iterator[Make]:
    """Start a manager on folders `a` and `b`; whatever a test leaves open is closed."""
    made: list[LogManager] = []

    def start(
        broker_id: int = 1,
        cluster: str = "cluster",
        topic: TopicConfig | None = None,
        load: bool = True,
        dirs: tuple[str, ...] = ("a", "b"),
        **more: str,
    ) -> LogManager:
        settings, _ = configuration.from_values(
            {
                "broker.id": str(broker_id),
                "zookeeper.connect": "unused",
                "log.dirs": ",".join(str(tmp_path / name) for name in dirs),
                **{name.replace("_", "."): value for name, value in more.items()},
            }
        )
        manager = LogManager(
            settings,
            cluster,
            lambda name: topic or TopicConfig(),
            on_dir_failure=lambda path, error: failures.append(path),
            surroundings=Surroundings(now_ms=clock.now_ms, monotonic=clock.monotonic),
        )
        made.append(manager)
        if load:
            manager.load()
        return manager

    yield start
    for manager in made:
        manager.close()


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
        log = second.get("t", partition)
        assert log is not None
        assert [one.value for one in read_all(log)] == [b"%d" % partition]
        assert log.latest_epoch == 3


def test_appended_records_survive_a_crash(make: Make) -> None:
    first = make()
    log = new_log(first, "t", 0, TopicConfig())
    for number in range(50):
        log.append_as_leader(batch(b"%d" % number), 0)
    crash(first)
    log = make().get("t", 0)  # type: ignore[assignment]
    assert [one.value for one in read_all(log)] == [b"%d" % number for number in range(50)]


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


def test_unreadable_ownership_refuses_the_start(make: Make, tmp_path: Path) -> None:
    make().close()
    (tmp_path / "a" / "meta.properties").write_bytes(b"\xff\xfe")
    with pytest.raises(LogDirError, match="who owns"):
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


async def test_a_deleted_partition_is_gone_at_once_and_its_files_later(
    make: Make, tmp_path: Path, clock: FakeClock
) -> None:
    manager = make(dirs=("a",))
    log = new_log(manager, "t", 0, TopicConfig())
    log.append_as_leader(batch(b"old"), 0)
    region = log.read(0, 100).region
    assert not await manager.delete([("t", 0)])
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


async def test_partitions_made_and_deleted_together_wait_for_the_disk_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    synced: list[str] = []
    monkeypatch.setattr(Directory, "sync_names", lambda self: synced.append(self.path))
    keys = [("t", partition) for partition in range(20)]
    assert not await manager.create_missing(dict.fromkeys(keys, NewLog(TopicConfig())))
    assert sorted(manager.logs()) == keys
    assert sorted(synced) == manager.online_directories
    synced.clear()
    assert not await manager.delete(keys)
    assert not manager.logs()
    assert sorted(synced) == manager.online_directories


async def test_a_partition_that_cannot_be_made_takes_its_directory_only(
    make: Make, tmp_path: Path
) -> None:
    manager = make()
    (tmp_path / "a" / "t-0").write_bytes(b"in the way")
    keys = [("t", partition) for partition in range(3)]
    refused = await manager.create_missing(dict.fromkeys(keys, NewLog(TopicConfig())))
    assert {key: refusal.code for key, refusal in refused.items()} == {
        ("t", 0): ErrorCode.KAFKA_STORAGE_ERROR
    }
    assert [os.path.dirname(log.directory) for log in manager.logs().values()] == [
        str(tmp_path / "b")
    ] * 2


def test_a_partition_deleted_under_a_flush_does_not_fail_its_directory(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(dirs=("a",))
    log = new_log(manager, "t", 0, TopicConfig())
    log.append_as_leader(batch(b"old"), 0)
    flush_epochs = log.epochs.flush

    def deleted_meanwhile() -> None:
        assert not manager.remove([("t", 0)])
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


def test_a_partition_inherits_nothing_from_a_deleted_one_of_its_name(
    make: Make, tmp_path: Path
) -> None:
    compacted = TopicConfig(cleanup_policy=("compact",), segment_bytes=300)
    manager = make(dirs=("a",), topic=compacted)
    log = new_log(manager, "t", 0, compacted)
    for number in range(20):
        log.append_as_leader(batch(b"value %d" % number), 0)
    log.high_watermark = log.log_end_offset
    log.flush()
    assert manager.compact()
    manager.save_high_watermarks({("t", 0): 20})
    manager.housekeep()
    names = checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS, checkpoints.CLEANER_OFFSETS
    found = [str(tmp_path / "a" / name) for name in names]
    assert all(checkpoints.read_offsets(path) for path in found)
    assert not manager.remove([("t", 0)])
    assert [checkpoints.read_offsets(path) for path in found] == [{}] * 3


def test_no_work_on_a_deleted_log_touches_a_new_one_of_its_name(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(dirs=("a",))
    log = new_log(manager, "t", 0, TopicConfig(retention_bytes=0))
    log.append_as_leader(batch(b"old"), 0)
    log.high_watermark = 1
    assert not manager.remove([("t", 0)])
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
        lambda: log.read(0, 100),
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
    assert not manager.remove([("t", 0)])
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
    manager.save_high_watermarks({("t", 0): 2, ("t", 1): 3})
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
        log.read(1, 100)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert [one.value for one in read_all(log)] == [b"c"]


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


@pytest.mark.parametrize("content", [b"", b"\0" * 40, b"0\n5\nt 0 1\n", b"0\n1\nt zero 1\n"])
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


def failing(error: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    return fail


def test_a_failed_write_leaves_no_torn_bytes_and_fails_its_directory_only(
    make: Make, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    bad, good = (new_log(manager, "t", number, TopicConfig()) for number in range(2))
    bad.append_as_leader(batch(b"kept"), 0)
    size = os.stat(bad.active.log.path).st_size

    def half(fd: int, buffers: list[bytes], position: int) -> int:
        os.pwrite(fd, b"torn", position)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", half)
        with pytest.raises(KafkaError) as caught:
            bad.append_as_leader(batch(b"lost"), 0)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert os.stat(bad.active.log.path).st_size == size
    assert failures == [os.path.dirname(bad.directory)]
    for work in (lambda: bad.append_as_leader(batch(b"x"), 0), lambda: bad.read(0, 100)):
        with pytest.raises(KafkaError) as caught:
            work()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    good.append_as_leader(batch(b"fine"), 0)
    assert [one.value for one in read_all(good)] == [b"fine"]
    assert new_log(manager, "t", 9, TopicConfig()).directory.startswith(
        os.path.dirname(good.directory)
    )
    manager.close()
    assert not os.path.exists(os.path.join(failures[0], ".kafka_cleanshutdown"))
    again = make().get("t", 0)
    assert again is not None
    assert [one.value for one in read_all(again)] == [b"kept"]


def test_a_short_write_is_continued(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(make(), "t", 0, TopicConfig())
    whole = os.pwritev

    def short(fd: int, buffers: list[bytes], position: int) -> int:
        return whole(fd, [memoryview(b"".join(buffers))[:5]], position)

    monkeypatch.setattr(os, "pwritev", short)
    log.append_as_leader(batch(b"value"), 0)
    assert [one.value for one in read_all(log)] == [b"value"]


def test_a_failed_fsync_is_never_retried_as_success(
    make: Make, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(dirs=("a",))
    log = new_log(manager, "t", 0, TopicConfig())
    log.append_as_leader(batch(b"a"), 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing(5))
        with pytest.raises(KafkaError):
            log.flush()
    assert failures == [os.path.dirname(log.directory)]
    with pytest.raises(KafkaError) as caught:
        log.flush()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.recovery_point == 0


def test_running_out_of_descriptors_is_not_the_disks_fault(
    make: Make, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(make(), "t", 0, TopicConfig())
    log.append_as_leader(batch(b"a"), 0)
    log.release_idle()
    log.release_idle()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing(24))
        with pytest.raises(KafkaError):
            log.append_as_leader(batch(b"b"), 0)
    assert failures == []
    log.append_as_leader(batch(b"c"), 0)
    assert [one.value for one in read_all(log)] == [b"a", b"c"]


def test_no_background_work_takes_a_directory_offline_for_want_of_descriptors(
    make: Make,
    clock: FakeClock,
    failures: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compacted = TopicConfig(cleanup_policy=("compact",), segment_bytes=300)
    manager = make(dirs=("a",), topic=compacted)
    log = new_log(manager, "t", 0, compacted)
    for number in range(20):
        log.append_as_leader(batch(b"value %d" % number), 0)
    log.high_watermark = log.log_end_offset
    doomed = new_log(manager, "doomed", 0, TopicConfig(file_delete_delay_ms=0))
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing(24))
        patched.setattr(os, "scandir", failing(24))
        with pytest.raises(KafkaError):
            new_log(manager, "new", 0, TopicConfig())
        assert not manager.remove([("doomed", 0)])
        assert not os.path.exists(doomed.directory)
        manager.save_high_watermarks({})
        clock.advance(3_600_000)
        manager.housekeep()
        assert not manager.compact()
        patched.setattr(checkpoints, "read_offsets", failing(24))
        assert not manager.compact()
    assert failures == []
    assert new_log(manager, "new", 0, TopicConfig()).log_end_offset == 0
    assert manager.compact()
    clock.advance(3_600_000)
    manager.housekeep()
    left = sorted(path.name for path in Path(log.directory).parent.iterdir() if path.is_dir())
    assert left == ["new-0", "t-0"]


def test_cut_that_cannot_be_noted_takes_the_directory_offline(
    make: Make, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(make(dirs=("a",)), "t", 0, TopicConfig())
    for _ in range(4):
        log.append_as_leader(batch(b"value"), 0)
    log.flush()
    with monkeypatch.context() as patched, contextlib.suppress(KafkaError):
        patched.setattr(os, "open", failing(24))
        log.truncate_to(2)
    assert failures == [os.path.dirname(log.directory)]


def test_flush_messages_says_when_an_fsync_is_owed(make: Make) -> None:
    log = new_log(make(), "t", 0, TopicConfig(flush_messages=3))
    for expected in (False, False, True):
        log.append_as_leader(batch(b"1"), 0)
        assert log.owes_flush is expected
    assert log.committable_end == 0
    log.flush()
    assert (log.recovery_point, log.committable_end, log.owes_flush) == (3, 3, False)


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
    assert log.recovery_point == log.active.base_offset > 0


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


def test_no_partition_is_remade_while_a_directory_that_may_hold_it_is_offline(
    make: Make, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"a file where a directory should be")
    manager = make()
    assert manager.online_directories == [str(tmp_path / "b")]
    with pytest.raises(KafkaError) as caught:
        new_log(manager, "t", 0, TopicConfig(), is_new=False)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert new_log(manager, "t", 0, TopicConfig(), is_new=True).log_end_offset == 0


def test_no_usable_directory_refuses_the_start(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(LogDirError, match=r"none of log\.dirs"):
        make(dirs=("a",))


def test_directories_that_fail_while_they_are_loaded(make: Make, tmp_path: Path) -> None:
    manager = make()
    for number in range(2):
        new_log(manager, "t", number, TopicConfig())
    manager.close()
    spoil(tmp_path / "a")
    manager = make()
    assert manager.online_directories == [str(tmp_path / "b")]
    manager.close()
    spoil(tmp_path / "b")
    with pytest.raises(LogDirError, match=r"none of log\.dirs"):
        make()


def spoil(directory: Path) -> None:
    """Have the log that is in the directory fail when it is opened."""
    (log,) = directory.glob("t-*/*.log")
    log.unlink()
    log.mkdir()


def test_atomic_writes_leave_the_old_file_when_they_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "file")
    files.write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", failing(5))
    with pytest.raises(OSError, match="Input/output"):
        files.write_atomically(path, b"new")
    assert Path(path).read_bytes() == b"old"


def test_snapshots_of_deleted_segments_go_too(make: Make, clock: FakeClock) -> None:
    topic = TopicConfig(segment_bytes=200, retention_bytes=0)
    manager = make(topic=topic)
    log = new_log(manager, "t", 0, topic)
    for _ in range(20):
        log.append_as_leader(batch(b"x" * 50), 0)
    log.high_watermark = log.log_end_offset
    log.apply_retention()
    assert len(log.segments) == 1
    assert producers.list_snapshots(log.directory) == [20]
