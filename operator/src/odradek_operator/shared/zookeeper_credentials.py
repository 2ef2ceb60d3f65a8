"""With what a cluster's clients connect to its ZooKeeper, as a Secret of the user's says. Pure.

| key | what |
|---|---|
| `username`, `password` | the login: SASL with DIGEST-MD5 |
| `ca.crt` | whom to trust; connections then use TLS |
| `user.crt`, `user.key` | the certificate to show, over TLS |
| `tls.crt`, `tls.key` | the same, as cert-manager writes it |
| `user.p12`, `user.password` | the same as PKCS12, and its password |

The first certificate of these counts. What is checked here becomes the Secret that pods mount, so
that something broken never reaches a broker that runs (`odradek.zk.access_files` has its keys).
"""

from __future__ import annotations

import base64
import binascii
import ssl
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from odradek import zookeeper_settings
from odradek.zk import access_files
from odradek.zk.client import ZooKeeperAccess
from odradek.zookeeper_settings import ZooKeeperLogin
from odradek_operator.shared import broker_security, certificates, passwords
from odradek_operator.shared.certificates import Pair, UnusableError
from odradek_operator.shared.cluster_secrets import (
    CA_CERTIFICATE,
    PASSWORD,
    USER_CERTIFICATE,
    USER_KEY,
    USERNAME,
)
from odradek_operator.shared.objects import digest

MOUNT: Final = "/etc/odradek-zookeeper"
_PEM_KEYS: Final = ((USER_CERTIFICATE, USER_KEY), ("tls.crt", "tls.key"))
_STORE: Final = "user.p12"
_STORE_PASSWORD: Final = "user.password"  # noqa: S105 (a key of a Secret)
_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"


class UnusableCredentialsError(ValueError):
    """The Secret cannot be used. The text shows nothing of what is secret in it."""


@dataclass(frozen=True, slots=True)
class ZooKeeperCredentials:
    """Whom ZooKeeper takes us for, and whom we trust. Texts are empty where there is none.

    `subject` is that of the certificate in `pair`.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    authority: str = ""
    pair: Pair | None = field(default=None, repr=False)
    subject: str = ""

    @property
    def tls(self) -> bool:
        """Return whether connections use TLS."""
        return bool(self.authority) or self.pair is not None

    @property
    def ids(self) -> tuple[str, ...]:
        """Return what stands for whom ZooKeeper takes us for; nothing: for nobody."""
        named = {"sasl": self.username, "x509": self.subject}
        return tuple(sorted(digest([kind, one]) for kind, one in named.items() if one))

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what must stay for the connections that are open to go on."""
        return (self.tls, *self.ids)


def read(secret: Mapping[str, Any], now: datetime) -> ZooKeeperCredentials:
    """Read a user's Secret. Raises UnusableCredentialsError."""
    data = _decode(secret)
    username, password = _login(data)
    authority = _text(data, CA_CERTIFICATE)
    if authority:
        try:
            certificates.load(authority)
        except UnusableError as error:
            raise UnusableCredentialsError(f"{CA_CERTIFICATE}: {error}") from None
    pair = _pair(data)
    subject = ""
    if pair is not None:
        try:
            own = certificates.check(pair, now)
        except UnusableError as error:
            raise UnusableCredentialsError(f"its certificate for ZooKeeper: {error}") from None
        subject = own.subject.rfc4514_string()
    found = ZooKeeperCredentials(username, password, authority, pair, subject)
    if not (found.tls or found.username):
        raise UnusableCredentialsError(
            f"it has neither {USERNAME} and {PASSWORD}, nor {CA_CERTIFICATE} or a certificate "
            f"({USER_CERTIFICATE}, tls.crt or {_STORE})"
        )
    return found


def _decode(secret: Mapping[str, Any]) -> dict[str, bytes]:
    found = {}
    for name, value in (secret.get("data") or {}).items():
        try:
            found[name] = base64.b64decode(value or "", validate=True)
        except (binascii.Error, ValueError):
            raise UnusableCredentialsError(f"{name} is not in base64") from None
    return found


def _text(data: Mapping[str, bytes], key: str) -> str:
    try:
        return data.get(key, b"").decode()
    except UnicodeDecodeError:
        raise UnusableCredentialsError(f"{key} is not UTF-8") from None


def _login(data: Mapping[str, bytes]) -> tuple[str, str]:
    username, password = _text(data, USERNAME), _text(data, PASSWORD)
    if bool(username) != bool(password):
        there, missing = (USERNAME, PASSWORD) if username else (PASSWORD, USERNAME)
        raise UnusableCredentialsError(f"it has {there} and no {missing}")
    for key, text in ((USERNAME, username), (PASSWORD, password)):
        if len(text) > passwords.LONGEST:
            raise UnusableCredentialsError(f"{key} is longer than {passwords.LONGEST} characters")
        if any(unicodedata.category(one) == "Cc" for one in text):
            raise UnusableCredentialsError(f"{key} has a line break or another control character")
    return username, password


