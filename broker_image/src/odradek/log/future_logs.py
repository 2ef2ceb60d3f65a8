"""The future logs of a broker: partitions that move to another of its log directories (KIP-113).

A move makes a folder `topic-partition.<32 hexadecimal digits>-future` in the other directory, fills
it (see `partition.future`), gives it the partition's own name, and only then gives the folder in
the former directory a name that says that it is to be deleted. Between these two renames both
folders have the partition's name. The newer one carries a mark, made before its rename and removed
after the other one, so that a start after a crash at any point finds out which one counts. Kafka,
which does the same two renames, refuses to start then.

A future folder is found again at the start, and its move goes on; without its original, it takes
its place.
"""

import logging
import os
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from odradek.log.directory import (
    LONGEST_FILE_NAME,
    Directory,
    Folder,
    LogDirError,
    deleted_name,
    future_name,
)
from odradek.log.housekeeping import Housekeeper
from odradek.log.partition import checkpoints, epochs, future, recovery
from odradek.log.partition.log import Log, LogEnvironment
from odradek.log.records.batch import CorruptBatchError
from odradek.log.segment import batch_file
from odradek.log.segment.files import list_names, open_file
from odradek.log.segment.names import LOG_SUFFIX
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A folder in a directory."""

    directory: Directory
    folder: Folder


@dataclass(frozen=True, slots=True)
class Resolution:
    """Which folders are opened, and which are deleted because others replaced them."""

    kept: list[Found]
    superseded: list[Found]


def resolve(
    found: Iterable[Found],
    latest_epoch: Callable[[Found], int],
    size: Callable[[Found], int],
) -> Resolution:
    """Decide which folders count where a partition has several.

    Of two with the partition's name the marked one is the newer. But if the other one has a newer
    leader epoch, it was in use after the move: its broker ran without the directory of the marked
    one. Raises LogDirError where no mark tells.

    Of several future folders nobody knows which move was the last that was asked for, so they all
    go: they are only copies, and the partition can be moved again. But where its log is lost, with
    its disk, each may be the only copy: the one of the newest leader epoch stays, of those the one
    with the most records.
    """
    current: dict[TopicPartition, list[Found]] = {}
    futures: dict[TopicPartition, list[Found]] = {}
    for one in found:
        group = futures if one.folder.is_future else current
        group.setdefault(one.folder.key, []).append(one)
    kept: list[Found] = []
    superseded: list[Found] = []
    for rivals in current.values():
        winner = rivals[0] if len(rivals) == 1 else _newest(rivals, latest_epoch)
        kept.append(winner)
        superseded += [one for one in rivals if one is not winner]
    homes = {one.folder.key: one.directory for one in kept}
    for key, copies in futures.items():
        if key not in homes:
            best = max(copies, key=lambda one: (latest_epoch(one), size(one)))
        elif len(copies) == 1 and copies[0].directory is not homes[key]:
            best = copies[0]
        else:
            best = None
        if best is not None:
            kept.append(best)
        superseded += [one for one in copies if one is not best]
    return Resolution(kept, superseded)


def _newest(rivals: Sequence[Found], latest_epoch: Callable[[Found], int]) -> Found:
    marked = [one for one in rivals if one.folder.is_marked]
    if len(rivals) != 2 or len(marked) != 1:
        places = " and ".join(one.directory.path for one in rivals)
        raise LogDirError(
            f"partition {rivals[0].folder.name} is in both {places}: delete the folder in the "
            "directory that failed last"
        )
    return max(rivals, key=lambda one: (latest_epoch(one), one.folder.is_marked))


def check_name(key: TopicPartition) -> None:
    """Raise KafkaError INVALID_TOPIC_EXCEPTION if a future log's ending makes the name too long."""
    if len(future_name(*key, uuid.UUID(int=0).hex)) > LONGEST_FILE_NAME:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")


def latest_epoch(found: Found) -> int:
    """Return the newest leader epoch that a folder's file tells, or else its newest batches: a
    power failure may have spoilt the file. -1 without any. Blocks.
    """
    folder = found.directory.file(found.folder.name)
    try:
        entries = _epochs_in_file(folder)
        return entries[-1][0] if entries else _latest_in_batches(folder)
    except OSError:
        return epochs.UNDEFINED_EPOCH


def _epochs_in_file(folder: str) -> list[tuple[int, int]] | None:
    try:
        return checkpoints.read_epochs(os.path.join(folder, epochs.FILE_NAME))
    except checkpoints.CorruptCheckpointError:
        return None


def _latest_in_batches(folder: str) -> int:
    latest = epochs.UNDEFINED_EPOCH
    for name in sorted(filter(_is_of_batches, list_names(folder)), reverse=True):
        fd = open_file(os.path.join(folder, name), os.O_RDONLY)
        try:
            for _, header in batch_file.whole_batches(fd, os.fstat(fd).st_size):
                latest = max(latest, header.leader_epoch)
        except CorruptBatchError:
            pass  # where recovery would end the log
        finally:
            os.close(fd)
        if latest != epochs.UNDEFINED_EPOCH:
            break
    return latest


