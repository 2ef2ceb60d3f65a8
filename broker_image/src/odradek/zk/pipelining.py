"""kazoo's connection and results, made for many requests at once.

kazoo wakes its thread for each request, sends one per turn, waits for the socket four times per
answer, and hands each answer to a second thread. A controller reads thousands of znodes before it
does anything else, so here the thread is woken once for all queued requests, they go out in one
write, all answers that came are handled in one turn, and who waits is told in the thread of the
connection. A server that is silent is left, also while requests keep coming: kazoo sends no pings
then, which is how it notices.
"""

from __future__ import annotations

import abc
import logging
import socket
import ssl
import struct
import threading
from typing import Any, Final

from kazoo.exceptions import OperationTimeoutError
from kazoo.handlers.threading import AsyncResult
from kazoo.protocol.connection import CLOSE_RESPONSE, ConnectionDropped, ConnectionHandler
from kazoo.protocol.serialization import Auth
from kazoo.protocol.states import WatchedEvent

from odradek.zk.failures import name_znode

logger = logging.getLogger(__name__)

# Of one read: a record of TLS has as many. Some eighty states of partitions fit in.
RECEIVED_BYTES: Final = 16 * 1024
REQUESTS_AT_ONCE: Final = 100
# Requests beyond it wait for the next turn, so that answers are not kept waiting behind a write.
SENT_BYTES: Final = 64 * 1024
_NOTHING_CAME: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_WAKE: Final = b"\0"
_LENGTH_BYTES: Final = 4
_LAST_XID: Final = 2**31 - 1
_HEAD: Final = struct.Struct(">iii")
_XID_AND_TYPE_BYTES: Final = 8


class Waker:
    """The end of a socket pair that wakes the thread of the connection, once until it is awake."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._sent = False

    def send(self, message: bytes) -> None:
        """Wake the thread; the caller has queued its request."""
        with self._lock:
            if not self._sent:
                self._sock.send(message)
                self._sent = True

    def awake(self) -> None:
        """Note that the message was received: what is queued after this wakes the thread again."""
        with self._lock:
            self._sent = False

    def close(self) -> None:
        """Close the socket: `send` raises OSError from now on, also if it has woken the thread."""
        with self._lock:
            self._sent = False
            self._sock.close()


class PipelinedConnection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """The connection of a client. Only its own thread calls its methods."""

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self._received = bytearray()
        self._xid: int
        # Since when answers are due and nothing came, on the client's clock.
        self._silent_since = 0.0

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
        """Handle all answers that came, or the one that begins to come.

        Not every record of TLS holds a part of an answer. Waiting for one would keep back requests
        and pings.
        """
        with self._socket_error_handling():
            try:
                self._received += self._socket.recv(RECEIVED_BYTES)
            except _NOTHING_CAME:
                return None
        while True:
            response = super()._read_socket(read_timeout)
            if response == CLOSE_RESPONSE or not self._holds_an_answer():
                self._silent_since = self.client._clock()
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
        queue, pending = self.client._queue, self.client._pending
        self._require_answers(read_timeout)
        if not queue or _is_special(queue[0][0]):
            super()._send_request(read_timeout, connect_timeout)  # it receives the wake-up
            self._write_sock.awake()
            if queue:
                self._write_sock.send(_WAKE)
            return
        self._read_sock.recv(1)
        self._write_sock.awake()
        sent = bytearray()
        count = 0
        while queue and count < REQUESTS_AT_ONCE and len(sent) < SENT_BYTES:
            request, _ = queue[0]
            if _is_special(request):
                break
            body = request.serialize()
            self._xid = self._xid % _LAST_XID + 1
            sent += _HEAD.pack(_XID_AND_TYPE_BYTES + len(body), self._xid, request.type) + body
            pending.append((*queue.popleft(), self._xid))
            count += 1
        if queue:
            self._write_sock.send(_WAKE)
        self._write(sent, connect_timeout)

    def _require_answers(self, read_timeout: float) -> None:
        """Leave a server that is silent though answers are due. Raises ConnectionDropped.

        kazoo notices that by its pings, and sends none while there are requests.
        """
        now = self.client._clock()
        if not self.client._pending:
            self._silent_since = now
        elif now - self._silent_since > read_timeout:
            raise ConnectionDropped("no answer came in time")


def _is_special(request: Any) -> bool:
    """Return whether kazoo has its own way with it: no request at all, or a login."""
    return not hasattr(request, "type") or bool(request.type == Auth.type)


class PromptWatch(abc.ABC):
    """A watch that waits for nothing: the thread of the connection calls it.

    So it fires before the answers that came after it. kazoo calls the others, which may ask and
    wait, in one more thread, which does not keep to that order.
    """

    __slots__ = ()

    @abc.abstractmethod
    def __call__(self, event: WatchedEvent) -> None:
        """Take what changed."""


class PipelinedResult(AsyncResult):  # type: ignore[misc]  # kazoo has no types
    """The answer to a request. What is linked to it runs in the thread of the connection.

    So it may not wait for anything. `path` is the znode that an error is about, if it is known.
    `answer_s` is how long `get` waits unless it is told, None: for ever.
    """

    path = ""
    answer_s: float | None = None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the answer. Raises what the server answered, and OperationTimeoutError."""
        is_limited = block and timeout is None and self.answer_s is not None
        if is_limited and not self.wait(self.answer_s):
            raise OperationTimeoutError
        return super().get(block, timeout)

    def set_exception(self, exception: BaseException) -> None:
        """Take an error, which tells its znode."""
        name_znode(exception, self.path)
        super().set_exception(exception)

    def _do_callbacks(self) -> None:
        for callback in self._callbacks:
            try:
                callback(self)
            except Exception:
                logger.exception("failed to pass on an answer of ZooKeeper")
