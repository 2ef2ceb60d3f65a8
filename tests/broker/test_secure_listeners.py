"""TLS and SASL listeners of a real broker, with real clients and with peers that get it wrong."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from odradek.handlers.dispatch import SERVED
from odradek.net.client import PeerClient
from odradek.protocol import codec
from odradek.protocol.api import APIS, ApiKey
from odradek.protocol.headers import RequestHeader, encode_request_header
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from odradek.protocol.messages.sasl import ScramCredentialUpsertion as Upsertion
from tests.support import certificates, preloaded
from tests.support.authorization_cases import CASES, NEWER_CASES
from tests.support.broker import Cluster, wait_until
from tests.support.ports import free_port
from tests.support.quotas import alter, ask
from tests.support.sampling import how_many
from tests.support.secure_broker import SecureBroker, jaas

SASL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD = "alice-secret"
SHORT_MS = 2000
LISTENERS = {
    "TLS": "SSL",
    "MTLS": "SSL",
    "SASLPLAIN": "SASL_PLAINTEXT",
    "SASLTLS": "SASL_SSL",
    "SHORT": "SASL_PLAINTEXT",
    "LONG": "SASL_PLAINTEXT",
}


class ManyListeners(SecureBroker):
    protocols = LISTENERS


@dataclass(frozen=True)
class Secured:
    """A broker with all kinds of listeners, and certificates."""

    cluster: Cluster
    broker: ManyListeners
    authority: certificates.Authority
    own: certificates.Issued
    client: certificates.Issued
    metrics_port: int

    def metric(self, line: str) -> float:
        """Return the value of a series."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
        return next(
            (float(one.rsplit(" ", 1)[1]) for one in text.splitlines() if one.startswith(line)), 0.0
        )

    def sasl(self, listener: str, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
        """Return librdkafka's settings of the user alice."""
        with_tls = LISTENERS[listener] == "SASL_SSL"
        return {
            **(self.own.client() if with_tls else {}),
            "bootstrap.servers": self.broker.secure_address(listener),
            "security.protocol": LISTENERS[listener],
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": password,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = certificates.Authority(folder)
    own = authority.issue("broker", ["127.0.0.1", "localhost"])
    metrics_port = free_port()
    settings = {
        **own.settings(),
        "odradek.metrics.port": str(metrics_port),
        "auto.create.topics.enable": "true",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.mtls.ssl.principal.mapping.rules": "RULE:^CN=(cl[a-z]*)$/$1/U",
        "sasl.enabled.mechanisms": ",".join(SASL),
        "connection.failed.authentication.delay.ms": "1",
        "listener.name.short.connections.max.reauth.ms": str(SHORT_MS),
        "listener.name.long.connections.max.reauth.ms": "3600000",
        **{
            f"listener.name.{name}.plain.sasl.jaas.config": jaas(
                "PLAIN", user_alice=PASSWORD, user_bob=PASSWORD
            )
            for name in ("saslplain", "sasltls", "short", "long")
        },
    }
    with Cluster(folder, 1, settings, kind=ManyListeners) as cluster:
        broker = cluster.brokers[1]
        assert isinstance(broker, ManyListeners)
        admin = AdminClient({"bootstrap.servers": broker.address})
        outcome = admin.alter_user_scram_credentials(
            [
                UserScramCredentialUpsertion(
                    "alice", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode()
                )
                for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
            ]
        )
        outcome["alice"].result(60)
        yield Secured(cluster, broker, authority, own, authority.issue("client"), metrics_port)


def exchange(settings: dict[str, str], topic: str, values: list[bytes]) -> list[bytes]:
    """Produce values with acks=all and return what a consumer reads."""
    failures: list[KafkaError | None] = []
    producer = Producer({**settings, "message.max.bytes": 10_000_000})
    for value in values:
        producer.produce(
            topic, value, partition=0, on_delivery=lambda error, _: failures.append(error)
        )
    assert producer.flush(60) == 0
    assert failures == [None] * len(values)
    consumer = Consumer(
        {
            **settings,
            "group.id": f"of-{topic}",
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 10_000_000,
        }
    )
    read: list[bytes] = []
    try:
        consumer.subscribe([topic])

        def is_complete() -> bool:
            for message in consumer.consume(100, 1):
                assert message.error() is None, message.error()
                read.append(message.value() or b"")
            return len(read) >= len(values)

        wait_until(is_complete, "everything is read")
    finally:
        consumer.close()
    return read


def refusal(settings: dict[str, str]) -> KafkaError:
    """Return the error that a client gets instead of metadata."""
    errors: list[KafkaError] = []
    client = Producer({**settings, "error_cb": errors.append, "log_level": 0})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)
    client.poll(1)
    assert errors
    return errors[0]


@pytest.mark.parametrize("listener", ["TLS", "MTLS"])
def test_records_of_all_sizes_pass_through_tls(secured: Secured, listener: str) -> None:
    settings = {
        **secured.client.client(shown=listener == "MTLS"),
        "bootstrap.servers": secured.broker.secure_address(listener),
    }
    # One byte, a TLS record and more, a piece and more, and megabytes.
    values = [bytes([size % 251]) * size for size in (1, 16_385, 65_537, 900_000)]
    assert exchange(settings, f"sizes-{listener.lower()}", values) == values


@pytest.mark.parametrize("listener", ["SASLPLAIN", "SASLTLS"])
@pytest.mark.parametrize("mechanism", SASL)
def test_user_with_the_right_password_is_served(
    secured: Secured, listener: str, mechanism: str
) -> None:
    client = AdminClient({**secured.sasl(listener, mechanism)})
    assert client.list_topics(timeout=60).brokers.keys() == {1}


@pytest.mark.parametrize("mechanism", SASL)
def test_old_librdkafka_of_kcat_is_served(secured: Secured, mechanism: str) -> None:
    settings = secured.sasl("SASLTLS", mechanism)
    options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    said = subprocess.run(["kcat", "-L", "-m60", *options], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "broker 1 at" in said.stdout


@pytest.mark.parametrize("mechanism", SASL)
def test_wrong_password_is_refused_with_one_text(secured: Secured, mechanism: str) -> None:
    line = f'odradek_authentications_failed_total{{listener="SASLPLAIN",mechanism="{mechanism}"}}'
    before = secured.metric(line)
    wrong = refusal(secured.sasl("SASLPLAIN", mechanism, "guessed"))
    unknown = refusal({**secured.sasl("SASLPLAIN", mechanism), "sasl.username": "nobody"})
    assert wrong.code() == unknown.code() == KafkaError._AUTHENTICATION
    text = f"invalid credentials with SASL mechanism {mechanism}"
    assert text in wrong.str()
    assert text in unknown.str()
    assert secured.metric(line) >= before + 2


def test_session_is_renewed_on_the_same_connection(secured: Secured) -> None:
    expired = 'odradek_connections_closed_total{reason="violation"}'

    def outlives_a_session() -> bool:
        """Return whether no session ended; librdkafka authenticates again at 90 % of one, which is
        too late if broker or client stood still then.
        """
        before = secured.metric(expired)
        client = AdminClient({**secured.sasl("SHORT", "SCRAM-SHA-256")})
        ends = time.monotonic() + 1.5 * SHORT_MS / 1000

        def is_later() -> bool:
            client.list_topics(timeout=60)
            return time.monotonic() > ends

        wait_until(is_later, "the end of the first session")
        return secured.metric(expired) == before

    wait_until(outlives_a_session, "requests beyond the end of a session")


def of_each(admin: AdminClient, users: list[str]) -> list[Future[Any]]:
    found = admin.describe_user_scram_credentials(users)
    assert isinstance(found, dict)
    return [found[user] for user in users]


def test_key_50_describes_and_key_51_deletes(secured: Secured) -> None:
    admin = AdminClient({"bootstrap.servers": secured.broker.address})
    sha256 = ScramMechanism.SCRAM_SHA_256
    set_up = UserScramCredentialUpsertion("bob", ScramCredentialInfo(sha256, 8192), b"b")
    admin.alter_user_scram_credentials([set_up])["bob"].result(60)
    (found,) = of_each(admin, ["bob"])
    described = found.result(60)
    infos = [(one.mechanism, one.iterations) for one in described.scram_credential_infos]
    assert infos == [(sha256, 8192)]
    everyone = admin.describe_user_scram_credentials()
    assert not isinstance(everyone, dict)
    assert everyone.result(60).keys() == {"alice", "bob"}
    deletion = UserScramCredentialDeletion("bob", sha256)
    admin.alter_user_scram_credentials([deletion])["bob"].result(60)
    for again in (
        *of_each(admin, ["bob"]),
        admin.alter_user_scram_credentials([deletion])["bob"],
    ):
        with pytest.raises(KafkaException) as refused:
            again.result(60)
        assert refused.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND


def test_users_that_no_answer_can_hold_are_left_out(secured: Secured) -> None:
    admin = AdminClient({"bootstrap.servers": secured.broker.address})
    credential = "salt=AA==,stored_key=AA==,server_key=AA==,iterations="
    with secured.cluster.zookeeper.client() as client:
        for name, iterations in (("many", 2**31), ("n" * 32768, 4096)):
            config = {"SCRAM-SHA-256": f"{credential}{iterations}"}
            data = json.dumps({"version": 1, "config": config}).encode()
            client.create(f"/config/users/{name}", data)
    everyone = admin.describe_user_scram_credentials()
    assert not isinstance(everyone, dict)
    assert everyone.result(60).keys() == {"alice"}


async def asked(
    secured: Secured, request: AlterUserScramCredentialsRequest
) -> list[tuple[str, int]]:
    client = PeerClient("127.0.0.1", secured.broker.port, "asker")
    try:
        answer = await client.call(request, 0, 60_000)
    finally:
        await client.close()
    return [(one.user, one.error_code) for one in answer.results]


async def test_credentials_that_kafka_refuses_are_refused(secured: Secured) -> None:
    def upsertion(user: str, mechanism: int = 1, iterations: int = 4096) -> Upsertion:
        return Upsertion(
            name=user,
            mechanism=mechanism,
            iterations=iterations,
            salt=b"salt",
            salted_password=bytes(32),
        )

    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="nobody", mechanism=1)],
        upsertions=[
            upsertion(""),
            upsertion("few", iterations=4095),
            upsertion("many", iterations=16_385),
            upsertion("strange", mechanism=3),
            upsertion("twice"),
            upsertion("twice"),
            upsertion(".."),
        ],
    )
    assert dict(await asked(secured, request)) == {
        "": 93,
        "few": 93,
        "many": 93,
        "strange": 33,
        "twice": 92,
        "..": 93,
        "nobody": 91,
    }


