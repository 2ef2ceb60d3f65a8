"""The segment list of a log: its segments in offset order, and the offsets that go with them.

Two locks guard them. `append_lock` serialises everything that changes a log; it may be held across
disk calls. `state_lock` guards the fields that readers need; it is never held across a disk call,
so planning a read never waits for a slow write, roll or fsync. Order keeps readers right: first
what they can see is lowered or replaced, under the state lock, and only then the files change.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import overload

from odradek.log.partition.failure import LogFailure
from odradek.log.segment import files
from odradek.log.segment.names import DELETED_SUFFIX
from odradek.log.segment.placed import Placed
from odradek.log.segment.segment import Segment
from odradek.log.segment.tail import Tail
from odradek.protocol.regions import Buffer


class SegmentList(Sequence[Segment]):
    """The segments of one log, oldest first; the last one, `active`, is written to.

    As a sequence it shows the segments of this moment; copy it to look at several. Unless a method
    says otherwise, its caller holds `append_lock` and turns OSError into KafkaError.

    Invariants, asserted at the end of each method that changes these fields:

    - There is a segment, and `bases` holds the base offsets of `entries`, which rise.
    - first base offset <= log start offset <= log end offset.
    - The log end offset falls only in a truncation, and `truncations` counts those.

    The recovery point is in none of them: retention and DeleteRecords move the log start offset
    past it, and a roll whose append then fails leaves an empty segment above the log end offset,
    up to which a flush may move the recovery point.
    """

    def __init__(self, directory: str, failure: LogFailure) -> None:
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        self.truncations = 0
        self._lowest_cut: int | None = None
        self.entries: list[Segment] = []
        self.bases: list[int] = []
        self.append_lock = threading.RLock()
        self.state_lock = threading.Lock()
        self.directory = directory
        self._failure = failure
        self._deleted: list[tuple[float, Segment]] = []

    def install(
        self, segments: Sequence[Segment], start: int, end: int, recovery_point: int
    ) -> None:
        """Take over the segments and offsets that recovery found."""
        with self.state_lock:
            self.entries = list(segments)
            self.bases = [segment.base_offset for segment in segments]
            self.log_start_offset, self.log_end_offset = start, end
            self.recovery_point = recovery_point
            self._check()

    def _check(self) -> None:
        bases = self.bases
        assert len(self.entries) == len(bases) > 0
        assert self.entries[-1].base_offset == bases[-1]
        assert len(bases) == 1 or bases[-2] < bases[-1]
        assert bases[0] <= self.log_start_offset <= self.log_end_offset

    # -- looking --------------------------------------------------------------------------------

    @overload
    def __getitem__(self, number: int) -> Segment: ...

    @overload
    def __getitem__(self, number: slice) -> list[Segment]: ...

    def __getitem__(self, number: int | slice) -> Segment | list[Segment]:
        with self.state_lock:
            return self.entries[number]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Segment]:
        with self.state_lock:
            return iter(tuple(self.entries))

    @property
    def active(self) -> Segment:
        """The segment that is written to."""
        return self.entries[-1]

    @property
    def size(self) -> int:
        """Bytes of all log files."""
        return sum(segment.size for segment in self)

    # -- appending ------------------------------------------------------------------------------

    def append(
        self, buffers: Sequence[Buffer], size: int, batches: Sequence[Placed], end: int
    ) -> None:
        """Write batches to the active segment; then show them and the new log end to readers.

        Raises OSError; then nothing is written.
        """
        segment = self.entries[-1]
        segment.append(buffers, size, batches)
        with self.state_lock:
            assert end > self.log_end_offset
            segment.publish(batches, size)
            self.log_end_offset = end

    def roll_to(self, fresh: Segment, preallocated_bytes: int) -> None:
        """Make `fresh` the active segment. The one before is finished; an empty one of the same
        name is replaced.
        """
        previous = self.entries[-1]
        replaced = previous.base_offset == fresh.base_offset
        if replaced:
            previous.retire()
        fresh.create(preallocated_bytes)
        with self.state_lock:
            if replaced:
                self.entries[-1] = fresh
            else:
                self.entries.append(fresh)
                self.bases.append(fresh.base_offset)
            self._check()

    # -- truncation -----------------------------------------------------------------------------

    def holding(self, offset: int) -> Segment:
        """Return the segment in which a truncation to `offset` ends."""
        return self.entries[max(bisect_left(self.bases, offset), 1) - 1]

    def hide_from(self, segment: Segment, position: int, end: int) -> list[Segment]:
        """Let the log end with `end`, at `position` of `segment`; return the segments behind it.

        Readers stop there from now on. The files are still as they were.
        """
        with self.state_lock:
            kept = self.entries.index(segment) + 1
            dropped = self.entries[kept:]
            del self.entries[kept:], self.bases[kept:]
            segment.size, segment.tail = position, Tail()
            self.log_end_offset = end
            self._note_cut(end)
            self._check()
        return dropped

    def hide_all(self, fresh: Segment) -> list[Segment]:
        """Let the log be empty, and begin with `fresh`; return all segments that were there.

        The files are still as they were, and `fresh` has none yet: they may have the same names.
        """
        offset = fresh.base_offset
        with self.state_lock:
            dropped, self.entries, self.bases = self.entries, [fresh], [offset]
            self.log_start_offset = self.log_end_offset = offset
            self._note_cut(offset)
            # No record is left, so there is nothing to flush.
            self.recovery_point = max(self.recovery_point, offset)
            self._check()
        return dropped

    def _note_cut(self, end: int) -> None:
        self.truncations += 1
        self._lowest_cut = end if self._lowest_cut is None else min(end, self._lowest_cut)

    @property
    def was_cut(self) -> bool:
        """Return whether the log was truncated since the last `take_cut`. Needs no lock."""
        return self._lowest_cut is not None

    def take_cut(self) -> int | None:
        """Return the lowest end that truncations left since the last call, None without any. Needs
        no lock.

        A copy of the log is a prefix of it again once it is truncated to there.
        """
        with self.state_lock:
            cut, self._lowest_cut = self._lowest_cut, None
            return cut

    def lower_recovery_point(self, end: int) -> bool:
        """Let the recovery point be at most `end`; return whether it was above."""
        lowered = self.recovery_point > end
        self.recovery_point = min(self.recovery_point, end)
        return lowered

    def skip_to(self, end: int) -> None:
        """Let the log end with `end`, where the active segment begins already."""
        with self.state_lock:
            self.log_end_offset = end
            self._check()

    def relocate(self, directory: str) -> None:
        """Follow the folder of the log, which is `directory` now."""
        self.directory = directory
        for segment in (*self.entries, *(segment for _, segment in self._deleted)):
            segment.relocate(directory)

    # -- deletion -------------------------------------------------------------------------------

    @property
    def has_deleted(self) -> bool:
        """Return whether files of deleted segments are left. Needs no lock."""
        return bool(self._deleted)

    def raise_log_start(self, offset: int) -> bool:
        """Hide the records below `offset`; return whether there were any."""
        if offset <= self.log_start_offset:
            return False
        with self.state_lock:
            self.log_start_offset = offset
            self._check()
        return True

    def drop_oldest(self, count: int) -> list[Segment]:
        """Take the `count` oldest segments out, and raise the log start offset to the next one."""
        with self.state_lock:
            dropped = self.entries[:count]
            del self.entries[:count], self.bases[:count]
            self.log_start_offset = max(self.log_start_offset, self.bases[0])
            self._check()
        return dropped

    def schedule_delete(self, segments: Sequence[Segment], due: float) -> None:
        """Rename segments to `.deleted`; `delete_due` removes them from `due` (monotonic s) on."""
        for segment in segments:
            segment.retire()  # before the rename: opening the old name would make an empty file
            segment.rename_suffix(DELETED_SUFFIX)
            self._deleted.append((due, segment))

    def delete_due(self, now: float) -> None:
        """Remove the files whose delay is over. Takes the lock. Raises KafkaError."""
        self._failure.raise_if_unusable()
        if not self._deleted:
            return
        with self.append_lock, self._failure.guard():
            for entry in [entry for entry in self._deleted if entry[0] <= now]:
                delete_files([entry[1]])
                self._deleted.remove(entry)  # not before: what fails is tried again

    # -- compaction -----------------------------------------------------------------------------

    def begin_copy(self, copy: Segment) -> None:
        """Make the files of a segment that compaction fills. Takes the lock.

        Raises KafkaError and OSError.
        """
        with self.append_lock:
            self._failure.raise_if_unusable()
            copy.create()

    def discard_copy(self, copy: Segment) -> None:
        """Remove a copy that compaction did not finish. Takes the lock. Raises OSError.

        A copy that is part of the log already stays: the disk failed after that. Nothing is removed
        from a deleted log, because a new log may have its name.
        """
        with self.append_lock:
            if copy in self.entries:
                return
            if self._failure.closed:
                copy.retire()
            else:
                delete_files([copy])

    def replace(
        self,
        old: Sequence[Segment],
        copy: Segment,
        swap_suffix: str,
        truncations: int,
        delete_at: float,
    ) -> bool:
        """Replace neighbouring closed segments by a compacted, durable `copy`; return whether it
        was possible. Takes the lock. Raises KafkaError.

        The copy is renamed to `swap_suffix`, which recovery takes as finished, and then to its own
        name. Nothing changes when an old segment is gone, or when
        there were more than `truncations`: then an old segment may grow again.
        """
        with self.append_lock, self._failure.guard():
            if self.truncations != truncations:
                return False
            entries = self.entries
            first = next((number for number, each in enumerate(entries) if each is old[0]), -1)
            if first < 0 or entries[first : first + len(old)] != list(old):
                return False
            copy.rename_suffix(swap_suffix)
            files.fsync_path(self.directory)
            with self.state_lock:
                entries[first : first + len(old)] = [copy]
                self.bases[first : first + len(old)] = [copy.base_offset]
                self._check()
            self.schedule_delete(old, delete_at)
            copy.rename_suffix("")
            files.fsync_path(self.directory)
            return True

    def rebuild_indexes(self, segment: Segment) -> None:
        """Build the indexes of a segment from its log file. Takes the lock. Raises KafkaError."""
        with self.append_lock, self._failure.guard():
            segment.rebuild_indexes()

    # -- flushing -------------------------------------------------------------------------------

    def unflushed(self, *, only_rolled: bool) -> tuple[list[Segment], int, int]:
        """Return the segments with records at or above the recovery point, the offset they reach,
        and the number of truncations. Needs no lock.

        One that ends right at the recovery point is among them: its files were finished since.
        """
        with self.state_lock:
            first = max(bisect_left(self.bases, self.recovery_point) - 1, 0)
            if only_rolled:
                return self.entries[first:-1], self.bases[-1], self.truncations
            return self.entries[first:], self.log_end_offset, self.truncations

    def note_flushed(self, end: int, truncations: int) -> bool:
        """Raise the recovery point to `end`; return False, and change nothing, when the log was
        truncated since `unflushed`. Needs no lock.
        """
        with self.state_lock:
            if self.truncations != truncations:
                return False
            self.recovery_point = max(self.recovery_point, end)
            return True


def delete_files(segments: Sequence[Segment]) -> None:
    """Remove the files of segments that left the log. Raises OSError."""
    for segment in segments:
        segment.retire()
        for path in segment.paths():
            files.remove_if_there(path)
