"""A listener with OAUTHBEARER: real clients with tokens of a real issuer, and peers without."""

from __future__ import annotations

import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from odradek.protocol.messages.metadata import MetadataRequest
from odradek_operator.shared.broker_client import BrokerError, OperatorClient
from odradek_operator.shared.broker_security import SecurityFile
from tests.support import oauth, preloaded
from tests.support.broker import Cluster, wait_until
from tests.support.clients import QUIET
from tests.support.ports import free_port
from tests.support.secure_broker import SecureBroker

REFUSAL = b'{"status":"invalid_token"}'
FAILED = 'odradek_authentications_failed_total{listener="CLIENTS",mechanism="OAUTHBEARER"}'


class Tokens(SecureBroker):
    protocols = {"CLIENTS": "SASL_PLAINTEXT"}


@dataclass(frozen=True)
class Setup:
    """A broker, and the issuer whose tokens it takes."""

    broker: Tokens
    issuer: oauth.Issuer
    metrics_port: int

    def metric(self, line: str) -> float:
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
        return next(
            float(one.rsplit(" ", 1)[1]) for one in text.splitlines() if one.startswith(line)
        )

    def client(self, token: Callable[[], str], lifetime_s: float = 3600) -> dict[str, Any]:
        """Return librdkafka's settings of a client that shows tokens."""
        return {
            **QUIET,
            "bootstrap.servers": self.broker.secure_address("CLIENTS"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (token(), time.time() + lifetime_s, "alice", {"traceId": "x y"}),
        }

    def say(self, *tokens: bytes) -> list[tuple[int, str | None, bytes, int]]:
        """Return code, message, token and lifetime of the answer to each of the tokens."""
        with self.chosen() as sock:
            return [token_on(sock, one) for one in tokens]

    def chosen(self) -> socket.socket:
        """Return a connection on which the mechanism is chosen."""
        sock = socket.create_connection(("127.0.0.1", self.broker.ports["CLIENTS"]), 60)
        choose(sock)
        return sock


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def frame(key: int, version: int, body: bytes) -> bytes:
    return sized(struct.pack(">hhih", key, version, 7, -1) + body)


METADATA = frame(3, 0, bytes(4))


def choose(sock: socket.socket) -> None:
    assert exchanged(sock, frame(17, 1, b"\x00\x0bOAUTHBEARER"))[4:6] == b"\0\0"


def token_on(sock: socket.socket, token: bytes) -> tuple[int, str | None, bytes, int]:
    return read(exchanged(sock, frame(36, 1, sized(token))))


def exchanged(sock: socket.socket, request: bytes) -> bytes:
    sock.sendall(request)
    (size,) = struct.unpack(">i", received(sock, 4))
    return received(sock, size)


def received(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = sock.recv(size - len(found))
        if not piece:
            raise ConnectionResetError
        found += piece
    return found


def read(answer: bytes) -> tuple[int, str | None, bytes, int]:
    code, length = struct.unpack_from(">hh", answer, 4)
    place = 8 + max(0, length)
    text = answer[8:place].decode() if length >= 0 else None
    (size,) = struct.unpack_from(">i", answer, place)
    token = answer[place + 4 : place + 4 + size]
    (lifetime_ms,) = struct.unpack_from(">q", answer, place + 4 + size)
    return code, text, token, lifetime_ms


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("oauth")
    metrics_port = free_port()
    with oauth.Issuer(folder) as issuer:
        settings = {
            **issuer.settings("CLIENTS"),
            "inter.broker.listener.name": "PLAINTEXT",
            "odradek.metrics.port": str(metrics_port),
            "odradek.oauthbearer.refused.principals": "User:odradek-*",
            "connection.failed.authentication.delay.ms": "1",
        }
        with Cluster(folder, 1, settings, kind=Tokens) as cluster:
            broker = cluster.brokers[1]
            assert isinstance(broker, Tokens)
            found = Setup(broker, issuer, metrics_port)
            line = 'odradek_jwks_age_seconds{listener="CLIENTS"}'
            wait_until(lambda: found.metric(line) < 1000, "the keys are fetched")
            yield found


def test_librdkafka_shows_a_token_and_learns_that_another_is_refused(setup: Setup) -> None:
    good = AdminClient(setup.client(lambda: setup.issuer.token("alice")))
    assert good.list_topics(timeout=60).brokers.keys() == {1}
    before = setup.metric(FAILED)
    errors: list[KafkaError] = []
    expired = setup.client(lambda: setup.issuer.token("alice", exp=int(time.time()) - 600))
    client = Producer({**expired, "error_cb": errors.append})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)
    client.poll(1)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "invalid_token" in errors[0].str()
    assert setup.metric(FAILED) > before
    assert "Signature has expired" in setup.broker.log_text()


def test_refused_token_is_counted_though_its_client_leaves_without_an_answer(setup: Setup) -> None:
    """franz-go, aiokafka and KafkaJS do."""
    before = setup.metric(FAILED)
    wrong = oauth.message(setup.issuer.token("alice", aud="others"))
    assert setup.say(wrong) == [(0, None, REFUSAL, 0)]
    assert setup.metric(FAILED) > before


def test_session_lasts_as_long_as_the_token_or_the_next_one(setup: Setup) -> None:
    with setup.chosen() as sock:
        short = oauth.message(setup.issuer.token("alice", exp=int(time.time()) + 2))
        assert 0 < token_on(sock, short)[3] <= 2000
        again = oauth.message(setup.issuer.token("alice"))
        choose(sock)
        assert token_on(sock, again)[3] > 2000
        # Beyond the first session.
        until = time.monotonic() + 2.1
        while time.monotonic() < until:
            exchanged(sock, METADATA)
        choose(sock)
        assert token_on(sock, oauth.message(setup.issuer.token("bob")))[0] == 58
    with setup.chosen() as sock:
        short = oauth.message(setup.issuer.token("alice", exp=int(time.time()) + 2))
        assert token_on(sock, short)[0] == 0

        def is_closed() -> bool:
            try:
                exchanged(sock, METADATA)
            except OSError:
                return True
            return False

        wait_until(is_closed, "the session ends with the token")


def test_answers_are_those_of_kafka(setup: Setup) -> None:
    issuer = setup.issuer
    [(code, text, answer, lifetime_ms)] = setup.say(oauth.message(issuer.token("alice")))
    assert (code, text, answer) == (0, None, b"")
    assert 0 < lifetime_ms <= 1000 * oauth.LIFETIME_S
    # Within the time that clocks may differ the token is taken, but the session ends at once.
    late = oauth.message(issuer.token("alice", exp=int(time.time()) - 1))
    assert setup.say(late) == [(0, None, b"", 1)]
    # Java's clients renew it by a clock of nanoseconds in 64 bits, which must not overflow.
    [(*_, lifetime_ms)] = setup.say(oauth.message(issuer.token("alice", exp=253_402_300_799)))
    assert 10**12 < lifetime_ms < 2**63 / 10**6
    for wrong in (
        issuer.token("alice", iss="https://elsewhere"),
        issuer.token("alice", aud="others"),
        issuer.token("odradek-operator"),
        issuer.token("alice") + "x",
        "a.b.c",
        "a",
    ):
        assert setup.say(oauth.message(wrong), b"\x01") == [
            (0, None, REFUSAL, 0),
            (58, REFUSAL.decode(), b"", 0),
        ]
    # A refused peer does not get another try.
    again = oauth.message(issuer.token("alice"))
    assert setup.say(oauth.message("a"), again)[1][0] == 58
    generic = "Authentication failed during authentication due to invalid credentials with SASL "
    for malformed in (b"", b"\x01", b"n,,", oauth.message("x" * 70_000)):
        [(code, text, answer, _)] = setup.say(malformed)
        assert (code, text, answer) == (58, f"{generic}mechanism OAUTHBEARER", b"")
    assert setup.say(oauth.message(issuer.token("alice"), acts_for="bob"))[0][0] == 58
    assert setup.say(oauth.message(issuer.token("alice"), acts_for="alice"))[0][0] == 0


def test_new_key_counts_without_a_restart(setup: Setup) -> None:
    setup.issuer.rotate("second")
    token = oauth.message(setup.issuer.token("alice"))
    wait_until(lambda: setup.say(token)[0][2] == b"", "the token of the new key is taken")


def test_broker_with_keys_goes_on_while_the_endpoint_is_away(setup: Setup) -> None:
    sound, setup.issuer.document = setup.issuer.document, lambda: (503, b"")
    try:
        setup.say(oauth.message(setup.issuer.token("alice")))
        for _ in range(3):
            unknown = oauth.message(setup.issuer.token("alice").replace("eyJ", "eyI"))
            setup.say(unknown)
        assert setup.say(oauth.message(setup.issuer.token("alice")))[0][0] == 0
    finally:
        setup.issuer.document = sound


def written(path: Path, settings: dict[str, str]) -> Path:
    every = {"security.protocol": "SASL_PLAINTEXT", **settings}
    path.write_text("".join(f"{name}={text}\n" for name, text in every.items()))
    return path


def command(folder: Path, setup: Setup, settings: dict[str, str]) -> tuple[int, str]:
    """Return the status of a command, and what it says of an error."""
    path = written(folder / "client.properties", settings)
    at = ("--bootstrap-server", setup.broker.secure_address("CLIENTS"))
    done = preloaded.run("odradek", "cluster", *at, "--command-config", str(path), timeout=120)
    assert len(done.stderr.splitlines()) == (1 if done.returncode else 0), done.stderr
    assert oauth.SECRET not in done.stderr
    return done.returncode, done.stderr


def test_command_shows_tokens_of_an_endpoint_and_of_a_file(setup: Setup, tmp_path: Path) -> None:
    """The one test of a whole command with tokens; their errors are in test_access_tokens."""
    issuer, url = setup.issuer, "sasl.oauthbearer.token.endpoint.url"
    assert command(tmp_path, setup, issuer.client_settings("alice")) == (0, "")
    status, said = command(tmp_path, setup, issuer.client_settings("alice", "guessed"))
    assert status == 2
    assert said.startswith(f"odradek: failed to get a token from {issuer.url}/token: ")
    assert said.endswith(": HTTP status 401: invalid_client\n")
    away = {url: f"https://localhost:{free_port()}/token"}
    status, said = command(tmp_path, setup, {**issuer.client_settings("alice"), **away})
    assert status == 1
    assert "Connection refused" in said
    of_file = {"sasl.mechanism": "OAUTHBEARER", url: (tmp_path / "token").as_uri()}
    assert command(tmp_path, setup, of_file) == (
        2,
        f"odradek: cannot read the token in {tmp_path}/token: No such file or directory\n",
    )
    (tmp_path / "token").write_text(issuer.token("alice") + "\n")
    assert command(tmp_path, setup, of_file) == (0, "")
    (tmp_path / "token").write_text(issuer.token("alice", aud="others"))
    status, said = command(tmp_path, setup, of_file)
    assert status == 1
    assert 'SASL_AUTHENTICATION_FAILED: {"status":"invalid_token"}' in said


def test_exporter_goes_on_with_its_token_in_the_next_round(setup: Setup, tmp_path: Path) -> None:
    """Adds the operator's blocking client, which reads its file for each round."""
    path = tmp_path / "client.properties"
    issuer = setup.issuer
    addresses = {1: ("127.0.0.1", setup.broker.ports["CLIENTS"])}
    file = SecurityFile(path)

    def controller() -> int:
        with OperatorClient(addresses, file.present()) as client:
            return client.call(1, MetadataRequest(topics=[]), 5).controller_id

    written(path, issuer.client_settings("exporter"))
    issuer.asked.clear()
    assert (controller(), controller()) == (1, 1)
    assert [user for user, _ in issuer.asked] == ["exporter"]
    written(path, issuer.client_settings("other", "guessed"))
    with pytest.raises(BrokerError, match="HTTP status 401: invalid_client"):
        controller()
    issuer.claims["outsider"] = {"aud": "others"}
    written(path, issuer.client_settings("outsider"))
    with pytest.raises(BrokerError, match=r'\{"status":"invalid_token"\}'):
        controller()
