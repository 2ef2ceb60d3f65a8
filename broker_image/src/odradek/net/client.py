"""A client of another broker: sends typed requests and returns typed responses, pipelined.

The peer answers in the order of the requests, so a queue of waiting callers is enough; correlation
ids are only checked. A connection that times out or violates the protocol is closed, because later
answers on it could not be matched, and all its waiting callers fail. The next call connects again;
the caller decides how long to pause between attempts.
"""

import asyncio
import contextlib
import itertools
import logging
import socket
from collections import deque
from dataclasses import dataclass
from typing import Final, TypeVar

from odradek import slices
from odradek.net.addresses import look_up
from odradek.net.frame import FrameReader, ProtocolViolation
from odradek.net.sending import send_all
from odradek.protocol import api, codec, headers
from odradek.protocol.primitives import LENGTH32, MalformedError
from odradek.protocol.regions import Part, total_length
from odradek.protocol.schema import Request

logger = logging.getLogger(__name__)

ResponseT = TypeVar("ResponseT")

DEFAULT_MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
DEFAULT_MAX_IN_FLIGHT: Final = 5
_CORRELATION_IDS: Final = 0x7FFFFFFF


class PeerClient:
    """A connection to `host`:`port`, opened when first needed."""

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        *,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    ) -> None:
        self.host = host
        self.port = port
        self._address = f"{host}:{port}"
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._slots = asyncio.Semaphore(max_in_flight)
        self._connecting = asyncio.Lock()
        self._correlation_ids = itertools.count()
        self._channel: _PeerConnection | None = None

    async def call(self, request: Request[ResponseT], version: int, timeout_ms: int) -> ResponseT:
        """Send `request` and return its response; records in it are views of the response frame.

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
        response: ResponseT
        try:
            _, position = headers.decode_response_header(entry, version, frame)
            response, _ = codec.decode(entry.response, version, frame, position)
        except MalformedError as error:
            channel.fail(str(error))
            raise ConnectionError(f"{self._address}: {error}") from error
        return response

    async def close(self) -> None:
        """Close the connection; waiting callers get ConnectionError."""
        if self._channel is not None:
            self._channel.fail("closed")
            self._channel = None

    def _framed(self, entry: api.Api, version: int, body: list[Part]) -> "_Exchange":
        correlation_id = next(self._correlation_ids) & _CORRELATION_IDS
        header = headers.encode_request_header(
            headers.RequestHeader(entry.key, version, correlation_id, self._client_id)
        )
        size = LENGTH32.pack(len(header) + total_length(body))
        return _Exchange(correlation_id, [size + header, *body])

    async def _connected(self) -> "_PeerConnection":
        async with self._connecting:
            if self._channel is None or self._channel.failure is not None:
                sock = await _connect(self.host, self.port)
                self._channel = _PeerConnection(sock, self._max_frame_bytes)
            return self._channel


@dataclass(frozen=True, slots=True)
class _Exchange:
    correlation_id: int
    parts: list[Part]


class _PeerConnection:
    """One connected socket and the callers that wait for its answers, oldest first."""

    def __init__(self, sock: socket.socket, max_frame_bytes: int) -> None:
        self.failure: str | None = None
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        # Frames are not reused: a caller may keep the records that it fetched.
        self._reader = FrameReader(max_frame_bytes, reuse=False)
        self._one_sender = asyncio.Lock()
        self._sending = False
        # None as an answer means that the connection failed.
        self._waiting: deque[tuple[int, asyncio.Future[memoryview | None]]] = deque()
        self._loop.add_reader(sock, self._on_readable)

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
        self._loop.remove_reader(self._sock)
        if self._sending:
            # The sender watches this socket: wake it by an error, and let it close.
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        else:
            self._sock.close()
        while self._waiting:
            _, answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result(None)

    async def _send(self, parts: list[Part]) -> None:
        self._sending = True
        try:
            await send_all(self._sock, parts, _ignore_progress)
        except BaseException as error:
            # The peer has got half a request: it could not parse anything after it.
            self.fail(f"sending failed: {error!r}")
            raise
        finally:
            self._sending = False
            if self.failure is not None:
                self._sock.close()

    def _on_readable(self) -> None:
        try:
            self._read()
        except Exception as error:
            # Else the callers would wait, and the event loop would call this again and again.
            logger.exception("closing the connection to a broker")
            self.fail(f"receiving failed: {error!r}")

    def _read(self) -> None:
        try:
            count = self._sock.recv_into(self._reader.room())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.fail(f"receiving failed: {error}")
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
