"""Which logs are compacted, how many at once, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odradek import config_loading
from odradek.config import MOST_THREADS
from odradek.log.manager import LogManager
from odradek.log.partition import checkpoints, cleaner
from odradek.log.partition.log import Log
from odradek.log.records import compression, legacy, records
from odradek.log.segment import batch_file, files
from odradek.log.segment.files import read_exactly
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition
from tests.log.conftest import COMPACTED, Make, dirty_log
from tests.support.logs import batch, new_log, read_all


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[LogManager] = []

    def start(**settings: str) -> LogManager:
        values = {name.replace("_", "."): text for name, text in settings.items()}
        values |= {"broker.id": "1", "zookeeper.connect": "unused", "log.dirs": str(tmp_path)}
        manager = LogManager(config_loading.from_values(values)[0], "cluster", lambda _: COMPACTED)
        made.append(manager)
        manager.load()
        return manager

    yield start
    for manager in made:
        manager.close()


def values(log: Log) -> int:
    return len(read_all(log))


def test_each_thread_is_at_a_log_of_its_own(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make(log_cleaner_threads="2")
    logs = [dirty_log(manager, topic) for topic in "ab"]
    together = threading.Barrier(2, timeout=120)
    clean, cleaned = cleaner.clean, []

    def meet(log: Log, *rest: object) -> int:
        together.wait()
        cleaned.append(log)
        return clean(log, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(cleaner, "clean", meet)
    threads = [threading.Thread(target=manager.compact) for _ in logs]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert set(cleaned) == set(logs)
    assert all(values(log) < 20 for log in logs)
    assert not manager.compact()


def cleaners() -> int:
    return sum(task.get_name().startswith("cleaner") for task in asyncio.all_tasks())


async def test_there_are_as_many_cleaners_as_the_setting_says(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(log_cleaner_backoff_ms="1")
    two, three = (threading.Barrier(count, timeout=120) for count in (2, 3))
    meeting = [two, three]

    def meet() -> bool:
        if meeting:
            place = meeting[0]
            place.wait()
            meeting[:] = [one for one in meeting if one is not place]
        return False

    async def until(claim: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not claim():
                await asyncio.sleep(0.001)

    monkeypatch.setattr(manager._compactor, "compact", meet)
    running = asyncio.create_task(manager.run())
    await until(lambda: cleaners() == 1)
    for threads, left in ((2, 1), (3, 0)):
        manager.reconfigure(replace(manager.config, log_cleaner_threads=threads))
        await until(lambda left=left: len(meeting) == left)  # type: ignore[misc]
    manager.reconfigure(replace(manager.config, log_cleaner_threads=1))
    await until(lambda: cleaners() == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_any_number_of_threads_in_settings_is_harmless(make: Make) -> None:
    huge = "1000000"
    manager = make(
        log_cleaner_threads="100",  # Kafka refuses more than its buffer is enough for
        num_io_threads=huge,
        num_recovery_threads_per_data_dir=huge,
        num_replica_alter_log_dirs_threads=huge,
    )
    assert manager.readers._threads == MOST_THREADS
    assert manager.disk._threads == 2 * MOST_THREADS + 4
    assert manager._compactor._max_keys > 1, "each has a share of the buffer"
    running = asyncio.create_task(manager.run())
    async with asyncio.timeout(120):
        while not cleaners():
            await asyncio.sleep(0)
    assert cleaners() == MOST_THREADS
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_work_goes_on_while_a_pool_changes_its_size() -> None:
    pool = files.DiskThreads(1)
    holding, later = threading.Event(), threading.Event()
    held = asyncio.create_task(pool.run(holding.wait, 120))
    queued = asyncio.create_task(pool.run(later.set))
    await asyncio.sleep(0)
    pool.resize(2)
    assert await pool.run(lambda: "new") == "new", "it does not wait for the former threads"
    assert not later.is_set()
    holding.set()
    assert await held
    await queued
    pool.resize(1)
    pool.close()


def test_retention_does_not_wait_for_a_compaction(make: Make) -> None:
    manager = make(log_cleaner_io_max_bytes_per_second="1")
    compacted = dirty_log(manager, "a")
    short = dirty_log(manager, "b", TopicConfig(segment_bytes=300, retention_bytes=300))
    compaction = threading.Thread(target=manager.compact)
    compaction.start()
    manager.housekeep()
    assert short.log_start_offset > 0
    assert compaction.is_alive()
    manager.close()
    compaction.join()
    assert compacted.closed


def test_log_that_cannot_be_compacted_keeps_no_other_one_waiting(make: Make) -> None:
    manager = make()
    damaged, sound = dirty_log(manager, "a"), dirty_log(manager, "b")
    segment = Path(damaged.segments[0].log.path)
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    while manager.compact():
        pass
    assert values(sound) < 20
    assert segment.read_bytes() == content


def meddle_in(monkeypatch: pytest.MonkeyPatch, at_batch: int, meddle: Callable[[], object]) -> None:
    """Have `meddle` called once, when a compaction copies its n-th batch."""
    whole, copied = cleaner._filter, iter(range(1000))

    def copy(*args: Any, **named: Any) -> object:
        if next(copied) == at_batch:
            meddle()
        return whole(*args, **named)

    monkeypatch.setattr(cleaner, "_filter", copy)


@pytest.mark.parametrize("drop", ["retention", "truncation"])
def test_segment_that_goes_under_its_compaction_is_no_failure_of_the_disk(
    make: Make, monkeypatch: pytest.MonkeyPatch, drop: str
) -> None:
    manager = make()
    config = TopicConfig(
        cleanup_policy=("compact", "delete"),
        segment_bytes=300,
        retention_bytes=300,
        file_delete_delay_ms=0,
    )
    log = dirty_log(manager, "a", config)

    def go() -> None:
        if drop == "truncation":
            log.truncate_fully_and_start_at(500)
        else:
            assert log.apply_retention()
            log.delete_due()

    meddle_in(monkeypatch, 1, go)
    assert manager.compact()
    assert manager.online_directories
    assert not list(Path(log.directory).glob("*.cleaned"))
    log.append_as_leader(batch(b"more"), 0)


def first_dirty(log: Log) -> int:
    """Where the checkpoint says that the dirty part begins."""
    path = Path(log.directory).parent / checkpoints.CLEANER_OFFSETS
    return checkpoints.read_offsets(str(path)).get(TopicPartition(log.topic, log.partition), 0)


def test_what_retention_kept_from_being_compacted_does_not_count_as_clean(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    log = dirty_log(manager, "a")

    def drop_oldest() -> None:
        log.advance_log_start(log.segments[1].base_offset)
        assert log.apply_retention() == 1

    meddle_in(monkeypatch, 1, drop_oldest)
    assert manager.compact()
    assert first_dirty(log) == 0
    assert manager.compact()
    assert first_dirty(log) == log.segments.active.base_offset
    assert all(segment.size == 0 for segment in log.segments[:-2])


def test_what_was_cut_behind_a_compaction_does_not_count_as_clean(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    log = dirty_log(manager, "a")
    clean = cleaner.clean

    def clean_and_cut(log: Log, *rest: Any) -> int:
        end = clean(log, *rest)
        log.truncate_to(log.segments[1].base_offset)
        return end

    monkeypatch.setattr(cleaner, "clean", clean_and_cut)
    assert manager.compact()
    assert log.log_end_offset < 10
    assert first_dirty(log) == 0


def test_compaction_of_a_deleted_log_says_nothing_of_a_new_one_of_its_name(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    dirty_log(manager, "a")
    clean = cleaner.clean

    def clean_and_delete(log: Log, *rest: Any) -> int:
        end = clean(log, *rest)
        assert not manager.remove([TopicPartition("a", 0)])
        new_log(manager, "a", 0, COMPACTED)
        return end

    monkeypatch.setattr(cleaner, "clean", clean_and_delete)
    assert manager.compact()
    log = manager.get("a", 0)
    assert log is not None
    assert first_dirty(log) == 0


def test_compaction_of_a_deleted_log_leaves_the_files_of_a_new_one_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    folder = Path(dirty_log(manager, "a").directory)
    other = folder / "00000000000000000000.log.cleaned"

    def delete_and_make() -> None:
        assert not manager.remove([TopicPartition("a", 0)])
        new_log(manager, "a", 0, COMPACTED)
        other.touch()

    meddle_in(monkeypatch, 1, delete_and_make)
    assert manager.compact()
    assert other.exists()
    assert manager.online_directories


def test_compaction_takes_nothing_that_was_written_to_a_segment_after_a_cut(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    log = dirty_log(manager, "a")
    closed, following, *_ = log.segments

    def cut_and_write() -> None:
        log.truncate_to(following.base_offset)
        log.config = replace(COMPACTED, segment_bytes=1000)
        log.append_as_leader(batch(b"new", key=b"key"), 1)

    meddle_in(monkeypatch, 1, cut_and_write)
    manager.compact()
    assert log.segments.active is closed
    assert read_all(log)[-1].value == b"new"


def test_compaction_that_lacked_a_descriptor_at_its_end_is_done_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    log = dirty_log(manager, "a")
    before = {path.name for path in Path(log.directory).iterdir()}

    def fail(path: str) -> None:
        raise OSError(errno.EMFILE, path)

    with monkeypatch.context() as patched:
        patched.setattr(files, "fsync_path", fail)
        assert not manager.compact()
    assert {path.name for path in Path(log.directory).iterdir()} == before
    assert manager.compact()
    assert values(log) < 20


@pytest.mark.parametrize("version", ["2.8", "0.10.0"])
def test_a_batch_that_unpacks_to_more_than_the_limit_stays_and_stops_no_compaction(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    config = replace(COMPACTED, message_format_version=version, segment_bytes=4000)
    manager = make()
    log = new_log(manager, "a", 0, config)
    large = batch(bytes(1 << 20), key=b"key", codec=compression.GZIP)
    for data in (batch(b"old", key=b"key"), large, batch(b"newer", key=b"key")):
        log.append_as_leader(data, 0)
    log.roll()
    log.high_watermark = log.log_end_offset
    with monkeypatch.context() as patched:
        patched.setattr(records.decode, "__defaults__", (0, 1 << 19))
        patched.setattr(legacy.decode, "__defaults__", (0, 1 << 19))
        assert manager.compact()
        assert not manager.compact(), "it is clean"
    kept = [header.last_offset for each in log.segments for _, header in each.scan(0)]
    assert kept == [1, 2]
    assert "unpacks to more than the limit" in caplog.text
    assert "skipped until" not in caplog.text


def test_a_log_that_cannot_be_compacted_does_not_hold_up_the_others(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    stuck, other = dirty_log(manager, "a"), dirty_log(manager, "b")
    clean = cleaner.clean

    def fail_one(log: Log, *arguments: Any) -> int:
        if log is stuck:
            raise OSError(errno.EINVAL, log.directory)
        return clean(log, *arguments)

    monkeypatch.setattr(cleaner, "clean", fail_one)
    for _ in range(4):
        manager.compact()
    assert values(other) < values(stuck)
    monkeypatch.setattr(cleaner, "clean", clean)
    manager.compact()
    assert values(stuck) == values(other)


def test_io_buffer_bounds_what_is_read_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make(log_cleaner_io_buffer_size="100")
    log = dirty_log(manager, "a")
    lengths: list[int] = []

    def read(fd: int, length: int, position: int) -> bytes:
        lengths.append(length)
        return read_exactly(fd, length, position)

    monkeypatch.setattr(batch_file, "read_exactly", read)
    assert manager.compact()
    assert max(lengths) == 100
    assert values(log) < 20
