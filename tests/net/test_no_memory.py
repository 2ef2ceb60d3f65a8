"""A frame for which there is no memory ends its connection, and no other."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from odradek.net.client import PeerClient
from odradek.net.client_info import ClientInfo
from odradek.net.connection import Connection
from odradek.net.connection_quotas import ConnectionQuotas
from odradek.net.frame import READ_AHEAD_BYTES, FrameReader
from odradek.net.transport import Transport
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from tests.net.loopback import connected, framed, read_frame
from tests.net.test_connection_quotas import limits, listening


@pytest.fixture
def poor(monkeypatch: pytest.MonkeyPatch) -> None:
    """No buffer grows beyond its first size."""
    real = FrameReader.room

    def room(reader: FrameReader) -> memoryview:
        if reader.wanted > READ_AHEAD_BYTES:
            raise MemoryError
        return real(reader)

    monkeypatch.setattr(FrameReader, "room", room)


async def test_request_without_memory_ends_its_connection_once(
    poor: None, caplog: pytest.LogCaptureFixture
) -> None:
    quotas = ConnectionQuotas(limits())
    async with (
        listening(quotas) as listener,
        connected(listener) as (reader, writer),
        connected(listener) as (other_reader, other),
    ):
        with caplog.at_level(logging.ERROR):
            writer.write(framed(bytes(3 * READ_AHEAD_BYTES)))
            async with asyncio.timeout(60):
                with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                    await read_frame(reader)
        other.write(framed(b"small"))
        assert await read_frame(other_reader) == b"small"
    # Not again and again, as long as the socket has something to read.
    assert len(caplog.records) < 5


async def test_answer_without_memory_fails_its_call(poor: None) -> None:
    async def too_much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(framed(bytes(3 * READ_AHEAD_BYTES)))
        writer.close()

    server = await asyncio.start_server(too_much, "127.0.0.1", 0)
    async with server:
        client = PeerClient("127.0.0.1", server.sockets[0].getsockname()[1], "test")
        with pytest.raises(ConnectionError, match="no memory"):
            await client.call(ApiVersionsRequest(), 0, 60_000)
        await client.close()


async def test_connection_without_memory_is_closed_and_others_are_let_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[ClientInfo] = []

    def make(sock: Transport, peer: ClientInfo, *rest: Any) -> Connection:
        made.append(peer)
        if len(made) <= 2:
            raise MemoryError
        return Connection(sock, peer, *rest)

    monkeypatch.setattr("odradek.net.listener.Connection", make)
    quotas = ConnectionQuotas(limits(max_connections=1))
    async with listening(quotas) as listener, asyncio.timeout(60):
        for _ in range(2):
            async with connected(listener) as (reader, _):
                assert await reader.read() == b""
        async with connected(listener) as (reader, writer):
            writer.write(framed(b"still here"))
            assert await read_frame(reader) == b"still here"
