"""What errors of TLS mean, and which settings they are about, after OpenSSL's own word."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Final

_SOURCE: Final = re.compile(r" \(_ssl\.c:\d+\)$")
# X509_V_ERR_* of OpenSSL.
_UNTRUSTED: Final = frozenset({2, 18, 19, 20, 21, 27})
_TOO_EARLY: Final = 9
_EXPIRED: Final = 10
_OTHER_NAME: Final = frozenset({62, 64})

_OWN: Final = "the certificate of {prefix}ssl.keystore.*"
_NO_TLS: Final = "the peer does not speak TLS"
_NO_VERSION: Final = (
    "both sides have no version of TLS in common: see {prefix}ssl.enabled.protocols"
)
_NO_SUITE: Final = "both sides have no cipher suite in common: see {prefix}ssl.cipher.suites"
_NO_CERTIFICATE: Final = "the peer asks for a certificate, and got none: set {prefix}ssl.keystore.*"
_WORDS: Final[Mapping[str, str]] = {
    # Alerts: what the peer thinks of us.
    "UNKNOWN_CA": f"the peer's trust store does not have the authority of {_OWN}",
    "BAD_CERTIFICATE": f"the peer refuses {_OWN}",
    "CERTIFICATE_UNKNOWN": f"the peer refuses {_OWN}: its authority or host name, perhaps",
    "CERTIFICATE_EXPIRED": f"{_OWN} has expired",
    "CERTIFICATE_REVOKED": f"{_OWN} is revoked",
    "UNSUPPORTED_CERTIFICATE": f"{_OWN} is for another purpose, perhaps (extended key usage)",
    "CERTIFICATE_REQUIRED": _NO_CERTIFICATE,
    "HANDSHAKE_FAILURE": (
        "both sides have no version or cipher suite in common, or the peer asks for a certificate: "
        "see {prefix}ssl.enabled.protocols, {prefix}ssl.cipher.suites and {prefix}ssl.keystore.*"
    ),
    "PROTOCOL_VERSION": _NO_VERSION,
    "INSUFFICIENT_SECURITY": _NO_SUITE,
    "UNRECOGNIZED_NAME": "the peer has no certificate for this host name",
    # What we think of the peer.
    "UNSUPPORTED_PROTOCOL": _NO_VERSION,
    "NO_SHARED_CIPHER": _NO_SUITE,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "the peer shows no certificate, which ssl.client.auth=required asks for"
    ),
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "HTTP_REQUEST": _NO_TLS,
    "HTTPS_PROXY_REQUEST": _NO_TLS,
    # What files hold.
    "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
    "EE_KEY_TOO_SMALL": "the key of the certificate is too short",
    "CA_KEY_TOO_SMALL": "the key of an authority is too short",
    "CA_MD_TOO_WEAK": "a certificate is signed with a hash that is too weak",
    "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate in PEM",
    # Of these OpenSSL knows the library only: of a key store, and of a trust store.
    "[SSL] PEM lib": "what is there is no certificate and key in PEM, or the key is encrypted",
    "[X509] PEM lib": "what is there is no certificate in PEM",
}


def describe(error: BaseException, prefix: str = "") -> str:
    """Return what an error says, and of TLS what it means; `prefix` is before names of settings."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_verification(error, prefix)
    if not isinstance(error, ssl.SSLError):
        return str(error) or type(error).__name__
    said = str(getattr(error, "reason", None) or _SOURCE.sub("", error.strerror or str(error)))
    words = _WORDS.get(said.rpartition("ALERT_")[2].removeprefix("TLSV1_"))
    said = said.rpartition("] ")[2]
    return said if words is None else f"{said}: {words.format(prefix=prefix)}"


def _of_verification(error: ssl.SSLCertVerificationError, prefix: str) -> str:
    said = str(getattr(error, "verify_message", error)).rstrip(".")
    code = getattr(error, "verify_code", 0)
    if code in _UNTRUSTED:
        return f"{said}: {prefix}ssl.truststore.* does not have the authority of the peer"
    if code == _EXPIRED:
        return f"{said}: renew the peer's certificate, or that of its authority"
    if code == _TOO_EARLY:
        return f"{said}: compare the clocks"
    if code in _OTHER_NAME:
        return f"{said}: use a name that it has"
    return said
