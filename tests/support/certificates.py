"""Certificates for tests: an authority, and what it signs, as files of every kind.

authority = certificates.Authority(folder)
broker = authority.issue("broker", hosts=["127.0.0.1", "localhost"])
settings = broker.settings()
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PASSWORD = "store-secret"
_VALID = timedelta(days=30)
_BEGAN = timedelta(days=-90)
# What an authority's key is for, which Python's clients ask for since 3.13, as the identifiers.
_SIGNS = x509.KeyUsage(
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


@dataclass(frozen=True)
class Issued:
    """A key with its certificate, and the certificate of its authority."""

    folder: Path
    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    authority: x509.Certificate

    @property
    def key_path(self) -> Path:
        """The key in PEM."""
        return self._written(f"{self.name}.key", self.key_pem())

    @property
    def certificate_path(self) -> Path:
        """The certificate in PEM."""
        return self._written(f"{self.name}.crt", self.certificate.public_bytes(Encoding.PEM))

    @property
    def pem_path(self) -> Path:
        """Key and certificate in one file, as Kafka wants them."""
        content = self.key_pem() + self.certificate.public_bytes(Encoding.PEM)
        return self._written(f"{self.name}.pem", content)

    @property
    def authority_path(self) -> Path:
        """The certificate of the authority in PEM."""
        return self._written(f"{self.name}-ca.pem", self.authority.public_bytes(Encoding.PEM))

    @property
    def pkcs12_path(self) -> Path:
        """Key and certificate in PKCS12, with PASSWORD."""
        content = pkcs12.serialize_key_and_certificates(
            self.name.encode(),
            self.key,
            self.certificate,
            [self.authority],
            BestAvailableEncryption(PASSWORD.encode()),
        )
        return self._written(f"{self.name}.p12", content)

    def key_pem(self, password: str = "") -> bytes:
        """Return the key in PEM, encrypted if there is a password."""
        encryption: KeySerializationEncryption = NoEncryption()
        if password:
            encryption = BestAvailableEncryption(password.encode())
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)

    def settings(self) -> dict[str, str]:
        """Return the settings of a broker with this certificate, which trusts its authority."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.pem_path),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority_path),
        }

    def client(self, *, shown: bool = False) -> dict[str, str]:
        """Return librdkafka's settings of a client that trusts the authority.

        With `shown` the client shows this certificate.
        """
        own = {
            "ssl.key.location": str(self.key_path),
            "ssl.certificate.location": str(self.certificate_path),
        }
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority_path),
            **(own if shown else {}),
        }

    def _written(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path


class Authority:
    """A certificate authority, whose files are in a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._key_identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = (
            _builder(subject, subject, self._key.public_key(), _VALID)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_SIGNS, critical=True)
            .add_extension(self._key_identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def pem(self) -> tuple[str, str]:
        """Return certificate and key in PEM."""
        key = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return self.certificate.public_bytes(Encoding.PEM).decode(), key.decode()

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = (),
        valid: timedelta = _VALID,
        subject: x509.Name | None = None,
        begins: timedelta = _BEGAN,
        revocations: str = "",
    ) -> Issued:
        """Sign a certificate for a subject (`CN=name` by default) and hosts.

        It is valid from `begins` to `valid`, as seen from now. It names the URL of the authority's
        revocations, if there is one.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        whom = subject or x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = [_general_name(host) for host in hosts]
        by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._key_identifier)
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(whom, self.certificate.subject, key.public_key(), valid, begins)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(by, critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if revocations:
            where = x509.DistributionPoint(
                [x509.UniformResourceIdentifier(revocations)], None, None, None
            )
            points = x509.CRLDistributionPoints([where])
            builder = builder.add_extension(points, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Issued(self._folder, name, key, certificate, self.certificate)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    valid: timedelta,
    begins: timedelta = _BEGAN,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + valid)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
