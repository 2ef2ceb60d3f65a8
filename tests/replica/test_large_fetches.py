"""Fetches of thousands of partitions are planned in slices, and miss nothing meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from odradek.log.records.batch import Origin
from odradek.log.segment.files import Region
from odradek.net.next_request import NextRequest
from odradek.protocol.api import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.replica.fetch_specs import FetchLimits, FetchResult, FetchSpec
from odradek.replica.purgatory import Purgatory
from odradek.replica.reads import CONSUMER, PARTITIONS_AT_ONCE, release
from odradek.values import TopicPartition
from tests.support import logs
from tests.support.replicas import KEY, Replicas

OTHER = TopicPartition("other", 0)
FOLLOWER = 2
# More turns of the event loop than a plan has slices.
TURNS = 100
LIMITS = FetchLimits(max_wait_ms=60_000, min_bytes=1, max_bytes=1 << 20)


@pytest.fixture(params=[CONSUMER, FOLLOWER], ids=["consumer", "follower"])
def replica_id(request: pytest.FixtureRequest) -> int:
    """Who fetches."""
    reader: int = request.param
    return reader


@pytest.fixture
async def replicas(tmp_path: Path, replica_id: int) -> AsyncIterator[Replicas]:
    """Broker 1 leads two partitions, alone or with the follower that fetches."""
    assigned = [1] if replica_id == CONSUMER else [1, FOLLOWER]
    async with Replicas(tmp_path) as built:
        for key in (KEY, OTHER):
            await built.lead(topic=key.topic, isr=assigned, replicas=assigned)
        yield built


async def append(replicas: Replicas, key: TopicPartition) -> None:
    await replicas.manager.append([(key, logs.batch(b"value"))], 1, 0, Origin.CLIENT)


def fetching(replicas: Replicas, replica_id: int) -> asyncio.Task[list[FetchResult]]:
    """Fetch the test partition first, and then another one in each of many places."""
    specs = [FetchSpec(key, 0, 1 << 20) for key in (KEY, *[OTHER] * PARTITIONS_AT_ONCE)]
    return asyncio.create_task(replicas.manager.fetch(specs, replica_id, LIMITS))


def watches(replicas: Replicas, replica_id: int) -> Purgatory[TopicPartition]:
    hosted = replicas.manager._hosted
    return hosted.for_high_watermark if replica_id == CONSUMER else hosted.for_log_end


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@pytest.mark.parametrize("slices_before", range(1, 7))
async def test_what_comes_after_its_partition_was_planned_ends_the_wait(
    replicas: Replicas, replica_id: int, slices_before: int
) -> None:
    task = fetching(replicas, replica_id)
    while not len(watches(replicas, replica_id)):
        await asyncio.sleep(0)  # up to the first slice of the plan
    for _ in range(slices_before - 1):
        await asyncio.sleep(0)
    assert not task.done()
    await append(replicas, KEY)
    await turns()
    assert task.done(), "it waits for what is there"
    first, *others = task.result()
    assert isinstance(first.region, Region)
    assert [one.error for one in others] == [ErrorCode.NONE] * PARTITIONS_AT_ONCE
    release([first])
    assert len(watches(replicas, replica_id)) == 0


async def test_a_large_fetch_waits_for_any_of_its_partitions(
    replicas: Replicas, replica_id: int
) -> None:
    task = fetching(replicas, replica_id)
    await turns()
    assert not task.done()
    await append(replicas, KEY)
    await turns()
    release(task.result())


async def test_a_large_fetch_holds_up_no_request_behind_it(
    replicas: Replicas, replica_id: int
) -> None:
    specs = [FetchSpec(key, 0, 1 << 20) for key in (KEY, *[OTHER] * PARTITIONS_AT_ONCE)]
    behind = NextRequest(lambda: ApiKey.LIST_OFFSETS)
    found = await replicas.manager.fetch(specs, replica_id, LIMITS, next_request=behind)
    assert [one.region for one in found] == [None] * len(specs)


async def test_a_change_of_role_during_the_plan_ends_the_wait(
    replicas: Replicas, replica_id: int
) -> None:
    task = fetching(replicas, replica_id)
    while not len(watches(replicas, replica_id)):
        await asyncio.sleep(0)
    await replicas.take(leader=FOLLOWER, isr=[FOLLOWER], replicas=[1, FOLLOWER], epoch=1)
    await turns()
    assert task.result()[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_fetch_that_is_cancelled_during_its_plan_closes_what_it_found(
    replicas: Replicas, replica_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Region] = []
    close = Region.close

    def counted(region: Region) -> None:
        closed.append(region)
        close(region)

    monkeypatch.setattr(Region, "close", counted)
    await append(replicas, KEY)
    task = fetching(replicas, replica_id)
    while not len(watches(replicas, replica_id)):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(closed) == 1
    assert len(watches(replicas, replica_id)) == 0
