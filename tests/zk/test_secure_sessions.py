"""Sessions over TLS and with a login, against a real ZooKeeper, and what goes wrong with them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)
from kazoo.security import ACL

from odradek.zk.client import OPEN, ZooKeeperAccess
from odradek.zk.operations import Create
from odradek.zk.session import Session, SessionState
from tests.support import certificates, secure_zookeeper, zookeeper
from tests.support.secure_zookeeper import (
    GREEK_PASSWORD,
    GREEK_USER,
    PASSWORD,
    USER,
    Server,
)

LONG_MS = zookeeper.SESSION_SECONDS * 1000
# So long a start tries again what fails at once.
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


async def refusal(connect: str, access: ZooKeeperAccess) -> str:
    """Return why a session does not start."""
    session = Session(connect, LONG_MS, REFUSED_MS, access=access)
    with pytest.raises(ConnectionError) as caught:
        await session.start()
    start = f"no ZooKeeper at {connect} within {REFUSED_MS} ms: "
    text = str(caught.value)
    assert text.startswith(start)
    assert "\n" not in text
    return text.removeprefix(start)


def acl_of(server: Server, path: str) -> set[tuple[str, str, int]]:
    with server.client() as client:
        acls, _ = client.get_acls(path)
    return {readable(acl) for acl in acls}


def readable(acl: ACL) -> tuple[str, str, int]:
    return (acl.id.scheme, acl.id.id, acl.perms)


async def test_thousand_answers_in_few_tls_records_all_arrive_at_once(server: Server) -> None:
    access = server.access(server.tls_settings())
    async with connected(f"{server.secure_connect}/many", access) as session:
        await session.multi([Create(f"/n{i}", b"x" * 100) for i in range(500)])
        clock = asyncio.get_running_loop().time
        for _ in range(3):
            began = clock()
            assert len(await session.get_all(f"/n{i}" for i in range(500))) == 500
            # kazoo alone would wait for its next ping, a third of the time-out away.
            assert clock() - began < LONG_MS / 1000 / 4


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


async def test_server_that_is_not_who_it_should_be_is_refused(
    server: Server, tmp_path: Path
) -> None:
    others = certificates.Authority(tmp_path, "another").issue("x").authority_path
    settings = server.tls_settings()
    wrong = server.access({**settings, "zookeeper.ssl.truststore.location": str(others)})
    assert await refusal(server.secure_connect, wrong) == (
        "its certificate is refused: unable to get local issuer certificate"
    )
    # The certificate is for the address only.
    by_name = f"localhost:{server.secure_port}"
    assert await refusal(by_name, server.access(settings)) == (
        "its certificate is refused: Hostname mismatch, certificate is not valid for 'localhost'."
    )
    unchecked = {**settings, "zookeeper.ssl.endpoint.identification.algorithm": ""}
    async with connected(by_name, server.access(unchecked)) as session:
        assert await session.exists("/") is not None


async def test_expired_certificate_is_refused(tmp_path: Path) -> None:
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
        assert await refusal(connect, access) == (
            "its certificate is refused: certificate has expired"
        )
        listener.shutdown(socket.SHUT_RDWR)
    await asyncio.to_thread(thread.join)


async def test_tls_to_a_plain_port_and_plain_to_a_tls_port_are_refused(server: Server) -> None:
    with_tls = await refusal(server.connect, server.access(server.tls_settings()))
    assert with_tls.startswith("TLS handshake failed: ")
    plain = await refusal(server.secure_connect, OPEN)
    assert plain.startswith("the server ended the connection: ")


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
    with pytest.raises(ConnectionError) as caught:
        await session.start()
    assert str(caught.value) == (
        f"no ZooKeeper at {server.connect} within {REFUSED_MS} ms: "
        f"login of user {USER} failed: the server refused it"
    )
    assert SessionState.CONNECTED not in states


async def test_server_without_sasl_is_refused(tmp_path: Path, server: Server) -> None:
    access = server.access({}, server.kafka_opts())
    with zookeeper.Server(tmp_path) as plain:
        why = await refusal(plain.connect, access)
    assert why.startswith(f"login of user {USER} failed: ")
