"""One segment of a partition: a `.log` file of batches and its two indexes.

Only the newest segment grows. `append` writes bytes and index entries at the end. They become
visible when `publish` raises `size`, so a failed write leaves a segment as it was. A lookup reads
the index and then scans batch headers. `Tail` remembers the last batches written, so reading at the
end needs neither.

An index that proves wrong is rebuilt from the log on the spot. `recover` is the strict form after a
crash: it verifies every checksum and truncates the file behind the last valid batch.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from odradek.log.records import batch, legacy
from odradek.log.records.batch import CorruptBatchError, Header
from odradek.log.segment import batch_file
from odradek.log.segment.files import SharedFile, read_exactly, sync, write_all
from odradek.log.segment.index import MAX_RELATIVE_OFFSET, CorruptIndexError, OffsetIndex, TimeIndex
from odradek.log.segment.names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from odradek.log.segment.placed import Placed, placed
from odradek.log.segment.tail import Tail
from odradek.log.segment.transaction_index import TransactionIndex
from odradek.protocol.regions import Buffer

_HEADER_CHUNK = 8192


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """Settings of a segment from the topic's configuration, and its creation time (ms)."""

    index_interval_bytes: int
    index_max_bytes: int
    created_ms: int
    jitter_ms: int = 0


class Segment:
    """A segment. One writer at a time, any number of readers."""

    __slots__ = (
        "_bytes_since_index", "_check_lock", "_first_timestamp", "_indexes_checked",
        "_max_timestamp", "_preallocated", "aborted", "base_offset", "changed", "created_ms",
        "directory",
        "index", "interval_bytes", "jitter_ms", "log", "offset_of_max_timestamp", "size", "tail",
        "time_index", "trusted_from",
    )  # fmt: skip

    def __init__(
        self, directory: str, base_offset: int, settings: SegmentSettings, suffix: str = ""
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        path = os.path.join(directory, file_name(base_offset, ""))
        self.log = SharedFile(path + LOG_SUFFIX + suffix)
        self.index = OffsetIndex(
            path + INDEX_SUFFIX + suffix, base_offset, settings.index_max_bytes
        )
        self.time_index = TimeIndex(
            path + TIME_INDEX_SUFFIX + suffix, base_offset, settings.index_max_bytes
        )
        self.aborted = TransactionIndex(path + TXN_INDEX_SUFFIX + suffix)
        self.interval_bytes = settings.index_interval_bytes
        self.created_ms = settings.created_ms
        self.jitter_ms = settings.jitter_ms
        self.size = 0
        # Whether the files may lack something, or not be on the disk itself as they are.
        self.changed = False
        # Bytes below this position were not written by this process: they are verified when read.
        self.trusted_from = 0
        self.tail = Tail()
        self.offset_of_max_timestamp = base_offset
        self._max_timestamp: int | None = -1
        self._first_timestamp: int | None = None
        self._bytes_since_index = 0
        self._indexes_checked = True
        self._check_lock = (
            threading.RLock()
        )  # held for the first check of files that `open` took over
        self._preallocated = False

    # -- life -----------------------------------------------------------------------------------

    def create(self, preallocated_bytes: int = 0) -> None:
        """Create the three files, empty, and close them. Existing files of the same name are
        emptied.

        With `preallocated_bytes` the log file has that length, a hole, until the segment is
        finished (Kafka's `preallocate`).
        """
        self.changed = True
        for file in (self.log, self.index.file, self.time_index.file):
            fd = file.acquire()
            try:
                os.ftruncate(fd, 0)
                if preallocated_bytes and file is self.log:
                    os.ftruncate(fd, preallocated_bytes)
            finally:
                file.release()
        self.close_files()
        self._preallocated = preallocated_bytes > 0

    def open(self, log_size: int) -> None:
        """Take over existing files; `log_size` is the length of the `.log` file.

        Only the sizes of the indexes are read here. Their entries are checked at the first lookup.
        """
        self.size = self.trusted_from = log_size
        self._max_timestamp = None
        self._indexes_checked = False
        try:
            self.index.load()
            self.time_index.load()
        except CorruptIndexError:
            self.rebuild_indexes()

    def become_inactive(self) -> None:
        """Finish the files, as Kafka does when a segment rolls or closes: add the newest timestamp,
        then trim. Those that are as a clean shutdown left them are finished.
        """
        if not self.changed:
            return
        if self._preallocated:
            self._truncate_log(self.size)
        self._finish_indexes()

    def _finish_indexes(self) -> None:
        if self.max_timestamp >= 0:
            self.time_index.append(self.max_timestamp, self.offset_of_max_timestamp)
        self.index.trim()
        self.time_index.trim()

    def flush(self) -> None:
        """Make log and indexes durable. Whatever indexes of an empty log say after a power failure,
        the first use finds that it is wrong.
        """
        fd = self.log.acquire()
        try:
            sync(fd)
        finally:
            self.log.release()
        if self.size:
            self.index.flush()
            self.time_index.flush()
            self.aborted.flush()

    def retire(self) -> None:
        """Close the files as soon as they have no readers."""
        for file in (self.log, self.index.file, self.time_index.file):
            file.retire()

    def release_idle(self) -> None:
        """Give back descriptors and maps that nobody used since the last call."""
        self.log.close_idle()
        self.index.release_idle()
        self.time_index.release_idle()

    def close_files(self) -> None:
        """Give back the descriptors and maps that nobody uses now: a partition at rest has none."""
        self.log.close_now()
        self.index.close_files()
        self.time_index.close_files()

    def rename_suffix(self, new: str) -> None:
        """Rename every file of the segment to `...new`; missing ones are skipped.

        Recovery takes the name of the log file for the state of all, and makes only the indexes of
        offsets and times anew. So a log file is never in use without the index of aborted
        transactions: a crash in between would let their records count.
        """
        base = os.path.join(self.directory, file_name(self.base_offset, ""))
        is_given_up = new == DELETED_SUFFIX
        if not is_given_up:
            self.aborted.rename(base + TXN_INDEX_SUFFIX + new)
        self.log.rename(base + LOG_SUFFIX + new)
        if is_given_up:
            self.aborted.rename(base + TXN_INDEX_SUFFIX + new)
        self.index.file.rename(base + INDEX_SUFFIX + new)
        self.time_index.file.rename(base + TIME_INDEX_SUFFIX + new)

    def relocate(self, directory: str) -> None:
        """Follow the folder of the log, which is `directory` now."""
        self.directory = directory
        for file in (self.log, self.index.file, self.time_index.file, self.aborted):
            file.path = os.path.join(directory, os.path.basename(file.path))

    def paths(self) -> list[str]:
        """Return every file of the segment that may exist, with its present suffix."""
        base = os.path.join(self.directory, file_name(self.base_offset, ""))
        ending = self.log.path[len(base) + len(LOG_SUFFIX) :]
        return [base + suffix + ending for suffix in SEGMENT_SUFFIXES]

    # -- writing --------------------------------------------------------------------------------

    def accepts(self, offset: int) -> bool:
        """Return whether `offset` can be written relative to the base offset."""
        return 0 <= offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def append(self, buffers: Sequence[Buffer], length: int, batches: Sequence[Placed]) -> None:
        """Write `length` bytes of whole batches at the end, with index entries where they are due.

        `batches` are in the buffers. Readers see nothing before `publish`. When a write fails, the
        file is truncated to its old size and OSError is raised, so that no torn bytes stay.
        """
        position = self.size
        self.changed = True
        fd = self.log.acquire()
        try:
            if len(buffers) == 1:  # the usual case, and the cheaper call
                written = os.pwrite(fd, buffers[0], position)
            else:
                written = os.pwritev(fd, buffers, position)
            if written != length:
                write_all(fd, buffers, position)
            self._index(batches, position)
        except OSError:
            os.ftruncate(fd, position)
            _, _, base_offset, _, _ = batches[0]
            self.index.truncate_to(base_offset)
            self.time_index.truncate_to(base_offset)
            raise
        finally:
            self.log.release()

    def _index(self, batches: Sequence[Placed], position: int) -> None:
        """Note the newest timestamp, and add index entries where they are due."""
        newest = self._max_timestamp
        if newest is None:
            newest = self.max_timestamp
        newest_offset = self.offset_of_max_timestamp
        since = self._bytes_since_index
        for at, size, _, last_offset, timestamp in batches:
            if timestamp > newest:
                newest, newest_offset = timestamp, last_offset
            if since > self.interval_bytes and not self.index.is_full:
                self.index.append(last_offset, position + at)
                if newest >= 0 and not self.time_index.is_full:
                    self.time_index.append(newest, newest_offset)
                since = 0
            since += size
        self._bytes_since_index = since
        self._max_timestamp, self.offset_of_max_timestamp = newest, newest_offset

    def publish(self, batches: Sequence[Placed], length: int) -> None:
        """Make what `append` wrote visible to readers."""
        position = self.size
        if position == 0:
            _, _, _, _, self._first_timestamp = batches[0]
        self.tail.add(batches, position)
        self.size = position + length

    def truncation_point(self, offset: int) -> tuple[int, int]:
        """Return the position where a truncation to `offset` cuts, which is the begin of a batch,
        and the log end offset after it.
        """
        found = self.find(offset)
        if found is None:
            return self.size, offset
        position, header = found
        first = header.base_offset
        if header.magic < 2:
            first = legacy.first_offset(self.read(position, header.size), header)
        return position, min(offset, first)

    def truncate_files(self, end_offset: int, now_ms: int) -> None:
        """Truncate the files to `size`, the position that `truncation_point` returned."""
        self.changed = True
        self._checked_indexes()
        self.index.truncate_to(end_offset)
        self.time_index.truncate_to(end_offset)
        self.aborted.truncate_to(end_offset)
        self._truncate_log(self.size)
        if self.size == 0:
            self.created_ms = now_ms
            self._first_timestamp = None
        self._bytes_since_index = 0
        self._load_max_timestamp()

    def _truncate_log(self, size: int) -> None:
        fd = self.log.acquire()
        try:
            os.ftruncate(fd, size)
        finally:
            self.log.release()
        self._preallocated = False

    # -- reading --------------------------------------------------------------------------------

    def find(self, offset: int, end: int | None = None) -> tuple[int, Header] | None:
        """Return position and header of the first batch whose last offset is at least `offset`;
        None at the end.

        `end` is the published size that the caller saw. Raises CorruptBatchError when the log
        itself is damaged.
        """
        end = self.size if end is None else end
        if end == 0:
            return None
        start = self._checked_indexes().lookup(offset)
        try:
            for position, header in self.scan(start, end):
                if header.last_offset >= offset:
                    return position, header
        except CorruptBatchError:
            if start == 0:
                raise
            return self._find_from_start(offset, end)
        return None

    def _find_from_start(self, offset: int, end: int) -> tuple[int, Header] | None:
        for position, header in self.scan(0, end):
            if header.last_offset >= offset:
                return position, header
        return None

    def scan(self, position: int, end: int | None = None) -> Iterator[tuple[int, Header]]:
        """Yield (position, header) of the batches from `position` on, reading headers only.

        Raises CorruptBatchError at bytes that are no batch of this segment, also at a torn end.
        """
        end = self.size if end is None else end
        if position < 0:
            raise CorruptBatchError(position, "index entry")
        fd = self.log.acquire()
        try:
            chunk, chunk_start = b"", position
            while position < end:
                at = position - chunk_start
                if at < 0 or at + batch.HEADER_SIZE > len(chunk):
                    chunk = read_exactly(fd, min(_HEADER_CHUNK, end - position), position)
                    chunk_start, at = position, 0
                header = batch.parse(chunk, at)
                if position + header.size > end or not self.accepts(header.last_offset):
                    raise CorruptBatchError(position, "no batch of this segment")
                yield position, header
                position += header.size
        except CorruptBatchError as error:
            raise CorruptBatchError(position, error.reason) from error
        finally:
            self.log.release()

    def scan_past_damage(self, offset: int) -> Iterator[tuple[int, Header | None]]:
        """As `scan`, from the batch with `offset` or one before; at damage, yield None for the
        header, and go on with the next batch that the index knows.
        """
        at: int | None = self._checked_indexes().lookup(offset)
        while at is not None:
            try:
                yield from self.scan(at)
            except CorruptBatchError as error:
                yield error.position, None
                entry = self.index.next_entry(error.position + 1)
                at = entry[1] if entry is not None else None
            else:
                return

    def offset_behind(self, position: int, end: int) -> int | None:
        """Return an offset above those of all batches that begin below `position`: that of the next
        batch that the index knows, None where it knows none below `end`.
        """
        try:
            entry = self._checked_indexes().next_entry(position)
            if entry is not None and entry[1] < end:
                for _, header in self.scan(entry[1], end):
                    # If one of them is wrong, the higher one is surely not too low.
                    return max(entry[0], header.base_offset)
        except (CorruptIndexError, CorruptBatchError):
            pass  # damage is reported to readers
        return None

    def read(self, position: int, length: int) -> bytes:
        """Return bytes of the log; fewer only at its end."""
        fd = self.log.acquire()
        try:
            return read_exactly(fd, length, position)
        finally:
            self.log.release()

    def next_offset(self) -> int:
        """Return the offset after the last batch. Raises CorruptBatchError if that is torn."""
        _, start = self._checked_indexes().last()
        end = self.base_offset
        for _, header in self.scan(start):
            end = header.last_offset + 1
        return end

    # -- time -----------------------------------------------------------------------------------

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp in the segment, ms; -1 when no record has one."""
        if self._max_timestamp is None:
            with self._check_lock:
                if self._max_timestamp is None:
                    self._load_max_timestamp()
        assert self._max_timestamp is not None
        return self._max_timestamp

    def _load_max_timestamp(self) -> None:
        """Load it from the last time index entry, and from the batches after it up to the first
        damaged one.
        """
        self._checked_indexes()
        newest, newest_offset = self.time_index.last()
        if self.size:  # an empty file need not be opened
            with contextlib.suppress(CorruptBatchError):
                for _, header in self.scan(self.index.lookup(newest_offset)):
                    if header.max_timestamp > newest:
                        newest, newest_offset = header.max_timestamp, header.last_offset
        self._max_timestamp, self.offset_of_max_timestamp = newest, newest_offset

    def first_timestamp(self) -> int:
        """Return the timestamp of the first batch, ms; -1 when the segment is empty, or the batch
        has none or is damaged.
        """
        if self._first_timestamp is None and self.size:
            with contextlib.suppress(CorruptBatchError):
                for _, header in self.scan(0):
                    self._first_timestamp = header.max_timestamp
                    break
        return -1 if self._first_timestamp is None else self._first_timestamp

    def age_for_roll(self, now_ms: int, newest_timestamp: int) -> int:
        """Return the age of a segment as Kafka counts it: by record time if there is one, else
        since its creation.
        """
        first = self._first_timestamp
        if first is None:
            first = self.first_timestamp()
        return newest_timestamp - first if first >= 0 else now_ms - self.created_ms

    def newest_or_modified_ms(self) -> int:
        """Return the largest timestamp, or the file's modification time when no record has one."""
        if self.max_timestamp >= 0:
            return self.max_timestamp
        return self.log.modified_ns() // 1_000_000

    def batches_since(self, timestamp: int, offset: int) -> Iterator[tuple[memoryview, Header]]:
        """Yield batches that may hold the first record, from `offset` on, that is not older than
        `timestamp`.

        Raises CorruptBatchError at a damaged one, also if it is passed over.
        """
        if self.size == 0:
            return
        start = self._start_since(timestamp, offset)
        fd = self.log.acquire()
        try:
            for data, header in batch_file.whole_batches(fd, self.size, start):
                if header.max_timestamp >= timestamp and header.last_offset >= offset:
                    yield data, header
        finally:
            self.log.release()

    def _start_since(self, timestamp: int, offset: int) -> int:
        """Return the position where `batches_since` begins. A time index entry that disagrees with
        the log is ignored.
        """
        self._checked_indexes()
        entry = self.time_index.lookup(timestamp)
        if entry is not None and entry[1] > offset:
            found = self.find(entry[1])
            if found is not None and found[1].max_timestamp == entry[0]:
                return found[0]
        found = self.find(offset)
        return self.size if found is None else found[0]

    # -- indexes --------------------------------------------------------------------------------

    def _checked_indexes(self) -> OffsetIndex:
        """Return the offset index, after both were checked once since they were opened."""
        if not self._indexes_checked:
            with self._check_lock:
                if not self._indexes_checked:
                    try:
                        self._check_indexes()
                    except (CorruptIndexError, CorruptBatchError):
                        self.rebuild_indexes()
                    self._indexes_checked = True
        return self.index

    def _check_indexes(self) -> None:
        """Compare the last entry of each index with the batch it points to.

        The order of the entries is checked by the indexes themselves.
        """
        if self.index.entries:
            offset, position = self.index.last()
            header = next((found for _, found in self.scan(position)), None)
            if header is None or not self.base_offset <= header.base_offset <= offset:
                raise CorruptIndexError(f"{self.index.file.path}: last entry points nowhere")
        if self.time_index.entries:
            timestamp, offset = self.time_index.last()
            for _, header in self.scan(self.index.lookup(offset)):
                if header.last_offset >= offset:
                    if header.max_timestamp == timestamp:
                        return
                    break
            raise CorruptIndexError(f"{self.time_index.file.path}: last entry is not in the log")

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from the batch headers, up to the first damaged one."""
        self.changed = True
        self._reset_indexes()
        try:
            for position, header in self.scan(0):
                self._index_one(position, header)
        except CorruptBatchError:
            pass  # damage is reported to readers
        self._finish_indexes()

    def _reset_indexes(self) -> None:
        self.index.reset()
        self.time_index.reset()
        self._indexes_checked = True
        self._max_timestamp, self.offset_of_max_timestamp = -1, self.base_offset
        self._bytes_since_index = 0

    def _index_one(self, position: int, header: Header) -> None:
        self._index((placed(0, header),), position)

    def recover(self, on_batch: Callable[[int, Header, memoryview], None]) -> int:
        """Check every batch, rebuild the indexes, truncate behind the last valid batch; return the
        number of bytes removed.

        `on_batch(position, header, whole batch)` is called for each valid batch in order, and may
        raise CorruptBatchError. Used after a crash, when anything from the recovery point on may be
        torn or missing.
        """
        self.changed = True
        self._reset_indexes()
        self.tail = Tail()
        self._first_timestamp = None
        fd = self.log.acquire()
        try:
            actual = os.fstat(fd).st_size
            position, next_offset = 0, self.base_offset
            with contextlib.suppress(CorruptBatchError):
                for data, header in batch_file.whole_batches(fd, actual):
                    if header.base_offset < next_offset and header.magic == 2:
                        break
                    if not self.accepts(header.last_offset):
                        break
                    on_batch(position, header, data)
                    self._index_one(position, header)
                    next_offset = header.last_offset + 1
                    position += header.size
            self.size = self.trusted_from = position
            os.ftruncate(fd, position)
            self.aborted.truncate_to(next_offset)
        finally:
            self.log.release()
        return actual - position
