"""The log directories of a broker: who owns them, what lies in them, and the work done in the
background.

Each of `log.dirs` carries `meta.properties` (cluster and broker it belongs to), a lock file,
Kafka's checkpoint files and one folder a partition. `load` opens every partition; `run` flushes
rolled segments, applies retention, compacts, removes deleted files and writes checkpoints until it
is cancelled; `close` makes everything durable and leaves the clean-shutdown mark.

A directory whose disk fails goes offline with its partitions, and `on_dir_failure` is told once.
The others go on. Nothing is retried on it: after a failed fsync nobody knows what the disk holds.
"""

import asyncio
import fcntl
import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from odradek.config import BrokerConfig, TopicConfig
from odradek.log import checkpoints, cleaner, recovery
from odradek.log.batch import CorruptBatchError
from odradek.log.checkpoints import CorruptCheckpointError, Meta
from odradek.log.files import (
    DiskThreads,
    FileRetiredError,
    fsync_path,
    remove_tree,
    write_atomically,
)
from odradek.log.log import Log
from odradek.log.reading import ReadableLog, Surroundings
from odradek.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

TopicPartition = tuple[str, int]

_FOLDER = re.compile(r"^(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)$")
_DOOMED_FOLDER = re.compile(r"\.[0-9a-f]{32}-delete$")
_TICK_S = 1.0
_IDLE_INTERVAL_S = 60.0
_PRODUCER_EXPIRY_INTERVAL_S = 600.0


class LogDirError(Exception):
    """The log directories cannot be used; the message is one line for the operator of the
    broker.
    """


@dataclass(slots=True)
class Directory:
    """One of log.dirs."""

    path: str
    logs: dict[TopicPartition, Log] = field(default_factory=dict)
    failure: OSError | None = None
    lock_fd: int = -1
    checkpoint_lock: threading.Lock = field(default_factory=threading.Lock)

    def file(self, name: str) -> str:
        """Path of a file of the directory itself."""
        return os.path.join(self.path, name)


