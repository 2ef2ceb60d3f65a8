"""A follower may hear of a leader before the leader does; it asks again soon, and not too often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from odradek.clock import monotonic_ms
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from odradek.replica.followed_partitions import FIRST_RETRY_MS
from tests.support import logs
from tests.support.replicas import KEY, Replicas

LEADER = 2
LONGEST_MS = 3_600_000
NOT_YET = [
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
]


class Leader:
    """Has one record, and refuses a number of fetches before it gives it away."""

    def __init__(self, refusals: list[ErrorCode]) -> None:
        self.refusals = refusals

    async def call(self, request: FetchRequest, version: int, timeout_ms: int) -> FetchResponse:
        await asyncio.sleep(0.001)
        answer = FetchablePartitionResponse(partition=0, high_watermark=-1, record_set=b"")
        if self.refusals:
            answer.error_code = self.refusals.pop(0)
        else:
            answer.high_watermark = 1
            if request.topics[0].partitions[0].fetch_offset == 0:
                answer.record_set = memoryview(logs.batch(b"a"))
        topic = FetchableTopicResponse(topic=KEY.topic, partition_responses=[answer])
        return FetchResponse(responses=[topic])

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Replicas]:
    """Follower of a leader of epoch 1."""
    async with Replicas(tmp_path, replica_fetch_backoff_ms=str(LONGEST_MS)) as replicas:
        await replicas.take(leader=LEADER, replicas=(1, LEADER), epoch=1)
        yield replicas


@pytest.mark.parametrize("code", NOT_YET)
async def test_copying_begins_soon_after_the_leader_knows(
    broker: Replicas, code: ErrorCode
) -> None:
    fetcher = broker.fetcher_from(LEADER, Leader([code] * 3), monotonic_ms)
    copying = asyncio.create_task(fetcher.run())
    async with asyncio.timeout(60):  # the pause after other errors is an hour
        while broker.manager.partitions[KEY].high_watermark < 1:
            await asyncio.sleep(0.01)
    copying.cancel()


async def test_pauses_grow_to_those_after_other_errors(broker: Replicas) -> None:
    fetcher = broker.fetcher_from(LEADER, Leader([]), broker.clock)
    following = fetcher._followed.by_key[KEY]
    pauses = []
    for _ in range(30):
        fetcher._followed.refused(following, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        pauses.append(following.not_before_ms - broker.clock.now)
    assert pauses[:3] == [FIRST_RETRY_MS, 2 * FIRST_RETRY_MS, 4 * FIRST_RETRY_MS]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_MS
    fetcher._followed.refused(following, ErrorCode.KAFKA_STORAGE_ERROR)
    assert following.not_before_ms == broker.clock.now + LONGEST_MS


async def test_who_has_answered_is_asked_again_soon_when_it_refuses_later(broker: Replicas) -> None:
    leader = Leader([])
    fetcher = broker.fetcher_from(LEADER, leader, broker.clock)
    following = fetcher._followed.by_key[KEY]
    for _ in range(30):
        fetcher._followed.refused(following, ErrorCode.UNKNOWN_LEADER_EPOCH)
    broker.clock.now += LONGEST_MS
    await fetcher._round(fetcher._followed.ready())
    fetcher._followed.refused(following, ErrorCode.UNKNOWN_LEADER_EPOCH)
    assert following.not_before_ms == broker.clock.now + FIRST_RETRY_MS
