"""TLS over real sockets on loopback: what reaches the wire, and what a broken peer can do."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import socket
import ssl
import struct
import subprocess
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from odradek.listener_settings import Store, TlsSettings
from odradek.net import encrypted_outgoing
from odradek.net.client import PeerClient
from odradek.net.client_info import ClientInfo, Dispatch
from odradek.net.connection_quotas import ConnectionLimits, ConnectionQuotas
from odradek.net.encrypted_outgoing import PIECE_BYTES
from odradek.net.handshakes import HandshakeError, Handshakes
from odradek.net.listener import Listener
from odradek.net.transport import TlsTransport
from odradek.protocol.messages.groups import HeartbeatRequest
from odradek.protocol.regions import Part
from odradek.security.peers import ClientSecurity
from odradek.security.tls_contexts import TlsContexts
from tests.fuzz.strangers import client_hello
from tests.net.test_owed_answers import connections_to
from tests.support import certificates
from tests.support.file_regions import CountedRegion

LIMITS = ConnectionLimits(
    max_frame_bytes=10_000_000,
    max_connections=1000,
    max_connections_per_ip=1000,
    max_idle_ms=60_000,
)
HOSTS = ("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> certificates.Authority:
    return certificates.Authority(folder)


@pytest.fixture(scope="module")
def own(authority: certificates.Authority) -> certificates.Issued:
    return authority.issue("broker", HOSTS)


def settings_of(issued: certificates.Issued, auth: str = "none") -> TlsSettings:
    return TlsSettings(
        Store("ssl.keystore", "PEM", str(issued.pem_path)),
        Store("ssl.truststore", "PEM", str(issued.authority_path)),
        auth,
    )


@contextlib.asynccontextmanager
async def listening(
    dispatch: Dispatch,
    settings: TlsSettings,
    handshakes: Handshakes | None = None,
    quotas: ConnectionQuotas | None = None,
) -> AsyncIterator[Listener]:
    contexts, shared = TlsContexts("SSL", settings), handshakes or Handshakes()
    listener = Listener(
        "127.0.0.1",
        0,
        quotas or ConnectionQuotas(LIMITS),
        dispatch,
        secure=lambda sock: TlsTransport(sock, contexts.server, shared),
    )
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close(grace_ms=200)
        shared.close()


def client_context(issued: certificates.Issued) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(issued.authority_path))


@contextlib.asynccontextmanager
async def connected(
    listener: Listener, context: ssl.SSLContext
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", listener.port, ssl=context, server_hostname="localhost"
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


async def echo(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
    return [bytes(frame)]


def old_hello(version: int) -> bytes:
    """Return a ClientHello with one suite and no extensions."""
    body = struct.pack(">H32xBHHBB", version, 0, 2, 0xC02B, 1, 0)
    return struct.pack(">BHHB3s", 22, version, len(body) + 4, 1, len(body).to_bytes(3)) + body


async def echoed(listener: Listener, context: ssl.SSLContext) -> bytes:
    async with connected(listener, context) as (reader, writer):
        writer.write(framed(b"x"))
        return await read_frame(reader)


async def test_frames_of_every_size_are_answered_in_order(own: certificates.Issued) -> None:
    # Around the limits of a TLS record, of the first buffer and of a piece; pipelined.
    sizes = (0, 1, 4095, 4096, 16_383, 16_384, 16_385, PIECE_BYTES, PIECE_BYTES + 1, 3_000_000)
    async with (
        listening(echo, settings_of(own)) as listener,
        connected(listener, client_context(own)) as (reader, writer),
    ):
        payloads = [bytes([number]) * size for number, size in enumerate(sizes, 1)]
        writer.writelines(map(framed, payloads))
        assert [await read_frame(reader) for _ in payloads] == payloads


async def test_frame_in_many_small_records_is_read_to_the_end_of_the_connection(
    own: certificates.Issued,
) -> None:
    # As librdkafka sends a batch; the end is said in the same packet as the last bytes.
    context, frame = client_context(own), framed(bytes(range(256)) * 40)
    async with listening(echo, settings_of(own)) as listener:

        def exchange() -> bytes:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            with socket.create_connection(("127.0.0.1", listener.port), 60) as sock:
                while True:
                    try:
                        tls.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        sock.sendall(outgoing.read())
                        incoming.write(sock.recv(65_536))
                for start in range(0, len(frame), 7):
                    tls.write(frame[start : start + 7])
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.unwrap()
                sock.sendall(outgoing.read())
                found = bytearray()
                while some := sock.recv(65_536):
                    incoming.write(some)
                    with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                        while plain := tls.read(65_536):
                            found += plain
                return bytes(found)

        assert await asyncio.to_thread(exchange) == frame


@contextlib.asynccontextmanager
async def flooded(issued: certificates.Issued, size: int) -> AsyncIterator[TlsTransport]:
    """Give the server's end of a connection whose client sends `size` bytes as fast as it can."""
    contexts, handshakes, client = TlsContexts("SSL", settings_of(issued)), Handshakes(), None
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def flood() -> None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), 60) as lower,
                client_context(issued).wrap_socket(lower, server_hostname="localhost") as tls,
            ):
                tls.sendall(bytes(size))
                tls.recv(1)

        client = asyncio.create_task(asyncio.to_thread(flood))
        accepted, _ = await asyncio.to_thread(server.accept)
    accepted.setblocking(False)
    transport = TlsTransport(accepted, contexts.server, handshakes)
    try:
        await transport.handshake(60)
        yield transport
    finally:
        transport.close()
        await client
        handshakes.close()


