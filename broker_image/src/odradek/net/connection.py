"""One accepted connection: reads frames and answers them one at a time, in order.

As in Kafka, the next request of a connection is dispatched once the kernel has taken the answer to
the previous one. This keeps pipelined answers in order and limits the memory of a peer: one request
in progress, one answer being sent, and one buffer of bytes read ahead. When that buffer is full the
socket is not read any more, and TCP slows the peer down. A peer that does not read its answers
delays only itself. A request larger than the first buffer is read on only when there is memory for
it (see `memory_quotas`). Other than in Kafka, a Produce is dispatched while those before it wait
for other replicas (see `owed_answers`).

A request must arrive, and an answer in our memory must be read, at a least pace (see `pace`), which
the listener's sweep looks at. Answers of file regions hold no memory and may wait until the
connection counts as idle.

The socket stays registered for reading while a request is in progress. So the usual peer, which
sends its next request after the answer, costs no epoll call besides the wait. It is answered within
the callback of the event loop; only what has to wait wakes the task (see `begun_work`). Where the
next requests are there already, short answers are sent together. What the socket does not take of
them is owed, so that a request that has begun behind them never waits for the peer: it may hold
what others wait for.
"""

import asyncio
import fcntl
import logging
import select
import struct
import termios
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from odradek import tls_errors
from odradek.net.begun_work import BegunWork, begin
from odradek.net.client_info import Answer, ClientInfo, Dispatch
from odradek.net.connection_quotas import ConnectionQuotas
from odradek.net.foreign_protocols import FOREIGN_BYTES, foreign_protocol
from odradek.net.frame import KEPT_BYTES, READ_AHEAD_BYTES, FrameReader, ProtocolViolation
from odradek.net.handshakes import HandshakeError
from odradek.net.inline_future import InlineFuture
from odradek.net.next_request import NOT_THERE, NextRequest
from odradek.net.owed_answers import MOST_OWED, Later, OwedAnswers
from odradek.net.pace import Pace, Transfer
from odradek.net.sending import SLICE_BYTES, Outgoing, send_at_once
from odradek.net.transport import Transport
from odradek.protocol.api import ApiKey
from odradek.protocol.primitives import LENGTH16, LENGTH32, MalformedError
from odradek.protocol.regions import Part, close_all, total_length
from odradek.values import Principal

# The size of a frame and the key of its request.
_SIZE_AND_KEY: Final = struct.Struct(">ih")
_INT: Final = struct.Struct("i")
_PRODUCE: Final = LENGTH16.pack(ApiKey.PRODUCE)

# Why `ConnectionQuotas.closed` counts a connection that was aborted.
_REASONS: Final = {
    "idle": "idle for too long",
    "slow-request": "its request arrives too slowly",
    "slow-answer": "it reads its answer too slowly",
    "replaced": "a broker takes its place (max.connections)",
    "authentication": "it did not authenticate in time",
}

# Frames of one connection answered in a row before the others. So many bytes of answers count as
# another frame.
FRAMES_A_TURN: Final = 16
_BYTES_AS_A_FRAME: Final = SLICE_BYTES // FRAMES_A_TURN
# A muted connection is looked at this often: it may be reset while it is not read.
MUTED_LOOK_S: Final = 5.0
# The size of an answer is put before a first part up to this many bytes, which is then copied.
# What is sent together of short answers does not wait for more than that.
_COPIED_BYTES: Final = 16 * 1024


