"""Chooses ports of the loopback: those that are wanted, or the next free ones."""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Final

from odradek_local.errors import LocalError

HOST: Final = "127.0.0.1"
_LAST: Final = 65535


def is_free(port: int) -> bool:
    """Return whether nobody listens there, on this address or on all."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers bind: a port whose connections have just ended is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose(first: int, count: int, chosen: Collection[int]) -> tuple[list[int], list[int]]:
    """Return `count` free ports from `first` on, and those that were passed over as taken.

    Ports in `chosen` are somebody else's of this start, and not worth a word. Raises LocalError.
    """
    found: list[int] = []
    taken: list[int] = []
    for port in range(first, _LAST + 1):
        if len(found) == count:
            break
        if port in chosen:
            continue
        (found if is_free(port) else taken).append(port)
    if len(found) < count:
        raise LocalError(f"there are no {count} free ports from {first} on: give a lower one")
    return found, taken
