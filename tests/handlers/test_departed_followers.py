"""A follower that left in a controlled shutdown does not hold up what is acknowledged."""

from __future__ import annotations

import asyncio

from odradek.handlers import control
from odradek.handlers.context import Broker, RequestContext
from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.replica.appends import AppendOutcome
from odradek.replica.fetch_specs import FetchLimits, FetchSpec
from odradek.replica.reads import release
from tests.support import logs
from tests.support.control import update
from tests.support.replicas import KEY, Replicas

IN_SYNC, LEAVING = 2, 3


async def fetch(replicas: Replicas, offset: int, replica: int) -> None:
    limits = FetchLimits(0, 1, 1 << 20)
    release(await replicas.manager.fetch([FetchSpec(KEY, offset, 1 << 20)], replica, limits))
    await asyncio.sleep(0)


async def produce(replicas: Replicas, timeout_ms: int) -> AppendOutcome:
    records = [(KEY, logs.batch(b"x"))]
    return (await replicas.manager.append(records, -1, timeout_ms, Origin.CLIENT))[0]


async def tell_live(broker: Broker, *brokers: int) -> None:
    context = RequestContext(6, "controller", "PLAINTEXT", "127.0.0.1", 1)
    answer = await control.update_metadata(broker, update(brokers=brokers), context)
    assert answer.error_code == ErrorCode.NONE


async def test_acks_all_waits_for_a_caught_up_follower_only_while_its_broker_lives(
    broker: Broker, replicas: Replicas
) -> None:
    await tell_live(broker, 1, IN_SYNC, LEAVING)
    await replicas.lead(isr=(1, IN_SYNC), replicas=(1, IN_SYNC, LEAVING))
    for follower in (IN_SYNC, LEAVING):
        await fetch(replicas, 0, follower)
    appended = asyncio.create_task(produce(replicas, 10_000))
    await asyncio.sleep(0)
    await fetch(replicas, 1, IN_SYNC)
    assert not appended.done(), "the other one may still join"
    await tell_live(broker, 1, IN_SYNC)
    assert (await appended).error is ErrorCode.NONE


async def test_acks_all_waits_for_a_follower_in_sync_though_its_broker_is_gone(
    broker: Broker, replicas: Replicas
) -> None:
    await tell_live(broker, 1, IN_SYNC)
    await replicas.lead(isr=(1, IN_SYNC), replicas=(1, IN_SYNC))
    await fetch(replicas, 0, IN_SYNC)
    await tell_live(broker, 1)
    assert (await produce(replicas, 1)).error is ErrorCode.REQUEST_TIMED_OUT
