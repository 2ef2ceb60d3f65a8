"""TLS records as they arrive: in any pieces, and which of them end a handshake."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from typing import TypeVar

import pytest

from odradek.net.handshakes import Handshakes
from odradek.net.tls_records import RECORD_BYTES, ends_handshake, records_end
from tests.net.test_tls import (
    HOSTS,
    client_context,
    echo,
    echoed,
    framed,
    listening,
    settings_of,
)
from tests.support import certificates

T = TypeVar("T")

DATA = 23
PIECES = (1, 2, 5, 6, 1000, 20_000)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> certificates.Issued:
    return certificates.Authority(tmp_path_factory.mktemp("certificates")).issue("broker", HOSTS)


def record(length: int, kind: int = DATA) -> bytes:
    return struct.pack(">BHH", kind, 0x303, length) + bytes(length)


@pytest.mark.parametrize(
    ("cipher", "start", "end"),
    [
        (b"", 0, 0),
        (record(0)[:4], 0, 0),
        (record(0), 0, 5),
        (record(100)[:-1], 0, 0),
        (record(100) + record(7), 0, 105 + 12),
        (record(100) + record(7)[:-1], 0, 105),
        (record(100) + record(7), 105, 105 + 12),
        # Large ones one by one, small ones together.
        (record(16_401) + record(16_401), 0, 16_406),
        (record(5000) * 4, 0, 5005 * 3),
        # No record: all of it goes to OpenSSL, which tells what it is.
        (b"GET / HTTP/1.1\r\n", 0, 16),
        (struct.pack(">ih", 50, 18), 0, 6),
        (b"\x80" + bytes(20), 0, 21),
        (record(20_000)[:50], 0, 50),
        (record(7) + b"GET / HTTP", 0, 12 + 10),
    ],
)
def test_whole_records_are_told_from_beginnings(cipher: bytes, start: int, end: int) -> None:
    assert records_end(memoryview(cipher), start) == end


def test_openssl_never_gets_more_than_one_full_record_of_small_ones_at_once() -> None:
    cipher = memoryview(record(95) * 1000)
    start = 0
    while start < len(cipher):
        end = records_end(cipher, start)
        assert 0 < end - start <= RECORD_BYTES
        start = end


def flights(
    own: certificates.Issued, arrange: Callable[[ssl.SSLContext, ssl.SSLContext], None]
) -> list[bytes]:
    """Return what a client says in a handshake, in turns."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(own.certificate_path, own.key_path)
    client = client_context(own)
    arrange(server, client)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    said = []
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for side in (ours, theirs):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
            if side is ours and to_server.pending:
                said.append(to_server.read())
                to_server.write(said[-1])
    return said


def test_only_the_last_message_of_tls_13_ends_a_handshake(own: certificates.Issued) -> None:
    def nothing(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        """Leave it as it is."""

    def second_hello(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        server.set_ecdh_curve("secp521r1")  # of which no client sends a key at once

    def version_12(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        server.maximum_version = ssl.TLSVersion.TLSv1_2

    for arrange, ends in (
        (nothing, [False, True]),
        (second_hello, [False, False, True]),
        (version_12, [False, False]),
    ):
        said = flights(own, arrange)
        assert [ends_handshake(memoryview(one)) for one in said] == ends, arrange.__name__


class CountedHandshakes(Handshakes):
    """Handshakes that count what goes through their threads."""

    steps = 0

    async def step(self, work: Callable[[], None]) -> None:
        self.steps += 1
        await super().step(work)


@pytest.mark.parametrize(
    ("version", "auth", "steps"),
    [
        (ssl.TLSVersion.TLSv1_3, "none", 1),
        # The last message has a certificate, and a signature to be checked.
        (ssl.TLSVersion.TLSv1_3, "required", 2),
        (ssl.TLSVersion.TLSv1_2, "none", 2),
    ],
)
async def test_what_takes_long_in_a_handshake_runs_in_threads(
    own: certificates.Issued, version: ssl.TLSVersion, auth: str, steps: int
) -> None:
    context = client_context(own)
    context.load_cert_chain(own.certificate_path, own.key_path)
    context.maximum_version = version
    handshakes = CountedHandshakes()
    async with listening(echo, settings_of(own, auth), handshakes) as listener:
        assert await echoed(listener, context) == b"x"
    assert handshakes.steps == steps


class Client:
    """A client whose cipher text goes out in pieces of a size, one system call for each."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, size: int) -> None:
        self._sock = sock
        self._size = size
        self._arrived, self._said = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._arrived, self._said, server_hostname="localhost")

    async def run(self, work: Callable[[], T]) -> T:
        """Do what OpenSSL needs bytes of the peer for."""
        while True:
            try:
                result = work()
            except ssl.SSLWantReadError:
                await self.flush()
                await self._receive()
            else:
                await self.flush()
                return result

    async def flush(self) -> None:
        """Send what OpenSSL has to say."""
        loop = asyncio.get_running_loop()
        cipher = self._said.read()
        for start in range(0, len(cipher), self._size):
            await loop.sock_sendall(self._sock, cipher[start : start + self._size])
            await asyncio.sleep(0)  # the other side reads each piece

    async def _receive(self) -> None:
        taken = await asyncio.get_running_loop().sock_recv(self._sock, 100_000)
        assert taken, "the server has closed the connection"
        self._arrived.write(taken)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("size", PIECES)
async def test_records_may_arrive_in_any_pieces(
    own: certificates.Issued, version: ssl.TLSVersion, size: int
) -> None:
    context = client_context(own)
    context.maximum_version = version
    payload = bytes(range(256)) * (4 if size < 1000 else 400)
    async with listening(echo, settings_of(own)) as listener:
        address = ("127.0.0.1", listener.port)
        with socket.create_connection(address) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            client = Client(sock, context, size)
            await client.run(client.tls.do_handshake)
            client.tls.write(framed(payload))
            await client.flush()
            answer = b""
            while len(answer) < len(payload) + 4:
                answer += await client.run(client.tls.read)
            assert answer == framed(payload)
