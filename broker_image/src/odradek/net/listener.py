"""Accepts connections on one address and owns them until they are closed.

At the maximum of connections the listener stops accepting until one ends; peers wait in the
backlog. Above the maximum per address a connection is closed at once (see `connection_quotas`). A
sweep closes connections that were idle for too long (`connections.max.idle.ms`), or stalled in the
middle of a frame.
"""

import asyncio
import errno
import itertools
import logging
import socket
from typing import Final

from odradek.net.addresses import look_up
from odradek.net.connection import ClientInfo, Connection, Dispatch
from odradek.net.connection_quotas import ConnectionQuotas

logger = logging.getLogger(__name__)

BACKLOG: Final = 128
# Pause after running out of file descriptors or memory, to avoid a busy loop.
EXHAUSTED_PAUSE_SECONDS: Final = 0.1
CANCEL_PAUSE_SECONDS: Final = 0.05
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_MAX_SWEEP_SECONDS: Final = 10.0
_connection_ids = itertools.count(1)


class Listener:
    """Serves `dispatch` on `host`:`port`; port 0 takes a free one, an empty host all addresses.

    A `protected` listener accepts connections even at the maximum of the broker.
    """

    def __init__(
        self,
        host: str,
        port: int,
        quotas: ConnectionQuotas,
        dispatch: Dispatch,
        *,
        protected: bool = False,
    ) -> None:
        self._host = host
        self._port = port
        self._quotas = quotas
        self._limits = quotas.limits
        self._protected = protected
        self._dispatch = dispatch
        self._sock: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._closing = asyncio.Event()

    @property
    def port(self) -> int:
        """Return the bound port, once started."""
        return self._port

    @property
    def connection_count(self) -> int:
        """Return the number of open connections."""
        return len(self._connections)

    async def start(self) -> None:
        """Bind and start accepting. Raises OSError if the address cannot be bound."""
        self._sock = await self._bind()
        self._port = self._sock.getsockname()[1]
        self._serving = asyncio.create_task(self._serve(self._sock), name="listener")

    async def wait_closed(self) -> None:
        """Wait for `close`; raise the error that ended accepting before that."""
        assert self._serving is not None, "not started"
        await asyncio.shield(self._serving)

    async def close(self, grace_ms: int = 5000) -> None:
        """Stop accepting, answer requests in progress for up to `grace_ms`, then close."""
        if self._serving is None:
            return
        self._closing.set()
        await asyncio.wait({self._serving}, timeout=grace_ms / 1000)
        while not self._serving.done():
            # Repeatedly: a connection may have been accepted meanwhile.
            for task in list(self._connections.values()):
                if not task.cancelling():
                    task.cancel()
            await asyncio.wait({self._serving}, timeout=CANCEL_PAUSE_SECONDS)
        await self._serving

    async def _bind(self) -> socket.socket:
        everywhere = "0.0.0.0"  # noqa: S104  what an empty host in `listeners` means
        ways = await look_up(self._host or everywhere, self._port, socket.AI_PASSIVE)
        family, kind, protocol, address = ways[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._size_buffers(sock)
            sock.bind(address)
            sock.listen(BACKLOG)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        return sock

    def _size_buffers(self, sock: socket.socket) -> None:
        """Set buffer sizes before listening: accepted sockets inherit them for the handshake."""
        for option, size in (
            (socket.SO_SNDBUF, self._limits.socket_send_bytes),
            (socket.SO_RCVBUF, self._limits.socket_receive_bytes),
        ):
            if size > 0:
                sock.setsockopt(socket.SOL_SOCKET, option, size)

    async def _serve(self, sock: socket.socket) -> None:
        """Serve until `close`; return when the last connection has ended."""
        async with asyncio.TaskGroup() as group:
            with sock:
                accepting = group.create_task(self._accept_all(sock, group), name="accept")
                sweeping = group.create_task(self._sweep(), name="sweep")
                closing = group.create_task(self._closing.wait(), name="closing")
                await asyncio.wait({accepting, closing}, return_when=asyncio.FIRST_COMPLETED)
                for task in (accepting, closing, sweeping):
                    task.cancel()
                await asyncio.wait({accepting})
            for connection in list(self._connections):
                connection.finish()

    async def _accept_all(self, sock: socket.socket, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(sock)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                logger.error("failed to accept a connection: %s; retrying", error)
                await asyncio.sleep(EXHAUSTED_PAUSE_SECONDS)
                continue
            if not self._protected:
                # This connection waits here, later ones in the backlog.
                try:
                    await self._quotas.wait_for_place()
                except BaseException:
                    accepted.close()
                    raise
            self._admit(accepted, ClientInfo(address[0], address[1], next(_connection_ids)), group)

    def _admit(self, sock: socket.socket, peer: ClientInfo, group: asyncio.TaskGroup) -> None:
        if not self._quotas.enter(peer.host):
            logger.warning("rejected %s: too many connections from this address", peer.host)
            sock.close()
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = Connection(
            sock, peer, self._limits.max_frame_bytes, self._dispatch, self._quotas.memory
        )
        task = group.create_task(connection.run(), name=f"connection {peer.connection_id}")
        self._connections[connection] = task
        task.add_done_callback(lambda _task: self._forget(connection, sock))

    def _forget(self, connection: Connection, sock: socket.socket) -> None:
        # A task that is cancelled before its first step does not close the socket itself.
        sock.close()
        del self._connections[connection]
        self._quotas.leave(connection.peer.host)

    async def _sweep(self) -> None:
        """Close idle and stalled connections and shrink grown buffers, a few times per timeout."""
        max_idle = self._limits.max_idle_ms / 1000
        frame_timeout = self._limits.frame_timeout_ms / 1000
        pause = min(max_idle / 4, frame_timeout / 4, _MAX_SWEEP_SECONDS)
        while True:
            await asyncio.sleep(pause)
            for connection, task in list(self._connections.items()):
                idle = connection.idle_seconds()
                if idle >= max_idle:
                    logger.info("closing %s: idle for %.0f s", connection.peer.host, idle)
                    task.cancel()
                elif idle >= frame_timeout and connection.has_partial_frame:
                    logger.info(
                        "closing %s: frame incomplete for %.0f s", connection.peer.host, idle
                    )
                    task.cancel()
                elif idle >= pause:
                    connection.release_spare_memory()
