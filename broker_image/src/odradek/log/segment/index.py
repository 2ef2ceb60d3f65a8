"""The two sparse indexes of a segment: offset to file position, and timestamp to offset.

Both are arrays of fixed-size entries, sorted, big-endian, exactly as Kafka keeps them:

    .index      relative offset i32, position i32    the last offset of what was appended there
    .timeindex  timestamp i64, relative offset i32     no later batch up to that offset is newer

The file of the segment that is being written is preallocated to segment.index.bytes (a hole) and
trimmed to its entries when the segment rolls or the log closes. Reading goes through a memory map
made at the first lookup and dropped when idle. New entries gather in memory and go to the file in
runs, by pwrite and not through the map: a store into a hole of a full disk would be a fatal signal,
and so is an error code. On Linux both see the same page cache.

An index is a cache of what the log says. `check` finds one that cannot be right (zeroed, garbage,
torn), and its segment builds it anew.
"""

import mmap
import os
import struct
import threading
from operator import le, lt

from odradek.log.segment.files import SharedFile, sync, write_all

MAX_RELATIVE_OFFSET = 2**31 - 1
_PENDING_BYTES = 1024


class CorruptIndexError(Exception):
    """The index file does not hold sorted entries inside its segment."""


class _Index:
    """A sorted array, most of it in the file, its newest entries in memory; the base of both
    indexes.

    One writer at a time; lookups and flushes may run beside it. `_ends` pairs the number of entries
    in the file with the entries still in memory, and is replaced as a whole, so that a lookup
    always sees both halves of one moment. A dropped map stays usable for whoever still reads it,
    but a read behind the end of the file would be a fatal signal. So the file is truncated only
    while no lookup is under way.
    """

    __slots__ = (
        "_allocated",
        "_changing",
        "_checked",
        "_ends",
        "_looking_up",
        "_map",
        "_room",
        "base_offset",
        "file",
        "is_full",
        "max_entries",
    )
    ENTRY: struct.Struct

    def __init__(self, path: str, base_offset: int, max_bytes: int) -> None:
        self.file = SharedFile(path, unmap=self._unmap)
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.ENTRY.size
        self._ends = 0, bytearray()
        self._count_room()
        self._allocated = False
        self._checked = True
        self._map: mmap.mmap | None = None
        self._looking_up = threading.Lock()
        self._changing = threading.RLock()  # a flush, and what the writer does

    @property
    def entries(self) -> int:
        """Entries in the index."""
        written, pending = self._ends
        return written + len(pending) // self.ENTRY.size

    def load(self) -> None:
        """Take the number of entries from the size of the file; create a missing file, empty.

        Raises CorruptIndexError when the size is no multiple of an entry.
        """
        try:
            size = os.stat(self.file.path).st_size
        except FileNotFoundError:
            self.file.acquire()
            self.file.release()
            size = 0
        if size % self.ENTRY.size:
            raise CorruptIndexError(f"{self.file.path}: {size} bytes")
        with self._changing:
            self._ends = size // self.ENTRY.size, bytearray()
            self._count_room()
        self._checked = size == 0

    def reset(self) -> None:
        """Forget every entry, also in the file."""
        with self._changing:
            self._ends = 0, bytearray()
            self._count_room()
        self._checked = True
        self.trim()

    def trim(self) -> None:
        """Write the entries in memory, and truncate the file behind the last entry."""
        self._spill()
        fd = self.file.acquire()
        try:
            with self._changing, self._looking_up:
                os.ftruncate(fd, self._ends[0] * self.ENTRY.size)
                self._map = None
                self._allocated = False
        finally:
            self.file.release()

    def keep(self, entries: int) -> None:
        """Forget all but the first `entries`."""
        with self._changing:
            written, pending = self._ends
            self._ends = (
                min(written, entries),
                pending[: max(0, entries - written) * self.ENTRY.size],
            )
            self._count_room()

    def _count_room(self) -> None:
        self._room = self.max_entries - self.entries
        self.is_full = self._room <= 0

    def release_idle(self) -> None:
        """Drop the map and, if nobody used it lately, the descriptor."""
        self._unmap()
        self.file.close_idle()

    def close_files(self) -> None:
        """Drop the map and the descriptor; both come back at their next use."""
        self._unmap()
        self.file.close_now()

    def _unmap(self) -> None:
        self._map = None

    def flush(self) -> None:
        """Make all entries durable."""
        self._spill()
        fd = self.file.acquire()
        try:
            sync(fd)
        finally:
            self.file.release()

    def _add(self, entry: bytes) -> None:
        with self._changing:
            pending = self._ends[1]
            pending += entry
            self._room -= 1
            self.is_full = self._room <= 0
            if len(pending) >= _PENDING_BYTES:
                self._spill()

    def _spill(self) -> None:
        """Move the entries in memory to the file."""
        with self._changing:
            written, pending = self._ends
            if not pending:
                return
            fd = self.file.acquire()
            try:
                if not self._allocated:
                    self._allocate(fd)
                write_all(fd, [pending], written * self.ENTRY.size)
            finally:
                self.file.release()
            self._ends = written + len(pending) // self.ENTRY.size, bytearray()

    def _allocate(self, fd: int) -> None:
        size = self.max_entries * self.ENTRY.size
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
            self._map = None
        self._allocated = True

    def _mapped(self, entries: int) -> mmap.mmap:
        """Return the map, which covers at least the first `entries`, of which there are some."""
        mapped = self._map
        if mapped is None or len(mapped) < entries * self.ENTRY.size:
            fd = self.file.acquire()
            try:
                mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
            except ValueError as error:  # the file is empty
                raise CorruptIndexError(f"{self.file.path}: empty") from error
            finally:
                self.file.release()
            if len(mapped) < entries * self.ENTRY.size:
                raise CorruptIndexError(f"{self.file.path}: shorter than its entries")
            if not self._checked:
                self._check(mapped, entries)
                self._checked = True
            self._map = mapped
        return mapped

    def _check(self, data: mmap.mmap, entries: int) -> None:
        raise NotImplementedError

    def _floor(self, target: int, back: int = 0) -> tuple[int, int, int]:
        """Return the number of entries whose first field is at most `target`, and the last of them,
        or the one `back` before it; zeros when there is none.
        """
        with self._looking_up:
            return self._floor_of(*self._ends, target, back)

    def _floor_of(
        self, written: int, pending: bytearray, target: int, back: int
    ) -> tuple[int, int, int]:
        unpack, size = self.ENTRY.unpack_from, self.ENTRY.size
        offset, low, high = written, 0, len(pending) // size
        data: bytearray | mmap.mmap = pending
        if high == 0 or unpack(pending, 0)[0] > target:
            if written == 0:
                return 0, 0, 0
            data, offset, high = self._mapped(written), 0, written
        while low < high:
            middle = (low + high) // 2
            if unpack(data, middle * size)[0] <= target:
                low = middle + 1
            else:
                high = middle
        wanted = offset + low - 1 - back
        if wanted < 0:
            return offset + low, 0, 0
        if wanted < offset:
            data, offset = self._mapped(written), 0
        first, second = unpack(data, (wanted - offset) * size)
        return offset + low, first, second

    def _last_entry(self) -> tuple[int, int] | None:
        with self._looking_up:
            written, pending = self._ends
            if pending:
                first, second = self.ENTRY.unpack_from(pending, len(pending) - self.ENTRY.size)
            elif written:
                data = self._mapped(written)
                first, second = self.ENTRY.unpack_from(data, (written - 1) * self.ENTRY.size)
            else:
                return None
            return first, second

    def _columns(self, data: mmap.mmap, entries: int) -> tuple[list[int], list[int]]:
        pairs = self.ENTRY.iter_unpack(data[: entries * self.ENTRY.size])
        first, second = zip(*pairs, strict=True)
        return list(first), list(second)


