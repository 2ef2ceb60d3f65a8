"""A future whose waiter resumes at once, without another round of the event loop.

The event loop resumes the waiter of an ordinary future in its next round. That costs every request
that is read from a socket one more round, with a poll of all other sockets. The waiter of an
`InlineFuture` resumes inside `settle` instead, as if the caller had called it. In everything else,
cancellation included, it is an ordinary future.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class InlineFuture(asyncio.Future[T]):
    """Awaited by one task. `settle` is for callbacks of the event loop: never inside a task."""

    _waiter: tuple[Callable[[Any], object], Context] | None = None

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        """Called by the task that awaits this; keeps at hand what wakes it."""
        super().add_done_callback(fn, context=context)
        if context is not None:
            self._waiter = fn, context

    def settle(self, result: T) -> None:
        """Give the waiter its result and run it until it waits for something else."""
        if self._waiter is None:
            self.set_result(result)
            return
        wake, context = self._waiter
        self.remove_done_callback(wake)
        self.set_result(result)
        context.run(wake, self)
