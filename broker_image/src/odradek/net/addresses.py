"""Resolves host names."""

from __future__ import annotations

import asyncio
import socket
from typing import Any


async def look_up(
    host: str, port: int, flags: int = 0
) -> list[tuple[socket.AddressFamily, socket.SocketKind, int, Any]]:
    """Return (family, kind, protocol, address) of each address of a host. Raises OSError.

    An invalid host name raises OSError too; the standard library raises another error.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        raise OSError(f"{host} is not a host name") from error
    return [(family, kind, protocol, address) for family, kind, protocol, _, address in found]
