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
_RUN = 128
_RUN_BYTES = _RUN * _ENTRY.size


class CorruptTransactionIndexError(Exception):
    """A file that is no sequence of entries of its segment, in the order of their markers."""


class AbortedTxn(NamedTuple):
    """One aborted transaction; `last_offset` is that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class _AbortedEntries:
    """Entries as in the file, and the lowest first offset of each whole run of them."""

    __slots__ = ("data", "lowest")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray()
        self.lowest: list[int] = []
        self.add(data)

    def add(self, entries: bytes) -> None:
        self.data += entries
        for run in range(len(self.lowest), len(self.data) // _RUN_BYTES):
            fields = _ENTRY.iter_unpack(self.data[run * _RUN_BYTES : (run + 1) * _RUN_BYTES])
            self.lowest.append(min(first for _, _, first, _, _ in fields))


class TransactionIndex:
    """The index of one segment. One writer at a time; reads see what was appended before."""

    __slots__ = ("_changed", "_entries", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        # Grows in place; whatever makes it shorter makes another one, for readers in other threads.
        self._entries = _AbortedEntries()
        self._changed = False

    def __len__(self) -> int:
        return len(self._entries.data) // _ENTRY.size

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
        self._entries = _AbortedEntries(data)

    def since(self, offset: int) -> Iterator[AbortedTxn]:
        """Yield the transactions whose markers are at `offset` or behind it."""
        data = self._entries.data
        for at in range(_first_since(data, offset) * _ENTRY.size, len(data), _ENTRY.size):
            yield AbortedTxn(*_ENTRY.unpack_from(data, at)[1:])

    def between(self, offset: int, upto: int) -> tuple[list[AbortedTxn], bool]:
        """Return the transactions that have offsets from `offset` on and below `upto`, and whether
        none with a later marker has.

        Runs of entries of transactions that begin at `upto` or later are passed over: there are
        many of them where another transaction was open for long.
        """
        data, lowest = self._entries.data, self._entries.lowest
        found: list[AbortedTxn] = []
        number, count = _first_since(data, offset), len(data) // _ENTRY.size
        while number < count:
            run = number // _RUN
            end = min((run + 1) * _RUN, count)
            if run < len(lowest) and lowest[run] >= upto:
                number = end - 1  # which may say that this is all
            for fields in _ENTRY.iter_unpack(data[number * _ENTRY.size : end * _ENTRY.size]):
                _, producer_id, first, last, stable = fields
                if first < upto:
                    found.append(AbortedTxn(producer_id, first, last, stable))
                if stable >= upto:
                    return found, True
            number = end
        return found, False

    def append(self, aborted: AbortedTxn) -> None:
        """Add a transaction, unless it is there already. Raises OSError."""
        if _first_since(self._entries.data, aborted.last_offset) == len(self):
            self._add(_ENTRY.pack(_VERSION, *aborted))

    def _add(self, entries: bytes) -> None:
        self._changed = True
        fd = files.open_file(self.path, os.O_WRONLY | os.O_CREAT)
        try:
            files.write_all(fd, (entries,), len(self._entries.data))
        finally:
            os.close(fd)
        self._entries.add(entries)
        self._changed = True  # again: a flush meanwhile may have had only a part of it

    def truncate_to(self, offset: int) -> None:
        """Forget the transactions whose markers are at `offset` or behind it. Raises OSError."""
        data = self._entries.data
        size = _first_since(data, offset) * _ENTRY.size
        if size == len(data):
            return
        self._changed = True
        os.truncate(self.path, size)
        self._entries = _AbortedEntries(bytes(data[:size]))

    def replace(self, found: Iterable[AbortedTxn]) -> None:
        """Have the file hold just these transactions, durably. Raises OSError."""
        data = b"".join([_ENTRY.pack(_VERSION, *one) for one in found])
        if data:
            files.write_atomically(self.path, data)
        else:
            files.remove_if_there(self.path)
        self._entries, self._changed = _AbortedEntries(data), False

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
