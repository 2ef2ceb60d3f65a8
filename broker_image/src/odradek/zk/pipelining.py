"""kazoo's connection and results, made for many requests at once.

kazoo sends one request per turn of its thread, waits for the socket four times per answer, and
hands each answer to a second thread. A controller reads thousands of znodes before it does anything
else, so here all queued requests go out in one write, all answers that came are handled in one
turn, and who waits is told in the thread of the connection.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import struct
from typing import Any, Final

from kazoo.handlers.threading import AsyncResult
from kazoo.protocol.connection import CLOSE_RESPONSE, ConnectionHandler
from kazoo.protocol.serialization import Auth

logger = logging.getLogger(__name__)

# Of one read: a record of TLS has as many. Some eighty states of partitions fit in.
RECEIVED_BYTES: Final = 16 * 1024
REQUESTS_AT_ONCE: Final = 100
# Requests beyond it wait for the next turn, so that answers are not kept waiting behind a write.
SENT_BYTES: Final = 64 * 1024
_NOTHING_CAME: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_LENGTH_BYTES: Final = 4
_LAST_XID: Final = 2**31 - 1
_HEAD: Final = struct.Struct(">iii")
_XID_AND_TYPE_BYTES: Final = 8


class PipelinedConnection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """The connection of a client. Only its own thread calls its methods."""

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self._received = bytearray()
        self._xid: int

    def _connect(self, *where: Any) -> Any:
        self._received.clear()
        return super()._connect(*where)

    def _read(self, length: int, timeout: float) -> bytes:
        """Return so many bytes: first what was received before, then from the socket."""
        taken = bytes(self._received[:length])
        del self._received[:length]
        if len(taken) == length:
            return taken
        return taken + bytes(super()._read(length - len(taken), timeout))

    def _read_socket(self, read_timeout: float) -> Any:
        """Handle all answers that came, or the one that begins to come."""
        with self._socket_error_handling(), contextlib.suppress(*_NOTHING_CAME):
            self._received += self._socket.recv(RECEIVED_BYTES)
        while True:
            response = super()._read_socket(read_timeout)
            if response == CLOSE_RESPONSE or not self._holds_an_answer():
                return response

    def _holds_an_answer(self) -> bool:
        size = _LENGTH_BYTES
        if len(self._received) < size:
            return False
        length = int.from_bytes(self._received[:size], signed=True)
        return len(self._received) >= size + length

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """Send the requests that are queued, in one write.

        They count as sent before they are: what was written of them by a connection that fails
        meanwhile may have been done.
        """
        client = self.client
        sent = bytearray()
        count = 0
        while client._queue and count < REQUESTS_AT_ONCE and len(sent) < SENT_BYTES:
            request, _ = client._queue[0]
            if not hasattr(request, "type") or request.type == Auth.type:
                break  # kazoo has its own ways with these
            body = request.serialize()
            self._xid = self._xid % _LAST_XID + 1
            sent += _HEAD.pack(_XID_AND_TYPE_BYTES + len(body), self._xid, request.type) + body
            client._pending.append((*client._queue.popleft(), self._xid))
            count += 1
        if not count:
            super()._send_request(read_timeout, connect_timeout)
            return
        # Each came with a byte that wakes this thread.
        self._read_sock.recv(count)
        self._write(sent, connect_timeout)


class PipelinedResult(AsyncResult):  # type: ignore[misc]  # kazoo has no types
    """The answer to a request. What is linked to it runs in the thread of the connection.

    So it may not wait for anything.
    """

    def _do_callbacks(self) -> None:
        for callback in self._callbacks:
            try:
                callback(self)
            except Exception:
                logger.exception("failed to pass on an answer of ZooKeeper")
