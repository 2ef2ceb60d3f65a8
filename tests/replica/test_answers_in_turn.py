"""An answer that waits for its turn tells how its own wait ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from odradek.log.records.batch import Origin
from odradek.net.owed_answers import Later, OwedAnswers
from odradek.protocol.errors import ErrorCode
from odradek.protocol.regions import Part
from odradek.replica.fetch_specs import FetchLimits, FetchSpec
from odradek.replica.reads import release
from odradek.values import TopicPartition
from tests.support import logs
from tests.support.replicas import KEY, Replicas

OTHER = TopicPartition("other", 0)
FOLLOWER, OF_OTHER = 2, 3
LIMITS = FetchLimits(0, 1, 1 << 20)


async def begin(replicas: Replicas, key: TopicPartition) -> Later[Sequence[Part] | None]:
    """Append a record with acks=all; the answer is the name of its code."""
    batches = [(key, logs.batch(b"v"))]
    appended = await replicas.manager.begin_append(batches, -1, 600_000, Origin.CLIENT)

    async def wait() -> Sequence[Part] | None:
        await appended.acknowledged()
        return [appended.outcomes[0].error.name.encode()]

    return Later(wait)


async def copied(replicas: Replicas, key: TopicPartition, follower: int) -> None:
    """Let a follower say that it has the record."""
    release(await replicas.manager.fetch([FetchSpec(key, 1, 1 << 20)], follower, LIMITS))
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("then", ["another leads", "too few are in sync"])
async def test_what_was_replicated_is_acknowledged_whatever_comes_before_its_turn(
    tmp_path: Path, then: str
) -> None:
    sent: list[bytes] = []
    failed: list[Exception] = []

    async def send(parts: Sequence[Part]) -> None:
        sent.extend(bytes(one) for one in parts if isinstance(one, bytes))

    async with Replicas(tmp_path, min_insync_replicas="2") as replicas:
        await replicas.lead(isr=(1, FOLLOWER), replicas=(1, FOLLOWER))
        await replicas.lead(isr=(1, OF_OTHER), replicas=(1, OF_OTHER), topic=OTHER.topic)
        owed = OwedAnswers(send, failed.append)
        for key in (KEY, OTHER):
            owed.add(await begin(replicas, key))
        await copied(replicas, OTHER, OF_OTHER)
        leader, isr = (OF_OTHER, (1, OF_OTHER)) if then == "another leads" else (1, (1,))
        await replicas.take(
            leader=leader, isr=isr, replicas=(1, OF_OTHER), epoch=1, topic=OTHER.topic
        )
        assert not sent
        await copied(replicas, KEY, FOLLOWER)
        async with asyncio.timeout(60):
            await owed.until_owed(0)
    assert (sent, failed) == ([ErrorCode.NONE.name.encode()] * 2, [])
