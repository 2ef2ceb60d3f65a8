"""The partition of an internal topic that an id belongs to: a group's, or a transactional id's.

The number of partitions is read from the topic's znode, as in Kafka. The metadata cache lacks
partitions that never had a leader, and a wrong number would map ids to wrong partitions.
"""

from __future__ import annotations

import asyncio
import codecs
import logging

from kazoo.exceptions import KazooException

from odradek.zk import znodes
from odradek.zk.payload import ZnodeError
from odradek.zk.session import NoNodeError, Session, SessionState, WatchEvent

logger = logging.getLogger(__name__)

# Python opens a file to load it, for which there may be no descriptor by the first use.
codecs.lookup("utf-16-le")


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 units, in 32 bits, signed."""
    value = 0
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_of(an_id: str, partitions: int) -> int:
    """Return the partition of an id; Kafka's abs maps the least integer to 0."""
    hashed = java_hash(an_id)
    return 0 if hashed == -(1 << 31) else abs(hashed) % partitions


class PartitionCount:
    """The number of partitions of an internal topic. Used from the event loop."""

    def __init__(self, session: Session, topic: str) -> None:
        self._session = session
        self._topic = topic
        self._count: int | None = None
        self._watched = False
        session.on_state(self._note_session)

    def __call__(self) -> int | None:
        """Return the number, None while it is unknown or the topic does not exist."""
        return self._count

    async def learn(self) -> None:
        """Read the znode, unless nothing has changed since the last read."""
        if self._watched:
            return
        self._watched = True  # before the read: the watch may fire before the answer arrives
        path = znodes.topic_path(self._topic)
        try:
            count = None
            if await self._session.exists(path, self._changed) is not None:
                data, _ = await self._session.get(path)
                count = len(znodes.decode_topic(path, data).partitions)
            self._count = count
        except NoNodeError:
            self._count = None  # removed since; the watch fires
        except (KazooException, ZnodeError) as error:
            # Keep the last number: it rarely changes.
            logger.warning(
                "failed to read the number of partitions of %s: %r; retrying", self._topic, error
            )
            self._watched = False
        except asyncio.CancelledError:
            self._watched = False  # nobody else reads it
            raise

    def _changed(self, _: WatchEvent) -> None:
        self._watched = False

    def _note_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._watched = False  # watches were lost with the old connection
