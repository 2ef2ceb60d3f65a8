"""A waiter that goes on inside `settle`, and is otherwise like that of any future."""

import asyncio

import pytest

from odradek.net.inline_future import InlineFuture


async def waiting_on(future: InlineFuture[int], steps: list[str]) -> asyncio.Task[int]:
    """A task that waits on it, and notes how far it came."""

    async def wait() -> int:
        result = await future
        steps.append("woken")
        return result

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert not task.done()
    return task


def in_a_callback(future: InlineFuture[int], steps: list[str]) -> None:
    """Settle it where it may be settled: in a callback of the event loop."""

    def settle() -> None:
        future.settle(7)
        steps.append("settled")

    asyncio.get_running_loop().call_soon(settle)


async def test_waiter_goes_on_before_settle_returns() -> None:
    future, steps = InlineFuture[int](), list[str]()
    task = await waiting_on(future, steps)
    in_a_callback(future, steps)
    assert await task == 7
    assert steps == ["woken", "settled"]


async def test_waiter_is_the_current_task_and_may_wait_again() -> None:
    future, more = InlineFuture[int](), asyncio.Event()

    async def wait() -> tuple[bool, int]:
        result = await future
        async with asyncio.timeout(60):  # works in a task only
            await more.wait()
        return asyncio.current_task() is task, result

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    in_a_callback(future, [])
    await asyncio.sleep(0)
    more.set()
    assert await task == (True, 7)


async def test_failure_of_the_waiter_is_its_own() -> None:
    future, steps = InlineFuture[int](), list[str]()

    async def fail() -> None:
        await future
        raise LookupError

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    in_a_callback(future, steps)
    with pytest.raises(LookupError):
        await task
    assert steps == ["settled"]


async def test_waiter_can_be_cancelled() -> None:
    future, steps = InlineFuture[int](), list[str]()
    task = await waiting_on(future, steps)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert future.cancelled()
    assert steps == []


async def test_result_and_exception_from_inside_a_task_wake_as_usual() -> None:
    future, steps = InlineFuture[int](), list[str]()
    task = await waiting_on(future, steps)
    future.set_result(3)
    assert steps == []
    assert await task == 3
    failing = InlineFuture[int]()
    task = await waiting_on(failing, steps)
    failing.set_exception(LookupError())
    with pytest.raises(LookupError):
        await task


async def test_settled_before_anybody_waits() -> None:
    future = InlineFuture[int]()
    in_a_callback(future, [])
    await asyncio.sleep(0)
    assert await future == 7
