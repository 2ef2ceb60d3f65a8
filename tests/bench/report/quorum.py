"""DescribeQuorum of KRaft by a bare socket: this project has no use for it elsewhere."""

from __future__ import annotations

import struct
from typing import Final

from tests.support.broker import Broker

_TOPIC: Final = b"__cluster_metadata"
_SIZE: Final = struct.Struct(">i")
# Key 55, version 0, correlation id 1, the client's name; no tags.
_HEADER: Final = struct.pack(">hhih", 55, 0, 1, 5) + b"bench" + b"\0"
# Compact arrays and strings have their length plus one before them, and each struct ends with tags.
_NAME: Final = bytes([len(_TOPIC) + 1]) + _TOPIC
_BODY: Final = b"\x02" + _NAME + b"\x02" + struct.pack(">i", 0) + b"\0\0\0"
# Correlation id, tags, error, topics, name, partitions; of the first one index, error and leader.
_ANSWER: Final = struct.Struct(f">ixhx{len(_NAME)}sxihi")


def leader(broker: Broker) -> int:
    """Return the id of the active controller as a broker knows it, -1 without one."""
    request = _HEADER + _BODY
    with broker.connect() as sock, sock.makefile("rb") as answers:
        sock.sendall(_SIZE.pack(len(request)) + request)
        (size,) = _SIZE.unpack(answers.read(_SIZE.size))
        answer = answers.read(size)
    _, error, *_ = struct.unpack_from(">ixh", answer)
    if error:
        return -1
    *_, error, found = _ANSWER.unpack_from(answer)
    return -1 if error else int(found)
