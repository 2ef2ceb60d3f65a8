"""Accepts connections on one address and owns them until they are closed.

At the maximum of connections the listener stops accepting until one ends; peers wait in the
backlog, also while connections come faster than `max.connection.creation.rate`. Those above the
rate of their address are held for a while, unread, and closed (KIP-612). If brokers connect to the
same listener, they must not wait behind clients: so it goes on accepting, lets brokers in,
and keeps others waiting, unread: as many as there are places, and a few more. Above the maximum per
address a connection is closed at once (see `connection_quotas`). A sweep closes connections that
were idle for too long (`connections.max.idle.ms`), or whose requests or answers hardly move (see
`pace`).

Errors of accept are not the listener's end. A shortage of descriptors passes, and Linux reports
errors of the network that belong to the accepted connection.
"""

import asyncio
import contextlib
import errno
import itertools
import logging
import math
import socket
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from odradek.net import transport as transports
from odradek.net.addresses import look_up, plain
from odradek.net.client_info import ClientInfo, Dispatch
from odradek.net.connection import Connection, Guard
from odradek.net.connection_quotas import UNLIMITED_RATE, ConnectionQuotas, CreationRate
from odradek.net.transport import Transport
from odradek.quarantine import Quarantines, Work

# As many as the default rate lets in within a second; Linux takes the lower net.core.somaxconn.
BACKLOG: Final = 1024
# Pause after an error of accept, for instance a lack of descriptors, to avoid a busy loop.
ERROR_PAUSE_SECONDS: Final = 0.1
CANCEL_PAUSE_SECONDS: Final = 0.05
# Connections accepted before others get their turn.
ACCEPTED_A_TURN: Final = 8
# Accepted connections that wait, beyond the free places, on a listener that brokers use too.
WAITING_PLACES: Final = 32
# Connections above the rate of their address that are held; more are closed at once.
HELD_PLACES: Final = 256
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# Errors of the listening socket itself, after which it accepts nothing more.
_FATAL: Final = {errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EFAULT}
_MAX_SWEEP_SECONDS: Final = 10.0
# Connections that a sweep looks at before others get their turn.
_SWEPT_A_TURN: Final = 500
_connection_ids = itertools.count(1)


