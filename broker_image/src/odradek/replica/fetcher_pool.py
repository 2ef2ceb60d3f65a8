"""The fetchers of this broker: which one copies a partition, and which are no longer needed."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

from odradek.config import bounded_threads
from odradek.quarantine import Quarantines, Work
from odradek.replica.fetcher import SourceFetcher
from odradek.replica.partition import Partition, PostponedRole
from odradek.values import NO_LEADER, TopicPartition


class FetcherPool:
    """The fetchers of this broker, `per_source` per source broker; `run` owns their tasks."""

    def __init__(
        self, per_source: int, make: Callable[[int], SourceFetcher], quarantines: Quarantines
    ) -> None:
        self._per_source = bounded_threads(per_source)
        self._make = make
        self._quarantines = quarantines
        self._fetchers: dict[tuple[int, int], SourceFetcher] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run the fetchers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for fetcher in self._fetchers.values():
                tasks.create_task(self._keep_running(fetcher))
            await asyncio.Event().wait()

    async def _keep_running(self, fetcher: SourceFetcher) -> None:
        await self._quarantines.keep_running(Work.SOURCE, fetcher.name, fetcher.run)

    def resize(self, per_source: int) -> None:
        """Have so many fetchers per source; what they copied goes on in the right one, but not
        before a truncation of it is over.
        """
        per_source = bounded_threads(per_source)
        if per_source == self._per_source:
            return
        self._per_source = per_source
        for place, fetcher in list(self._fetchers.items()):
            for partition in fetcher.partitions():
                if self._place(partition) == place:
                    continue
                if not partition.truncation_lock.locked():
                    self.follow(partition)
                elif partition.postponed is None:  # else that role chooses the fetcher
                    partition.postponed = PostponedRole(
                        partition.leader_epoch,
                        functools.partial(self._follow_elsewhere, partition, fetcher),
                    )
        self.end_idle()

    def _follow_elsewhere(self, partition: Partition, former: SourceFetcher) -> None:
        if partition in former.partitions():
            self.follow(partition)
            self.end_idle()

    def end_idle(self) -> None:
        """End the fetchers that have nothing left to fetch."""
        for place, fetcher in list(self._fetchers.items()):
            if not len(fetcher):
                del self._fetchers[place]
                fetcher.end()

    def _place(self, partition: Partition) -> tuple[int, int]:
        return partition.leader, hash(partition.key) % self._per_source

    def follow(self, partition: Partition) -> None:
        """Copy the partition from its present leader only; without one, wait for it."""
        self.unfollow(partition.key)
        if partition.leader == NO_LEADER:
            return
        place = self._place(partition)
        fetcher = self._fetchers.get(place)
        if fetcher is None:
            fetcher = self._fetchers[place] = self._make(partition.leader)
            if self._tasks is not None:
                self._tasks.create_task(self._keep_running(fetcher))
        fetcher.add(partition)

    def unfollow(self, key: TopicPartition) -> None:
        """Stop copying the partition."""
        for fetcher in self._fetchers.values():
            fetcher.remove(key)

    def look_at(self, key: TopicPartition) -> None:
        """Have the fetcher of a partition look at it: its log is another one, for instance."""
        for fetcher in self._fetchers.values():
            fetcher.look_at(key)
