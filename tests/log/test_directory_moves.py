"""Moves of logs between directories (KIP-113): what counts after a crash, and what is copied."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from odradek.config import TopicConfig
from odradek.log.directory import LogDirError
from odradek.log.manager import LogManager
from odradek.log.partition import checkpoints, future, topic_identity
from odradek.log.partition.log import Log
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import TopicPartition
from tests.log.conftest import COMPACTED, Make, dirty_log
from tests.support.logs import FakeClock, batch, new_log, read_all

KEY = TopicPartition("orders", 0)
SMALL = TopicConfig(segment_bytes=400)


class Crash(BaseException):
    """The process is gone."""


@dataclass
class Process:
    """Ends at the n-th change of a file or folder that is made while it is watched."""

    ends_at: int
    changes: int = 0
    _names: list[str] = field(
        default_factory=lambda: [
            "rename", "replace", "unlink", "mkdir", "fsync", "pwrite", "pwritev", "ftruncate",
        ]
    )  # fmt: skip

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patched:
            for name in self._names:
                patched.setattr(os, name, self._counting(getattr(os, name)))
            yield

    def _counting(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            self.changes += 1
            if self.changes >= self.ends_at:
                raise Crash
            return real(*arguments, **options)

        return call


def home(log: Log) -> str:
    return os.path.basename(os.path.dirname(log.directory))


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in read_all(log)]


def other(manager: LogManager, log: Log) -> str:
    """The directory that a log is not in."""
    mine = os.path.dirname(log.directory)
    return next(path for path in manager.online_directories if path != mine)


def begin(manager: LogManager, path: str | None = None, key: TopicPartition = KEY) -> Log:
    log = manager.get(*key)
    assert log is not None
    return manager.futures.create(key, log, path or other(manager, log), log.config)


def copy_all(manager: LogManager, key: TopicPartition = KEY) -> None:
    log, copy = manager.get(*key), manager.futures.get(key)
    assert log is not None
    assert copy is not None
    while future.copy(log, copy, 100) or copy.log_end_offset < log.log_end_offset:
        pass
    manager.futures.prepare(key, log)


def complete(manager: LogManager, key: TopicPartition = KEY) -> Log:
    copy_all(manager, key)
    done = manager.switch_to_future(key)
    assert done is not None
    manager.finish_switch(key, done)
    return done.log


def move(manager: LogManager, path: str | None = None, key: TopicPartition = KEY) -> Log:
    begin(manager, path, key)
    return complete(manager, key)


def folders(tmp_path: Path) -> list[str]:
    """Folders of partitions, those to be deleted not among them."""
    return sorted(
        f"{place}/{folder.name}"
        for place in ("a", "b")
        for folder in (tmp_path / place).iterdir()
        if folder.is_dir() and not folder.name.endswith("-delete")
    )


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


# -- what is found at the start -------------------------------------------------------------------


def crashed_between_the_renames(make: Make) -> tuple[Log, Log]:
    """The former and the present log; both folders have the partition's name."""
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"before"), 0)
    begin(manager)
    copy_all(manager)
    done = manager.switch_to_future(KEY)
    assert done is not None
    done.log.append_as_leader(batch(b"after"), 0)
    return done.former, done.log


def test_the_former_log_counts_if_it_was_in_use_after_the_move(make: Make, tmp_path: Path) -> None:
    former, _ = crashed_between_the_renames(make)
    # The broker ran without the new directory, became leader and took records.
    alone = make(dirs=("a",))
    log = alone.get(*KEY)
    assert log is not None
    log.assign_epoch(1)
    log.append_as_leader(batch(b"acknowledged"), 1)
    alone.close()
    found = make().get(*KEY)
    assert found is not None
    assert home(found) == home(former) == "a"
    assert values(found) == [b"before", b"acknowledged"]
    assert folders(tmp_path) == ["a/orders-0"]


def test_a_mark_stays_while_a_directory_is_away(make: Make, tmp_path: Path) -> None:
    """The former log may be there."""
    crashed_between_the_renames(make)
    (tmp_path / "a").rename(tmp_path / "away")
    (tmp_path / "a").write_text("no directory")
    without = make()
    log = without.get(*KEY)
    assert log is not None
    assert os.path.exists(os.path.join(log.directory, future.MARK))
    without.close()
    (tmp_path / "a").unlink()
    (tmp_path / "away").rename(tmp_path / "a")
    found = make().get(*KEY)
    assert found is not None
    assert values(found) == [b"before", b"after"]
    assert folders(tmp_path) == ["b/orders-0"]


