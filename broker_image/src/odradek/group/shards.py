"""The shards that this broker coordinates: the `__consumer_offsets` partitions that it leads.

The partitions that this broker leads are compared with the loaded shards before each request, and
once per second. So a new or lost leadership is noticed without a notification.

A shard that cannot be loaded is loaded again after a pause; until then, its groups are loading. A
group whose state raised an exception that nobody foresaw begins anew, without members but with its
offsets (`restarting`); it is loading too for a pause that doubles with each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping

from odradek import slices
from odradek.group.group import Group
from odradek.group.partitioning import OFFSETS_TOPIC, partition_of
from odradek.group.shard import Shard
from odradek.log.records.batch import CorruptBatchError
from odradek.log.segment.files import FileRetiredError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quarantine import Quarantines, Work
from odradek.replica.partition import Partition
from odradek.values import TopicPartition

LOADS_AT_ONCE = 2
LOAD_AGAIN_S = 1.0
_REFUSALS_PER_LINE = 1000

logger = logging.getLogger(__name__)


class Shards:
    """The loaded partitions of `__consumer_offsets`.

    `on_group` is called with each loaded group, `on_gone` with each group that is given up.
    """

    def __init__(
        self,
        partitions: Callable[[], Mapping[TopicPartition, Partition]],
        partition_count: Callable[[], int | None],
        read_bytes: int,
        most_groups: int,
        new_group: Callable[[str], Group],
        on_group: Callable[[Group], None],
        on_gone: Callable[[Group], None],
        clock_ms: Callable[[], int],
        quarantines: Quarantines,
    ) -> None:
        self._partitions = partitions
        self._partition_count = partition_count
        self._read_bytes = read_bytes
        self._most_groups = most_groups
        self.refused = 0
        """How many times a group was refused because there were too many."""
        self._new_group = new_group
        self._on_group = on_group
        self._on_gone = on_gone
        self._clock_ms = clock_ms
        self._quarantines = quarantines
        self._shards: dict[int, Shard] = {}
        self._paused: set[str] = set()
        self._withheld: dict[str, asyncio.Event] = {}
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, group_id: str) -> Shard:
        """Return the loaded shard of a group.

        Raise KafkaError NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS.
        """
        index = self.index_of(group_id)
        shard = None if index is None else self._current(index)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not shard.loaded or group_id in self._paused or group_id in self._withheld:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def of_named(self, group_id: str) -> Shard:
        """As `of`, for what needs a group with a name; else raise KafkaError INVALID_GROUP_ID.

        The empty id has offsets only: Java clients before 2.2 commit under it when they are told
        of no group, and Kafka lets them commit, fetch, describe and delete (KIP-289).
        """
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return self.of(group_id)

    def check_room(self, group_id: str) -> None:
        """Raise KafkaError(GROUP_MAX_SIZE_REACHED) if there are too many groups for a new one.

        Clients take this code as final, and name the group.
        """
        if sum(len(shard.groups) for shard in self._shards.values()) < self._most_groups:
            return
        if self.refused % _REFUSALS_PER_LINE == 0:
            logger.warning(
                "refused group %s: there are %d groups (odradek.max.groups)",
                group_id,
                self._most_groups,
            )
        self.refused += 1
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def index_of(self, group_id: str) -> int | None:
        """Return the partition of a group, None while the number of partitions is unknown."""
        count = self._partition_count()
        return None if count is None else partition_of(group_id, count)

    def all(self) -> list[Shard]:
        """Return every shard of a present leadership, including those that are being loaded."""
        led = {key.partition for key in self._partitions() if key.topic == OFFSETS_TOPIC}
        for index in led | self._shards.keys():
            with self._quarantines.guard(Work.GROUP, TopicPartition(OFFSETS_TOPIC, index)):
                self._current(index)
        return [*self._shards.values()]

    def loaded(self) -> list[Shard]:
        """Return the shards that are loaded. May be called from any thread."""
        return [shard for shard in self._shards.copy().values() if shard.loaded]

    def _current(self, index: int) -> Shard | None:
        """Return the shard of a partition's present leadership, None if another broker leads."""
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
        self._quarantines.release(Work.GROUP_LOADING, shard.source.key)
        if self._shards.get(shard.partition) is shard:
            del self._shards[shard.partition]

    async def _load(self, shard: Shard, partition: Partition) -> None:
        began = self._clock_ms()
        try:
            async with self._loads:
                log = partition.log
                await shard.load(log, self._read_bytes, self._new_group, self._clock_ms)
        except (KafkaError, CorruptBatchError, OSError, FileRetiredError) as error:
            # Unavailable groups are better than wrong ones. It is an ordinary race where a segment
            # left the log meanwhile, or the log moved to another directory.
            raced = isinstance(error, FileRetiredError) or partition.log is not log
            logger.log(
                logging.INFO if raced else logging.ERROR,
                "failed to load groups from %s: %s; retrying",
                shard.source.key,
                error,
            )
            self._load_again(shard, partition, LOAD_AGAIN_S)
            return
        except Exception as error:
            pause_s = self._quarantines.put(Work.GROUP_LOADING, shard.source.key, error)
            self._load_again(shard, partition, pause_s)
            return
        self._quarantines.release(Work.GROUP_LOADING, shard.source.key)
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
        for few in slices.cut([*shard.groups.values()]):
            for group in few:
                with self.restarting(group):
                    self._on_group(group)
            if len(few) == slices.STEPS_PER_SLICE:
                await slices.pause()
            if shard.retired:
                return

    def _load_again(self, shard: Shard, partition: Partition, pause_s: float) -> None:
        """Replace a shard that could not be loaded by a fresh one, and load that after a pause."""
        if shard.retired:
            return
        shard.retire()
        fresh = self._shards[shard.partition] = Shard(partition)
        asyncio.get_running_loop().call_later(pause_s, self._begin_load, fresh, partition)

    def _begin_load(self, shard: Shard, partition: Partition) -> None:
        if not shard.retired:
            self.spawn(self._load(shard, partition))

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
            self._on_gone(group)
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

    def close(self) -> None:
        """Answer every waiting member, and cancel all tasks, when the server stops."""
        for shard in [*self._shards.values()]:
            self._give_up(shard)
        for task in self._tasks:
            task.cancel()

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run a background task until `close`; log its failure."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._quarantines.note(Work.GROUP, "group coordinator", error, "going on")
