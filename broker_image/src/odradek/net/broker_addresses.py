"""The network addresses of the cluster's brokers, looked up again and again by their names.

A listener that clients share with brokers needs them: at the maximum of connections it lets brokers
in. The address of a broker may change, for instance when its pod is replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from odradek.net.addresses import look_up

REFRESH_S: Final = 10.0


class BrokerAddresses:
    """The addresses of the hosts that `hosts` names, while `run` runs."""

    def __init__(self, hosts: Callable[[], Awaitable[Collection[str]]]) -> None:
        self._hosts = hosts
        self._of_host: dict[str, frozenset[str]] = {}
        self._all: frozenset[str] = frozenset()

    def __contains__(self, address: str) -> bool:
        return address in self._all

    async def run(self) -> None:
        """Look the hosts up, until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_S)

    async def refresh(self) -> None:
        """Look each host up once; one that cannot be found now keeps its addresses.

        One after the other: a name server that does not answer must not keep threads from others.
        """
        hosts = set(await self._hosts())
        self._of_host = {host: found for host, found in self._of_host.items() if host in hosts}
        for host in hosts:
            try:
                ways = await look_up(host, 0)
            except OSError:
                continue
            self._of_host[host] = frozenset(str(address[0]) for *_, address in ways)
            self._all = frozenset().union(*self._of_host.values())
        self._all = frozenset().union(*self._of_host.values())
