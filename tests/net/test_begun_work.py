"""Work that a callback begins for a task, which goes on with it."""

import asyncio
import contextlib
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from odradek.net.begun_work import BegunWork, begin


class Owner:
    """A task that does what is left of work that callbacks begin for it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.left: asyncio.Future[BegunWork | None] = self.loop.create_future()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        work = await self.left
        if work is not None:
            await work

    async def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin work in a callback of the event loop; raises what it raises."""
        await asyncio.sleep(0)  # the task waits
        done = self.loop.create_future()

        def call() -> None:
            try:
                self.left.set_result(begin(work, self.task, self.loop))
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)

        self.loop.call_soon(call)
        await done


async def test_work_without_a_wait_ends_at_once() -> None:
    owner, steps = Owner(), list[object]()

    async def work() -> None:
        steps.append(asyncio.current_task())

    await owner.begin(work())
    assert owner.left.result() is None
    assert steps == [owner.task]
    await owner.task


async def test_task_goes_on_with_what_waits() -> None:
    owner, more, steps = Owner(), asyncio.Event(), list[object]()

    async def work() -> None:
        async with asyncio.timeout(60):  # works in a task only
            await more.wait()
        steps.append(asyncio.current_task())
        await asyncio.sleep(0)
        steps.append("ended")

    await owner.begin(work())
    assert steps == []
    more.set()
    await owner.task
    assert steps == [owner.task, "ended"]


async def test_its_wait_may_be_over_before_the_task_goes_on() -> None:
    owner, steps = Owner(), list[str]()
    future = owner.loop.create_future()

    async def work() -> None:
        steps.append(await future)

    owner.loop.call_soon(owner.loop.call_soon, future.set_result, "result")
    await owner.begin(work())
    await owner.task
    assert steps == ["result"]


async def test_cancellation_of_the_task_is_one_of_the_work() -> None:
    owner, steps = Owner(), list[str]()

    async def work() -> None:
        try:
            await owner.loop.create_future()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned")

    await owner.begin(work())
    await asyncio.sleep(0)
    owner.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner.task
    assert steps == ["cleaned"]


async def test_an_error_that_the_work_handles_is_freed_at_once() -> None:
    owner, freed = Owner(), list[str]()
    futures = [owner.loop.create_future()] * 2

    class Error(Exception):
        def __del__(self) -> None:
            freed.append("freed")

    async def work() -> None:
        with contextlib.suppress(Error):
            await futures.pop()  # in no variable, which would be in the traceback

    await owner.begin(work())
    gc.disable()
    try:
        futures.pop().set_exception(Error())
        await owner.task
        assert freed == ["freed"]
    finally:
        gc.enable()


async def test_failure_at_once_is_the_callers_and_a_later_one_the_tasks() -> None:
    async def fail(wait: bool) -> None:
        if wait:
            await asyncio.sleep(0)
        raise LookupError

    owner = Owner()
    with pytest.raises(LookupError):
        await owner.begin(fail(wait=False))
    assert asyncio.current_task() is not None
    owner.task.cancel()
    owner = Owner()
    await owner.begin(fail(wait=True))
    with pytest.raises(LookupError):
        await owner.task
