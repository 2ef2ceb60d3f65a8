"""Moves of a log between directories, step by step, for the tests of them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from odradek.log.manager import LogManager, Replacement
from odradek.log.partition import future
from odradek.log.partition.log import Log
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition
from tests.log.conftest import Make
from tests.support.logs import batch, new_log, read_all

KEY = TopicPartition("orders", 0)
SMALL = TopicConfig(segment_bytes=400)


class Crash(BaseException):
    """The process is gone."""


@dataclass
class Process:
    """Ends at the n-th change of a file or folder that is made while it is watched."""

    ends_at: int
    changes: int = 0
    _names: list[str] = field(
        default_factory=lambda: [
            "rename", "replace", "unlink", "mkdir", "fsync", "pwrite", "pwritev", "ftruncate",
        ]
    )  # fmt: skip

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patched:
            for name in self._names:
                patched.setattr(os, name, self._counting(getattr(os, name)))
            yield

    def _counting(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            self.changes += 1
            if self.changes >= self.ends_at:
                raise Crash
            return real(*arguments, **options)

        return call


def home(log: Log) -> str:
    return os.path.basename(os.path.dirname(log.directory))


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in read_all(log)]


def other(manager: LogManager, log: Log) -> str:
    """The directory that a log is not in."""
    mine = os.path.dirname(log.directory)
    return next(path for path in manager.online_directories if path != mine)


def begin(manager: LogManager, path: str | None = None, key: TopicPartition = KEY) -> Log:
    log = manager.get(*key)
    assert log is not None
    return manager.futures.create(key, log, path or other(manager, log), log.config)


def copy_all(manager: LogManager, key: TopicPartition = KEY) -> None:
    log, copy = manager.get(*key), manager.futures.get(key)
    assert log is not None
    assert copy is not None
    while future.copy(log, copy, 100) or copy.log_end_offset < log.log_end_offset:
        pass
    manager.futures.prepare(key, log)


def complete(manager: LogManager, key: TopicPartition = KEY) -> Log:
    copy_all(manager, key)
    done = manager.switch_to_future(key)
    assert done is not None
    manager.finish_switch(key, done)
    return done.log


def move(manager: LogManager, path: str | None = None, key: TopicPartition = KEY) -> Log:
    begin(manager, path, key)
    return complete(manager, key)


def folders(tmp_path: Path) -> list[str]:
    """Folders of partitions, those to be deleted not among them."""
    return sorted(
        f"{place}/{folder.name}"
        for place in ("a", "b")
        for folder in (tmp_path / place).iterdir()
        if folder.is_dir() and not folder.name.endswith("-delete")
    )


def switched(make: Make) -> tuple[LogManager, Replacement]:
    """A log of one record, `value`, right after its future log took its place."""
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"value"), 0)
    begin(manager)
    copy_all(manager)
    done = manager.switch_to_future(KEY)
    assert done is not None
    return manager, done


def crashed_between_the_renames(make: Make) -> tuple[Log, Log]:
    """The former and the present log; both folders have the partition's name."""
    _, done = switched(make)
    done.log.append_as_leader(batch(b"after"), 0)
    return done.former, done.log


def failing(*_: object, **__: object) -> int:
    raise OSError(errno.EIO, "Input/output error")


def failing_within(place: str, real: Callable[..., object]) -> Callable[..., object]:
    def call(source: str, target: str) -> object:
        return failing() if place in source else real(source, target)

    return call
