"""One accepted connection: reads frames and answers them one at a time, in order.

As in Kafka, the next request of a connection is dispatched once the kernel has taken the answer to
the previous one. This keeps pipelined answers in order and limits the memory of a peer: one request
in progress, one answer being sent, and one buffer of bytes read ahead. When that buffer is full the
socket is not read any more, and TCP slows the peer down. A peer that does not read its answers
delays only itself. A request larger than the first buffer is read on only when there is memory for
it (see `connection_quotas`).

The socket stays registered for reading while a request is in progress. So the usual peer, which
sends its next request after the answer, costs no epoll call besides the wait.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from odradek.net.connection_quotas import RequestMemory
from odradek.net.frame import READ_AHEAD_BYTES, FrameReader, ProtocolViolation
from odradek.net.inline_future import InlineFuture
from odradek.net.sending import SLICE_BYTES, send_all, send_at_once
from odradek.protocol.primitives import LENGTH32, MalformedError
from odradek.protocol.regions import Part, close_all, total_length

logger = logging.getLogger(__name__)

# Frames of one connection answered in a row before the others. So many bytes of answers count as
# another frame.
FRAMES_A_TURN: Final = 16
_BYTES_AS_A_FRAME: Final = SLICE_BYTES // FRAMES_A_TURN
# A buffer that grew beyond this is kept from one request to the next only while they need it.
_KEPT_BYTES: Final = 1024 * 1024
# The size of an answer is put before a first part up to this many bytes, which is then copied.
_COPIED_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """The client of an accepted connection; `connection_id` is never reused."""

    host: str
    port: int
    connection_id: int


# Answers a frame: returns parts with response header but without size, or None for no answer. The
# memory of the frame is valid until then. ProtocolViolation closes the connection.
Dispatch: TypeAlias = Callable[[memoryview, ClientInfo], Awaitable[Sequence[Part] | None]]


class Connection:
    """An accepted, non-blocking socket; `run()` owns it and ends when it is closed."""

    def __init__(
        self,
        sock: socket.socket,
        peer: ClientInfo,
        max_frame_bytes: int,
        dispatch: Dispatch,
        memory: RequestMemory,
    ) -> None:
        self.peer = peer
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._dispatch = dispatch
        self._reader = FrameReader(max_frame_bytes)
        self._memory = memory
        self._reading = False
        self._ended = False  # the peer sends no more
        self._closing = False  # we answer no more
        self._in_dispatch = False
        self._arrival: InlineFuture[memoryview | None] | None = None
        self._turn = 0  # what was answered since the event loop last went round, in frames
        self._last_active = self._loop.time()

    def idle_seconds(self) -> float:
        """Return the seconds without traffic; 0 while the peer waits for an answer."""
        if self._in_dispatch and not self._ended:
            return 0.0
        return self._loop.time() - self._last_active

    @property
    def has_partial_frame(self) -> bool:
        """Return whether a frame began to arrive and the rest is waited for."""
        return self._arrival is not None and self._reader.buffered_bytes > 0

    def release_spare_memory(self) -> None:
        """Shrink a buffer that is nearly empty, unless a request is in progress."""
        if self._arrival is not None:
            self._reader.release_spare()

    def finish(self) -> None:
        """Answer the request in progress, then close."""
        self._closing = True
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def run(self) -> None:
        """Serve the peer until either side ends the connection; close the socket."""
        try:
            await self._serve()
        except (ProtocolViolation, MalformedError) as violation:
            logger.warning("closing %s:%s: %s", self.peer.host, self.peer.port, violation)
        except OSError as error:
            logger.debug("lost %s:%s: %s", self.peer.host, self.peer.port, error)
        except MemoryError:
            logger.error("closing %s:%s: no memory for its request", self.peer.host, self.peer.port)
        except Exception:
            logger.exception("closing %s:%s", self.peer.host, self.peer.port)
        finally:
            self._stop_reading()
            self._sock.close()
            self._closing = True
            self._give_memory_back()

    async def _serve(self) -> None:
        while (frame := await self._next_frame()) is not None:
            parts = await self._ask_dispatch(frame)
            self._turn += 1
            if parts is not None:
                await self._answer(parts)
            if self._memory.limited:
                self._give_memory_back()
            elif self._reader.capacity > _KEPT_BYTES > len(frame):
                # One large request must not keep its memory while small ones follow.
                self._reader.release_spare()
            del frame  # it would hold the buffer of before

    async def _ask_dispatch(self, frame: memoryview) -> Sequence[Part] | None:
        self._in_dispatch = True
        try:
            return await self._dispatch(frame, self.peer)
        except OSError as error:
            # An error of this broker, as of a disk, must not look like a lost peer.
            raise RuntimeError("request failed") from error
        finally:
            self._in_dispatch = False
            self._note_activity()

    async def _answer(self, parts: Sequence[Part]) -> None:
        try:
            length = total_length(parts)
            size = LENGTH32.pack(length)
        except BaseException:
            close_all(parts)
            raise
        self._turn += length // _BYTES_AS_A_FRAME
        first = parts[0] if parts else b""
        if not isinstance(first, bytes) or len(first) > _COPIED_BYTES:
            parts = [size, *parts]
        elif len(parts) > 1:
            parts = [size + first, *parts[1:]]
        else:
            # Nearly every answer is one short part that the socket takes at once.
            left = send_at_once(self._sock, size + first)
            if not left:
                return
            parts = [left]
        await send_all(self._sock, parts, self._note_activity)

    async def _next_frame(self) -> memoryview | None:
        """Return the next frame, None if the peer has ended or the connection is closing."""
        if self._closing:
            return None
        frame = self._reader.next_frame()
        if frame is not None:
            if self._turn >= FRAMES_A_TURN:
                self._turn = 0
                await asyncio.sleep(0)
            return frame
        if self._ended:
            return None
        self._read_on()
        self._turn = 0
        self._arrival = InlineFuture(loop=self._loop)
        try:
            return await self._arrival
        finally:
            self._arrival = None

    def _on_readable(self) -> None:
        try:
            room = self._reader.room()
        except MemoryError as error:
            # Left readable and unread, the socket would be reported again at once, for ever.
            self._stop_reading()
            if self._arrival is not None and not self._arrival.done():
                self._arrival.set_exception(error)
            return
        if not room:
            # The buffer is full; the next `_next_frame` resumes reading.
            self._stop_reading()
            return
        try:
            count = self._sock.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            logger.debug("lost %s:%s: %s", self.peer.host, self.peer.port, error)
            count = 0
        self._note_activity()
        self._reader.received(count)
        if count == 0:
            self._ended = True
            self._stop_reading()
        self._announce()

    def _announce(self) -> None:
        """Pass a complete frame, the end or a violation to the waiting `_next_frame`."""
        arrival = self._arrival
        if arrival is None or arrival.done():
            return
        try:
            frame = self._reader.next_frame()
        except ProtocolViolation as violation:
            arrival.set_exception(violation)
            return
        if frame is not None or self._ended:
            arrival.settle(frame)
        else:
            self._read_on()

    def _note_activity(self) -> None:
        self._last_active = self._loop.time()

    def _read_on(self) -> None:
        """Read, or wait until there is memory for the buffer of the incomplete frame."""
        if self._memory.limited:
            needed = max(self._reader.capacity, self._reader.wanted)
            if needed > READ_AHEAD_BYTES and not self._memory.take(self, needed):
                self._stop_reading()
                self._memory.when_free(self._memory_is_free)
                return
        self._start_reading()

    def _memory_is_free(self) -> None:
        if self._closing:
            return
        self._read_on()
        if self._reading:
            self._note_activity()

    def _give_memory_back(self) -> None:
        """Shrink the buffer, which would otherwise stay without being counted; release memory."""
        if self._reader.capacity > READ_AHEAD_BYTES:
            self._reader.release_spare()
        self._memory.give_back(self)

    def _start_reading(self) -> None:
        if not self._reading:
            self._loop.add_reader(self._sock, self._on_readable)
            self._reading = True

    def _stop_reading(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._sock)
            self._reading = False
