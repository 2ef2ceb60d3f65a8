"""A client of another broker: sends typed requests and returns typed responses, pipelined.

The peer answers in the order of the requests, so a queue of waiting callers is enough; correlation
ids are only checked. A connection that times out or violates the protocol is closed, because later
answers on it could not be matched, and all its waiting callers fail. The next call connects again;
the caller decides how long to pause between attempts.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import socket
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from odradek import slices, tls_errors
from odradek.net import transport as transports
from odradek.net.addresses import look_up
from odradek.net.frame import KEPT_BYTES, FrameReader, ProtocolViolation
from odradek.net.transport import Transport
from odradek.protocol import api, codec, headers
from odradek.protocol.primitives import LENGTH32, MalformedError
from odradek.protocol.regions import Part, total_length
from odradek.protocol.schema import Request

logger = logging.getLogger(__name__)

ResponseT = TypeVar("ResponseT")

DEFAULT_MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
DEFAULT_MAX_IN_FLIGHT: Final = 5
_CORRELATION_IDS: Final = 0x7FFFFFFF
# A connection is replaced after this part of its session, as Kafka's clients authenticate again.
_RENEWED_AFTER: Final = 0.85


class Ask(Protocol):
    """Sends a request on a new connection and returns its response. Raises OSError."""

    async def __call__(self, request: Request[ResponseT], version: int) -> ResponseT:
        """Send a request in a version and return its response."""


class NoCredentialsError(ConnectionError):
    """There is nothing to show to the peer; `is_mistake` if another try would end the same way."""

    def __init__(self, message: str, *, is_mistake: bool) -> None:
        super().__init__(message)
        self.is_mistake = is_mistake


class PeerSecurity(Protocol):
    """How to get connections that a broker's listener takes."""

    async def secure(self, sock: socket.socket, host: str) -> Transport:
        """Return the transport over a connected socket, and close the socket upon an error.

        Raises OSError.
        """

    async def authenticate(self, ask: Ask) -> float | None:
        """Prove who we are; return the seconds that it holds, None: always. Raises OSError."""


