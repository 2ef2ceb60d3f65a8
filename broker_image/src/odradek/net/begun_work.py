"""Work that a callback of the event loop begins for a task, which does only what has to wait.

Nearly every request is answered without a wait. The task of its connection would be woken for it,
and would make a future to wait for the next one. So a callback runs the coroutine of a request up
to its first wait instead, as if the task did; few get there, and only those wake the task.

Python 3.12 can begin tasks so (`eager_start`), but each of them is a new task, which is what costs.
"""

from __future__ import annotations

import asyncio

# For whoever runs coroutines beside asyncio's tasks: see "Extending" in asyncio's documentation.
from asyncio.tasks import _enter_task as enter_task
from asyncio.tasks import _leave_task as leave_task
from collections.abc import Coroutine, Generator
from typing import Any, Final


class BegunWork:
    """What is left of a coroutine that has begun; to be awaited once, by the task it was begun for.

    What happens to the task, as a cancellation, happens to the coroutine.
    """

    __slots__ = ("_awaited", "_work")

    def __init__(self, work: Coroutine[Any, Any, None], awaited: Any) -> None:
        self._work: Final = work
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        awaited, self._awaited = self._awaited, None
        while True:
            try:
                try:
                    value = yield awaited
                except BaseException as thrown:  # as a cancellation
                    del awaited  # a future whose error has this frame in its traceback
                    awaited = self._work.throw(thrown)
                else:
                    del awaited  # its result may be large
                    awaited = self._work.send(value)
            except StopIteration:
                return

    def close(self) -> None:
        """Give the coroutine up, which was not awaited."""
        self._work.close()


def begin(
    work: Coroutine[Any, Any, None], task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop
) -> BegunWork | None:
    """Run a coroutine for a task that waits; return what is left of it, None if it has ended.

    Only callbacks of the event loop may call it. Raises what the coroutine raises.
    """
    enter_task(loop, task)
    try:
        awaited = work.send(None)
    except StopIteration:
        return None
    finally:
        leave_task(loop, task)
        del task  # what it raises may end the task, which would be in its own traceback
    return BegunWork(work, awaited)
