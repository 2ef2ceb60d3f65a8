"""What waits for the disk does not hold up the event loop, and nothing overtakes it."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from odradek.log.partition.log import Log
from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.fetch import FetchRequest, FetchResponse
from odradek.protocol.messages.offsets import OffsetForLeaderEpochResponse
from odradek.replica.appends import AppendOutcome
from odradek.replica.truncation import Truncation
from tests.support import logs
from tests.support.replicas import KEY, Replicas


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path, log_flush_interval_messages="1") as replicas:
        yield replicas


class SlowDisk:
    """Stands before a method of `Log`: it waits in its thread until told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.go_on = threading.Event()
        self.entered = threading.Event()
        self.failure: KafkaError | None = None
        real: Callable[..., object] = getattr(Log, name)

        def slow(log: Log, *arguments: object, **options: object) -> object:
            self.entered.set()
            assert self.go_on.wait(30)
            if self.failure is not None:
                raise self.failure
            return real(log, *arguments, **options)

        monkeypatch.setattr(Log, name, slow)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 30)


async def produce(broker: Replicas, acks: int) -> AppendOutcome:
    outcomes = await broker.manager.append([(KEY, logs.batch(b"a"))], acks, 30_000, Origin.CLIENT)
    return outcomes[0]


@pytest.mark.parametrize("acks", [1, -1])
async def test_flush_messages_delays_the_acknowledgement_and_not_the_loop(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    await broker.lead()
    partition = broker.manager.partitions[KEY]
    disk = SlowDisk(monkeypatch, "flush")
    waiting = asyncio.create_task(produce(broker, acks))
    await disk.reached()
    assert partition.log.log_end_offset == 1
    assert partition.high_watermark == 0, "nobody sees what may be lost"
    assert not waiting.done()
    disk.go_on.set()
    assert (await waiting).error is ErrorCode.NONE
    assert partition.log.recovery_point == 1
    assert partition.high_watermark == 1


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_failed_flush_is_not_acknowledged(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    await broker.lead()
    disk = SlowDisk(monkeypatch, "flush")
    disk.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(OSError(errno.EIO, "bad disk")))
    disk.go_on.set()
    assert (await produce(broker, acks)).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.manager.partitions[KEY].high_watermark == 0
    disk.failure = None


class Silent:
    """Stands for a leader that notes the fetch offsets it is sent, and has nothing new."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def call(self, request: object, version: int, timeout_ms: int) -> object:
        if not isinstance(request, FetchRequest):
            return OffsetForLeaderEpochResponse(topics=[])
        self.asked += [one.fetch_offset for topic in request.topics for one in topic.partitions]
        return FetchResponse(responses=[])


async def test_a_follower_reports_no_log_end_that_it_failed_to_flush(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.take(leader=2, replicas=(1, 2))
    log = broker.manager.partitions[KEY].log
    leader = Silent()
    fetcher = broker.fetcher_from(2, leader)
    following = fetcher._following[KEY]
    following.truncating = False
    log.append_as_follower(logs.batch(b"a"))
    disk = SlowDisk(monkeypatch, "flush")
    disk.go_on.set()
    disk.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "too many open files")
    for _ in range(2):
        await fetcher._round([following])
        assert leader.asked == []
    disk.failure = None
    await fetcher._round([following])
    assert leader.asked == [log.recovery_point] == [1]


async def test_a_new_role_waits_for_a_cut_under_way(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.lead(replicas=(1, 2))
    for _ in range(3):
        await produce(broker, 1)
    await broker.take(leader=2, replicas=(1, 2), epoch=1)
    partition = broker.manager.partitions[KEY]
    fetcher = broker.fetcher_from(2)
    disk = SlowDisk(monkeypatch, "truncate_to")
    following = fetcher._following[KEY]
    cutting = asyncio.create_task(fetcher._cut(following, Truncation(1, complete=True)))
    await disk.reached()
    leading = asyncio.create_task(broker.lead(replicas=(1, 2), epoch=2))
    await asyncio.sleep(0.05)
    assert not leading.done()
    disk.go_on.set()
    await cutting
    await leading
    assert partition.log.log_end_offset == partition.leader_epoch_start == 1
    assert partition.high_watermark == 1
    assert partition.log.epochs.entries == [(0, 0), (2, 1)]
