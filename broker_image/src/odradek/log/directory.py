"""One directory of `log.dirs`: its owner, its partitions, and Kafka's checkpoint files.

`meta.properties` says which cluster and broker a directory belongs to; `.lock` keeps a second
process out. A directory whose disk fails goes offline with its partitions, and `on_failure` is
called once. Nothing is retried on it: after a failed fsync nobody knows what the disk holds. An
error of one name, or a shortage of descriptors or memory, says nothing about the disk: it fails the
operation, and background work is retried later.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

from odradek import descriptors, slices
from odradek.log.partition import checkpoints, future
from odradek.log.partition.checkpoints import CorruptCheckpointError, LogDirMeta
from odradek.log.partition.log import Log
from odradek.log.partition.recovery import Checkpointed
from odradek.log.segment.files import is_disk_failure, is_shortage, sync, write_atomically
from odradek.properties import INT_MAX
from odradek.values import TopicPartition

logger = logging.getLogger(__name__)


_FOLDER = re.compile(r"^(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]{1,10})$")
_FUTURE_FOLDER = re.compile(
    r"^(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]{1,10})\.[0-9a-f]{32}-future$"
)
_DOOMED_FOLDER = re.compile(r"\.[0-9a-f]{32}-delete$")
CLOSING_THREADS = 16
"""Logs that are closed at the same time, each waiting for its fsyncs."""
# Logs that a thread closes in one go, at most. Most may be at rest, and take less than to give them
# to it.
_CLOSED_AT_ONCE = 10
LONGEST_FILE_NAME = 255
"""Bytes of a name in a directory, on every common file system."""


def deleted_name(topic: str, partition: int, unique: str) -> str:
    """Return the name of a deleted partition's folder; `unique` is 32 hexadecimal digits.

    As in Kafka, a long topic name is cut so that the whole fits into a file name.
    """
    return _cut_name(topic, f"-{partition}.{unique}-delete")


def stray_name(topic: str, partition: int, unique: str) -> str:
    """Return the name of a folder that no start opens or removes; `unique` is as above.

    Kafka from 3.7 on uses this name. Earlier versions do not start while there is such a folder.
    """
    return _cut_name(topic, f"-{partition}.{unique}-stray")


def _cut_name(topic: str, rest: str) -> str:
    return topic[: LONGEST_FILE_NAME - len(rest)] + rest


def future_name(topic: str, partition: int, unique: str) -> str:
    """Return the name of the folder of a future log (KIP-113); `unique` is as above.

    It may be longer than a file name: Kafka moves no such partition.
    """
    return f"{topic}-{partition}.{unique}-future"


def shortage_reason(error: OSError) -> str:
    """Return what ran short, and what to do about it, in one line."""
    return (
        f"{error}; the process may have {descriptors.budget().limit} file descriptors (ulimit -n, "
        "LimitNOFILE in systemd), and all memory that its machine and container leave it: raise "
        "what ran out"
    )


class LogDirError(Exception):
    """The log directories cannot be used. The message is one line for the broker's operator."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a partition as found at the start, and what the checkpoints say about it."""

    name: str
    key: TopicPartition
    known: Checkpointed
    high_watermark: int
    is_future: bool = False
    is_marked: bool = False  # see `partition.future`


