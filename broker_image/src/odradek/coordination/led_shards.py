"""The shards that this broker coordinates: the partitions of an internal topic that it leads.

The partitions that this broker leads are compared with the loaded shards before each request, and
once per second. So a new or lost leadership is noticed without a notification.

A shard that cannot be loaded is loaded again after a pause; until then, its ids are loading.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from odradek.coordination.partitioning import PartitionCount, partition_of
from odradek.coordination.shard import LedShard
from odradek.log.records.batch import CorruptBatchError
from odradek.log.segment.files import FileRetiredError
from odradek.net.inline_future import InlineFuture, wake
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quarantine import Quarantines, Work
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.log.partition.log import Log
    from odradek.replica.partition import Partition

LOADS_AT_ONCE = 2
LOAD_AGAIN_S = 1.0
REFUSALS_PER_LINE = 1000

logger = logging.getLogger(__name__)
ShardT = TypeVar("ShardT", bound=LedShard)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CoordinatorKind:
    """What a coordinator coordinates: the topic of its state, and its words in log lines."""

    topic: str
    name: str
    an_id: str
    ids: str
    work: Work
    loading: Work
    bound: str
    """The setting that says how many ids a broker coordinates at most."""
    beyond_bound: ErrorCode
    """What clients are told of a new id beyond it: a code that they take as final."""


class LedShards(Generic[ShardT]):
    """The shards of the partitions of one topic that this broker leads.

    `load` reads a new shard. `on_loaded` is called with each loaded shard and deals with its own
    failures, `on_gone` with each shard that is given up, before it is retired.
    """

    def __init__(
        self,
        kind: CoordinatorKind,
        partitions: Callable[[], Mapping[TopicPartition, Partition]],
        partition_count: PartitionCount,
        most_ids: int,
        new_shard: Callable[[Partition], ShardT],
        load: Callable[[ShardT, Log], Awaitable[None]],
        on_loaded: Callable[[ShardT], Awaitable[None]],
        on_gone: Callable[[ShardT], None],
        clock_ms: Callable[[], int],
        quarantines: Quarantines,
    ) -> None:
        self._kind = kind
        self._partitions = partitions
        self._partition_count = partition_count
        self._most_ids = most_ids
        self.refused = 0
        """How many times a new id was refused because there were too many."""
        self._new_shard = new_shard
        self._load_shard = load
        self._on_loaded = on_loaded
        self._on_gone = on_gone
        self._clock_ms = clock_ms
        self._quarantines = quarantines
        self._shards: dict[int, ShardT] = {}
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE)
        self._tasks: set[asyncio.Task[Any]] = set()

    def of(self, an_id: str) -> ShardT:
        """Return the loaded shard of an id.

        Raise KafkaError NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS.
        """
        count = self._partition_count()
        shard = None if count is None else self._current(partition_of(an_id, count))
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not shard.loaded:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def check_room(self, new_id: str) -> None:
        """Raise KafkaError (the kind's `beyond_bound`) if there are too many ids for a new one."""
        if sum(shard.size for shard in self._shards.values()) < self._most_ids:
            return
        kind = self._kind
        if self.refused % REFUSALS_PER_LINE == 0:
            logger.warning(
                "refused %s %.80s: there are %d %s (%s)",
                kind.an_id,
                new_id,
                self._most_ids,
                kind.ids,
                kind.bound,
            )
        self.refused += 1
        raise KafkaError(kind.beyond_bound)

    def notice_roles(self) -> None:
        """Run `update` in the background: clients send requests at once."""
        self.spawn(self.update())

    async def update(self) -> None:
        """Notice new and lost leaderships, once the number of partitions is known."""
        await self._partition_count.learn()
        self.all()

    def all(self) -> list[ShardT]:
        """Return every shard of a present leadership, including those that are being loaded."""
        topic = self._kind.topic
        led = {key.partition for key in self._partitions() if key.topic == topic}
        for index in led | self._shards.keys():
            with self._quarantines.guard(self._kind.work, TopicPartition(topic, index)):
                self._current(index)
        return [*self._shards.values()]

    def loaded(self) -> list[ShardT]:
        """Return the shards that are loaded. May be called from any thread."""
        return [shard for shard in self._shards.copy().values() if shard.loaded]

    def _current(self, index: int) -> ShardT | None:
        """Return the shard of a partition's present leadership, None if another broker leads."""
        partition = self._partitions().get(TopicPartition(self._kind.topic, index))
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
        shard = self._shards[index] = self._new_shard(partition)
        self.spawn(self._load(shard, partition))
        return shard

    def _give_up(self, shard: ShardT) -> None:
        if shard.size:
            logger.info("%s: no longer coordinating its %s", shard.source.key, self._kind.ids)
        self._on_gone(shard)
        shard.retire()
        self._quarantines.release(self._kind.loading, shard.source.key)
        if self._shards.get(shard.partition) is shard:
            del self._shards[shard.partition]

    async def _load(self, shard: ShardT, partition: Partition) -> None:
        began = self._clock_ms()
        try:
            async with self._loads:
                log = partition.log
                await self._load_shard(shard, log)
        except (KafkaError, CorruptBatchError, OSError, FileRetiredError) as error:
            # Unavailable ids are better than wrong ones. It is an ordinary race where a segment
            # left the log meanwhile, or the log moved to another directory.
            raced = isinstance(error, FileRetiredError) or partition.log is not log
            logger.log(
                logging.INFO if raced else logging.ERROR,
                "failed to load %s from %s: %s; retrying",
                self._kind.ids,
                shard.source.key,
                error,
            )
            self._load_again(shard, partition, LOAD_AGAIN_S)
            return
        except Exception as error:
            pause_s = self._quarantines.put(self._kind.loading, shard.source.key, error)
            self._load_again(shard, partition, pause_s)
            return
        self._quarantines.release(self._kind.loading, shard.source.key)
        if shard.retired:
            return
        logger.log(
            logging.INFO if shard.size else logging.DEBUG,
            "%s: coordinating %d %s, read in %d ms",
            shard.source.key,
            shard.size,
            self._kind.ids,
            self._clock_ms() - began,
        )
        await self._on_loaded(shard)

    def _load_again(self, shard: ShardT, partition: Partition, pause_s: float) -> None:
        """Replace a shard that could not be loaded by a fresh one, and load that after a pause."""
        if shard.retired:
            return
        shard.retire()
        fresh = self._shards[shard.partition] = self._new_shard(partition)
        asyncio.get_running_loop().call_later(pause_s, self._begin_load, fresh, partition)

    def _begin_load(self, shard: ShardT, partition: Partition) -> None:
        if not shard.retired:
            self.spawn(self._load(shard, partition))

    def reload(self, shard: ShardT) -> None:
        """Give up a shard and read its partition again, if this broker leads it still."""
        if not shard.retired:
            self._give_up(shard)
            self._current(shard.partition)

    def close(self) -> None:
        """Give up every shard, and cancel all tasks, when the server stops."""
        for shard in [*self._shards.values()]:
            self._give_up(shard)
        for task in self._tasks:
            task.cancel()

    async def carry_out(self, work: Coroutine[object, object, T], if_stopped: T) -> T:
        """Return the result of work that goes on if the caller is cancelled, as its client went:
        what is in the log must be known here, too. `if_stopped` is for a server that stops.
        """
        task = self.spawn(work)
        ended: InlineFuture[None] = InlineFuture()
        task.add_done_callback(lambda _: wake(ended))
        await ended
        return if_stopped if task.cancelled() else task.result()

    def spawn(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Run a background task until `close`, and return it; log its failure."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            subject = f"{self._kind.name} coordinator"
            self._quarantines.note(self._kind.work, subject, error, "going on")
