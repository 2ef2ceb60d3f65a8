"""Reads key stores and trust stores: PEM, PKCS12, and Java's own JKS.

What a file is, its first bytes say: Java reads PKCS12 where the settings say JKS, and `keytool`
writes PKCS12 unless told otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import Certificate

from odradek import given_files
from odradek.listener_settings import Store
from odradek.properties import ConfigError
from odradek.security import jks

# What damaged and unusual files make the readers raise.
_UNREADABLE: Final = (ValueError, TypeError, IndexError, UnsupportedAlgorithm)
_KEY_KINDS: Final = (
    rsa.RSAPrivateKey,
    ec.EllipticCurvePrivateKey,
    ed25519.Ed25519PrivateKey,
    ed448.Ed448PrivateKey,
    dsa.DSAPrivateKey,
)
_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL
)
_KEY: Final = re.compile(rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key with its certificate, the first of the chain."""

    chain: tuple[Certificate, ...]
    key: bytes = field(repr=False)  # PEM

    @property
    def pem(self) -> bytes:
        """Return all of it as one PEM text."""
        return self.key + b"".join(one.public_bytes(Encoding.PEM) for one in self.chain)


def load_identity(store: Store) -> Identity:
    """Read a key store. Raises ConfigError, one line that names the setting and the file."""
    try:
        private, certificates = _key_and_certificates(store)
        if not isinstance(private, _KEY_KINDS):
            raise ValueError("keys of this kind are not for TLS")
        if private.public_key() != certificates[0].public_key():
            raise ValueError("the key does not fit the certificate")
        key_pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    except _UNREADABLE as error:
        raise _unusable(store, error) from None
    return Identity(certificates, key_pem)


def _key_and_certificates(store: Store) -> tuple[object, tuple[Certificate, ...]]:
    content = _content(store, (store.certificates + "\n" + store.key).encode())
    if jks.is_jks(content):
        key_password = store.key_password or store.password
        key, chain = jks.identity(content, store.password, key_password)
        return load_der_private_key(key, None), tuple(map(x509.load_der_x509_certificate, chain))
    if store.kind == "PEM":
        certificates = _pem_certificates(content)
        return _pem_key(content, store), certificates
    found, own, others = pkcs12.load_key_and_certificates(content, store.password.encode() or None)
    if found is None or own is None:
        raise ValueError("it has no key with a certificate")
    return found, _chain(own, others)


def load_trusted(store: Store) -> tuple[Certificate, ...]:
    """Read a trust store. Raises ConfigError, one line that names the setting and the file."""
    try:
        content = _content(store, store.certificates.encode())
        if jks.is_jks(content):
            found = tuple(map(x509.load_der_x509_certificate, jks.trusted(content, store.password)))
        elif store.kind == "PEM":
            found = _pem_certificates(content)
        else:
            loaded = pkcs12.load_pkcs12(content, store.password.encode() or None)
            found = tuple(one.certificate for one in loaded.additional_certs)
        if not found:
            raise ValueError("it has no certificates")
    except _UNREADABLE as error:
        raise _unusable(store, error) from None
    return found


def _unusable(store: Store, error: Exception) -> ConfigError:
    setting = f"{store.setting}.location={store.location}" if store.location else store.setting
    reason = " ".join(str(error).split()) or type(error).__name__
    return ConfigError(f"cannot use {setting}: {reason}")


def _content(store: Store, given: bytes) -> bytes:
    if not store.location:
        return given
    try:
        return given_files.read(Path(store.location))
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None


def _pem_certificates(content: bytes) -> tuple[Certificate, ...]:
    found = tuple(x509.load_pem_x509_certificate(one) for one in _CERTIFICATE.findall(content))
    if not found:
        raise ValueError("it has no certificate in PEM")
    return found


def _pem_key(content: bytes, store: Store) -> object:
    found = list(_KEY.finditer(content))
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} private keys in PEM, not 1")
    text, password = found[0][0], store.key_password
    encrypted = b"ENCRYPTED" in text
    if encrypted and not password:
        raise ValueError(f"its key is encrypted and there is no {store.key_password_setting}")
    try:
        return load_pem_private_key(text, password.encode() if encrypted else None)
    except ValueError:
        reason = f"{store.key_password_setting} does not open its key"
        raise ValueError(reason if encrypted else "its key is damaged") from None


def _chain(own: Certificate, others: list[Certificate]) -> tuple[Certificate, ...]:
    """Order the certificates: each is followed by that of its issuer."""
    chain, left = [own], list(others)
    while left and chain[-1].issuer != chain[-1].subject:
        issuers = [one for one in left if one.subject == chain[-1].issuer]
        if not issuers:
            break
        chain.append(issuers[0])
        left.remove(issuers[0])
    return tuple(chain)
