"""What errors of TLS tell people; OpenSSL makes them, in handshakes through memory."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from odradek import tls_errors
from tests.support import certificates


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> certificates.Authority:
    return certificates.Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def own(authority: certificates.Authority) -> certificates.Issued:
    return authority.issue("broker", ["localhost"])


class Pair:
    """A client and a server with their buffers."""

    def __init__(self, client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
        upward, downward = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(downward, upward, server_hostname=name)
        self.server = server.wrap_bio(upward, downward, server_side=True)

    def errors(self) -> dict[str, ssl.SSLError]:
        """Return the first error of each side, in a handshake and the end of a connection."""
        found: dict[str, ssl.SSLError] = {}
        for _ in range(4):
            for side, step in (
                ("client", self.client.do_handshake),
                ("server", self.server.do_handshake),
                ("client", lambda: self.client.read(1)),
            ):
                if side in found:
                    continue
                try:
                    step()
                except (ssl.SSLWantReadError, ssl.SSLSyscallError):
                    continue
                except ssl.SSLError as error:
                    found[side] = error
        return found


def contexts(
    own: certificates.Issued, trusted: Path | None = None
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    client = ssl.create_default_context(cafile=str(trusted or own.authority_path))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(own.pem_path)
    return client, server


def test_a_client_that_does_not_trust_the_broker(own: certificates.Issued, tmp_path: Path) -> None:
    other = certificates.Authority(tmp_path, "other").issue("other")
    client, server = contexts(own, other.authority_path)
    found = Pair(client, server, "localhost").errors()
    said = {side: tls_errors.describe(error) for side, error in found.items()}
    assert said["client"].endswith(": ssl.truststore.* does not have the authority of the peer")
    assert said["server"] == (
        "TLSV1_ALERT_UNKNOWN_CA: the peer's trust store does not have the authority of the "
        "certificate of ssl.keystore.*"
    )


def test_a_client_that_shows_no_certificate(own: certificates.Issued) -> None:
    client, server = contexts(own)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(own.authority_path)
    client.minimum_version = server.minimum_version = ssl.TLSVersion.TLSv1_3
    found = Pair(client, server, "localhost").errors()
    said = {side: tls_errors.describe(error, "zookeeper.") for side, error in found.items()}
    assert "ssl.client.auth=required" in said["server"]
    assert said["client"] == (
        "TLSV13_ALERT_CERTIFICATE_REQUIRED: the peer asks for a certificate, and got none: set "
        "zookeeper.ssl.keystore.*"
    )


def test_a_host_name_that_the_certificate_does_not_have(own: certificates.Issued) -> None:
    found = Pair(*contexts(own), "elsewhere").errors()
    said = tls_errors.describe(found["client"])
    assert "certificate is not valid for 'elsewhere'" in said
    assert said.endswith(": use a name that it has")


def test_both_sides_without_a_version_in_common(own: certificates.Issued) -> None:
    client, server = contexts(own)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    server.minimum_version = ssl.TLSVersion.TLSv1_3
    found = Pair(client, server, "localhost").errors()
    assert set(found) == {"client", "server"}
    for error in found.values():
        said = tls_errors.describe(error)
        assert said.startswith(f"{error.reason}: both sides have no version of TLS in common")
        assert "ssl.enabled.protocols" in said


def test_files_that_are_no_identity(
    own: certificates.Issued, authority: certificates.Authority, tmp_path: Path
) -> None:
    other = authority.issue("other", ["localhost"])
    empty = tmp_path / "empty.pem"
    empty.touch()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for files, said in (
        (
            (own.certificate_path, other.key_path),
            "KEY_VALUES_MISMATCH: the key is not that of the certificate",
        ),
        ((empty,), "PEM lib: what is there is no certificate and key in PEM"),
    ):
        with pytest.raises(ssl.SSLError) as refused:
            context.load_cert_chain(*files)
        assert tls_errors.describe(refused.value).startswith(said)


def test_a_trust_store_that_is_no_certificate(tmp_path: Path) -> None:
    """It has no key that could be encrypted."""
    store = tmp_path / "trusted.pem"
    store.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(ssl.SSLError) as refused:
        ssl.create_default_context(cafile=str(store))
    said = "PEM lib: what is there is no certificate in PEM"
    assert tls_errors.describe(refused.value) == said


def test_what_is_no_tls(own: certificates.Issued) -> None:
    client, _ = contexts(own)
    came = ssl.MemoryBIO()
    tls = client.wrap_bio(came, ssl.MemoryBIO(), server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    came.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ssl.SSLError) as refused:
        tls.do_handshake()
    said = "WRONG_VERSION_NUMBER: the peer does not speak TLS"
    assert tls_errors.describe(refused.value) == said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ssl.SSLEOFError(8, "EOF in violation of protocol (_ssl.c:1006)"), "EOF in violation of"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_no_error_tells_where_it_is_in_the_source(error: OSError, said: str) -> None:
    assert said in tls_errors.describe(error)
    assert "_ssl.c" not in tls_errors.describe(error)