class Listener:
    """Serves `dispatch` on `host`:`port`; port 0 takes a free one, an empty host all addresses.

    A `protected` listener is for brokers only. On another one that brokers use, `is_broker` tells
    their addresses. At the maximum of connections brokers are let in all the same. `secure` makes
    the transport of an accepted socket; `guard` learns who the peer is (see `connection.Guard`).
    `creation_rate` is of this listener alone, beside that of all. `name` stands in log lines.
    """

    def __init__(
        self,
        host: str,
        port: int,
        quotas: ConnectionQuotas,
        dispatch: Dispatch,
        *,
        protected: bool = False,
        is_broker: Callable[[str], bool] | None = None,
        quarantines: Quarantines | None = None,
        secure: Callable[[socket.socket], Transport] = transports.plain,
        guard: Guard | None = None,
        creation_rate: int = UNLIMITED_RATE,
        name: str = "",
    ) -> None:
        self._host = host
        self._port = port
        self._name = name
        self._quotas = quotas
        self._limits = quotas.limits
        self._protected = protected
        self._is_broker = is_broker
        self._quarantines = quarantines or Quarantines()
        # With how long each has to wait for the rate, None if that is not known yet.
        self._waiting: deque[tuple[socket.socket, ClientInfo, float | None]] = deque()
        self._waiting_of: Counter[str] = Counter()
        self._someone_waits = asyncio.Event()
        self._dispatch = dispatch
        self._secure = secure
        self._guard = guard
        self._creation_rate = creation_rate
        self._rate: CreationRate | None = None
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}
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
                seating = group.create_task(self._seat_all(group), name="seat")
                sweeping = group.create_task(self._sweep(), name="sweep")
                closing = group.create_task(self._closing.wait(), name="closing")
                await asyncio.wait({accepting, closing}, return_when=asyncio.FIRST_COMPLETED)
                for task in (accepting, seating, closing, sweeping):
                    task.cancel()
                await asyncio.wait({accepting, seating})
                for held in list(self._held):
                    self._let_go(held)
            for waiting, *_ in self._waiting:
                waiting.close()
            for connection in list(self._connections):
                connection.finish()

    async def _accept_all(self, sock: socket.socket, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        for turn in itertools.count(1):
            if turn % ACCEPTED_A_TURN == 0:
                # While connections come faster than this, `sock_accept` never waits.
                await asyncio.sleep(0)
            try:
                accepted, address = await loop.sock_accept(sock)
            except ConnectionAbortedError:
                continue
            except (OSError, MemoryError) as error:
                number = getattr(error, "errno", None)
                if number in _FATAL:
                    raise
                if number in _EXHAUSTED:
                    self._quotas.delayed["descriptors"] += 1
                self._quotas.log.log(
                    logging.ERROR, "failed to accept a connection: %s; retrying", error
                )
                await asyncio.sleep(ERROR_PAUSE_SECONDS)
                continue
            peer = ClientInfo(
                plain(address[0]), address[1], next(_connection_ids), listener=self._name
            )
            try:
                await self._let_in(accepted, peer, group)
            except Exception as error:  # as for want of memory
                accepted.close()
                self._quarantines.note(Work.CONNECTION, peer.host, error, "closing it")
            except BaseException:
                accepted.close()
                raise

    async def _let_in(
        self, sock: socket.socket, peer: ClientInfo, group: asyncio.TaskGroup
    ) -> None:
        """Admit a connection, or make it wait for a place."""
        quotas = self._quotas
        is_broker = self._protected or (self._is_broker is not None and self._is_broker(peer.host))
        if is_broker and quotas.make_place():
            self._admit(sock, peer, group, ordinary=False)
            return
        if not is_broker and (held_s := quotas.addresses.refusal_s(peer.host)):
            self._hold(sock, peer, held_s)
            return
        if self._is_broker is not None:
            self._let_in_or_keep(sock, peer, group, is_broker=is_broker)
            return
        if quotas.allows(peer.host) and not is_broker and (delay_s := self._creation_delay_s()):
            # This connection waits here, later ones in the backlog.
            await asyncio.sleep(delay_s)
        if not quotas.allows(peer.host):
            self._refuse(sock, peer)
            return
        if self._is_full():
            await quotas.wait_for_place()
        self._admit(sock, peer, group)

    def _let_in_or_keep(
        self, sock: socket.socket, peer: ClientInfo, group: asyncio.TaskGroup, *, is_broker: bool
    ) -> None:
        """Admit a connection, or keep it waiting while others are accepted."""
        # First: those that are refused wait for nothing, so they must not use up the rate.
        if not self._quotas.allows(peer.host, self._waiting_of[peer.host]):
            self._refuse(sock, peer)
            return
        delay_s = 0.0 if is_broker else None if self._waiting else self._creation_delay_s()
        if self._is_full() or self._waiting or delay_s:
            self._keep_waiting(sock, peer, delay_s)
        else:
            self._admit(sock, peer, group)

    def _is_full(self) -> bool:
        """Return whether a connection has to wait for a place, and count it."""
        if self._quotas.full:
            self._quotas.delayed["max-connections"] += 1
            self._quotas.log.log(
                logging.WARNING, "delaying connections: max.connections is reached"
            )
        return self._quotas.full

    def _creation_delay_s(self) -> float:
        """Count a new connection; return the seconds that it has to wait."""
        delay_s = self._quotas.creation_delay_s()
        if self._creation_rate != UNLIMITED_RATE:
            if self._rate is None:
                clock = asyncio.get_running_loop().time
                self._rate = CreationRate(self._creation_rate, clock)
            delay_s = max(delay_s, self._rate.delay_s())
        if delay_s:
            self._quotas.delayed["rate"] += 1
            self._quotas.log.log(
                logging.INFO, "delaying connections: max.connection.creation.rate is reached"
            )
        return delay_s

    def _keep_waiting(self, sock: socket.socket, peer: ClientInfo, delay_s: float | None) -> None:
        if len(self._waiting) >= WAITING_PLACES + self._quotas.free_places:
            self._quotas.refused["waiting"] += 1
            self._quotas.log.log(
                logging.WARNING, "rejected %s: too many connections wait for a place", peer.host
            )
            sock.close()
            return
        self._waiting.append((sock, peer, delay_s))
        self._waiting_of[peer.host] += 1
        self._someone_waits.set()

    async def _seat_all(self, group: asyncio.TaskGroup) -> None:
        """Admit the connections that wait, at the rate, one per place that becomes free."""
        while True:
            await self._someone_waits.wait()
            while self._waiting:
                sock, peer, delay_s = self._waiting[0]
                await asyncio.sleep(self._creation_delay_s() if delay_s is None else delay_s)
                await self._quotas.wait_for_place()
                self._waiting.popleft()
                self._waiting_of[peer.host] -= 1
                if not self._waiting_of[peer.host]:
                    del self._waiting_of[peer.host]
                try:
                    self._admit(sock, peer, group)
                except Exception as error:
                    sock.close()
                    self._quarantines.note(Work.CONNECTION, peer.host, error, "closing it")
            self._someone_waits.clear()

    def _admit(
        self,
        sock: socket.socket,
        peer: ClientInfo,
        group: asyncio.TaskGroup,
        *,
        ordinary: bool = True,
    ) -> None:
        quotas = self._quotas
        if not quotas.enter(peer.host):
            self._refuse(sock, peer)
            return
        with contextlib.suppress(OSError):  # the peer may be gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport = None
        try:
            transport = self._secure(sock)
            connection = Connection(transport, peer, self._dispatch, quotas, self._guard)
        except BaseException:
            quotas.leave(peer.host)
            if transport is not None:
                transport.close()
            raise
        task = self._connections[connection] = connection.start(group)
        if ordinary:
            quotas.add_ordinary(connection)
        task.add_done_callback(lambda _task: self._forget(connection, transport))

    def _hold(self, sock: socket.socket, peer: ClientInfo, held_s: float) -> None:
        """Close a connection above the rate of its address later: its peer would try at once."""
        self._quotas.refused["address-rate"] += 1
        self._quotas.log.log(
            logging.INFO, "rejected %s: connection_creation_rate of this address", peer.host
        )
        if len(self._held) >= HELD_PLACES:
            sock.close()
            return
        loop = asyncio.get_running_loop()
        self._held[sock] = loop.call_later(held_s, self._let_go, sock)

    def _let_go(self, sock: socket.socket) -> None:
        self._held.pop(sock).cancel()
        sock.close()

    def _refuse(self, sock: socket.socket, peer: ClientInfo) -> None:
        self._quotas.refused["per-address"] += 1
        self._quotas.log.log(
            logging.WARNING, "rejected %s: too many connections from this address", peer.host
        )
        sock.close()

    def _forget(self, connection: Connection, transport: Transport) -> None:
        # A task that is cancelled before its first step does not close the socket itself.
        transport.close()
        del self._connections[connection]
        self._quotas.discard_ordinary(connection)
        self._quotas.leave(connection.peer.host)

    async def _sweep(self) -> None:
        """Close idle and slow connections and shrink grown buffers, a few times per timeout."""
        max_idle = self._limits.max_idle_ms / 1000
        frame_timeout = self._limits.frame_timeout_ms / 1000
        pause = min(max_idle / 4, frame_timeout / 4, _MAX_SWEEP_SECONDS)
        looks = math.ceil(frame_timeout / pause)
        while True:
            await asyncio.sleep(pause)
            for number, connection in enumerate(list(self._connections), 1):
                if number % _SWEPT_A_TURN == 0:
                    await asyncio.sleep(0)
                try:
                    idle = connection.idle_seconds()
                    if idle >= max_idle:
                        connection.abort("idle")
                    elif reason := connection.too_slow(looks, frame_timeout):
                        connection.abort(reason)
                    elif idle >= pause:
                        connection.release_spare_memory()
                except Exception as error:
                    self._quarantines.note(
                        Work.CONNECTION, connection.peer.host, error, "closing it"
                    )
                    task = self._connections.get(connection)
                    if task is not None:
                        task.cancel()
