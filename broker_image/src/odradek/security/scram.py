"""SCRAM (RFC 5802 with SHA-256 and SHA-512), server and client, without channel binding.

A server keeps no password: StoredKey = H(HMAC(salted password, "Client Key")) and ServerKey =
HMAC(salted password, "Server Key"). The client proves that it knows the salted password by
HMAC(salted password, "Client Key") XOR HMAC(StoredKey, all messages).

A user who does not exist gets a salt too, the same each time from one broker, and is refused at
the end only. So one broker alone does not tell who exists among users with salts of NONCE_BYTES and
MIN_ITERATIONS. Another salt or other iterations tell it, and so do two brokers.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final

from odradek.properties import INT_MAX

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16_384
# What a client computes for a server, which may be anybody: half a second. Kafka's tools can give a
# user more than MAX_ITERATIONS.
MOST_OF_CLIENT: Final = 1_000_000
NONCE_BYTES: Final = 24
DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# The numbers of the mechanisms in requests 50 and 51.
NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
# No channel binding; the client may name whom it acts for; user and nonce; extensions.
_CLIENT_FIRST: Final = re.compile(
    r"[ny],(?:a=([^,]*))?,(n=([^,]*),r=([\x21-\x2b\x2d-\x7e]+)(,.*)?)"
)
_CLIENT_FINAL: Final = re.compile(r"(c=([^,]*),r=([\x21-\x2b\x2d-\x7e]+)(?:,.*)?),p=([^,]*)")
_SERVER_FIRST: Final = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([^,]+),i=(\d{1,9})(?:,.*)?")
_NUMBER: Final = re.compile(r"[0-9]{1,10}")
_BAD_NAME: Final = re.compile("=(?!2C|3D)")


class ScramError(Exception):
    """The exchange failed. What the text says is for the broker's log only."""


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server knows of one user for one mechanism."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    def encoded(self) -> str:
        """Return it as Kafka keeps it in /config/users (ScramCredentialUtils)."""
        return (
            f"salt={_text(self.salt)},stored_key={_text(self.stored_key)},"
            f"server_key={_text(self.server_key)},iterations={self.iterations}"
        )


def decode_credential(text: str) -> ScramCredential:
    """Read what `encoded` gives, in any order. Raises ValueError.

    Kafka reads the iterations as a number of 32 bits, which answers have, too.
    """
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    if parts.keys() != {"salt", "stored_key", "server_key", "iterations"}:
        raise ValueError("not salt, stored_key, server_key and iterations")
    iterations = parts["iterations"]
    if not _NUMBER.fullmatch(iterations) or int(iterations) > INT_MAX:
        raise ValueError(f"iterations are no number of 32 bits: {iterations[:40]!r}")
    return ScramCredential(
        _bytes(parts["salt"]),
        _bytes(parts["stored_key"]),
        _bytes(parts["server_key"]),
        int(iterations),
    )


