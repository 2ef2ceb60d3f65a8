"""When brokers in JVMs are warm: passes of the same work, until they take no less than the last.

A JVM compiles for long, and a busy machine makes it longer. So what counts is processor time, not
speed, and how much it fell from one pass to the next. Pure: who calls it does the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

# A pass that took a system less than this share of the one before is not its last.
STILL_WARMING: Final = 0.9


def warm_up(do_pass: Callable[[int], Mapping[str, float]], most: int) -> int:
    """Do passes, numbered from 0, until no system gets faster, but so many at most.

    A pass returns what each system in a JVM took, in any unit. Returns how many were done.
    """
    former: Mapping[str, float] = {}
    for number in range(most):
        spent = do_pass(number)
        if number and all(took > STILL_WARMING * former[name] for name, took in spent.items()):
            return number + 1
        former = spent
    return most