def test_two_logs_without_a_mark_stop_the_start(make: Make) -> None:
    """Kafka leaves them like this, and does not start either."""
    _, present = crashed_between_the_renames(make)
    os.unlink(os.path.join(present.directory, future.MARK))
    with pytest.raises(LogDirError, match=r"orders-0 is in both .*/a and .*/b"):
        make()


def test_a_move_that_kafka_began_goes_on(make: Make, tmp_path: Path) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"value"), 0)
    manager.close()
    (tmp_path / "b" / f"orders-0.{'0a' * 16}-future").mkdir()
    again = make()
    assert values(complete(again)) == [b"value"]
    assert folders(tmp_path) == ["b/orders-0"]


def test_future_logs_that_contradict_each_other_go(make: Make, tmp_path: Path) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"value"), 0)
    manager.close()
    for place, digit in (("a", "1"), ("b", "2"), ("b", "3")):
        (tmp_path / place / f"orders-0.{digit * 32}-future").mkdir()
    again = make()
    assert again.futures.get(KEY) is None
    assert folders(tmp_path) == ["a/orders-0"]
    assert home(move(again)) == "b"


def test_a_future_log_follows_what_its_original_lost_in_a_crash(make: Make) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    for epoch, value in enumerate((b"kept", b"lost", b"lost too")):
        log.assign_epoch(epoch)
        log.append_as_leader(batch(value), epoch)
    begin(manager)
    copy_all(manager)
    manager.close()
    alone = make(dirs=("a",))
    shorter = alone.get(*KEY)
    assert shorter is not None
    shorter.truncate_to(1)
    shorter.assign_epoch(7)
    shorter.append_as_leader(batch(b"new"), 7)
    shorter.append_as_leader(batch(b"newer"), 7)
    alone.close()
    again = make()
    copy = again.futures.get(KEY)
    assert copy is not None
    assert values(copy) == [b"kept"]
    assert values(complete(again)) == [b"kept", b"new", b"newer"]


def test_a_future_log_whose_original_is_away_is_not_taken_for_it(
    make: Make, tmp_path: Path
) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"value"), 0)
    begin(manager)
    copy_all(manager)
    manager.close()
    (tmp_path / "a").rename(tmp_path / "away")
    (tmp_path / "a").write_text("no directory")
    without = make()
    assert without.get(*KEY) is None
    with pytest.raises(KafkaError):
        new_log(without, *KEY, SMALL, is_new=False)
    without.close()
    (tmp_path / "a").unlink()
    # The disk was replaced: the replica begins anew, as in Kafka, and its copy follows.
    anew = make()
    log = new_log(anew, *KEY, SMALL, is_new=False)
    log.assign_epoch(4)
    log.append_as_leader(batch(b"fetched again"), 4)
    copy = anew.futures.get(KEY)
    assert copy is not None
    future.agree(log, copy)
    assert values(complete(anew)) == [b"fetched again"]


def test_a_log_is_not_made_beside_its_future_log(make: Make, tmp_path: Path) -> None:
    make().close()
    copy = tmp_path / "b" / f"orders-0.{'0a' * 16}-future"
    copy.mkdir()
    manager = make()
    for partition in range(3):
        new_log(manager, "others", partition, SMALL)
    assert home(new_log(manager, *KEY, SMALL, is_new=False)) == "a"
    assert manager.futures.get(KEY) is not None
    manager.close()
    only = make(dirs=("b",))
    assert home(new_log(only, *KEY, SMALL, is_new=False)) == "b"
    assert only.futures.get(KEY) is None
    assert not copy.exists()


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
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"value"), 0)
    begin(manager)
    copy_all(manager)
    done = manager.switch_to_future(KEY)
    assert done is not None
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


def failing(*_: object, **__: object) -> int:
    raise OSError(errno.EIO, "Input/output error")


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
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"value"), 0)
    begin(manager)
    copy_all(manager)
    done = manager.switch_to_future(KEY)
    assert done is not None
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", failing_within("/a/", os.replace))
        manager.finish_switch(KEY, done)
    done.log.append_as_leader(batch(b"goes on"), 0)
    assert [os.path.basename(path) for path in manager.online_directories] == ["b"]
    manager.close()
    again = make().get(*KEY)
    assert again is not None
    assert values(again) == [b"value", b"goes on"]


def failing_within(place: str, real: Callable[..., object]) -> Callable[..., object]:
    def call(source: str, target: str) -> object:
        return failing() if place in source else real(source, target)

    return call


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
        manager.prefer(TopicPartition("t", partition), manager.online_directories[1])
    logs = [new_log(manager, "t", partition, SMALL) for partition in range(3)]
    assert [home(log) for log in logs] == ["b"] * 3
    assert home(new_log(manager, "t", 3, SMALL)) == "a"
