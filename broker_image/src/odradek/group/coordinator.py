"""The coordinator of the groups whose `__consumer_offsets` partition this broker leads (G2, G3).

A group belongs to partition abs(hash(id)) mod n, and that partition's leader coordinates it. The
pure `Group` answers requests; this module gives it the clock and its timers. `shards` knows the
groups of this broker, `appends` writes them to the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from odradek.clock import monotonic_ms, wall_ms
from odradek.coordination.partitioning import PartitionCount
from odradek.coordination.replicas import Replicas
from odradek.group import offsets as schemas
from odradek.group.appends import GroupAppends
from odradek.group.commits import Commits
from odradek.group.group import Group
from odradek.group.members import JoinResult, JoinSpec, SyncResult
from odradek.group.offset_deletion import OffsetDeletion
from odradek.group.offset_expiry import OffsetExpiry
from odradek.group.offsets import CommittedOffset
from odradek.group.shards import Shards
from odradek.group.states import GroupState
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quarantine import Quarantines, Work
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.group.shard import Shard
    from odradek.replica.partition import Partition

TICK_S = 1.0

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group's state, counts and offsets, for metrics."""

    group_id: str
    state: GroupState
    members: int
    generation: int
    offsets: list[tuple[TopicPartition, CommittedOffset]]


