"""The groups that this broker coordinates: the shards of `__consumer_offsets` that it leads.

A group whose state raised an exception that nobody foresaw begins anew, without members but with
its offsets (`restarting`); for a pause that doubles with each time, it is loading.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

from odradek import slices
from odradek.coordination.led_shards import CoordinatorKind, LedShards
from odradek.coordination.partitioning import PartitionCount
from odradek.group.group import Group
from odradek.group.shard import Shard
from odradek.log.partition.log import Log
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quarantine import Quarantines, Work
from odradek.replica.partition import Partition
from odradek.values import OFFSETS_TOPIC, TopicPartition

_GROUPS = CoordinatorKind(
    OFFSETS_TOPIC,
    "group",
    "group",
    "groups",
    Work.GROUP,
    Work.GROUP_LOADING,
    "odradek.max.groups",
    ErrorCode.GROUP_MAX_SIZE_REACHED,
)


class Shards(LedShards[Shard]):
    """The loaded partitions of `__consumer_offsets`.

    `on_group` is called with each loaded group, `on_group_gone` with each group that is given up,
    and `on_shard` with each loaded shard before it serves a request.
    """

    def __init__(
        self,
        partitions: Callable[[], Mapping[TopicPartition, Partition]],
        partition_count: PartitionCount,
        read_bytes: int,
        most_groups: int,
        new_group: Callable[[str], Group],
        on_group: Callable[[Group], None],
        on_group_gone: Callable[[Group], None],
        on_shard: Callable[[Shard], None],
        clock_ms: Callable[[], int],
        quarantines: Quarantines,
    ) -> None:
        async def load(shard: Shard, log: Log) -> None:
            await shard.load(log, read_bytes, new_group, clock_ms)

        super().__init__(
            _GROUPS,
            partitions,
            partition_count,
            most_groups,
            Shard,
            load,
            self._take_over,
            self._let_go,
            clock_ms,
            quarantines,
        )
        self._new_group = new_group
        self._on_group = on_group
        self._on_group_gone = on_group_gone
        self._on_shard = on_shard
        self._paused: set[str] = set()
        self._withheld: dict[str, asyncio.Event] = {}

    def of(self, group_id: str) -> Shard:
        """As of any shard; a group that begins anew, or is withheld, is loading too."""
        shard = self.of_members(group_id)
        if group_id in self._withheld:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def of_members(self, group_id: str) -> Shard:
        """As `of`, but a withheld group is not loading: its members stay, and it is stored."""
        shard = super().of(group_id)
        if group_id in self._paused:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def at(self, index: int) -> Shard | None:
        """Return the shard of a partition, which may still be loading; None: another broker leads
        the partition.
        """
        return self._current(index)

    def of_named(self, group_id: str) -> Shard:
        """As `of`, for what needs a group with a name; else raise KafkaError INVALID_GROUP_ID.

        The empty id has offsets only: Java clients before 2.2 commit under it when they are told
        of no group, and Kafka lets them commit, fetch, describe and delete (KIP-289).
        """
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return self.of(group_id)

    async def _take_over(self, shard: Shard) -> None:
        self._on_shard(shard)
        for few in slices.cut([*shard.groups.values()]):
            for group in few:
                with self.restarting(group):
                    self._on_group(group)
            if len(few) == slices.STEPS_PER_SLICE:
                await slices.pause()
            if shard.retired:
                return

    def _let_go(self, shard: Shard) -> None:
        for group in shard.groups.values():
            self._on_group_gone(group)

    @contextlib.asynccontextmanager
    async def withheld(self, group_id: str) -> AsyncIterator[None]:
        """Keep a group from clients, as if it were loading; one caller after the other."""
        while group_id in self._withheld:
            await self._withheld[group_id].wait()
        end = self._withheld[group_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._withheld[group_id]
            end.set()

    @contextlib.contextmanager
    def restarting(self, group: Group) -> Iterator[None]:
        """Let a group begin anew if the body, about its members, raises an unexpected exception.

        Its generation goes on, so that no late member is taken for one of the new group.
        """
        try:
            yield
        except Exception as error:
            self._pause(group.group_id, error)
            self._on_group_gone(group)
            for shard in self._shards.values():
                if shard.groups.get(group.group_id) is group:
                    fresh = shard.groups[group.group_id] = self._new_group(group.group_id)
                    fresh.restore([], group.generation, None)
                    shard.empty_since_ms.pop(group.group_id, None)
            with contextlib.suppress(Exception):
                group.retire(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _pause(self, group_id: str, error: Exception) -> None:
        """Have a group's clients wait: else they would join again and again without a pause."""
        subject = f"group {group_id}"
        pause_s = self._quarantines.put(Work.GROUP, subject, error, "its members join anew")
        if group_id not in self._paused:
            self._paused.add(group_id)
            asyncio.get_running_loop().call_later(pause_s, self._readmit, group_id, subject)

    def _readmit(self, group_id: str, subject: str) -> None:
        self._paused.discard(group_id)
        self._quarantines.readmit(Work.GROUP, subject)
