"""TLS records as they arrive: in any pieces, and which of them end a handshake."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import pytest

from odradek.net.handshakes import Handshakes
from odradek.net.tls_records import RECORD_BYTES, ends_handshake, whole_records
from odradek.net.transport import TlsTransport
from odradek.security.tls_contexts import TlsContexts
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
    ("cipher", "portions"),
    [
        (b"", []),
        (record(0)[:4], []),
        (record(0), [(5, 1)]),
        (record(100)[:-1], []),
        (record(100) + record(7), [(105 + 12, 2)]),
        (record(100) + record(7)[:-1], [(105, 1)]),
        # Large ones one by one, small ones together.
        (record(16_401) + record(16_401), [(16_406, 1), (2 * 16_406, 1)]),
        (record(5000) * 4, [(5005 * 3, 3), (5005 * 4, 1)]),
        (record(47) + record(16_401)[:-1], [(52, 1)]),
        # No record: all of it goes to OpenSSL, which tells what it is.
        (b"GET / HTTP/1.1\r\n", [(16, 1)]),
        (struct.pack(">ih", 50, 18), [(6, 1)]),
        (b"\x80" + bytes(20), [(21, 1)]),
        (record(20_000)[:50], [(50, 1)]),
        (record(7) + b"GET / HTTP", [(12 + 10, 2)]),
    ],
)
def test_whole_records_are_told_from_beginnings(
    cipher: bytes, portions: list[tuple[int, int]]
) -> None:
    assert list(whole_records(memoryview(cipher))) == portions


def test_openssl_never_gets_more_than_one_full_record_of_small_ones_at_once() -> None:
    start = total = 0
    for end, count in whole_records(memoryview(record(95) * 1000)):
        assert end - start == count * 100 <= RECORD_BYTES
        start, total = end, total + count
    assert total == 1000


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


class CountedSocket(socket.socket):
    """A socket that counts its reads."""

    reads = 0

    def recv_into(self, *arguments: Any) -> int:
        self.reads += 1
        return super().recv_into(*arguments)


class CountedTls(ssl.SSLObject):
    """A connection that counts how often it was asked for what it does not have."""

    in_vain = 0

    def read(self, *arguments: Any) -> Any:
        try:
            return super().read(*arguments)
        except ssl.SSLWantReadError:
            type(self).in_vain += 1
            raise


@contextlib.asynccontextmanager
async def agreed(
    own: certificates.Issued,
) -> AsyncIterator[tuple[TlsTransport, CountedSocket, Client]]:
    """Give a server's transport, its socket, and a client that has agreed with it on keys."""
    handshakes, context = Handshakes(), TlsContexts("SSL", settings_of(own)).server()
    context.sslobject_class = CountedTls
    ours, theirs = socket.socketpair()
    counted = CountedSocket(fileno=ours.detach())
    counted.setblocking(False)
    with theirs:
        theirs.setblocking(False)
        transport = TlsTransport(counted, lambda: context, handshakes)
        client = Client(theirs, client_context(own), 1_000_000)
        await asyncio.gather(transport.handshake(60), client.run(client.tls.do_handshake))
        yield transport, counted, client
        transport.close()
    handshakes.close()


def read_all(transport: TlsTransport, rooms: Iterator[int]) -> tuple[bytes, int]:
    """Return what is there, read into rooms of some sizes, and how many of them had something."""
    found, reads = bytearray(), 0
    while True:
        room = memoryview(bytearray(next(rooms)))
        try:
            count = transport.recv_into(room)
        except BlockingIOError:
            return bytes(found), reads
        found += room[:count]
        reads += 1


async def test_each_read_of_many_records_is_one_of_the_socket(own: certificates.Issued) -> None:
    data = os.urandom(150_000)
    async with agreed(own) as (transport, sock, client):
        # As librdkafka sends records: each in one of its own, and what is before it, too.
        for start in range(0, len(data), 10_000):
            client.tls.write(data[start : start + 25])
            client.tls.write(data[start + 25 : start + 10_000])
        await client.flush()
        before, CountedTls.in_vain = sock.reads, 0
        found, reads = read_all(transport, itertools.repeat(65_536))
        assert found == data
        assert sock.reads - before <= reads + 1  # and the one that finds nothing
        assert CountedTls.in_vain == 0


@pytest.mark.parametrize("seed", range(5))
async def test_records_of_any_sizes_are_read_into_rooms_of_any_sizes(
    own: certificates.Issued, seed: int
) -> None:
    chance = random.Random(seed)
    rooms = iter(lambda: chance.choice((1, 2, 100, 4096, 16_384, 65_536)), None)
    async with agreed(own) as (transport, _, client):
        callbacks = 0

        def note() -> None:
            nonlocal callbacks
            callbacks += 1

        for _ in range(30):
            sizes = [chance.choice((0, 1, 99, 4096, 16_384, 40_000)) for _ in range(4)]
            data = [os.urandom(size) for size in sizes]
            for one in data:
                client.tls.write(one)
            await client.flush()
            CountedTls.in_vain = 0
            found, _ = read_all(transport, rooms)
            assert found == b"".join(data)
            assert CountedTls.in_vain == 0
        # Nothing is left that epoll does not see.
        transport.start_reading(note)
        for _ in range(10):
            await asyncio.sleep(0)
        assert callbacks == 0


async def test_peer_may_change_its_keys_at_any_time(own: certificates.Issued) -> None:
    # "k" changes the client's keys, "K" those of both; it reads one of them at a time.
    steps = (b"zero\n", b"k\n", b"one\n", b"K\n", b"two\n")
    async with listening(echo, settings_of(own)) as listener:

        def talk() -> None:
            address = f"127.0.0.1:{listener.port}"
            command = ["timeout", "60", "openssl", "s_client", "-tls1_3", "-connect", address]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            ) as client:
                assert client.stdin is not None
                assert client.stdout is not None
                for step in steps:
                    client.stdin.write(step if len(step) == 2 else framed(step))
                    client.stdin.flush()
                    expected, found = (b"KEYUPDATE" if len(step) == 2 else framed(step)), b""
                    while expected not in found:
                        some = os.read(client.stdout.fileno(), 65_536)
                        assert some, found
                        found += some
                client.stdin.close()

        await asyncio.to_thread(talk)


async def test_close_during_a_handshake_leaves_nothing_in_the_event_loop(
    own: certificates.Issued,
) -> None:
    handshakes, loop = Handshakes(), asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        transport = TlsTransport(ours, TlsContexts("SSL", settings_of(own)).server, handshakes)
        waiting = asyncio.create_task(transport.handshake())
        await asyncio.sleep(0)
        number = transport.fileno()
        transport.close()
        assert not loop.remove_reader(number)
        waiting.cancel()
        await asyncio.wait({waiting})
    handshakes.close()