class GroupCoordinator:
    """Built and run by the server. Every method belongs to the event loop.

    `leadership_confirmed` returns whether this broker certainly still leads a partition. `commits`,
    `deletion` and `expiry` handle offsets.
    """

    def __init__(
        self,
        config: BrokerConfig,
        replicas: Replicas,
        partition_count: PartitionCount,
        leadership_confirmed: Callable[[Partition], bool],
        clock_ms: Callable[[], int] = monotonic_ms,
        now_ms: Callable[[], int] = wall_ms,
        quarantines: Quarantines | None = None,
    ) -> None:
        self.quarantines = quarantines or Quarantines()
        self._config = config
        self.partition_count = partition_count
        self._clock_ms = clock_ms
        self._now_ms = now_ms
        self._timers: dict[Group, asyncio.TimerHandle] = {}
        self._shards = Shards(
            lambda: replicas.partitions,
            partition_count,
            config.offsets_load_buffer_size,
            config.max_groups,
            self._new_group,
            self._schedule,
            self._cancel_timer,
            self._go_on,
            clock_ms,
            self.quarantines,
        )
        self.appends = GroupAppends(replicas, self._shards, now_ms)
        self.deletion = OffsetDeletion(self._shards, self.appends, self.quarantines)
        self.expiry = OffsetExpiry(config, self._shards, self.deletion, now_ms, self.quarantines)
        self.commits = Commits(
            config,
            self._shards,
            self.appends,
            self.deletion,
            self._new_group,
            leadership_confirmed,
            clock_ms,
            now_ms,
        )

    def _go_on(self, shard: Shard) -> None:
        self.deletion.go_on(shard)  # which is made with the shards

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
            with self._shards.restarting(group):
                outcome = ErrorCode.COORDINATOR_NOT_AVAILABLE
                try:
                    outcome = await self.appends.store_group(group, record)
                finally:
                    # A static member that joins again waits for nothing else.
                    done(outcome, self._clock_ms())
                self._schedule(group)

        self._shards.spawn(store())
        try:
            since = self._shards.of_members(group.group_id).empty_since_ms
        except KafkaError:
            return
        if group.members:
            since.pop(group.group_id, None)
        else:
            since[group.group_id] = self._now_ms()

    async def run(self) -> None:
        """Notice new and lost leaderships, and expire offsets, until cancelled."""
        interval_ms = self._config.offsets_retention_check_interval_ms
        next_check = self._clock_ms() + interval_ms
        while True:
            with self.quarantines.guard(Work.GROUP, "group coordinator"):
                await self._shards.update()
            if self._clock_ms() >= next_check:
                next_check = self._clock_ms() + interval_ms
                with self.quarantines.guard(Work.GROUP_EXPIRY, "group coordinator"):
                    await self.expiry.expire()
            await asyncio.sleep(TICK_S)

    def notice_roles(self) -> None:
        """Notice new and lost leaderships in the background: clients send requests at once."""
        self._shards.notice_roles()

    def refresh(self) -> None:
        """Start to load shards of new leaderships, and give up those of lost ones."""
        self._shards.all()

    def forget_partitions(self, deleted: set[TopicPartition]) -> None:
        """Drop the committed offsets of deleted partitions, in the background; empty the set."""
        self.deletion.put_off(deleted)
        self._shards.spawn(self.deletion.forget_partitions(deleted))

    def close(self) -> None:
        """Answer every waiting member, when the server stops."""
        self._shards.close()

    # --- timers -------------------------------------------------------------------------------

    def _schedule(self, group: Group) -> None:
        """Schedule the group's next `expire`; heartbeats move no timer."""
        deadline = group.next_deadline_ms
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
        with self._shards.restarting(group):
            before = {*group.members}
            group.expire(self._clock_ms())
            expired = before - {*group.members}
            if expired:
                members = ", ".join(sorted(expired))
                logger.info("group %s: sessions of members expired: %s", group.group_id, members)
            self._schedule(group)

    def _cancel_timer(self, group: Group) -> None:
        timer = self._timers.pop(group, None)
        if timer is not None:
            timer.cancel()

    # --- membership ---------------------------------------------------------------------------

    async def join(self, group_id: str, spec: JoinSpec) -> JoinResult:
        """Handle JoinGroup: wait for the next generation."""
        limits = self._config
        allowed = range(
            limits.group_min_session_timeout_ms, limits.group_max_session_timeout_ms + 1
        )
        if group_id and spec.session_timeout_ms not in allowed:
            return JoinResult(ErrorCode.INVALID_SESSION_TIMEOUT, spec.member_id)
        try:
            shard = self._shards.of_named(group_id)
        except KafkaError as error:
            return JoinResult(error.code, spec.member_id)
        group = shard.groups.get(group_id)
        if group is None:
            if spec.member_id:
                return JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, spec.member_id)
            try:
                self._shards.check_room(group_id)
            except KafkaError as error:
                return JoinResult(error.code, "")
            group = shard.groups[group_id] = self._new_group(group_id)
        answer: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        with self._shards.restarting(group):
            group.join(spec, self._clock_ms(), lambda joined: _settle(answer, joined))
            self._schedule(group)
        if shard.groups.get(group_id) is not group:
            _settle(answer, JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, spec.member_id))
        return await answer

    async def sync(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol: tuple[str | None, str | None],
        assignments: Mapping[str, bytes],
    ) -> SyncResult:
        """Handle SyncGroup: wait for the leader's assignments."""
        try:
            shard = self._shards.of_named(group_id)
            group = self._group(group_id)
        except KafkaError as error:
            # Java's consumers end upon "loading" here. Upon this they join again, as with Kafka.
            is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return SyncResult(ErrorCode.REBALANCE_IN_PROGRESS if is_loading else error.code)
        answer: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        with self._shards.restarting(group):
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
        if shard.groups.get(group_id) is not group:
            _settle(answer, SyncResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return await answer

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Handle Heartbeat."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        try:
            group = self._shards.of_members(group_id).groups.get(group_id)
        except KafkaError as error:
            # With "loading" a client would stop consuming. Its session starts again anyway.
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return ErrorCode.NONE
            return error.code
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return group.heartbeat(member_id, instance_id, generation, self._clock_ms())

    def leave(
        self, group_id: str, leaving: Sequence[tuple[str, str | None]]
    ) -> tuple[ErrorCode, list[ErrorCode]]:
        """Handle LeaveGroup: return its error, and one error per (member id, instance id)."""
        try:
            group = self._shards.of_named(group_id).groups.get(group_id)
        except KafkaError as error:
            return error.code, []
        if group is None:
            return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        now = self._clock_ms()
        errors: list[ErrorCode] = []
        with self._shards.restarting(group):
            errors = [group.leave(*who, now) for who in leaving]
            self._schedule(group)
        if len(errors) < len(leaving):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        return ErrorCode.NONE, errors

    def _group(self, group_id: str) -> Group:
        group = self._shards.of_named(group_id).groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def find(self, group_id: str) -> tuple[ErrorCode, Group | None]:
        """Handle DescribeGroups: return the group, None if nobody has ever joined it."""
        try:
            return ErrorCode.NONE, self._shards.of(group_id).groups.get(group_id)
        except KafkaError as error:
            return error.code, None

    def groups(self) -> tuple[ErrorCode, list[Group]]:
        """Handle ListGroups: return this broker's groups, and an error while some are loading."""
        shards = self._shards.all()
        loading = any(not shard.loaded for shard in shards)
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NONE
        return error, [group for shard in shards for group in shard.groups.values()]

    @property
    def refused(self) -> int:
        """Return how many times a group was refused because there were too many."""
        return self._shards.refused

    def summaries(self) -> list[GroupSummary]:
        """Return a summary per loaded group. May be called from any thread."""
        return [
            GroupSummary(
                group_id,
                group.state,
                len(group.members),
                group.generation,
                offsets,
            )
            for shard in self._shards.loaded()
            for group_id, group in sorted(shard.groups.copy().items())
            if (offsets := shard.offsets_of(group_id)) is not None
        ]


def _settle(answer: asyncio.Future[Answer], value: Answer) -> None:
    if not answer.done():
        answer.set_result(value)
