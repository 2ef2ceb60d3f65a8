"""Certificates: an authority, what it signs for brokers and users, and when to renew. Pure.

Keys are ECDSA on P-256. A `Pair` is PEM as Secrets have it. Times and hosts are arguments; only
keys and serial numbers are random.

    authority = certificates.make_authority("main-cluster-ca", now)
    pair = certificates.sign_server(authority, subject, ["10.0.0.1", "main-brokers.logs.svc"], now)
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_VALID: Final = timedelta(days=3650)
VALID: Final = timedelta(days=90)
# With a third of its time left a certificate is renewed.
_RENEWED_AT: Final = 1 / 3
# Clocks of clients may be behind.
_SKEW: Final = timedelta(minutes=10)


class UnusableError(ValueError):
    """A certificate or a key that nothing can be done with; the text never has any of the key."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate, with those that follow it in its chain, and its key; PEM."""

    certificate: str
    key: str = field(repr=False)


def subject(common_name: str, organization: str | None = None) -> x509.Name:
    """Return a name that Java writes as `CN=common_name`, or `CN=common_name,O=organization`."""
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization is not None:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def make_authority(common_name: str, now: datetime, valid: timedelta = AUTHORITY_VALID) -> Pair:
    """Make a new authority, valid for ten years where nothing else is said."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = subject(common_name)
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, key.public_key(), now, now + valid)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return Pair(_pem(certificate), _key_pem(key))


def sign_server(
    authority: Pair, whom: x509.Name, hosts: Iterable[str], now: datetime, valid: timedelta = VALID
) -> Pair:
    """Sign a certificate for a broker, a client of other brokers too, that proves these hosts.

    Raises UnusableError if the authority cannot sign.
    """
    return _sign(authority, whom, hosts, now, valid, server=True)


def sign_client(authority: Pair, whom: x509.Name, now: datetime, valid: timedelta = VALID) -> Pair:
    """Sign a certificate for a client. Raises UnusableError if the authority cannot sign."""
    return _sign(authority, whom, (), now, valid, server=False)


def _sign(
    authority: Pair,
    whom: x509.Name,
    hosts: Iterable[str],
    now: datetime,
    valid: timedelta,
    *,
    server: bool,
) -> Pair:
    issuer, signer = _authority(authority)
    if issuer.not_valid_after_utc <= now:
        raise UnusableError(
            f"the certificate of the authority ended on {issuer.not_valid_after_utc:%Y-%m-%d}"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if server:
        uses.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
    # What outlives its authority proves nothing to anybody.
    end = min(now + valid, issuer.not_valid_after_utc)
    builder = (
        _builder(whom, issuer.subject, key.public_key(), now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    names = [_general_name(host) for host in sorted(set(hosts))]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Pair(_pem(builder.sign(signer, hashes.SHA256())), _key_pem(key))


def why_renew(
    pair: Pair, authority: str, hosts: Collection[str], whom: x509.Name, now: datetime
) -> str | None:
    """Return why a certificate must be signed anew; None: it serves for a while yet.

    `authority` is the certificate of the one that should have signed it.
    """
    try:
        own = check(pair, now)
        own.verify_directly_issued_by(load(authority)[0])
    except UnusableError as error:
        return str(error)
    except (ValueError, TypeError, InvalidSignature):
        return "the authority is another one"
    if own.subject != whom:
        return "its subject is another one"
    if missing := set(hosts) - set(hosts_of(pair.certificate)):
        return f"it does not prove {', '.join(sorted(missing))}"
    if is_due(pair.certificate, now):
        return f"it ends on {own.not_valid_after_utc:%Y-%m-%d}"
    return None


def is_due(certificate: str, now: datetime) -> bool:
    """Return whether a certificate has less than a third of its time left."""
    own = load(certificate)[0]
    span = own.not_valid_after_utc - own.not_valid_before_utc
    return own.not_valid_after_utc - now < span * _RENEWED_AT


def check(pair: Pair, now: datetime, *, may_have_ended: bool = False) -> x509.Certificate:
    """Return the first certificate of a pair that brokers can serve with. Raises UnusableError."""
    own = load(pair.certificate)[0]
    try:
        key = load_pem_private_key(pair.key.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The library's texts may show bytes of the key.
        raise UnusableError("its key cannot be read, or is encrypted") from None
    if key.public_key() != own.public_key():
        raise UnusableError("its key does not fit its certificate")
    if own.not_valid_after_utc <= now and not may_have_ended:
        raise UnusableError(f"its certificate ended on {own.not_valid_after_utc:%Y-%m-%d}")
    if own.not_valid_before_utc > now + _SKEW:
        raise UnusableError(f"its certificate begins on {own.not_valid_before_utc:%Y-%m-%d}")
    return own


def load(text: str) -> list[x509.Certificate]:
    """Read the certificates of a PEM text, at least one. Raises UnusableError."""
    try:
        return x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        raise UnusableError("it has no certificate in PEM") from None


def hosts_of(text: str) -> list[str]:
    """Return the names and addresses that the first certificate of a PEM text proves."""
    own = load(text)[0]
    try:
        found = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    names = found.get_values_for_type(x509.DNSName)
    return [*names, *map(str, found.get_values_for_type(x509.IPAddress))]


def proves(text: str, host: str) -> bool:
    """Return whether a certificate proves a host: by itself, or with * for the first label."""
    found = set(hosts_of(text))
    try:
        return str(ipaddress.ip_address(host)) in found
    except ValueError:
        _, _, rest = host.partition(".")
        return host in found or f"*.{rest}" in found


def check_authority(pair: Pair) -> None:
    """Check that an authority can sign. Raises UnusableError."""
    _authority(pair)


def _authority(pair: Pair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate = load(pair.certificate)[0]
    try:
        key = load_pem_private_key(pair.key.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UnusableError("the key of the authority cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UnusableError("the key of the authority is none of ECDSA")
    if key.public_key() != certificate.public_key():
        raise UnusableError("the key of the authority does not fit its certificate")
    try:
        limits = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        raise UnusableError("the certificate of the authority is none of an authority") from None
    if not limits.ca:
        raise UnusableError("the certificate of the authority is none of an authority")
    return certificate, key


def _builder(
    whom: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(whom)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