class LogManager:
    """Owner of every `Log` of the broker. Methods block unless async; safe to call from any
    thread.
    """

    def __init__(
        self,
        config: BrokerConfig,
        cluster_id: str,
        topic_config: Callable[[str], TopicConfig],
        *,
        on_dir_failure: Callable[[str, OSError], None] = lambda path, error: None,
        surroundings: Surroundings | None = None,
    ) -> None:
        self.config = config
        self.cluster_id = cluster_id
        self.disk = DiskThreads(len(config.log_dirs) * 2 + 2)
        # Reading from a cold disk keeps nobody else waiting for a thread.
        self.readers = DiskThreads(config.num_io_threads)
        self._topic_config = topic_config
        self._on_dir_failure = on_dir_failure
        self._surroundings = replace(
            surroundings or Surroundings(),
            producer_expiry_ms=config.transactional_id_expiration_ms,
            on_failure=self._log_failed,
            on_truncate=self._log_truncated,
        )
        self._directories = [Directory(os.path.abspath(path)) for path in config.log_dirs]
        self._logs: dict[TopicPartition, tuple[Log, Directory]] = {}
        self._lock = threading.Lock()
        self._creation_lock = threading.Lock()
        self._doomed: list[tuple[float, str]] = []
        self._throttle = cleaner.Throttle(config.log_cleaner_io_max_bytes_per_second)
        self._due = dict.fromkeys(("retention", "checkpoint", "idle", "expiry", "clean"), 0.0)

    # -- start ----------------------------------------------------------------------------------

    def load(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Lock the directories and open every partition found; `progress(done, total)` counts
        partitions.

        Raises LogDirError when a directory belongs to another broker or cluster, is in use, or when
        none of them works.
        """
        for directory in self._directories:
            try:
                self._claim(directory)
            except OSError as error:
                self._directory_failed(directory, error)
        if not any(directory.failure is None for directory in self._directories):
            reasons = "; ".join(f"{each.path}: {each.failure}" for each in self._directories)
            raise LogDirError(f"none of log.dirs can be used: {reasons}")
        work = [
            (directory, *found) for directory in self._online() for found in self._found(directory)
        ]
        done = 0
        with ThreadPoolExecutor(
            self.config.num_recovery_threads_per_data_dir * len(self._directories)
        ) as pool:
            for _ in pool.map(lambda item: self._load_one(*item), work):
                done += 1
                progress(done, len(work))

    def _claim(self, directory: Directory) -> None:
        os.makedirs(directory.path, exist_ok=True)
        directory.lock_fd = os.open(
            directory.file(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        try:
            fcntl.lockf(directory.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise LogDirError(
                f"log directory {directory.path} is in use by another process (.lock is held)"
            ) from None
        wanted = Meta(self.config.broker_id, self.cluster_id)
        try:
            meta = checkpoints.read_meta(directory.file(checkpoints.META_PROPERTIES))
        except CorruptCheckpointError as error:
            raise LogDirError(f"cannot tell who owns {directory.path}: {error}") from None
        if meta is None:
            checkpoints.write_meta(directory.file(checkpoints.META_PROPERTIES), wanted)
            return
        for name, found, mine in (
            ("cluster.id", meta.cluster_id, wanted.cluster_id),
            ("broker.id", meta.broker_id, wanted.broker_id),
        ):
            if found != mine:
                raise LogDirError(
                    f"log directory {directory.path} belongs to {name} {found}, this is {mine}"
                )

    def _found(self, directory: Directory) -> Iterable[tuple[str, recovery.Checkpointed, int]]:
        """Partition folders of a directory, what its checkpoints say, and the high watermark."""
        try:
            clean = checkpoints.take_clean_mark(directory.path)
            recovery_points = self._checkpoint(directory, checkpoints.RECOVERY_POINTS)
            start_offsets = self._checkpoint(directory, checkpoints.LOG_START_OFFSETS)
            high_watermarks = self._checkpoint(directory, checkpoints.HIGH_WATERMARKS)
            names = sorted(os.listdir(directory.path))
        except OSError as error:
            self._directory_failed(directory, error)
            return
        for name in names:
            path = directory.file(name)
            if _DOOMED_FOLDER.search(name):
                self._doomed.append((self._surroundings.monotonic(), path))
                continue
            match = _FOLDER.match(name)
            if match is None or not os.path.isdir(path):
                continue
            key = match["topic"], int(match["partition"])
            yield (
                name,
                recovery.Checkpointed(
                    clean, recovery_points.get(key, 0), start_offsets.get(key, 0)
                ),
                high_watermarks.get(key, 0),
            )

    def _checkpoint(self, directory: Directory, name: str) -> dict[TopicPartition, int]:
        """A checkpoint's offsets; a damaged file says nothing, which only costs a longer scan."""
        try:
            return checkpoints.read_offsets(directory.file(name))
        except CorruptCheckpointError as error:
            logger.warning("ignoring damaged checkpoint: %s", error)
            return {}

    def _load_one(
        self, directory: Directory, name: str, known: recovery.Checkpointed, high_watermark: int
    ) -> None:
        topic, _, partition = name.rpartition("-")
        if directory.failure is not None:
            return
        try:
            log, report = recovery.open_log(
                directory.file(name),
                topic,
                int(partition),
                self._topic_config(topic),
                self._surroundings,
                known,
            )
        except OSError as error:
            self._directory_failed(directory, error)
            return
        if report.cut_bytes or report.dropped_segments or report.rebuilt:
            logger.warning(
                "%s: cut %d bytes, dropped %d segments, rebuilt %s",
                name,
                report.cut_bytes,
                report.dropped_segments,
                ", ".join(map(os.path.basename, report.rebuilt)) or "nothing",
            )
        key = topic, int(partition)
        with self._lock:
            if key in self._logs:
                other = self._logs[key][1].path
                raise LogDirError(f"partition {name} is in both {other} and {directory.path}")
            self._logs[key] = log, directory
            directory.logs[key] = log
        log.high_watermark = high_watermark

    # -- partitions -----------------------------------------------------------------------------

    @property
    def online_directories(self) -> list[str]:
        """Directories that work."""
        return [directory.path for directory in self._online()]

    def _online(self) -> list[Directory]:
        return [directory for directory in self._directories if directory.failure is None]

    def logs(self) -> dict[TopicPartition, Log]:
        """Every partition, also those of failed directories."""
        with self._lock:
            return {key: log for key, (log, _) in self._logs.items()}

    def get(self, topic: str, partition: int) -> Log | None:
        """The log of a partition, None when this broker has none."""
        entry = self._logs.get((topic, partition))
        return entry[0] if entry is not None else None

    def directory_of(self, topic: str, partition: int) -> str | None:
        """The log directory that holds a partition."""
        entry = self._logs.get((topic, partition))
        return entry[1].path if entry is not None else None

    async def get_or_create(
        self, topic: str, partition: int, config: TopicConfig, *, is_new: bool = True
    ) -> Log:
        """As `create`, in a thread."""
        return await self.disk.run(self.create, topic, partition, config, is_new=is_new)

    def create(
        self, topic: str, partition: int, config: TopicConfig, *, is_new: bool = True
    ) -> Log:
        """The log of a partition, made in the directory with the fewest partitions if there is
        none.

        With `is_new=False` (the partition is known to have lived here) none is made while a
        directory is offline: it may hold the data. Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        key = topic, partition
        with self._creation_lock:
            entry = self._logs.get(key)
            if entry is not None:
                return entry[0]
            online = self._online()
            if not online or (not is_new and len(online) < len(self._directories)):
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory for {topic}-{partition}"
                )
            directory = min(online, key=lambda each: len(each.logs))
            try:
                log, _ = recovery.open_log(
                    directory.file(f"{topic}-{partition}"),
                    topic,
                    partition,
                    config,
                    self._surroundings,
                    recovery.Checkpointed(clean=True),
                )
                fsync_path(directory.path)
            except OSError as error:
                self._directory_failed(directory, error)
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
            with self._lock:
                self._logs[key] = log, directory
                directory.logs[key] = log
            return log

    async def delete(self, topic: str, partition: int) -> None:
        """As `remove`, in a thread."""
        await self.disk.run(self.remove, topic, partition)

    def remove(self, topic: str, partition: int) -> None:
        """Take a partition away at once; its folder is renamed and deleted after
        file.delete.delay.ms.

        Raises KafkaError KAFKA_STORAGE_ERROR when the folder cannot be renamed; its directory is
        offline then.
        """
        key = topic, partition
        with self._lock:
            log, directory = self._logs.pop(key, (None, None))
            if log is None or directory is None:
                return
            directory.logs.pop(key, None)
        log.abandon()
        doomed = directory.file(f"{topic}-{partition}.{uuid.uuid4().hex}-delete")
        try:
            os.replace(log.directory, doomed)
            fsync_path(directory.path)
        except OSError as error:
            self._directory_failed(directory, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        due = self._surroundings.monotonic() + log.config.file_delete_delay_ms / 1000
        with self._lock:
            self._doomed.append((due, doomed))
        self._write_checkpoints(directory)

    def update_topic_config(self, topic: str, config: TopicConfig) -> None:
        """Apply changed settings to every partition of a topic."""
        for (name, _), log in self.logs().items():
            if name == topic:
                log.config = config

    # -- checkpoints ----------------------------------------------------------------------------

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """High watermarks as last written, of every directory that works."""
        found: dict[TopicPartition, int] = {}
        for directory in self._online():
            try:
                found.update(self._checkpoint(directory, checkpoints.HIGH_WATERMARKS))
            except OSError as error:
                self._directory_failed(directory, error)
        return found

    async def write_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        """As `save_high_watermarks`, in a thread."""
        await self.disk.run(self.save_high_watermarks, offsets)

    def save_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write the high watermark of every partition, each into its own directory."""
        for directory in self._online():
            mine = {
                key: offsets.get(key, log.high_watermark)
                for key, log in self._of(directory).items()
            }
            self._write_offsets(directory, checkpoints.HIGH_WATERMARKS, mine)

    def write_checkpoints(self) -> None:
        """Write recovery points and log start offsets of every directory."""
        for directory in self._online():
            self._write_checkpoints(directory)

    def _of(self, directory: Directory) -> dict[TopicPartition, Log]:
        with self._lock:
            return dict(directory.logs)

    def _write_checkpoints(self, directory: Directory) -> None:
        logs = self._of(directory)
        self._write_offsets(
            directory,
            checkpoints.RECOVERY_POINTS,
            {key: log.recovery_point for key, log in logs.items()},
        )
        # As Kafka: only starts that the segment names do not already tell.
        self._write_offsets(
            directory,
            checkpoints.LOG_START_OFFSETS,
            {
                key: log.log_start_offset
                for key, log in logs.items()
                if log.log_start_offset > log.segments[0].base_offset
            },
        )

    def _write_offsets(
        self, directory: Directory, name: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        try:
            with directory.checkpoint_lock:
                checkpoints.write_offsets(directory.file(name), offsets)
        except OSError as error:
            self._directory_failed(directory, error)

    # -- background -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Do the background work until cancelled."""
        while True:
            await self.disk.run(self.housekeep)
            await asyncio.sleep(_TICK_S)

    def housekeep(self) -> None:
        """One round of everything that is due."""
        now = self._surroundings.monotonic()
        config = self.config
        logs = [log for log in self.logs().values() if log.failure is None and not log.closed]
        self._each(logs, self._flush_due)
        self._each(logs, Log.delete_due)
        self._remove_doomed(now)
        if self._is_due("retention", now, config.log_retention_check_interval_ms / 1000):
            self._each(logs, Log.apply_retention)
        if config.log_cleaner_enable and self._is_due(
            "clean", now, config.log_cleaner_backoff_ms / 1000
        ):
            self.clean_dirtiest()
        if self._is_due("idle", now, _IDLE_INTERVAL_S):
            self._each(logs, Log.release_idle)
        if self._is_due("expiry", now, _PRODUCER_EXPIRY_INTERVAL_S):
            self._each(logs, Log.expire_producers)
        if self._is_due("checkpoint", now, config.log_flush_offset_checkpoint_interval_ms / 1000):
            self.write_checkpoints()

    def clean_dirtiest(self) -> Log | None:
        """Compact the partition that needs it most; None when none does."""
        now_ms = self._surroundings.now_ms()
        best: tuple[tuple[bool, float], Log, Directory, cleaner.Dirty] | None = None
        for directory in self._online():
            firsts = self._checkpoint(directory, checkpoints.CLEANER_OFFSETS)
            for key, log in self._of(directory).items():
                if "compact" not in log.config.cleanup_policy or log.failure or log.closed:
                    continue
                try:
                    dirty = cleaner.dirty_range(log, firsts.get(key, 0), now_ms)
                except (FileRetiredError, CorruptBatchError):
                    continue
                except OSError as error:
                    self._cannot_clean(log, directory, error)
                    continue
                urgency = dirty.overdue, dirty.ratio
                if cleaner.is_due(log, dirty) and (best is None or urgency > best[0]):
                    best = urgency, log, directory, dirty
        if best is None:
            return None
        _, log, directory, dirty = best
        self._clean(log, directory, dirty)
        return log

    def _clean(self, log: Log, directory: Directory, dirty: cleaner.Dirty) -> None:
        max_keys = self.config.log_cleaner_dedupe_buffer_size // cleaner.BYTES_PER_KEY
        try:
            end = cleaner.clean(log, dirty, max_keys, self._throttle)
        except FileRetiredError:
            return  # deleted or truncated under our hands
        except (CorruptBatchError, KafkaError) as error:
            logger.error("%s-%d cannot be compacted: %s", log.topic, log.partition, error)
            return
        except OSError as error:
            self._cannot_clean(log, directory, error)
            return
        self._note_cleaned(log, directory, end)

    def _cannot_clean(self, log: Log, directory: Directory, error: OSError) -> None:
        if not log.closed:  # else the partition was deleted meanwhile, with its paths
            self._directory_failed(directory, error)

    def _note_cleaned(self, log: ReadableLog, directory: Directory, end: int) -> None:
        """Write where the dirty part of a log begins now."""
        offsets = self._checkpoint(directory, checkpoints.CLEANER_OFFSETS)
        offsets[log.topic, log.partition] = end
        known = self._of(directory)
        self._write_offsets(
            directory,
            checkpoints.CLEANER_OFFSETS,
            {key: offset for key, offset in offsets.items() if key in known},
        )

    def _is_due(self, task: str, now: float, interval_s: float) -> bool:
        if now < self._due[task]:
            return False
        self._due[task] = now + interval_s
        return True

    def _each(self, logs: Iterable[Log], work: Callable[[Log], object]) -> None:
        """Apply `work` to each log; a refusal concerns that log only and was already reported."""
        for log in logs:
            try:
                work(log)
            except FileRetiredError:
                continue  # truncated or deleted under our hands: nothing is left to do
            except (KafkaError, CorruptBatchError) as error:
                logger.warning("%s-%d: %s", log.topic, log.partition, error)

    @staticmethod
    def _flush_due(log: Log) -> None:
        if log.flush_is_due:
            log.flush()
        elif log.has_unflushed_segments:
            log.flush(only_rolled=True)

    def _remove_doomed(self, now: float) -> None:
        with self._lock:
            due = [path for at, path in self._doomed if at <= now]
            self._doomed = [entry for entry in self._doomed if entry[0] > now]
        for path in due:
            try:
                remove_tree(path)
            except OSError as error:
                owner = next(each for each in self._directories if path.startswith(each.path))
                self._directory_failed(owner, error)

    # -- failure and end ------------------------------------------------------------------------

    def _log_failed(self, log: ReadableLog, error: OSError) -> None:
        parent = os.path.dirname(log.directory)
        for directory in self._directories:
            if directory.path == parent:
                self._directory_failed(directory, error)

    def _log_truncated(self, log: ReadableLog) -> None:
        """Lower a log's checkpoints before what they speak of is written anew."""
        parent = os.path.dirname(log.directory)
        for directory in self._online():
            if directory.path == parent:
                self._write_checkpoints(directory)
                cleaned = self._checkpoint(directory, checkpoints.CLEANER_OFFSETS)
                if cleaned.get((log.topic, log.partition), 0) > log.log_end_offset:
                    self._note_cleaned(log, directory, log.log_end_offset)

    def _directory_failed(self, directory: Directory, error: OSError) -> None:
        if directory.failure is not None:
            return
        directory.failure = error
        logger.error("log directory %s is offline: %s", directory.path, error)
        for log in list(directory.logs.values()):
            log.fail(error)
        self._on_dir_failure(directory.path, error)

    def close(self) -> None:
        """Close every log, write the checkpoints and the clean-shutdown marks, let go of the
        directories.
        """
        for directory in self._directories:
            if directory.failure is None:
                self._close_directory(directory)
            for log in directory.logs.values():
                if not log.closed:
                    log.abandon()
            if directory.lock_fd >= 0:
                os.close(directory.lock_fd)
                directory.lock_fd = -1
        self.readers.close()
        self.disk.close()

    def _close_directory(self, directory: Directory) -> None:
        sound = True
        for log in self._of(directory).values():
            try:
                log.close()
            except KafkaError as error:
                sound = False
                logger.error("%s-%d was not closed: %s", log.topic, log.partition, error)
        if not sound or directory.failure is not None:
            return
        self._write_checkpoints(directory)
        try:
            write_atomically(directory.file(checkpoints.CLEAN_SHUTDOWN), b"")
        except OSError as error:
            self._directory_failed(directory, error)
