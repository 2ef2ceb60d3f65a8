"""Long work in slices, so that the event loop serves others in between.

A request that names ten thousand partitions must not hold up a heartbeat or a produce. Loops over
what a request names give the loop back after each slice. What others could see half done is built
apart and takes effect at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

# Steps of some ten microseconds each, so a few milliseconds.
STEPS_PER_SLICE: Final = 200

T = TypeVar("T")

# Work may wait for ZooKeeper or a disk, and pauses may overlap without end.
LONGEST_PAUSE_S: Final = 10.0

# One entry per pause of the collector, and the end of the first; only the event loop changes them.
_pauses: Final[list[None]] = []
_limits: Final[list[asyncio.TimerHandle]] = []


def cut(items: Iterable[T], size: int = STEPS_PER_SLICE) -> Iterator[list[T]]:
    """Yield the items in lists of `size`, the last one shorter."""
    remaining = iter(items)
    while part := list(islice(remaining, size)):
        yield part


async def pause() -> None:
    """Let the event loop run whatever else is ready, between two slices."""
    await asyncio.sleep(0)


async def run(work: Generator[None, None, T]) -> T:
    """Run work to its end and return its result. Where it yields, the event loop runs others."""
    try:
        next(work)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    with collector_paused():
        while True:
            await asyncio.sleep(0)
            try:
                next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no garbage while work makes many objects that last until its end.

    Else Python looks for cycles through all objects of the process every time that these are a
    quarter more: some 100 ms for each 5000 partitions that have a log. Not for work that waits for
    a client. Pauses that overlap end after LONGEST_PAUSE_S all the same.
    """
    if not _pauses:
        gc.disable()
        _limits.append(asyncio.get_running_loop().call_later(LONGEST_PAUSE_S, gc.enable))
    _pauses.append(None)
    try:
        yield
    finally:
        _pauses.pop()
        if not _pauses:
            _limits.pop().cancel()
            gc.enable()
