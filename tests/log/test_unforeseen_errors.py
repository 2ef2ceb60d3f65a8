"""An unexpected exception about one log keeps the background work from no other log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from odradek.log.directory import Directory
from odradek.log.manager import LogManager, NewLog
from odradek.log.partition import cleaner
from odradek.log.partition.log import Log
from odradek.protocol.errors import ErrorCode
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition
from tests.log.conftest import COMPACTED, Make, dirty_log
from tests.support.logs import FakeClock, batch, new_log, read_all

SHORT = TopicConfig(segment_bytes=200, retention_ms=0, file_delete_delay_ms=0)


def failing_for(topic: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return `real`, which raises for one topic's log."""

    def work(log: Log, *arguments: Any, **options: Any) -> Any:
        if log.topic == topic:
            raise KeyError("unforeseen")
        return real(log, *arguments, **options)

    work.__name__ = real.__name__
    return work


def counts(manager: LogManager) -> list[tuple[str, int, int]]:
    """(kind, exceptions, held now), of the kinds with an exception."""
    held = manager._quarantines.held()
    totals = manager._quarantines.totals()
    return [(kind, total, held[kind]) for kind, total in totals.items() if total]


@pytest.mark.parametrize(
    "name", ["apply_retention", "flush", "delete_due", "release_idle", "expire_producers"]
)
def test_maintenance_goes_on_beside_a_log_that_fails_and_comes_back_to_it(
    make: Make, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    manager = make(topic=SHORT)
    logs = [new_log(manager, topic, 0, SHORT) for topic in ("a-sick", "sound")]
    for log in logs:
        for _ in range(3):
            log.append_as_leader(batch(b"v" * 100), 0)
        log.high_watermark = log.log_end_offset
    clock.advance(3_600_000)
    with monkeypatch.context() as patched:
        patched.setattr(Log, name, failing_for("a-sick", getattr(Log, name)))
        manager.housekeep()
        assert counts(manager) == [("maintenance", 1, 1)]
        assert logs[1].log_start_offset == 3, "the rest of the round was done"
    clock.advance(3_600_000)
    manager.housekeep()
    assert counts(manager) == [("maintenance", 1, 0)]
    assert logs[0].log_start_offset == 3


def test_checkpoints_of_other_directories_are_written_beside_one_that_fails(
    make: Make, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    written: list[str] = []

    def write(directory: Directory, *_: object) -> None:
        if os.path.basename(directory.path) == "a":
            raise KeyError("unforeseen")
        written.append(os.path.basename(directory.path))

    for name in ("write_recovery_points", "write_start_offsets", "write_high_watermarks"):
        monkeypatch.setattr(Directory, name, write)
    manager.housekeep()
    manager.save_high_watermarks()
    assert written == ["b", "b", "b"]


@pytest.mark.parametrize("step", ["dirty_range", "is_due", "clean"])
def test_a_log_that_cannot_be_compacted_is_left_out_and_the_others_are_compacted(
    make: Make, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """As in Kafka, until the next start: it would be the dirtiest one for ever."""
    manager = make(topic=COMPACTED)
    sick, sound = dirty_log(manager, "a-sick"), dirty_log(manager, "sound")
    before = len(read_all(sick))
    monkeypatch.setattr(cleaner, step, failing_for("a-sick", getattr(cleaner, step)))
    while manager.compact():
        pass
    assert len(read_all(sick)) == before
    assert len(read_all(sound)) < before
    assert counts(manager) == [("compaction", 1, 1)]


async def test_a_log_that_cannot_be_made_fails_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    real = manager._make

    def make_or_fail(key: TopicPartition, new: NewLog) -> Directory:
        if key.topic == "sick":
            raise KeyError("unforeseen")
        return real(key, new)

    monkeypatch.setattr(manager, "_make", make_or_fail)
    wanted = [TopicPartition(topic, 0) for topic in ("sick", "sound")]
    refused = await manager.create_missing(dict.fromkeys(wanted, NewLog(TopicConfig())))
    assert {key: refusal.code for key, refusal in refused.items()} == {
        wanted[0]: ErrorCode.KAFKA_STORAGE_ERROR
    }
    assert manager.get("sound", 0) is not None


async def test_rounds_that_fail_as_a_whole_do_not_end_the_work(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(log_cleaner_backoff_ms="1")
    enough = asyncio.Event()
    loop, rounds = asyncio.get_running_loop(), []

    def fail() -> bool:
        rounds.append(1)
        if len(rounds) > 3:
            loop.call_soon_threadsafe(enough.set)
        raise KeyError("unforeseen")

    monkeypatch.setattr(manager._compactor, "compact", fail)
    monkeypatch.setattr(manager._housekeeper, "round", fail)
    running = asyncio.create_task(manager.run())
    async with asyncio.timeout(60):
        await enough.wait()
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
