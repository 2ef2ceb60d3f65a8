"""The coordinator of the groups whose `__consumer_offsets` partition this broker leads (G2, G3).

A group belongs to partition abs(hash(id)) mod n, and is coordinated by that partition's leader.
What this broker leads is compared with what it has loaded, before each request and by a slow tick,
so a leadership that came or went is noticed without anybody telling. Requests are answered by the
pure `Group`; this module gives it the clock, its timers, and durability: assignments and offsets
count once they are written with acks=all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from odradek.group import offsets as schemas
from odradek.group.group import Group
from odradek.group.members import Joined, JoinWish, Synced
from odradek.group.offsets import Committed
from odradek.group.shard import Shard, TopicIndex
from odradek.group.states import GroupState
from odradek.log import records
from odradek.log.batch import CorruptBatchError, Origin
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replica.partition import TopicPartition

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.replica.appends import AppendOutcome
    from odradek.replica.partition import Partition

OFFSETS_TOPIC = "__consumer_offsets"
TICK_S = 1.0
LOADS_AT_ONCE = 2
OFFSETS_CHECK_S = 600.0
COMMIT_TIMEOUT_MS = 5000
"""offsets.commit.timeout.ms of Kafka: how long the replicas may take to confirm a commit."""

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")

# What a failed write to __consumer_offsets means for a group's client, as Kafka maps it.
_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}


class Replicas(Protocol):
    """What the coordinator needs of the `ReplicaManager`."""

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """Replicas on this broker."""

    async def append(
        self,
        entries: Sequence[tuple[TopicPartition, bytes]],
        acks: int,
        timeout_ms: int,
        origin: Origin,
    ) -> list[AppendOutcome]:
        """One outcome an entry, once acknowledged as `acks` asks."""


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


def monotonic_ms() -> int:
    """Milliseconds of the monotonic clock."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class GroupCoordinator:
    """Built and run by the server; every method belongs to the event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        replicas: Replicas,
        partition_count: Callable[[], int | None],
        clock_ms: Callable[[], int] = monotonic_ms,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._config = config
        self._replicas = replicas
        self.partition_count = partition_count
        self._clock_ms = clock_ms
        self._now_ms = now_ms
        self._shards: dict[int, Shard] = {}
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- which groups are ours ----------------------------------------------------------------

    def _shard(self, group_id: str) -> Shard:
        """The loaded shard of a group. Raises KafkaError 24, 15, 16 or 14."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        count = self.partition_count()
        if count is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        shard = self._current(partition_of(group_id, count))
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not shard.loaded:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def _current(self, index: int) -> Shard | None:
        """The shard of a partition's present leadership, None where another broker leads."""
        partition = self._replicas.partitions.get(TopicPartition(OFFSETS_TOPIC, index))
        if partition is not None and (partition.offline or not partition.leads):
            partition = None
        shard = self._shards.get(index)
        if shard is not None:
            same = partition is not None and shard.source is partition
            if same and shard.reign == shard.source.reign:
                return shard
            self._give_up(shard)
        if partition is None:
            return None
        shard = self._shards[index] = Shard(partition)
        self._spawn(self._load(shard, partition))
        return shard

    def _give_up(self, shard: Shard) -> None:
        if shard.groups:
            logger.info("%s-%d: no longer coordinating its groups", OFFSETS_TOPIC, shard.partition)
        for group_id in shard.groups:
            self._cancel_timer(group_id)
        shard.retire()
        if self._shards.get(shard.partition) is shard:
            del self._shards[shard.partition]

    async def _load(self, shard: Shard, partition: Partition) -> None:
        began = self._clock_ms()
        try:
            async with self._loads:
                await shard.load(
                    partition.log,
                    self._config.offsets_load_buffer_size,
                    self._new_group,
                    self._clock_ms,
                )
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
            self._schedule(group)

    def _new_group(self, group_id: str) -> Group:
        return Group(
            group_id,
            self._store_group,
            self._config.group_initial_rebalance_delay_ms,
            self._config.group_max_size,
        )

    async def run(self) -> None:
        """Notice leaderships and expire offsets, until cancelled."""
        next_check = self._clock_ms() + OFFSETS_CHECK_S * 1000
        while True:
            await asyncio.sleep(TICK_S)
            self.refresh()
            if self._clock_ms() >= next_check:
                next_check = self._clock_ms() + OFFSETS_CHECK_S * 1000
                await self._expire_offsets()

    def refresh(self) -> None:
        """Begin to load what this broker leads by now, give up what it does not."""
        led = {key.partition for key in self._replicas.partitions if key.topic == OFFSETS_TOPIC}
        for index in led | self._shards.keys():
            self._current(index)

    def close(self) -> None:
        """End every wait; the server stops."""
        for shard in [*self._shards.values()]:
            self._give_up(shard)
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("group coordinator task failed", exc_info=task.exception())

    # --- timers -------------------------------------------------------------------------------

    def _schedule(self, group: Group) -> None:
        """See that `expire` is called when the group next needs it; heartbeats move no timer."""
        deadline = group.next_deadline_ms()
        if deadline is None or group.state is GroupState.DEAD:
            self._cancel_timer(group.group_id)
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + max(deadline - self._clock_ms(), 0) / 1000
        timer = self._timers.get(group.group_id)
        if timer is not None:
            if timer.when() <= at:
                return
            timer.cancel()
        self._timers[group.group_id] = loop.call_at(at, self._expire, group)

    def _expire(self, group: Group) -> None:
        self._timers.pop(group.group_id, None)
        if group.state is GroupState.DEAD:
            return
        before = {*group.members}
        group.expire(self._clock_ms())
        gone = before - {*group.members}
        if gone:
            logger.info(
                "group %s: no sign of life from %s", group.group_id, ", ".join(sorted(gone))
            )
        self._schedule(group)

    def _cancel_timer(self, group_id: str) -> None:
        timer = self._timers.pop(group_id, None)
        if timer is not None:
            timer.cancel()

    # --- durability ---------------------------------------------------------------------------

    async def _append(
        self, group_id: str, pairs: Iterable[tuple[bytes, bytes | None]]
    ) -> tuple[ErrorCode, int]:
        """The outcome once it is settled, and the offset of the first record in the log."""
        count = self.partition_count()
        if count is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, -1
        key = TopicPartition(OFFSETS_TOPIC, partition_of(group_id, count))
        data = records.make(pairs, self._now_ms())
        outcomes = await self._replicas.append(
            [(key, data)], -1, COMMIT_TIMEOUT_MS, Origin.COORDINATOR
        )
        error = outcomes[0].error
        return _APPEND_ERRORS.get(error, error), outcomes[0].base_offset

    def _store_group(
        self, group: Group, assignments: Mapping[str, bytes], done: Callable[[ErrorCode], None]
    ) -> None:
        record = schemas.encode_group(group, assignments, self._now_ms())

        async def store() -> None:
            error, _ = await self._append(group.group_id, [record])
            done(error)
            self._schedule(group)

        self._spawn(store())
        count = self.partition_count()
        shard = self._shards.get(partition_of(group.group_id, count)) if count else None
        if shard is not None:
            if group.members:
                shard.empty_since_ms.pop(group.group_id, None)
            else:
                shard.empty_since_ms[group.group_id] = self._now_ms()

    # --- membership ---------------------------------------------------------------------------

    async def join(self, group_id: str, wish: JoinWish) -> Joined:
        """JoinGroup: wait for the next generation."""
        limits = self._config
        allowed = range(
            limits.group_min_session_timeout_ms, limits.group_max_session_timeout_ms + 1
        )
        if group_id and wish.session_timeout_ms not in allowed:
            return Joined(ErrorCode.INVALID_SESSION_TIMEOUT, wish.member_id)
        try:
            shard = self._shard(group_id)
        except KafkaError as error:
            return Joined(error.code, wish.member_id)
        group = shard.groups.get(group_id)
        if group is None:
            if wish.member_id:
                return Joined(ErrorCode.UNKNOWN_MEMBER_ID, wish.member_id)
            group = shard.groups[group_id] = self._new_group(group_id)
        answer: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        group.join(wish, self._clock_ms(), lambda joined: _settle(answer, joined))
        self._schedule(group)
        return await answer

    async def sync(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol: tuple[str | None, str | None],
        assignments: Mapping[str, bytes],
    ) -> Synced:
        """SyncGroup: wait for the leader's assignment."""
        try:
            group = self._group(group_id)
        except KafkaError as error:
            return Synced(error.code)
        answer: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        group.sync(
            member_id,
            instance_id,
            generation,
            protocol,
            assignments,
            self._clock_ms(),
            lambda synced: _settle(answer, synced),
        )
        self._schedule(group)
        return await answer

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Heartbeat."""
        try:
            group = self._group(group_id)
        except KafkaError as error:
            # A client that is told "loading" would stop consuming: its session starts anew anyway.
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return ErrorCode.NONE
            return error.code
        return group.heartbeat(member_id, instance_id, generation, self._clock_ms())

    def leave(
        self, group_id: str, leaving: Sequence[tuple[str, str | None]]
    ) -> tuple[ErrorCode, list[ErrorCode]]:
        """LeaveGroup: the request's error, and one for each (member id, instance id)."""
        try:
            group = self._group(group_id)
        except KafkaError as error:
            return error.code, []
        now = self._clock_ms()
        errors = [group.leave(member_id, instance_id, now) for member_id, instance_id in leaving]
        self._schedule(group)
        return ErrorCode.NONE, errors

    def _group(self, group_id: str) -> Group:
        group = self._shard(group_id).groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def find(self, group_id: str) -> tuple[ErrorCode, Group | None]:
        """DescribeGroups: the group; None is one that nobody ever joined."""
        try:
            return ErrorCode.NONE, self._shard(group_id).groups.get(group_id)
        except KafkaError as error:
            return error.code, None

    def groups(self) -> tuple[ErrorCode, list[Group]]:
        """ListGroups: every group coordinated here; 14 while some are still being read."""
        self.refresh()
        shards = [*self._shards.values()]
        loading = any(not shard.loaded for shard in shards)
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NONE
        return error, [group for shard in shards for group in shard.groups.values()]

    # --- offsets ------------------------------------------------------------------------------

    async def commit(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        commits: Mapping[TopicIndex, Committed],
    ) -> dict[TopicIndex, ErrorCode]:
        """OffsetCommit by (member id, instance id, generation); an error for each partition."""
        try:
            shard = self._shard(group_id)
            group = self._committing_group(shard, group_id, *member)
        except KafkaError as refusal:
            return dict.fromkeys(commits, refusal.code)
        limit = self._config.offset_metadata_max_bytes
        answers = {
            where: ErrorCode.OFFSET_METADATA_TOO_LARGE
            for where, commit in commits.items()
            if len(commit.metadata.encode()) > limit
        }
        good = {where: commit for where, commit in commits.items() if where not in answers}
        if not good:
            return answers
        pairs = [
            schemas.encode_offset(group_id, topic, index, commit)
            for (topic, index), commit in good.items()
        ]
        error, position = await self._append(group_id, pairs)
        if error is ErrorCode.NONE and group.state is not GroupState.DEAD:
            shard.take_committed(group_id, good, position)
        return {**answers, **dict.fromkeys(good, error)}

    def _committing_group(
        self, shard: Shard, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> Group:
        """The group, if this member may commit. Raises KafkaError 22, 25, 27 or 82."""
        group = shard.groups.get(group_id)
        if group is None:
            if generation >= 0:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            # A consumer that assigns itself, or a tool: it has no membership to check.
            group = shard.groups[group_id] = self._new_group(group_id)
            shard.empty_since_ms[group_id] = self._now_ms()
        if generation < 0 and group.state is GroupState.EMPTY:
            return group
        error = group.heartbeat(member_id, instance_id, generation, self._clock_ms())
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            # While members are asked to join again, what they have done may still be committed.
            return group
        if error is ErrorCode.NONE and group.state is GroupState.COMPLETING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        return group

    def committed(self, group_id: str) -> tuple[ErrorCode, Mapping[TopicIndex, Committed]]:
        """OffsetFetch: everything the group has committed."""
        try:
            return ErrorCode.NONE, self._shard(group_id).offsets.get(group_id, {})
        except KafkaError as error:
            return error.code, {}

    async def delete_group(self, group_id: str) -> ErrorCode:
        """DeleteGroups: forget an empty group and its offsets (68 while it has members)."""
        try:
            shard = self._shard(group_id)
        except KafkaError as error:
            return error.code
        group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        return await self._forget(shard, group, [*shard.offsets.get(group_id, {})], whole=True)

    async def delete_offsets(
        self, group_id: str, where: Sequence[TopicIndex]
    ) -> tuple[ErrorCode, dict[TopicIndex, ErrorCode]]:
        """OffsetDelete: the request's error, or one for each partition (86 while subscribed)."""
        try:
            shard = self._shard(group_id)
        except KafkaError as refusal:
            return refusal.code, {}
        group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, {}
        if group.state is not GroupState.EMPTY and group.protocol_type != "consumer":
            return ErrorCode.NON_EMPTY_GROUP, {}
        subscribed = group.subscribed_topics()
        answers = {
            each: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for each in where if each[0] in subscribed
        }
        free = [each for each in where if each not in answers]
        present = [each for each in free if each in shard.offsets.get(group_id, {})]
        error = await self._forget(shard, group, present, whole=False)
        return ErrorCode.NONE, {**answers, **dict.fromkeys(free, error)}

    async def _forget(
        self, shard: Shard, group: Group, where: Sequence[TopicIndex], *, whole: bool
    ) -> ErrorCode:
        """Write tombstones for offsets and, with `whole`, for the group; then drop them."""
        group_id = group.group_id
        pairs = [schemas.encode_offset(group_id, topic, index, None) for topic, index in where]
        if whole:
            pairs.append((schemas.group_key(group_id), None))
        if not pairs:
            return ErrorCode.NONE
        error, _ = await self._append(group_id, pairs)
        if error is not ErrorCode.NONE or group.state is GroupState.DEAD:
            return error
        for topic, index in where:
            shard.forget(schemas.OffsetKey(group=group_id, topic=topic, partition=index))
        if whole and group.state is GroupState.EMPTY:
            group.retire(ErrorCode.GROUP_ID_NOT_FOUND)
            shard.groups.pop(group_id, None)
            shard.empty_since_ms.pop(group_id, None)
            self._cancel_timer(group_id)
        return error

    async def _expire_offsets(self) -> None:
        """Drop what a memberless group committed longer ago than offsets.retention.minutes."""
        now = self._now_ms()
        retention_ms = self._config.offsets_retention_minutes * 60_000
        for shard in [*self._shards.values()]:
            for group_id, group in [*shard.groups.items()]:
                if group.state is not GroupState.EMPTY or not shard.loaded:
                    continue
                empty_since = shard.empty_since_ms.get(group_id, 0)
                offsets = shard.offsets.get(group_id, {})
                old = [
                    where
                    for where, commit in offsets.items()
                    if now >= _expiry_ms(commit, empty_since, retention_ms)
                ]
                whole = len(old) == len(offsets) and now >= empty_since + retention_ms
                if old or whole:
                    await self._forget(shard, group, old, whole=whole)


def _expiry_ms(commit: Committed, empty_since_ms: int, retention_ms: int) -> int:
    if commit.expires_ms >= 0:
        return commit.expires_ms
    return max(commit.committed_ms, empty_since_ms) + retention_ms


def _settle(answer: asyncio.Future[Answer], value: Answer) -> None:
    if not answer.done():
        answer.set_result(value)