def _pair(data: Mapping[str, bytes]) -> Pair | None:
    for certificate, key in _PEM_KEYS:
        pair = Pair(_text(data, certificate), _text(data, key))
        if pair.certificate and pair.key:
            return pair
        if pair.certificate or pair.key:
            missing = key if pair.certificate else certificate
            raise UnusableCredentialsError(f"it has no {missing} beside its certificate or key")
    if _STORE not in data:
        return None
    try:
        key_found, own, others = pkcs12.load_key_and_certificates(
            data[_STORE], _text(data, _STORE_PASSWORD).encode()
        )
    except ValueError:
        # The library's texts may show more than that.
        raise UnusableCredentialsError(
            f"{_STORE} is no PKCS12, or {_STORE_PASSWORD} is not its password"
        ) from None
    if key_found is None or own is None:
        raise UnusableCredentialsError(f"{_STORE} has no key with its certificate")
    chain = b"".join(one.public_bytes(Encoding.PEM) for one in (own, *others))
    text = key_found.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(chain.decode(), text.decode())


# --- what becomes of them -------------------------------------------------------------------------


def context(credentials: ZooKeeperCredentials) -> ssl.SSLContext:
    """Return the TLS context of connections. Raises OSError or ValueError."""
    if credentials.authority:
        made = broker_security.trusting(credentials.authority)
    else:
        made = ssl.create_default_context()
    if credentials.pair is not None:
        broker_security.show(made, credentials.pair.certificate, credentials.pair.key)
    return made


def login(credentials: ZooKeeperCredentials) -> ZooKeeperLogin | None:
    """Return the login of connections."""
    if not credentials.username:
        return None
    return ZooKeeperLogin(credentials.username, credentials.password)


def files(credentials: ZooKeeperCredentials) -> dict[str, str]:
    """Return the texts of the Secret that pods mount."""
    found = {}
    if credentials.authority:
        found[access_files.AUTHORITY] = f"{credentials.authority.rstrip()}\n"
    if (pair := credentials.pair) is not None:
        found[access_files.IDENTITY] = f"{pair.key.rstrip()}\n{pair.certificate.rstrip()}\n"
    if credentials.username:
        found[access_files.JAAS] = (
            f"{access_files.SECTION} {{\n  {_MODULE} required "
            f"username={_quoted(credentials.username)} password={_quoted(credentials.password)};"
            "\n};\n"
        )
    return found


def trust_files(credentials: ZooKeeperCredentials) -> dict[str, str]:
    """Return the texts for clients that need no login: whom to trust, over TLS."""
    if not credentials.tls:
        return {}
    # An empty file: the authorities of their image.
    authority = credentials.authority.rstrip()
    return {access_files.AUTHORITY: f"{authority}\n" if authority else ""}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def broker_settings(credentials: ZooKeeperCredentials, *, set_acl: bool) -> dict[str, str]:
    """Return what server.properties says of it; nothing secret."""
    found = {zookeeper_settings.SET_ACL: "true"} if set_acl else {}
    if not credentials.tls:
        return found
    found[zookeeper_settings.ENABLE] = "true"
    if credentials.authority:
        found["zookeeper.ssl.truststore.location"] = f"{MOUNT}/{access_files.AUTHORITY}"
        found["zookeeper.ssl.truststore.type"] = "PEM"
    if credentials.pair is not None:
        found["zookeeper.ssl.keystore.location"] = f"{MOUNT}/{access_files.IDENTITY}"
        found["zookeeper.ssl.keystore.type"] = "PEM"
    return found


def broker_options(credentials: ZooKeeperCredentials) -> str:
    """Return KAFKA_OPTS of brokers, which names the file with their login; may be empty."""
    if not credentials.username:
        return ""
    return f"-Djava.security.auth.login.config={MOUNT}/{access_files.JAAS}"


def static_access(credentials: ZooKeeperCredentials, *, set_acl: bool = False) -> ZooKeeperAccess:
    """Return how to connect with these. Raises UnusableCredentialsError."""
    made = None
    try:
        if credentials.tls:
            made = context(credentials)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnusableCredentialsError(f"TLS to ZooKeeper: {reason}") from None
    known = login(credentials)
    return ZooKeeperAccess(
        None if made is None else lambda: made, None if known is None else lambda: known, set_acl
    )