class Directory:
    """One of log.dirs. `on_failure(path, error)` is called once, when its disk fails."""

    def __init__(self, path: str, on_failure: Callable[[str, OSError], None]) -> None:
        self.path = path
        self.failure: OSError | None = None
        # Whether the last process left the clean-shutdown mark.
        self.was_clean = False
        # Whether it is locked by this process, and belongs to this broker.
        self._is_claimed = False
        self.lock_fd = -1
        # Device and inode, once it is claimed: another path may lead to the same directory.
        self.identity = (-1, -1)
        self._names_fd = -1
        # Of a directory that had no owner, or one without a cluster, until it is written.
        self._new_owner: LogDirMeta | None = None
        self._on_failure = on_failure
        self._logs: dict[TopicPartition, Log] = {}
        self._to_forget: set[TopicPartition] = set()
        # A partition's future log is in another directory than its current one.
        self._futures: dict[TopicPartition, Log] = {}
        self._lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()
        # What this process wrote last into each checkpoint.
        self._checkpointed: dict[str, Mapping[TopicPartition, int]] = {}
        self.start_offsets_lock = asyncio.Lock()
        self._cleaned_lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._logs) + len(self._futures)

    def file(self, name: str) -> str:
        """Return path of a file of the directory itself."""
        return os.path.join(self.path, name)

    # -- start ----------------------------------------------------------------------------------

    def claim(self, owner: LogDirMeta) -> None:
        """Lock the directory for this process. Raises LogDirError, and OSError."""
        with contextlib.suppress(FileExistsError):  # the next line says what is there instead
            os.makedirs(self.path, exist_ok=True)
        self._names_fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        found = os.fstat(self._names_fd)
        self.identity = found.st_dev, found.st_ino
        self.lock_fd = os.open(self.file(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise LogDirError(
                f"log directory {self.path} is in use by another process (.lock is held)"
            ) from None
        try:
            meta = checkpoints.read_meta(self.file(checkpoints.META_PROPERTIES))
        except CorruptCheckpointError as error:
            raise LogDirError(
                f"failed to read the owner of log directory {self.path}: {error}"
            ) from None
        if meta is not None:
            self._check_owner(meta, owner)
        if meta is None or meta.cluster_id is None:
            self._new_owner = owner
        self._is_claimed = True

    def has_as_partition(self, other: "Directory") -> bool:
        """Return whether another directory is inside this one, where a start looks for a partition,
        or for the remains of one; also by a symbolic link.
        """
        ours, theirs = os.path.realpath(self.path), os.path.realpath(other.path)
        if _is_within(theirs, ours):
            name = os.path.relpath(theirs, ours).split(os.sep)[0]
            if _is_looked_into(name):
                return True
        # Whoever reads the directory finds out that it cannot be read.
        with contextlib.suppress(OSError), os.scandir(self.path) as listed:
            return any(
                entry.is_symlink()
                and _is_looked_into(entry.name)
                and _is_within(theirs, os.path.realpath(entry.path))
                for entry in listed
            )
        return False

    def _check_owner(self, meta: LogDirMeta, owner: LogDirMeta) -> None:
        for name, found, mine in (
            ("cluster.id", meta.cluster_id, owner.cluster_id),
            ("broker.id", meta.broker_id, owner.broker_id),
        ):
            if found is not None and found != mine:
                raise LogDirError(
                    f"log directory {self.path} belongs to {name} {found}, this is {mine}"
                )

    def record_owner(self) -> None:
        """Write the owner of a directory that had none, or not all of it. Raises OSError."""
        if self._new_owner is not None:
            checkpoints.write_meta(self.file(checkpoints.META_PROPERTIES), self._new_owner)
            self._new_owner = None

    def folders(self) -> tuple[list[Folder], list[str]]:
        """Return the folders of partitions, and the paths of those to be removed. Takes the
        clean-shutdown mark away. Raises OSError.
        """
        clean = self.was_clean = checkpoints.take_clean_mark(self.path)
        recovery_points = self.checkpoint(checkpoints.RECOVERY_POINTS)
        start_offsets = self.checkpoint(checkpoints.LOG_START_OFFSETS)
        high_watermarks = self.checkpoint(checkpoints.HIGH_WATERMARKS)
        first_dirty_offsets = self.checkpoint(checkpoints.CLEANER_OFFSETS)
        found: list[Folder] = []
        doomed: list[str] = []
        with os.scandir(self.path) as listed:
            entries = sorted(listed, key=lambda one: one.name)
        for entry in entries:
            name, path = entry.name, entry.path
            if _DOOMED_FOLDER.search(name):
                doomed.append(path)
                continue
            match = _FOLDER.match(name) or _FUTURE_FOLDER.match(name)
            if match is None or not entry.is_dir():
                continue
            key = TopicPartition(match["topic"], int(match["partition"]))
            if key.partition > INT_MAX:
                # No request could name it.
                continue
            known = Checkpointed(
                clean,
                recovery_points.get(key),
                start_offsets.get(key, 0),
                first_dirty_offsets.get(key, 0),
            )
            found.append(
                Folder(
                    name,
                    key,
                    known,
                    high_watermarks.get(key, 0),
                    is_future=match.re is _FUTURE_FOLDER,
                    is_marked=os.path.exists(os.path.join(path, future.MARK)),
                )
            )
        return found, doomed

    # -- partitions -----------------------------------------------------------------------------

    def add(self, key: TopicPartition, log: Log) -> None:
        """Add a partition, or its future log."""
        with self._lock:
            (self._futures if log.is_future else self._logs)[key] = log

    def discard(self, key: TopicPartition) -> None:
        """Forget a partition."""
        with self._lock:
            self._logs.pop(key, None)
            self._futures.pop(key, None)

    def promote(self, key: TopicPartition) -> None:
        """Take the future log of a partition for its current one."""
        with self._lock:
            self._logs[key] = self._futures.pop(key)

    def logs(self) -> dict[TopicPartition, Log]:
        """Return the partitions of the directory."""
        with self._lock:
            return dict(self._logs)

    def all_logs(self) -> dict[TopicPartition, Log]:
        """Return the partitions of the directory, and the future logs."""
        with self._lock:
            return {**self._futures, **self._logs}

    def sync_names(self) -> None:
        """Make the names of the folders durable. Raises OSError."""
        sync(self._names_fd)

    # -- checkpoints ----------------------------------------------------------------------------

    def checkpoint(self, name: str) -> dict[TopicPartition, int]:
        """Return the offsets of a checkpoint; none for a damaged file, which only costs a longer
        recovery.
        """
        try:
            return checkpoints.read_offsets(self.file(name))
        except CorruptCheckpointError as error:
            logger.warning("ignoring damaged checkpoint: %s", error)
            return {}

    def _write_offsets(
        self,
        name: str,
        offsets: Callable[[], Mapping[TopicPartition, int]],
        *,
        unchanged: bool = False,
    ) -> None:
        """Replace a checkpoint by what `offsets` returns once the lock is held, so that a caller
        that waited writes nothing stale. With `unchanged` it is written in any case. Raises
        OSError.
        """
        with self._checkpoint_lock:
            self._replace_checkpoint(name, offsets(), unchanged=unchanged)

    def _replace_checkpoint(
        self, name: str, offsets: Mapping[TopicPartition, int], *, unchanged: bool
    ) -> None:
        """Write a checkpoint; without `unchanged` only if it does not say all that already. The
        caller holds the lock.
        """
        if unchanged or self._checkpointed.get(name) != offsets:
            # A write that fails may have happened all the same.
            self._checkpointed.pop(name, None)
            checkpoints.write_offsets(self.file(name), offsets)
            self._checkpointed[name] = offsets

    def write_recovery_points(self) -> None:
        """Write the recovery point of each log, changed or not: so a disk that has failed is found
        out while nobody writes records.
        """
        with self._judging():
            self._write_offsets(checkpoints.RECOVERY_POINTS, self._recovery_points, unchanged=True)
        self._forget()

    def _recovery_points(self) -> dict[TopicPartition, int]:
        return {key: log.recovery_point for key, log in self.all_logs().items()}

    def _merged_recovery_points(self) -> dict[TopicPartition, int]:
        return {**self.checkpoint(checkpoints.RECOVERY_POINTS), **self._recovery_points()}

    def write_start_offsets(self) -> None:
        """Write the log start offsets, changed or not, and note in the logs that they survive a
        crash now.
        """
        with self._judging():
            self._write_start_offsets(unchanged=True)

    def _write_start_offsets(self, *, unchanged: bool = False) -> None:
        # Not without those that the first segment's name tells, as Kafka does: retention raises
        # the log start offset before it renames the files of the segments before.
        with self._checkpoint_lock:
            logs = self.all_logs()
            found = [(key, log, log.start.begin_checkpoint()) for key, log in logs.items()]
            self._replace_checkpoint(
                checkpoints.LOG_START_OFFSETS,
                {key: offset for key, _, offset in found if offset > 0},
                unchanged=unchanged,
            )
            for _, log, offset in found:
                log.start.note_checkpointed(offset)

    def _write_checkpoints(self, *, unchanged: bool = False) -> None:
        self._write_offsets(checkpoints.RECOVERY_POINTS, self._recovery_points, unchanged=unchanged)
        self._write_start_offsets(unchanged=unchanged)

    def write_high_watermarks(self) -> bool:
        """Write the high watermark of each log; return whether the checkpoint has them."""
        with self._judging():
            self._write_offsets(checkpoints.HIGH_WATERMARKS, self._high_watermarks)
            return True
        return False

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {key: log.high_watermark for key, log in self.all_logs().items()}

    def note_cleaned(self, log: Log, end: int, truncations: int) -> None:
        """Write where the dirty part of a log begins now. Does nothing for a log that was deleted
        meanwhile, or truncated more than `truncations` times.
        """
        with self._judging(), self._cleaned_lock:
            if (
                log.segments.truncations == truncations
                and self.logs().get(TopicPartition(log.topic, log.partition)) is log
            ):
                self._write_cleaned(log, end)

    def _write_cleaned(self, log: Log, end: int) -> None:
        offsets = self.checkpoint(checkpoints.CLEANER_OFFSETS)
        offsets[TopicPartition(log.topic, log.partition)] = end
        known = self.logs()
        self._write_offsets(
            checkpoints.CLEANER_OFFSETS,
            lambda: {key: offset for key, offset in offsets.items() if key in known},
        )

    def note_truncated(self, log: Log) -> None:
        """Lower a log's checkpoints before the truncated offsets are written again.

        If that fails, the directory goes offline: a restart after a crash would believe the old
        checkpoints. Raises OSError for a shortage; then nothing may be written yet.
        """
        try:
            self._write_checkpoints()
            with self._cleaned_lock:
                cleaned = self.checkpoint(checkpoints.CLEANER_OFFSETS)
                if cleaned.get(TopicPartition(log.topic, log.partition), 0) > log.log_end_offset:
                    self._write_cleaned(log, log.log_end_offset)
        except OSError as error:
            if is_shortage(error):
                raise
            self.fail(error)

    def forget(self, keys: Collection[TopicPartition]) -> None:
        """Remove deleted partitions from all checkpoints: new ones of the same names must not
        inherit them. If that fails, it is tried again with the next recovery points.
        """
        with self._lock:
            self._to_forget.update(keys)
        self._forget()

    def _forget(self) -> None:
        with self._lock:
            keys = frozenset(self._to_forget)
        if not keys:
            return
        with self._judging():
            self._write_checkpoints()
            # With those of new logs of these names: nobody would write them before they move.
            self._write_offsets(checkpoints.HIGH_WATERMARKS, self._high_watermarks)
            with self._cleaned_lock:
                self._write_offsets(
                    checkpoints.CLEANER_OFFSETS,
                    lambda: {
                        key: offset
                        for key, offset in self.checkpoint(checkpoints.CLEANER_OFFSETS).items()
                        if key not in keys
                    },
                )
            with self._lock:
                self._to_forget -= keys

    # -- failure and end ------------------------------------------------------------------------

    def fail(self, error: OSError) -> None:
        """Go offline with every partition."""
        if self.failure is not None:
            return
        self.failure = error
        logger.error("log directory %s is offline: %s", self.path, error)
        for log in self.all_logs().values():
            log.fail(error)
        self._on_failure(self.path, error)

    def fail_at_start(self, error: OSError) -> None:
        """Go offline because the directory cannot be loaded. Raises LogDirError for what is no
        fault of the directory: the broker must not start without its partitions.
        """
        if is_shortage(error):
            raise LogDirError(
                f"failed to load log directory {self.path}: {shortage_reason(error)}"
            ) from None
        self.fail(error)

    def judge(self, error: OSError) -> None:
        """Go offline if `error` says that the disk failed."""
        if is_disk_failure(error):
            self.fail(error)
        else:
            logger.error("failed to use log directory %s: %s; retrying", self.path, error)

    @contextlib.contextmanager
    def _judging(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.judge(error)

    def close(self, threads: Executor, *, is_loaded: bool = True) -> None:
        """Make every partition durable, leave the clean-shutdown mark, and release the lock.

        Where not all partitions were loaded, those that were not are as the last process left them:
        the mark comes back if that one had left it, and checkpoints keep what they say of them. In
        a directory that `claim` refused nothing is written.
        """
        if self.lock_fd < 0:
            return
        logs = self.all_logs().values()
        is_writable = self._is_claimed and self.failure is None
        if is_writable and _close_all(logs, threads) and self.failure is None:
            with self._judging():
                if is_loaded:
                    self._write_checkpoints(unchanged=True)
                elif not self.was_clean:
                    # The next start need not recover once more what was recovered.
                    self._write_offsets(checkpoints.RECOVERY_POINTS, self._merged_recovery_points)
                if is_loaded or self.was_clean:
                    write_atomically(self.file(checkpoints.CLEAN_SHUTDOWN), b"")
        for log in logs:
            if not log.closed:
                log.abandon()
        os.close(self._names_fd)
        os.close(self.lock_fd)
        self._names_fd = self.lock_fd = -1


def _is_looked_into(name: str) -> bool:
    """Return whether a start looks for a partition, or its remains, under this name."""
    return any(form.search(name) for form in (_FOLDER, _FUTURE_FOLDER, _DOOMED_FOLDER))


def _is_within(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder


def _close_all(logs: Collection[Log], threads: Executor) -> bool:
    """Close logs in parallel, because an fsync mostly waits; return False when one failed, now or
    before: without the clean-shutdown mark, the next start recovers it.
    """

    def close_some(some: Iterable[Log]) -> bool:
        closed = list(map(close, some))  # each of them, also after a failure
        return all(closed)

    def close(log: Log) -> bool:
        try:
            log.close()
        except Exception as error:
            logger.error(
                "failed to close %s-%d: %s; it is recovered at the next start",
                log.topic,
                log.partition,
                error,
            )
            return False
        return log.failure is None

    parts = slices.cut_for_threads(logs, CLOSING_THREADS, _CLOSED_AT_ONCE)
    return all(list(threads.map(close_some, parts)))
