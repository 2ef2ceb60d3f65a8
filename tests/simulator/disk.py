"""A partition's log as a list of batches, and the disk that keeps it.

`ProducerStates` checks the sequence numbers, `EpochCache` has the leader epochs, as in the real
log. Bytes and files are left out. After a kill the disk has everything that was written; a power
failure loses everything that was not flushed.
"""

from __future__ import annotations

import asyncio
import marshal
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from odradek.config import TopicConfig
from odradek.log.manager import NewLog
from odradek.log.partition.epochs import EpochCache
from odradek.log.partition.log import AppendInfo, UnexpectedOffsetError
from odradek.log.partition.producers import ProducerStates
from odradek.log.partition.reading import LogSlice
from odradek.log.partition.topic_identity import TopicIdentity
from odradek.log.records.batch import Header, Origin
from odradek.protocol.errors import KafkaError

NEVER_MS = 1 << 60
WORK_S = (0.0, 0.02)


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


class _Epochs(EpochCache):
    """The real cache without its file."""

    def _write(self) -> None:
        pass

    def clear(self) -> None:
        self._entries = []


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

    def __init__(self, topic: str, partition: int, config: TopicConfig, stored: Stored) -> None:
        self.topic = topic
        self.partition = partition
        self.config = config
        self.directory = f"/disk/{topic}-{partition}"
        self.failure: OSError | None = None
        self.log_start_offset = self.durable_log_start = 0
        self.batches = list(stored.batches)
        self.log_end_offset = self.batches[-1].end if self.batches else 0
        self.high_watermark = stored.checkpoint
        self.checkpoint = stored.checkpoint
        self.identity = stored.identity
        self.recovery_point = min(stored.flushed, self.log_end_offset)
        self.epochs = _Epochs(self.directory)
        self.epochs._entries = list(stored.epochs)
        self.epochs.truncate_from_end(self.log_end_offset)
        self.producers = ProducerStates(NEVER_MS)
        self._replay()
        # Told before anything is cut, with the new end.
        self.on_cut: Callable[[int], None] = lambda end: None

    def stored(self, *, power_failed: bool) -> Stored:
        """Return what the disk has if the process ends now."""
        end = self.recovery_point if power_failed else self.log_end_offset
        kept = [one for one in self.batches if one.end <= end]
        return Stored(
            kept, self.epochs.entries, self.checkpoint, self.recovery_point, self.identity
        )

    def flush(self) -> None:
        """Make everything durable."""
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
        self.epochs.assign(epoch, self.log_end_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the answer to OffsetForLeaderEpoch."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

    def needs_record_inspection(self, data: bytes, origin: Origin) -> bool:
        """Do nothing: no record is compressed here."""
        return False

    def append_as_leader(
        self, data: bytes, leader_epoch: int, *, origin: Origin = Origin.CLIENT
    ) -> AppendInfo:
        """Append one batch at the end."""
        (sent,) = unpack(data)
        repeat = self.producers.check(sent.header(), origin)
        if repeat is not None:
            return AppendInfo(repeat.first_offset, repeat.last_offset, -1, 0, 0, True)
        one = sent._replace(base_offset=self.log_end_offset, leader_epoch=leader_epoch)
        self._put(one)
        return AppendInfo(one.base_offset, one.end - 1, -1, 0, len(data), False)

    def append_as_follower(self, data: bytes) -> AppendInfo:
        """Append the batches of a leader."""
        batches = unpack(data)
        for one in batches:
            if one.base_offset != self.log_end_offset:
                raise UnexpectedOffsetError(f"{one.base_offset}, log ends at {self.log_end_offset}")
            self._put(one)
        return AppendInfo(batches[0].base_offset, self.log_end_offset - 1, -1, 0, len(data), False)

    def _put(self, one: Batch) -> None:
        self.batches.append(one)
        self.log_end_offset = one.end
        if one.leader_epoch > self.epochs.latest:
            self.epochs.assign(one.leader_epoch, one.base_offset)
        self.producers.update(one.header())

    def read(
        self, offset: int, max_bytes: int, upto: int | None = None, *, min_one: bool = True
    ) -> LogSlice:
        """Return whole batches from `offset` on, below `upto`."""
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
        if offset >= self.log_end_offset:
            self.epochs.truncate_from_end(self.log_end_offset)
            return False
        kept = [one for one in self.batches if one.end <= offset]
        end = kept[-1].end if kept else 0
        self.on_cut(end)
        self.batches = kept
        self.log_end_offset = end
        self.recovery_point = min(self.recovery_point, end)
        self.checkpoint = min(self.checkpoint, end)
        self.high_watermark = min(self.high_watermark, end)
        self.epochs.truncate_from_end(end)
        self._replay()
        return True

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


class Disk:
    """The logs of one broker, also over restarts; replaces the `LogManager`."""

    online_directories = ("/disk",)

    def __init__(self, config: TopicConfig, chance: Random) -> None:
        self.readers = self.disk = _Threads(chance)
        self.futures: dict[tuple[str, int], SimulatedLog] = {}  # there is one directory
        self._config = config
        self._stored: dict[tuple[str, int], Stored] = {}
        self._logs: dict[tuple[str, int], SimulatedLog] = {}
        self.watch: Callable[[SimulatedLog], None] = lambda log: None

    def open(self) -> None:
        """Load the logs in a new process."""
        self._logs = {}
        for key, stored in self._stored.items():
            self._open(key, stored)

    def _open(self, key: tuple[str, int], stored: Stored) -> SimulatedLog:
        log = self._logs[key] = SimulatedLog(*key, self._config, stored)
        if log.flush_required:  # as the real manager does when it loads
            log.flush()
        self.watch(log)
        return log

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
        """Create logs; always succeed."""
        for key in wanted:
            if key not in self._logs:
                self._open(key, Stored())
        return {}

    async def delete(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], KafkaError]:
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

    async def write_high_watermarks(self, marks: dict[tuple[str, int], int]) -> None:
        """Write the checkpoint, and flush."""
        for key, mark in marks.items():
            log = self._logs.get(key)
            if log is not None:
                log.flush()
                log.checkpoint = min(mark, log.log_end_offset)
