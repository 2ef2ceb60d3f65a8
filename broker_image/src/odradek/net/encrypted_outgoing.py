"""The unsent rest of an answer that goes through TLS, in pieces.

Regions of files are read into memory: in the event loop if the page cache has them, else in a
thread. Without TLS, MSG_MORE lets parts share packets; here they share pieces.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from odradek.net.sending import Outgoing
from odradek.protocol.regions import IN_MEMORY, FileRegion, Part, part_length

T = TypeVar("T")

# Bytes encrypted in one call: four TLS records.
PIECE_BYTES: Final = 64 * 1024


class EncryptedOutgoing(Outgoing):
    """The unsent rest of an answer that goes through TLS, in pieces of at most PIECE_BYTES.

    A piece stays the same until all of it is sent. As without TLS, what is of a region does not
    count as held: who reads such an answer late is not closed for one piece.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__(parts)
        self.piece: memoryview = memoryview(b"")
        self._is_of_region = False
        self._buffer: bytearray | None = None  # what is read of regions, reused

    @property
    def has_piece(self) -> bool:
        """Return whether bytes of a piece are not sent yet."""
        return bool(self.piece)

    @property
    def done(self) -> bool:
        """Return whether everything is sent."""
        return not self.piece and self._all_taken

    def held_bytes(self) -> int:
        """Return how much memory the unsent parts take."""
        return (0 if self._is_of_region else len(self.piece)) + super().held_bytes()

    def skip(self, count: int) -> None:
        """Note that the first bytes of the piece are sent."""
        self.piece = self.piece[count:]
        self.sent += count

    def take_piece(self) -> bool:
        """Take the next piece; return False if a disk has to be waited for: `read_piece` does.

        What is before, between and behind regions shares pieces with them, and so packets. Raises
        ConnectionError if a file ends before its region does.
        """
        gathered, total = self._take_buffers()
        self._is_of_region = total < PIECE_BYTES and self._is_at_region
        if not self._is_of_region:
            self.piece = gathered[0] if len(gathered) == 1 else memoryview(b"".join(gathered))
            return True
        view = self._room_behind(total)
        view[:total] = b"".join(gathered)
        end = self._fill(view, total)
        self.piece = view[:end]
        return end > 0 or not self._is_at_region

    async def read_piece(self) -> None:
        """Take the next piece, of a region, from a thread."""
        part = self._parts[self._index]
        assert not isinstance(part, IN_MEMORY), "a buffer is read from no disk"
        position = self._offset
        view = self._room_behind(0)[: part.length - position]
        taken = await _run_to_end(lambda: _read(part, position, view))
        self._took(part, view, taken)
        self.piece = view[:taken]

    def _take_buffers(self) -> tuple[list[memoryview], int]:
        """Take the parts in memory that come next and fit; return them and their size."""
        gathered: list[memoryview] = []
        total = 0
        while not self._all_taken and total < PIECE_BYTES:
            part = self._parts[self._index]
            if not isinstance(part, IN_MEMORY):
                break
            left = len(part) - self._offset
            if gathered and total + left > PIECE_BYTES:
                break
            taken = min(left, PIECE_BYTES)
            gathered.append(memoryview(part)[self._offset : self._offset + taken])
            total += taken
            self._offset += taken
            if taken == left:
                self._advance()
        return gathered, total

    def _room_behind(self, total: int) -> memoryview:
        """Return where a piece goes that begins with so many bytes, and has what comes next."""
        if self._buffer is None or len(self._buffer) < PIECE_BYTES:
            for part in self._parts[self._index :]:
                total += part_length(part)
                if total >= PIECE_BYTES:
                    break
            wanted = min(total, PIECE_BYTES)
            if self._buffer is None or len(self._buffer) < wanted:
                self._buffer = bytearray(wanted)
        return memoryview(self._buffer)

    def _fill(self, view: memoryview, end: int) -> int:
        """Take parts into the view from `end` on as long as no disk is asked; return their end."""
        while end < len(view) and not self._all_taken:
            part = self._parts[self._index]
            if isinstance(part, IN_MEMORY):
                if end + len(part) > len(view):
                    break
                view[end : end + len(part)] = part
                end += len(part)
                self._advance()
                continue
            room = view[end : end + part.length - self._offset]
            taken = _read_cached(part, self._offset, room) if room else 0
            if taken is None:
                break
            self._took(part, room, taken)
            end += taken
        return end

    def _took(self, part: FileRegion, room: memoryview, taken: int) -> None:
        if room and not taken:
            raise ConnectionError("file ended before the region that was promised")
        self._offset += taken
        if self._offset == part.length:
            self._advance()
            part.close()

    def close(self) -> None:
        """Close the unsent regions; idempotent."""
        self.piece = memoryview(b"")
        super().close()

    @property
    def _all_taken(self) -> bool:
        """Return whether every part went into a piece."""
        return self._index == len(self._parts)

    @property
    def _is_at_region(self) -> bool:
        return not self._all_taken and not isinstance(self._parts[self._index], IN_MEMORY)


def _read_cached(region: FileRegion, offset: int, view: memoryview) -> int | None:
    """Read what the page cache has; None if the disk has to be asked."""
    try:
        return os.preadv(region.fd, [view], region.position + offset, os.RWF_NOWAIT)
    except OSError:
        # EAGAIN; or a file system that cannot tell.
        return None


def _read(region: FileRegion, offset: int, view: memoryview) -> int:
    return os.preadv(region.fd, [view], region.position + offset)


async def _run_to_end(work: Callable[[], T]) -> T:
    """Run work in a thread. Whoever is cancelled waits for its end: it uses what is closed then."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if not running.done():
            await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # nobody else asks for it
        raise
