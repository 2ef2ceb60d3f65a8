"""Memory for conversions: never more than its limit, and everybody's turn comes."""

from __future__ import annotations

import asyncio

import pytest

from odradek.handlers.conversion_memory import ConversionMemory


class Holder:
    """Somebody who converts until told to stop."""

    def __init__(self, memory: ConversionMemory, size: int) -> None:
        self.has_begun = False
        self._stop = asyncio.Event()
        self.task = asyncio.create_task(self._hold(memory, size))

    async def _hold(self, memory: ConversionMemory, size: int) -> None:
        async with memory.reserved(size):
            self.has_begun = True
            await self._stop.wait()

    async def stop(self) -> None:
        self._stop.set()
        await self.task
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_does_not_fit_waits_in_order_and_small_ones_do_not_overtake() -> None:
    memory = ConversionMemory(100)
    holders = [Holder(memory, size) for size in (60, 40, 90, 5)]
    await settled()
    assert [one.has_begun for one in holders] == [True, True, False, False]
    await holders[1].stop()
    assert not holders[2].has_begun
    assert not holders[3].has_begun, "else those who want little starve those who want much"
    await holders[0].stop()
    assert holders[2].has_begun
    assert holders[3].has_begun
    assert memory.taken == 95
    for one in holders[2:]:
        await one.stop()
    assert memory.taken == 0


async def test_one_above_the_limit_runs_alone() -> None:
    memory = ConversionMemory(10)
    small, large, later = (Holder(memory, size) for size in (1, 1000, 1))
    await settled()
    assert (small.has_begun, large.has_begun) == (True, False)
    await small.stop()
    assert (large.has_begun, later.has_begun) == (True, False)
    await large.stop()
    assert later.has_begun
    await later.stop()


async def test_who_gives_up_waiting_holds_nothing() -> None:
    memory = ConversionMemory(10)
    first, second, third = (Holder(memory, 10) for _ in range(3))
    await settled()
    second.task.cancel()
    await settled()
    await first.stop()
    assert third.has_begun
    # Cancelled in the very moment in which its turn comes.
    fourth, fifth = Holder(memory, 10), Holder(memory, 10)
    await settled()
    third._stop.set()
    await third.task
    fourth.task.cancel()
    await settled()
    assert fifth.has_begun
    await fifth.stop()
    assert memory.taken == 0


@pytest.mark.parametrize("limit", [-1, 0])
async def test_without_a_limit_nobody_waits(limit: int) -> None:
    memory = ConversionMemory(limit)
    holders = [Holder(memory, 1 << 40) for _ in range(3)]
    await settled()
    assert all(one.has_begun for one in holders)
    for one in holders:
        await one.stop()
