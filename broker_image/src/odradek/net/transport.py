"""How the bytes of one connection move: as they are, or through TLS.

Both kinds have what a connection needs of a socket: `recv_into` and `send`, which raise
BlockingIOError while there is nothing to read or no room, `send_all`, `close`, and a watch for
bytes to read. `PlainTransport` is a socket and adds nothing to it on the way of a request.

What TLS needs besides (`TlsTransport`):

- OpenSSL may hold decrypted bytes that epoll does not see: after each read `pending` ones are read.
- A read may have to write first, and a write to read. The transport alone watches the descriptor.
- A write that had no room is repeated with the same bytes; so pieces are kept until they are sent.
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
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from odradek.net.sending import SLICE_BYTES, Outgoing, ignore_wait, send_all
from odradek.protocol.regions import IN_MEMORY, Buffer, FileRegion, Part

T = TypeVar("T")

HANDSHAKE_LIMIT_S: Final = 10.0
# Handshakes that compute or wait for a thread.
HANDSHAKES_AT_ONCE: Final = 32
_HANDSHAKE_THREADS: Final = 2
# Bytes encrypted in one call: four TLS records.
PIECE_BYTES: Final = 64 * 1024


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

    async def step(self, work: Callable[[], T]) -> T:
        """Run one step of a handshake in a thread."""
        async with self._slots:
            return await _run_to_end(self._threads, work)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False)


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
        self._sock: socket.socket | ssl.SSLSocket = sock
        self._tls: ssl.SSLSocket | None = None
        self._context = context
        self._handshakes = handshakes
        self._is_server = is_server
        self._server_hostname = server_hostname
        self._loop = asyncio.get_running_loop()
        self._on_readable: Callable[[], None] | None = None
        # A read that has to write first; what waits for the descriptor on behalf of a write.
        self._read_wants_room = False
        self._write_wants_bytes = False
        self._room: asyncio.Future[None] | None = None
        self._closed = False

    # --- handshake ---

    async def handshake(self, limit_s: float = HANDSHAKE_LIMIT_S) -> None:
        """Agree on keys, and check the peer's certificate. Raises HandshakeError."""
        try:
            async with asyncio.timeout(limit_s):
                if self._is_server:
                    await self._await_descriptor(to_write=False)
                await self._shake_hands()
        except TimeoutError:
            raise self._failure("timeout", f"no TLS handshake in {limit_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise self._failure("certificate", f"TLS: {error.verify_message}") from error
        except ssl.SSLError as error:
            raise self._failure(_cause(error), f"TLS: {error.reason or error}") from error
        except HandshakeError:
            raise
        except (OSError, ValueError) as error:
            raise self._failure("disconnected", f"TLS handshake: {error}") from error

    async def _shake_hands(self) -> None:
        def wrap() -> ssl.SSLSocket:
            self._sock.getpeername()  # fails for a peer that is gone, while we own the descriptor
            return self._context().wrap_socket(
                self._sock,
                server_side=self._is_server,
                do_handshake_on_connect=False,
                server_hostname=self._server_hostname,
            )

        self._sock = tls = wrap()
        while True:
            try:
                await self._handshakes.step(tls.do_handshake)
            except ssl.SSLWantReadError:
                await self._await_descriptor(to_write=False)
            except ssl.SSLWantWriteError:
                await self._await_descriptor(to_write=True)
            else:
                break
        self._tls = tls

    def _failure(self, cause: str, text: str) -> HandshakeError:
        self._handshakes.failed[cause] += 1
        return HandshakeError(cause, text)

    async def _await_descriptor(self, *, to_write: bool) -> None:
        ready = self._loop.create_future()
        add = self._loop.add_writer if to_write else self._loop.add_reader
        remove = self._loop.remove_writer if to_write else self._loop.remove_reader
        number = self._sock.fileno()
        add(number, _settle, ready)
        try:
            await ready
        finally:
            remove(number)

    def peer_certificate(self) -> bytes | None:
        """Return the certificate that the peer has proved to have, in DER."""
        return None if self._tls is None else self._tls.getpeercert(binary_form=True)

    # --- reading ---

    def recv_into(self, buffer: memoryview, /) -> int:
        """Return how many bytes came, 0 at the end. Raises OSError."""
        assert self._tls is not None, "no handshake"
        try:
            return self._tls.read(len(buffer), buffer)  # type: ignore[return-value]
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self._read_wants_room = True
            self._watch()
            raise BlockingIOError from None
        except ssl.SSLZeroReturnError:
            return 0
        except ValueError as error:
            raise ConnectionError(str(error)) from error

    def start_reading(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever there are bytes to read, those that OpenSSL holds included."""
        self._on_readable = callback
        self._watch()
        if self._tls is not None and self._tls.pending():
            self._loop.call_soon(self._read)

    def stop_reading(self) -> None:
        """Stop calling it."""
        self._on_readable = None
        self._watch()

    def _read(self) -> None:
        while not self._closed and self._on_readable is not None:
            self._on_readable()
            if self._closed or self._tls is None or not self._tls.pending():
                break

    # --- writing ---

    def send(self, data: Buffer, _flags: int = 0, /) -> int:
        """Return how many bytes were taken. Raises OSError.

        After a BlockingIOError the next call must begin with the same bytes.
        """
        assert self._tls is not None, "no handshake"
        try:
            # Not `send`, which without a session sends the bytes as they are.
            return self._tls.write(memoryview(data)[:PIECE_BYTES])
        except ssl.SSLWantWriteError:
            raise BlockingIOError from None
        except ssl.SSLWantReadError:
            self._write_wants_bytes = True
            raise BlockingIOError from None
        except ValueError as error:
            raise ConnectionError(str(error)) from error

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
                if not outgoing.has_piece:
                    await outgoing.take_piece()
                try:
                    sent = self.send(outgoing.piece)
                except BlockingIOError:
                    on_wait(outgoing)
                    await self._until_room()
                    continue
                outgoing.skip(sent)
                budget -= sent
                on_progress()
                if budget <= 0 and not outgoing.done:
                    on_wait(outgoing)
                    await asyncio.sleep(0)
                    budget = SLICE_BYTES
        finally:
            outgoing.close()

    async def _until_room(self) -> None:
        self._room = self._loop.create_future()
        self._watch()
        try:
            await self._room
        finally:
            self._room = None
            self._write_wants_bytes = False
            self._watch()

    # --- the descriptor ---

    def _watch(self) -> None:
        """Let the event loop look for what reads and writes wait for."""
        number = self._sock.fileno()
        if self._closed or number < 0:
            # `wrap_socket` takes the descriptor even if it fails, as for a peer that is just gone.
            return
        if self._on_readable is not None or (self._room is not None and self._write_wants_bytes):
            self._loop.add_reader(number, self._descriptor_readable)
        else:
            self._loop.remove_reader(number)
        if self._read_wants_room or (self._room is not None and not self._write_wants_bytes):
            self._loop.add_writer(number, self._descriptor_writable)
        else:
            self._loop.remove_writer(number)

    def _descriptor_readable(self) -> None:
        if self._room is not None and self._write_wants_bytes:
            _settle(self._room)
        self._read()

    def _descriptor_writable(self) -> None:
        if self._room is not None and not self._write_wants_bytes:
            _settle(self._room)
        if self._read_wants_room:
            self._read_wants_room = False
            self._watch()
            self._read()

    def fileno(self) -> int:
        """Return the descriptor, to look at the connection only."""
        return self._sock.fileno()

    def interrupt(self) -> None:
        """Let a send that waits fail."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Tell the peer that nothing more comes (close_notify), and close the connection."""
        if self._closed:
            return
        self._on_readable, self._room, self._read_wants_room = None, None, False
        self._watch()
        self._closed = True
        if self._tls is not None:
            with contextlib.suppress(OSError, ValueError):
                self._tls.unwrap()
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
        """Return whether OpenSSL has taken everything."""
        return not self.piece and self._index == len(self._parts)

    def held_bytes(self) -> int:
        """Return how much memory the unsent parts take."""
        return (0 if self._is_of_region else len(self.piece)) + super().held_bytes()

    def skip(self, count: int) -> None:
        """Note that OpenSSL took the first bytes of the piece."""
        self.piece = self.piece[count:]
        self.sent += count

    async def take_piece(self) -> None:
        """Take the next piece, from a thread if a disk has to be waited for.

        Raises ConnectionError if a file ends before its region does.
        """
        part = self._parts[self._index]
        self._is_of_region = not isinstance(part, IN_MEMORY)
        if isinstance(part, IN_MEMORY):
            self._take_buffers()
            return
        count = min(part.length - self._offset, PIECE_BYTES)
        if self._buffer is None:
            self._buffer = bytearray(min(part.length, PIECE_BYTES))
        elif len(self._buffer) < count:
            self._buffer = bytearray(PIECE_BYTES)
        view = memoryview(self._buffer)[:count]
        taken = _read_cached(part, self._offset, view) if count else 0
        if count and taken is None:
            position = self._offset
            taken = await _run_to_end(None, lambda: _read(part, position, view))
        if count and not taken:
            raise ConnectionError("file ended before the region that was promised")
        assert taken is not None
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


async def _run_to_end(threads: ThreadPoolExecutor | None, work: Callable[[], T]) -> T:
    """Run work in a thread. Whoever is cancelled waits for its end: it uses a descriptor."""
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


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
