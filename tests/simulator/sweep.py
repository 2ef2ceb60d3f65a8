"""Many schedules in several processes, which can import this module, but not `__main__`."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator

from tests.simulator import bugs
from tests.simulator.run import run

CHUNK = 20


def attempt(seed: int, bug: str | None = None) -> str | None:
    """Return the invariant that the schedule of a seed broke, or None."""
    with bugs.planted(bug) if bug else contextlib.nullcontext():
        broken = run(seed)
    return None if broken is None else str(broken)


def replay(seed: int, bug: str | None = None) -> list[str]:
    """Return the trace of a schedule."""
    lines: list[str] = []
    with bugs.planted(bug) if bug else contextlib.nullcontext():
        run(seed, lines.append)
    return lines


def _attempt(work: tuple[int, str | None]) -> tuple[int, str | None]:
    return work[0], attempt(*work)


def attempts(
    first: int, count: int, bug: str | None, jobs: int
) -> Iterator[tuple[int, str | None]]:
    """Yield the seeds in order, with the invariants that they broke."""
    work = [(seed, bug) for seed in range(first, first + count)]
    if jobs == 1:
        yield from map(_attempt, work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_attempt, work, CHUNK)
