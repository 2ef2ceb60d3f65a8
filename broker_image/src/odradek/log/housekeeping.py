"""Background work: fsync of rolled segments, retention, removal of files, checkpoints.

One round does everything that is due. Rounds come each second and look only at the logs that asked
for it (`Log.needs_housekeeping`), so that many partitions at rest cost nothing. What is due once a
minute or less often looks at all logs. An error of one log, foreseen or not, leaves that log to the
next round, and the others go on. `stop` ends a round under way after the current log.
Compaction is apart, in `compactor`.
"""

import errno
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from odradek.config import BrokerConfig
from odradek.log.directory import Directory, deleted_name, stray_name
from odradek.log.partition import truncation
from odradek.log.partition.log import Log, LogEnvironment
from odradek.log.records.batch import CorruptBatchError
from odradek.log.segment.files import (
    FileRetiredError,
    StoppedError,
    is_disk_failure,
    list_names,
    remove_tree,
)
from odradek.log.segment.names import LOG_SUFFIX
from odradek.protocol.errors import KafkaError
from odradek.quarantine import Quarantines, Work
from odradek.values import TopicPartition

logger = logging.getLogger(__name__)

_AGAIN_MS = 60_000
_IDLE_INTERVAL_S = 60.0
_PRODUCER_EXPIRY_INTERVAL_S = 600.0


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A folder that is to lose the name of its partition."""

    directory: Directory
    key: TopicPartition
    path: str
    is_kept: bool
    delete_delay_ms: int


class Housekeeper:
    """Runs the rounds, one at a time. The other methods may be called from any thread."""

    def __init__(
        self,
        config: BrokerConfig,
        directories: Iterable[Directory],
        environment: LogEnvironment,
        quarantines: Quarantines,
    ) -> None:
        self._config = config
        self._directories = list(directories)
        self._environment = environment
        self._quarantines = quarantines
        self._stopping = threading.Event()
        self._round = threading.Lock()
        self._doomed: list[tuple[float, Directory, str]] = []
        self._lock = threading.Lock()
        # Folders that could not be renamed, by path.
        self._leaving: dict[str, _Leaving] = {}
        self._renames = threading.Lock()
        self._due: dict[str, float] = {}
        # Logs that the next round looks at.
        self._requested: set[Log] = set()

    def request(self, log: Log) -> None:
        """Have the next round look at a log, and those after it while `needs_housekeeping`."""
        with self._lock:
            self._requested.add(log)

    def doom(self, directory: Directory, path: str, after_ms: int = 0) -> None:
        """Schedule the removal of a folder."""
        due = self._environment.monotonic() + after_ms / 1000
        with self._lock:
            self._doomed.append((due, directory, path))

    def remove(
        self,
        directory: Directory,
        logs: Sequence[tuple[TopicPartition, Log]],
        *,
        keep_records: bool = False,
    ) -> bool:
        """Close logs that left `directory`, rename their folders, and delete these after
        file.delete.delay.ms. With `keep_records`, folders with records stay.

        Return whether all have their new names: what failed for another reason than the disk is
        tried again in each round. Raises OSError.
        """
        for _, log in logs:
            log.abandon()
        directory.forget({key for key, _ in logs})
        with self._renames:
            return self._rename(
                _Leaving(
                    directory,
                    key,
                    log.directory,
                    keep_records and log.log_end_offset > log.log_start_offset,
                    log.config.file_delete_delay_ms,
                )
                for key, log in logs
            )

    def free_name(self, directory: Directory, key: TopicPartition) -> None:
        """Rename a folder that has the name of a partition, but is not its log: a move or a
        deletion that failed left it. It is deleted if it was to be, or holds no records.

        Raises OSError.
        """
        path = directory.file(str(key))
        with self._renames:
            if not os.path.isdir(path):
                return
            found = _Leaving(directory, key, path, _has_records(path), 0)
            if not self._rename((self._leaving.pop(path, found),)):
                raise OSError(errno.EBUSY, "the folder of a former log has the name", path)

    def free_names(self, key: TopicPartition) -> None:
        """Rename the folders of former logs of a partition that still await their new names.

        Raises OSError where one cannot be renamed now.
        """
        with self._renames:
            for one in tuple(self._leaving.values()):
                if one.key == key and not self._retry_rename(one):
                    raise OSError(
                        errno.EBUSY, "a folder of a former log has its old name", one.path
                    )

    def _rename(self, leaving: Iterable[_Leaving]) -> bool:
        """Give folders other names, durably; return whether all have them."""
        renamed: list[tuple[_Leaving, str]] = []
        all_done = True
        for one in leaving:
            name = stray_name if one.is_kept else deleted_name
            path = one.directory.file(name(*one.key, uuid.uuid4().hex))
            try:
                os.replace(one.path, path)
            except OSError as error:
                if is_disk_failure(error):
                    raise
                logger.error("failed to rename %s: %s; retrying", one.path, error)
                self._leaving[one.path] = one
                all_done = False
                continue
            renamed.append((one, path))
            if one.is_kept:
                logger.warning("%s: kept the former log: %s", one.key, path)
        for directory in {id(one.directory): one.directory for one, _ in renamed}.values():
            directory.sync_names()
        for one, path in renamed:
            if not one.is_kept:
                self.doom(one.directory, path, one.delete_delay_ms)
        return all_done

    def _retry_renames(self) -> None:
        for path in tuple(self._leaving):
            with self._renames:
                one = self._leaving.get(path)
                if one is not None:
                    self._retry_rename(one)

    def _retry_rename(self, one: _Leaving) -> bool:
        if one.directory.failure is not None:
            return False
        del self._leaving[one.path]
        try:
            return self._rename((one,))
        except OSError as error:
            self._leaving[one.path] = one
            one.directory.fail(error)
            return False

    def stop(self) -> None:
        """Stop the round under way and wait for that."""
        self._stopping.set()
        with self._round:
            pass

    def round(self) -> None:
        """Do everything that is due."""
        with self._round:
            try:
                self._do_what_is_due()
            except StoppedError:
                return

    def _do_what_is_due(self) -> None:
        now = self._environment.monotonic()
        config = self._config
        self._do_what_was_requested()
        self._retry_renames()
        self._remove_doomed(now)
        if self._is_due("retention", now, config.log_retention_check_interval_ms / 1000):
            self._each(self._logs(), Log.apply_retention)
        if self._is_due("idle", now, _IDLE_INTERVAL_S):
            self._each(self._logs(), Log.release_idle)
        if self._is_due("expiry", now, _PRODUCER_EXPIRY_INTERVAL_S):
            self._each(self._logs(), Log.expire_producers)
        if self._is_due("checkpoint", now, config.log_flush_offset_checkpoint_interval_ms / 1000):
            self._each_directory(Directory.write_recovery_points)
        if self._is_due("start", now, config.log_flush_start_offset_checkpoint_interval_ms / 1000):
            self._each_directory(Directory.write_start_offsets)

    def _do_what_was_requested(self) -> None:
        with self._lock:
            requested, self._requested = self._requested, set()
        # A future log asks again once it is the current one.
        logs = [
            log for log in requested if log.failure is None and not log.closed and not log.is_future
        ]
        again: set[Log] = set()
        for work in (truncation.finish, _flush_due, Log.delete_due):
            again |= self._each(logs, work)
        again.update(log for log in logs if log.needs_housekeeping)
        with self._lock:
            self._requested |= again

    def _logs(self) -> list[Log]:
        return [
            log
            for directory in self._directories
            for log in directory.logs().values()
            if log.failure is None and not log.closed
        ]

    def _each_directory(self, work: Callable[[Directory], object]) -> None:
        for directory in self._directories:
            if directory.failure is None:
                with self._quarantines.guard(Work.CHECKPOINT, directory.path):
                    work(directory)

    def _is_due(self, task: str, now: float, interval_s: float) -> bool:
        if now < self._due.get(task, 0):
            return False
        self._due[task] = now + interval_s
        return True

    def _each(self, logs: Iterable[Log], work: Callable[[Log], object]) -> set[Log]:
        """Apply `work` to each log; return those that an unexpected exception quarantined.

        An error concerns that log only and was reported already.
        """
        quarantined: set[Log] = set()
        for log in logs:
            if self._stopping.is_set():
                raise StoppedError
            if log.closed:
                continue
            try:
                work(log)
            except FileRetiredError:
                continue  # truncated or deleted meanwhile: nothing is left to do
            except (KafkaError, CorruptBatchError) as error:
                logger.warning(
                    "failed to maintain %s-%d: %s; retrying", log.topic, log.partition, error
                )
            except Exception as error:
                self._quarantines.put(Work.MAINTENANCE, _subject(log, work), error)
                quarantined.add(log)
            else:
                if self._quarantines.active:
                    self._quarantines.release(Work.MAINTENANCE, _subject(log, work))
        return quarantined

    def _remove_doomed(self, now: float) -> None:
        with self._lock:
            due = [entry for entry in self._doomed if entry[0] <= now]
            self._doomed = [entry for entry in self._doomed if entry[0] > now]
        for _, directory, path in due:
            try:
                remove_tree(path)
            except OSError as error:
                directory.judge(error)
                if directory.failure is None:
                    self.doom(directory, path, _AGAIN_MS)
            except Exception as error:
                self._quarantines.note(Work.MAINTENANCE, path, error, "retrying")
                self.doom(directory, path, _AGAIN_MS)


def _has_records(folder: str) -> bool:
    return any(
        name.endswith(LOG_SUFFIX) and os.path.getsize(os.path.join(folder, name))
        for name in list_names(folder)
    )


def _subject(log: Log, work: Callable[[Log], object]) -> str:
    return f"{log.topic}-{log.partition}: {work.__name__.strip('_')}"


def _flush_due(log: Log) -> None:
    if log.flush_is_due:
        log.flush()
    elif log.has_unflushed_segments:
        log.flush(only_rolled=True)
