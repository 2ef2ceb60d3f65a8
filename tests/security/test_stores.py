"""Key stores and trust stores of every kind, and those that cannot be used."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from odradek.listener_settings import Store, TlsSettings
from odradek.properties import ConfigError
from odradek.security import stores, tls_contexts
from odradek.security.tls_contexts import TlsContexts
from tests.support import certificates, keytool
from tests.support.certificates import PASSWORD, Issued

# A key of the curve secp112r1, which is not supported.
OF_AN_OLD_CURVE = b"""\
-----BEGIN PRIVATE KEY-----
ME4CAQAwEAYHKoZIzj0CAQYFK4EEAAYENzA1AgEBBA52/nn+r3wgNGMizgbKf6Eg
Ax4ABMorEjjssMrt1zz647K9DgCKExw79mK3v+u8PfY=
-----END PRIVATE KEY-----
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> certificates.Authority:
    return certificates.Authority(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def issued(authority: certificates.Authority) -> Issued:
    return authority.issue("one", ["localhost"])


def pem(issued: Issued) -> Store:
    return Store("ssl.keystore", "PEM", str(issued.pem_path))


def encrypted(issued: Issued) -> Store:
    path = issued.folder / "encrypted.pem"
    path.write_bytes(issued.key_pem("x y") + issued.certificate.public_bytes(Encoding.PEM))
    return Store("ssl.keystore", "PEM", str(path), key_password="x y")


def inline(issued: Issued) -> Store:
    chain = issued.certificate.public_bytes(Encoding.PEM).decode()
    key = issued.key_pem().decode()
    return Store("ssl.keystore", "PEM", certificates=chain, key=key)


def pkcs12(issued: Issued) -> Store:
    # Java reads PKCS12 where the settings say JKS.
    return Store("ssl.keystore", "JKS", str(issued.pkcs12_path), PASSWORD)


def jks(issued: Issued) -> Store:
    return Store("ssl.keystore", "JKS", str(keytool.key_store(issued, "JKS")), PASSWORD, PASSWORD)


@pytest.mark.parametrize("store", [pem, encrypted, inline, pkcs12, jks])
def test_key_store_of_every_kind_is_read(store: Callable[[Issued], Store], issued: Issued) -> None:
    found = stores.load_identity(store(issued))
    assert found.chain[0] == issued.certificate
    assert found.key == issued.key_pem()
    TlsContexts("SSL", TlsSettings(store(issued), Store("ssl.truststore", "PEM")))


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_trust_store_of_keytool_is_read(kind: str, issued: Issued) -> None:
    store = Store("ssl.truststore", kind, str(keytool.trust_store(issued, kind)), PASSWORD)
    assert stores.load_trusted(store) == (issued.authority,)


def damaged(issued: Issued, content: bytes) -> str:
    path = issued.folder / "damaged"
    path.write_bytes(content)
    return str(path)


def test_store_that_cannot_be_used_is_named_with_the_reason(
    issued: Issued, authority: certificates.Authority
) -> None:
    other = authority.issue("other")
    mixed = issued.key_pem() + other.certificate.public_bytes(Encoding.PEM)
    java = jks(issued)
    content = Path(java.location).read_bytes()
    unusual = issued.folder / "unusual.pem"
    unusual.write_bytes(OF_AN_OLD_CURVE + issued.certificate.public_bytes(Encoding.PEM))
    unusable = [
        (Store("ssl.keystore", "PEM", "/nowhere.pem"), "No such file"),
        (Store("ssl.keystore", "PEM", damaged(issued, mixed)), "key does not fit the certificate"),
        (Store("ssl.keystore", "PEM", str(issued.certificate_path)), "0 private keys"),
        (Store("ssl.keystore", "PEM", str(issued.key_path)), "no certificate in PEM"),
        (dataclasses.replace(encrypted(issued), key_password="z"), "ssl.key.password does not"),
        (dataclasses.replace(encrypted(issued), key_password=""), "no ssl.key.password"),
        (dataclasses.replace(pkcs12(issued), password="z"), "password"),
        (dataclasses.replace(java, password="z"), "its password is wrong, or it is damaged"),
        (dataclasses.replace(java, key_password="z"), "ssl.key.password does not open its key"),
        (Store("ssl.keystore", "PEM", str(unusual)), "is not supported"),
    ]
    for store, reason in unusable:
        if store.location.endswith("damaged"):
            damaged(issued, mixed)
        with pytest.raises(ConfigError) as refused:
            stores.load_identity(store)
        text = str(refused.value)
        assert text.startswith(f"cannot use ssl.keystore.location={store.location}: "), text
        assert reason in text.lower() or reason in text, text
        assert "\n" not in text
    for length in range(0, len(content), 97):
        cut = Store("ssl.keystore", "JKS", damaged(issued, content[:length]), PASSWORD)
        with pytest.raises(ConfigError):
            stores.load_identity(cut)


def test_want_of_descriptors_is_no_end_of_renewal(
    authority: certificates.Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = tmp_path / "broker.pem"

    def put() -> None:
        made = authority.issue("broker")
        place.write_bytes(made.key_pem() + made.certificate.public_bytes(Encoding.PEM))

    def refuse(*_arguments: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    put()
    contexts = TlsContexts(
        "SSL",
        TlsSettings(Store("ssl.keystore", "PEM", str(place)), Store("ssl.truststore", "PEM")),
    )
    first = contexts.server()
    put()
    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", refuse)
        contexts.refresh()
    assert contexts.server() is first
    assert "keeping the former certificates of listener SSL" in caplog.text
    contexts.refresh()
    assert contexts.server() is not first


def test_changed_files_count_and_bad_ones_do_not(
    authority: certificates.Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "broker.pem"

    def put(content: bytes) -> None:
        partial = tmp_path / "partial"
        partial.write_bytes(content)
        os.replace(partial, place)

    def pair(name: str) -> bytes:
        made = authority.issue(name)
        return made.key_pem() + made.certificate.public_bytes(Encoding.PEM)

    put(pair("broker"))
    settings = TlsSettings(Store("ssl.keystore", "PEM", str(place)), Store("ssl.truststore", "PEM"))
    contexts = TlsContexts("SSL", settings)
    first = contexts.server()
    contexts.refresh()
    assert contexts.server() is first
    with caplog.at_level(logging.INFO):
        put(b"half a file")
        contexts.refresh()
        assert contexts.server() is first
        put(pair("somebody else"))
        contexts.refresh()
        assert contexts.server() is first
        put(pair("broker"))
        contexts.refresh()
        assert contexts.server() is not first
    said = [record.getMessage() for record in caplog.records]
    assert "it has no certificate in PEM" in said[0]
    assert "subject of the certificate is now CN=somebody else" in said[1]
    assert "has new certificates" in said[2]


class InTwoDays(datetime):
    """The time in two days, on a machine that may stand still for any while meanwhile."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + timedelta(days=2)


def test_certificate_counts_instead_of_the_former_one_only_while_it_is_valid(
    authority: certificates.Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path / "broker.pem"

    def put(begins: timedelta = timedelta(days=-2), valid: timedelta = timedelta(days=9)) -> None:
        made = authority.issue("broker", begins=begins, valid=valid)
        place.write_bytes(made.key_pem() + made.certificate.public_bytes(Encoding.PEM))

    put()
    settings = TlsSettings(Store("ssl.keystore", "PEM", str(place)), Store("ssl.truststore", "PEM"))
    contexts = TlsContexts("SSL", settings)
    first, ends = contexts.server(), contexts.not_after_s
    put(valid=timedelta(days=-1))
    contexts.refresh()
    contexts.refresh()
    assert (contexts.server(), contexts.not_after_s) == (first, ends)
    put(begins=timedelta(days=1))
    contexts.refresh()
    assert contexts.server() is first
    said = [one.getMessage() for one in caplog.records]
    assert len(said) == 2
    assert all("keeping the former certificates of listener SSL" in one for one in said)

    monkeypatch.setattr(tls_contexts, "datetime", InTwoDays)
    contexts.refresh()
    assert contexts.server() is not first


def test_expired_certificate_is_a_warning(
    authority: certificates.Authority, caplog: pytest.LogCaptureFixture
) -> None:
    old = authority.issue("old", valid=timedelta(days=-1))
    TlsContexts("SSL", TlsSettings(pem(old), Store("ssl.truststore", "PEM")))
    assert f"{old.pem_path}, expired on" in caplog.text


@pytest.mark.parametrize(
    ("suites", "versions"),
    [
        (("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",), {"TLSv1_2"}),
        (("TLS_AES_128_GCM_SHA256",), {"TLSv1_3"}),
        (
            ("TLS_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
            {"TLSv1_2", "TLSv1_3"},
        ),
    ],
)
def test_cipher_suites_have_javas_names(
    issued: Issued, suites: tuple[str, ...], versions: set[str]
) -> None:
    trust = Store("ssl.truststore", "PEM")
    context = TlsContexts("SSL", TlsSettings(pem(issued), trust, cipher_suites=suites)).server()
    assert {context.minimum_version.name, context.maximum_version.name} == versions
    if "TLSv1_2" in versions:
        old = [one["name"] for one in context.get_ciphers() if one["protocol"] == "TLSv1.2"]
        assert len(old) == 1


def test_unknown_cipher_suite_is_refused(issued: Issued) -> None:
    for suite in ("TLS_FAST", "TLS_ECDHE_RSA_WITH_AES_999_GCM_SHA1"):
        settings = TlsSettings(pem(issued), Store("ssl.truststore", "PEM"), cipher_suites=(suite,))
        with pytest.raises(ConfigError, match=suite):
            TlsContexts("SSL", settings)


def test_key_of_an_unknown_curve_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "curve.pem"
    made = ("openssl", "req", "-x509", "-nodes", "-subj", "/CN=a", "-newkey", "ec")
    curve = ("-pkeyopt", "ec_paramgen_curve:secp160k1", "-keyout", str(path))
    said = subprocess.run([*made, *curve], capture_output=True, text=True, check=True).stdout
    path.write_text(path.read_text() + said)
    with pytest.raises(ConfigError, match=f"^cannot use ssl.keystore.location={path}: Curve "):
        stores.load_identity(Store("ssl.keystore", "PEM", str(path)))
