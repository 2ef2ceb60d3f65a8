"""The controller hears of failed log directories and replicas through a znode (KIP-112)."""

from __future__ import annotations

import asyncio
import logging

from kazoo.exceptions import KazooException

from odradek.quarantine import Quarantines, Work
from odradek.zk import znodes
from odradek.zk.session import Session

RETRY_S = 1.0

logger = logging.getLogger(__name__)


class FailedDirectories:
    """Announces failures while `run` runs; several at once are one announcement."""

    def __init__(self, broker_id: int, session: Session, quarantines: Quarantines) -> None:
        self._broker_id = broker_id
        self._session = session
        self._quarantines = quarantines
        self._failed = asyncio.Event()

    def announce(self) -> None:
        """Let the controller ask soon which replicas of this broker failed."""
        self._failed.set()

    async def run(self) -> None:
        """Write an announcement after each failure, until cancelled."""
        while True:
            await self._failed.wait()
            self._failed.clear()
            try:
                await self._session.create(
                    f"{znodes.LOG_DIR_EVENTS_PATH}/{znodes.LOG_DIR_EVENT_PREFIX}",
                    znodes.encode_log_dir_event(self._broker_id),
                    sequence=True,
                )
            except KazooException as failure:
                logger.warning("failed to announce a failed log directory: %r; retrying", failure)
                self._failed.set()
                await asyncio.sleep(RETRY_S)
            except Exception as failure:
                pause_s = self._quarantines.put(Work.NOTICE, "log directories", failure)
                self._failed.set()
                await asyncio.sleep(pause_s)
            else:
                self._quarantines.release(Work.NOTICE, "log directories")
