"""Moves of replicas between log directories, while the replicas do their work (KIP-113)."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from odradek.config import MOST_THREADS
from odradek.log.manager import LogManager
from odradek.protocol.errors import ErrorCode
from odradek.replica.directory_moves import DirectoryMoves
from odradek.replica.fetch_specs import FetchLimits, FetchSpec
from odradek.values import TopicPartition
from tests.replica.moving_disks import (
    Disks,
    folders,
    until,
)
from tests.support import logs, steps
from tests.support.replicas import KEY, Replicas


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


async def test_any_number_of_moves_at_once_is_harmless(tmp_path: Path) -> None:
    async with Replicas(tmp_path, num_replica_alter_log_dirs_threads="1000000") as broker:
        others = len(asyncio.all_tasks())
        moving = asyncio.create_task(broker.manager._moves.run())
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) - others == MOST_THREADS + 1
        moving.cancel()
        await asyncio.wait((moving,))


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


async def test_which_replica_is_next_is_found_without_a_look_at_all(tmp_path: Path) -> None:
    async def moves_of(count: int) -> DirectoryMoves:
        """Return the moves of so many replicas, which begin later."""
        folders = [str(tmp_path / f"{count}-{name}") for name in "ab"]
        broker = Replicas(tmp_path, log_dirs=",".join(folders))
        async with broker:
            for number in range(count):
                await broker.lead(topic=f"topic-{number:02}")
            wanted = {}
            for key, partition in broker.manager.partitions.items():
                here = os.path.dirname(partition.log.directory)
                wanted[key] = next(one for one in folders if one != here)
            for _ in range(2):
                assert {*(await broker.manager.alter_log_dirs(wanted)).values()} == {ErrorCode.NONE}
            return broker.manager._moves

    def carried_out(moves: DirectoryMoves) -> list[TopicPartition]:
        found = []
        while (move := moves._next()) is not None:
            found.append(move.key)
            del moves._moves[move.key]
        return found

    few, many = [await moves_of(count) for count in (15, 30)]
    once, twice = steps.count(carried_out, few), steps.count(carried_out, many)
    assert twice < 2.5 * once
    again = await moves_of(5)
    assert carried_out(again) == [TopicPartition(f"topic-0{number}", 0) for number in range(5)]
