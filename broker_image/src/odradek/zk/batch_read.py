"""Reads of many znodes whose answers are handed out together, once the last came.

A result of kazoo has a lock, a condition and callbacks of its own, and each of its answers would
wake a future. With thousands of reads that takes longer than the reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from kazoo.protocol.serialization import GetData
from kazoo.protocol.states import ZnodeStat

from odradek.zk.client import Client
from odradek.zk.failures import name_znode

# Data and stat of a znode, or why there are none.
ReadAnswer: TypeAlias = tuple[bytes, ZnodeStat] | Exception

_PENDING: Final = object()


class BatchRead:
    """Reads `paths`; calls `on_done` with one answer per path, in the thread that has the last."""

    def __init__(
        self,
        client: Client,
        paths: Sequence[str],
        watcher: Callable[[Any], None] | None,
        on_done: Callable[[list[ReadAnswer]], None],
    ) -> None:
        self._answers: list[Any] = [_PENDING] * len(paths)
        self._left = len(paths)
        self._on_done = on_done
        self._lock = threading.Lock()
        self._paths, self._chroot = paths, client.chroot
        for number, path in enumerate(paths):
            client._call(GetData(self._chroot + path, watcher), _OneRead(self, number))

    def take(self, number: int, answer: ReadAnswer) -> None:
        """Take an answer. kazoo may find twice that there is none."""
        with self._lock:
            if self._answers[number] is not _PENDING:
                return
            self._answers[number] = answer
            self._left -= 1
            if self._left:
                return
        self._on_done(self._answers)

    def fail(self, number: int, error: Exception) -> None:
        """Take an error, which tells its znode."""
        name_znode(error, self._chroot + self._paths[number])
        self.take(number, error)


class _OneRead:
    """What kazoo needs of the result of a request."""

    __slots__ = ("_batch", "_number")

    def __init__(self, batch: BatchRead, number: int) -> None:
        self._batch = batch
        self._number = number

    def set(self, value: tuple[bytes, ZnodeStat]) -> None:
        self._batch.take(self._number, value)

    def set_exception(self, error: Exception) -> None:
        self._batch.fail(self._number, error)
