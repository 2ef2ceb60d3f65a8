"""Announces changed in-sync sets to the controller under `/isr_change_notification`.

Changed partitions are announced in batches, when the last change is some seconds old or the last
notification a minute, as Kafka does. One notification names at most `PARTITIONS_PER_NOTICE`: the
server ends the connection of a client that sends more than jute.maxbuffer (1 MiB) at once, with all
its pending requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kazoo.exceptions import KazooException

from odradek.values import TopicPartition
from odradek.zk import znodes

if TYPE_CHECKING:
    from odradek.zk.session import Session

PARTITIONS_PER_NOTICE = 1_000  # each takes up to 280 bytes
CHECK_S = 2.5
QUIET_MS = 5_000
LONGEST_MS = 60_000

logger = logging.getLogger(__name__)


class IsrNotices:
    """The partitions whose in-sync sets changed since they were announced."""

    def __init__(self, session: Session, clock_ms: Callable[[], int]) -> None:
        self._session = session
        self._clock_ms = clock_ms
        self._changed: set[TopicPartition] = set()
        self._last_change_ms = 0
        self._last_notice_ms = clock_ms()

    def add(self, partition: TopicPartition) -> None:
        """Announce a partition with the next notification."""
        self._changed.add(partition)
        self._last_change_ms = self._clock_ms()

    async def run(self) -> None:
        """Announce changed partitions until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            now = self._clock_ms()
            if self._changed and (
                now - self._last_change_ms >= QUIET_MS or now - self._last_notice_ms >= LONGEST_MS
            ):
                await self.announce()

    async def announce(self) -> None:
        """Announce all partitions that changed; what cannot be written stays for the next time."""
        announced = sorted(self._changed)
        for start in range(0, len(announced), PARTITIONS_PER_NOTICE):
            some = announced[start : start + PARTITIONS_PER_NOTICE]
            # A partition that changes again meanwhile is announced again.
            self._changed.difference_update(some)
            try:
                await self._session.create(
                    f"{znodes.ISR_CHANGES_PATH}/{znodes.ISR_CHANGE_PREFIX}",
                    znodes.encode_isr_change(some),
                    sequence=True,
                )
            except BaseException as failure:
                self._changed.update(some)
                if not isinstance(failure, KazooException):
                    raise
                logger.warning("failed to announce ISR changes: %r; retrying", failure)
                return
        self._last_notice_ms = self._clock_ms()
