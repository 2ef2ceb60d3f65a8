"""Which groups this broker coordinates: those whose `__consumer_offsets` partition it leads.

What this broker leads is compared with what it has loaded, before each request and by a slow tick,
so a leadership that came or went is noticed without anybody telling.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping

from odradek.group.group import Group
from odradek.group.partitioning import OFFSETS_TOPIC, partition_of
from odradek.group.shard import Shard
from odradek.log.records.batch import CorruptBatchError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replica.partition import Partition
from odradek.values import TopicPartition

LOADS_AT_ONCE = 2

logger = logging.getLogger(__name__)


class Shards:
    """The loaded partitions of `__consumer_offsets`.

    `on_group` is told each group that was read, `on_gone` each that belongs to others now.
    """

    def __init__(
        self,
        partitions: Callable[[], Mapping[TopicPartition, Partition]],
        partition_count: Callable[[], int | None],
        read_bytes: int,
        new_group: Callable[[str], Group],
        on_group: Callable[[Group], None],
        on_gone: Callable[[Group], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self._partitions = partitions
        self._partition_count = partition_count
        self._read_bytes = read_bytes
        self._new_group = new_group
        self._on_group = on_group
        self._on_gone = on_gone
        self._clock_ms = clock_ms
        self._shards: dict[int, Shard] = {}
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, group_id: str) -> Shard:
        """The loaded shard of a group. Raises KafkaError 24, 16 or 14."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        index = self.index_of(group_id)
        shard = None if index is None else self._current(index)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not shard.loaded:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def index_of(self, group_id: str) -> int | None:
        """The partition of a group, None while their number is not known."""
        count = self._partition_count()
        return None if count is None else partition_of(group_id, count)

    def all(self) -> list[Shard]:
        """Every shard of a present leadership, those that are still being read too."""
        led = {key.partition for key in self._partitions() if key.topic == OFFSETS_TOPIC}
        for index in led | self._shards.keys():
            self._current(index)
        return [*self._shards.values()]

    def loaded(self) -> list[Shard]:
        """The shards that are served, as of the last look. May be called from any thread."""
        return [shard for shard in self._shards.copy().values() if shard.loaded]

    def _current(self, index: int) -> Shard | None:
        """The shard of a partition's present leadership, None where another broker leads."""
        partition = self._partitions().get(TopicPartition(OFFSETS_TOPIC, index))
        if partition is not None and (partition.offline or not partition.is_leader):
            partition = None
        shard = self._shards.get(index)
        if shard is not None:
            same = partition is not None and shard.source is partition
            if same and shard.leadership_generation == shard.source.leadership_generation:
                return shard
            self._give_up(shard)
        if partition is None:
            return None
        shard = self._shards[index] = Shard(partition)
        self.spawn(self._load(shard, partition))
        return shard

    def _give_up(self, shard: Shard) -> None:
        if shard.groups:
            logger.info("%s-%d: no longer coordinating its groups", OFFSETS_TOPIC, shard.partition)
        for group in shard.groups.values():
            self._on_gone(group)
        shard.retire()
        if self._shards.get(shard.partition) is shard:
            del self._shards[shard.partition]

    async def _load(self, shard: Shard, partition: Partition) -> None:
        began = self._clock_ms()
        try:
            async with self._loads:
                await shard.load(partition.log, self._read_bytes, self._new_group, self._clock_ms)
        except (KafkaError, CorruptBatchError, OSError) as error:
            # Groups stay unavailable rather than wrong; the next tick tries again.
            logger.error("%s-%d: cannot be loaded: %s", OFFSETS_TOPIC, shard.partition, error)
            self._give_up(shard)
            return
        if shard.retired:
            return
        logger.log(
            logging.INFO if shard.groups else logging.DEBUG,
            "%s-%d: coordinating %d groups, read in %d ms",
            OFFSETS_TOPIC,
            shard.partition,
            len(shard.groups),
            self._clock_ms() - began,
        )
        for group in shard.groups.values():
            self._on_group(group)

    def close(self) -> None:
        """End every wait; the server stops."""
        for shard in [*self._shards.values()]:
            self._give_up(shard)
        for task in self._tasks:
            task.cancel()

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run work beside requests until `close`; a failure is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("group coordinator task failed", exc_info=task.exception())
