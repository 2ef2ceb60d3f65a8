"""Followers that say in each fetch which epoch their last record is of (KIP-595, Fetch v12), as
Kafka's do from 2.7 on: what such a one holds counts only where it is what the leader holds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.replica.fetch_specs import FetchLimits, FetchResult, FetchSpec
from odradek.replica.reads import release
from tests.support import logs
from tests.support.replicas import KEY, Replicas

FORMER, PRESENT = 4, 5


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Replicas]:
    """Leader of three records: the first of a former epoch, the others of the present one."""
    async with Replicas(tmp_path) as replicas:
        await replicas.lead(isr=(1, 2), replicas=(1, 2), epoch=FORMER)
        await append(replicas, b"1")
        await replicas.lead(isr=(1, 2), replicas=(1, 2), epoch=PRESENT)
        await append(replicas, b"2", b"3")
        yield replicas


async def append(broker: Replicas, *values: bytes) -> None:
    await broker.manager.append([(KEY, logs.batch(*values))], 1, 0, Origin.CLIENT)


async def fetch(broker: Replicas, offset: int, last_epoch: int) -> FetchResult:
    wish = FetchSpec(KEY, offset, 1 << 20, PRESENT, last_fetched_epoch=last_epoch)
    [result] = await broker.manager.fetch([wish], 2, FetchLimits(0, 1, 1 << 20))
    release([result])
    return result


def committed(broker: Replicas) -> int:
    return broker.manager.partitions[KEY].high_watermark


async def test_what_a_follower_must_cut_off_acknowledges_nothing(broker: Replicas) -> None:
    result = await fetch(broker, 3, FORMER)
    assert result.diverging == (FORMER, 1)
    assert committed(broker) == 0


async def test_what_a_follower_holds_as_the_leader_does_is_acknowledged(broker: Replicas) -> None:
    assert (await fetch(broker, 1, FORMER)).diverging is None
    assert committed(broker) == 1
    assert (await fetch(broker, 3, PRESENT)).diverging is None
    assert committed(broker) == 3


async def test_an_epoch_that_nobody_knows_is_out_of_range(broker: Replicas) -> None:
    result = await fetch(broker, 3, PRESENT + 1)
    assert (result.error, result.diverging) == (ErrorCode.OFFSET_OUT_OF_RANGE, None)
    assert committed(broker) == 0
