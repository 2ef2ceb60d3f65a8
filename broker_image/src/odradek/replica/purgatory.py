"""Delayed operations: requests that wait for a partition, as produces with acks=all do.

An operation waits on a set of keys (partitions). Code that changes a partition calls `wake(key)`;
each waiter of the key then evaluates its condition and ends if it holds. A waiter also ends when
its time is over. Nothing runs while nothing changes: a waiter is a future, one entry per key and
one timer of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class _Waiter:
    __slots__ = ("future", "satisfied")

    def __init__(self, satisfied: Callable[[], bool] | None, future: asyncio.Future[bool]) -> None:
        self.satisfied = satisfied
        self.future = future


class Purgatory(Generic[Key]):
    """Waiting operations by key. Used from one event loop only."""

    def __init__(self) -> None:
        # In order of arrival.
        self._waiters: dict[Key, dict[_Waiter, None]] = {}
        self._closed = False

    def __len__(self) -> int:
        """Return how many (operation, key) entries wait."""
        return sum(map(len, self._waiters.values()))

    async def wait(
        self, keys: Iterable[Key], timeout_ms: float, satisfied: Callable[[], bool] | None = None
    ) -> bool:
        """Wait until a wake of one of the keys finds `satisfied()` true; return False on timeout.

        The caller has just checked its condition, without an await in between. Without a condition
        the first wake is enough.
        """
        if timeout_ms <= 0 or self._closed:
            return False
        loop = asyncio.get_running_loop()
        waiter = _Waiter(satisfied, loop.create_future())
        watched = tuple(keys)
        for key in watched:
            self._waiters.setdefault(key, {})[waiter] = None
        timer = loop.call_later(timeout_ms / 1000, _resolve, waiter.future, False)
        try:
            return await waiter.future
        finally:
            timer.cancel()
            for key in watched:
                waiting = self._waiters.get(key)
                if waiting is not None:
                    waiting.pop(waiter, None)
                    if not waiting:
                        del self._waiters[key]

    def wake(self, key: Key) -> None:
        """Let each waiter of the key check its condition again.

        An exception of a condition is for its waiter, not for whoever wakes it.
        """
        waiting = self._waiters.get(key)
        if waiting is None:
            return
        for waiter in tuple(waiting):
            if waiter.future.done():
                continue
            try:
                satisfied = waiter.satisfied is None or waiter.satisfied()
            except Exception as error:
                waiter.future.set_exception(error)
                continue
            if satisfied:
                waiter.future.set_result(True)

    def wake_all(self) -> None:
        """Let each waiter of any key check its condition again."""
        for key in tuple(self._waiters):
            self.wake(key)

    def close(self) -> None:
        """End every wait now, as on timeout: the broker stops."""
        self._closed = True
        for waiting in self._waiters.values():
            for waiter in waiting:
                _resolve(waiter.future, False)


def _resolve(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)
