"""The two sparse indexes of a segment: offset to file position, and timestamp to offset.

Both are arrays of fixed-size entries, sorted, big-endian, exactly as Kafka keeps them:

    .index      relative offset i32, position i32    the last offset of what was appended there
    .timeindex  timestamp i64, relative offset i32     no later batch up to that offset is newer

The file of the segment that is being written is preallocated to segment.index.bytes (a hole) and
trimmed to its entries when the segment rolls or the log closes. Reading goes through a memory map
made at the first lookup and dropped when idle. Writing goes through pwrite, not through the map: a
store into a hole of a full disk would be a fatal signal, and so is an error code. On Linux both see
the same page cache.

An index is a cache of what the log says. `check` finds one that cannot be right (zeroed, garbage,
torn), and its segment builds it anew.
"""

import mmap
import os
import struct
from operator import le, lt

from odradek.log.files import SharedFile, write_all

MAX_RELATIVE_OFFSET = 2**31 - 1


class CorruptIndexError(Exception):
    """The index file does not hold sorted entries inside its segment."""


class _Index:
    """What both indexes share: a sorted array in a file, `entries` of it in use.

    One writer at a time; lookups may run beside it, because entries only become visible through
    `entries` after they are in the file, and a dropped map lives on for whoever still reads it.
    """

    __slots__ = ("_allocated", "_checked", "_map", "base_offset", "entries", "file", "max_bytes")
    ENTRY: struct.Struct

    def __init__(self, path: str, base_offset: int, max_bytes: int, entries: int = 0) -> None:
        self.file = SharedFile(path)
        self.base_offset = base_offset
        self.max_bytes = max_bytes - max_bytes % self.ENTRY.size
        self.entries = entries
        self._allocated = False
        self._checked = entries == 0
        self._map: mmap.mmap | None = None

    @property
    def is_full(self) -> bool:
        """No further entry fits into the configured size."""
        return (self.entries + 1) * self.ENTRY.size > self.max_bytes

    def load(self) -> None:
        """Take the entry count from the file's size; a missing file is created empty.

        Raises CorruptIndexError when the size is no multiple of an entry.
        """
        fd = self.file.acquire()
        try:
            size = os.fstat(fd).st_size
        finally:
            self.file.release()
        if size % self.ENTRY.size:
            raise CorruptIndexError(f"{self.file.path}: {size} bytes")
        self.entries = size // self.ENTRY.size
        self._checked = self.entries == 0

    def reset(self) -> None:
        """Forget every entry, in the file too."""
        self.entries = 0
        self._checked = True
        self.trim()

    def trim(self) -> None:
        """Cut the file to its entries."""
        fd = self.file.acquire()
        try:
            os.ftruncate(fd, self.entries * self.ENTRY.size)
        finally:
            self.file.release()
        self._allocated = False
        self._map = None

    def keep(self, entries: int) -> None:
        """Forget all but the first `entries`."""
        self.entries = entries

    def release_idle(self) -> None:
        """Drop the map and, if nobody used it lately, the descriptor."""
        self._map = None
        self.file.close_idle()

    def flush(self) -> None:
        """Write the entries to the disk itself."""
        fd = self.file.acquire()
        try:
            os.fsync(fd)
        finally:
            self.file.release()

    def _write(self, entry: bytes) -> None:
        fd = self.file.acquire()
        try:
            if not self._allocated:
                self._allocate(fd)
            write_all(fd, [entry], self.entries * self.ENTRY.size)
        finally:
            self.file.release()
        self.entries += 1

    def _allocate(self, fd: int) -> None:
        if os.fstat(fd).st_size < self.max_bytes:
            os.ftruncate(fd, self.max_bytes)
            self._map = None
        self._allocated = True

    def _mapped(self) -> mmap.mmap:
        """The map, which covers at least `entries`; only called while there are some."""
        mapped = self._map
        if mapped is None or len(mapped) < self.entries * self.ENTRY.size:
            fd = self.file.acquire()
            try:
                mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
            except ValueError as error:  # the file is empty
                raise CorruptIndexError(f"{self.file.path}: empty") from error
            finally:
                self.file.release()
            if len(mapped) < self.entries * self.ENTRY.size:
                raise CorruptIndexError(f"{self.file.path}: shorter than its entries")
            if not self._checked:
                self._check(mapped)
                self._checked = True
            self._map = mapped
        return mapped

    def _check(self, data: mmap.mmap) -> None:
        raise NotImplementedError

    def _floor(self, target: int) -> int:
        """Number of entries whose first field is at most `target`."""
        data = self._mapped()
        unpack, size = self.ENTRY.unpack_from, self.ENTRY.size
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if unpack(data, middle * size)[0] <= target:
                low = middle + 1
            else:
                high = middle
        return low

    def _entry(self, number: int) -> tuple[int, int]:
        first, second = self.ENTRY.unpack_from(self._mapped(), number * self.ENTRY.size)
        return first, second

    def _columns(self, data: mmap.mmap) -> tuple[list[int], list[int]]:
        pairs = self.ENTRY.iter_unpack(data[: self.entries * self.ENTRY.size])
        first, second = zip(*pairs, strict=True)
        return list(first), list(second)


