"""Moves of logs between directories (KIP-113): what is copied, and how a move ends."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from odradek.log.manager import NewLog
from odradek.log.partition import checkpoints, future, topic_identity
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition
from tests.log.conftest import COMPACTED, Make, dirty_log
from tests.log.moves import (
    KEY,
    SMALL,
    Crash,
    Process,
    begin,
    complete,
    copy_all,
    failing,
    failing_within,
    folders,
    home,
    move,
    switched,
    values,
)
from tests.support.logs import FakeClock, batch, new_log, read_all


def test_the_log_is_complete_in_its_new_directory_and_gone_from_the_old(
    make: Make, tmp_path: Path, clock: FakeClock
) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.assign_epoch(3)
    for number in range(20):
        log.append_as_leader(batch(b"value %d" % number, producer_id=7, base_sequence=number), 3)
    log.high_watermark = 15
    log.advance_log_start(7)
    log.apply_retention()
    log.assign_epoch(5)
    former = log.directory
    moved = move(manager)
    assert manager.get(*KEY) is moved
    assert manager.futures.get(KEY) is None
    assert (home(log), home(moved)) == ("a", "b")
    assert moved.log_start_offset == 7
    assert moved.high_watermark == 15
    assert moved.epochs.entries == log.epochs.entries
    assert moved.epochs.entries[-1] == (5, 20)
    assert values(moved) == [b"value %d" % number for number in range(7, 20)]
    assert moved.append_as_leader(
        batch(b"value 19", producer_id=7, base_sequence=19), 5
    ).duplicate, "the producer is known"
    moved.append_as_leader(batch(b"value 20", producer_id=7, base_sequence=20), 5)
    assert folders(tmp_path) == ["b/orders-0"]
    assert not os.path.exists(former)
    clock.advance(log.config.file_delete_delay_ms)
    manager.housekeep()
    assert not any(each.is_dir() for each in (tmp_path / "a").iterdir())
    manager.close()
    again = make().get(*KEY)
    assert again is not None
    assert values(again)[-1] == b"value 20"
    assert (home(again), again.log_start_offset) == ("b", 7)


def test_housekeeping_goes_on_in_the_new_directory(make: Make, clock: FakeClock) -> None:
    config = TopicConfig(flush_ms=5000)
    manager = make(topic=config)
    new_log(manager, *KEY, config).append_as_leader(batch(b"a"), 0)
    manager.housekeep()
    moved = move(manager)
    manager.housekeep()
    moved.append_as_leader(batch(b"b"), 0)
    clock.advance(5000)
    manager.housekeep()
    assert moved.recovery_point == 2


def test_nothing_is_lost_at_whatever_change_of_a_file_the_process_ends(
    make: Make, tmp_path: Path, without_fsync: None
) -> None:
    survived: set[tuple[str, ...]] = set()
    for ends_at in range(1, 10_000):
        names = tuple(str(tmp_path / str(ends_at) / place) for place in "ab")
        manager = make(dirs=names)
        log = new_log(manager, *KEY, SMALL)
        written = [b"value %d" % number for number in range(6)]
        log.append_as_leader(batch(*written), 0)
        process = Process(ends_at)
        try:
            with process.watched():
                begin(manager)
                copy_all(manager)
                log.append_as_leader(batch(b"in between"), 0)
                written.append(b"in between")
                copy_all(manager)
                done = manager.switch_to_future(KEY)
                assert done is not None
                done.log.append_as_leader(batch(b"after"), 0)
                written.append(b"after")
                manager.finish_switch(KEY, done)
        except Crash:
            ended = False
        else:
            ended = True
        again = make(dirs=names)
        reopened = again.get(*KEY)
        assert reopened is not None, f"change {ends_at}"
        assert values(reopened)[: len(written)] == written, f"change {ends_at}"
        survived.add((os.path.basename(os.path.dirname(reopened.directory)),))
        copy = again.futures.get(KEY)
        if copy is not None:
            assert complete(again) is copy
            assert values(copy)[: len(written)] == written
        current = again.get(*KEY)
        assert current is not None
        current.append_as_leader(batch(b"later"), 0)
        left = [
            folder.name
            for place in names
            for folder in Path(place).iterdir()
            if folder.is_dir() and not folder.name.endswith("-delete")
        ]
        assert left == ["orders-0"], f"change {ends_at}"
        assert not os.path.exists(os.path.join(current.directory, future.MARK))
        if ended:
            break
    assert ended
    assert survived == {("a",), ("b",)}


# -- what happens meanwhile -----------------------------------------------------------------------


def test_the_copy_follows_truncations(make: Make) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    for number in range(10):
        log.append_as_leader(batch(b"value %d" % number), 0)
    begin(manager)
    copy_all(manager)
    log.truncate_to(4)
    log.append_as_leader(batch(b"other"), 0)
    log.truncate_to(8)  # nothing: the lowest counts
    for number in range(10):
        log.append_as_leader(batch(b"other %d" % number), 0)
    assert manager.switch_to_future(KEY) is None
    written = values(log)
    assert values(complete(manager)) == written
    assert written[3:6] == [b"value 3", b"other", b"other 0"]


def test_what_a_flush_made_durable_after_the_switch_is_found_by_its_name(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power failure would bring the former log back."""
    _, done = switched(make)
    done.log.append_as_leader(batch(b"after"), 0)
    synced: list[str] = []
    real = os.fsync

    def sync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    done.log.flush()
    assert os.path.dirname(done.log.directory) in synced
    synced.clear()
    done.log.append_as_leader(batch(b"later"), 0)
    done.log.flush()
    assert os.path.dirname(done.log.directory) not in synced


