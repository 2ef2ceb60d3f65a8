"""The start of the logs: directories are claimed and searched, and what is in them is opened."""

import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from odradek import slices
from odradek.log.directory import Directory, Folder, LogDirError
from odradek.log.future_logs import Found
from odradek.log.housekeeping import Housekeeper
from odradek.log.partition import recovery
from odradek.log.partition.checkpoints import LogDirMeta
from odradek.log.partition.log import Log, LogEnvironment
from odradek.log.segment.files import StoppedError
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition

# Folders that a thread opens in one go, at most.
_OPENED_AT_ONCE: Final = 50

logger = logging.getLogger(__name__)


def claim(directories: Collection[Directory], owner: LogDirMeta) -> None:
    """Lock the directories. Raises LogDirError as `LogManager.load` does."""
    for directory in directories:
        try:
            directory.claim(owner)
        except OSError as error:
            directory.fail_at_start(error)
    _check_distinct([one for one in directories if one.failure is None])


def _check_distinct(directories: Iterable[Directory]) -> None:
    """Raise LogDirError if two of the paths lead to one directory, or one is in the other like a
    partition. Its lock does not tell: it keeps out other processes.
    """
    found: dict[tuple[int, int], Directory] = {}
    for directory in directories:
        other = found.setdefault(directory.identity, directory)
        if other is not directory:
            raise LogDirError(
                f"log.dirs has the same directory twice: {other.path} and {directory.path}"
            )
    for directory, other in itertools.permutations(found.values(), 2):
        if directory.has_as_partition(other):
            raise LogDirError(
                f"log.dirs has {other.path} inside {directory.path}, under a name that "
                "partitions have: this broker would read and delete it as a partition"
            )


def find(directories: Iterable[Directory], housekeeper: Housekeeper) -> Iterator[Found]:
    """Yield the folders of partitions; the housekeeper deletes those that somebody gave up."""
    for directory in directories:
        for folder in _folders(directory, housekeeper):
            yield Found(directory, folder)


def _folders(directory: Directory, housekeeper: Housekeeper) -> list[Folder]:
    try:
        found, doomed = directory.folders()
    except OSError as error:
        directory.fail_at_start(error)
        return []
    for path in doomed:
        housekeeper.doom(directory, path)
    if found and not directory.was_clean:
        logger.info(
            "recovering %d logs in %s, which was not closed cleanly", len(found), directory.path
        )
    return found


@dataclass(frozen=True, slots=True)
class Loader:
    """Opens logs, and hands each to `opened` in the thread that opened it."""

    topic_config: Callable[[str], TopicConfig]
    environment: LogEnvironment
    opened: Callable[[TopicPartition, Log, Directory], None]

    def open_all(
        self, found: Sequence[Found], threads: int, progress: Callable[[int, int], None]
    ) -> None:
        """Open the logs in so many threads; `progress(done, total)` counts them.

        Raises StoppedError if the environment stops before the end.
        """
        done = 0
        with ThreadPoolExecutor(threads) as pool:
            parts = slices.cut_for_threads(found, threads, _OPENED_AT_ONCE)
            for number in pool.map(self._open_some, parts):
                done += number
                progress(done, len(found))
        if self.environment.is_stopping():
            raise StoppedError

    def _open_some(self, some: Sequence[Found]) -> int:
        for number, one in enumerate(some):
            if self.environment.is_stopping():
                return number
            with contextlib.suppress(StoppedError):
                self._open(one.directory, one.folder)
        return len(some)

    def _open(self, directory: Directory, folder: Folder) -> None:
        topic, partition = folder.key
        if directory.failure is not None:
            return
        try:
            log, report = recovery.open_log(
                directory.file(folder.name),
                topic,
                partition,
                self.topic_config(topic),
                self.environment,
                folder.known,
            )
        except OSError as error:
            directory.fail_at_start(error)
            return
        if report.truncated_bytes or report.dropped_segments or report.rebuilt:
            logger.warning(
                "recovered %s: truncated %d bytes, dropped %d segments, rebuilt %s",
                folder.name,
                report.truncated_bytes,
                report.dropped_segments,
                ", ".join(map(os.path.basename, report.rebuilt)) or "nothing",
            )
        log.high_watermark = folder.high_watermark
        log.is_future = folder.is_future
        self.opened(folder.key, log, directory)
