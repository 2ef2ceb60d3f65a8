"""Resolves host names."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Any

# Of all hosts of a setting together: a second name server may have to answer.
LOOK_UP_LIMIT_S = 15.0


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


def plain(address: str) -> str:
    """Return an address so that one of IPv4 looks the same whether the socket has IPv6 or not."""
    return address.removeprefix("::ffff:")


async def numbers_by_address(entries: Iterable[str]) -> dict[str, int]:
    """Look up the hosts of `host:number` entries; return the number of each address.

    Raises OSError that names a host which is not found, or not in time. One after the other: a name
    server that does not answer must not keep threads from others.
    """
    numbers: dict[str, int] = {}
    host = ""
    try:
        async with asyncio.timeout(LOOK_UP_LIMIT_S):
            for entry in entries:
                host, _, number = entry.rpartition(":")
                for *_, address in await look_up(host.strip("[]"), 0):
                    numbers[plain(str(address[0]))] = int(number)
    except TimeoutError:
        raise OSError(f"failed to look up {host} in time") from None
    except OSError as error:
        raise OSError(f"failed to look up {host}: {error}") from error
    return numbers
