"""The logs of a broker, in all its `log.dirs`.

`load` opens every partition (see `loading`). `run` does the background work (see `background`)
until it is cancelled. `close` makes everything durable and leaves the clean-shutdown marks. A
directory that fails (see `directory`) takes its partitions offline, and `on_dir_failure` is called;
the other directories go on. `stop_loading` ends `load` early; `close` must follow.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from odradek.config import BrokerConfig, bounded_threads
from odradek.log import loading
from odradek.log.background import BackgroundWork
from odradek.log.compactor import Compactor
from odradek.log.directory import CLOSING_THREADS, Directory, LogDirError, shortage_reason
from odradek.log.future_logs import FutureLogs, latest_epoch, resolve, size
from odradek.log.housekeeping import Housekeeper
from odradek.log.partition import recovery, topic_identity
from odradek.log.partition.checkpoints import LogDirMeta
from odradek.log.partition.log import Log, LogEnvironment
from odradek.log.partition.topic_identity import CorruptIdentityError, TopicIdentity
from odradek.log.placement import LogPlacement
from odradek.log.segment.files import DiskThreads, is_shortage
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quarantine import Quarantines, Work
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition

logger = logging.getLogger(__name__)

# Threads that read or write the `partition.metadata` of many logs at the same time.
_IDENTITY_THREADS = 4
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewLog:
    """A log to be created. With `is_new=False`, for a partition that existed here before, none is
    created while a directory is offline, because that directory may hold the data. With
    `had_former`, a former topic had the name.
    """

    config: TopicConfig
    is_new: bool = True
    had_former: bool = False


def _disk_threads(config: BrokerConfig) -> int:
    cleaners = bounded_threads(config.log_cleaner_threads)
    movers = bounded_threads(config.num_replica_alter_log_dirs_threads or 0)
    return len(config.log_dirs) * 2 + 2 + cleaners + movers


@dataclass(frozen=True, slots=True)
class Replacement:
    """A future log that became the current one in the place of `former`, of the directory
    `home`.
    """

    log: Log
    former: Log
    home: Directory


class LogManager:
    """Owns every `Log` of the broker. Methods block unless async. Safe to call from any thread."""

    def __init__(
        self,
        config: BrokerConfig,
        cluster_id: str,
        topic_config: Callable[[str], TopicConfig],
        *,
        on_dir_failure: Callable[[str, OSError], None] = lambda path, error: None,
        environment: LogEnvironment | None = None,
        quarantines: Quarantines | None = None,
    ) -> None:
        self.config = config
        self.cluster_id = cluster_id
        self.disk = DiskThreads(_disk_threads(config))
        # Threads of their own, so that reads from a cold disk delay nothing else.
        self.readers = DiskThreads(bounded_threads(config.num_io_threads))
        self._topic_config = topic_config
        self._loading_stops = threading.Event()
        self._is_loaded = False
        self._quarantines = quarantines or Quarantines()
        # Called in any thread when a log start offset rises.
        self.on_start_raised: Callable[[TopicPartition], None] = lambda key: None
        self._environment = replace(
            environment or LogEnvironment(),
            producer_expiry_ms=config.transactional_id_expiration_ms,
            most_producers=config.partition_max_producer_ids,
            verifies_transactions=lambda: self.config.transaction_partition_verification_enable,
            on_failure=lambda log, error: self._home_of(log).fail(error),
            on_truncate=lambda log: self._home_of(log).note_truncated(log),
            on_start_raised=lambda log: self.on_start_raised(
                TopicPartition(log.topic, log.partition)
            ),
            request_housekeeping=lambda log: self._housekeeper.request(log),
            is_stopping=self._loading_stops.is_set,
        )
        self._directories = [
            Directory(os.path.abspath(path), on_dir_failure) for path in config.log_dirs
        ]
        self._logs: dict[TopicPartition, tuple[Log, Directory]] = {}
        # Of each topic the partitions in `_logs`: a change of one topic looks at no other.
        self._partitions: dict[str, set[int]] = {}
        self._lock = threading.Lock()
        self._creation_lock = threading.Lock()
        self.placement = LogPlacement()
        self._housekeeper = Housekeeper(
            config, self._directories, self._environment, self._quarantines
        )
        self.futures = FutureLogs(self._directories, self._housekeeper, self._environment)
        self._compactor = Compactor(config, self._directories, self._environment, self._quarantines)
        self._background = BackgroundWork(
            config, self.disk, self._housekeeper, self._compactor, self._quarantines
        )

    # -- start ----------------------------------------------------------------------------------

    def record_owner(self) -> None:
        """Write who owns the directories that had no owner. As in Kafka's `KafkaServer.startup` the
        broker is registered before: a wrong broker.id must leave no trace in them.

        Raises LogDirError if that fails by no fault of a directory, or if none is left.
        """
        for directory in self._online():
            try:
                directory.record_owner()
            except OSError as error:
                directory.fail_at_start(error)
        self._require_one_online()

    def _require_one_online(self) -> None:
        if not self._online():
            reasons = "; ".join(f"{each.path}: {each.failure}" for each in self._directories)
            raise LogDirError(f"none of log.dirs can be used: {reasons}")

    def load(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Lock the directories and open every partition found. `progress(done, total)` counts
        partitions.

        Raises LogDirError when a directory belongs to another broker or cluster, is in use or there
        twice, or when none of them works, and StoppedError after `stop_loading`.
        """
        loading.claim(self._directories, LogDirMeta(self.config.broker_id, self.cluster_id))
        resolution = resolve(loading.find(self._online(), self._housekeeper), latest_epoch, size)
        self.futures.supersede(resolution.superseded)
        loader = loading.Loader(self._topic_config, self._environment, self._opened)
        wanted = self.config.num_recovery_threads_per_data_dir * len(self._directories)
        loader.open_all(resolution.kept, bounded_threads(wanted), progress)
        for key, log, directory in self.futures.take_orphans(self.logs()):
            self._take(key, log, directory)
        self.futures.settle_start(resolution, self.logs())
        self._require_one_online()
        self._is_loaded = True

    def stop_loading(self) -> None:
        """Have `load` in another thread open no further log, and break off those under recovery."""
        self._loading_stops.set()

    def _opened(self, key: TopicPartition, log: Log, directory: Directory) -> None:
        if log.is_future:
            self.futures.add(key, log, directory)
        else:
            self._take(key, log, directory)

    def _take(self, key: TopicPartition, log: Log, directory: Directory) -> None:
        self._put(key, log, directory)
        if log.flush_required:  # after a crash: nothing is committable before
            with contextlib.suppress(KafkaError):  # then its directory is offline
                log.flush()

    def _put(self, key: TopicPartition, log: Log, directory: Directory) -> None:
        with self._lock:
            self._logs[key] = log, directory
            self._partitions.setdefault(key.topic, set()).add(key.partition)
            directory.add(key, log)
        log.request_housekeeping()

    def _pop(self, key: TopicPartition) -> tuple[Log, Directory] | None:
        """Forget a log; the caller holds the lock."""
        found = self._logs.pop(key, None)
        if found is not None:
            topic, partition = key
            left = self._partitions[topic]
            left.discard(partition)
            if not left:
                del self._partitions[topic]
            found[1].discard(key)
        return found

    # -- partitions -----------------------------------------------------------------------------

    @property
    def online_directories(self) -> list[str]:
        """Directories that work."""
        return [directory.path for directory in self._online()]

    def _online(self) -> list[Directory]:
        return [directory for directory in self._directories if directory.failure is None]

    def logs(self) -> dict[TopicPartition, Log]:
        """Return every partition, also those of failed directories."""
        with self._lock:
            return {key: log for key, (log, _) in self._logs.items()}

    def has_topic(self, topic: str) -> bool:
        """Return whether there is a log of any partition of a topic."""
        return topic in self._partitions

    def get(self, topic: str, partition: int) -> Log | None:
        """Return the log of a partition, None when this broker has none."""
        entry = self._logs.get(TopicPartition(topic, partition))
        return entry[0] if entry is not None else None

    async def create_missing(
        self, wanted: Mapping[TopicPartition, NewLog]
    ) -> dict[TopicPartition, KafkaError]:
        """As `make_missing`, in a thread."""
        return await self.disk.run(self.make_missing, wanted)

    def make_missing(
        self, wanted: Mapping[TopicPartition, NewLog]
    ) -> dict[TopicPartition, KafkaError]:
        """Create the logs that do not exist yet, each in the directory with the fewest partitions;
        return the ones that failed, with KAFKA_STORAGE_ERROR.

        Partitions come in hundreds, so each directory is made durable once for all of them.
        """
        refused: dict[TopicPartition, KafkaError] = {}
        touched: dict[str, Directory] = {}
        with self._creation_lock:
            for key, new in wanted.items():
                if key in self._logs:
                    continue
                try:
                    directory = self._make(key, new)
                except KafkaError as refusal:
                    refused[key] = refusal
                except Exception as error:
                    self._quarantines.note(Work.ROLE, key, error, "refusing the role")
                    refused[key] = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, repr(error))
                else:
                    touched[directory.path] = directory
            for directory in touched.values():
                try:
                    directory.sync_names()
                except OSError as error:
                    directory.fail(error)
        return refused

    def _make(self, key: TopicPartition, new: NewLog) -> Directory:
        """Create a log; return its directory, in which the new name is not durable yet."""
        topic, partition = key
        online = self._online()
        if not online or (not new.is_new and len(online) < len(self._directories)):
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory for {topic}-{partition}"
            )
        copy = self.futures.get(key)
        taken = os.path.dirname(copy.directory) if copy is not None else None
        directory = self.placement.choose(key, online, taken)
        if directory.path == taken:
            self.futures.discard([key])  # it is empty, or of a former replica
        try:
            self._housekeeper.free_name(directory, key)
            folder = directory.file(f"{topic}-{partition}")
            if new.had_former:
                topic_identity.mark_former(folder)
            log, _ = recovery.open_log(
                folder,
                topic,
                partition,
                new.config,
                self._environment,
                recovery.Checkpointed(clean=True),
            )
        except OSError as error:
            if is_shortage(error):  # the new replica is refused; all others stay as they are
                reason = shortage_reason(error)
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason) from error
            directory.judge(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        log.compaction_paused = self.futures.get(key) is not None
        self._put(key, log, directory)
        self.placement.forget(key)
        return directory

    def switch_to_future(self, key: TopicPartition) -> Replacement | None:
        """Let the future log of a partition replace its current log at once; return None where it
        is not ready. `finish_switch` must follow.

        Raises KafkaError; then the current log stays.
        """
        current, home = self._logs[key]
        log = self.futures.switch(key, current)
        if log is None:
            return None
        with self._lock:
            self._logs[key] = log, self._home_of(log)
        home.discard(key)
        log.request_housekeeping()
        return Replacement(log, current, home)

    def finish_switch(self, key: TopicPartition, done: Replacement) -> None:
        """Make a switch durable, and delete the former log. Blocks."""
        self.futures.finish(key, done.log, done.former, done.home)

    async def delete(
        self, keys: Collection[TopicPartition], *, keep_records: bool = False
    ) -> dict[TopicPartition, KafkaError]:
        """As `remove`, in a thread."""
        return await self.disk.run(self.remove, keys, keep_records)

    def remove(
        self, keys: Collection[TopicPartition], keep_records: bool = False
    ) -> dict[TopicPartition, KafkaError]:
        """Remove partitions at once. Their folders are renamed, and deleted after
        file.delete.delay.ms; with `keep_records` only those without records.

        Return those whose directory failed, and is offline now, with the error.
        """
        taken: dict[str, tuple[Directory, list[tuple[TopicPartition, Log]]]] = {}
        with self._lock:
            for key in keys:
                found = self._pop(key)
                if found is not None:
                    log, directory = found
                    taken.setdefault(directory.path, (directory, []))[1].append((key, log))
        self.futures.discard(keys)
        refused: dict[TopicPartition, KafkaError] = {}
        for directory, logs in taken.values():
            try:
                self._housekeeper.remove(directory, logs, keep_records=keep_records)
            except OSError as error:
                directory.fail(error)
                refusal = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
                refused |= {key: refusal for key, _ in logs}
        return refused

    async def topic_identities(
        self, keys: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, TopicIdentity | None], dict[TopicPartition, KafkaError]]:
        """Return the topics that logs belong to, None where that is unknown, and the errors of
        those that cannot be read.
        """

        def read(key: TopicPartition, log: Log) -> TopicIdentity | None:
            try:
                return topic_identity.read(log.directory)
            except CorruptIdentityError as error:
                logger.warning("ignoring a damaged file: %s", error)
                return None

        return await self._with_each(keys, read)

    async def record_topic_identities(
        self, wanted: Mapping[TopicPartition, TopicIdentity]
    ) -> dict[TopicPartition, KafkaError]:
        """Write which topics logs belong to; return the errors of those that failed."""
        _, refused = await self._with_each(
            wanted, lambda key, log: topic_identity.write(log.directory, wanted[key])
        )
        return refused

    async def _with_each(
        self, keys: Collection[TopicPartition], work: Callable[[TopicPartition, Log], T]
    ) -> tuple[dict[TopicPartition, T], dict[TopicPartition, KafkaError]]:
        """Do `work` with those of the logs that exist and are online, in several threads."""
        some = list(keys)
        done: dict[TopicPartition, T] = {}
        refused: dict[TopicPartition, KafkaError] = {}

        def work_through(part: Sequence[TopicPartition]) -> None:
            for key in part:
                log = self.get(*key)
                if log is None or log.failure is not None:
                    continue
                try:
                    done[key] = work(key, log)
                except OSError as error:
                    self._home_of(log).judge(error)
                    refused[key] = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

        parts = (some[first::_IDENTITY_THREADS] for first in range(_IDENTITY_THREADS))
        await asyncio.gather(*(self.disk.run(work_through, part) for part in parts if part))
        return done, refused

    def update_topic_configs(self, changed: Mapping[str, TopicConfig]) -> None:
        """Apply changed settings to every partition of the topics."""
        with self._lock:
            for topic, config in changed.items():
                for partition in self._partitions.get(topic, ()):
                    log, _ = self._logs[TopicPartition(topic, partition)]
                    log.config = config
                    log.request_housekeeping()
        for (topic, _), future_log in self.futures.all_logs().items():
            if topic in changed:
                future_log.config = changed[topic]

    # -- background, failure, end ---------------------------------------------------------------

    async def write_high_watermarks(self) -> bool:
        """As `save_high_watermarks`, in a thread."""
        return await self.disk.run(self.save_high_watermarks)

    def save_high_watermarks(self) -> bool:
        """Write the high watermark of every log, each into its own directory. Return whether they
        need not be written again before one of them moves: those of future logs are not known.
        """
        written = not self.futures.all_logs()
        for directory in self._online():
            is_written = False
            with self._quarantines.guard(Work.CHECKPOINT, f"{directory.path}: high watermarks"):
                is_written = directory.write_high_watermarks()
            written = written and is_written
        return written

    async def checkpoint_start_offsets(self, logs: Collection[Log]) -> None:
        """Make the log start offsets of these logs durable: see `Log.durable_log_start`, which says
        whether that succeeded.

        A directory has one write under way at most. The next one is for all who wait by then.
        """
        homes: dict[str, tuple[Directory, list[Log]]] = {}
        for log in logs:
            home = self._home_of(log)
            homes.setdefault(home.path, (home, []))[1].append(log)
        await asyncio.gather(*(self._checkpoint_starts(*home) for home in homes.values()))

    async def _checkpoint_starts(self, home: Directory, logs: Collection[Log]) -> None:
        async with home.start_offsets_lock:
            if home.failure is None and any(
                log.durable_log_start < log.log_start_offset for log in logs
            ):
                await self.disk.run(home.write_start_offsets)

    async def run(self) -> None:
        """Run the background work until cancelled."""
        await self._background.run()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Change the thread pools and the log cleaner; called on the event loop."""
        self.config = config
        self.disk.resize(_disk_threads(config))
        self.readers.resize(bounded_threads(config.num_io_threads))
        self._compactor.configure(config)
        self._background.reconfigure(config)

    def housekeep(self) -> None:
        """Run one round of the background work that is due, except compaction."""
        self._housekeeper.round()

    def compact(self) -> bool:
        """Compact the dirtiest partition; return False when none is due."""
        return self._compactor.compact()

    def _home_of(self, log: Log) -> Directory:
        parent = os.path.dirname(log.directory)
        return next(directory for directory in self._directories if directory.path == parent)

    def close(self) -> None:
        """Close every log, write the checkpoints and the clean-shutdown marks, release the
        directories. Stops the background work first. See `Directory.close` for logs that `load` did
        not open.
        """
        self._housekeeper.stop()
        self._compactor.stop()
        with ThreadPoolExecutor(CLOSING_THREADS) as threads:
            for directory in self._directories:
                directory.close(threads, is_loaded=self._is_loaded)
        self.readers.close()
        self.disk.close()