class Connection:
    """An accepted, non-blocking socket; the task of `start` ends when it is closed."""

    def __init__(
        self,
        transport: Transport,
        peer: ClientInfo,
        dispatch: Dispatch,
        quotas: ConnectionQuotas,
        guard: "Guard | None" = None,
    ) -> None:
        self._next_request = NextRequest(self._arriving_key)
        self.peer = replace(
            peer,
            is_connected=self._is_connected,
            next_request=self._next_request,
            takes_later=True,
        )
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._task: asyncio.Task[None] | None = None
        self._transport = transport
        self._dispatch = dispatch
        self._guard = guard
        self._reader = FrameReader(quotas.limits.max_frame_bytes)
        self._quotas = quotas
        self._memory = quotas.memory  # of the frame that arrives, or is in progress
        self._waits_for_memory = False
        self._frames = 0  # dispatched so far
        self._waits = 0  # answers so far that had to wait for their peer
        self._throttling = peer.throttling
        self._mute: asyncio.Future[None] | None = None  # while the connection is muted
        self._owed: OwedAnswers | None = None  # since the first answer that was there later
        self._outgoing: Outgoing | None = None  # the answer that its peer's socket had no room for
        self._pace: Pace | None = None  # only of a transfer that a sweep has seen
        self._reading = False
        self._ended = False  # the peer sends no more
        self._closing = False  # we answer no more
        self._in_dispatch = False
        self._gathers = False  # while frames are served within a callback
        self._gathered = b""  # short answers with their sizes, not sent yet
        self._rest = b""  # of those, what the socket did not take: it is owed
        # While no frame is served, and nothing has to wait.
        self._arrival: InlineFuture[BegunWork | None] | None = None
        self._turn = 0  # what was answered since the event loop last went round, in frames
        self._last_active = self._time()

    def _is_connected(self) -> bool:
        descriptor = self._transport.fileno()
        return not self._ended and descriptor >= 0 and not _polled(descriptor, select.POLLRDHUP)

    def idle_seconds(self) -> float:
        """Return the seconds without traffic; 0 while the peer waits for us."""
        owes = self._owed is not None and self._owed.awaits_replicas
        if (self._in_dispatch or self._waits_for_memory or self._mute or owes) and not self._ended:
            return 0.0
        return self._time() - self._last_active

    def too_slow(self, looks_per_window: int, window_s: float) -> str:
        """Return which transfer the peer moves too slowly (a reason of `closed`), "" if none.

        Called `looks_per_window` times in `window_s`.
        """
        outgoing = self._outgoing
        if outgoing is not None and _takes_memory(outgoing):
            reason, held = "slow-answer", outgoing.held_bytes()
            transfer = Transfer(2 * self._waits + 1, self.answered_bytes(), outgoing.sent + held)
        elif self._arrival is not None and self._reader.buffered_bytes:
            if self._waits_for_memory:
                if self._pace is not None:
                    self._pace.pause()
                return ""
            reason, buffered = "slow-request", self._reader.buffered_bytes
            transfer = Transfer(2 * self._frames, buffered, self._reader.announced)
        else:
            self._pace = None
            return ""
        if self._pace is None:
            self._pace = Pace()
        return reason if self._pace.is_too_slow(transfer, looks_per_window, window_s) else ""

    def answered_bytes(self) -> int:
        """Return how much of the present answer has reached the peer.

        What the kernel still holds does not count, so it may be negative.
        """
        if self._outgoing is None:
            return 0
        try:
            queued = fcntl.ioctl(self._transport, termios.TIOCOUTQ, bytes(_INT.size))
        except OSError:
            return self._outgoing.sent
        return self._outgoing.sent - int(_INT.unpack(queued)[0])

    def give_up_answer(self) -> None:
        """Close the connection, whose peer reads too slowly while memory for answers is short.

        One of file regions stays: without it there would be no more memory.
        """
        if self._outgoing is not None and _takes_memory(self._outgoing):
            self.abort("slow-answer")

    def abort(self, reason: str) -> None:
        """Close the connection at once, for a reason that `ConnectionQuotas.closed` counts."""
        if self._task is None or self._task.cancelling():
            return
        self._task.cancel()
        self._quotas.closed[reason] += 1
        self._quotas.log.log(
            logging.INFO, f"closing %s:%s: {_REASONS[reason]}", self.peer.host, self.peer.port
        )

    def release_spare_memory(self) -> None:
        """Shrink a buffer that is nearly empty, unless a request is in progress."""
        if self._arrival is not None:
            self._reader.release_spare()

    def peer_certificate(self) -> bytes | None:
        """Return the certificate that the peer has proved to have, in DER."""
        return self._transport.peer_certificate()

    def identify(self, principal: Principal) -> None:
        """Say who the peer is."""
        self.peer = replace(self.peer, principal=principal)

    def limit_frames(self, most_bytes: int) -> None:
        """Limit the frames to come, below the listener's limit."""
        self._reader.limit(min(most_bytes, self._quotas.limits.max_frame_bytes))

    def finish(self) -> None:
        """Answer the request in progress, then close."""
        self._closing = True
        if not self._frames:
            # Clients take an end before their first answer for TLS or SASL that differs, and some
            # give up (franz-go's transactional producers). After a reset all try again.
            self._transport.reset_at_close()
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        self._unmute()

    def start(self, group: asyncio.TaskGroup) -> asyncio.Task[None]:
        """Serve the peer in a task of the group, which owns the connection; return it."""
        # It may be aborted before it runs.
        self._task = group.create_task(self.run(), name=f"connection {self.peer.connection_id}")
        return self._task

    async def run(self) -> None:
        """Serve the peer until either side ends the connection; close the socket."""
        try:
            await self._transport.handshake()
            if self._guard is not None:
                self._dispatch = self._guard(self, self._dispatch)
            try:
                await self._serve()
            except Exception:
                # As in Kafka: what came before it is answered.
                if self._owed is not None:
                    await self._owed.until_owed(0)
                raise
        except HandshakeError as error:
            self._quotas.log.log(logging.INFO, "failed handshake with %s: %s", self.peer, error)
        except (ProtocolViolation, MalformedError) as violation:
            self._quotas.closed["violation"] += 1
            self._quotas.log.log(logging.WARNING, "closing %s: %s", self.peer, violation)
        except OSError as error:
            self._log_loss(error)
        except MemoryError:
            self._quotas.log.log(
                logging.ERROR,
                "closing %s:%s: no memory for its request",
                self.peer.host,
                self.peer.port,
            )
        except Exception:
            self._quotas.log.log(
                logging.ERROR, "closing %s:%s", self.peer.host, self.peer.port, exc_info=True
            )
        finally:
            try:
                self._stop_reading()
                if self._owed is not None:
                    await self._owed.close()
            finally:
                self._end()

    def _end(self) -> None:
        self._transport.close()
        self._closing = True
        self._give_memory_back()
        self._task = None
        # No cycle, or its buffer would stay until the garbage collector comes.
        self._dispatch = _dispatch_nothing
        self._owed = None
        self._next_request = NextRequest()
        self.peer = replace(self.peer, is_connected=lambda: False, next_request=self._next_request)

    async def _serve(self) -> None:
        """Do what frames had to wait for; `_on_readable` begins to serve them."""
        while (work := await self._next_work()) is not None:
            await work
        if self._owed is not None:
            await self._owed.until_owed(0)

    async def _next_work(self) -> BegunWork | None:
        """Return what is left of a frame that has to wait, None if there are no more frames."""
        if self._closing or self._ended:
            return None
        self._read_on()
        self._arrival = InlineFuture(loop=self._loop)
        try:
            return await self._arrival
        finally:
            self._arrival = None

    async def _serve_frames(self, frame: memoryview | None) -> None:
        """Serve a frame, and those behind it that are there."""
        while frame is not None:
            self._frames += 1
            if self._owed and not _is_produce(frame):
                await self._owed.until_owed(0)
            self._in_dispatch = True
            try:
                answer = await self._dispatch(frame, self.peer)
            except OSError as error:
                # An error of this broker, as of a disk, must not look like a lost peer.
                raise RuntimeError("request failed") from error
            finally:
                self._in_dispatch = False
                self._last_active = self._time()
            self._turn += 1
            if isinstance(answer, Later) or (self._owed and self._throttling.send is None):
                if self._gathered:
                    self._send_gathered()
                self._owe(answer)
            elif answer is not None:
                if self._throttling.send is None:
                    if left := self._send_short(answer):
                        await self._send_all(left)
                else:
                    if self._owed:
                        await self._owed.until_owed(0)
                    self._gathers = False  # what is measured is sent
                    send, self._throttling.send = self._throttling.send, None
                    await send(self._answer(answer))
            if self._memory.limited:
                self._give_memory_back()
            elif self._reader.capacity > KEPT_BYTES > len(frame):
                # One large request must not keep its memory while small ones follow.
                self._reader.release_spare()
            del frame  # it would hold the buffer of before
            if self._owed:
                await self._owed.until_owed(MOST_OWED - 1)
            if self._throttling.mute_s:
                if self._owed:
                    await self._owed.until_owed(0)
                await self._stay_muted()
            frame = None if self._closing else self._reader.next_frame()
            if frame is not None and self._turn >= FRAMES_A_TURN:
                self._turn = 0
                await asyncio.sleep(0)
        self._turn = 0

    def _owe(self, answer: Answer) -> None:
        """Answer behind those that are owed, of which there are few."""
        if self._owed is None:
            self._owed = OwedAnswers(self._answer_owed, self._fail)
        if not isinstance(answer, Later):
            answer = Later(partial(_now, answer))
        self._owed.add(answer)

    async def _answer_owed(self, parts: Sequence[Part]) -> None:
        self._note_activity()
        if self._rest:
            rest, self._rest = self._rest, b""
            await self._send_all([rest])
        if parts:
            await self._answer(parts)

    def _fail(self, error: Exception) -> None:
        """Let `run` log why owed answers cannot be sent, if it waits for the next request."""
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_exception(error)

    async def _stay_muted(self) -> None:
        """Serve nothing for a while (KIP-219), unless the peer goes.

        What the peer sends goes into the first buffer until that is full, and then stays in the
        kernel's. So the end of the connection is seen, but for what only a look at the socket shows
        when it is not read.
        """
        until = self._time() + self._throttling.mute_s
        self._throttling.mute_s = 0.0
        self._reader.release_spare()
        self._quotas.muted += 1
        try:
            while not self._closing and (self._reader.has_frame() or not self._ended):
                left = until - self._time()
                if left <= 0:
                    break
                # Poll tells of failures without being asked.
                if _polled(self._transport.fileno(), 0):
                    raise ConnectionResetError("the peer is gone")
                self._mute = self._loop.create_future()
                timer = self._loop.call_later(min(left, MUTED_LOOK_S), self._unmute)
                try:
                    await self._mute
                finally:
                    timer.cancel()
                    self._mute = None
        finally:
            self._quotas.muted -= 1
            self._note_activity()

    def _unmute(self) -> None:
        if self._mute is not None and not self._mute.done():
            self._mute.set_result(None)

    async def _answer(self, parts: Sequence[Part]) -> None:
        if left := self._send_short(parts):
            await self._send_all(left)

    def _send_short(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Send an answer if it is short, as nearly all are; return what is left, with its size."""
        first = parts[0] if parts else b""
        if len(parts) == 1 and type(first) is bytes and len(first) <= _COPIED_BYTES:
            answer = LENGTH32.pack(len(first)) + first
            if self._gathered:
                answer = self._gathered + answer
                self._gathered = b""
            if self._gathers and len(answer) <= _COPIED_BYTES and self._reader.has_frame():
                self._gathered = answer
                return ()
            left = send_at_once(self._transport, answer)
            return [left] if left else ()
        try:
            length = total_length(parts)
            size = LENGTH32.pack(length)
        except BaseException:
            close_all(parts)
            raise
        self._turn += length // _BYTES_AS_A_FRAME
        if self._gathered:
            size = self._gathered + size
            self._gathered = b""
        if isinstance(first, bytes) and len(first) <= _COPIED_BYTES:
            return [size + first, *parts[1:]]
        return [size, *parts]

    def _send_gathered(self) -> None:
        """Send gathered answers; owe what the socket does not take."""
        answers, self._gathered = self._gathered, b""
        try:
            self._rest = bytes(send_at_once(self._transport, answers))
        except OSError:
            self._rest = answers  # it fails once more where it is owed
        if self._rest:
            self._owe(())

    async def _send_all(self, parts: Sequence[Part]) -> None:
        try:
            await self._transport.send_all(parts, self._note_activity, self._on_wait)
        finally:
            if self._outgoing is not None:
                self._outgoing = None
                self._quotas.answers.release(self)

    def _on_wait(self, outgoing: Outgoing) -> None:
        """Count an answer that waits for its peer, or for its turn."""
        if self._outgoing is None:
            self._outgoing = outgoing
            self._waits += 1
            self._quotas.answers.hold(self, outgoing.held_bytes())

    def _on_readable(self) -> None:
        try:
            reader = self._reader
            room = reader.room()
            if not room:
                # The buffer is full; the next `_next_work` resumes reading.
                self._stop_reading()
                return
            try:
                count = self._transport.recv_into(room)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._log_loss(error)
                count = 0
            self._last_active = self._time()
            reader.received(count)
            if count == 0:
                self._ended = True
                self._stop_reading()
                self._unmute()
            if self._arrival is None:
                self._next_request.arrived()
            elif not self._arrival.done():
                self._serve_arrived()
        except (Exception, asyncio.CancelledError) as error:
            # The bytes are still there: the event loop would call this again and again.
            self._stop_reading()
            if self._arrival is not None and not self._arrival.done():
                self._arrival.set_exception(error)  # `run` logs it
            else:
                self._ended = True
                self._quotas.log.log(
                    logging.ERROR, "closing %s:%s", self.peer.host, self.peer.port, exc_info=True
                )

    def _serve_arrived(self) -> None:
        """Serve the frames that are there, until one has to wait; that, and the end, wake the task.

        Raises ProtocolViolation, and what dispatching a frame raises.
        """
        try:
            frame = self._reader.next_frame()
        except ProtocolViolation as violation:
            raise self._explained(violation) from None
        work = None
        if frame is not None:
            assert self._task is not None
            # Not there for whoever is called, as while the task serves a frame.
            arrival, self._arrival = self._arrival, None
            self._gathers = True
            try:
                work = begin(self._serve_frames(frame), self._task, self._loop)
            finally:
                self._gathers = False
                self._arrival = arrival
                del arrival  # the future of an exception must not be in its own traceback
                if self._gathered:
                    # What is served next waits for something, or there is nothing.
                    self._send_gathered()
        if work is not None or self._ended or self._closing:
            assert self._arrival is not None
            if not self._arrival.done():
                self._arrival.settle(work)
            elif work is not None:  # the task was cancelled meanwhile
                work.close()
        elif not self._reading or self._memory.limited:
            self._read_on()

    def _explained(self, violation: ProtocolViolation) -> ProtocolViolation:
        """Name the protocol, if the first bytes show another one than Kafka's."""
        if not self._frames:
            protocol = foreign_protocol(self._reader.peek(FOREIGN_BYTES))
            if protocol is not None:
                return ProtocolViolation(f"{violation}: the peer speaks {protocol}")
        return violation

    def _log_loss(self, error: OSError) -> None:
        text = "lost %s:%s: %s"
        said = tls_errors.describe(error)
        self._quotas.log.log(logging.DEBUG, text, self.peer.host, self.peer.port, said)

    def _note_activity(self) -> None:
        self._last_active = self._time()

    def _read_on(self) -> None:
        """Read, or wait until there is memory for the buffer of the incomplete frame."""
        if self._memory.limited:
            needed = max(self._reader.capacity, self._reader.wanted)
            if needed > READ_AHEAD_BYTES:
                self._memory = self._quotas.memory_for(self._arriving_key())
                if not self._memory.take(self, needed):
                    self._stop_reading()
                    self._waits_for_memory = True
                    self._memory.when_free(self, self._memory_is_free)
                    return
        self._start_reading()

    def _arriving_key(self) -> int:
        """Return the API key of the frame that arrives, -1 if it is not there yet."""
        start = self._reader.peek(_SIZE_AND_KEY.size)
        if len(start) < _SIZE_AND_KEY.size:
            return NOT_THERE
        return int(_SIZE_AND_KEY.unpack(start)[1])

    def _memory_is_free(self) -> None:
        self._waits_for_memory = False
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
            self._transport.start_reading(self._on_readable)
            self._reading = True

    def _stop_reading(self) -> None:
        if self._reading:
            self._transport.stop_reading()
            self._reading = False


# Called once the transport is usable: says who the peer is, if it is known then, and returns what
# answers its frames instead of the listener's dispatch.
Guard: TypeAlias = Callable[[Connection, Dispatch], Dispatch]


async def _dispatch_nothing(frame: memoryview, peer: ClientInfo) -> None:
    """Stand in for the dispatch of a connection that ended."""


async def _now(parts: Sequence[Part] | None) -> Sequence[Part] | None:
    return parts


def _is_produce(frame: memoryview) -> bool:
    """Return whether a frame begins with the key of Produce."""
    return bytes(frame[: LENGTH16.size]) == _PRODUCE


def _takes_memory(outgoing: Outgoing) -> bool:
    """Return whether an answer is in our memory, other than the little around file regions."""
    return not outgoing.has_regions or outgoing.held_bytes() > READ_AHEAD_BYTES


def _polled(descriptor: int, events: int) -> bool:
    """Return whether one of the events is there, or the socket has failed."""
    look = select.poll()
    look.register(descriptor, events)
    return bool(look.poll(0))
