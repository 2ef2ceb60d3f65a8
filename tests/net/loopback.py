"""A listener and its peers on loopback, with real sockets."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Sequence

from odradek.net.client_info import ClientInfo, Dispatch
from odradek.net.connection_quotas import ConnectionLimits, ConnectionQuotas
from odradek.net.listener import Listener
from odradek.protocol.regions import Part

LIMITS = ConnectionLimits(
    max_frame_bytes=1_000_000, max_connections=100, max_connections_per_ip=100, max_idle_ms=60_000
)


@contextlib.asynccontextmanager
async def listening(
    dispatch: Dispatch, limits: ConnectionLimits = LIMITS
) -> AsyncIterator[Listener]:
    listener = Listener("127.0.0.1", 0, ConnectionQuotas(limits), dispatch)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close(grace_ms=200)


@contextlib.asynccontextmanager
async def connected(
    listener: Listener,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


async def emptied(listener: Listener, down_to: int = 0) -> None:
    async with asyncio.timeout(60):
        while listener.connection_count > down_to:
            await asyncio.sleep(0.002)


async def echo(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
    return [bytes(frame)]
