"""Splits a byte stream into frames, without any I/O of its own.

A frame is an int32 size and that many bytes. The reader owns one buffer: `room()` is where the next
bytes go, `received(n)` says how many came, `next_frame()` returns a complete frame or None. The
buffer doubles as bytes arrive and does not follow the announced size, so a peer takes only memory
for bytes that it has sent. Beyond READ_AHEAD_BYTES it grows in `room()`, so that the caller can
first make sure of the memory.

If a reader reuses its buffer, `next_frame()` ends the use of the previous frame: its bytes may be
overwritten from then on. Until then `room()` is empty once the buffer is full, which is how a busy
connection stops reading. If a reader does not reuse its buffer, the caller owns the frames.
"""

from typing import Final

from odradek.protocol.primitives import LENGTH32

SIZE_BYTES: Final = LENGTH32.size
# The buffer of a new or idle connection; thousands of them may be open.
INITIAL_BUFFER_BYTES: Final = 4 * 1024
# How far a buffer grows for many small frames.
READ_AHEAD_BYTES: Final = 64 * 1024
# A buffer that grew beyond this is kept from one frame to the next only while they need it.
KEPT_BYTES: Final = 1024 * 1024
# Frames up to this size are copied; larger ones take the whole buffer with them.
COPIED_FRAME_BYTES: Final = 4 * 1024


class ProtocolViolation(Exception):  # noqa: N818  it names what the peer did
    """The peer violated the protocol; only its connection is closed."""


class FrameReader:
    """Reads the frames of one connection, of at most `max_frame_bytes` without the size."""

    def __init__(self, max_frame_bytes: int, *, reuse: bool = True) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._reuse = reuse
        self._least = INITIAL_BUFFER_BYTES if reuse else READ_AHEAD_BYTES
        self._view = memoryview(bytearray(self._least))
        self.capacity = self._least
        """How many bytes the buffer can hold now."""
        self._was_filled = False
        self._start = 0  # first byte that is not part of a frame returned so far
        self._end = 0  # end of the bytes received
        # The capacity to which `room()` will grow the buffer; 0 while it is large enough.
        self.wanted = 0

    @property
    def buffered_bytes(self) -> int:
        """Return how many received bytes belong to no frame returned so far."""
        return self._end - self._start

    @property
    def announced(self) -> int:
        """Return the size of the frame that arrives, its size field included, as far as known."""
        if self.buffered_bytes < SIZE_BYTES:
            return SIZE_BYTES
        return SIZE_BYTES + int(LENGTH32.unpack_from(self._view, self._start)[0])

    def has_frame(self) -> bool:
        """Return whether the next frame is there as a whole, or only a negative size."""
        available = self._end - self._start
        if available < SIZE_BYTES:
            return False
        return available >= SIZE_BYTES + int(LENGTH32.unpack_from(self._view, self._start)[0])

    def limit(self, max_frame_bytes: int) -> None:
        """Change the limit, for frames whose size is not known yet."""
        self._max_frame_bytes = max_frame_bytes

    def peek(self, count: int) -> bytes:
        """Return the first bytes, at most `count`, that belong to no frame returned so far."""
        return bytes(self._view[self._start : min(self._start + count, self._end)])

    def room(self) -> memoryview:
        """Return where received bytes go; empty only while a frame in use pins the buffer."""
        if self.wanted:
            self._replace(self.wanted)
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Record that the first `count` bytes of `room()` were filled."""
        self._end += count
        self._was_filled = self._end == len(self._view)

    def next_frame(self) -> memoryview | None:
        """Return the next complete frame without its size, None if more bytes are needed.

        Raises ProtocolViolation for a size that is negative or above the limit, as soon as the size
        has arrived.
        """
        available = self._end - self._start
        if available < SIZE_BYTES:
            self._make_room(SIZE_BYTES)
            return None
        (size,) = LENGTH32.unpack_from(self._view, self._start)
        if not 0 <= size <= self._max_frame_bytes:
            raise ProtocolViolation(f"frame of {size} bytes, limit {self._max_frame_bytes}")
        total = SIZE_BYTES + size
        if available < total:
            self._make_room(total)
            return None
        frame = self._view[self._start + SIZE_BYTES : self._start + total]
        self._start += total
        return frame if self._reuse else self._give_away(frame)

    def release_spare(self) -> None:
        """Go back to the initial buffer if it has room for more than what is buffered; only while
        no frame is in use.
        """
        if self.buffered_bytes < self._least < len(self._view):
            self._replace(self._least)

    def _make_room(self, needed: int) -> None:
        """Arrange that a unit of `needed` bytes from `_start` on can grow by at least one byte."""
        if self._was_filled and len(self._view) < READ_AHEAD_BYTES:
            self._replace(2 * len(self._view))
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start + needed > len(self._view):
            held = self._end - self._start
            self._view[:held] = self._view[self._start : self._end]
            self._start, self._end = 0, held
        if self._end == len(self._view):
            self.wanted = min(needed, 2 * len(self._view))

    def _give_away(self, frame: memoryview) -> memoryview:
        if len(frame) <= COPIED_FRAME_BYTES:
            return memoryview(bytes(frame))
        self._replace(max(self._least, self._end - self._start))
        return frame

    def _replace(self, capacity: int) -> None:
        """Move what is buffered into a new buffer; views of the old one stay valid."""
        held = self._end - self._start
        view = memoryview(bytearray(capacity))
        view[:held] = self._view[self._start : self._end]
        self._view, self._start, self._end = view, 0, held
        self.capacity = capacity
        self._was_filled = False
        self.wanted = 0
