"""The coordinator of the groups whose `__consumer_offsets` partition this broker leads (G2, G3).

A group belongs to partition abs(hash(id)) mod n, and is coordinated by that partition's leader.
Requests are answered by the pure `Group`; this module gives it the clock and its timers. `shards`
knows which groups are ours, `commits` makes things last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from odradek.clock import monotonic_ms, wall_ms
from odradek.group import offsets as schemas
from odradek.group.commits import Commits, Replicas
from odradek.group.group import Group
from odradek.group.members import Joined, JoinWish, Synced
from odradek.group.offsets import Committed
from odradek.group.partitioning import PartitionCount
from odradek.group.shard import TopicIndex
from odradek.group.shards import Shards
from odradek.group.states import GroupState
from odradek.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.replica.partition import Partition

TICK_S = 1.0

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class GroupCount:
    """A group in numbers."""

    group_id: str
    state: GroupState
    members: int
    generation: int
    offsets: list[tuple[TopicIndex, Committed]]


class GroupCoordinator:
    """Built and run by the server; every method belongs to the event loop.

    `leads_for_certain` tells whether the session surely lives in which the controller told a role.
    `commits` serves what concerns offsets.
    """

    def __init__(
        self,
        config: BrokerConfig,
        replicas: Replicas,
        partition_count: PartitionCount,
        leads_for_certain: Callable[[Partition], bool],
        clock_ms: Callable[[], int] = monotonic_ms,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._config = config
        self.partition_count = partition_count
        self._clock_ms = clock_ms
        self._now_ms = now_ms
        self._timers: dict[Group, asyncio.TimerHandle] = {}
        self._shards = Shards(
            lambda: replicas.partitions,
            partition_count,
            config.offsets_load_buffer_size,
            self._new_group,
            self._schedule,
            self._cancel_timer,
            clock_ms,
        )
        self.commits = Commits(
            config, replicas, self._shards, self._new_group, leads_for_certain, clock_ms, now_ms
        )

    def _new_group(self, group_id: str) -> Group:
        return Group(
            group_id,
            self._store_group,
            self._config.group_initial_rebalance_delay_ms,
            self._config.group_max_size,
        )

    def _store_group(
        self, group: Group, assignments: Mapping[str, bytes], done: Callable[[ErrorCode, int], None]
    ) -> None:
        record = schemas.encode_group(group, assignments, self._now_ms())

        async def store() -> None:
            outcome = await self.commits.store_group(group, record)
            done(outcome, self._clock_ms())
            self._schedule(group)

        self._shards.spawn(store())
        try:
            since = self._shards.of(group.group_id).empty_since_ms
        except KafkaError:
            return
        if group.members:
            since.pop(group.group_id, None)
        else:
            since[group.group_id] = self._now_ms()

    async def run(self) -> None:
        """Notice leaderships and expire offsets, until cancelled."""
        interval_ms = self._config.offsets_retention_check_interval_ms
        next_check = self._clock_ms() + interval_ms
        while True:
            await self._look()
            if self._clock_ms() >= next_check:
                next_check = self._clock_ms() + interval_ms
                await self.commits.expire()
            await asyncio.sleep(TICK_S)

    def notice_roles(self) -> None:
        """Look at what this broker leads now, beside requests: clients come to it at once."""
        self._shards.spawn(self._look())

    async def _look(self) -> None:
        await self.partition_count.learn()
        self.refresh()

    def refresh(self) -> None:
        """Begin to load what this broker leads by now, give up what it does not."""
        self._shards.all()

    def forget_partitions(self, deleted: Collection[TopicIndex]) -> None:
        """Have what groups have committed of deleted partitions dropped, beside requests."""
        self._shards.spawn(self.commits.forget_partitions(deleted))

    def close(self) -> None:
        """End every wait; the server stops."""
        self._shards.close()

    # --- timers -------------------------------------------------------------------------------

    def _schedule(self, group: Group) -> None:
        """See that `expire` is called when the group next needs it; heartbeats move no timer."""
        deadline = group.next_look_ms
        if deadline is None or group.state is GroupState.DEAD:
            self._cancel_timer(group)
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + max(deadline - self._clock_ms(), 0) / 1000
        timer = self._timers.get(group)
        if timer is not None:
            if timer.when() <= at:
                return
            timer.cancel()
        self._timers[group] = loop.call_at(at, self._expire, group)

    def _expire(self, group: Group) -> None:
        self._timers.pop(group, None)
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

    def _cancel_timer(self, group: Group) -> None:
        timer = self._timers.pop(group, None)
        if timer is not None:
            timer.cancel()

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
            shard = self._shards.of(group_id)
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
            group = self._shards.of(group_id).groups.get(group_id)
        except KafkaError as error:
            return error.code, []
        if group is None:
            return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        now = self._clock_ms()
        errors = [group.leave(member_id, instance_id, now) for member_id, instance_id in leaving]
        self._schedule(group)
        return ErrorCode.NONE, errors

    def _group(self, group_id: str) -> Group:
        group = self._shards.of(group_id).groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def find(self, group_id: str) -> tuple[ErrorCode, Group | None]:
        """DescribeGroups: the group; None is one that nobody ever joined."""
        try:
            return ErrorCode.NONE, self._shards.of(group_id).groups.get(group_id)
        except KafkaError as error:
            return error.code, None

    def groups(self) -> tuple[ErrorCode, list[Group]]:
        """ListGroups: every group coordinated here; 14 while some are still being read."""
        shards = self._shards.all()
        loading = any(not shard.loaded for shard in shards)
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NONE
        return error, [group for shard in shards for group in shard.groups.values()]

    def census(self) -> list[GroupCount]:
        """Every loaded group, counted. May be called from any thread."""
        return [
            GroupCount(
                group_id,
                group.state,
                len(group.members),
                group.generation,
                list(shard.offsets.get(group_id, {}).items()),
            )
            for shard in self._shards.loaded()
            for group_id, group in sorted(shard.groups.copy().items())
        ]


def _settle(answer: asyncio.Future[Answer], value: Answer) -> None:
    if not answer.done():
        answer.set_result(value)
