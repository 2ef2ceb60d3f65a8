"""Reads Java's key stores of the old format, JKS.

Layout, big-endian, as `sun.security.provider.JavaKeyStore` writes it: magic 0xFEEDFEED, version 2,
number of entries; each entry has a tag (1: key with its chain, 2: trusted certificate), an alias,
the time of its creation, and its content. A SHA-1 digest ends the file: of the password, of a
constant, and of all bytes before. A key is encrypted by a stream of SHA-1 digests.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import Final

_MAGIC: Final = 0xFEEDFEED
_VERSION: Final = 2
_HEADER: Final = struct.Struct(">III")
_INT: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">H")
_TIME: Final = struct.Struct(">q")
_KEY_ENTRY, _TRUSTED_ENTRY = 1, 2
_DIGEST_BYTES: Final = 20
_SALT: Final = b"Mighty Aphrodite"
# The DER of OID 1.3.6.1.4.1.42.2.17.1.1, by which Java names the encryption of keys.
_PROTECTOR: Final = bytes.fromhex("060a2b060104012a02110101")


@dataclass(slots=True)
class _JksReader:
    content: bytes
    position: int

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.content):
            raise ValueError("the JKS key store is cut short")
        taken = self.content[self.position : end]
        self.position = end
        return taken

    def number(self) -> int:
        return int(_INT.unpack(self.take(_INT.size))[0])

    def text(self) -> str:
        count = int(_SHORT.unpack(self.take(_SHORT.size))[0])
        return self.take(count).decode(errors="replace")

    def certificate(self) -> bytes:
        kind = self.text()
        if kind != "X.509":
            raise ValueError(f"the JKS key store has a certificate of type {kind}")
        return self.take(self.number())


def is_jks(content: bytes) -> bool:
    """Return whether a file has this format."""
    return content[: _INT.size] == _INT.pack(_MAGIC)


def identity(content: bytes, password: str, key_password: str) -> tuple[bytes, list[bytes]]:
    """Return the first key (PKCS8, DER) and its certificates (DER). Raises ValueError."""
    keys, _ = _entries(content, password)
    if not keys:
        raise ValueError("it has no key with a certificate")
    protected, chain = keys[0]
    return _opened(protected, key_password), chain


def trusted(content: bytes, password: str) -> list[bytes]:
    """Return the trusted certificates (DER). Raises ValueError.

    Without a password nobody checks whether the file is complete, as in Java.
    """
    return _entries(content, password)[1]


def _entries(content: bytes, password: str) -> tuple[list[tuple[bytes, list[bytes]]], list[bytes]]:
    if len(content) < _HEADER.size + _DIGEST_BYTES:
        raise ValueError("the JKS key store is cut short")
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    _, version, count = _HEADER.unpack_from(body)
    if version != _VERSION:
        raise ValueError(f"JKS version {version} is not supported")
    if password:
        expected = hashlib.sha1(_java(password) + _SALT + body).digest()  # noqa: S324  the format's
        if not hmac.compare_digest(expected, digest):
            raise ValueError("its password is wrong, or it is damaged")
    reader = _JksReader(body, _HEADER.size)
    keys: list[tuple[bytes, list[bytes]]] = []
    certificates: list[bytes] = []
    for _ in range(count):
        tag = reader.number()
        reader.text()
        reader.take(_TIME.size)
        if tag == _KEY_ENTRY:
            protected = reader.take(reader.number())
            keys.append((protected, [reader.certificate() for _ in range(reader.number())]))
        elif tag == _TRUSTED_ENTRY:
            certificates.append(reader.certificate())
        else:
            raise ValueError(f"the JKS key store has an entry of kind {tag}")
    return keys, certificates


def _opened(protected: bytes, password: str) -> bytes:
    """Decrypt a key: salt, key XOR stream, and the digest of password and key."""
    at = protected.find(_PROTECTOR)
    if at < 0:
        raise ValueError("its key is encrypted in an unknown way")
    # SEQUENCE { SEQUENCE { OID, NULL }, OCTET STRING }: the octets are the rest of the entry.
    start = at + len(_PROTECTOR) + 2
    if protected[start : start + 1] != b"\x04":
        raise ValueError("its key is damaged")
    length = protected[start + 1]
    start += 2 + (length & 0x7F if length & 0x80 else 0)
    octets = protected[start:]
    secret, digest = _java(password), octets[:_DIGEST_BYTES]
    hidden, check = octets[_DIGEST_BYTES:-_DIGEST_BYTES], octets[-_DIGEST_BYTES:]
    stream = bytearray()
    while len(stream) < len(hidden):
        digest = hashlib.sha1(secret + digest).digest()  # noqa: S324  the format's
        stream += digest
    key = bytes(one ^ other for one, other in zip(hidden, stream, strict=False))
    expected = hashlib.sha1(secret + key).digest()  # noqa: S324  the format's
    if not hmac.compare_digest(expected, check):
        raise ValueError("ssl.key.password does not open its key")
    return key


def _java(password: str) -> bytes:
    return password.encode("utf-16-be")
