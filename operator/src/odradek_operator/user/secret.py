"""The Secret of a User: what its clients need, read, checked and built. Pure.

| authentication | keys |
|---|---|
| scram-sha-256, scram-sha-512 | `password`, `sasl.jaas.config` |
| tls | `ca.crt`, `user.crt`, `user.key`, `user.p12`, `user.password` |

The Secret holds the password: who changes it there changes the user's.
"""

from __future__ import annotations

import base64
import binascii
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)

from odradek_operator.shared import passwords
from odradek_operator.shared.certificates import Pair
from odradek_operator.shared.cluster_secrets import (
    CA_CERTIFICATE,
    CA_KEY,
    USER_CERTIFICATE,
    USER_KEY,
)
from odradek_operator.shared.objects import CLUSTER_LABEL, MANAGED_BY, Object, metadata
from odradek_operator.shared.spec import ResourceMeta

PASSWORD: Final = "password"  # noqa: S105 (a key of a Secret)
JAAS: Final = "sasl.jaas.config"
STORE: Final = "user.p12"
STORE_PASSWORD: Final = "user.password"  # noqa: S105 (a key of a Secret)


class UnusableSecretError(ValueError):
    """A value of a Secret cannot be used; the text does not show it."""


def value(live: Mapping[str, Any], key: str) -> str:
    """Return the text of a key, "" where there is none. Raises UnusableSecretError."""
    try:
        return base64.b64decode(live.get("data", {}).get(key, "")).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise UnusableSecretError(f"{key} is not UTF-8") from None


def read_password(live: Mapping[str, Any], key: str) -> str:
    """Return a password, "" where there is none.

    Raises UnusableSecretError for what clients mistake.
    """
    found = value(live, key)
    if len(found) > passwords.LONGEST:
        raise UnusableSecretError(f"{key} is longer than {passwords.LONGEST} characters")
    if any(unicodedata.category(one) == "Cc" for one in found):
        raise UnusableSecretError(f"{key} has a line break or another control character")
    return found


def has_password(live: Mapping[str, Any], password: str) -> bool:
    """Return whether a Secret has this password; what is no text is another one."""
    try:
        return value(live, PASSWORD) == password
    except UnusableSecretError:
        return False


def scram_data(username: str, password: str) -> dict[str, str]:
    """Return what a client with SCRAM needs."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        PASSWORD: password,
        JAAS: f'{module} required username="{username}" password="{quoted}";',
    }


def read_pair(live: Mapping[str, Any]) -> Pair:
    """Return a user's certificate and key, "" where they are missing.

    Raises UnusableSecretError.
    """
    return Pair(value(live, USER_CERTIFICATE), value(live, USER_KEY))


def read_authority(live: Mapping[str, Any]) -> Pair:
    """Return an authority's certificate and key, "" where they are missing."""
    return Pair(value(live, CA_CERTIFICATE), value(live, CA_KEY))


def tls_data(name: str, pair: Pair, authority: Pair) -> dict[str, str | bytes]:
    """Return what a client with a certificate needs: PEM, and the same as PKCS12."""
    password = passwords.new()
    store = pkcs12.serialize_key_and_certificates(
        name.encode(),
        load_pem_private_key(pair.key.encode(), None),  # type: ignore[arg-type]
        x509.load_pem_x509_certificate(pair.certificate.encode()),
        x509.load_pem_x509_certificates(authority.certificate.encode()),
        BestAvailableEncryption(password.encode()),
    )
    return {
        CA_CERTIFICATE: authority.certificate,
        USER_CERTIFICATE: pair.certificate,
        USER_KEY: pair.key,
        STORE: store,
        STORE_PASSWORD: password,
    }


def build(meta: ResourceMeta, cluster: str, data: Mapping[str, str | bytes]) -> Object:
    """Return the Secret with this content."""
    labels = {"app.kubernetes.io/managed-by": MANAGED_BY, CLUSTER_LABEL: cluster}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(meta, meta.name, labels),
        "type": "Opaque",
        "data": {
            key: base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()
            for key, text in data.items()
        },
    }
