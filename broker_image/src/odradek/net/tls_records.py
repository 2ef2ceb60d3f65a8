"""The records of TLS in what a socket has delivered: where they end, and what they are.

OpenSSL gets whole records only. That it needs more it tells by an exception, which costs as much as
to decrypt a record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

# A full record, with what encryption adds. OpenSSL's buffer of what arrives never shrinks, so it
# gets no more at once.
RECORD_BYTES: Final = 16 * 1024 + 256
# A longer record is an error, of which OpenSSL tells the peer (RFC 5246, 6.2.3; less in TLS 1.3).
_LONGEST_RECORD_BYTES: Final = 16 * 1024 + 2048
# Its kind, the major version (all of TLS have 3), the length of what follows.
_RECORD_HEADER: Final = struct.Struct(">BBxH")
_HEADER_BYTES: Final = _RECORD_HEADER.size
_unpack_header: Final = _RECORD_HEADER.unpack_from
_CHANGE_CIPHER_SPEC, _APPLICATION_DATA = 20, 23
_RECORD_KINDS: Final = frozenset(range(20, 25))
# Most cipher text taken from a socket in one call, and the room for it behind the beginning of a
# record.
TAKEN_BYTES: Final = 256 * 1024
SCRATCH_BYTES: Final = TAKEN_BYTES + _HEADER_BYTES + _LONGEST_RECORD_BYTES


def whole_records(cipher: memoryview) -> Iterator[tuple[int, int]]:
    """Give whole TLS records in portions: where each ends, and how many records it has.

    Small ones come together, large ones alone. What cannot be a record has no end of its own:
    OpenSSL gets all of it.
    """
    portion = start = end = count = 0
    arrived = len(cipher)
    while start <= arrived - _HEADER_BYTES:
        kind, version, length = _unpack_header(cipher, start)
        if version != 3 or length > _LONGEST_RECORD_BYTES or kind not in _RECORD_KINDS:
            yield arrived, count + 1
            return
        start += _HEADER_BYTES + length
        if start > arrived:
            break
        if count and start - portion > RECORD_BYTES:
            yield end, count
            portion, count = end, 0
        end = start
        count += 1
    if count:
        yield end, count


def ends_handshake(cipher: memoryview) -> bool:
    """Return whether records begin with an encrypted message, as the last one of TLS 1.3 is.

    It follows a ChangeCipherSpec that means nothing. All other messages make OpenSSL compute for
    long; they are in plain text, or of TLS 1.2, and records of the kind HANDSHAKE.
    """
    kind, _, length = _unpack_header(cipher)
    if kind == _CHANGE_CIPHER_SPEC:
        following = _HEADER_BYTES + int(length)
        kind = cipher[following] if following < len(cipher) else kind
    return bool(kind == _APPLICATION_DATA)
