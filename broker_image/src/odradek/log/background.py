"""The tasks that keep house and compact, in threads, as many as `log.cleaner.threads` says."""

import asyncio
from typing import Final

from odradek.config import BrokerConfig, bounded_threads
from odradek.log.compactor import Compactor
from odradek.log.housekeeping import Housekeeper
from odradek.log.segment.files import DiskThreads
from odradek.quarantine import Quarantines, Work

_TICK_S: Final = 1.0


class BackgroundWork:
    """Runs rounds of the housekeeper and of the compactor while `run` runs."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: DiskThreads,
        housekeeper: Housekeeper,
        compactor: Compactor,
        quarantines: Quarantines,
    ) -> None:
        self._config = config
        self._disk = disk
        self._housekeeper = housekeeper
        self._compactor = compactor
        self._quarantines = quarantines
        self._reconfigured = asyncio.Event()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Change the number of tasks that compact; called on the event loop."""
        self._config = config
        self._reconfigured.set()

    @property
    def _cleaners(self) -> int:
        return bounded_threads(self._config.log_cleaner_threads)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_house())
            if self._config.log_cleaner_enable:
                tasks.create_task(self._keep_cleaners())

    async def _keep_house(self) -> None:
        while True:
            with self._quarantines.guard(Work.MAINTENANCE, "logs"):
                await self._disk.run(self._housekeeper.round)
            await asyncio.sleep(_TICK_S)

    async def _keep_cleaners(self) -> None:
        """Have as many tasks that compact as `log.cleaner.threads` says."""
        cleaners: dict[int, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._reconfigured.clear()
                for number in range(self._cleaners):
                    if number not in cleaners or cleaners[number].done():
                        cleaners[number] = tasks.create_task(
                            self._keep_compacting(number), name=f"cleaner-{number}"
                        )
                await self._reconfigured.wait()

    async def _keep_compacting(self, number: int) -> None:
        while number < self._cleaners:
            compacted = False
            with self._quarantines.guard(Work.COMPACTION, "logs"):
                compacted = await self._disk.run(self._compactor.compact)
            if not compacted:
                await asyncio.sleep(self._config.log_cleaner_backoff_ms / 1000)
