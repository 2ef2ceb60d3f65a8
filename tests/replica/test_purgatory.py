"""Waiting operations wake by key, by condition, by time."""

import asyncio
from functools import partial

import pytest

from odradek.net.next_request import NOT_THERE, NextRequest
from odradek.protocol.api import ApiKey
from odradek.replica.purgatory import AllOf, Purgatory


async def test_wake_of_a_watched_key_ends_the_wait() -> None:
    purgatory: Purgatory[str] = Purgatory()
    waiting = asyncio.create_task(purgatory.wait(["a", "b"], 60_000))
    await asyncio.sleep(0)
    purgatory.wake("c")
    await asyncio.sleep(0)
    assert not waiting.done()
    purgatory.wake("b")
    assert await waiting is True


async def test_wake_with_a_condition_that_does_not_hold_lets_the_operation_wait_on() -> None:
    purgatory: Purgatory[str] = Purgatory()
    holds = False
    waiting = asyncio.create_task(purgatory.wait(["a"], 60_000, lambda: holds))
    await asyncio.sleep(0)
    purgatory.wake("a")
    await asyncio.sleep(0)
    assert not waiting.done()
    holds = True
    purgatory.wake("a")
    assert await waiting is True


async def test_time_over_ends_the_wait_with_false() -> None:
    assert await Purgatory[str]().wait(["a"], 1) is False


@pytest.mark.parametrize(
    ("key", "is_held_up"),
    [
        (ApiKey.LIST_OFFSETS, True),
        (ApiKey.PRODUCE, True),
        (ApiKey.FETCH, False),
        (NOT_THERE, False),
    ],
)
@pytest.mark.parametrize("is_there_before", [True, False])
@pytest.mark.parametrize("watches", [True, False])
async def test_a_wait_that_holds_up_the_next_request_ends_with_false(
    watches: bool, is_there_before: bool, key: int, is_held_up: bool
) -> None:
    """A fetch behind a fetch is not held up: it would wait itself."""

    async def waiting() -> bool:
        if not watches:
            return await purgatory.wait(["a"], 60_000, next_request=behind)
        with purgatory.watch({"a"}) as watch:
            return await watch.woken(60_000, behind)

    found = [key] if is_there_before else [NOT_THERE]
    behind = NextRequest(lambda: found[-1])
    purgatory: Purgatory[str] = Purgatory()
    task = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    found.append(key)
    behind.arrived()
    await asyncio.sleep(0)
    assert task.done() is is_held_up
    purgatory.wake("a")
    assert await task is not is_held_up
    assert len(purgatory) == 0
    behind.arrived()  # nobody waits any more


async def test_nothing_is_kept_after_a_wait_however_it_ended() -> None:
    purgatory: Purgatory[str] = Purgatory()
    await purgatory.wait(["a", "b"], 1)
    cancelled = asyncio.create_task(purgatory.wait(["a"], 60_000))
    await asyncio.sleep(0)
    assert len(purgatory) == 1
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert len(purgatory) == 0


async def test_close_ends_every_wait_and_refuses_new_ones() -> None:
    purgatory: Purgatory[str] = Purgatory()
    waiting = asyncio.create_task(purgatory.wait(["a"], 60_000))
    await asyncio.sleep(0)
    purgatory.close()
    assert await waiting is False
    assert await purgatory.wait(["a"], 60_000) is False


async def test_a_watch_remembers_a_wake_from_before_its_wait() -> None:
    purgatory: Purgatory[str] = Purgatory()
    with purgatory.watch({"a", "b"}) as watch:
        purgatory.wake("c")
        assert await watch.woken(0) is False
        purgatory.wake("b")
        assert await watch.woken(0) is True
    assert len(purgatory) == 0


async def test_a_watch_ends_with_false_when_its_time_is_over() -> None:
    with Purgatory[str]().watch({"a"}) as watch:
        assert await watch.woken(1) is False


async def test_a_wake_of_all_keys_and_a_close_end_watches() -> None:
    purgatory: Purgatory[str] = Purgatory()
    with purgatory.watch({"a"}) as first:
        purgatory.wake_all()
        with purgatory.watch({"a"}) as second:
            purgatory.close()
            assert await first.woken(60_000) is True
            assert await second.woken(60_000) is False
    with purgatory.watch({"a"}) as late:
        assert await late.woken(60_000) is False


async def test_wake_of_many_keys_asks_each_operation_once_and_no_others() -> None:
    purgatory: Purgatory[str] = Purgatory()
    asked: list[str] = []

    def wait(name: str, *keys: str) -> asyncio.Task[bool]:
        def ask() -> bool:
            asked.append(name)
            return True

        return asyncio.create_task(purgatory.wait(keys, 60_000, ask))

    waiting = [wait("all", "a", "b", "c"), wait("one", "b"), wait("other", "d")]
    await asyncio.sleep(0)
    with purgatory.watch({"c"}) as concerned, purgatory.watch({"d"}) as unconcerned:
        purgatory.wake_each({"a", "b", "c"})
        assert await concerned.woken(0)
        assert not await unconcerned.woken(0)
    assert sorted(asked) == ["all", "one"]
    await asyncio.gather(*waiting[:2])
    assert not waiting[2].done()
    purgatory.close()
    await waiting[2]


async def test_wake_of_all_keys_asks_an_operation_of_many_once() -> None:
    purgatory: Purgatory[int] = Purgatory()
    asked = 0

    def holds() -> bool:
        nonlocal asked
        asked += 1
        return asked > 1

    waiting = asyncio.create_task(purgatory.wait(range(100), 60_000, holds))
    await asyncio.sleep(0)
    purgatory.wake_all()
    assert asked == 1
    purgatory.wake_all()
    assert await waiting is True
    assert asked == 2


@pytest.mark.parametrize("order", [range(100), range(99, -1, -1)])
def test_conditions_that_hold_one_after_the_other_are_asked_a_few_times_each(order: range) -> None:
    holding: set[int] = set()
    asked = 0

    def condition(number: int) -> bool:
        nonlocal asked
        asked += 1
        return number in holding

    every = AllOf([partial(condition, number) for number in range(100)])
    for number in order:
        assert not every()
        holding.add(number)
    assert every()
    assert asked <= 3 * len(order)
    holding.discard(50)
    assert not every()
    assert AllOf([])()
