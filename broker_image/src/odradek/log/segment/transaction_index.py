"""The aborted transactions whose markers are in a segment: its `.txnindex` file.

Readers that want committed records only (KIP-98) are told which transactions of a range were
aborted. Entries are in the order of their markers. The file is made with the first entry, as in
Kafka; most segments have none. All entries are in memory, as they are in the file.

Entry, big-endian: version i16 (0), producer id i64, first and last offset i64, where the last is
the marker's, and i64 the last stable offset behind the marker: every aborted transaction that
begins below that offset ends in this entry or in one before.
"""

import contextlib
import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from odradek.log.segment import files

_ENTRY = struct.Struct(">hqqqq")
_LAST_OFFSET = struct.Struct(">q")
_LAST_OFFSET_AT = 18
_VERSION = 0


class CorruptTransactionIndexError(Exception):
    """A file that is no sequence of entries of its segment, in the order of their markers."""


class AbortedTxn(NamedTuple):
    """One aborted transaction; `last_offset` is that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The index of one segment. One writer at a time; reads see what was appended before."""

    __slots__ = ("_changed", "_data", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        # Grows in place; whatever makes it shorter makes another one, for readers in other threads.
        self._data = bytearray()
        self._changed = False

    def __len__(self) -> int:
        return len(self._data) // _ENTRY.size

    def load(self, base_offset: int, end_offset: int | None) -> None:
        """Read the entries of the file. All markers are at `base_offset` or behind it, and below
        `end_offset` if that is known. Raises OSError, and CorruptTransactionIndexError.
        """
        data = files.read_file(self.path)
        if len(data) % _ENTRY.size:
            raise CorruptTransactionIndexError(f"{self.path}: {len(data)} bytes")
        before = base_offset - 1
        for version, _, first, last, stable in _ENTRY.iter_unpack(data):
            if (
                version != _VERSION
                or not before < last
                or not 0 <= first < last
                or not 0 <= stable <= last + 1
            ):
                raise CorruptTransactionIndexError(f"{self.path}: marker at {last} after {before}")
            before = last
        if end_offset is not None and before >= end_offset:
            raise CorruptTransactionIndexError(
                f"{self.path}: marker at {before}, not below {end_offset}"
            )
        self._data = bytearray(data)

    def since(self, offset: int) -> Iterator[AbortedTxn]:
        """Yield the transactions whose markers are at `offset` or behind it."""
        data = self._data
        for at in range(_first_since(data, offset) * _ENTRY.size, len(data), _ENTRY.size):
            yield AbortedTxn(*_ENTRY.unpack_from(data, at)[1:])

    def append(self, aborted: AbortedTxn) -> None:
        """Add a transaction, unless it is there already. Raises OSError."""
        if _first_since(self._data, aborted.last_offset) == len(self):
            self._add(_ENTRY.pack(_VERSION, *aborted))

    def append_all(self, other: "TransactionIndex") -> None:
        """Add all transactions of a segment before which there are only those here."""
        if other._data:
            self._add(bytes(other._data))

    def _add(self, entries: bytes) -> None:
        self._changed = True
        fd = files.open_file(self.path, os.O_WRONLY | os.O_CREAT)
        try:
            files.write_all(fd, (entries,), len(self._data))
        finally:
            os.close(fd)
        self._data += entries
        self._changed = True  # again: a flush meanwhile may have had only a part of it

    def truncate_to(self, offset: int) -> None:
        """Forget the transactions whose markers are at `offset` or behind it. Raises OSError."""
        size = _first_since(self._data, offset) * _ENTRY.size
        if size == len(self._data):
            return
        self._changed = True
        os.truncate(self.path, size)
        self._data = self._data[:size]

    def replace(self, found: Iterable[AbortedTxn]) -> None:
        """Have the file hold just these transactions, durably. Raises OSError."""
        data = b"".join([_ENTRY.pack(_VERSION, *one) for one in found])
        if data:
            files.write_atomically(self.path, data)
        else:
            files.remove_if_there(self.path)
        self._data, self._changed = bytearray(data), False

    def flush(self) -> None:
        """Make the entries durable. Raises OSError."""
        if self._changed:
            self._changed = False
            with contextlib.suppress(FileNotFoundError):  # it left the log meanwhile
                files.fsync_path(self.path)

    def rename(self, path: str) -> None:
        """Rename the file, if there is one. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.path, path)
        self.path = path


def _first_since(data: bytearray, offset: int) -> int:
    """Return the number of the first entry whose marker is at `offset` or behind it."""

    def last_offset(number: int) -> int:
        at = number * _ENTRY.size + _LAST_OFFSET_AT
        (found,) = _LAST_OFFSET.unpack_from(data, at)
        return int(found)

    return bisect_left(range(len(data) // _ENTRY.size), offset, key=last_offset)