def test_the_copy_starts_over_with_its_original(make: Make) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"a", b"b", b"c"), 0)
    copy = begin(manager)
    copy_all(manager)
    log.truncate_fully_and_start_at(50)
    log.append_as_leader(batch(b"d"), 0)
    assert values(complete(manager)) == [b"d"]
    assert (copy.log_start_offset, copy.log_end_offset) == (50, 51)


def test_a_switch_waits_for_what_the_original_is_sure_to_keep(make: Make) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"a", b"b"), 0)
    copy = begin(manager)
    future.copy(log, copy, 1000)
    log.flush()
    assert manager.switch_to_future(KEY) is None, "the copy is not on the disk"
    copy.flush()
    log.high_watermark = 2
    log.advance_log_start(1)
    manager._home_of(log).write_start_offsets()
    assert log.durable_log_start == 1
    assert manager.switch_to_future(KEY) is None, "a crash would bring deleted records back"
    assert complete(manager).durable_log_start == 1


def test_the_folder_tells_the_topic_as_before(make: Make) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    told = Path(log.directory) / topic_identity.FILE_NAME
    told.write_bytes(b"version: 0\ntopic_id: first")
    begin(manager)
    copy_all(manager)
    told.write_bytes(b"version: 0\ntopic_id: second")
    assert manager.switch_to_future(KEY) is None, "written meanwhile"
    moved = complete(manager)
    assert (Path(moved.directory) / topic_identity.FILE_NAME).read_bytes().endswith(b"second")


@pytest.mark.parametrize("had_former", [False, True])
def test_the_folder_tells_as_before_whether_a_former_topic_had_the_name(
    make: Make, had_former: bool
) -> None:
    manager = make()
    assert not manager.make_missing({KEY: NewLog(SMALL, had_former=had_former)})
    moved = move(manager)
    assert (moved.read_file(topic_identity.FORMER_MARK) is not None) == had_former


def test_a_switch_waits_for_a_flush(make: Make) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"a"), 0)
    begin(manager)
    copy_all(manager)
    with log.held() as holding:
        assert holding
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(manager.switch_to_future, KEY).result(30) is None
    assert complete(manager).log_end_offset == 1


def test_what_was_cleaned_while_the_copy_was_away_is_cleaned_again(
    make: Make, tmp_path: Path
) -> None:
    settings = {"log_cleaner_min_cleanable_ratio": "0.01"}
    manager = make(topic=COMPACTED, **settings)
    dirty_log(manager, "orders")
    begin(manager)
    copy_all(manager)
    manager.close()
    alone = make(topic=COMPACTED, dirs=("a",), **settings)
    log = alone.get(*KEY)
    assert log is not None
    log.high_watermark = log.log_end_offset
    assert alone.compact()
    alone.close()
    again = make(topic=COMPACTED, **settings)
    moved = complete(again)
    assert len(values(moved)) == 20
    moved.high_watermark = moved.log_end_offset
    assert again.compact()
    assert len(values(moved)) < 15


def test_compaction_waits_for_the_move_and_goes_on_where_it_was(make: Make) -> None:
    manager = make(topic=COMPACTED, log_cleaner_min_cleanable_ratio="0.01")
    log = dirty_log(manager, "orders")
    assert manager.compact()
    cleaned = manager._home_of(log).checkpoint(checkpoints.CLEANER_OFFSETS)[KEY]
    assert cleaned > 0
    for number in range(20):
        log.append_as_leader(batch(b"more %d" % number, key=b"key"), 0)
    log.high_watermark = log.log_end_offset
    begin(manager)
    assert not manager.compact(), "it would make the copy and the original differ"
    former = manager._home_of(log)
    moved = complete(manager)
    assert manager._home_of(moved).checkpoint(checkpoints.CLEANER_OFFSETS)[KEY] == cleaned
    assert KEY not in former.checkpoint(checkpoints.CLEANER_OFFSETS)
    assert manager.compact()
    assert len(values(moved)) < 15


