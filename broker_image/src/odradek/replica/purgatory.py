"""Delayed operations: requests that wait for a partition, as produces with acks=all do.

An operation waits on a set of keys (partitions). Code that changes a partition calls `wake(key)`;
each waiter of the key then evaluates its condition and ends if it holds. A waiter also ends when
its time is over. Nothing runs while nothing changes: a waiter is a future, one entry per key and
one timer of the event loop.

An operation on thousands of keys, which checks its condition in slices, begins a watch before its
check: a wake during the check is not lost. A watch has no entry per key, so that it begins and ends
at once; each wake looks its key up in every watch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Generic, TypeVar

from odradek.net.next_request import NextRequest

Key = TypeVar("Key", bound=Hashable)


class _Waiter:
    __slots__ = ("future", "satisfied")

    def __init__(self, satisfied: Callable[[], bool] | None, future: asyncio.Future[bool]) -> None:
        self.satisfied = satisfied
        self.future = future


class Watch(Generic[Key]):
    """Notices wakes of its keys from its begin on."""

    __slots__ = ("_future", "keys")

    def __init__(self, keys: Collection[Key], future: asyncio.Future[bool]) -> None:
        self.keys = keys
        self._future = future

    def resolve(self, woken: bool) -> None:
        """End the wait, one that begins later too."""
        if not self._future.done():
            self._future.set_result(woken)

    @property
    def is_resolved(self) -> bool:
        """Return whether the wait has ended, or whoever waited has gone."""
        return self._future.done()

    async def woken(self, timeout_ms: float, next_request: NextRequest | None = None) -> bool:
        """Wait until one of the keys was woken since the watch began.

        Return False on timeout, and if the wait holds up the next request.
        """
        if timeout_ms <= 0 and not self._future.done():
            return False
        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self.resolve, False)
        if next_request is not None:
            next_request.watch(partial(self.resolve, False))
        try:
            return await self._future
        finally:
            timer.cancel()
            if next_request is not None:
                next_request.unwatch()


class AllOf:
    """The condition that all of many hold. Each wake of an operation asks for it, as one after the
    other begins to hold: so it asks again where it found one that did not.
    """

    __slots__ = ("_conditions", "_next")

    def __init__(self, conditions: Sequence[Callable[[], bool]]) -> None:
        self._conditions = conditions
        self._next = 0

    def __call__(self) -> bool:
        """Return whether all hold now."""
        conditions = self._conditions
        for _ in conditions:
            if not conditions[self._next]():
                return False
            self._next = (self._next + 1) % len(conditions)
        return True


class Purgatory(Generic[Key]):
    """Waiting operations by key. Used from one event loop only."""

    def __init__(self) -> None:
        # In order of arrival.
        self._waiters: dict[Key, dict[_Waiter, None]] = {}
        self._watches: dict[Watch[Key], None] = {}
        self._closed = False

    def __len__(self) -> int:
        """Return how many (operation, key) entries wait, and watches."""
        return sum(map(len, self._waiters.values())) + len(self._watches)

    async def wait(
        self,
        keys: Iterable[Key],
        timeout_ms: float,
        satisfied: Callable[[], bool] | None = None,
        next_request: NextRequest | None = None,
    ) -> bool:
        """Wait until a wake of one of the keys finds `satisfied()` true.

        Return False on timeout, and if the wait holds up the next request. The caller has just
        checked its condition, without an await in between. Without a condition the first wake is
        enough.
        """
        if timeout_ms <= 0 or self._closed:
            return False
        loop = asyncio.get_running_loop()
        waiter = _Waiter(satisfied, loop.create_future())
        watched = tuple(keys)
        for key in watched:
            self._waiters.setdefault(key, {})[waiter] = None
        timer = loop.call_later(timeout_ms / 1000, _resolve, waiter.future, False)
        if next_request is not None:
            next_request.watch(partial(_resolve, waiter.future, False))
        try:
            return await waiter.future
        finally:
            timer.cancel()
            if next_request is not None:
                next_request.unwatch()
            for key in watched:
                waiting = self._waiters.get(key)
                if waiting is not None:
                    waiting.pop(waiter, None)
                    if not waiting:
                        del self._waiters[key]

    @contextlib.contextmanager
    def watch(self, keys: Collection[Key]) -> Iterator[Watch[Key]]:
        """Watch the keys, which are quick to look up in, until the block ends."""
        watch = Watch(keys, asyncio.get_running_loop().create_future())
        if self._closed:
            watch.resolve(False)
        self._watches[watch] = None
        try:
            yield watch
        finally:
            del self._watches[watch]

    def wake(self, key: Key) -> None:
        """Let each waiter of the key check its condition again, and end each watch of it.

        An exception of a condition is for its waiter, not for whoever wakes it.
        """
        if self._watches:
            for watch in self._watches:
                if key in watch.keys:
                    watch.resolve(True)
        if self._waiters:
            waiting = self._waiters.get(key)
            if waiting is not None:
                self._check(tuple(waiting))

    def _check(self, waiters: Iterable[_Waiter]) -> None:
        for waiter in waiters:
            if waiter.future.done():
                continue
            try:
                satisfied = waiter.satisfied is None or waiter.satisfied()
            except Exception as error:
                waiter.future.set_exception(error)
                continue
            if satisfied:
                waiter.future.set_result(True)

    def wake_each(self, keys: AbstractSet[Key]) -> None:
        """Wake the keys, but let who waits for several of them check its condition only once."""
        for watch in self._watches:
            if not keys.isdisjoint(watch.keys):
                watch.resolve(True)
        awaited = self._waiters.keys() & keys
        self._check(dict.fromkeys(one for key in awaited for one in self._waiters[key]))

    def wake_all(self) -> None:
        """Let each waiter of any key check its condition again, and end each watch."""
        for watch in self._watches:
            watch.resolve(True)
        self._check(dict.fromkeys(one for waiting in self._waiters.values() for one in waiting))

    def close(self) -> None:
        """End every wait now, as on timeout: the broker stops."""
        self._closed = True
        for waiting in self._waiters.values():
            for waiter in waiting:
                _resolve(waiter.future, False)
        for watch in self._watches:
            watch.resolve(False)


def _resolve(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)
