"""A follower reports a log start offset to its leader only once that survives a crash."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from odradek.log.partition import checkpoints
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from tests.support import logs
from tests.support.replicas import KEY, Replicas

END = 4


class Leader:
    """Answers every fetch with nothing new, or `records`, and a log start offset that rose."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.records = b""
        self.told: list[int] = []

    async def call(self, request: FetchRequest, version: int, timeout_ms: int) -> FetchResponse:
        self.told.append(request.topics[0].partitions[0].log_start_offset)
        data = FetchablePartitionResponse(
            partition=KEY.partition,
            high_watermark=END,
            log_start_offset=self.start,
            record_set=self.records,
        )
        topic = FetchableTopicResponse(topic=KEY.topic, partition_responses=[data])
        return FetchResponse(responses=[topic])


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Replicas]:
    """Follower of a partition with four committed records."""
    async with Replicas(tmp_path) as replicas:
        await replicas.take(leader=2, isr=(1, 2), replicas=(1, 2))
        for _ in range(END):
            replicas.manager.partitions[KEY].log.append_as_leader(logs.batch(b"v"), 0)
        yield replicas


async def fetch(broker: Replicas, leader: Leader, times: int) -> None:
    fetcher = broker.fetcher_from(2)
    for _ in range(times):
        await fetcher._fetch(leader, [fetcher._followed.by_key[KEY]])  # type: ignore[arg-type]


def checkpointed(broker: Replicas) -> int:
    folder = os.path.dirname(broker.manager.partitions[KEY].log.directory)
    path = os.path.join(folder, checkpoints.LOG_START_OFFSETS)
    return checkpoints.read_offsets(path).get(KEY, 0)


async def test_a_log_start_that_rose_is_in_the_checkpoint_when_it_is_reported(
    broker: Replicas,
) -> None:
    leader = Leader(start=3)
    await fetch(broker, leader, 1)
    assert leader.told == [0]
    assert checkpointed(broker) == 3
    await fetch(broker, leader, 1)
    assert leader.told == [0, 3]


async def test_a_log_start_that_cannot_be_written_is_not_reported(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []

    def out_of_descriptors(path: str, offsets: object) -> None:
        tries.append(path)
        raise OSError(24, "Too many open files")

    leader = Leader(start=3)
    fetcher = broker.fetcher_from(2)
    following = fetcher._followed.by_key[KEY]
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "write_offsets", out_of_descriptors)
        for _ in range(3):
            await fetcher._fetch(leader, [following])  # type: ignore[arg-type]
    assert leader.told == [0, 0, 0]
    assert broker.manager.partitions[KEY].log.log_start_offset == 3
    assert len(tries) == 1
    broker.clock.now += broker.config.replica_fetch_backoff_ms
    for _ in range(2):
        await fetcher._fetch(leader, [following])  # type: ignore[arg-type]
    assert leader.told == [0, 0, 0, 0, 3]


async def test_the_copying_goes_on_while_a_log_start_is_written(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[object] = []
    go_on = asyncio.Event()

    async def slow(raised: object) -> None:
        writes.append(raised)
        await go_on.wait()

    leader = Leader(start=3)
    log = broker.manager.partitions[KEY].log
    fetcher = broker.fetcher_from(2)
    monkeypatch.setattr(fetcher, "_checkpoint_starts", slow)
    for number in range(3):
        leader.records = (END + number).to_bytes(8, "big") + logs.batch(b"v")[8:]
        async with asyncio.timeout(30):
            await fetcher._fetch(leader, [fetcher._followed.by_key[KEY]])  # type: ignore[arg-type]
    assert log.log_end_offset == END + 3
    await asyncio.sleep(0)
    assert len(writes) == 1
    go_on.set()
