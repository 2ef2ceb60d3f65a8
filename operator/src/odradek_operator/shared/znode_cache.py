"""Znodes that are read once and cached until ZooKeeper reports a change.

Each read leaves a one-shot watch, whose event evicts the entry. Watches live as long as the
connection, so the whole cache is cleared with it. A cached value may be as old as a watch event
takes, like any read: writes are conditional on the versions seen. A missing znode is not cached,
since reading it leaves no watch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from posixpath import dirname
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")

# Reads paths from ZooKeeper and leaves a watch on each; None for what does not exist.
Ask = Callable[[Iterable[str], Callable[[Any], None]], dict[str, Value | None]]


class ZnodeCache(Generic[Value]):
    """Values by path; thread-safe."""

    def __init__(self, ask: Ask[Value]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._known: dict[str, Value] = {}
        # Who waits for the answer for a path. A notice takes the entry away, so that an answer from
        # before a change is not remembered after it.
        self._waiting: dict[str, object] = {}

    def get(self, paths: Iterable[str]) -> dict[str, Value | None]:
        """Return what each path holds, reading only what is not cached."""
        mine = object()
        with self._lock:
            found: dict[str, Value | None] = {path: self._known.get(path) for path in paths}
            missing = [path for path, value in found.items() if value is None]
            self._waiting.update(dict.fromkeys(missing, mine))
        if not missing:
            return found
        answers: dict[str, Value | None] = {}
        try:
            answers = self._ask(missing, self._changed)
        finally:
            with self._lock:
                for path in missing:
                    if self._waiting.get(path) is mine:
                        del self._waiting[path]
                        value = answers.get(path)
                        if value is not None:
                            self._known[path] = value
        return found | answers

    def _changed(self, event: Any) -> None:
        self.forget([event.path])

    def forget(self, paths: Iterable[str]) -> None:
        """Evict these paths."""
        with self._lock:
            for path in paths:
                self._known.pop(path, None)
                self._waiting.pop(path, None)

    def clear(self) -> None:
        """Evict everything."""
        with self._lock:
            self._known.clear()
            self._waiting.clear()


class CachedZnodes(Generic[Value]):
    """The znodes of one session, read through caches of their data and of their children."""

    def __init__(self, read: Ask[Value], children: Ask[list[str]]) -> None:
        self._data = ZnodeCache(read)
        self._children = ZnodeCache(children)
        # As a ZnodeReader: None for a znode that does not exist.
        self.read = self._data.get
        self.children = self._children.get

    def forget(self, paths: Sequence[str]) -> None:
        """Read znodes again that were just written, before the watch events have come."""
        self._data.forget(paths)
        self._children.forget({*paths, *map(dirname, paths)})

    def clear(self) -> None:
        """Read everything again."""
        self._data.clear()
        self._children.clear()