def test_a_log_that_ends_with_a_hole_is_copied_to_its_end(make: Make) -> None:
    manager = make(topic=COMPACTED)
    log = dirty_log(manager, "orders")
    manager.compact()
    end = log.segments.bases[1]
    for offset in range(end - 1, 0, -1):
        if all(record.offset != offset for record in read_all(log)):
            break
    log.truncate_to(offset + 1)
    assert log.log_end_offset == offset + 1
    assert all(record.offset < offset for record in read_all(log))
    moved = move(manager)
    assert moved.log_end_offset == offset + 1
    assert moved.append_as_leader(batch(b"x"), 0).base_offset == offset + 1
    manager.close()
    again = make(topic=COMPACTED).get(*KEY)
    assert again is not None
    assert again.log_end_offset == offset + 2


def test_a_moved_log_moves_back(make: Make, tmp_path: Path) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    for number in range(10):
        log.append_as_leader(batch(b"value %d" % number), 0)
    assert home(move(manager)) == "b"
    back = move(manager)
    assert home(back) == "a"
    assert len(values(back)) == 10
    assert folders(tmp_path) == ["a/orders-0"]


def test_old_message_formats_are_copied(make: Make) -> None:
    old = TopicConfig(message_format_version="0.10.0", segment_bytes=400)
    manager = make(topic=old)
    log = new_log(manager, *KEY, old)
    for number in range(5):
        log.append_as_leader(batch(b"value %d" % number), 0)
    end, size = log.log_end_offset, log.segments.size
    moved = move(manager)
    assert (moved.log_end_offset, moved.segments.size) == (end, size)


# -- ends -----------------------------------------------------------------------------------------


def test_a_failed_target_costs_the_copy_only(
    make: Make, tmp_path: Path, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"value"), 0)
    copy = begin(manager)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        future.copy(log, copy, 1000)
        with pytest.raises(KafkaError) as caught:
            copy.flush()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert failures == [os.path.dirname(copy.directory)]
    assert manager.futures.drop_failed() == [KEY]
    log.append_as_leader(batch(b"goes on"), 0)
    with pytest.raises(KafkaError, match="are offline") as caught:
        begin(manager, copy.directory)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    manager.close()
    # With the disk back, the move goes on, as in Kafka.
    assert values(complete(make())) == [b"value", b"goes on"]


def test_a_failed_rename_leaves_the_original_in_charge(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"value"), 0)
    begin(manager)
    copy_all(manager)
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", failing)
        with pytest.raises(KafkaError):
            manager.switch_to_future(KEY)
    assert manager.get(*KEY) is log
    log.append_as_leader(batch(b"goes on"), 0)
    assert values(log) == [b"value", b"goes on"]


def test_a_source_that_fails_after_the_switch_does_not_take_the_log_along(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, done = switched(make)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", failing_within("/a/", os.replace))
        manager.finish_switch(KEY, done)
    done.log.append_as_leader(batch(b"goes on"), 0)
    assert [os.path.basename(path) for path in manager.online_directories] == ["b"]
    manager.close()
    again = make().get(*KEY)
    assert again is not None
    assert values(again) == [b"value", b"goes on"]


def test_a_deleted_partition_takes_its_copy_along(make: Make, tmp_path: Path) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"value"), 0)
    copy = begin(manager)
    assert manager.remove([KEY]) == {}
    assert folders(tmp_path) == []
    assert manager.futures.get(KEY) is None
    with pytest.raises(KafkaError):
        future.copy(log, copy, 1000)


def test_a_cancelled_move_leaves_nothing(make: Make, tmp_path: Path) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"value"), 0)
    begin(manager)
    assert manager.futures.discard([KEY]) == {}
    assert folders(tmp_path) == ["a/orders-0"]
    assert home(move(manager)) == "b"


def test_a_log_to_come_is_made_in_the_directory_that_was_asked_for(make: Make) -> None:
    manager = make()
    for partition in range(3):
        manager.placement.prefer(TopicPartition("t", partition), manager.online_directories[1])
    logs = [new_log(manager, "t", partition, SMALL) for partition in range(3)]
    assert [home(log) for log in logs] == ["b"] * 3
    assert home(new_log(manager, "t", 3, SMALL)) == "a"
