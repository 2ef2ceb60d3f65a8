"""How the bytes of one connection move: as they are, or through TLS.

Both kinds have what a connection needs of a socket: `recv_into` and `send`, which raise
BlockingIOError while there is nothing to read or no room, `send_all`, `close`, and a watch for
bytes to read. `PlainTransport` is a socket and adds nothing to it on the way of a request.

What TLS needs besides (`TlsTransport`). OpenSSL works between two buffers in memory; the transport
alone moves their bytes to and from the socket:

- Clients may send each record of a batch as a TLS record of its own. OpenSSL would read each from a
  socket by two system calls; so what the socket has is taken by one, and whole records are passed
  on (`tls_records`).
- Records that were taken from the socket, and not asked for yet, are not seen by epoll. They are
  counted: as long as there are some, there is another read. OpenSSL is asked for no more than it
  has, and not asked whether it has something.
- A write is encrypted as a whole, and may find the socket full: so a piece counts as sent when all
  of its cipher text is, and is kept until then.
- `sendfile` would put the bytes of a file on the wire as they are. Regions are read into memory and
  encrypted (`encrypted_outgoing`).
- Handshakes may cost milliseconds and run in threads, a few at a time (`handshakes`), each within a
  time limit. The end of one of TLS 1.3 is cheap, and stays in the event loop. A peer that sends
  nothing takes no memory of OpenSSL.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from odradek import tls_errors
from odradek.net.encrypted_outgoing import PIECE_BYTES, EncryptedOutgoing
from odradek.net.handshakes import HandshakeError, Handshakes, cause_of
from odradek.net.inline_future import InlineFuture, wake
from odradek.net.sending import SLICE_BYTES, Outgoing, ignore_wait, send_all
from odradek.net.tls_records import RECORD_BYTES, TAKEN_BYTES, ends_handshake, whole_records
from odradek.protocol.regions import Buffer, Part

HANDSHAKE_LIMIT_S: Final = 10.0
# Most cipher text taken in one read, however fast the peer is: others wait.
_TAKEN_A_READ: Final = 3 * TAKEN_BYTES
# Reads of one connection in a row before the others.
_READS_A_TURN: Final = 8
# What OpenSSL says unasked, answers to key updates for instance, waits up to this size.
_UNASKED_BYTES: Final = 64 * 1024


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

    def reset_at_close(self) -> None:
        """Let `close` reset the connection: the peer reads an error and not an end."""

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

    def reset_at_close(self) -> None:
        """Let `close` reset the connection: the peer reads an error and not an end."""
        _do_not_linger(self)

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
        self._unsent: bytes | memoryview = b""  # cipher text
        # How much of the present piece is encrypted, and does not count as sent yet.
        self._owed = 0
        self._begun = b""  # the beginning of a record, in cipher text
        # Records that OpenSSL has got and we have not read to their ends: so many at most.
        self._held = 0
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
            raise self._failure("certificate", f"TLS: {tls_errors.describe(error)}") from error
        except ssl.SSLError as error:
            raise self._failure(cause_of(error), f"TLS: {tls_errors.describe(error)}") from error
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
        self._held = self._incoming.pending  # what came with the last message

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
            taken = self._handshakes.scratch[: begun + RECORD_BYTES]
            try:
                count = self._sock.recv_into(taken[begun:])
            except BlockingIOError:
                await self._await_descriptor(to_write=False)
                continue
            if not count:
                raise ConnectionResetError("the peer has ended the connection")
            taken[:begun] = self._begun
            self._take(taken[: begun + count], memoryview(b""), 0)
            if self._incoming.pending:
                return ends_handshake(taken[: begun + count])

    def _failure(self, cause: str, text: str) -> HandshakeError:
        self._handshakes.failed[cause] += 1
        return HandshakeError(cause, text)

    async def _await_descriptor(self, *, to_write: bool) -> None:
        ready = InlineFuture[None](loop=self._loop)
        add = self._loop.add_writer if to_write else self._loop.add_reader
        remove = self._loop.remove_writer if to_write else self._loop.remove_reader
        number = self._sock.fileno()
        add(number, wake, ready)
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
        size, scratch = len(buffer), self._handshakes.scratch
        found = self._decrypt(buffer, 0) if self._held and buffer and self._end is None else 0
        has_ended, left = False, _TAKEN_A_READ
        while found < size and self._end is None and left > 0:
            begun = len(self._begun)
            # One record more than there is room for: cipher text is longer.
            wanted = begun + min(size - found + RECORD_BYTES, TAKEN_BYTES)
            try:
                count = self._sock.recv_into(scratch[begun:wanted])
            except BlockingIOError:
                break
            has_ended = not count
            left -= count
            if begun:
                scratch[:begun] = self._begun
            arrived = begun + count
            found = self._take(scratch[:arrived], buffer, found)
            if arrived < wanted:
                break
        if self._outgoing.pending:
            self._say_unasked()
        if found or has_ended or isinstance(self._end, ssl.SSLZeroReturnError):
            return found
        raise self._end or BlockingIOError

    def _take(self, taken: memoryview, buffer: memoryview, found: int) -> int:
        """Decrypt records into the buffer from `found` on; return where that ends.

        What has no room waits in OpenSSL's buffer, the beginning of a record in ours: OpenSSL tells
        by an exception that it needs more, which costs as much as to decrypt a record.
        """
        start, size, write = 0, len(buffer), self._incoming.write
        for end, count in whole_records(taken):
            write(taken[start:end])
            start = end
            self._held += count
            if found < size and self._end is None:
                found = self._decrypt(buffer, found)
        self._begun = bytes(taken[start:])
        return found

    def _decrypt(self, buffer: memoryview, found: int) -> int:
        """Decrypt records that OpenSSL has into the buffer from `found` on; return where that ends.

        A read gives the data of one record, as far as there is room.
        """
        assert self._tls is not None
        size, held, read = len(buffer), self._held, self._tls.read
        try:
            while held and found < size:
                count: int = read(size, buffer[found:])  # type: ignore[assignment]
                if not count:
                    self._end = ssl.SSLZeroReturnError()
                    break
                found += count
                held -= 1
            if found == size and self._tls.pending():
                held += 1  # the rest of one
        except ssl.SSLWantReadError:
            held = 0  # some were none of data
        except ssl.SSLError as error:
            self._end = error
        self._held = held
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

    @property
    def _has_more(self) -> bool:
        """Return whether there is something to read that epoll does not see."""
        return self._held > 0 or self._end is not None

    def start_reading(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever there are bytes to read, those that we hold included."""
        if self._closed:
            return
        self._on_readable = callback
        self._loop.add_reader(self._sock.fileno(), self._read)
        if self._has_more:
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
            if not self._has_more:
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
            self._owed = self._tls.write(
                data if len(data) <= PIECE_BYTES else memoryview(data)[:PIECE_BYTES]
            )
        gone = self._flush()
        sent = self._owed
        if self._unsent or self._outgoing.pending:
            sent = min(gone, sent - 1)
        self._owed -= sent
        return sent

    def _flush(self) -> int:
        """Send cipher text; return how many bytes the socket took. Raises BlockingIOError."""
        if not self._unsent:
            self._unsent = self._outgoing.read()
        gone = self._sock.send(self._unsent)
        whole = gone == len(self._unsent)
        self._unsent = b"" if whole else memoryview(self._unsent)[gone:]
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

    def reset_at_close(self) -> None:
        """Let `close` reset the connection: the peer reads an error and not an end."""
        _do_not_linger(self._sock)

    def close(self) -> None:
        """Tell the peer that nothing more comes (close_notify), and close the connection."""
        if self._closed:
            return
        self._on_readable = None
        # Whoever waits for the socket: its number may be another's soon.
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._closed = True
        if self._tls is not None:
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            with contextlib.suppress(OSError):
                while self._unsent or self._outgoing.pending:
                    self._flush()
        self._end = None  # its frames would keep the connection until the collector comes
        self._sock.close()


def _do_not_linger(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the peer may be gone already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
