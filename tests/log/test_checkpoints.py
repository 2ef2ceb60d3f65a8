"""The checkpoint files of a log directory: when they are written, and what is damaged in them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from odradek.log.partition import checkpoints
from odradek.log.partition.epochs import FILE_NAME as EPOCHS
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition
from tests.log.conftest import Make
from tests.support.logs import FakeClock, batch, new_log, read_all


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


def test_an_offset_that_no_answer_can_hold_damages_its_checkpoint(tmp_path: Path) -> None:
    path = str(tmp_path / checkpoints.LOG_START_OFFSETS)
    largest = {TopicPartition("t", 0): 2**63 - 1}
    checkpoints.write_offsets(path, largest)
    assert checkpoints.read_offsets(path) == largest
    checkpoints.write_offsets(path, {TopicPartition("t", 0): 2**63})
    with pytest.raises(checkpoints.CorruptCheckpointError):
        checkpoints.read_offsets(path)


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
