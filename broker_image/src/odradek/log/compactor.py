"""Compaction by `log.cleaner.threads` threads: which log is next, and what a failure means.

These threads are apart from the other background work: a compaction may take hours, because it is
throttled, and retention and checkpoints must not wait for it. A log that cannot be compacted is
skipped until the next start, as in Kafka; else it would be the dirtiest one for ever.
"""

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakSet

from odradek.config import BrokerConfig, bounded_threads
from odradek.log.directory import Directory
from odradek.log.partition import checkpoints, cleaner
from odradek.log.partition.cleaner import DirtyRange, Throttle
from odradek.log.partition.log import Log, LogEnvironment
from odradek.log.records.batch import CorruptBatchError
from odradek.log.segment.files import FileRetiredError, StoppedError
from odradek.protocol.errors import KafkaError
from odradek.quarantine import Quarantines, Work

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Task:
    log: Log
    directory: Directory
    dirty: DirtyRange

    @property
    def urgency(self) -> tuple[bool, float]:
        return self.dirty.overdue, self.dirty.ratio


class Compactor:
    """Compacts one log per call of `compact`. The threads that call it share the buffers' bytes and
    the throttle.
    """

    def __init__(
        self,
        config: BrokerConfig,
        directories: Iterable[Directory],
        environment: LogEnvironment,
        quarantines: Quarantines,
    ) -> None:
        self._directories = list(directories)
        self._environment = environment
        self._quarantines = quarantines
        self._stopping = threading.Event()
        self.configure(config)
        self._under_work: set[Log] = set()
        self._uncleanable: WeakSet[Log] = WeakSet()
        self._retried: WeakSet[Log] = WeakSet()
        self._changed = threading.Condition()

    def configure(self, config: BrokerConfig) -> None:
        """Set the size of buffers and the throttle, for compactions that begin from now on."""
        threads = max(bounded_threads(config.log_cleaner_threads), 1)
        self._max_keys = config.log_cleaner_dedupe_buffer_size // threads // cleaner.BYTES_PER_KEY
        self._buffer_bytes = config.log_cleaner_io_buffer_size // threads
        self._throttle = Throttle(config.log_cleaner_io_max_bytes_per_second, self._stopping)

    def compact(self) -> bool:
        """Compact the dirtiest log that no other thread compacts; return False when there is none,
        or it failed for a reason that may pass. Such a log is tried again after the others.
        Blocks.
        """
        with self._changed:
            task = None if self._stopping.is_set() else self._dirtiest()
            if task is None:
                return False
            self._under_work.add(task.log)
        try:
            return self._clean(task)
        finally:
            with self._changed:
                self._under_work.discard(task.log)
                self._changed.notify_all()

    def stop(self) -> None:
        """Stop the compactions under way and wait for that. Unfinished copies are removed."""
        self._stopping.set()
        with self._changed:
            while self._under_work:
                self._changed.wait()

    def _dirtiest(self) -> _Task | None:
        found: list[_Task] = []
        now_ms = self._environment.now_ms()
        for directory in self._directories:
            if directory.failure is not None:
                continue
            logs = {
                key: log for key, log in directory.logs().items() if self._may_be_compacted(log)
            }
            if not logs:
                continue
            truncations = {key: log.segments.truncations for key, log in logs.items()}
            try:
                firsts = directory.checkpoint(checkpoints.CLEANER_OFFSETS)
            except OSError as error:
                directory.judge(error)
                continue
            for key, log in logs.items():
                dirty = self._dirt(log, directory, firsts.get(key, 0), now_ms)
                if dirty is None or dirty.truncations != truncations[key]:
                    continue  # what the checkpoint says may have been truncated since
                found.append(_Task(log, directory, dirty))
        return max(
            found, key=lambda task: (task.log not in self._retried, task.urgency), default=None
        )

    def _may_be_compacted(self, log: Log) -> bool:
        return (
            "compact" in log.config.cleanup_policy
            and not log.failure
            and not log.closed
            and not log.compaction_paused
            and log not in self._under_work
            and log not in self._uncleanable
        )

    def _dirt(self, log: Log, directory: Directory, first: int, now_ms: int) -> DirtyRange | None:
        """Return what is to be compacted, None if nothing is due."""
        try:
            dirty = cleaner.dirty_range(log, first, now_ms)
            return dirty if dirty is not None and cleaner.is_due(log, dirty) else None
        except (FileRetiredError, CorruptBatchError):
            return None
        except OSError as error:
            _cannot_clean(log, directory, error)
            return None
        except Exception as error:
            self._give_up(log, error)
            return None

    def _clean(self, task: _Task) -> bool:
        log = task.log
        try:
            end = cleaner.clean(log, task.dirty, self._max_keys, self._throttle, self._buffer_bytes)
        except (FileRetiredError, StoppedError):
            return True  # deleted or truncated meanwhile, or the broker stops
        except (CorruptBatchError, KafkaError) as error:
            if log.closed or log.segments.truncations != task.dirty.truncations:
                return True  # truncated while it was read, not damaged
            if isinstance(error.__cause__, OSError):
                self._retried.add(log)
                return log.failure is not None  # the log has reported its disk itself
            logger.error(
                "failed to compact %s-%d: %s; skipped until the next start",
                log.topic,
                log.partition,
                error,
            )
            self._uncleanable.add(log)
            return True
        except OSError as error:
            self._retried.add(log)
            _cannot_clean(log, task.directory, error)
            return log.failure is not None or log.closed
        except Exception as error:
            self._give_up(log, error)
            return True
        self._retried.discard(log)
        if not log.compaction_paused:  # else a copy that began meanwhile may be less clean
            task.directory.note_cleaned(log, end, task.dirty.truncations)
        return True

    def _give_up(self, log: Log, error: Exception) -> None:
        self._uncleanable.add(log)
        self._quarantines.put(
            Work.COMPACTION, f"{log.topic}-{log.partition}", error, "skipped until the next start"
        )


def _cannot_clean(log: Log, directory: Directory, error: OSError) -> None:
    if not log.closed:  # a partition deleted meanwhile has no paths any more
        directory.judge(error)
