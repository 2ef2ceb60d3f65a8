"""Moves of replicas between log directories, while the replicas do their work (KIP-113)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable
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
from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.control import StopReplicaPartitionV0, StopReplicaRequest
from odradek.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from odradek.replica.reads import CONSUMER, FetchLimits, FetchSpec
from odradek.values import TopicPartition
from tests.support import logs
from tests.support.replicas import KEY, Replicas

LIMIT = "replica_alter_log_dirs_io_max_bytes_per_second"


class Disks:
    """A broker with three log directories whose moves run."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.paths = [str(directory / name) for name in "abc"]
        self.replicas = Replicas(directory, log_dirs=",".join(self.paths), **settings)
        self.manager = self.replicas.manager
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Disks:
        self._running = asyncio.create_task(self.manager._moves.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._running is not None
        assert not self._running.done(), self._running.exception()
        self._running.cancel()
        await asyncio.wait((self._running,))
        await self.replicas.__aexit__()

    @property
    def log(self) -> Log:
        return self.manager.partitions[KEY].log

    @property
    def place(self) -> str:
        return os.path.dirname(self.log.directory)

    async def ask(self, path: str, key: TopicPartition = KEY) -> ErrorCode:
        return (await self.manager.alter_log_dirs({key: path}))[key]

    async def produce(self, *values: bytes, acks: int = -1) -> int:
        outcome = (
            await self.manager.append([(KEY, logs.batch(*values))], acks, 30_000, Origin.CLIENT)
        )[0]
        assert outcome.error is ErrorCode.NONE
        return outcome.base_offset

    async def consumed(self) -> list[bytes | None]:
        found: list[bytes | None] = []
        while True:
            spec = FetchSpec(KEY, len(found), 1 << 20)
            [result] = await self.manager.fetch([spec], CONSUMER, FetchLimits(0, 1, 1 << 20))
            assert result.error is ErrorCode.NONE
            if result.region is None:
                return found
            with contextlib.closing(result.region) as region:
                data = os.pread(region.fd, region.length, region.position)
            found += [record.value for record in logs.whole_records(data)]

    async def moved(self, path: str) -> None:
        await until(lambda: self.place == path and not self.manager._moves._moves)

    def limit(self, rate: int) -> None:
        """Let moves copy so many bytes per second; the clock stands still."""
        self.manager._moves._limit = lambda: rate

    async def stop_replica(self) -> None:
        request = StopReplicaRequest(
            controller_id=1,
            controller_epoch=1,
            delete_partitions=True,
            ungrouped_partitions=[StopReplicaPartitionV0(topic_name=KEY.topic, partition_index=0)],
        )
        assert (await self.manager.stop_replicas(request))[1] == {KEY: ErrorCode.NONE}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def folders(disks: Disks) -> list[str]:
    return [
        f"{Path(path).name}/{folder.name}"
        for path in disks.paths
        for folder in Path(path).iterdir()
        if folder.is_dir() and not folder.name.endswith("-delete")
    ]


@pytest.fixture
async def disks(tmp_path: Path) -> AsyncIterator[Disks]:
    async with Disks(tmp_path) as running:
        await running.replicas.lead()
        yield running


async def test_requests_are_refused_as_kafka_refuses_them(disks: Disks) -> None:
    a, b, _ = disks.paths
    assert disks.place == a
    for path in (b + "/", "relative", "/nowhere", ""):
        assert await disks.ask(path) is ErrorCode.LOG_DIR_NOT_FOUND
    unknown = TopicPartition("unknown", 0)
    assert await disks.ask(b, unknown) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await disks.ask(a) is ErrorCode.NONE, "it is there"
    assert disks.manager.future_log(KEY) is None
    long = "t" * 214
    await disks.replicas.lead(topic=long)
    key = TopicPartition(long, 0)
    place = os.path.dirname(disks.manager.partitions[key].log.directory)
    other = next(path for path in disks.paths if path != place)
    for path in (other, place, "/nowhere"):
        assert await disks.ask(path, key) is ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_a_replica_to_come_is_made_where_it_was_asked_for(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = disks.paths[2]
    key = TopicPartition("later", 0)
    with monkeypatch.context() as patched:
        patched.setattr(disks.manager.metadata, "partition", lambda *_: object())
        assert await disks.ask(c, key) is ErrorCode.REPLICA_NOT_AVAILABLE
    await disks.replicas.lead(topic="later")
    assert os.path.dirname(disks.manager.partitions[key].log.directory) == c


@pytest.mark.parametrize("flush_messages", ["1", "9223372036854775807"])
async def test_records_are_taken_and_served_all_the_while(
    tmp_path: Path, flush_messages: str
) -> None:
    settings = {
        "log_flush_interval_messages": flush_messages,
        "replica_fetch_max_bytes": "50000",
        "log_segment_bytes": "100000",
    }
    async with Disks(tmp_path, **settings) as disks:
        await disks.replicas.lead()
        written = [b"%06d" % number + bytes(200) for number in range(300)]
        for value in written:
            await disks.produce(value)
        ended = False

        async def keep_producing() -> None:
            while not ended:
                written.append(b"%06d" % len(written))
                assert await disks.produce(written[-1]) == len(written) - 1
                await asyncio.sleep(0)

        producing = asyncio.create_task(keep_producing())
        for path in (disks.paths[1], disks.paths[2], disks.paths[0]):
            assert await disks.ask(path) is ErrorCode.NONE
            await disks.moved(path)
            assert await disks.consumed() == written[: disks.log.high_watermark]
        ended = True
        await producing
        assert await disks.consumed() == written
        assert folders(disks) == ["a/orders-0"]
    again = Replicas(tmp_path, log_dirs=",".join(disks.paths))
    async with again:
        await again.lead(epoch=1)
        assert logs.read_all(again.manager.partitions[KEY].log)[-1].value == written[-1]


async def test_a_waiting_consumer_and_a_follower_get_what_comes_after_the_switch(
    disks: Disks,
) -> None:
    await disks.replicas.lead(isr=(1, 2), replicas=(1, 2), epoch=1)
    await disks.produce(b"a", acks=1)
    partition = disks.manager.partitions[KEY]
    spec = FetchSpec(KEY, 1, 1 << 20)
    waiting = asyncio.create_task(disks.manager.fetch([spec], 2, FetchLimits(30_000, 1, 1 << 20)))
    await until(lambda: partition.high_watermark == 1)
    assert await disks.ask(disks.paths[1]) is ErrorCode.NONE
    await disks.moved(disks.paths[1])
    assert partition.high_watermark == partition.log.high_watermark == 1
    produced = asyncio.create_task(disks.produce(b"b"))
    [result] = await waiting
    assert result.region is not None
    assert os.path.samestat(
        os.fstat(result.region.fd), os.stat(partition.log.segments.active.log.path)
    )
    result.region.close()
    await disks.manager.fetch([FetchSpec(KEY, 2, 1 << 20)], 2, FetchLimits(0, 1, 1 << 20))
    assert await produced == 1


async def test_a_throttled_move_waits_and_can_be_cancelled_or_turned(disks: Disks) -> None:
    a, b, c = disks.paths
    disks.limit(0)
    for _ in range(10):
        await disks.produce(bytes(1000))
    assert await disks.ask(b) is ErrorCode.NONE
    await until(lambda: bool(disks.manager.future_log(KEY)))
    copy = disks.manager.future_log(KEY)
    assert copy is not None
    disks.manager._moves._rate.record(1, disks.replicas.clock())
    assert await disks.ask(c) is ErrorCode.NONE
    assert copy.closed
    turned = disks.manager.future_log(KEY)
    assert turned is not None
    assert os.path.dirname(turned.directory) == c
    assert disks.log.compaction_paused
    assert await disks.ask(a) is ErrorCode.NONE
    assert disks.manager.future_log(KEY) is None
    assert not disks.log.compaction_paused
    assert folders(disks) == ["a/orders-0"]
    disks.limit(1 << 40)
    assert await disks.ask(b) is ErrorCode.NONE
    await disks.moved(b)


async def test_no_more_is_copied_than_the_limit_and_one_piece(tmp_path: Path) -> None:
    async with Disks(tmp_path, replica_fetch_max_bytes="1000") as disks:
        await disks.replicas.lead()
        for _ in range(50):
            await disks.produce(bytes(900))
        disks.limit(5_000)
        assert await disks.ask(disks.paths[1]) is ErrorCode.NONE
        copy = disks.manager.future_log(KEY)
        assert copy is not None
        await until(lambda: copy.segments.size > 5_000)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert copy.segments.size < 7_000
        disks.replicas.clock.now += 60_000
        await until(lambda: copy.segments.size > 10_000)
        disks.limit(1 << 40)
        await disks.moved(disks.paths[1])


async def test_a_deleted_replica_is_gone_from_both_directories(disks: Disks) -> None:
    disks.limit(0)
    await disks.produce(bytes(1000))
    disks.manager._moves._rate.record(1, disks.replicas.clock())
    assert await disks.ask(disks.paths[1]) is ErrorCode.NONE
    await disks.stop_replica()
    assert folders(disks) == []
    assert disks.manager._moves._moves == {}
    await disks.replicas.lead(epoch=1)
    assert disks.log.log_end_offset == 0
    assert disks.manager.future_log(KEY) is None


async def test_a_deletion_waits_for_the_end_of_a_switch(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former folder has the partition's name until then: a new log would open it."""
    go_on, entered = threading.Event(), threading.Event()
    real = LogManager.finish_switch

    def slow(*arguments: object) -> None:
        entered.set()
        assert go_on.wait(60)
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LogManager, "finish_switch", slow)
    await disks.produce(b"old")
    assert await disks.ask(disks.paths[1]) is ErrorCode.NONE
    assert await asyncio.to_thread(entered.wait, 60)
    assert await disks.produce(b"after the switch") == 1

    async def delete_and_make() -> None:
        await disks.stop_replica()
        await disks.replicas.lead(epoch=1)

    deleting = asyncio.create_task(delete_and_make())
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not deleting.done()
    go_on.set()
    await deleting
    assert disks.log.log_end_offset == 0
    assert disks.manager.quarantines.totals()["directory-move"] == 0


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
    async with disks.manager._roles:
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


def fail(disks: Disks, path: str) -> None:
    """Have a directory fail, and tell the replica manager, as the server does."""
    directory = next(each for each in disks.replicas.logs._directories if each.path == path)
    directory.fail(OSError(5, "Input/output error"))
    disks.manager.directory_failed(path)


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
        moves._changed.set()
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


async def test_many_partitions_move_at_once(disks: Disks) -> None:
    keys = [TopicPartition(f"topic-{number}", 0) for number in range(30)]
    for key in keys:
        await disks.replicas.lead(topic=key.topic)
    wanted = dict.fromkeys(keys, disks.paths[1])
    assert set((await disks.manager.alter_log_dirs(wanted)).values()) == {ErrorCode.NONE}
    await until(
        lambda: all(
            os.path.dirname(disks.manager.partitions[key].log.directory) == disks.paths[1]
            for key in keys
        )
    )
