"""Moves between log directories that meet changes of roles, truncation, restarts and failures."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.handlers import offsets
from odradek.log.directory import Directory
from odradek.log.future_logs import FutureLogs
from odradek.log.manager import LogManager
from odradek.log.partition import future
from odradek.log.partition.log import Log
from odradek.log.partition.reading import LogReader
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from odradek.replica.truncation import Truncation
from odradek.values import TopicPartition
from tests.replica.moving_disks import (
    Disks,
    fail,
    folders,
    until,
)
from tests.support import logs
from tests.support.replicas import KEY


class Held:
    """Stands before (or behind) a method: its thread waits until told to go on."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, behind: bool = False
    ) -> None:
        self.go_on, self.entered = threading.Event(), threading.Event()
        real = getattr(owner, name)

        def held(one: object, *arguments: object) -> object:
            done = real(one, *arguments) if behind else None
            if self.applies(one) and not self.entered.is_set():
                self.entered.set()
                assert self.go_on.wait(60)
            return done if behind else real(one, *arguments)

        self.applies: Callable[[object], bool] = lambda one: True
        monkeypatch.setattr(owner, name, held)


async def test_work_that_was_meant_for_the_former_log_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush before an acknowledgement, a lookup by time, a deletion."""
    async with Disks(tmp_path, log_flush_interval_messages="1") as disks:
        await disks.replicas.lead()
        await disks.produce(b"a")
        broker: Any = SimpleNamespace(replicas=disks.manager, metadata=disks.manager.metadata)
        former = disks.log

        with monkeypatch.context() as patched:
            flush = Held(patched, Log, "flush")
            flush.applies = lambda log: log is former
            lookup = Held(patched, LogReader, "offset_for_timestamp")
            producing = asyncio.create_task(disks.produce(b"b"))
            finding = asyncio.create_task(offsets._since(broker, disks.manager.partitions[KEY], 0))
            assert await asyncio.to_thread(flush.entered.wait, 60)
            assert await asyncio.to_thread(lookup.entered.wait, 60)
            assert await disks.ask(disks.paths[1]) is ErrorCode.NONE
            await disks.moved(disks.paths[1])
            assert not producing.done()
            flush.go_on.set()
            lookup.go_on.set()
            assert await producing == 1
            found = await finding
            assert found is not None
            assert found.offset == 0
        assert disks.log.recovery_point == 2

        with monkeypatch.context() as patched:
            prepared = Held(patched, FutureLogs, "prepare", behind=True)
            finishing = Held(patched, LogManager, "finish_switch")
            starts = Held(patched, Directory, "write_start_offsets")
            starts.applies = lambda one: getattr(one, "path", "") == disks.paths[1]
            asked = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=KEY.topic,
                        partitions=[DeleteRecordsPartition(partition_index=0, offset=1)],
                    )
                ],
                timeout_ms=60_000,
            )
            assert await disks.ask(disks.paths[2]) is ErrorCode.NONE
            assert await asyncio.to_thread(prepared.entered.wait, 60)
            context: Any = None
            deleting = asyncio.create_task(offsets.delete_records(broker, asked, context))
            assert await asyncio.to_thread(starts.entered.wait, 60)
            prepared.go_on.set()
            await until(lambda: disks.place == disks.paths[2])
            starts.go_on.set()
            [topic] = (await deleting).topics
            finishing.go_on.set()
            assert [one.error_code for one in topic.partitions] == [ErrorCode.NONE]
        assert disks.log.durable_log_start == 1


async def test_a_switch_waits_for_changes_of_roles(disks: Disks) -> None:
    """They may be about to use the log's folder."""
    await disks.produce(b"a")
    async with disks.manager._roles.lock:
        await disks.manager._moves.request(KEY, disks.paths[1])
        copy = disks.manager.future_log(KEY)
        assert copy is not None
        await until(lambda: os.path.exists(os.path.join(copy.directory, future.MARK)))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert disks.place == disks.paths[0]
    await disks.moved(disks.paths[1])


async def test_a_move_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with Disks(tmp_path) as disks:
        await disks.replicas.lead()
        disks.limit(0)
        disks.manager._moves._rate.record(1, disks.replicas.clock())
        written = [b"%d" % number for number in range(20)]
        for value in written:
            await disks.produce(value)
        assert await disks.ask(disks.paths[2]) is ErrorCode.NONE
    async with Disks(tmp_path) as again:
        assert again.replicas.logs.futures.get(KEY) is not None
        await again.replicas.lead(epoch=1)
        await again.moved(disks.paths[2])
        assert await again.consumed() == written
        assert folders(again) == ["c/orders-0"]


async def test_a_follower_that_truncates_meanwhile_moves_what_is_left(tmp_path: Path) -> None:
    async with Disks(tmp_path, replica_fetch_max_bytes="100") as disks:
        await disks.replicas.lead()
        for number in range(10):
            await disks.produce(b"%d" % number)
        disks.limit(450)
        assert await disks.ask(disks.paths[1]) is ErrorCode.NONE
        copy = disks.manager.future_log(KEY)
        assert copy is not None
        await until(lambda: copy.segments.size > 450)
        assert 4 < copy.log_end_offset < 10
        await disks.replicas.take(leader=2, isr=(1, 2), replicas=(1, 2), epoch=1)
        partition = disks.manager.partitions[KEY]
        async with partition.truncation_lock:
            await asyncio.to_thread(partition.log.truncate_to, 4)
            partition.follow_high_watermark(4)
        for _ in range(4):
            partition.log.append_as_leader(logs.batch(b"other"), 1)
        disks.limit(1 << 40)
        await disks.moved(disks.paths[1])
        kept = [b"0", b"1", b"2", b"3"]
        found = [record.value for record in logs.read_all(disks.log)]
        assert found == [*kept, *[b"other"] * 4]
        assert disks.log.epochs.entries == [(0, 0), (1, 4)]


