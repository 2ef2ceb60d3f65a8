"""Followers serve consumers up to the high watermark that they know (KIP-392)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from odradek.config import RACK_AWARE_SELECTOR
from odradek.log.partition.log import Log
from odradek.log.records import records
from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from odradek.protocol.messages.offsets import (
    OffsetForLeaderEpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from odradek.replica.fetch_specs import FetchLimits, FetchResult, FetchSpec
from odradek.replica.fetcher import SourceFetcher
from odradek.replica.partition import NO_EPOCH
from odradek.replica.reads import CONSUMER
from tests.support import logs
from tests.support.replicas import KEY, Replicas
from tests.support.transactions import end, write, write_plain

LEADER = 2
EPOCH = 5
LONG_MS = 600_000
NOW = FetchLimits(0, 1, 1 << 20, any_replica=True)
WAITING = NOW._replace(max_wait_ms=LONG_MS)


@pytest.fixture
async def follower(tmp_path: Path) -> AsyncIterator[Replicas]:
    """Follower of a partition with four records, of which two are committed."""
    async with Replicas(tmp_path, replica_selector_class=RACK_AWARE_SELECTOR) as replicas:
        await follow(replicas, EPOCH)
        for _ in range(4):
            write_plain(log_of(replicas))
        tell(replicas, high_watermark=2)
        yield replicas


def log_of(follower: Replicas) -> Log:
    return follower.manager.partitions[KEY].log


async def follow(follower: Replicas, epoch: int) -> None:
    await follower.take(leader=LEADER, isr=(1, LEADER), replicas=(1, LEADER), epoch=epoch)


def tell(follower: Replicas, high_watermark: int, records: bytes = b"") -> SourceFetcher:
    """Have the leader answer a fetch of the follower."""
    fetcher = follower.fetcher_from(LEADER)
    data = FetchablePartitionResponse(
        partition=KEY.partition,
        high_watermark=high_watermark,
        log_start_offset=0,
        record_set=records,
    )
    fetcher._append(fetcher._followed.by_key[KEY], data)
    return fetcher


async def fetch(
    follower: Replicas, offset: int, limits: FetchLimits = NOW, leader_epoch: int = NO_EPOCH
) -> FetchResult:
    spec = FetchSpec(KEY, offset, 1 << 20, leader_epoch)
    async with asyncio.timeout(60):
        [result] = await follower.manager.fetch([spec], CONSUMER, limits)
    return result


async def read(follower: Replicas, offset: int, limits: FetchLimits = NOW) -> int:
    """Return the bytes of a fetch."""
    result = await fetch(follower, offset, limits)
    assert result.error is ErrorCode.NONE
    if result.region is None:
        return 0
    result.region.close()
    return result.region.length


async def waiting(follower: Replicas, offset: int) -> asyncio.Task[FetchResult]:
    """Return a fetch that waits for more."""
    task = asyncio.create_task(fetch(follower, offset, WAITING))
    while not len(follower.manager._hosted.for_high_watermark):
        await asyncio.sleep(0)
    return task


async def test_a_consumer_reads_what_is_committed_and_no_more(follower: Replicas) -> None:
    record = await read(follower, 1)
    assert record > 0
    assert await read(follower, 0) == 2 * record
    # Of what is above the high watermark nothing is said, as in Kafka.
    assert [await read(follower, offset) for offset in (2, 3, 4)] == [0, 0, 0]
    result = await fetch(follower, 0)
    assert (result.high_watermark, result.last_stable_offset) == (2, 2)


async def test_what_the_follower_has_not_is_out_of_range(follower: Replicas) -> None:
    assert (await fetch(follower, 5, WAITING)).error is ErrorCode.OFFSET_OUT_OF_RANGE
    log_of(follower).advance_log_start(1)
    assert (await fetch(follower, 0, WAITING)).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert await read(follower, 1) > 0


async def test_another_leader_epoch_is_told(follower: Replicas) -> None:
    old, new = EPOCH - 1, EPOCH + 1
    assert (await fetch(follower, 0, NOW, old)).error is ErrorCode.FENCED_LEADER_EPOCH
    assert (await fetch(follower, 0, NOW, new)).error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (await fetch(follower, 0, NOW, EPOCH)).region is not None


async def test_only_clients_that_know_of_it_read_a_follower(follower: Replicas) -> None:
    for limits in (NOW._replace(any_replica=False), WAITING._replace(any_replica=False)):
        assert (await fetch(follower, 0, limits)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_higher_high_watermark_ends_the_wait(follower: Replicas) -> None:
    task = await waiting(follower, 2)
    tell(follower, high_watermark=2)
    await asyncio.sleep(0)
    assert not task.done()
    tell(follower, high_watermark=3)
    assert (await task).region is not None


async def test_a_record_ends_the_wait_that_comes_committed(follower: Replicas) -> None:
    tell(follower, high_watermark=4)
    task = await waiting(follower, 4)
    tell(follower, 5, records.make([(b"k", b"value")], logs.START_MS, base_offset=4))
    assert (await task).high_watermark == 5


async def test_who_waits_stays_where_the_follower_becomes_leader(follower: Replicas) -> None:
    task = await waiting(follower, 2)
    await follower.lead(epoch=EPOCH + 1)
    result = await task
    assert (result.high_watermark, result.region is not None) == (4, True)


async def test_who_waits_is_told_that_the_replica_is_gone(follower: Replicas) -> None:
    task = await waiting(follower, 2)
    await follower.delete()
    assert (await task).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_who_waits_is_told_that_there_is_no_leader(follower: Replicas) -> None:
    task = await waiting(follower, 2)
    await follower.take(leader=-1, replicas=(1, LEADER), epoch=EPOCH + 1)
    assert (await task).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_reader_of_committed_records_stops_at_an_undecided_transaction(
    follower: Replicas,
) -> None:
    log, committed = log_of(follower), NOW._replace(committed=True)
    first = write(log, 7)
    write_plain(log)
    marker = end(log, 7, commit=False)
    tell(follower, marker)
    result = await fetch(follower, first, committed)
    assert (result.high_watermark, result.last_stable_offset) == (marker, first)
    assert result.region is None
    assert await read(follower, first) > 0
    tell(follower, marker + 1)
    result = await fetch(follower, first, committed)
    assert [(one.producer_id, one.first_offset) for one in result.aborted] == [(7, first)]
    assert result.region is not None
    result.region.close()


class Leader:
    """Broker 2, whose log ends as that of the follower. It answers each Fetch when told so."""

    def __init__(self, follower: Replicas) -> None:
        self.end = log_of(follower).log_end_offset
        self.fetches: list[FetchRequest] = []
        self.answers: asyncio.Queue[FetchResponse] = asyncio.Queue()

    async def call(
        self, request: FetchRequest | OffsetForLeaderEpochRequest, version: int, timeout_ms: int
    ) -> FetchResponse | OffsetForLeaderEpochResponse:
        if isinstance(request, FetchRequest):
            self.fetches.append(request)
            return await self.answers.get()
        epoch = request.topics[0].partitions[0].leader_epoch
        ends = [
            OffsetForLeaderEpochEndOffset(
                partition=KEY.partition, leader_epoch=epoch, end_offset=self.end
            )
        ]
        return OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderTopicResult(topic=KEY.topic, partitions=ends)]
        )

    async def close(self) -> None:
        pass

    async def asked(self, count: int) -> FetchRequest:
        """Return the Fetch of this number, when it waits for its answer."""
        async with asyncio.timeout(60):
            while len(self.fetches) < count:
                await asyncio.sleep(0)
        return self.fetches[-1]

    def answer(self, *parts: FetchablePartitionResponse) -> None:
        topics = [FetchableTopicResponse(topic=KEY.topic, partition_responses=list(parts))]
        self.answers.put_nowait(FetchResponse(session_id=7, responses=topics if parts else []))


@pytest.fixture
async def leader(follower: Replicas) -> AsyncIterator[Leader]:
    """The leader that the follower copies from."""
    found = Leader(follower)
    follower.connect = lambda broker_id: cast(PeerClient, found)
    task = asyncio.create_task(follower.manager._fetchers.run())
    yield found
    task.cancel()
    await asyncio.wait((task,))


async def test_nothing_is_read_while_the_log_is_truncated(follower: Replicas) -> None:
    partition = follower.manager.partitions[KEY]
    await partition.truncation_lock.acquire()
    assert await read(follower, 0) == 0
    task = await waiting(follower, 0)
    found = Leader(follower)
    follower.connect = lambda broker_id: cast(PeerClient, found)
    fetching = asyncio.create_task(follower.manager._fetchers.run())
    partition.truncation_lock.release()
    assert (await task).region is not None
    fetching.cancel()
    await asyncio.wait((fetching,))


async def test_the_leader_is_told_what_retention_deleted_here(
    follower: Replicas, leader: Leader
) -> None:
    def starts(request: FetchRequest) -> list[int]:
        return [part.log_start_offset for topic in request.topics for part in topic.partitions]

    assert starts(await leader.asked(1)) == [0]
    leader.answer(
        FetchablePartitionResponse(
            partition=KEY.partition, high_watermark=4, log_start_offset=0, record_set=b""
        )
    )
    assert starts(await leader.asked(2)) == []
    leader.answer()
    await leader.asked(3)  # which looks at no partition any more
    log_of(follower).advance_log_start(3)
    await asyncio.sleep(0)
    leader.answer()
    assert starts(await leader.asked(4)) == [3]
