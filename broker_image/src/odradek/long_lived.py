"""Long-lived objects, which the garbage collector need not look through.

A full collection takes some 25 ms per 1000 replicas, because it looks through the objects of all
their logs, which nothing but a deletion ends. So they are frozen: after the start, and each time
that `MADE_PER_FREEZE` replicas were made since. Each of the latter comes after a collection of
what is not frozen yet, so no garbage is frozen with them. What an UpdateMetadata of many partitions
leaves is frozen without a collection, which would take a microsecond for four objects: the garbage
of that moment stays, but such requests are rare.

Frozen objects are still freed when their last reference goes. Logs that are deleted have no cycles
(see `LogFailure.close` and `SharedFile.retire`). What else lived at a freeze and dies in a cycle,
such as a task with an exception, stays. On a broker with few replicas, where that takes no longer
than other work, it is collected: after `DELETED_PER_THAW` deleted replicas, the next freeze first
looks through everything. With many replicas it stays, about a kilobyte per freeze.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

MADE_PER_FREEZE: Final = 100
DELETED_PER_THAW: Final = 10_000
MOST_THAWED: Final = 1000
PARTITIONS_PER_FREEZE: Final = 5000


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Collect no garbage meanwhile: hardly any of what modules make ever is.

    The collector would look through it again and again, for a tenth of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def freeze_loaded() -> None:
    """Freeze all that lives, without a look for garbage: opening logs makes none."""
    gc.freeze()


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

    def freeze_if_due(self, replicas: int) -> None:
        """Freeze if enough replicas were made since the last time; there are so many in all."""
        if self._made < MADE_PER_FREEZE:
            return
        if self._deleted >= DELETED_PER_THAW and replicas <= MOST_THAWED:
            gc.unfreeze()
            self._deleted = 0
        freeze()
        self._made = 0


class LongLivedMetadata:
    """Counts partitions of metadata that were described, to know when to freeze."""

    def __init__(self) -> None:
        self._described = 0

    def described(self, partitions: int) -> None:
        """Note that so many were described."""
        self._described += partitions
        if self._described >= PARTITIONS_PER_FREEZE:
            self._described = 0
            gc.freeze()