async def test_a_truncation_that_waits_for_a_switch_is_of_the_new_log(disks: Disks) -> None:
    for _ in range(3):
        await disks.produce(b"value")
    await disks.replicas.take(leader=2, isr=(1, 2), replicas=(1, 2), epoch=1)
    former, partition = disks.log, disks.manager.partitions[KEY]
    fetcher = disks.replicas.fetcher_from(2)
    following = fetcher._followed.by_key[KEY]
    async with partition.truncation_lock:
        assert await disks.ask(disks.paths[1]) is ErrorCode.NONE
        await until(lambda: bool(partition.truncation_lock._waiters))  # the switch
        cutting = asyncio.create_task(
            fetcher._agreement.cut(following, Truncation(1, complete=True))
        )
        await until(lambda: len(partition.truncation_lock._waiters or ()) == 2)
    await cutting
    assert disks.log is not former
    assert disks.log.log_end_offset == 1
    assert not following.truncating


async def test_a_failed_target_ends_the_move_only(disks: Disks) -> None:
    disks.limit(0)
    await disks.produce(b"a")
    disks.manager._moves._rate.record(1, disks.replicas.clock())
    assert await disks.ask(disks.paths[1]) is ErrorCode.NONE
    fail(disks, disks.paths[1])
    assert disks.manager.future_log(KEY) is None
    assert not disks.log.compaction_paused
    assert await disks.produce(b"b") == 1
    assert await disks.ask(disks.paths[1]) is ErrorCode.KAFKA_STORAGE_ERROR
    assert await disks.ask(disks.paths[2]) is ErrorCode.KAFKA_STORAGE_ERROR, "as in Kafka"
    assert await disks.ask(disks.paths[0]) is ErrorCode.NONE


async def test_a_failed_source_ends_the_move(disks: Disks) -> None:
    disks.limit(0)
    await disks.produce(b"a")
    disks.manager._moves._rate.record(1, disks.replicas.clock())
    assert await disks.ask(disks.paths[1]) is ErrorCode.NONE
    fail(disks, disks.paths[0])
    assert disks.manager.partitions[KEY].offline
    assert disks.manager._moves._moves == {}
    assert await disks.ask(disks.paths[1]) is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(("owner", "name"), [(future, "copy"), (FutureLogs, "finish")])
async def test_an_unexpected_error_puts_the_move_into_quarantine(
    disks: Disks, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    await disks.produce(b"a")
    other = TopicPartition("others", 0)
    await disks.replicas.lead(topic=other.topic)
    moves, quarantines = disks.manager._moves, disks.manager.quarantines
    with monkeypatch.context() as patched:

        def broken(*_: object) -> int:
            raise ZeroDivisionError

        patched.setattr(owner, name, broken)
        assert await disks.ask(disks.paths[2]) is ErrorCode.NONE
        await until(lambda: quarantines.held()["directory-move"] == 1)
        await disks.produce(b"b")
    if disks.manager.future_log(KEY) is not None:
        assert await disks.ask(disks.paths[2]) is ErrorCode.NONE, "again at once"
    else:
        moves._moves[KEY].not_before_ms = 0
        moves._queue(moves._moves[KEY])
    await disks.moved(disks.paths[2])
    assert quarantines.held()["directory-move"] == 0
    assert await disks.consumed() == [b"a", b"b"]
    assert [name for name in folders(disks) if name.endswith("orders-0")] == ["c/orders-0"]


async def test_a_deletion_ends_a_switch_that_is_in_quarantine(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = FutureLogs.finish, True

    def finish(*arguments: Any) -> None:
        if broken:
            raise ZeroDivisionError
        real(*arguments)

    monkeypatch.setattr(FutureLogs, "finish", finish)
    await disks.produce(b"old")
    assert await disks.ask(disks.paths[1]) is ErrorCode.NONE
    await until(lambda: disks.manager.quarantines.held()["directory-move"] == 1)
    assert folders(disks) == ["a/orders-0", "b/orders-0"]
    broken = False
    await disks.stop_replica()
    assert folders(disks) == []
    await disks.replicas.lead(epoch=1)
    assert disks.log.log_end_offset == 0


async def test_another_move_begins_when_a_switch_has_ended(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    finishing = Held(monkeypatch, LogManager, "finish_switch")
    await disks.produce(b"a")
    assert await disks.ask(disks.paths[1]) is ErrorCode.NONE
    assert await asyncio.to_thread(finishing.entered.wait, 60)
    assert await disks.ask(disks.paths[0]) is ErrorCode.NONE, "back"
    finishing.go_on.set()
    await disks.moved(disks.paths[0])
    assert folders(disks) == ["a/orders-0"]
    assert await disks.consumed() == [b"a"]
