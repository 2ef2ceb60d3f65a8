"""Many schedules in several processes, which can import this module, but not `__main__`."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulator import bugs, schedule
from tests.simulator.run import run

CHUNK = 20
KINDS = {
    "any": schedule.plan,
    "outages": schedule.outage,
    "transactions": schedule.transactions,
}


@dataclass(frozen=True, slots=True)
class Sweep:
    """What each seed stands for: a schedule of one kind (see `schedule`), and a planted bug."""

    bug: str | None = None
    kind: str = "any"

    def attempt(self, seed: int) -> tuple[int, str | None]:
        """Return the seed and the invariant that its schedule broke, or None."""
        with self._planted():
            broken = run(self._schedule(seed))
        return seed, None if broken is None else str(broken)

    def replay(self, seed: int) -> list[str]:
        """Return the trace of a schedule."""
        lines: list[str] = []
        with self._planted():
            run(self._schedule(seed), lines.append)
        return lines

    def attempts(self, first: int, count: int, jobs: int) -> Iterator[tuple[int, str | None]]:
        """Yield the seeds in order, with the invariants that they broke."""
        seeds = range(first, first + count)
        if jobs == 1:
            yield from map(self.attempt, seeds)
            return
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            yield from pool.imap(self.attempt, seeds, CHUNK)

    def _planted(self) -> contextlib.AbstractContextManager[None]:
        return bugs.planted(self.bug) if self.bug else contextlib.nullcontext()

    def _schedule(self, seed: int) -> schedule.Schedule:
        return KINDS[self.kind](seed)
