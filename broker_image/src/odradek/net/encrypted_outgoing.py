"""The unsent rest of an answer that goes through TLS, in pieces.

Regions of files are read into memory: in the event loop if the page cache has them, else in a
thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from odradek.net.sending import Outgoing
from odradek.protocol.regions import IN_MEMORY, FileRegion, Part

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
        return not self.piece and self._index == len(self._parts)

    def held_bytes(self) -> int:
        """Return how much memory the unsent parts take."""
        return (0 if self._is_of_region else len(self.piece)) + super().held_bytes()

    def skip(self, count: int) -> None:
        """Note that the first bytes of the piece are sent."""
        self.piece = self.piece[count:]
        self.sent += count

    def take_piece(self) -> bool:
        """Take the next piece; return False if a disk has to be waited for: `read_piece` does.

        Raises ConnectionError if a file ends before its region does.
        """
        part = self._parts[self._index]
        self._is_of_region = not isinstance(part, IN_MEMORY)
        if isinstance(part, IN_MEMORY):
            self._take_buffers()
            return True
        view = self._room_for(part)
        taken = _read_cached(part, self._offset, view) if view else 0
        if taken is not None:
            self._took(part, view, taken)
        return taken is not None

    async def read_piece(self) -> None:
        """Take the next piece, of a region, from a thread."""
        part = self._parts[self._index]
        assert not isinstance(part, IN_MEMORY), "a buffer is read from no disk"
        view, position = self._room_for(part), self._offset
        taken = await _run_to_end(lambda: _read(part, position, view))
        self._took(part, view, taken)

    def _room_for(self, part: FileRegion) -> memoryview:
        """Return where the next bytes of a region go."""
        count = min(part.length - self._offset, PIECE_BYTES)
        if self._buffer is None:
            self._buffer = bytearray(min(part.length, PIECE_BYTES))
        elif len(self._buffer) < count:
            self._buffer = bytearray(PIECE_BYTES)
        return memoryview(self._buffer)[:count]

    def _took(self, part: FileRegion, view: memoryview, taken: int) -> None:
        if view and not taken:
            raise ConnectionError("file ended before the region that was promised")
        self.piece = view[:taken]
        self._offset += taken
        if self._offset == part.length:
            self._advance()
            part.close()

    def close(self) -> None:
        """Close the unsent regions; idempotent."""
        self.piece = memoryview(b"")
        super().close()

    def _take_buffers(self) -> None:
        """Take the next bytes of parts in memory; small parts make one piece."""
        first = memoryview(self._parts[self._index])[self._offset :]  # type: ignore[arg-type]
        if len(first) > PIECE_BYTES:
            self.piece = first[:PIECE_BYTES]
            self._offset += PIECE_BYTES
            return
        gathered, total = [first], len(first)
        self._advance()
        while not self.done_parts and total < PIECE_BYTES:
            part = self._parts[self._index]
            if not isinstance(part, IN_MEMORY) or total + len(part) > PIECE_BYTES:
                break
            gathered.append(memoryview(part))
            total += len(part)
            self._advance()
        self.piece = first if len(gathered) == 1 else memoryview(b"".join(gathered))

    @property
    def done_parts(self) -> bool:
        """Return whether every part went into a piece."""
        return self._index == len(self._parts)


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
