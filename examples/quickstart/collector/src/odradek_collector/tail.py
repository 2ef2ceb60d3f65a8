"""Reads growing log files line by line, through rotation and truncation.

A `Follower` has one open file and yields whole lines only, each with the offset after it. After a
rotation (the file is renamed and a new one has its name) it reads the old file to its end before
the new one. A file that got shorter (copytruncate) is read from its start.

A `Position` identifies a file by device, inode and the hash of its first bytes, because a rotation
changes names and a deletion frees inodes for reuse. A restarted collector looks for its position in
the named file first, and then in the rotated files beside it.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

HEAD_BYTES = 256
READ_BYTES = 256 * 1024
LONGEST_LINE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Position:
    """Everything before `offset` is delivered. `head` is the hash of the first `head_bytes`."""

    device: int
    inode: int
    offset: int
    head: str
    head_bytes: int


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end, and the file's offset after it."""

    text: str
    end: int


class Follower:
    """One open file, read from `offset`. Use `open_at` to make one."""

    def __init__(self, path: Path, file: BinaryIO, offset: int) -> None:
        status = os.fstat(file.fileno())
        self.path = path
        self.device, self.inode = status.st_dev, status.st_ino
        self._file = file
        self.offset = offset
        self._rest = b""
        self._skipping = False
        file.seek(offset)

    def read(self) -> Iterator[Line]:
        """Yield the new lines in at most READ_BYTES."""
        data = self._file.read(READ_BYTES)
        if not data:
            return
        *ended, rest = (self._rest + data).split(b"\n")
        position = self.offset - len(self._rest)
        self.offset += len(data)
        for raw in ended:
            position += len(raw) + 1
            # This is the rest of a line that was too long, and no line of its own.
            skipped, self._skipping = self._skipping, False
            if not skipped:
                yield Line(_text(raw), position)
        self._rest = rest
        if len(rest) > LONGEST_LINE_BYTES:
            if not self._skipping:
                yield Line(_text(rest), self.offset)
            self._skipping = True
            self._rest = b""

    def has_more(self) -> bool:
        """Return whether the file has grown since the last read."""
        return os.fstat(self._file.fileno()).st_size > self.offset

    def was_truncated(self) -> bool:
        """Return whether the file is shorter than the part that was read."""
        return os.fstat(self._file.fileno()).st_size < self.offset

    def was_replaced(self) -> bool:
        """Return whether the path now has another file, or none."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return True
        return (status.st_dev, status.st_ino) != (self.device, self.inode)

    def modified_ns(self) -> int:
        """Return the file's modification time."""
        return os.fstat(self._file.fileno()).st_mtime_ns

    def position(self, offset: int) -> Position:
        """Return the position at `offset`."""
        length = min(HEAD_BYTES, offset)
        return Position(self.device, self.inode, offset, _head(self._file, length), length)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_at(path: Path, position: Position | None) -> Follower | None:
    """Open a file at `position`, or else at its start; return None if it does not exist.

    With a position, open a rotated file in the same folder instead if the position belongs to it.
    """
    if position is not None:
        for candidate in (path, *rotated_siblings(path)):
            file = _open(candidate)
            if file is None:
                continue
            if _is_at(file, position):
                return Follower(path, file, position.offset)
            file.close()
    file = _open(path)
    return None if file is None else Follower(path, file, 0)


def open_successor(finished: Follower) -> Follower | None:
    """Open the next file after one that was renamed and is read to its end.

    That is the next rotated file if there was more than one rotation, or else the named file.
    """
    path = finished.path
    found = []
    for candidate in (*rotated_siblings(path), path):
        try:
            status = candidate.stat()
        except FileNotFoundError:
            continue
        newer = status.st_mtime_ns > finished.modified_ns()
        same = (status.st_dev, status.st_ino) == (finished.device, finished.inode)
        if not same and (newer or candidate == path):
            found.append((candidate == path, status.st_mtime_ns, candidate))
    for _, _, candidate in sorted(found):
        file = _open(candidate)
        if file is not None:
            return Follower(path, file, 0)
    return None


def rotated_siblings(path: Path) -> list[Path]:
    """Return files named like a rotated `path`: x.log.1, x.log-20261121, 0.log.20261121-091301."""
    try:
        names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    except FileNotFoundError:
        return []
    return [
        path.with_name(name)
        for name in names
        if name.startswith((f"{path.name}.", f"{path.name}-")) and not name.endswith(".gz")
    ]


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except (FileNotFoundError, PermissionError):
        return None


def _is_at(file: BinaryIO, position: Position) -> bool:
    status = os.fstat(file.fileno())
    return (
        (status.st_dev, status.st_ino) == (position.device, position.inode)
        and status.st_size >= position.offset
        and _head(file, position.head_bytes) == position.head
    )


def _head(file: BinaryIO, length: int) -> str:
    return hashlib.sha256(os.pread(file.fileno(), length, 0)).hexdigest()[:16]


def _text(raw: bytes) -> str:
    return raw[:LONGEST_LINE_BYTES].rstrip(b"\r").decode("utf-8", "replace")
