"""The open files of all logs: a bound on their descriptors.

A partition has three files, so brokers have more files than descriptors. Beyond the limit, files
that nobody uses are closed, those first that were not used for longest (the clock algorithm: a file
used since it was last looked at is passed over once). They open again at their next use. Only files
in use, such as those of answers being sent, can exceed the limit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol

from odradek import descriptors

# Files looked at for each that opens: the limit is exceeded by about a 64th while all are in use.
_LOOKS = 64


class OpenFile(Protocol):
    """A file that can give up its descriptor; it tells `OpenFiles` when it opens and closes."""

    @property
    def cost(self) -> int:
        """Descriptors that it takes."""

    def close_unused(self, *, even_if_used_lately: bool = False) -> bool:
        """Close the file if nobody uses it; return whether it did. Never waits."""


class OpenFiles:
    """Counts descriptors, and closes unused files beyond `limit`. Safe to call from any thread."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._count = 0
        self._files: OrderedDict[OpenFile, None] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        """Return the share of the log, by the limit of the process when this was first asked."""
        if self._limit is None:
            self._limit = descriptors.budget().log_files
        return self._limit

    @property
    def count(self) -> int:
        """Return how many descriptors the open files take."""
        return self._count

    def add(self, file: OpenFile) -> None:
        """Count a file that was opened; close others if there are too many."""
        with self._lock:
            self._files[file] = None
            self._count += file.cost
            looks = _LOOKS
            while self._count > self.limit and looks > 0:
                looks -= 1
                self._look(even_if_used_lately=False)

    def remove(self, file: OpenFile) -> None:
        """Stop counting a file that was closed."""
        with self._lock:
            self._forget(file)

    def release_some(self) -> bool:
        """Close some unused files, because descriptors ran out; return whether there were any."""
        with self._lock:
            closed = [self._look(even_if_used_lately=True) for _ in range(_LOOKS)]
            return any(closed)

    def _look(self, *, even_if_used_lately: bool) -> bool:
        if not self._files:
            return False
        file = next(iter(self._files))
        if file.close_unused(even_if_used_lately=even_if_used_lately):
            self._forget(file)
            return True
        self._files.move_to_end(file)
        return False

    def _forget(self, file: OpenFile) -> None:
        if file in self._files:
            del self._files[file]
            self._count -= file.cost


OPEN_FILES = OpenFiles()