def test_tls_listener_takes_openssls_client(secured: Secured) -> None:
    said = subprocess.run(
        [
            *("openssl", "s_client", "-brief", "-verify_return_error"),
            *("-connect", secured.broker.secure_address("TLS"), "-verify_hostname", "localhost"),
            *("-CAfile", str(secured.own.authority_path)),
        ],
        input="",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Verification: OK" in said.stderr
    assert "Protocol version: TLSv1.3" in said.stderr


def test_log_names_listeners_on_which_passwords_can_be_read(secured: Secured) -> None:
    log = secured.broker.log_text()
    assert "listener SASLPLAIN has no TLS" in log
    assert "listener SASLTLS has no TLS" not in log


def test_expiry_of_the_certificate_is_told(secured: Secured) -> None:
    line = 'odradek_certificate_not_after_timestamp_seconds{listener="TLS"}'
    assert secured.metric(line) == secured.own.certificate.not_valid_after_utc.timestamp()


def await_line(secured: Secured, text: str, provoke: Callable[[], object]) -> None:
    """Provoke until the log has a line: it leaves out some where many are alike."""

    def is_said() -> bool:
        provoke()
        return text in secured.broker.log_text()

    wait_until(is_said, text)


def greet(address: tuple[str, int], context: ssl.SSLContext) -> None:
    """Speak TLS, and send a request where that is understood."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(address, 60) as sock,
        context.wrap_socket(sock, server_hostname="localhost") as tls,
    ):
        tls.sendall(struct.pack(">i", len(METADATA)) + METADATA)
        assert not tls.recv(1), "it was served"


def test_clients_that_use_the_wrong_protocol_are_named(secured: Secured) -> None:
    handshakes = 'odradek_tls_handshakes_failed_total{cause="no-tls",listener="TLS"}'
    before = secured.metric(handshakes)

    def speak_plainly_to(listener: str) -> None:
        refusal({"bootstrap.servers": secured.broker.secure_address(listener)})

    no_tls = " on listener TLS: TLS: WRONG_VERSION_NUMBER"
    await_line(secured, no_tls, lambda: speak_plainly_to("TLS"))
    assert secured.metric(handshakes) > before
    context = ssl.create_default_context(cafile=str(secured.own.authority_path))
    plain = ("127.0.0.1", secured.broker.port)
    await_line(secured, "the peer speaks TLS", lambda: greet(plain, context))
    no_login = f" on listener SASLPLAIN: request {ApiKey.METADATA} before authentication"
    await_line(secured, no_login, lambda: speak_plainly_to("SASLPLAIN"))


def test_certificate_without_a_rule_is_not_served(secured: Secured) -> None:
    other = secured.authority.issue("other")
    context = ssl.create_default_context(cafile=str(other.authority_path))
    context.load_cert_chain(other.pem_path)
    address = ("127.0.0.1", secured.broker.ports["MTLS"])
    text = "no rule of ssl.principal.mapping.rules is for CN=other"
    await_line(secured, text, lambda: greet(address, context))


def request(key: int, version: int, body: bytes) -> bytes:
    return struct.pack(">hhih", key, version, 7, -1) + body


def answers(secured: Secured, frames: list[bytes], listener: str = "SASLPLAIN") -> list[bytes]:
    """Return the answers on a SASL connection until the broker closes it or stops answering."""
    address = ("127.0.0.1", secured.broker.ports[listener])
    with socket.create_connection(address, 60) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(b"".join(struct.pack(">i", len(one)) + one for one in frames))
            sock.shutdown(socket.SHUT_WR)
        found = bytearray()
        with contextlib.suppress(OSError):
            while chunk := sock.recv(65_536):
                found += chunk
    split: list[bytes] = []
    while len(found) >= 4:
        (size,) = struct.unpack_from(">i", found)
        split.append(bytes(found[4 : 4 + size]))
        del found[: 4 + size]
    return split


CHOOSE = request(17, 1, b"\x00\x05PLAIN")
METADATA = request(3, 0, bytes(4))
GOOD_TOKEN = b"\0alice\0" + PASSWORD.encode()


def token(content: bytes) -> bytes:
    return request(36, 0, struct.pack(">i", len(content)) + content)


def test_frames_before_authentication_are_those_of_sasl_only(secured: Secured) -> None:
    assert len(answers(secured, [request(18, 0, b""), CHOOSE, token(GOOD_TOKEN), METADATA])) == 4
    # The old way: a bare token after version 0 of the handshake.
    old = request(17, 0, b"\x00\x05PLAIN")
    assert answers(secured, [old, GOOD_TOKEN, METADATA])[1] == b""
    assert len(answers(secured, [old, b"\0alice\0wrong", METADATA])) == 1
    assert answers(secured, [METADATA]) == []
    assert answers(secured, [token(GOOD_TOKEN), METADATA]) == []
    assert len(answers(secured, [CHOOSE, METADATA])) == 1
    assert len(answers(secured, [CHOOSE, CHOOSE])) == 1
    assert answers(secured, [bytes(600_000)]) == []
    (unknown,) = answers(secured, [request(17, 1, b"\x00\x06GSSAPI"), METADATA])
    code, count = struct.unpack_from(">hi", unknown, 4)
    assert (code, count) == (33, len(SASL))
    wrong = answers(secured, [CHOOSE, token(b"\0alice\0wrong"), METADATA])
    assert struct.unpack_from(">h", wrong[1], 4) == (58,)
    assert len(wrong) == 2
    for bad in (b"", b"\0\0", b"alice\0alice", b"\0alice\0", b"bob" + GOOD_TOKEN, b"\xff" * 9):
        assert struct.unpack_from(">h", answers(secured, [CHOOSE, token(bad)])[1], 4) == (58,)


def code(answer: bytes) -> int:
    return int(struct.unpack_from(">h", answer, 4)[0])


def test_session_is_renewed_by_its_own_user_and_mechanism_only(secured: Secured) -> None:
    def again(*frames: bytes) -> list[int]:
        """Return the codes after a first authentication and a request."""
        begun = [CHOOSE, token(GOOD_TOKEN), METADATA]
        found = answers(secured, [*begun, *frames, METADATA], "LONG")
        assert len(found) >= len(begun)
        return [code(one) for one in found[len(begun) : len(begun) + len(frames)]] + [
            len(found) - len(begun)
        ]

    assert again(CHOOSE, token(GOOD_TOKEN)) == [0, 0, 3]
    bob = token(b"\0bob\0" + PASSWORD.encode())
    assert answers(secured, [CHOOSE, bob, METADATA], "LONG")[2:]
    assert again(CHOOSE, bob) == [0, 58, 2]
    assert again(CHOOSE, token(b"\0alice\0wrong")) == [0, 58, 2]
    # Between the handshake and the token there is no other request.
    assert again(CHOOSE) == [0, 1]
    assert again(request(17, 1, b"\x00\x0dSCRAM-SHA-256")) == [34, 1]
    # Where sessions have no end nobody authenticates twice.
    assert code(answers(secured, [CHOOSE, token(GOOD_TOKEN), CHOOSE])[2]) == 34


def test_session_ends_unless_it_is_renewed(secured: Secured) -> None:
    def ask(sock: socket.socket, frame: bytes) -> bytes:
        """Return the answer; nothing once the broker has closed the connection."""
        with contextlib.suppress(OSError):
            sock.sendall(struct.pack(">i", len(frame)) + frame)
            reader = sock.makefile("rb")
            if size := reader.read(4):
                return reader.read(*struct.unpack(">i", size))
        return b""

    def lasts_longer() -> bool:
        """Return whether a renewed session is served when another is over; it may be over as well
        by then.
        """
        address = ("127.0.0.1", secured.broker.ports["SHORT"])
        with contextlib.ExitStack() as stack:
            first, second = (
                stack.enter_context(socket.create_connection(address, 60)) for _ in range(2)
            )
            for sock in (first, second):
                ask(sock, CHOOSE)
                assert code(ask(sock, token(GOOD_TOKEN))) == 0
            wait_until(lambda: not ask(second, METADATA), "the session of the second is over")
            # So is that of the first, which may still authenticate (KIP-368).
            assert code(ask(first, CHOOSE)) == 0
            assert code(ask(first, token(GOOD_TOKEN))) == 0
            return ask(first, METADATA) != b""

    violations = 'odradek_connections_closed_total{reason="violation"}'
    before = secured.metric(violations)
    wait_until(lasts_longer, "a request after a second authentication")
    assert secured.metric(violations) > before


def test_no_api_is_served_before_authentication(secured: Secured) -> None:
    entries = {entry.request: entry for entry in APIS.values()}
    tried = set()
    for case in (*CASES, *NEWER_CASES):
        made = case.make("fresh")
        entry = entries[type(made)]
        tried.add(entry.key)
        header = RequestHeader(entry.key, case.version, 7, "stranger")
        frame = encode_request_header(header) + codec.encode(made, case.version)
        assert answers(secured, [frame]) == [], case.name
        assert len(answers(secured, [CHOOSE, frame])) == 1, case.name
    before = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
    assert SERVED.keys() - tried - before == {ApiKey.UPDATE_FEATURES}
    names = AdminClient({"bootstrap.servers": secured.broker.address}).list_topics(timeout=60)
    assert not any(name.startswith("fresh") for name in names.topics)


def test_strangers_use_up_no_quota(secured: Secured) -> None:
    def throttle_ms(client_id: str) -> int:
        return ask(secured.broker, ApiVersionsRequest(), 2, client_id).throttle_time_ms

    def limit(percentage: float | None) -> None:
        parts = [("client-id", "busy")]
        changed = alter(secured.broker, parts, {"request_percentage": percentage})
        assert changed.entries[0].error_code == 0

    limit(0.0001)
    try:
        wait_until(lambda: throttle_ms("busy") > 0, "the quota is in force")
        # ApiVersions 2 ends with the throttle time.
        (answer,) = answers(secured, [struct.pack(">hhih4s", 18, 2, 7, 4, b"busy")])
        assert struct.unpack(">i", answer[-4:]) == (0,)
    finally:
        limit(None)


def test_name_that_zookeeper_does_not_take_is_no_user(secured: Secured) -> None:
    # Its path would be longer than ZooKeeper reads, which then ends the broker's connection.
    longest = request(17, 1, b"\x00\x0dSCRAM-SHA-256"), token(b"n,,n=" + b"/" * 500_000 + b",r=x")
    for _ in range(2):
        _, challenge = answers(secured, list(longest))
        assert struct.unpack_from(">hh", challenge, 4) == (0, -1)
    named = token(b"\0" + b"/" * 500_000 + b"\0guessed")
    text = "wrong name or password of '////"
    await_line(secured, text, lambda: answers(secured, [CHOOSE, named]))
    assert max(map(len, secured.broker.log_text().splitlines())) < 1000
    assert " is suspended" not in secured.broker.log_text()


def test_nothing_before_authentication_lets_anybody_in(secured: Secured) -> None:
    random = Random(20)
    good = [request(18, 3, b"\x00\x02a\x02b\x00"), CHOOSE, token(GOOD_TOKEN)]
    violations = secured.broker.log_text().count("Traceback")
    for _ in range(how_many(60, full=200_000)):
        frames = [bytearray(random.choice([*good, METADATA])) for _ in range(random.randint(1, 5))]
        for frame in frames:
            for _ in range(random.randint(1, 3)):
                where = random.randrange(len(frame))
                frame[where] = random.randrange(256)
            if random.random() < 0.3:
                del frame[random.randrange(len(frame)) :]
        bent = [bytes(frame) for frame in frames]
        if token(GOOD_TOKEN) in bent and CHOOSE in bent:
            continue
        # Metadata would name the broker's port.
        for answer in answers(secured, [*bent, METADATA]):
            assert struct.pack(">i", secured.broker.port) not in answer
    assert secured.broker.log_text().count("Traceback") == violations
    assert secured.broker.running


def test_broker_with_a_bad_file_ends_with_one_line(secured: Secured, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.pem"
    mixed.write_bytes(secured.own.key_pem() + secured.client.certificate_path.read_bytes())
    path = tmp_path / "server.properties"
    for location, reason in (
        (tmp_path / "absent.pem", "No such file or directory"),
        (mixed, "the key does not fit the certificate"),
    ):
        path.write_text(
            f"broker.id=0\nzookeeper.connect=127.0.0.1:1\nlisteners=SSL://127.0.0.1:1\n"
            f"security.inter.broker.protocol=SSL\nssl.keystore.type=PEM\n"
            f"ssl.keystore.location={location}\n"
        )
        ended = subprocess.run(
            [sys.executable, "-m", "odradek", "broker", str(path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert ended.stderr == f"odradek: cannot use ssl.keystore.location={location}: {reason}\n"
        assert ended.returncode == 2


# --- commands ---------------------------------------------------------------------------------


def client_properties(secured: Secured, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
    """Return the settings of the user alice for a listener with SASL_SSL."""
    return {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(secured.own.authority_path),
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": jaas(mechanism, username="alice", password=PASSWORD),
    }


def command(settings: dict[str, str], folder: Path, *arguments: str, status: int = 0) -> str:
    """Return what `odradek` prints; on stderr if it is to fail, as one line."""
    path = folder / "client.properties"
    path.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    done = preloaded.run("odradek", *arguments, "--command-config", str(path), timeout=120)
    assert done.returncode == status, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == (1 if status else 0), done.stderr
    return done.stderr if status else done.stdout


@pytest.mark.parametrize("mechanism", SASL)
def test_commands_authenticate_over_tls(secured: Secured, tmp_path: Path, mechanism: str) -> None:
    settings, topic = client_properties(secured, mechanism), f"by-{mechanism.lower()}"
    at = ("--bootstrap-server", secured.broker.secure_address("SASLTLS"))
    command(settings, tmp_path, "topics", "create", topic, *at)
    changed = command(
        settings,
        tmp_path,
        *("configs", "alter", "--topic", topic, *at),
        *("--add-config", "retention.ms=5000"),
    )
    assert changed == f"topic {topic} changed\n"
    # From ZooKeeper, which knows the listeners of every broker.
    connect = secured.cluster.zookeeper.connect
    command(settings, tmp_path, "groups", "list", "--zookeeper", connect)
    command(settings, tmp_path, "groups", "list", *at)
    [shown] = json.loads(command(settings, tmp_path, "cluster", *at, "-o", "json"))["brokers"]
    assert shown["address"] == secured.broker.secure_address("SASLTLS")
    assert shown["bytes"] is not None
    command(settings, tmp_path, "topics", "delete", topic, *at)


def test_command_shows_its_certificate(secured: Secured, tmp_path: Path) -> None:
    at = ("--bootstrap-server", secured.broker.secure_address("MTLS"))
    settings = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(secured.client.pkcs12_path),
        "ssl.truststore.password": certificates.PASSWORD,
    }
    refused = command(settings, tmp_path, "topics", "list", *at, status=1)
    assert "does it want a certificate?" in refused
    own = {
        "ssl.keystore.location": str(secured.client.pkcs12_path),
        "ssl.keystore.password": certificates.PASSWORD,
    }
    assert "PARTITIONS" in command({**settings, **own}, tmp_path, "topics", "list", *at)


@pytest.mark.parametrize(
    ("listener", "protocol", "said"),
    [
        ("TLS", "PLAINTEXT", "is PLAINTEXT the security.protocol of this listener? See --comm"),
        ("SASLPLAIN", "PLAINTEXT", "is PLAINTEXT the security.protocol of this listener?"),
        ("SASLTLS", "SSL", "is SSL the security.protocol of this listener, and"),
        ("SASLTLS", "SASL_PLAINTEXT", "is SASL_PLAINTEXT the security.protocol"),
        ("SASLPLAIN", "SASL_SSL", "is SASL_SSL the security.protocol of this listener, and"),
        ("PLAINTEXT", "SASL_PLAINTEXT", "SASL handshake: ILLEGAL_SASL_STATE"),
    ],
)
def test_wrong_protocol_of_a_command_ends_it_with_advice(
    secured: Secured, tmp_path: Path, listener: str, protocol: str, said: str
) -> None:
    plain = {"PLAINTEXT": secured.broker.address}
    address = plain.get(listener) or secured.broker.secure_address(listener)
    every = client_properties(secured)
    settings = {
        name: text
        for name, text in every.items()
        if (not name.startswith("ssl.") or protocol.endswith("SSL"))
        and (not name.startswith("sasl.") or protocol.startswith("SASL"))
    }
    settings["security.protocol"] = protocol
    told = command(settings, tmp_path, "topics", "list", "--bootstrap-server", address, status=1)
    assert said in told


def test_wrong_credentials_and_certificates_end_a_command(secured: Secured, tmp_path: Path) -> None:
    good = client_properties(secured)
    port = secured.broker.ports["SASLTLS"]

    def refusal_of(changes: dict[str, str], host: str = "127.0.0.1") -> str:
        at = ("--bootstrap-server", f"{host}:{port}")
        return command({**good, **changes}, tmp_path, "cluster", *at, status=1)

    guess = jaas("SCRAM-SHA-512", username="alice", password="guessed")
    assert "SASL_AUTHENTICATION_FAILED" in refusal_of({"sasl.jaas.config": guess})
    other = certificates.Authority(tmp_path, "other").issue("other")
    untrusted = {"ssl.truststore.location": str(other.authority_path)}
    assert "TLS: self-signed certificate in certificate chain" in refusal_of(untrusted)
    # Another name of 127.0.0.1, which the certificate does not have.
    assert "certificate is not valid for '127.1'" in refusal_of({}, "127.1")
    unchecked = {**good, "ssl.endpoint.identification.algorithm": ""}
    command(unchecked, tmp_path, "cluster", "--bootstrap-server", f"127.1:{port}")
