"""The registrations of followers: whether a Fetch comes from the life that is registered now.

A follower dies, loses its disk and comes back empty under the same id. A Fetch that it sent before
may still arrive: its connection outlived it in socket buffers. It says that the follower has
everything, and up to version 12 nothing in it names a broker epoch. If it let the follower into the
in-sync set, the empty replica could become leader.

So a follower that is to join must prove that it lives under a registration (`czxid` of its znode
under /brokers/ids, the broker epoch). A leader reads that first, then answers a Fetch. Followers
send one Fetch per connection at a time, so the next one on the same connection was sent by a
process that lived while the registration was in place. `IsrWriter` reads the registration again
before and after it writes the in-sync set. A process that registers again after its session expired
proves itself anew, on the connection that it has.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from odradek.values import BrokerId
from odradek.zk import znodes

if TYPE_CHECKING:
    from odradek.zk.session import Session

logger = logging.getLogger(__name__)


class Registered(NamedTuple):
    """A broker, and the broker epoch under which it lives."""

    broker_id: int
    epoch: int


class FollowerRegistrations:
    """The registrations as this leader last read them. Only the event loop uses it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[int, Registered] = {}
        self._reading: dict[int, asyncio.Task[None]] = {}

    def known(self, broker_id: int) -> Registered | None:
        """Return the registration of a broker as last read; if there is none, read it."""
        found = self._known.get(broker_id)
        if found is None and broker_id not in self._reading:
            reading = asyncio.get_running_loop().create_task(self._read_once(broker_id))
            self._reading[broker_id] = reading
        return found

    async def is_current(self, registered: Registered) -> bool:
        """Return whether a broker is still registered so. Raises KazooException."""
        return await self._read(registered.broker_id) == registered

    async def _read(self, broker_id: int) -> Registered | None:
        stat = await self._session.exists(znodes.broker_path(BrokerId(broker_id)))
        if stat is None:
            self._known.pop(broker_id, None)
            return None
        found = self._known[broker_id] = Registered(broker_id, stat.czxid)
        return found

    async def _read_once(self, broker_id: int) -> None:
        try:
            await self._read(broker_id)
        except Exception as failure:
            logger.warning(
                "failed to read the registration of broker %d: %r; retrying", broker_id, failure
            )
        finally:
            del self._reading[broker_id]