async def test_one_read_of_a_fast_client_has_a_limit(own: certificates.Issued) -> None:
    size = 24 * 1024 * 1024
    buffer, counts = memoryview(bytearray(size)), []
    async with flooded(own, size) as transport, asyncio.timeout(60):
        found = 0
        while found < size:
            try:
                counts.append(transport.recv_into(buffer[found:]))
            except BlockingIOError:
                # The client's thread, which has to be faster than we are.
                await asyncio.sleep(0)
                continue
            found += counts[-1]
    assert max(counts) <= 1024 * 1024


async def test_reads_of_one_client_in_a_turn_have_a_limit(own: certificates.Issued) -> None:
    reads = 0
    async with flooded(own, 4 * 1024 * 1024) as transport, asyncio.timeout(60):
        one = memoryview(bytearray(1))

        def read() -> None:
            nonlocal reads
            with contextlib.suppress(BlockingIOError):
                reads += transport.recv_into(one)

        transport.start_reading(read)
        while not reads:
            await asyncio.sleep(0)
        before = reads
        for _ in range(100):
            await asyncio.sleep(0)
        assert reads - before <= 102 * 8


async def test_client_that_gathers_small_writes_is_not_held_up(own: certificates.Issued) -> None:
    context = client_context(own)
    async with listening(echo, settings_of(own)) as listener:

        def seconds() -> float:
            with (
                socket.create_connection(("127.0.0.1", listener.port), 60) as lower,
                context.wrap_socket(lower, server_hostname="localhost") as tls,
            ):
                began = time.monotonic()
                tls.sendall(framed(b"x"))
                assert tls.recv(5)
                return time.monotonic() - began

        # An acknowledgement that is put off takes 40 ms each time, a busy machine not so.
        for _ in range(200):
            if await asyncio.to_thread(seconds) < 0.035:
                return
        raise AssertionError("each connection waited for an acknowledgement")


async def test_suite_of_cbc_is_not_served_by_default(own: certificates.Issued) -> None:
    context = client_context(own)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-SHA256")
    handshakes = Handshakes()
    async with listening(echo, settings_of(own), handshakes) as listener:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await echoed(listener, context)
    assert +handshakes.failed == {"protocol": 1}
    chosen = dataclasses.replace(
        settings_of(own), cipher_suites=("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",)
    )
    async with listening(echo, chosen) as listener:
        assert await echoed(listener, context) == b"x"


