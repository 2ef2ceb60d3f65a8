"""A partition's log as a list of batches.

`ProducerStates` checks the sequence numbers and knows the transactions, `EpochCache` has the leader
epochs, as in the real log. Bytes and files are left out. `Trouble` makes opening files and writing
fail, as without descriptors (EMFILE) and without space (ENOSPC).
"""

from __future__ import annotations

import contextlib
import errno
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from odradek.log.partition.appending import AppendInfo, UnexpectedOffsetError
from odradek.log.partition.epochs import EpochCache
from odradek.log.partition.failure import LogFailure
from odradek.log.partition.producers import ProducerStates
from odradek.log.partition.reading import LogSlice, aborted_between
from odradek.log.partition.topic_identity import TopicIdentity
from odradek.log.records.batch import Origin
from odradek.log.segment.transaction_index import TransactionIndex
from odradek.topic_config import TopicConfig
from tests.simulator.batches import Batch, Region, from_coordinator, pack, unpack

DIRECTORY = "/disk"
NEVER_MS = 1 << 60
BATCH_BYTES = 100
# How often work opens a file that is not open yet: a new segment, a checkpoint.
OPENED = 0.3


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


class _AbortedTransactions(TransactionIndex):
    """The real index without a file."""

    def __init__(self) -> None:
        super().__init__("/unused")

    def _add(self, entries: bytes) -> None:
        self._entries.add(entries)


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
        self._high_watermark = stored.checkpoint
        self.checkpoint = stored.checkpoint
        self.identity = stored.identity
        self.recovery_point = min(stored.flushed, self.log_end_offset)
        self.epochs = _Epochs(stored.epochs, trouble)
        self._recover_epochs()
        self.producers = ProducerStates(NEVER_MS, verifies=lambda: True)
        self.aborted = _AbortedTransactions()
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
        self.aborted = _AbortedTransactions()
        for one in self.batches:
            self._note(one)

    def _note(self, one: Batch) -> None:
        """Note a batch in what the log knows of producers and transactions."""
        marker = one.end_of_transaction()
        if marker is not None:
            aborted = self.producers.aborted_by(one.header(), one.end - 1, marker)
            if aborted is not None:
                self.aborted.append(aborted)
        self.producers.update(one.header(), marker)

    @property
    def high_watermark(self) -> int:
        """Return the first offset that is not committed, as replication says."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self._high_watermark = offset
        self.producers.transactions.forget_replicated(offset)

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
        if origin is Origin.COORDINATOR:
            sent = from_coordinator(data)
        else:
            (sent,) = unpack(data)
        repeat = self.producers.check(sent.header(), origin, leader_epoch)
        if sent.marker is not None:
            self.producers.check_marker(sent.header(), sent.end_of_transaction())
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
        self._note(one)
        # Last, because it writes a file, which can fail: the batch is in the log all the same.
        self._note_epoch(one)

    def _note_epoch(self, one: Batch) -> None:
        if one.leader_epoch > self.epochs.latest:
            self.epochs.note(one.leader_epoch, one.base_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset up to which every transaction is decided."""
        return self.producers.transactions.last_stable_offset(high_watermark)

    def read(
        self,
        offset: int,
        max_bytes: int,
        upto: int | None = None,
        *,
        min_one: bool = True,
        committed: bool = False,
    ) -> LogSlice:
        """Return whole batches from `offset` on, below `upto`, each taken for BATCH_BYTES."""
        with self._failure.guard():
            self._trouble.open()
        end = self.log_end_offset if upto is None else upto
        first = max(bisect_right(self.batches, offset, key=lambda one: one.base_offset) - 1, 0)
        found: list[Batch] = []
        for one in self.batches[first:]:
            if one.end > end or (found and len(found) * BATCH_BYTES >= max_bytes):
                break
            found.append(one)
        if not found:
            return LogSlice(offset, None, more_segments=False)
        aborted = aborted_between([self], offset, found[-1].end) if committed else ()  # type: ignore[list-item]
        region: Any = Region(pack(found))
        return LogSlice(offset, region, more_segments=False, aborted=aborted)

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
        self._high_watermark = min(self._high_watermark, end)
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
