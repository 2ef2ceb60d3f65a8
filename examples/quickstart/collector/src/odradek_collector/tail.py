"""Reads growing log files line by line, through rotation and truncation.

A `Follower` holds one file open. It gives whole lines only, each with the offset after it. Renaming
the file and starting another under its name (rotation) leaves the follower with the old one until
that is read to its end; then it opens the new one. A file that got shorter (copytruncate) is read
from its start.

A `Position` remembers a file by device, inode and the hash of its first bytes, because a name says
nothing after a rotation and an inode is used again after a deletion. A collector that comes back
looks for its position in the named file first, and then in its rotated siblings beside it.
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
    """Everything before `offset` of one file is delivered. `head` hashes its first `head_bytes`."""

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
        """Yield the lines of at most READ_BYTES more; nothing where nothing was added."""
        data = self._file.read(READ_BYTES)
        if not data:
            return
        *ended, rest = (self._rest + data).split(b"\n")
        position = self.offset - len(self._rest)
        self.offset += len(data)
        for raw in ended:
            position += len(raw) + 1
            # What was cut off a line that is too long ends here and is not a line of its own.
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
        """Tell whether something was added since the last read."""
        return os.fstat(self._file.fileno()).st_size > self.offset

    def was_truncated(self) -> bool:
        """Tell whether the file is shorter now than what was read of it."""
        return os.fstat(self._file.fileno()).st_size < self.offset

    def was_replaced(self) -> bool:
        """Tell whether another file, or none, has the name now."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return True
        return (status.st_dev, status.st_ino) != (self.device, self.inode)

    def modified_ns(self) -> int:
        """Return when the file was written last."""
        return os.fstat(self._file.fileno()).st_mtime_ns

    def position(self, offset: int) -> Position:
        """Return what to remember when everything before `offset` is delivered."""
        length = min(HEAD_BYTES, offset)
        return Position(self.device, self.inode, offset, _head(self._file, length), length)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_at(path: Path, position: Position | None) -> Follower | None:
    """Open a file where `position` left it, or from its start; None where there is none.

    With a position, a rotated sibling in the same folder is opened instead if it is that file.
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
    """Open what was written after a file that is read to its end and lost its name.

    That is the next rotated sibling where there was more than one rotation, else the named file.
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