class PeerClient:
    """A connection to `host`:`port`, opened when first needed.

    With `reuse_frames` calls are made one after the other, and what is a view of a response's frame
    is valid until the next one: memory for large responses is taken once.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        *,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
        security: PeerSecurity | None = None,
        reuse_frames: bool = False,
    ) -> None:
        self.host = host
        self.port = port
        self._address = f"{host}:{port}"
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._reuse_frames = reuse_frames
        self._slots = asyncio.Semaphore(1 if reuse_frames else max_in_flight)
        self._connecting = asyncio.Lock()
        self._correlation_ids = itertools.count()
        self._security = security
        self._channel: _PeerConnection | None = None
        # The connections before, whose sessions end, until they have answered.
        self._retired: set[_PeerConnection] = set()

    async def call(self, request: Request[ResponseT], version: int, timeout_ms: int) -> ResponseT:
        """Send `request` and return its response; records in it are views of the response's frame.

        Not for requests without an answer (Produce with acks 0). Raises TimeoutError if there is no
        response after `timeout_ms`, connecting included, and ConnectionError if the peer cannot be
        reached, disconnects or violates the protocol.
        """
        entry = api.of_request(type(request))
        body = await slices.run(codec.encode_parts_in_slices(request, version))
        exchange = self._framed(entry, version, body)
        channel: _PeerConnection | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._slots:
                channel = await self._connected()
                frame = await channel.exchange(exchange)
        except TimeoutError as error:
            if channel is not None:
                channel.fail(f"an answer took more than {timeout_ms} ms")
            raise TimeoutError(f"{self._address}: no answer in {timeout_ms} ms") from error
        except OSError as error:
            raise ConnectionError(f"{self._address}: {error}") from error
        try:
            return _decoded(entry, request, version, frame)
        except MalformedError as error:
            channel.fail(str(error))
            raise ConnectionError(f"{self._address}: {error}") from error

    async def close(self) -> None:
        """Close the connection; waiting callers get ConnectionError."""
        for retired in list(self._retired):
            retired.fail("closed")
        if self._channel is not None:
            self._channel.fail("closed")
            self._channel = None

    def _framed(self, entry: api.Api, version: int, body: list[Part]) -> _Exchange:
        correlation_id = next(self._correlation_ids) & _CORRELATION_IDS
        header = headers.encode_request_header(
            headers.RequestHeader(entry.key, version, correlation_id, self._client_id)
        )
        size = LENGTH32.pack(len(header) + total_length(body))
        return _Exchange(correlation_id, [size + header, *body])

    async def _connected(self) -> _PeerConnection:
        async with self._connecting:
            channel = self._channel
            if channel is not None and channel.session_ends_soon():
                channel.retire(self._retired)
                channel = None
            if channel is None or channel.failure is not None:
                channel = self._channel = await self._connect()
            return channel

    async def _connect(self) -> _PeerConnection:
        sock = await _connect(self.host, self.port)
        if self._security is None:
            return self._connection(transports.plain(sock))
        channel = self._connection(await self._security.secure(sock, self.host))

        async def ask(request: Request[ResponseT], version: int) -> ResponseT:
            entry = api.of_request(type(request))
            body = codec.encode_parts(request, version)
            frame = await channel.exchange(self._framed(entry, version, body))
            return _decoded(entry, request, version, frame)

        try:
            channel.limit_session(await self._security.authenticate(ask))
        except MalformedError as error:
            channel.fail(str(error))
            raise ConnectionError(f"authentication: {error}") from error
        except BaseException as error:
            channel.fail(f"authentication failed: {error!r}")
            raise
        return channel

    def _connection(self, transport: Transport) -> _PeerConnection:
        return _PeerConnection(
            transport, FrameReader(self._max_frame_bytes, reuse=self._reuse_frames)
        )


def _decoded(
    entry: api.Api, _request: Request[ResponseT], version: int, frame: memoryview
) -> ResponseT:
    _, position = headers.decode_response_header(entry, version, frame)
    response: ResponseT
    response, _ = codec.decode(entry.response, version, frame, position)
    return response


@dataclass(frozen=True, slots=True)
class _Exchange:
    correlation_id: int
    parts: list[Part]


class _PeerConnection:
    """One connected socket and the callers that wait for its answers, oldest first."""

    def __init__(self, transport: Transport, reader: FrameReader) -> None:
        self.failure: str | None = None
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._one_sender = asyncio.Lock()
        self._sending = False
        # None as an answer means that the connection failed.
        self._waiting: deque[tuple[int, asyncio.Future[memoryview | None]]] = deque()
        self._renew_at = math.inf
        self._retired: set[_PeerConnection] | None = None
        transport.start_reading(self._on_readable)

    def limit_session(self, seconds: float | None) -> None:
        """Note how long the peer takes requests on this connection."""
        if seconds is not None:
            self._renew_at = self._loop.time() + seconds * _RENEWED_AFTER

    def session_ends_soon(self) -> bool:
        """Return whether requests to come need a new connection."""
        return self._loop.time() >= self._renew_at

    def retire(self, retired: set[_PeerConnection]) -> None:
        """Close once all answers are there; stay in `retired` until then."""
        self._retired = retired
        retired.add(self)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._retired is not None and not self._waiting and not self._one_sender.locked():
            self.fail("its session ended")

    async def exchange(self, exchange: _Exchange) -> memoryview:
        """Send a request and return the frame that answers it."""
        answer: asyncio.Future[memoryview | None] = self._loop.create_future()
        async with self._one_sender:
            if self.failure is not None:
                raise ConnectionError(self.failure)
            self._waiting.append((exchange.correlation_id, answer))
            await self._send(exchange.parts)
        # A caller that is cancelled here leaves its place in the queue; its answer is dropped.
        frame = await answer
        if frame is None:
            raise ConnectionError(self.failure)
        return frame

    def fail(self, reason: str) -> None:
        """Close the socket and fail all waiting callers; only the first reason counts."""
        if self.failure is not None:
            return
        self.failure = reason
        if self._retired is not None:
            self._retired.discard(self)
        self._transport.stop_reading()
        if self._sending:
            # The sender watches this socket: wake it by an error, and let it close.
            self._transport.interrupt()
        else:
            self._transport.close()
        while self._waiting:
            _, answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result(None)

    async def _send(self, parts: list[Part]) -> None:
        self._sending = True
        try:
            await self._transport.send_all(parts, _ignore_progress)
        except BaseException as error:
            # The peer has got half a request: it could not parse anything after it.
            self.fail(f"sending failed: {error!r}")
            raise
        finally:
            self._sending = False
            if self.failure is not None:
                self._transport.close()

    def _on_readable(self) -> None:
        try:
            self._read()
        except Exception as error:
            # Else the callers would wait, and the event loop would call this again and again.
            logger.exception("closing the connection to a broker")
            self.fail(f"receiving failed: {error!r}")

    def _read(self) -> None:
        try:
            count = self._transport.recv_into(self._reader.room())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.fail(f"receiving failed: {tls_errors.describe(error)}")
            return
        except MemoryError:
            self.fail("no memory for the answer")
            return
        if count == 0:
            self.fail("the peer closed the connection")
            return
        self._reader.received(count)
        try:
            while (frame := self._reader.next_frame()) is not None:
                self._deliver(frame)
        except ProtocolViolation as violation:
            self.fail(str(violation))

    def _deliver(self, frame: memoryview) -> None:
        if not self._waiting:
            raise ProtocolViolation("unexpected answer")
        expected, answer = self._waiting.popleft()
        if len(frame) < LENGTH32.size or LENGTH32.unpack_from(frame)[0] != expected:
            self._waiting.appendleft((expected, answer))
            raise ProtocolViolation(f"answer is not to request {expected}")
        if not answer.done():
            answer.set_result(frame)
        if self._reader.capacity > KEPT_BYTES > len(frame):
            self._reader.release_spare()
        self._end_if_idle()


def _ignore_progress() -> None:
    """Do nothing: calls have timeouts of their own."""


async def _connect(host: str, port: int) -> socket.socket:
    """Connect to the first address of `host` that accepts; raises OSError of the last one."""
    loop = asyncio.get_running_loop()
    failure: OSError = ConnectionError("no address")
    for family, kind, protocol, address in await look_up(host, port):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure
