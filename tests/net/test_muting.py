"""Connections that are not read for a while because their clients are over a quota (KIP-219)."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Sequence

import pytest

from odradek.net import connection, transport
from odradek.net.client_info import ClientInfo
from odradek.net.connection import Connection
from odradek.net.connection_quotas import ConnectionLimits, ConnectionQuotas
from odradek.net.frame import READ_AHEAD_BYTES
from odradek.protocol.regions import Part

FOREVER_S = 3600.0
LIMITS = ConnectionLimits(
    max_frame_bytes=1_000_000, max_connections=100, max_connections_per_ip=100, max_idle_ms=60_000
)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


class Muted:
    """A connection whose first request is answered with b"muted" and mutes it for `seconds`."""

    def __init__(self, seconds: float = FOREVER_S) -> None:
        self.quotas = ConnectionQuotas(LIMITS)
        self.seen: list[bytes] = []
        self._seconds = seconds

    async def dispatch(self, frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        self.seen.append(bytes(frame[:6]))
        if len(self.seen) > 1:
            return [b"on"]
        peer.throttling.mute_s = self._seconds
        return [b"muted"]

    async def until_muted(self) -> None:
        async with asyncio.timeout(60):
            while not self.quotas.muted:
                await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[tuple[socket.socket, Connection]]:
        theirs, ours = socket.socketpair()
        for one in (theirs, ours):
            one.setblocking(False)
        async with asyncio.TaskGroup() as group:
            served = Connection(
                transport.plain(ours), ClientInfo("h", 1, 1), self.dispatch, self.quotas
            )
            task = served.start(group)
            try:
                yield theirs, served
            finally:
                theirs.close()
                served.finish()
                async with asyncio.timeout(60):
                    await asyncio.wait({task})
                assert self.quotas.muted == 0


async def received(sock: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        return await loop.sock_recv(sock, 100)


async def test_the_answer_comes_at_once_and_the_next_request_waits() -> None:
    muted = Muted()
    async with muted.serve() as (client, served):
        client.send(framed(b"first") + framed(b"second"))
        assert await received(client) == framed(b"muted")
        await muted.until_muted()
        client.send(framed(b"third"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert muted.seen == [b"first"]
        assert served.idle_seconds() == 0
        assert served.too_slow(1, 1.0) == ""


async def test_requests_go_on_after_the_time() -> None:
    muted = Muted(seconds=0.001)
    async with muted.serve() as (client, _):
        client.send(framed(b"first") + framed(b"second"))
        assert await received(client) == framed(b"muted")
        assert await received(client) == framed(b"on")


async def test_a_muted_client_holds_a_bounded_buffer() -> None:
    muted = Muted()
    async with muted.serve() as (client, served):
        client.send(framed(b"first"))
        await muted.until_muted()
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += client.send(framed(bytes(500_000)))
                for _ in range(5):
                    await asyncio.sleep(0)
        assert sent > READ_AHEAD_BYTES
        assert served._reader.capacity <= READ_AHEAD_BYTES
        assert not served._reading


@pytest.mark.parametrize("rest", [b"", b"\0", b"\0\0\0\x05half"])
async def test_a_client_that_hangs_up_is_let_go(rest: bytes) -> None:
    muted = Muted()
    async with muted.serve() as (client, served):
        client.send(framed(b"first") + rest)
        await muted.until_muted()
        client.close()
        async with asyncio.timeout(60):
            while served._task is not None:
                await asyncio.sleep(0)


async def test_a_reset_is_noticed_while_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MUTED_LOOK_S", 0.01)
    muted = Muted()
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    ours.setblocking(False)
    async with asyncio.TaskGroup() as group:
        served = Connection(
            transport.plain(ours), ClientInfo("h", 1, 1), muted.dispatch, muted.quotas
        )
        task = served.start(group)
        client.sendall(framed(b"first"))
        await muted.until_muted()
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                client.send(framed(bytes(100_000)))
                await asyncio.sleep(0)
        async with asyncio.timeout(60):
            while served._reading:
                await asyncio.sleep(0)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            await task
    assert muted.quotas.muted == 0
    assert muted.seen == [b"first"]


async def test_what_was_sent_before_the_end_is_served_after_the_time() -> None:
    muted = Muted(seconds=0.05)
    async with muted.serve() as (client, _):
        client.send(framed(b"first") + framed(b"second"))
        await muted.until_muted()
        client.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(60):
            while len(muted.seen) < 2:
                await asyncio.sleep(0.001)
        assert muted.seen == [b"first", b"second"]


async def test_a_broker_that_stops_does_not_wait_for_the_muted() -> None:
    muted = Muted()
    async with muted.serve() as (client, served):
        client.send(framed(b"first"))
        await muted.until_muted()
        served.finish()
        async with asyncio.timeout(60):
            while served._task is not None:
                await asyncio.sleep(0)
