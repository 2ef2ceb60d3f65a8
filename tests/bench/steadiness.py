"""How steady the speed of the processors is: the time that fixed work takes before measurements.

A virtual processor that shares a core with somebody else's is slower meanwhile, and nothing is
stolen (see `stolen`). Ratios stay near what they are if systems are measured by turns; their
intervals grow.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Final

MUCH: Final = 1.2
"""How many times its shortest time the loop may take on a steady machine, in the slowest tenth."""
_STEPS: Final = 50_000
_TRIES: Final = 3


def loop_s() -> float:
    """Return the seconds of processor time that a loop takes, the shortest of a few tries."""
    return min(_once() for _ in range(_TRIES))


def _once() -> float:
    before = time.thread_time()
    total = 0
    for number in range(_STEPS):
        total += number * 2
    return time.thread_time() - before


def slowest_tenth(found: Sequence[float]) -> float:
    """Return how many times the shortest time the slowest tenth of loops took at least; 1 with
    fewer than two of them.
    """
    return quantiles(found, n=10, method="inclusive")[-1] / min(found) if len(found) > 1 else 1.0


def said(found: Sequence[float]) -> str:
    """Return a clause on loops before measurements, which are one at least."""
    middle = median(found) / min(found)
    return (
        f"a fixed loop took {middle:.2f} times its shortest time in the median, "
        f"and {slowest_tenth(found):.2f} in the slowest tenth"
    )
