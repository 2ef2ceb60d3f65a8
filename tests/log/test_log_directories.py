"""Log directories: what survives a restart or a crash, and what is done in the background."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from odradek.log.manager import LogManager
from odradek.log.partition import checkpoints, producers
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition
from tests.log.conftest import Make
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
