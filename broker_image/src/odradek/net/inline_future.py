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
    """A future that one task awaits. Only callbacks of the event loop may call `settle`."""

    _waiter: tuple[Callable[[Any], object], Context] | None = None

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        """Remember the callback that resumes the awaiting task."""
        super().add_done_callback(fn, context=context)
        if context is not None:
            self._waiter = fn, context

    def settle(self, result: T) -> None:
        """Set the result and run the waiter until it awaits something else."""
        if self._waiter is None:
            self.set_result(result)
            return
        wake, context = self._waiter
        self.remove_done_callback(wake)
        self.set_result(result)
        context.run(wake, self)


def wake(waiter: InlineFuture[None]) -> None:
    """Let whoever awaits it go on at once, unless it is done: a callback of the event loop."""
    if not waiter.done():
        waiter.settle(None)
