"""Certificates that the operator makes: who believes them, and when they are renewed."""

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from odradek.security import principals
from odradek_operator.shared import certificates
from odradek_operator.shared.certificates import Pair, UnusableError

NOW = datetime.now(UTC).replace(microsecond=0)
BROKER = certificates.subject("main-broker", "odradek")
HOSTS = ["127.0.0.1", "fd00::1", "main-brokers.logs.svc", "*.main-brokers.logs.svc"]


def context(folder: Path, own: Pair, trusted: Pair, *, server: bool) -> ssl.SSLContext:
    path = folder / f"{server}.pem"
    path.write_text(own.key + own.certificate)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.verify_mode = ssl.CERT_REQUIRED
    # As strict as OpenSSL can be about what a certificate must have.
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_cert_chain(path)
    made.load_verify_locations(cadata=trusted.certificate)
    return made


@pytest.fixture(scope="module")
def authority() -> Pair:
    return certificates.make_authority("main-cluster-ca", NOW)


def test_server_and_client_believe_each_other(tmp_path: Path, authority: Pair) -> None:
    clients = certificates.make_authority("main-clients-ca", NOW)
    server = certificates.sign_server(authority, BROKER, HOSTS, NOW)
    client = certificates.sign_client(clients, certificates.subject("shop"), NOW)
    names: list[str] = []

    def serve(sock: socket.socket) -> None:
        with context(tmp_path, server, clients, server=True).wrap_socket(sock, True) as wrapped:
            der = wrapped.getpeercert(binary_form=True)
            assert der is not None
            names.append(principals.distinguished_name(der))

    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=[ours])
    thread.start()
    trusting = context(tmp_path, client, authority, server=False)
    try:
        with trusting.wrap_socket(theirs, server_hostname="127.0.0.1") as wrapped:
            der = wrapped.getpeercert(binary_form=True)
            thread.join()
    finally:
        theirs.close()
        thread.join()
    assert der is not None
    assert names == ["CN=shop"]
    assert principals.distinguished_name(der) == "CN=main-broker,O=odradek"


def test_a_client_cannot_be_a_server(tmp_path: Path, authority: Pair) -> None:
    own = certificates.load(certificates.sign_client(authority, BROKER, NOW).certificate)[0]
    uses = own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]


def test_renewed_when_something_is_amiss_or_a_third_of_the_time_is_left(authority: Pair) -> None:
    pair = certificates.sign_server(authority, BROKER, HOSTS, NOW)
    other = certificates.make_authority("main-cluster-ca", NOW)

    def why(
        pair: Pair = pair,
        by: Pair = authority,
        hosts: list[str] = HOSTS,
        whom: x509.Name = BROKER,
        days: float = 0,
    ) -> str | None:
        return certificates.why_renew(pair, by.certificate, hosts, whom, NOW + timedelta(days=days))

    assert why() is None
    assert why(hosts=HOSTS[:2]) is None
    assert why(days=59) is None
    assert "ends on" in str(why(days=61))
    assert "ended on" in str(why(days=91))
    assert "begins on" in str(why(days=-1))
    assert why(hosts=[*HOSTS, "10.0.0.9"]) == "it does not prove 10.0.0.9"
    assert why(by=other) == "the authority is another one"
    assert why(whom=certificates.subject("other")) == "its subject is another one"
    assert "does not fit" in str(why(Pair(pair.certificate, other.key)))
    assert "key cannot be read" in str(why(Pair(pair.certificate, "rubbish")))
    assert "no certificate" in str(why(Pair("rubbish", pair.key)))


def test_no_certificate_outlives_its_authority(authority: Pair) -> None:
    late = NOW + timedelta(days=3640)
    own = certificates.load(certificates.sign_client(authority, BROKER, late).certificate)[0]
    ends = certificates.load(authority.certificate)[0].not_valid_after_utc
    assert own.not_valid_after_utc == ends


@pytest.mark.parametrize(
    ("host", "proved"),
    [
        ("127.0.0.1", True),
        ("fd00:0::1", True),
        ("127.0.0.2", False),
        ("main-brokers.logs.svc", True),
        ("main-broker-0.main-brokers.logs.svc", True),
        ("a.b.main-brokers.logs.svc", False),
    ],
)
def test_which_hosts_a_certificate_proves(authority: Pair, host: str, proved: bool) -> None:
    pair = certificates.sign_server(authority, BROKER, HOSTS, NOW)
    assert certificates.proves(pair.certificate, host) is proved


def test_errors_and_texts_never_have_the_key(authority: Pair) -> None:
    assert "PRIVATE" not in repr(authority)
    damaged = Pair(authority.certificate, authority.key.replace("M", "N"))
    with pytest.raises(UnusableError) as refused:
        certificates.sign_client(damaged, BROKER, NOW)
    assert damaged.key.splitlines()[1] not in str(refused.value)


def test_a_broker_is_no_authority(authority: Pair) -> None:
    broker = certificates.sign_server(authority, BROKER, HOSTS, NOW)
    with pytest.raises(UnusableError, match="none of an authority"):
        certificates.sign_client(broker, BROKER, NOW)