def _is_of_batches(name: str) -> bool:
    return name.endswith(LOG_SUFFIX)


def size(found: Found) -> int:
    """Return how many bytes of batches a folder holds, -1 if it cannot be read. Blocks."""
    folder = found.directory.file(found.folder.name)
    try:
        return sum(
            os.path.getsize(os.path.join(folder, name))
            for name in filter(_is_of_batches, list_names(folder))
        )
    except OSError:
        return -1


class FutureLogs:
    """Owns every future log. Methods block; `switch` does so for a short time only."""

    def __init__(
        self,
        directories: Sequence[Directory],
        housekeeper: Housekeeper,
        environment: LogEnvironment,
    ) -> None:
        self._directories = directories
        self._housekeeper = housekeeper
        self._environment = environment
        self._logs: dict[TopicPartition, tuple[Log, Directory]] = {}
        self._lock = threading.Lock()
        # Future logs that were found at the start. Their originals may have been compacted since
        # the copy began: by a start without the directory of the copy.
        self._found: set[TopicPartition] = set()

    # -- start ----------------------------------------------------------------------------------

    def supersede(self, losers: Sequence[Found]) -> None:
        """Rename folders that others replaced, so that they are deleted."""
        for one in losers:
            directory, folder = one.directory, one.folder
            logger.warning(
                "deleting %s in log directory %s: another directory has the partition's log",
                folder.name,
                directory.path,
            )
            path = directory.file(deleted_name(*folder.key, uuid.uuid4().hex))
            try:
                os.replace(directory.file(folder.name), path)
                directory.sync_names()
            except OSError as error:
                directory.fail_at_start(error)
            else:
                self._housekeeper.doom(directory, path)

    def take_orphans(
        self, current: Mapping[TopicPartition, Log]
    ) -> list[tuple[TopicPartition, Log, Directory]]:
        """Let future logs whose originals are lost, with their disk, be the current ones; return
        them. None while a directory is offline, because the original may be there.

        Each may be the only copy of its records. Kafka makes an empty log, and truncates the copy.
        """
        if any(directory.failure is not None for directory in self._directories):
            return []
        taken = []
        for key, (log, directory) in tuple(self._logs.items()):
            if key in current or log.log_end_offset == 0:
                continue
            try:
                # Unmarked: if the original comes back, nobody knows which of them counts.
                future.unmark(log.directory)
                log.relocate(directory.file(str(key)))
                directory.sync_names()
            except OSError as error:
                directory.fail_at_start(error)
                continue
            logger.warning("%s: its log is lost; the copy in %s takes over", key, directory.path)
            log.is_future = False
            del self._logs[key]
            directory.promote(key)
            taken.append((key, log, directory))
        return taken

    def settle_start(self, resolution: Resolution, current: dict[TopicPartition, Log]) -> None:
        """Finish what `resolve` decided, once every log is open, and fit the future logs to the
        current ones.
        """
        for one in resolution.superseded:
            if one.directory.failure is None:
                one.directory.forget({one.folder.key})
        if all(directory.failure is None for directory in self._directories):
            for one in resolution.kept:
                if one.folder.is_marked and not one.folder.is_future:
                    _unmark(one.directory, one.directory.file(one.folder.name))
        for key, log in self.all_logs().items():
            self._found.add(key)
            if key in current:
                _fit(current[key], log)

    def add(self, key: TopicPartition, log: Log, directory: Directory) -> None:
        """Add a future log that was opened."""
        with self._lock:
            self._logs[key] = log, directory
            directory.add(key, log)

    # -- looking --------------------------------------------------------------------------------

    def get(self, key: TopicPartition) -> Log | None:
        """Return the future log of a partition, None without one."""
        entry = self._logs.get(key)
        return entry[0] if entry is not None else None

    def all_logs(self) -> dict[TopicPartition, Log]:
        """Return every future log."""
        with self._lock:
            return {key: log for key, (log, _) in self._logs.items()}

    # -- moves ----------------------------------------------------------------------------------

    def create(self, key: TopicPartition, current: Log, path: str, config: TopicConfig) -> Log:
        """Create the future log of a partition in the directory `path`.

        Raises KafkaError KAFKA_STORAGE_ERROR while any directory is offline, because it may hold
        another future log, or if it cannot be created.
        """
        name = future_name(*key, uuid.uuid4().hex)
        offline = [each.path for each in self._directories if each.failure is not None]
        if offline:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"Can not create log for {key} because log directories {', '.join(offline)} are "
                "offline",
            )
        directory = next(each for each in self._directories if each.path == path)
        known = recovery.Checkpointed(clean=True)
        try:
            self._housekeeper.free_names(key)  # else a start could find two future logs
            log, _ = recovery.open_log(directory.file(name), *key, config, self._environment, known)
            future.copy_identity(current, log)
            directory.sync_names()
        except OSError as error:
            directory.judge(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._found.discard(key)
        log.is_future = log.compaction_paused = current.compaction_paused = True
        self.add(key, log, directory)
        return log

    def discard(self, keys: Collection[TopicPartition]) -> dict[TopicPartition, KafkaError]:
        """Delete the future logs of partitions, as far as they have any; return the errors."""
        refused: dict[TopicPartition, KafkaError] = {}
        for key in keys:
            with self._lock:
                log, directory = self._logs.pop(key, (None, None))
            if log is None or directory is None:
                continue
            directory.discard(key)
            try:
                self._housekeeper.remove(directory, [(key, log)])
            except OSError as error:
                directory.judge(error)
                refused[key] = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        return refused

    def drop_failed(self) -> list[TopicPartition]:
        """Let go of the future logs in failed directories; return their partitions."""
        with self._lock:
            failed = [
                key for key, (_, directory) in self._logs.items() if directory.failure is not None
            ]
            for key in failed:
                del self._logs[key]
        return failed

    def prepare(self, key: TopicPartition, current: Log) -> None:
        """Make durable what must be durable before the future log replaces the current one. Raises
        KafkaError.
        """
        log, directory = self._entry(key)
        if log.recovery_point < min(current.recovery_point, log.log_end_offset):
            log.flush()  # in most topics, a log is flushed when it rolls only
        try:
            # Of three folders with the name, marks could not tell which one counts.
            self._housekeeper.free_names(key)
            self._housekeeper.free_name(directory, key)
            future.copy_identity(current, log)
            future.mark(log)
        except OSError as error:
            raise self._failed(log, directory, error) from error
        # It may have its own mark yet, of a move whose former folder got its new name late.
        _unmark(self._home(current), current.directory)
        if log.durable_log_start < log.log_start_offset:
            directory.write_start_offsets()

    def switch(self, key: TopicPartition, current: Log) -> Log | None:
        """Make the future log the current one; return it, None where it is not ready.

        Raises KafkaError; then the current log stays. `finish` must follow.
        """
        log, directory = self._entry(key)
        try:
            if not future.succeed(current, log):
                return None
        except OSError as error:
            raise self._failed(log, directory, error) from error
        with self._lock:
            del self._logs[key]
        directory.promote(key)
        return log

    def finish(self, key: TopicPartition, log: Log, former: Log, home: Directory) -> None:
        """Make a switch durable, and delete the `former` log, whose directory is `home`.

        What fails here takes a directory offline; the mark stays then, for the next start.
        """
        target = self._home(log)
        truncations = log.segments.truncations
        cleaned = 0 if key in self._found else _cleaned(home, key)
        try:
            target.sync_names()
            log.write_snapshot()
            log.flush()
            target.write_recovery_points()
            target.write_start_offsets()
            target.write_high_watermarks()
            if 0 < cleaned <= log.log_end_offset:
                target.note_cleaned(log, cleaned, truncations)
        except OSError as error:
            target.judge(error)
        except KafkaError:
            pass  # deleted or offline meanwhile
        if target.failure is None:
            is_gone = not os.path.exists(former.directory)  # then this is another attempt
            try:
                is_gone = is_gone or self._housekeeper.remove(home, [(key, former)])
            except OSError as error:
                home.fail(error)
            if is_gone and not log.closed:
                _unmark(target, log.directory)
        log.compaction_paused = False

    def _home(self, log: Log) -> Directory:
        path = os.path.dirname(log.directory)
        return next(each for each in self._directories if each.path == path)

    def _entry(self, key: TopicPartition) -> tuple[Log, Directory]:
        entry = self._logs.get(key)
        if entry is None:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{key} has no future log")
        return entry

    def _failed(self, log: Log, directory: Directory, error: OSError) -> KafkaError:
        if not log.closed:  # a folder that was deleted meanwhile has no such path any more
            directory.judge(error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))


def _cleaned(home: Directory, key: TopicPartition) -> int:
    try:
        return home.checkpoint(checkpoints.CLEANER_OFFSETS).get(key, 0)
    except OSError as error:
        home.judge(error)
        return 0


def _unmark(directory: Directory, folder: str) -> None:
    try:
        future.unmark(folder)
    except OSError as error:
        directory.judge(error)


def _fit(current: Log, log: Log) -> None:
    """Make a future log that was found a prefix of the current one."""
    log.compaction_paused = current.compaction_paused = True
    try:
        future.agree(current, log)
    except KafkaError as error:
        logger.error("%r: failed to fit the future log to the current one: %s", log, error)