def credential(
    mechanism: str, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential that belongs to a salted password."""
    digest = DIGESTS[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    return ScramCredential(
        salt, stored_key, hmac.digest(salted_password, b"Server Key", digest), iterations
    )


class ScramServer:
    """One exchange, as the server.

    `first`, then `find` of the user's credential by `user`, `challenge` with it, then `final`.
    """

    def __init__(self, mechanism: str, nonce: str, secret: bytes) -> None:
        self.user = ""
        self._mechanism = mechanism
        self._digest = DIGESTS[mechanism]
        self._own_nonce = nonce
        self._secret = secret  # of this broker, for the salts of unknown users
        self._nonce = self._first_bare = self._header = self._server_first = ""
        self._client_nonce = ""
        self._credential: ScramCredential | None = None

    def first(self, token: bytes) -> None:
        """Read the client's first message, which names the user. Raises ScramError."""
        text = _decoded(token)
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise ScramError("malformed first message")
        authorized, self._first_bare, name, nonce, extensions = found.groups()
        if extensions:
            raise ScramError("extensions are not supported")
        self.user = _name(name)
        if authorized and _name(authorized) != self.user:
            raise ScramError("the user acts for another one")
        self._header = text[: len(text) - len(self._first_bare)]
        self._client_nonce = nonce
        self._nonce = nonce + self._own_nonce

    def challenge(self, known: ScramCredential | None) -> bytes:
        """Return the answer to the first message; None stands for an unknown user."""
        if known is not None and known.iterations < MIN_ITERATIONS:
            known = None
        self._credential = known
        size = hashlib.new(self._digest).digest_size
        salt = hmac.digest(self._secret, self.user.encode(), self._digest)[:NONCE_BYTES]
        if known is None:
            known = ScramCredential(salt, bytes(size), bytes(size), MIN_ITERATIONS)
        self._server_first = f"r={self._nonce},s={_text(known.salt)},i={known.iterations}"
        return self._server_first.encode()

    def final(self, token: bytes) -> bytes:
        """Return the answer to the client's last message if it proves the password.

        Raises ScramError if not, after the same work.
        """
        found = _CLIENT_FINAL.fullmatch(_decoded(token))
        if found is None:
            raise ScramError("malformed last message")
        without_proof, binding, nonce, proof_text = found.groups()
        size = hashlib.new(self._digest).digest_size
        known = self._credential or ScramCredential(b"", bytes(size), bytes(size), MIN_ITERATIONS)
        proof = _bytes_or_error(proof_text)
        if len(proof) != size:
            raise ScramError("the proof has another length")
        messages = f"{self._first_bare},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(known.stored_key, messages, self._digest)
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._digest, client_key).digest()
        is_right = hmac.compare_digest(stored_key, known.stored_key)
        same_nonce = nonce in self._right_nonces()
        same_header = _bytes_or_error(binding) == self._header.encode()
        if self._credential is None:
            raise ScramError("unknown user")
        if not (is_right and same_nonce and same_header):
            raise ScramError("wrong proof" if same_nonce and same_header else "another exchange")
        return b"v=" + _text(hmac.digest(known.server_key, messages, self._digest)).encode()

    def _right_nonces(self) -> tuple[str, str]:
        """Return what the last message may name: exactly ours, as any other would be another
        exchange (CVE-2024-56128), or the client's twice, as librdkafka before 2.6.1 sends it. The
        proof covers both parts there, too.
        """
        return self._nonce, self._client_nonce + self._nonce


class ScramClient:
    """One exchange, as the client: `first`, `final`, then `check`."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        self._digest = DIGESTS[mechanism]
        self._password = password.encode()
        escaped = user.replace("=", "=3D").replace(",", "=2C")
        self._nonce = nonce
        self._first_bare = f"n={escaped},r={nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        """Return the first message."""
        return f"n,,{self._first_bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """Return the last message, with the proof; takes milliseconds. Raises ScramError."""
        server_first = _decoded(challenge)
        found = _SERVER_FIRST.fullmatch(server_first)
        if found is None:
            raise ScramError("malformed challenge")
        nonce, salt, iterations = found[1], _bytes_or_error(found[2]), int(found[3])
        if not nonce.startswith(self._nonce):
            raise ScramError("the challenge has another nonce")
        if not MIN_ITERATIONS <= iterations <= MOST_OF_CLIENT:
            raise ScramError(
                f"the challenge asks for {iterations} iterations, not for {MIN_ITERATIONS} to "
                f"{MOST_OF_CLIENT}"
            )
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, salt, iterations)
        without_proof = f"c=biws,r={nonce}"
        messages = f"{self._first_bare},{server_first},{without_proof}".encode()
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        stored_key = hashlib.new(self._digest, client_key).digest()
        signature = hmac.digest(stored_key, messages, self._digest)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self._digest)
        self._server_signature = hmac.digest(server_key, messages, self._digest)
        return f"{without_proof},p={_text(proof)}".encode()

    def check(self, answer: bytes) -> None:
        """Check that the server knows the credential too. Raises ScramError."""
        text = _decoded(answer)
        if not text.startswith("v="):
            raise ScramError("the server refused")
        if not hmac.compare_digest(_bytes_or_error(text[2:]), self._server_signature):
            raise ScramError("the server does not know the credential")


def _decoded(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise ScramError("not UTF-8") from None


def _name(escaped: str) -> str:
    if not escaped or _BAD_NAME.search(escaped):
        raise ScramError("malformed user name")
    return escaped.replace("=2C", ",").replace("=3D", "=")


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _bytes_or_error(text: str) -> bytes:
    try:
        return _bytes(text)
    except (binascii.Error, ValueError):
        raise ScramError("malformed base64") from None
