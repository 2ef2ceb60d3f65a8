"""SASL DIGEST-MD5 (RFC 2831) as clients of ZooKeeper use it: qop `auth`, one fixed host name.

MD5 does not keep a password from those who see the exchange and can guess: use it over TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

# ZooKeeper's servers have this as host and realm, whatever their names are.
HOST = "zk-sasl-md5"
_URI = f"zookeeper/{HOST}"
_NONCE_COUNT = "00000001"
_PART = re.compile(r'\s*([a-z-]+)=(?:"((?:\\.|[^"\\])*)"|([^\s,"]+))\s*(?:,|$)')


class DigestError(Exception):
    """The server's part of the exchange is not what it must be."""


class DigestClient:
    """One exchange. `nonce` is random text of ours."""

    def __init__(self, username: str, password: str, nonce: str) -> None:
        self._username = username
        self._password = password
        self._nonce = nonce
        self._expected = ""

    def respond(self, challenge: bytes) -> bytes:
        """Return the answer to the server's challenge. Raises DigestError."""
        given = _parts(challenge)
        if given.get("algorithm") != "md5-sess" or not given.get("nonce"):
            raise DigestError("it is no challenge of DIGEST-MD5")
        if "auth" not in given.get("qop", "auth").split(","):
            raise DigestError(f"the server offers {given['qop']} only, not auth")
        realm = given.get("realm", "")
        secret = _md5(b":".join(map(_encoded, (self._username, realm, self._password)))) + (
            f":{given['nonce']}:{self._nonce}".encode()
        )
        key = _md5(secret).hex()
        numbers = (given["nonce"], _NONCE_COUNT, self._nonce, "auth")
        self._expected = _response(key, numbers, f":{_URI}")
        answer = [
            "charset=utf-8",
            f"username={_quoted(self._username)}",
            f"realm={_quoted(realm)}",
            f"nonce={_quoted(given['nonce'])}",
            f"nc={_NONCE_COUNT}",
            f"cnonce={_quoted(self._nonce)}",
            f"digest-uri={_quoted(_URI)}",
            f"response={_response(key, numbers, f'AUTHENTICATE:{_URI}')}",
            "qop=auth",
        ]
        return ",".join(answer).encode()

    def check(self, final: bytes) -> None:
        """Check that the server knows the password too. Raises DigestError if it does not."""
        shown = _parts(final).get("rspauth", "")
        if not self._expected or not hmac.compare_digest(shown.encode(), self._expected.encode()):
            raise DigestError("the server does not prove that it knows the password")


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


def _encoded(text: str) -> bytes:
    """Encode as RFC 2831 does: ISO 8859-1 where it can be, whatever the charset."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _response(key: str, numbers: tuple[str, ...], what: str) -> str:
    return _md5(":".join([key, *numbers, _md5(what.encode()).hex()]).encode()).hex()


def _quoted(text: str) -> str:
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return f'"{escaped}"'


def _parts(message: bytes) -> Mapping[str, str]:
    """Return the directives of a message. Raises DigestError."""
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise DigestError("it is not UTF-8 text") from None
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            raise DigestError("it is malformed")
        name, quoted, plain = part.groups()
        found[name] = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = part.end()
    return found
