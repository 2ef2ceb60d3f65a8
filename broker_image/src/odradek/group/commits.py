"""What groups have committed, and that it lasts: the coordinator's writes to `__consumer_offsets`.

Offsets and memberships count once they are written with acks=all. Writes that wait for the same
replicas are settled in any order; in memory the later record counts, as it does for whoever reads
the log next.

A broker whose ZooKeeper session may have ended does not know whether it still leads. What it writes
is acknowledged by replicas that would not follow a deposed leader; before it tells what it has in
memory it therefore writes something, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from odradek.group import offsets as schemas
from odradek.group.group import Group
from odradek.group.offsets import Committed
from odradek.group.partitioning import OFFSETS_TOPIC
from odradek.group.shard import Shard, TopicIndex
from odradek.group.shards import Shards
from odradek.group.states import GroupState
from odradek.log.records import records
from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.replica.appends import AppendOutcome
    from odradek.replica.partition import Partition

logger = logging.getLogger(__name__)

COMMIT_TIMEOUT_MS = 5000
"""offsets.commit.timeout.ms of Kafka: how long the replicas may take to confirm a commit."""

NOBODY = -1
"""The partition of an offset that no group has: what is written only to be confirmed."""

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


class Commits:
    """Offsets of the groups in `shards`, and the records of their memberships."""

    def __init__(
        self,
        config: BrokerConfig,
        replicas: Replicas,
        shards: Shards,
        new_group: Callable[[str], Group],
        leads_for_certain: Callable[[Partition], bool],
        clock_ms: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._shards = shards
        self._new_group = new_group
        self._leads_for_certain = leads_for_certain
        self._clock_ms = clock_ms
        self._now_ms = now_ms
        self.stored = 0
        """Offsets committed since the start."""
        self.expired = 0
        """Offsets dropped for their age since the start."""

    async def _append(
        self, shard: Shard, pairs: Iterable[tuple[bytes, bytes | None]]
    ) -> tuple[ErrorCode, int]:
        """The outcome once it is settled, and the offset of the first record in the log."""
        key = TopicPartition(OFFSETS_TOPIC, shard.partition)
        data = records.make(pairs, self._now_ms())
        outcomes = await self._replicas.append(
            [(key, data)], -1, COMMIT_TIMEOUT_MS, Origin.COORDINATOR
        )
        error = outcomes[0].error
        return _APPEND_ERRORS.get(error, error), outcomes[0].base_offset

    async def store_group(self, group: Group, record: tuple[bytes, bytes | None]) -> ErrorCode:
        """Write a group's membership, as `offsets.encode_group` made it."""
        try:
            shard = self._shards.of(group.group_id)
        except KafkaError as refusal:
            return refusal.code
        error, _ = await self._append(shard, [record])
        return error

    async def commit(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        commits: Mapping[TopicIndex, Committed],
    ) -> dict[TopicIndex, ErrorCode]:
        """OffsetCommit by (member id, instance id, generation); an error for each partition."""
        try:
            shard = self._shards.of(group_id)
            self._check_member(shard, group_id, *member)
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
        with shard.writing():
            error, position = await self._append(shard, pairs)
            if error is ErrorCode.NONE and not shard.retired:
                shard.take(group_id, good, position)
                self.stored += len(good)
                # It may have been deleted meanwhile: what is in the log later is of a new one.
                self._group_of(shard, group_id)
        return {**answers, **dict.fromkeys(good, error)}

    def _group_of(self, shard: Shard, group_id: str) -> Group:
        group = shard.groups.get(group_id)
        if group is None:
            group = shard.groups[group_id] = self._new_group(group_id)
            shard.empty_since_ms[group_id] = self._now_ms()
        return group

    def _check_member(
        self, shard: Shard, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> None:
        """Raise KafkaError 22, 25, 27 or 82 unless this member may commit."""
        if generation >= 0 and group_id not in shard.groups:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        # A consumer that assigns itself, or a tool, has no membership to check.
        group = self._group_of(shard, group_id)
        if generation < 0 and group.state is GroupState.EMPTY:
            return
        error = group.heartbeat(member_id, instance_id, generation, self._clock_ms())
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            # While members are asked to join again, what they have done may still be committed.
            return
        if error is ErrorCode.NONE and group.state is GroupState.COMPLETING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is not ErrorCode.NONE:
            raise KafkaError(error)

    async def committed(self, group_id: str) -> tuple[ErrorCode, Mapping[TopicIndex, Committed]]:
        """OffsetFetch: everything the group has committed."""
        try:
            shard = self._shards.of(group_id)
            if not self._leads_for_certain(shard.source):
                nothing = schemas.encode_offset(group_id, "", NOBODY, None)
                error, _ = await self._append(shard, [nothing])
                if error is not ErrorCode.NONE:
                    return error, {}
                shard = self._shards.of(group_id)
            return ErrorCode.NONE, shard.offsets.get(group_id, {})
        except KafkaError as error:
            return error.code, {}

    async def delete_group(self, group_id: str) -> ErrorCode:
        """DeleteGroups: forget an empty group and its offsets (68 while it has members)."""
        try:
            shard = self._shards.of(group_id)
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
            shard = self._shards.of(group_id)
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

    async def forget_partitions(self, deleted: Collection[TopicIndex]) -> None:
        """Drop what groups have committed of partitions that are deleted.

        A topic made anew has other records at those offsets: its readers would pass over them.
        """
        concerned: list[str] = []
        forgetting: list[Coroutine[object, object, ErrorCode]] = []
        for shard in self._shards.all():
            for group_id, group in shard.groups.items() if shard.loaded else ():
                offsets = shard.offsets.get(group_id, {})
                where = [each for each in deleted if each in offsets]
                if where:
                    empty = group.state is GroupState.EMPTY and not group.pending
                    whole = empty and len(where) == len(offsets)
                    concerned.append(group_id)
                    forgetting.append(self._forget(shard, group, where, whole=whole))
        # All at once: what is committed from now on may be of a new topic of that name.
        for group_id, error in zip(concerned, await asyncio.gather(*forgetting), strict=True):
            if error is not ErrorCode.NONE:
                logger.warning(
                    "group %s keeps offsets of deleted partitions: %s", group_id, error.name
                )

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
        with shard.writing():
            error, position = await self._append(shard, pairs)
            if error is not ErrorCode.NONE or shard.retired:
                return error
            shard.take(group_id, dict.fromkeys(where), position)
            untouched = shard.groups.get(group_id) is group and group.state is GroupState.EMPTY
            # An offset that was committed meanwhile keeps its group.
            if whole and untouched and group_id not in shard.offsets:
                group.retire(ErrorCode.GROUP_ID_NOT_FOUND)
                del shard.groups[group_id]
                shard.empty_since_ms.pop(group_id, None)
        return error

    async def expire(self) -> None:
        """Drop what nobody needs any more, by offsets.retention.minutes (KIP-211)."""
        now = self._now_ms()
        for shard in self._shards.all():
            for group_id, group in [*shard.groups.items()]:
                if not shard.loaded:
                    continue
                since = shard.empty_since_ms.get(group_id, 0)
                offsets = shard.offsets.get(group_id, {})
                old = self._expired(group, offsets, since, now)
                empty = group.state is GroupState.EMPTY and not group.pending
                whole = empty and len(old) == len(offsets)
                if not old and not whole:
                    continue
                if await self._forget(shard, group, old, whole=whole) is ErrorCode.NONE:
                    self.expired += len(old)

    def _expired(
        self,
        group: Group,
        offsets: Mapping[TopicIndex, Committed],
        empty_since_ms: int,
        now_ms: int,
    ) -> list[TopicIndex]:
        """What is too old: of a group without members counted from its end or a later commit, of
        one with members only where it reads the topic no more, counted from the commit."""
        reads = group.subscribed_topics()
        if group.protocol_type is None:
            # Nobody ever joined: a consumer that assigns itself shows life by its commits only.
            empty_since_ms = 0
        if group.state is GroupState.EMPTY:
            reads = frozenset()
        elif group.state is not GroupState.STABLE or not reads:
            return []
        else:
            empty_since_ms = 0
        retention_ms = self._config.offsets_retention_minutes * 60_000
        return [
            where
            for where, commit in offsets.items()
            if where[0] not in reads and now_ms >= _expiry_ms(commit, empty_since_ms, retention_ms)
        ]


def _expiry_ms(commit: Committed, empty_since_ms: int, retention_ms: int) -> int:
    if commit.expires_ms >= 0:
        return commit.expires_ms
    return max(commit.committed_ms, empty_since_ms) + retention_ms