class OffsetIndex(_Index):
    """Maps offsets to file positions."""

    __slots__ = ()
    ENTRY = struct.Struct(">ii")

    def append(self, offset: int, position: int) -> None:
        """Add an entry: the batches appended at `position` end with `offset`, which is larger than
        all before.
        """
        self._add(self.ENTRY.pack(offset - self.base_offset, position))

    def lookup(self, offset: int) -> int:
        """Return the file position from which to scan for `offset`, at or before its batch.

        Raises CorruptIndexError.
        """
        return self._floor(offset - self.base_offset)[2]

    def before(self, offset: int) -> int:
        """As `lookup`, one entry earlier."""
        return self._floor(offset - self.base_offset, back=1)[2]

    def next_entry(self, position: int) -> tuple[int, int] | None:
        """Return offset and position of the first entry whose position is not below this one; None
        without one.

        Raises CorruptIndexError.
        """
        unpack, size = self.ENTRY.unpack_from, self.ENTRY.size
        with self._looking_up:
            written, pending = self._ends
            parts: list[tuple[bytearray | mmap.mmap, int]] = [(pending, len(pending) // size)]
            if written:
                parts.insert(0, (self._mapped(written), written))
            for data, count in parts:
                low, high = 0, count
                while low < high:
                    middle = (low + high) // 2
                    if unpack(data, middle * size)[1] < position:
                        low = middle + 1
                    else:
                        high = middle
                if low < count:
                    relative, found = unpack(data, low * size)
                    return self.base_offset + relative, found
        return None

    def last(self) -> tuple[int, int]:
        """Return offset and position of the last entry; base offset and 0 when there is none."""
        entry = self._last_entry()
        return (self.base_offset, 0) if entry is None else (self.base_offset + entry[0], entry[1])

    def truncate_to(self, offset: int) -> None:
        """Forget entries for `offset` and above."""
        self.keep(self._floor(offset - 1 - self.base_offset)[0])

    def _check(self, data: mmap.mmap, entries: int) -> None:
        offsets, positions = self._columns(data, entries)
        sorted_offsets = all(map(lt, offsets, offsets[1:]))
        sorted_positions = all(map(lt, positions, positions[1:]))
        if not (sorted_offsets and sorted_positions) or offsets[0] < 0 or positions[0] <= 0:
            raise CorruptIndexError(f"{self.file.path}: entries out of order")


class TimeIndex(_Index):
    """Maps timestamps (ms) to offsets."""

    __slots__ = ("_last",)
    ENTRY = struct.Struct(">qi")

    def __init__(self, path: str, base_offset: int, max_bytes: int) -> None:
        super().__init__(path, base_offset, max_bytes)
        self._last: tuple[int, int] | None = None

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry if `timestamp` is newer than all before; else do nothing."""
        last = self._last
        if last is None:
            last = self.last()
        if timestamp > last[0]:
            self._add(self.ENTRY.pack(timestamp, offset - self.base_offset))
            self._last = (timestamp, offset)

    def last(self) -> tuple[int, int]:
        """Return timestamp and offset of the last entry; -1 and the base offset if none."""
        if self._last is None:
            entry = self._last_entry()
            if entry is None:
                return -1, self.base_offset
            self._last = entry[0], self.base_offset + entry[1]
        return self._last

    def lookup(self, timestamp: int) -> tuple[int, int] | None:
        """Return the newest entry (timestamp, offset) not newer than `timestamp`: no record up to
        that offset is newer. None when there is no such entry.
        """
        count, found, relative = self._floor(timestamp)
        return (found, self.base_offset + relative) if count else None

    def truncate_to(self, offset: int) -> None:
        """Forget entries whose offset is `offset` or above."""
        while self.entries and self.last()[1] >= offset:
            self.keep(self.entries - 1)

    def keep(self, entries: int) -> None:
        """Forget all but the first `entries`."""
        super().keep(entries)
        self._last = None

    def reset(self) -> None:
        """Forget every entry, also in the file."""
        self._last = None
        super().reset()

    def load(self) -> None:
        """As `_Index.load`."""
        self._last = None
        super().load()

    def _check(self, data: mmap.mmap, entries: int) -> None:
        timestamps, offsets = self._columns(data, entries)
        if (
            not all(map(lt, timestamps, timestamps[1:]))
            or not all(map(le, offsets, offsets[1:]))
            or timestamps[0] < 0
            or offsets[0] < 0
        ):
            raise CorruptIndexError(f"{self.file.path}: entries out of order")
