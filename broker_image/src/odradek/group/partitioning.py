"""Which partition of `__consumer_offsets` a group belongs to.

The number of partitions is read from the topic's znode, as Kafka's brokers do: the metadata that
the controller tells lacks partitions that never had a leader, and with a wrong number groups would
be sought in the wrong places.
"""

from __future__ import annotations

import logging

from kazoo.exceptions import KazooException

from odradek.zk import znodes
from odradek.zk.payload import ZnodeError
from odradek.zk.session import NoNodeError, Session, SessionState, WatchEvent

OFFSETS_TOPIC = "__consumer_offsets"

logger = logging.getLogger(__name__)


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, in 32 bits, signed."""
    value = 0
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_of(group_id: str, partitions: int) -> int:
    """The `__consumer_offsets` partition of a group; Kafka's abs maps the least integer to 0."""
    hashed = java_hash(group_id)
    return 0 if hashed == -(1 << 31) else abs(hashed) % partitions


class PartitionCount:
    """How many partitions `__consumer_offsets` has. Used from the event loop."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._count: int | None = None
        self._watched = False
        session.on_state(self._note_session)

    def __call__(self) -> int | None:
        """The number, None while it is not known or there is no such topic."""
        return self._count

    async def learn(self) -> None:
        """Read the znode unless what is known of it still holds, also that there is none."""
        if self._watched:
            return
        self._watched = True  # before reading: the watch may fire before the answer is in
        path = znodes.topic_path(OFFSETS_TOPIC)
        try:
            count = None
            if await self._session.exists(path, self._changed) is not None:
                data, _ = await self._session.get(path)
                count = len(znodes.decode_topic(path, data).partitions)
            self._count = count
        except NoNodeError:
            self._count = None  # removed since, as the watch tells
        except (KazooException, ZnodeError) as error:
            # The last known number stays: it changes only with the topic itself.
            logger.warning("the partitions of %s are not known: %r", OFFSETS_TOPIC, error)
            self._watched = False

    def _changed(self, _: WatchEvent) -> None:
        self._watched = False

    def _note_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._watched = False  # watches went with the old connection