async def test_no_region_of_a_file_reaches_sendfile(
    own: certificates.Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records"
    content = os.urandom(5 * PIECE_BYTES + 17)
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    regions: list[CountedRegion] = []

    def refuse(*_arguments: object) -> int:
        raise AssertionError("bytes of a file went to the wire as they are")

    async def answer(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        regions.append(CountedRegion(descriptor, 3, len(content) - 3))
        return [b"before", regions[-1], b"after"]

    monkeypatch.setattr(os, "sendfile", refuse)
    try:
        async with (
            listening(answer, settings_of(own)) as listener,
            connected(listener, client_context(own)) as (reader, writer),
        ):
            writer.write(framed(b"fetch"))
            assert await read_frame(reader) == b"before" + content[3:] + b"after"
    finally:
        os.close(descriptor)
    assert [region.closed for region in regions] == [1]


async def test_cold_region_is_read_in_a_thread(
    own: certificates.Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records"
    path.write_bytes(bytes(PIECE_BYTES))
    descriptor = os.open(path, os.O_RDONLY)
    # Which pages are cached is the kernel's: this one has none.
    monkeypatch.setattr(encrypted_outgoing, "_read_cached", lambda region, offset, view: None)

    async def answer(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        return [CountedRegion(descriptor, 0, PIECE_BYTES)]

    try:
        async with (
            listening(answer, settings_of(own)) as listener,
            connected(listener, client_context(own)) as (reader, writer),
        ):
            writer.write(framed(b"fetch"))
            assert await read_frame(reader) == bytes(PIECE_BYTES)
    finally:
        os.close(descriptor)


async def test_peer_that_reads_late_gets_everything(own: certificates.Issued) -> None:
    big = os.urandom(8_000_000)

    async def answer(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        return [big[:5], big[5:100_000], memoryview(big)[100_000:]]

    context = client_context(own)
    async with listening(answer, settings_of(own)) as listener:

        def read_late() -> bytes:
            with (
                socket.create_connection(("127.0.0.1", listener.port)) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as sock,
            ):
                plain_size = struct.pack(">i", 1)
                sock.sendall(plain_size + b"x")
                found = bytearray()
                while len(found) < 4 + len(big):
                    found += sock.recv(7777)
                return bytes(found[4:])

        assert await asyncio.to_thread(read_late) == big


async def test_hundreds_of_half_open_handshakes_keep_nobody_out(own: certificates.Issued) -> None:
    handshakes = Handshakes()
    async with listening(echo, settings_of(own), handshakes) as listener:
        idle = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(300)]
        try:
            for number, sock in enumerate(idle):
                if number % 2:
                    sock.sendall(b"\x16\x03\x01\x02\x00")  # a record that never ends
            async with connected(listener, client_context(own)) as (reader, writer):
                writer.write(framed(b"here"))
                assert await read_frame(reader) == b"here"
        finally:
            for sock in idle:
                sock.close()


async def test_handshake_has_a_time_limit(
    own: certificates.Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    handshakes = Handshakes()
    contexts = TlsContexts("SSL", settings_of(own))
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        transport = TlsTransport(ours, contexts.server, handshakes)
        theirs.sendall(b"\x16\x03\x01\x02\x00")
        with pytest.raises(HandshakeError, match="no TLS handshake in"):
            await transport.handshake(limit_s=0.01)
        transport.close()
    assert handshakes.failed["timeout"] == 1
    handshakes.close()


async def test_byte_now_and_then_does_not_make_a_handshake_longer(
    own: certificates.Issued,
) -> None:
    handshakes, contexts = Handshakes(), TlsContexts("SSL", settings_of(own))
    hello = client_hello()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    async def trickle() -> None:
        for one in hello[:-1]:
            theirs.sendall(bytes([one]))
            await asyncio.sleep(0.01)

    with theirs:
        transport = TlsTransport(ours, contexts.server, handshakes)
        trickling = asyncio.create_task(trickle())
        with pytest.raises(HandshakeError, match="no TLS handshake in"):
            await transport.handshake(limit_s=0.2)
        assert not trickling.done()
        trickling.cancel()
        transport.close()
    handshakes.close()


async def test_renegotiation_is_refused(own: certificates.Issued) -> None:
    context = client_context(own)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with listening(echo, settings_of(own)) as listener:

        def renegotiate() -> str:
            command = ["openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{listener.port}"]
            done = subprocess.run(
                command, input=b"R\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
            )
            return done.stdout.decode()

        said = await asyncio.to_thread(renegotiate)
        assert "RENEGOTIATING" in said
        assert "no renegotiation" in said
        assert await echoed(listener, context) == b"x"


@pytest.mark.parametrize("cut", [1, 5, 100])
async def test_end_in_the_middle_of_a_record_ends_that_connection_only(
    own: certificates.Issued, cut: int
) -> None:
    context = client_context(own)
    seen: list[bytes] = []

    async def note(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        seen.append(bytes(frame))
        return [b"answer"]

    async with listening(note, settings_of(own)) as listener:

        def leave() -> bytes:
            with (
                socket.create_connection(("127.0.0.1", listener.port), 60) as lower,
                context.wrap_socket(lower, server_hostname="localhost") as tls,
                socket.socket(fileno=os.dup(tls.fileno())) as raw,
            ):
                raw.settimeout(60)
                raw.sendall((b"\x17\x03\x03\x04\x00" + bytes(1024))[:cut])
                raw.shutdown(socket.SHUT_WR)
                found = b""
                while some := raw.recv(65_536):
                    found += some
                return found

        assert len(await asyncio.to_thread(leave)) < 100  # close_notify, and no answer
        while listener.connection_count:
            await asyncio.sleep(0.01)
        assert await echoed(listener, context) == b"answer"
    assert seen == [b"x"]


async def test_connection_with_a_damaged_record_is_freed_at_once(own: certificates.Issued) -> None:
    gc.collect()
    gc.disable()
    try:
        async with listening(echo, settings_of(own)) as listener:
            async with connected(listener, client_context(own)) as (reader, writer):
                writer.write(framed(b"sound"))
                assert await read_frame(reader) == b"sound"
                connection = weakref.ref(connections_to(writer)[0])
                sock = writer.get_extra_info("socket")
                os.write(sock.fileno(), struct.pack(">BHH", 23, 0x303, 30) + bytes(30))
                with contextlib.suppress(OSError):
                    await reader.read()
            async with asyncio.timeout(60):
                while connection() is not None:
                    await asyncio.sleep(0)
    finally:
        gc.enable()


async def test_pipelined_requests_whose_answers_are_not_read_hold_one_answer(
    own: certificates.Issued,
) -> None:
    size, quotas = 16_000_000, ConnectionQuotas(LIMITS)
    asked: list[bytes] = []

    async def answer(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        asked.append(bytes(frame))
        return [bytes(size)] if asked[-1] == b"large" else [b"small"]

    context = client_context(own)
    async with listening(answer, settings_of(own), quotas=quotas) as listener:

        def ask() -> ssl.SSLSocket:
            lower = socket.create_connection(("127.0.0.1", listener.port), 60)
            tls = context.wrap_socket(lower, server_hostname="localhost")
            tls.sendall(framed(b"large") * 1000)
            return tls

        with await asyncio.to_thread(ask):
            while not quotas.answers.total:
                await asyncio.sleep(0.01)
            assert await echoed(listener, context) == b"small"
            assert asked == [b"large", b"x"]
            assert quotas.answers.total <= size + 4


@pytest.mark.parametrize(
    ("greeting", "cause"),
    [
        (framed(b"\x00\x12\x00\x00" + bytes(20)), "no-tls"),
        (b"GET / HTTP/1.1\r\n\r\n", "no-tls"),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", "protocol"),
        (b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes(16_380), "protocol"),  # 16 MiB to come
        # SSL 3.0; and SSL 2.0, in its own form.
        (old_hello(0x0300), "protocol"),
        (bytes.fromhex("801c0100020003000000100700c0") + bytes(16), "protocol"),
        (b"", "disconnected"),
    ],
)
async def test_peer_that_does_not_speak_tls_is_counted_and_closed(
    own: certificates.Issued, greeting: bytes, cause: str
) -> None:
    handshakes = Handshakes()
    async with listening(echo, settings_of(own), handshakes) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(greeting)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await reader.read()  # an alert, perhaps
        writer.close()
        while not handshakes.failed.total():
            await asyncio.sleep(0.01)
    assert +handshakes.failed == {cause: 1}


async def test_peer_that_resets_before_its_handshake_ends_its_connection_only(
    own: certificates.Issued,
) -> None:
    handshakes = Handshakes()
    async with listening(echo, settings_of(own), handshakes) as listener:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", listener.port)) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        while handshakes.failed.total() < 3 or listener.connection_count:
            await asyncio.sleep(0.01)
        assert await echoed(listener, client_context(own)) == b"x"
    assert +handshakes.failed == {"disconnected": 3}


async def test_client_without_the_certificate_that_is_required_is_refused(
    own: certificates.Issued,
) -> None:
    handshakes = Handshakes()
    async with listening(echo, settings_of(own, "required"), handshakes) as listener:
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await echoed(listener, client_context(own))
    assert +handshakes.failed == {"certificate": 1}


@pytest.mark.parametrize(
    ("version", "is_served"), [(ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_1, False)]
)
async def test_only_modern_versions_are_served(
    own: certificates.Issued, version: ssl.TLSVersion, is_served: bool
) -> None:
    context = client_context(own)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    async with listening(echo, settings_of(own)) as listener:
        with contextlib.nullcontext() if is_served else pytest.raises(ssl.SSLError, match="TLS"):
            assert await echoed(listener, context) == b"x"


async def test_end_is_said_before_the_connection_closes(own: certificates.Issued) -> None:
    async def violate(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        raise HandshakeError("protocol", "never mind")

    context = client_context(own)
    async with listening(violate, settings_of(own)) as listener:

        def read_end() -> bytes:
            with (
                socket.create_connection(("127.0.0.1", listener.port)) as plain,
                context.wrap_socket(
                    plain, server_hostname="localhost", suppress_ragged_eofs=False
                ) as sock,
            ):
                sock.sendall(framed(b"x"))
                return sock.recv(1)  # without close_notify it would raise SSLEOFError

        assert await asyncio.to_thread(read_end) == b""


def stale(authority: certificates.Authority) -> certificates.Issued:
    return authority.issue("stale", HOSTS, timedelta(days=-1))


async def test_broker_refuses_brokers_that_it_cannot_verify(
    own: certificates.Issued, authority: certificates.Authority, tmp_path: Path
) -> None:
    other = certificates.Authority(tmp_path, "another")
    impostors = {
        "certificate has expired": stale(authority),
        "self-signed certificate": other.issue("broker", HOSTS),
        "IP address mismatch": authority.issue("elsewhere", ["10.0.0.1", "localhost"]),
    }
    contexts, handshakes = TlsContexts("SSL", settings_of(own)), Handshakes()
    security = ClientSecurity(handshakes, contexts.client, None)
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    for reason, impostor in impostors.items():
        async with listening(echo, settings_of(impostor)) as listener:
            client = PeerClient("127.0.0.1", listener.port, "broker-1", security=security)
            with pytest.raises(ConnectionError, match=reason):
                await client.call(request, 0, 60_000)
            await client.close()
    assert handshakes.failed["certificate"] == len(impostors)
    handshakes.close()
