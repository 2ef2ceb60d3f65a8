"""Long-lived objects, which the garbage collector need not look through.

A full collection takes some 25 ms per 1000 replicas, because it looks through the objects of all
their logs, which nothing but a deletion ends. So they are frozen: after the start, and each time
that `MADE_PER_FREEZE` replicas were made since. Each freeze comes after a collection of what is not
frozen yet, so no garbage is frozen with them.

Frozen objects are still freed when their last reference goes. Logs that are deleted have no cycles
(see `LogFailure.close` and `SharedFile.retire`). What else lived at a freeze and dies in a cycle,
such as a task with an exception, stays. It is bounded: after `DELETED_PER_THAW` deleted replicas,
the next freeze first looks through everything.
"""

from __future__ import annotations

import gc
from typing import Final

MADE_PER_FREEZE: Final = 250
DELETED_PER_THAW: Final = 10_000


def freeze() -> None:
    """Collect the garbage that is not frozen, and freeze all that lives."""
    gc.collect()
    gc.freeze()


class LongLived:
    """Counts replicas, to know when to freeze."""

    def __init__(self) -> None:
        self._made = 0
        self._deleted = 0

    def made(self) -> None:
        """Note that a replica was made."""
        self._made += 1

    def deleted(self, replicas: int) -> None:
        """Note that replicas were deleted."""
        self._deleted += replicas

    def freeze_if_due(self) -> None:
        """Freeze if enough replicas were made since the last time."""
        if self._made < MADE_PER_FREEZE:
            return
        if self._deleted >= DELETED_PER_THAW:
            gc.unfreeze()
            self._deleted = 0
        freeze()
        self._made = 0