class OffsetIndex(_Index):
    """Offsets to file positions."""

    __slots__ = ()
    ENTRY = struct.Struct(">ii")

    def append(self, offset: int, position: int) -> None:
        """Add: what was appended at `position` ends with `offset`; larger than all before."""
        self._write(self.ENTRY.pack(offset - self.base_offset, position))

    def lookup(self, offset: int) -> int:
        """File position to start scanning for `offset`: at or before its batch. Raises
        CorruptIndexError.
        """
        found = self._floor(offset - self.base_offset) if self.entries else 0
        return self._entry(found - 1)[1] if found else 0

    def last(self) -> tuple[int, int]:
        """Offset and position of the last entry; base offset and 0 when there is none."""
        if not self.entries:
            return self.base_offset, 0
        relative, position = self._entry(self.entries - 1)
        return self.base_offset + relative, position

    def truncate_to(self, offset: int) -> None:
        """Forget entries for `offset` and above."""
        if self.entries:
            self.keep(self._floor(offset - 1 - self.base_offset))

    def _check(self, data: mmap.mmap) -> None:
        offsets, positions = self._columns(data)
        sorted_offsets = all(map(lt, offsets, offsets[1:]))
        sorted_positions = all(map(lt, positions, positions[1:]))
        if not (sorted_offsets and sorted_positions) or offsets[0] < 0 or positions[0] <= 0:
            raise CorruptIndexError(f"{self.file.path}: entries out of order")


class TimeIndex(_Index):
    """Timestamps (ms) to offsets."""

    __slots__ = ("_last",)
    ENTRY = struct.Struct(">qi")

    def __init__(self, path: str, base_offset: int, max_bytes: int, entries: int = 0) -> None:
        super().__init__(path, base_offset, max_bytes, entries)
        self._last: tuple[int, int] | None = None

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry if `timestamp` is newer than every one before; else nothing changes."""
        last_timestamp, _ = self.last()
        if timestamp > last_timestamp:
            self._write(self.ENTRY.pack(timestamp, offset - self.base_offset))
            self._last = (timestamp, offset)

    def last(self) -> tuple[int, int]:
        """Timestamp and offset of the last entry; -1 and the base offset when there is none."""
        if not self.entries:
            return -1, self.base_offset
        if self._last is None:
            timestamp, relative = self._entry(self.entries - 1)
            self._last = (timestamp, self.base_offset + relative)
        return self._last

    def lookup(self, timestamp: int) -> int:
        """Offset up to which no record is newer than `timestamp`; the base offset if none is
        known.
        """
        found = self._floor(timestamp) if self.entries else 0
        return self.base_offset + (self._entry(found - 1)[1] if found else 0)

    def truncate_to(self, offset: int) -> None:
        """Forget entries whose offset is `offset` or above."""
        kept = self.entries
        while kept and self.base_offset + self._entry(kept - 1)[1] >= offset:
            kept -= 1
        self.keep(kept)

    def keep(self, entries: int) -> None:
        """Forget all but the first `entries`."""
        super().keep(entries)
        self._last = None

    def reset(self) -> None:
        """Forget every entry, in the file too."""
        self._last = None
        super().reset()

    def load(self) -> None:
        """As for every index."""
        self._last = None
        super().load()

    def _check(self, data: mmap.mmap) -> None:
        timestamps, offsets = self._columns(data)
        if (
            not all(map(lt, timestamps, timestamps[1:]))
            or not all(map(le, offsets, offsets[1:]))
            or timestamps[0] < 0
            or offsets[0] < 0
        ):
            raise CorruptIndexError(f"{self.file.path}: entries out of order")
