"""Sessions over TLS and with a login, against a real ZooKeeper, and what goes wrong with them."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)
from kazoo.exceptions import ConnectionLoss
from kazoo.security import ACL

from odradek.zk.client import OPEN, Client, ZooKeeperAccess
from odradek.zk.digest_md5 import DigestClient, DigestError
from odradek.zk.failures import LoginRequiredError
from odradek.zk.operations import Create
from odradek.zk.session import Session, SessionState
from tests.support import certificates, secure_zookeeper, zookeeper
from tests.support.broker import wait_until
from tests.support.secure_zookeeper import (
    GREEK_PASSWORD,
    GREEK_USER,
    PASSWORD,
    USER,
    Server,
)

LONG_MS = zookeeper.SESSION_SECONDS * 1000
# A short session, whose end a test waits for.
SHORT_MS = 4000
# So long a start tries again what fails.
REFUSED_MS = 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("zk")) as running:
        yield running


@asynccontextmanager
async def connected(connect: str, access: ZooKeeperAccess) -> AsyncIterator[Session]:
    session = Session(connect, LONG_MS, zookeeper.START_SECONDS * 1000, access=access)
    await session.start()
    try:
        yield session
    finally:
        await session.close()


def refused(
    connect: str, access: ZooKeeperAccess, why: str, timeout_s: float = LONG_MS / 1000
) -> None:
    """Check that a client does not connect, and that its reason begins with `why`."""
    client = Client(connect, timeout_s, access)
    client.start_async()
    try:
        wait_until(lambda: client.failure.startswith(why), f"{connect}: {why}")
        assert not client.connected
        assert "\n" not in client.failure
    finally:
        client.stop()
        client.close()


def acl_of(server: Server, path: str) -> set[tuple[str, str, int]]:
    with server.client() as client:
        acls, _ = client.get_acls(path)
    return {readable(acl) for acl in acls}


def readable(acl: ACL) -> tuple[str, str, int]:
    return (acl.id.scheme, acl.id.id, acl.perms)


async def test_thousand_answers_in_few_tls_records_all_arrive_at_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kazoo.client")
    access = server.access(server.tls_settings())
    async with connected(f"{server.secure_connect}/many", access) as session:
        await session.multi([Create(f"/n{i}", b"x" * 100) for i in range(500)])
        assert len(await session.get_all(f"/n{i}" for i in range(500))) == 500
    assert "use_ssl: True" in caplog.text
    assert "use_ssl: False" not in caplog.text


def test_answers_that_openssl_holds_are_not_waited_for(tmp_path: Path) -> None:
    own = certificates.Authority(tmp_path).issue("zookeeper", ["127.0.0.1"])
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(own.pem_path)
    settings = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": str(own.authority_path),
    }
    handler = Client("127.0.0.1:1", 1, secure_zookeeper.access(settings)).handler
    other, silent = socket.socketpair()
    with (
        other,
        silent,
        socket.create_server(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor(1) as thread,
    ):
        accepted = thread.submit(
            lambda: serving.wrap_socket(listener.accept()[0], server_side=True)
        )
        address = listener.getsockname()
        with (
            handler.create_connection(address, "127.0.0.1", zookeeper.START_SECONDS) as reader,
            accepted.result() as writer,
        ):
            writer.sendall(b"two answers")
            assert reader.recv(3) == b"two"
            assert handler.select([reader, other], [], [], 0)[0] == [reader]
            assert reader.recv(8) == b" answers"
            assert handler.select([reader, other], [], [], 0)[0] == []


@pytest.mark.parametrize("kind", ["pem", "pem with password", "p12"])
async def test_certificate_of_each_kind_of_store_is_who_we_are(server: Server, kind: str) -> None:
    shown = server.authority.issue("broker")
    settings = server.tls_settings(shown)
    path = server.directory / "shown.p12"
    if kind == "p12":
        path = shown.pkcs12_path
    elif kind == "pem with password":
        path = server.directory / "encrypted.pem"
        key = shown.key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"store-secret")
        )
        path.write_bytes(key + shown.certificate.public_bytes(Encoding.PEM))
    if kind != "pem":
        settings["zookeeper.ssl.keystore.location"] = str(path)
        settings["zookeeper.ssl.keystore.password"] = certificates.PASSWORD
    settings["zookeeper.set.acl"] = "true"
    name = f"/of-{kind.replace(' ', '-')}"
    async with connected(server.secure_connect, server.access(settings)) as session:
        await session.create(name)
    assert acl_of(server, name) == {("x509", "CN=broker", 31), ("world", "anyone", 1)}


async def test_changed_certificate_counts_for_the_next_connection(server: Server) -> None:
    first, second = server.authority.issue("first"), server.authority.issue("second")
    settings = {**server.tls_settings(first), "zookeeper.set.acl": "true"}
    access = server.access(settings)
    first.pem_path.write_bytes(second.pem_path.read_bytes() + b"\n")
    async with connected(server.secure_connect, access) as session:
        await session.create("/of-second")
    assert ("x509", "CN=second", 31) in acl_of(server, "/of-second")


async def test_certificate_counts_instead_of_the_former_one_only_while_it_is_valid(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    former = server.authority.issue("valid")
    access = server.access({**server.tls_settings(former), "zookeeper.set.acl": "true"})
    assert access.context is not None
    current, first = access.context, access.context()

    def put(begins: timedelta, valid: timedelta) -> None:
        made = server.authority.issue("renewed", begins=begins, valid=valid)
        former.pem_path.write_bytes(made.pem_path.read_bytes())

    put(timedelta(days=-2), timedelta(days=-1))
    assert current() is first
    async with connected(server.secure_connect, access) as session:
        await session.create("/of-valid")
    assert ("x509", "CN=valid", 31) in acl_of(server, "/of-valid")
    put(timedelta(seconds=2), timedelta(days=1))
    assert current() is first
    said = [one.getMessage() for one in caplog.records if "keeping" in one.getMessage()]
    assert len(said) == 2
    assert all("for ZooKeeper: the new certificate is valid from" in one for one in said)
    wait_until(lambda: current() is not first, "its time has come")
    async with connected(server.secure_connect, access) as session:
        await session.create("/of-renewed")
    assert ("x509", "CN=renewed", 31) in acl_of(server, "/of-renewed")


async def test_changed_certificate_counts_later_if_there_was_no_descriptor(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = server.authority.issue("former"), server.authority.issue("later")
    current = server.access(server.tls_settings(first)).context
    assert current is not None
    former = current()
    first.pem_path.write_bytes(second.pem_path.read_bytes() + b"\n")

    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as changed:
        changed.setattr(os, "memfd_create", none_left)
        assert current() is former
    assert current() is not former


async def test_server_that_is_not_who_it_should_be_is_refused(
    server: Server, tmp_path: Path
) -> None:
    others = certificates.Authority(tmp_path, "another").issue("x").authority_path
    settings = server.tls_settings()
    wrong = server.access({**settings, "zookeeper.ssl.truststore.location": str(others)})
    why = "its certificate is refused: unable to get local issuer certificate"
    refused(server.secure_connect, wrong, why)
    # The certificate is for the address only.
    by_name = f"localhost:{server.secure_port}"
    why = "its certificate is refused: Hostname mismatch, certificate is not valid for 'localhost'"
    refused(by_name, server.access(settings), why)
    unchecked = {**settings, "zookeeper.ssl.endpoint.identification.algorithm": ""}
    async with connected(by_name, server.access(unchecked)) as session:
        assert await session.exists("/") is not None


def test_expired_certificate_is_refused(tmp_path: Path) -> None:
    authority = certificates.Authority(tmp_path)
    old = authority.issue("old", ["127.0.0.1"], valid=timedelta(days=-1))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(old.pem_path)
    # A ZooKeeper that could only be refused need not be one.
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                with accepted:
                    try:
                        context.wrap_socket(accepted, server_side=True).close()
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        settings = {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": str(old.authority_path),
        }
        access = secure_zookeeper.access(settings)
        connect = f"127.0.0.1:{listener.getsockname()[1]}"
        refused(connect, access, "its certificate is refused: certificate has expired")
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_tls_to_a_plain_port_and_plain_to_a_tls_port_are_refused(server: Server) -> None:
    refused(server.connect, server.access(server.tls_settings()), "TLS handshake failed: ")
    refused(server.secure_connect, OPEN, "the server ended the connection: ")


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_server_that_does_not_answer_is_named_as_such(server: Server, tls: bool) -> None:
    access = server.access(server.tls_settings()) if tls else OPEN
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connect = f"127.0.0.1:{silent.getsockname()[1]}"
        refused(connect, access, "the server does not answer", timeout_s=1)


@pytest.mark.parametrize(
    ("user", "password"), [(USER, PASSWORD), (GREEK_USER, GREEK_PASSWORD)], ids=["latin", "greek"]
)
async def test_login_of_a_jaas_file_is_who_we_are(server: Server, user: str, password: str) -> None:
    access = server.access({"zookeeper.set.acl": "true"}, server.kafka_opts(user, password))
    path = f"/of-{user}"
    async with connected(server.connect, access) as session:
        await session.create(path)
    assert acl_of(server, path) == {("sasl", user, 31), ("world", "anyone", 1)}


async def test_refused_login_is_tried_again_and_never_connected(server: Server) -> None:
    access = server.access({}, server.kafka_opts(USER, "wrong"))
    states: list[SessionState] = []
    session = Session(server.connect, LONG_MS, REFUSED_MS, access=access)
    session.on_state(states.append)
    why = f"login of user {USER} failed: the server refused it"
    refused(server.connect, access, why)
    with pytest.raises(ConnectionError, match=f"^no ZooKeeper at .* within {REFUSED_MS} ms"):
        await session.start()
    assert SessionState.CONNECTED not in states


def test_server_without_sasl_is_refused(tmp_path: Path, server: Server) -> None:
    access = server.access({}, server.kafka_opts())
    with zookeeper.Server(tmp_path) as plain:
        refused(plain.connect, access, f"login of user {USER} failed: ")


async def test_session_whose_login_is_refused_later_is_over_and_comes_back(server: Server) -> None:
    access = server.access({}, server.kafka_opts())
    states = asyncio.Queue[SessionState]()

    async def until(wanted: SessionState) -> None:
        async with asyncio.timeout(zookeeper.START_SECONDS):
            while await states.get() is not wanted:
                pass

    async with connected(server.connect, access) as session:
        await session.create("/mine", ephemeral=True)
        session.on_state(states.put_nowait)
        server.set_password("changed")
        await asyncio.to_thread(server.restart)
        await until(SessionState.EXPIRED)
        server.set_password(PASSWORD)
        await asyncio.to_thread(server.restart)
        await until(SessionState.CONNECTED)
        assert session.generation >= 1
        await session.sync()


async def test_changed_jaas_file_counts_for_the_next_connection(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    options = server.kafka_opts(USER, "changed")
    access = server.access({}, options)
    jaas = Path(options.rpartition("=")[2])
    client = Client(server.connect, LONG_MS / 1000, access)
    client.start_async()
    try:
        wait_until(lambda: client.failure.startswith("login of user kafka"), "refused")
        assert not client.connected
        jaas.write_text("Client {")
        wait_until(lambda: "keeping the former login" in caplog.text, "a file that is no use")
        right = Path(server.kafka_opts().rpartition("=")[2]).read_text()
        jaas.write_text(right)
        wait_until(lambda: client.connected, "the login that the file has now")
    finally:
        client.stop()
        client.close()
    assert PASSWORD not in caplog.text


async def test_server_that_asks_for_a_login_is_no_connection_without_one(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server._arguments.insert(0, "-Dzookeeper.sessionRequireClientSASLAuth=true")
    with server:
        plain = Session(server.connect, LONG_MS, LONG_MS)
        states: list[SessionState] = []
        plain.on_state(states.append)
        await plain.start()
        try:
            # The heartbeat may be the request that is answered.
            with pytest.raises((LoginRequiredError, ConnectionLoss)):
                await plain.create("/mine")
            async with asyncio.timeout(LONG_MS / 1000):
                while states.count(SessionState.EXPIRED) == 0:
                    await asyncio.sleep(0.01)
            client = plain._client
            wait_until(lambda: client.failure == "the server asks for a login", "the reason")
        finally:
            await plain.close()
        with pytest.raises(ConnectionError, match="asks for a login"):
            await Session(f"{server.connect}/below", LONG_MS, LONG_MS).start()
        async with connected(server.connect, server.access({}, server.kafka_opts())) as session:
            await session.create("/mine")


def test_servers_share_the_session_timeout_for_connections(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = server.access(server.tls_settings())
    handler = Client("127.0.0.1:1,127.0.0.1:2", 30, access).handler
    given: list[float] = []

    def connect(_: tuple[str, int], timeout: float) -> socket.socket:
        given.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(TimeoutError):
        handler.create_connection(("127.0.0.1", 1), "127.0.0.1", 30)
    assert 0 < given[0] <= 15


class LoginCutter:
    """Passes connections on to a ZooKeeper; while `cuts`, it ends them after the handshake.

    A login then gets no answer. A real server does so only as it stops.
    """

    def __init__(self, connect: str) -> None:
        host, port = connect.split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._closed = False
        self.connect = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = threading.Event()

    def __enter__(self) -> LoginCutter:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=run, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._start(self._pass_on, self._listener.accept()[0])

    def _pass_on(self, near: socket.socket) -> None:
        cuts = self.cuts.is_set()
        with near, suppress(OSError), socket.create_connection(self._target) as far:
            other = {near: far, far: near}
            while not self._closed and self.cuts.is_set() == cuts:
                for one in select.select([near, far], [], [], 0.05)[0]:
                    content = one.recv(65536)
                    other[one].sendall(content)
                    # The first answer ends the handshake.
                    if not content or (cuts and one is far):
                        return


async def test_session_whose_logins_get_no_answer_is_over_after_its_timeout(
    server: Server,
) -> None:
    access = server.access({}, server.kafka_opts())
    states = asyncio.Queue[SessionState]()
    with LoginCutter(server.connect) as cutter:
        session = Session(cutter.connect, SHORT_MS, zookeeper.START_SECONDS * 1000, access=access)
        session.on_state(states.put_nowait)
        await session.start()
        try:
            cutter.cuts.set()
            async with asyncio.timeout(zookeeper.START_SECONDS):
                while await states.get() is not SessionState.EXPIRED:
                    pass
            cutter.cuts.clear()
            async with asyncio.timeout(zookeeper.START_SECONDS):
                while await states.get() is not SessionState.CONNECTED:
                    pass
        finally:
            await session.close()


def test_proof_of_a_server_may_be_any_text() -> None:
    client = DigestClient("kafka", "secret", "ours")
    client.respond(b'nonce="theirs",algorithm=md5-sess')
    with pytest.raises(DigestError, match="does not prove"):
        client.check("rspauth=\u00e9".encode())
