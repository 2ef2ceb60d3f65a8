"""Expiry of committed offsets and of empty groups, by offsets.retention.minutes (KIP-211)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from odradek import slices
from odradek.group import offset_deletion
from odradek.group.group import Group
from odradek.group.offset_deletion import OffsetDeletion
from odradek.group.offsets import CommittedOffset
from odradek.group.shard import Shard
from odradek.group.shards import Shards
from odradek.group.states import GroupState
from odradek.protocol.errors import ErrorCode
from odradek.quarantine import Quarantines, Work
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.config import BrokerConfig


class OffsetExpiry:
    """Looks for expired offsets of the groups in `shards`, and deletes them."""

    def __init__(
        self,
        config: BrokerConfig,
        shards: Shards,
        deletion: OffsetDeletion,
        now_ms: Callable[[], int],
        quarantines: Quarantines,
    ) -> None:
        self._config = config
        self._shards = shards
        self._deletion = deletion
        self._now_ms = now_ms
        self._quarantines = quarantines
        self.expired = 0
        """The number of offsets expired since the start."""

    async def expire(self) -> None:
        """Delete expired offsets and empty groups, by offsets.retention.minutes (KIP-211)."""
        now = self._now_ms()
        steps = 0
        for shard in self._shards.all():
            for group in [*shard.groups.values()]:
                with self._quarantines.guard(Work.GROUP_EXPIRY, f"group {group.group_id}"):
                    if shard.loaded and not shard.retired:
                        steps += len(shard.offsets.get(group.group_id, ()))
                        await self._expire(shard, group, now)
                steps += 1
                if steps >= offset_deletion.DELETED_AT_ONCE:
                    steps = 0
                    await slices.pause()

    async def _expire(self, shard: Shard, group: Group, now_ms: int) -> None:
        group_id = group.group_id
        since = shard.empty_since_ms.get(group_id, 0)
        at_first = group.state, group.generation
        old = await slices.run(self._expired(shard, group, since, now_ms))
        empty = group.state is GroupState.EMPTY and not group.pending
        whole = empty and len(old) == len(shard.partitions_of(group_id))
        # Members may have come while there were many to look at.
        if (group.state, group.generation) == at_first and (old or whole):

            def stays(each: TopicPartition) -> bool:
                offset = shard.offsets.get(group_id, {}).get(each)
                return offset is not old[each] or shard.is_unstable(group_id, each)

            error = await self._deletion.delete(shard, group, old, whole=whole, stays=stays)
            if error is ErrorCode.NONE:
                self.expired += len(old)
        slices.discard(old)

    def _expired(
        self,
        shard: Shard,
        group: Group,
        empty_since_ms: int,
        now_ms: int,
    ) -> Generator[None, None, dict[TopicPartition, CommittedOffset]]:
        """Return the expired offsets, in slices.

        In an empty group, the retention starts when it became empty, or at a later commit. In a
        stable group of the consumer protocol, offsets of topics that it does not read expire, from
        the commit on: all of them if it reads nothing. In other groups with members none do, nor
        where another commit is in flight or pending in a transaction.
        """
        offsets = shard.offsets.get(group.group_id, {})
        reads = group.subscribed_topics()
        if reads is None or group.state not in (GroupState.EMPTY, GroupState.STABLE):
            return {}
        if group.state is GroupState.STABLE or group.protocol_type is None:
            # Of members, or of nobody who ever joined: a consumer with manual assignment is alive
            # while it commits.
            empty_since_ms = 0
        retention_ms = self._config.offsets_retention_minutes * 60_000
        old: dict[TopicPartition, CommittedOffset] = {}
        for few in slices.cut([*offsets], slices.KEYS_AT_ONCE):
            for partition in few:
                commit = offsets.get(partition)
                if (
                    commit is not None
                    and partition.topic not in reads
                    and not shard.is_unstable(group.group_id, partition)
                    and now_ms >= _expiry_ms(commit, empty_since_ms, retention_ms)
                ):
                    old[partition] = commit
            if len(few) == slices.KEYS_AT_ONCE:
                yield
        return old


def _expiry_ms(commit: CommittedOffset, empty_since_ms: int, retention_ms: int) -> int:
    if commit.expires_ms >= 0:
        return commit.expires_ms
    return max(commit.committed_ms, empty_since_ms) + retention_ms
