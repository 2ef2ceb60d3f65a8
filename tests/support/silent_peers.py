"""Peers that connect to a port of this machine, send nothing or half a request, and stay."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def silent_peers(port: int, count: int, start: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        peers = []
        for _ in range(count):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            with contextlib.suppress(ConnectionError):  # it had to make room already
                peer.sendall(start)
            peers.append(peer)
        yield peers
