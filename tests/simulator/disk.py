"""A partition's log as a list of batches, and the disk that keeps it.

`ProducerStates` checks the sequence numbers, `EpochCache` has the leader epochs, as in the real
log. Bytes and files are left out. After a kill the disk has everything that was written; a power
failure loses everything that was not flushed. `Trouble` makes opening files and writing fail, as
without descriptors (EMFILE) and without space (ENOSPC).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import marshal
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from odradek.config import TopicConfig
from odradek.log.manager import NewLog
from odradek.log.partition.epochs import EpochCache
from odradek.log.partition.failure import LogFailure
from odradek.log.partition.log import AppendInfo, UnexpectedOffsetError
from odradek.log.partition.producers import ProducerStates
from odradek.log.partition.reading import LogSlice
from odradek.log.partition.topic_identity import TopicIdentity
from odradek.log.records.batch import Header, Origin
from odradek.log.segment.files import is_disk_failure
from odradek.protocol.errors import ErrorCode, KafkaError

DIRECTORY = "/disk"
NEVER_MS = 1 << 60
WORK_S = (0.0, 0.02)
# How often work opens a file that is not open yet: a new segment, a checkpoint.
OPENED = 0.3


class Batch(NamedTuple):
    """Records that were written together."""

    base_offset: int
    leader_epoch: int
    producer_id: int
    base_sequence: int
    values: tuple[str, ...]

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.base_offset + len(self.values)

    def header(self) -> Header:
        """Return the header fields that the producer states read."""
        count = len(self.values)
        return Header(
            self.base_offset, 0, self.leader_epoch, 2, 0, 0, count - 1, 0, 0,
            self.producer_id, 0, self.base_sequence, count,
        )  # fmt: skip


def pack(batches: list[Batch]) -> bytes:
    """Return batches as the network carries them."""
    return marshal.dumps([tuple(one) for one in batches])


def unpack(data: bytes) -> list[Batch]:
    """Return the batches that `pack` packed."""
    return [Batch(*one) for one in marshal.loads(data)]


@dataclass(slots=True)
class Trouble:
    """What ails the disk of a broker at present, also over its restarts."""

    chance: Random
    no_files: bool = False
    no_space: bool = False

    def open(self) -> None:
        """Open a file, if it is not open already. Raise EMFILE."""
        if self.no_files and self.chance.random() < OPENED:
            raise OSError(errno.EMFILE, "too many open files")

    def write(self) -> None:
        """Write to an open file. Raise ENOSPC."""
        if self.no_space:
            raise OSError(errno.ENOSPC, "no space left on device")


class _Epochs(EpochCache):
    """The real cache with a list for its file."""

    def __init__(self, stored: list[tuple[int, int]], trouble: Trouble) -> None:
        super().__init__("/unused")
        self._entries = list(stored)
        self.written = list(stored)
        self._trouble = trouble

    def _write(self) -> None:
        self._unwritten = True
        self._trouble.open()
        self._trouble.write()
        self.written = list(self._entries)
        self._unwritten = False

    def flush(self) -> None:
        if self._unwritten:
            self._write()

    def clear(self) -> None:
        self._entries = []
        self.written = []


@dataclass(slots=True)
class Region:
    """A range of a log in a response."""

    data: bytes

    @property
    def length(self) -> int:
        """Return the number of bytes."""
        return len(self.data)

    def close(self) -> None:
        """Do nothing: no file is open."""


@dataclass(slots=True)
class Stored:
    """What is on the disk of one partition."""

    batches: list[Batch] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    checkpoint: int = 0
    flushed: int = 0
    identity: TopicIdentity | None = None


class SimulatedLog:
    """`odradek.log.partition.log.Log` as far as replication needs it."""

    def __init__(
        self,
        topic: str,
        partition: int,
        config: TopicConfig,
        stored: Stored,
        trouble: Trouble,
        on_failure: Callable[[OSError], None],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.config = config
        self.directory = f"{DIRECTORY}/{topic}-{partition}"
        self._trouble = trouble
        self._failure = LogFailure(f"{topic}-{partition}", on_failure)
        self.log_start_offset = self.durable_log_start = 0
        self.batches = list(stored.batches)
        self.log_end_offset = self.batches[-1].end if self.batches else 0
        self.high_watermark = stored.checkpoint
        self.checkpoint = stored.checkpoint
        self.identity = stored.identity
        self.recovery_point = min(stored.flushed, self.log_end_offset)
        self.epochs = _Epochs(stored.epochs, trouble)
        self._recover_epochs()
        self.producers = ProducerStates(NEVER_MS)
        self._replay()
        # Told before anything is cut, with the new end.
        self.on_cut: Callable[[int], None] = lambda end: None

    def _recover_epochs(self) -> None:
        """Note the epochs of the batches that were not flushed, and forget what is not there."""
        # The real log reads them before it starts to serve, and fails if it cannot write them.
        with contextlib.suppress(OSError):
            self.epochs.truncate_from_end(self.log_end_offset)
        for one in self.batches:
            if one.end > self.recovery_point:
                with contextlib.suppress(OSError):
                    self._note_epoch(one)

    @property
    def failure(self) -> OSError | None:
        """Return why the log is offline, None if it is not."""
        return self._failure.error

    def fail(self, error: OSError) -> None:
        """Take the log offline with its directory."""
        self._failure.take_offline(error)

    def stored(self, *, power_failed: bool) -> Stored:
        """Return what the disk has if the process ends now."""
        end = self.recovery_point if power_failed else self.log_end_offset
        kept = [one for one in self.batches if one.end <= end]
        return Stored(
            kept, self.epochs.written, self.checkpoint, self.recovery_point, self.identity
        )

    def flush(self) -> None:
        """Make everything durable."""
        with self._failure.guard():
            self._trouble.open()
            self.epochs.flush()
            self.recovery_point = self.log_end_offset

    def _replay(self) -> None:
        self.producers.clear(0)
        for one in self.batches:
            self.producers.update(one.header())

    @property
    def reader(self) -> SimulatedLog:
        """Return the log, which is its own reader."""
        return self

    @property
    def flush_required(self) -> bool:
        """Return whether flush.messages requires an fsync."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    @property
    def committable_end(self) -> int:
        """Return the offset up to which the log is flushed as flush.messages requires."""
        return self.recovery_point if self.flush_required else self.log_end_offset

    @property
    def latest_epoch(self) -> int:
        """Return the latest leader epoch."""
        return self.epochs.latest

    def assign_epoch(self, epoch: int) -> None:
        """Start a leader epoch at the end of the log."""
        with self._failure.guard():
            self.epochs.assign(epoch, self.log_end_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the answer to OffsetForLeaderEpoch."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

    def append_at_once(self, data: bytes, leader_epoch: int, origin: Origin) -> AppendInfo:
        """Append one batch: no record is compressed here."""
        return self.append_as_leader(data, leader_epoch, origin=origin)

    def append_as_leader(
        self, data: bytes, leader_epoch: int, *, origin: Origin = Origin.CLIENT
    ) -> AppendInfo:
        """Append one batch at the end."""
        (sent,) = unpack(data)
        repeat = self.producers.check(sent.header(), origin)
        if repeat is not None:
            return AppendInfo(repeat.first_offset, repeat.last_offset, -1, 0, 0, True)
        one = sent._replace(base_offset=self.log_end_offset, leader_epoch=leader_epoch)
        with self._failure.guard():
            self._put(one)
        return AppendInfo(one.base_offset, one.end - 1, -1, 0, len(data), False)

    def append_as_follower(self, data: bytes) -> AppendInfo:
        """Append the batches of a leader."""
        batches = unpack(data)
        for one in batches:
            if one.base_offset != self.log_end_offset:
                raise UnexpectedOffsetError(f"{one.base_offset}, log ends at {self.log_end_offset}")
            with self._failure.guard():
                self._put(one)
        return AppendInfo(batches[0].base_offset, self.log_end_offset - 1, -1, 0, len(data), False)

    def _put(self, one: Batch) -> None:
        self._trouble.open()
        self._trouble.write()
        self.batches.append(one)
        self.log_end_offset = one.end
        self.producers.update(one.header())
        # Last, because it writes a file, which can fail: the batch is in the log all the same.
        self._note_epoch(one)

    def _note_epoch(self, one: Batch) -> None:
        if one.leader_epoch > self.epochs.latest:
            self.epochs.note(one.leader_epoch, one.base_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the high watermark: nobody writes transactions."""
        return high_watermark

    def read(
        self,
        offset: int,
        max_bytes: int,
        upto: int | None = None,
        *,
        min_one: bool = True,
        committed: bool = False,
    ) -> LogSlice:
        """Return whole batches from `offset` on, below `upto`."""
        with self._failure.guard():
            self._trouble.open()
        end = self.log_end_offset if upto is None else upto
        first = max(bisect_right(self.batches, offset, key=lambda one: one.base_offset) - 1, 0)
        found = []
        for one in self.batches[first:]:
            if one.end > end:
                break
            found.append(one)
        region: Any = Region(pack(found)) if found else None
        return LogSlice(offset, region, more=False)

    plan = read

    def truncate_to(self, offset: int) -> bool:
        """Truncate whole batches."""
        with self._failure.guard():
            if offset >= self.log_end_offset:
                self.epochs.truncate_from_end(self.log_end_offset)
                return False
            self._cut(offset)
            return True

    def _cut(self, offset: int) -> None:
        """Truncate, or take the directory offline as the real log does: memory and files differ."""
        try:
            self._trouble.open()
        except OSError as error:
            raise OSError(errno.EIO, f"failed to finish a truncation: {error}") from error
        kept = [one for one in self.batches if one.end <= offset]
        end = kept[-1].end if kept else 0
        self.on_cut(end)
        self.batches = kept
        self.log_end_offset = end
        self.recovery_point = min(self.recovery_point, end)
        self.checkpoint = min(self.checkpoint, end)
        self.high_watermark = min(self.high_watermark, end)
        try:
            self.epochs.truncate_from_end(end)
        except OSError as error:
            raise OSError(errno.EIO, f"failed to finish a truncation: {error}") from error
        finally:
            self._replay()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records; log starts never move here."""
        assert offset == 0, "no log start moves in a schedule"
        self.truncate_to(0)

    def advance_log_start(self, offset: int) -> None:
        """Do nothing: log starts never move here."""
        assert offset <= self.log_start_offset

    def values(self, begin: int, end: int) -> list[tuple[int, str]]:
        """Return (offset, value) of the records in a range."""
        first = max(bisect_right(self.batches, begin, key=lambda one: one.base_offset) - 1, 0)
        found = []
        for one in self.batches[first:]:
            if one.base_offset >= end:
                break
            for at, value in enumerate(one.values, one.base_offset):
                if begin <= at < end:
                    found.append((at, value))
        return found


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
