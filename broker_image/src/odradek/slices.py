"""Long work in slices, so that the event loop serves others in between.

A request that names ten thousand partitions must not hold up a heartbeat or a produce. Loops over
what a request names give the loop back after each slice. What others could see half done is built
apart and takes effect at once. To free a million objects takes long, too: `discard` does it in
slices, and the collector of garbage waits until then instead of looking through them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import traceback
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

# Steps of some ten microseconds each, so a few milliseconds.
STEPS_PER_SLICE: Final = 200
# Names of up to 32 KB that are escaped, each of which takes a millisecond or two.
LONG_NAMES_PER_SLICE: Final = STEPS_PER_SLICE // 10
# Keys that are put into a dictionary at once, each in less than a microsecond.
KEYS_AT_ONCE: Final = 5000
# Of what threads share. Items may differ: a log after a crash may be read whole.
LISTS_PER_THREAD: Final = 4

T = TypeVar("T")
U = TypeVar("U")

# Work may wait for ZooKeeper or a disk, and pauses may overlap without end.
LONGEST_PAUSE_S: Final = 60.0
# Entries of a container that are freed at once, which takes about a millisecond.
FREED_AT_ONCE: Final = 5000

# One entry per pause of the collector, the end of the longest time that they may take together, and
# the callback that ends them. Only the event loop changes them.
_pauses: Final[list[None]] = []
_limits: Final[list[asyncio.TimerHandle]] = []
_ends: Final[list[asyncio.Handle]] = []
_tasks: Final[set[asyncio.Task[None]]] = set()


def cut(items: Iterable[T], size: int = STEPS_PER_SLICE) -> Iterator[list[T]]:
    """Yield the items in lists of `size`, the last one shorter."""
    remaining = iter(items)
    while part := list(islice(remaining, size)):
        yield part


def cut_for_threads(items: Collection[T], threads: int, most: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `most`, and short enough that no thread is left without
    one while another has several items to go.
    """
    return cut(items, max(1, min(most, len(items) // (LISTS_PER_THREAD * threads))))


def cut_members(
    groups: Iterable[T], members: Callable[[T], Iterable[U]], size: int = STEPS_PER_SLICE
) -> Iterator[list[tuple[T, U]]]:
    """Yield each group with each of its members, in lists of at most `size`.

    A group is a step as well: `size` groups without members make an empty list.
    """
    part: list[tuple[T, U]] = []
    steps = 0
    for group in groups:
        steps += 1
        for member in members(group):
            part.append((group, member))
            if len(part) == size:
                yield part
                part, steps = [], 0
        if steps >= size:
            yield part
            part, steps = [], 0
    if part:
        yield part


async def unique(items: Iterable[T]) -> dict[T, None]:
    """Return each item once, in order. Others run in between if there are many."""
    found: dict[T, None] = {}
    for few in cut(items, KEYS_AT_ONCE):
        found |= dict.fromkeys(few)
        if len(few) == KEYS_AT_ONCE:
            await pause()
    return found


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


async def run_in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run work that takes long and cannot be done in slices. What it raises keeps no large objects
    alive, which the event loop would free in one go.
    """

    def run_and_clear() -> T:
        try:
            return work(*arguments)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
            raise

    return await asyncio.to_thread(run_and_clear)


def run_in_background(work: Generator[None, None, None]) -> None:
    """Run work for whose end nobody waits. The collector pauses from now on."""
    begin_pause()
    task = asyncio.get_running_loop().create_task(run(work))
    _tasks.add(task)
    task.add_done_callback(_ended)


def _ended(task: asyncio.Task[None]) -> None:
    _tasks.discard(task)
    end_pause()


def discard(*containers: list[Any] | dict[Any, Any] | set[Any]) -> None:
    """Empty containers that nobody uses any more, large ones in slices and in the background.

    Freeing a million objects at once takes some 100 ms.
    """
    large = [one for one in containers if len(one) > FREED_AT_ONCE]
    if large:
        run_in_background(_emptied(large))


def _emptied(containers: list[Any]) -> Generator[None, None, None]:
    for one in containers:
        while one:
            if isinstance(one, list):
                del one[-FREED_AT_ONCE:]
            else:
                take = one.popitem if isinstance(one, dict) else one.pop
                for _ in range(min(len(one), FREED_AT_ONCE)):
                    take()
            yield


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no garbage while work makes many objects that last until its end.

    Else Python looks for cycles through all objects of the process every time that these are a
    quarter more: some 100 ms for each 5000 partitions that have a log. Not for work that waits for
    a client. Pauses that overlap end after LONGEST_PAUSE_S all the same.
    """
    begin_pause()
    try:
        yield
    finally:
        end_pause()


def begin_pause() -> None:
    """Begin what `collector_paused` does; `end_pause` must follow."""
    if _ends:
        _ends.pop().cancel()
    if not _limits:
        gc.disable()
        _limits.append(asyncio.get_running_loop().call_later(LONGEST_PAUSE_S, _end_long_pause))
    _pauses.append(None)


def end_pause() -> None:
    """End one pause. If it is the last, the collector waits for the next turn of the event loop:
    by then what was made is encoded in the next pause, or freed.
    """
    _pauses.pop()
    if _pauses:
        return
    try:
        _ends.append(asyncio.get_running_loop().call_soon(_resume))
    except RuntimeError:  # the event loop is over
        _resume()


def _end_long_pause() -> None:
    """Let the collector work beside pauses that go on, but not look through what was made in them.

    Most of that is freed without it. The garbage of this moment stays.
    """
    gc.freeze()
    gc.enable()


def _resume() -> None:
    _ends.clear()
    _limits.pop().cancel()
    gc.enable()
