"""The disk of a broker, with the logs of its partitions.

After a kill the disk has everything that was written; a power failure loses everything that was not
flushed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

from odradek.log.manager import NewLog
from odradek.log.partition.topic_identity import TopicIdentity
from odradek.log.segment.files import is_disk_failure
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from tests.simulator.simulated_log import DIRECTORY, SimulatedLog, Stored, Trouble

WORK_S = (0.0, 0.02)


class _Threads:
    """Simulate work in a thread, while the event loop continues."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance

    async def run(self, work: Callable[[], Any]) -> Any:
        await asyncio.sleep(self._chance.uniform(*WORK_S))
        return work()


class _Futures(dict[tuple[str, int], SimulatedLog]):
    """The logs that move to another directory: there is one directory."""

    def drop_failed(self) -> list[tuple[str, int]]:
        """Do nothing: no log moves."""
        return []


class Disk:
    """The logs of one broker, also over restarts; replaces the `LogManager`."""

    def __init__(self, config: TopicConfig, chance: Random) -> None:
        self.readers = self.disk = _Threads(chance)
        self.trouble = Trouble(chance)
        self.failure: OSError | None = None
        # Called once per process, when the disk fails.
        self.on_failure: Callable[[], None] = lambda: None
        self.futures = _Futures()
        self._config = config
        self._stored: dict[tuple[str, int], Stored] = {}
        self._logs: dict[tuple[str, int], SimulatedLog] = {}
        self.watch: Callable[[SimulatedLog], None] = lambda log: None

    def open(self) -> None:
        """Load the logs in a new process."""
        self._logs = {}
        self.failure = None
        for key, stored in self._stored.items():
            self._open(key, stored)

    def _open(self, key: tuple[str, int], stored: Stored) -> SimulatedLog:
        log = SimulatedLog(*key, self._config, stored, self.trouble, self.fail)
        self._logs[key] = log
        if log.flush_required:  # as the real manager does when it loads
            with contextlib.suppress(KafkaError):
                log.flush()
        self.watch(log)
        return log

    @property
    def online_directories(self) -> tuple[str, ...]:
        """Return the directories that did not fail."""
        return () if self.failure else (DIRECTORY,)

    def fail(self, error: OSError) -> None:
        """Take every log offline."""
        if self.failure is None:
            self.failure = error
            for log in self._logs.values():
                log.fail(error)
            self.on_failure()

    def leave(self, *, power_failed: bool) -> None:
        """End the process: lose unflushed records if the power failed."""
        self._stored = {
            key: log.stored(power_failed=power_failed) for key, log in self._logs.items()
        }

    def wipe(self) -> None:
        """Lose everything, between two processes."""
        self._stored = {}

    def logs(self) -> dict[tuple[str, int], SimulatedLog]:
        """Return all logs."""
        return dict(self._logs)

    def has_topic(self, topic: str) -> bool:
        """Return whether there is a log of any partition of a topic."""
        return any(name == topic for name, _ in self._logs)

    def get(self, topic: str, partition: int) -> Any:
        """Return the log, None if there is none."""
        return self._logs.get((topic, partition))

    async def create_missing(
        self, wanted: Mapping[tuple[str, int], NewLog]
    ) -> dict[tuple[str, int], KafkaError]:
        """Create logs; return why some could not be created."""
        refused: dict[tuple[str, int], KafkaError] = {}
        for key in wanted:
            if key in self._logs:
                continue
            try:
                self.trouble.open()
                self.trouble.write()
                self._open(key, Stored())
            except OSError as error:
                refused[key] = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
                self._judge(error)
        return refused

    def _judge(self, error: OSError) -> None:
        if is_disk_failure(error):
            self.fail(error)

    async def delete(
        self, keys: Iterable[tuple[str, int]], *, keep_records: bool = False
    ) -> dict[tuple[str, int], KafkaError]:
        """Delete logs; always succeed."""
        for key in keys:
            self._logs.pop(key, None)
        return {}

    async def topic_identities(
        self, keys: Iterable[tuple[str, int]]
    ) -> tuple[dict[tuple[str, int], TopicIdentity | None], dict[tuple[str, int], KafkaError]]:
        """Return the topics that logs belong to; always succeed."""
        return {key: self._logs[key].identity for key in keys if key in self._logs}, {}

    async def record_topic_identities(
        self, wanted: Mapping[tuple[str, int], TopicIdentity]
    ) -> dict[tuple[str, int], KafkaError]:
        """Write which topics logs belong to; always succeed."""
        for key, identity in wanted.items():
            self._logs[key].identity = identity
        return {}

    async def checkpoint_start_offsets(self, logs: Iterable[SimulatedLog]) -> None:
        """Do nothing: log starts never move here."""
        assert not any(log.log_start_offset for log in logs)

    async def write_high_watermarks(self) -> bool:
        """Write the checkpoint, and flush; have that done each time."""
        try:
            self.trouble.open()
            self.trouble.write()
        except OSError as error:
            self._judge(error)
            return False
        for log in self._logs.values():
            with contextlib.suppress(KafkaError):
                log.flush()
            log.checkpoint = min(log.high_watermark, log.log_end_offset)
        return False
