"""How the bytes of one connection move: as they are, or through TLS.

Both kinds have what a connection needs of a socket: `recv_into` and `send`, which raise
BlockingIOError while there is nothing to read or no room, `send_all`, `close`, and a watch for
bytes to read. `PlainTransport` is a socket and adds nothing to it on the way of a request.

What TLS needs besides (`TlsTransport`). OpenSSL works between two buffers in memory; the transport
alone moves their bytes to and from the socket:

- Clients may send each record of a batch as a TLS record of its own. OpenSSL would read each from a
  socket by two system calls; so what the socket has is taken by one.
- Bytes that were taken from the socket, and not asked for yet, are not seen by epoll: after a read
  that filled its buffer there is another one.
- A write is encrypted as a whole, and may find the socket full: so a piece counts as sent when all
  of its cipher text is, and is kept until then.
- `sendfile` would put the bytes of a file on the wire as they are. Regions are read into memory and
  encrypted: in the event loop if the page cache has them, else in a thread.
- Handshakes cost milliseconds and run in threads, a few at a time, each within a time limit. A peer
  that sends nothing takes no memory of OpenSSL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from odradek.net.inline_future import InlineFuture
from odradek.net.sending import SLICE_BYTES, Outgoing, ignore_wait, send_all
from odradek.protocol.regions import IN_MEMORY, Buffer, FileRegion, Part

T = TypeVar("T")

HANDSHAKE_LIMIT_S: Final = 10.0
# Handshakes that compute or wait for a thread.
HANDSHAKES_AT_ONCE: Final = 32
_HANDSHAKE_THREADS: Final = 2
# Bytes encrypted in one call: four TLS records.
PIECE_BYTES: Final = 64 * 1024
# Most cipher text taken from a socket in one call.
_TAKEN_BYTES: Final = 256 * 1024
# Most cipher text taken in one read, however fast the peer is: others wait.
_TAKEN_A_READ: Final = 3 * _TAKEN_BYTES
# Reads of one connection in a row before the others.
_READS_A_TURN: Final = 8
# A full record, with what encryption adds. OpenSSL's buffer of what arrives never shrinks, so it
# gets no more at once.
_RECORD_BYTES: Final = 16 * 1024 + 256
# A longer record is an error, of which OpenSSL tells the peer (RFC 5246, 6.2.3; less in TLS 1.3).
_LONGEST_RECORD_BYTES: Final = 16 * 1024 + 2048
# Its kind, the major version (all of TLS have 3), the length of what follows.
_RECORD_HEADER: Final = struct.Struct(">BBxH")
_HEADER_BYTES: Final = _RECORD_HEADER.size
_unpack_header: Final = _RECORD_HEADER.unpack_from
_CHANGE_CIPHER_SPEC, _APPLICATION_DATA = 20, 23
_RECORD_KINDS: Final = frozenset(range(20, 25))
# What OpenSSL says unasked, answers to key updates for instance, waits up to this size.
_UNASKED_BYTES: Final = 64 * 1024


class HandshakeError(ConnectionError):
    """A handshake failed; `cause` is one of CAUSES, the text says more."""

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause


CAUSES: Final = ("certificate", "disconnected", "no-tls", "protocol", "timeout")
"""Why handshakes fail: the peer's certificate or ours is refused; it went away; it does not speak
TLS; there is no common version or cipher, or the handshake is damaged; it took too long."""

_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST"})


class Transport(Protocol):
    """One connected, non-blocking socket."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Return how many bytes came, 0 at the end. Raises OSError."""

    def send(self, data: Buffer, flags: int = 0, /) -> int:
        """Return how many bytes were taken. Raises OSError."""

    async def send_all(
        self,
        parts: Sequence[Part],
        on_progress: Callable[[], None],
        on_wait: Callable[[Outgoing], None] = ignore_wait,
    ) -> None:
        """Send all parts and always close the regions, as `sending.send_all` does."""

    def start_reading(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever there are bytes to read."""

    def stop_reading(self) -> None:
        """Stop calling it."""

    async def handshake(self) -> None:
        """Make the connection usable. Raises OSError."""

    def peer_certificate(self) -> bytes | None:
        """Return the certificate that the peer has proved to have, in DER."""

    def fileno(self) -> int:
        """Return the descriptor, to look at the connection only."""

    def interrupt(self) -> None:
        """Let a send that waits fail."""

    def close(self) -> None:
        """Close the connection."""


class PlainTransport(socket.socket):
    """A socket without encryption."""

    __slots__ = ()

    send_all = send_all

    def start_reading(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever there are bytes to read."""
        asyncio.get_running_loop().add_reader(self, callback)

    def stop_reading(self) -> None:
        """Stop calling it."""
        asyncio.get_running_loop().remove_reader(self)

    def interrupt(self) -> None:
        """Let a send that waits fail."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    async def handshake(self) -> None:
        """Do nothing: there is none."""

    def peer_certificate(self) -> bytes | None:
        """Return None: there is none."""
        return None


def plain(sock: socket.socket) -> PlainTransport:
    """Return the transport that takes over a connected, non-blocking socket."""
    timeout = sock.gettimeout()
    family, kind, protocol = sock.family, sock.type, sock.proto
    transport = PlainTransport(family, kind, protocol, fileno=sock.detach())
    transport.settimeout(timeout)
    return transport


class Handshakes:
    """The threads for the handshakes of all connections of a process."""

    def __init__(self, at_once: int = HANDSHAKES_AT_ONCE) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._threads = ThreadPoolExecutor(_HANDSHAKE_THREADS, "tls-handshake")
        self.failed: Counter[str] = Counter(dict.fromkeys(CAUSES, 0))
        # Where the event loop puts cipher text for a moment, of whichever connection.
        self.scratch = memoryview(bytearray(_TAKEN_BYTES + _LONGEST_RECORD_BYTES + 64))

    async def step(self, work: Callable[[], None]) -> None:
        """Run one step of a handshake in a thread."""
        async with self._slots:
            await _Step(work).run_in(self._threads)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False)


class _Step:
    """Work in a thread, whose waiter goes on as soon as the event loop hears of its end.

    `run_in_executor` takes some more rounds of the event loop, and their system calls.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._end = InlineFuture[None](loop=self._loop)
        self._has_ended = False
        self._error: BaseException | None = None

    async def run_in(self, threads: ThreadPoolExecutor) -> None:
        """Do the work. Whoever is cancelled waits for its end: it uses what is closed then."""
        threads.submit(self._run)
        try:
            await self._end
        except asyncio.CancelledError:
            if not self._has_ended:
                self._end = InlineFuture[None](loop=self._loop)
                await self._end
            raise
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and nobody waits
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._has_ended = True
        _settle(self._end)


class TlsTransport:
    """A socket that speaks TLS after `handshake`; takes over `sock`.

    A server has no `server_hostname`. `context` is asked for when the handshake begins.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: Callable[[], ssl.SSLContext],
        handshakes: Handshakes,
        *,
        is_server: bool = True,
        server_hostname: str | None = None,
    ) -> None:
        self._sock = sock
        self._tls: ssl.SSLObject | None = None
        self._context = context
        self._handshakes = handshakes
        self._is_server = is_server
        self._server_hostname = server_hostname
        self._loop = asyncio.get_running_loop()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._unsent = memoryview(b"")  # cipher text
        # How much of the present piece is encrypted, and does not count as sent yet.
        self._owed = 0
        self._begun = b""  # the beginning of a record, in cipher text
        self._may_have_more = False
        self._reads_soon = False
        # Why there is nothing more to decrypt, once what came before is read.
        self._end: ssl.SSLError | None = None
        self._on_readable: Callable[[], None] | None = None
        self._closed = False

    # --- handshake ---

    async def handshake(self, limit_s: float = HANDSHAKE_LIMIT_S) -> None:
        """Agree on keys, and check the peer's certificate. Raises HandshakeError."""
        try:
            async with asyncio.timeout(limit_s):
                await self._shake_hands()
        except TimeoutError:
            raise self._failure("timeout", f"no TLS handshake in {limit_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise self._failure("certificate", f"TLS: {error.verify_message}") from error
        except ssl.SSLError as error:
            raise self._failure(_cause(error), f"TLS: {error.reason or error}") from error
        except (OSError, ValueError) as error:
            raise self._failure("disconnected", f"TLS handshake: {error}") from error

    async def _shake_hands(self) -> None:
        if self._is_server:
            await self._receive_handshake()
        context = self._context()
        tls = context.wrap_bio(
            self._incoming, self._outgoing, self._is_server, self._server_hostname
        )
        shows_nothing = self._is_server and context.verify_mode == ssl.CERT_NONE
        is_cheap = False
        while True:
            try:
                if is_cheap:
                    tls.do_handshake()
                else:
                    await self._handshakes.step(tls.do_handshake)
            except ssl.SSLWantReadError:
                await self._send_handshake()
                is_cheap = await self._receive_handshake() and shows_nothing
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._flush()  # the alert that tells the peer why
                raise
            else:
                break
        await self._send_handshake()
        if self._is_server:
            # A client whose kernel gathers small writes (Nagle) sends no request before its last
            # message is acknowledged, which ours would put off for 40 ms.
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        self._tls = tls
        self._may_have_more = bool(self._incoming.pending)  # what came with the last message

    async def _send_handshake(self) -> None:
        while self._unsent or self._outgoing.pending:
            try:
                self._flush()
            except BlockingIOError:
                await self._await_descriptor(to_write=True)

    async def _receive_handshake(self) -> bool:
        """Pass on what the peer says next; return whether that is the end of TLS 1.3's handshake.

        Only whole records are passed on. Raises ConnectionError if the peer has ended.
        """
        while True:
            begun = len(self._begun)
            taken = self._handshakes.scratch[: begun + _RECORD_BYTES]
            try:
                count = self._sock.recv_into(taken[begun:])
            except BlockingIOError:
                await self._await_descriptor(to_write=False)
                continue
            if not count:
                raise ConnectionResetError("the peer has ended the connection")
            taken[:begun] = self._begun
            self._take(taken[: begun + count], memoryview(b""))
            if self._incoming.pending:
                return _ends_handshake(taken[: begun + count])

    def _failure(self, cause: str, text: str) -> HandshakeError:
        self._handshakes.failed[cause] += 1
        return HandshakeError(cause, text)

    async def _await_descriptor(self, *, to_write: bool) -> None:
        ready = InlineFuture[None](loop=self._loop)
        add = self._loop.add_writer if to_write else self._loop.add_reader
        remove = self._loop.remove_writer if to_write else self._loop.remove_reader
        number = self._sock.fileno()
        add(number, _settle, ready)
        try:
            await ready
        finally:
            if not self._closed:
                remove(number)

    def peer_certificate(self) -> bytes | None:
        """Return the certificate that the peer has proved to have, in DER."""
        return None if self._tls is None else self._tls.getpeercert(binary_form=True)

    # --- reading ---

    def recv_into(self, buffer: memoryview, /) -> int:
        """Return how many bytes came, 0 at the end. Raises OSError."""
        assert self._tls is not None, "no handshake"
        found = self._decrypt(buffer) if self._may_have_more and self._end is None else 0
        has_ended, left = False, _TAKEN_A_READ
        while found < len(buffer) and self._end is None and left > 0:
            begun = len(self._begun)
            wanted = begun + max(_RECORD_BYTES, min(len(buffer) - found, _TAKEN_BYTES))
            taken = self._handshakes.scratch[:wanted]
            try:
                count = self._sock.recv_into(taken[begun:])
            except BlockingIOError:
                break
            has_ended = not count
            left -= count
            if begun:
                taken[:begun] = self._begun
            found += self._take(taken[: begun + count], buffer[found:])
            if begun + count < wanted:
                break
        if self._outgoing.pending:
            self._say_unasked()
        self._may_have_more = found == len(buffer) or self._end is not None
        if found or has_ended or isinstance(self._end, ssl.SSLZeroReturnError):
            return found
        raise self._end or BlockingIOError

    def _take(self, taken: memoryview, buffer: memoryview) -> int:
        """Decrypt records as far as there is room; return how many bytes that gave.

        What has no room waits in OpenSSL's buffer, the beginning of a record in ours: OpenSSL tells
        by an exception that it needs more, which costs as much as to decrypt a record.
        """
        found = start = 0
        while end := records_end(taken, start):
            self._incoming.write(taken[start:end])
            if found < len(buffer) and self._end is None:
                found += self._decrypt(buffer[found:])
            start = end
        self._begun = bytes(taken[start:])
        return found

    def _decrypt(self, buffer: memoryview) -> int:
        """Decrypt what OpenSSL has; return how many bytes that gave."""
        assert self._tls is not None
        found, size, tls, incoming = 0, len(buffer), self._tls, self._incoming
        try:
            while found < size and (incoming.pending or tls.pending()):
                count: int = tls.read(size - found, buffer[found:])  # type: ignore[assignment]
                if not count:
                    self._end = ssl.SSLZeroReturnError()
                    break
                found += count
        except ssl.SSLWantReadError:
            pass  # the last record was none of data
        except ssl.SSLError as error:
            self._end = error
        return found

    def _say_unasked(self) -> None:
        """Send what OpenSSL has to say while it reads, if there is room.

        Raises ConnectionError if a peer lets it say much and does not listen.
        """
        if self._unsent:
            if self._outgoing.pending > _UNASKED_BYTES:
                raise ConnectionResetError("the peer does not read what TLS answers")
            return  # it goes after what is there
        with contextlib.suppress(BlockingIOError):
            self._flush()

    def start_reading(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever there are bytes to read, those that we hold included."""
        if self._closed:
            return
        self._on_readable = callback
        self._loop.add_reader(self._sock.fileno(), self._read)
        if self._may_have_more:
            self._read_soon()

    def stop_reading(self) -> None:
        """Stop calling it."""
        if self._on_readable is not None:
            self._on_readable = None
            self._loop.remove_reader(self._sock.fileno())

    def _read_soon(self) -> None:
        if not self._reads_soon:
            self._reads_soon = True
            self._loop.call_soon(self._read_now)

    def _read_now(self) -> None:
        self._reads_soon = False
        self._read()

    def _read(self) -> None:
        if self._reads_soon:
            return  # both in one turn would be twice the share of this connection
        for _ in range(_READS_A_TURN):
            if self._closed or self._on_readable is None:
                return
            self._on_readable()
            if not self._may_have_more:
                return
        self._read_soon()

    # --- writing ---

    def send(self, data: Buffer, _flags: int = 0, /) -> int:
        """Return how many bytes were taken. Raises OSError.

        The next call must begin with the first byte that was not taken.
        """
        assert self._tls is not None, "no handshake"
        if not self._owed:
            # The buffer in memory takes all of it.
            self._owed = self._tls.write(memoryview(data)[:PIECE_BYTES])
        gone = self._flush()
        has_all = not self._unsent and not self._outgoing.pending
        sent = self._owed if has_all else min(gone, self._owed - 1)
        self._owed -= sent
        return sent

    def _flush(self) -> int:
        """Send cipher text; return how many bytes the socket took. Raises BlockingIOError."""
        if not self._unsent:
            self._unsent = memoryview(self._outgoing.read())
        gone = self._sock.send(self._unsent)
        self._unsent = self._unsent[gone:]
        return gone

    async def send_all(
        self,
        parts: Sequence[Part],
        on_progress: Callable[[], None],
        on_wait: Callable[[Outgoing], None] = ignore_wait,
    ) -> None:
        """Send all parts and always close the regions, as `sending.send_all` does."""
        outgoing = EncryptedOutgoing(parts)
        budget = SLICE_BYTES
        try:
            while not outgoing.done:
                if not outgoing.has_piece and not outgoing.take_piece():
                    await outgoing.read_piece()
                with contextlib.suppress(BlockingIOError):
                    sent = self.send(outgoing.piece)
                    outgoing.skip(sent)
                    budget -= sent
                    on_progress()
                if outgoing.has_piece:
                    on_wait(outgoing)
                    await self._await_descriptor(to_write=True)
                elif budget <= 0 and not outgoing.done:
                    on_wait(outgoing)
                    await asyncio.sleep(0)
                    budget = SLICE_BYTES
        finally:
            outgoing.close()

    # --- the descriptor ---

    def fileno(self) -> int:
        """Return the descriptor, to look at the connection only."""
        return self._sock.fileno()

    def interrupt(self) -> None:
        """Let a send that waits fail."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Tell the peer that nothing more comes (close_notify), and close the connection."""
        if self._closed:
            return
        self.stop_reading()
        self._loop.remove_writer(self._sock.fileno())
        self._closed = True
        if self._tls is not None:
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            with contextlib.suppress(OSError):
                while self._unsent or self._outgoing.pending:
                    self._flush()
        self._sock.close()


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
        taken = await _run_to_end(None, lambda: _read(part, position, view))
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


def records_end(cipher: memoryview, start: int) -> int:
    """Return the end of some whole TLS records from `start` on, 0 if there is none.

    They are small ones together, or one large one. What cannot be a record has no end of its own:
    OpenSSL gets all of it.
    """
    end, most, arrived = 0, start + _RECORD_BYTES, len(cipher)
    while start <= arrived - _HEADER_BYTES:
        kind, version, length = _unpack_header(cipher, start)
        if kind not in _RECORD_KINDS or version != 3 or length > _LONGEST_RECORD_BYTES:
            return arrived
        start += _HEADER_BYTES + length
        if start > arrived or (end and start > most):
            break
        end = start
    return end


def _ends_handshake(cipher: memoryview) -> bool:
    """Return whether records begin with an encrypted message, as the last one of TLS 1.3 is.

    It follows a ChangeCipherSpec that means nothing. All other messages make OpenSSL compute for
    long; they are in plain text, or of TLS 1.2, and records of the kind HANDSHAKE.
    """
    kind, _, length = _unpack_header(cipher)
    if kind == _CHANGE_CIPHER_SPEC:
        following = _HEADER_BYTES + int(length)
        kind = cipher[following] if following < len(cipher) else kind
    return bool(kind == _APPLICATION_DATA)


def _read_cached(region: FileRegion, offset: int, view: memoryview) -> int | None:
    """Read what the page cache has; None if the disk has to be asked."""
    try:
        return os.preadv(region.fd, [view], region.position + offset, os.RWF_NOWAIT)
    except OSError:
        # EAGAIN; or a file system that cannot tell.
        return None


def _read(region: FileRegion, offset: int, view: memoryview) -> int:
    return os.preadv(region.fd, [view], region.position + offset)


async def _run_to_end(threads: ThreadPoolExecutor | None, work: Callable[[], T]) -> T:
    """Run work in a thread. Whoever is cancelled waits for its end: it uses what is closed then."""
    running = asyncio.get_running_loop().run_in_executor(threads, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if not running.done():
            await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # nobody else asks for it
        raise


def _cause(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "disconnected"
    if reason in _NO_TLS:
        return "no-tls"
    if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
        return "certificate"
    return "protocol"


def _settle(ready: InlineFuture[None]) -> None:
    if not ready.done():
        ready.settle(None)
