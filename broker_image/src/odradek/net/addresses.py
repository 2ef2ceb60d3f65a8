"""Looks names of hosts up."""

from __future__ import annotations

import asyncio
import socket
from typing import Any


async def look_up(
    host: str, port: int, flags: int = 0
) -> list[tuple[socket.AddressFamily, socket.SocketKind, int, Any]]:
    """(family, kind, protocol, address) of each way to reach a host. Raises OSError.

    Also where the host's name cannot be one, for which the standard library has another error.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        raise OSError(f"{host} is not a host name") from error
    return [(family, kind, protocol, address) for family, kind, protocol, _, address in found]
