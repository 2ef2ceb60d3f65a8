"""Commits of offsets, also in transactions, and the committed offsets of groups.

Writes in flight complete in any order; in memory the later record counts, as it does when the log
is read again.

A broker whose ZooKeeper session may have expired does not know whether it still leads. Its writes
are safe: replicas do not acknowledge the writes of a former leader. So before it returns offsets
from memory, it writes a record too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING

from odradek import slices
from odradek.group import offsets as schemas
from odradek.group.appends import GroupAppends, error_for_clients
from odradek.group.group import Group
from odradek.group.offset_deletion import OffsetDeletion
from odradek.group.offsets import CommittedOffset
from odradek.group.shard import Shard
from odradek.group.shards import Shards
from odradek.group.states import GroupState
from odradek.log.records import records
from odradek.log.records.records import BatchOptions
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replica.appends import Unverified
from odradek.replica.verified_appends import Verify, verified
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.replica.partition import Partition

NOBODY = -1
"""The partition of an offset that no group has, written to confirm the leadership."""

_PLAIN = BatchOptions()


class Commits:
    """The offsets of the groups in `shards`."""

    def __init__(
        self,
        config: BrokerConfig,
        shards: Shards,
        appends: GroupAppends,
        deletion: OffsetDeletion,
        new_group: Callable[[str], Group],
        leadership_confirmed: Callable[[Partition], bool],
        clock_ms: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._shards = shards
        self._appends = appends
        self._deletion = deletion
        self._new_group = new_group
        self._leadership_confirmed = leadership_confirmed
        self._clock_ms = clock_ms
        self._now_ms = now_ms
        self.stored = 0
        """The number of offsets committed since the start."""

    async def commit(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        commits: Mapping[TopicPartition, CommittedOffset],
    ) -> dict[TopicPartition, ErrorCode]:
        """Handle OffsetCommit: return errors by partition.

        `member` is (member id, instance id, generation).
        """
        return await self._commit(group_id, member, None, commits)

    async def commit_in_transaction(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        producer: tuple[int, int],
        commits: Mapping[TopicPartition, CommittedOffset],
        verify: Verify,
    ) -> dict[TopicPartition, ErrorCode]:
        """Handle TxnOffsetCommit: return errors by partition.

        The commits count once a marker commits the transaction of `producer` (id, epoch). `member`
        is (member id, instance id, generation); "", None and -1 name none (KIP-447). `verify` asks
        the coordinator of the transaction (KIP-890).
        """
        return await self._commit(group_id, member, (*producer, verify), commits)

    async def complete_transaction(
        self, partition: int, producer_id: int, position: int, *, commits: bool
    ) -> None:
        """Let the offsets committed in a producer's transaction count, or drop them: the marker, at
        log offset `position` of that partition of `__consumer_offsets`, is replicated.
        """
        shard = self._shards.at(partition)
        if shard is not None:
            await shard.end_transaction(producer_id, position, commits=commits)

    async def _commit(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        producer: tuple[int, int, Verify] | None,
        commits: Mapping[TopicPartition, CommittedOffset],
    ) -> dict[TopicPartition, ErrorCode]:
        good, pairs = await slices.run(self._encoded_in_slices(group_id, commits))
        stopped = ErrorCode.NOT_COORDINATOR
        error, too_large = await self._shards.carry_out(
            self._write_or_refuse(group_id, member, producer, good, pairs), (stopped, stopped)
        )
        answers: dict[TopicPartition, ErrorCode] = {}
        for few in slices.cut(commits, slices.KEYS_AT_ONCE):
            for partition in few:
                answers[partition] = error if partition in good else too_large
            if len(few) == slices.KEYS_AT_ONCE:
                await slices.pause()
        return answers

    async def _write_or_refuse(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        producer: tuple[int, int, Verify] | None,
        good: Mapping[TopicPartition, CommittedOffset],
        pairs: list[tuple[bytes, bytes | None]],
    ) -> tuple[ErrorCode, ErrorCode]:
        """Write commits; return their error, and that of those whose metadata is too large."""
        try:
            if producer is None:
                error = await self._write(group_id, member, good, pairs)
            else:
                error = await self._write_in_transaction(group_id, member, producer, good, pairs)
        except KafkaError as refusal:
            return refusal.code, refusal.code
        finally:
            slices.discard(pairs)
        return error, ErrorCode.OFFSET_METADATA_TOO_LARGE

    async def _write(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        good: Mapping[TopicPartition, CommittedOffset],
        pairs: Sequence[tuple[bytes, bytes | None]],
    ) -> ErrorCode:
        """Write commits, and take them if that succeeds; return the outcome.

        Raises KafkaError for a group or member that may not commit.
        """
        is_large = len(pairs) > slices.STEPS_PER_SLICE
        data = await self._made_in_thread(pairs, _PLAIN) if is_large else b""
        # Nothing else runs between the check of the member and the append.
        shard = self._shards.of(group_id)
        self._check_member(shard, group_id, *member)
        if not good:
            return ErrorCode.NONE
        self._deletion.note_commit(group_id, good)
        with shard.in_flight.commit(group_id, good):
            error, position = await self._appends.append_batch(
                shard, data or records.make(pairs, self._now_ms())
            )
            if error is ErrorCode.NONE and not shard.retired:
                try:
                    if is_large:
                        await shard.take_in_slices(group_id, good, position)
                    else:
                        shard.take(group_id, good, position)
                finally:
                    self._note_stored(shard, group_id, len(good))
        return error

    async def _write_in_transaction(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        producer: tuple[int, int, Verify],
        good: Mapping[TopicPartition, CommittedOffset],
        pairs: Sequence[tuple[bytes, bytes | None]],
    ) -> ErrorCode:
        """Write commits of a transaction, and keep them until its end; return the outcome.

        Raises KafkaError for a group, member or producer that may not commit.
        """
        producer_id, epoch, verify = producer
        # Kafka takes what names no producer for a plain commit. It would never be ended here.
        if producer_id < 0:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if epoch < 0:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
        options = BatchOptions(producer_id=producer_id, producer_epoch=epoch, transactional=True)
        is_large = len(pairs) > slices.STEPS_PER_SLICE
        data = await self._made_in_thread(pairs, options) if is_large else b""
        while True:
            # Nothing else runs between the check of the member and the append.
            shard = self._shard_for_transaction(group_id, member)
            if not good:
                return ErrorCode.NONE
            self._group_of(shard, group_id)
            self._deletion.note_commit(group_id, good)
            with shard.in_flight.commit_in_transaction(producer_id, group_id, good):
                outcome = await self._appends.append_unmapped(
                    shard, data or records.make(pairs, self._now_ms(), options)
                )
                # Replicas may not have acknowledged it. But it is in the log, and a marker may
                # follow.
                if outcome.base_offset >= 0:
                    try:
                        await shard.take_pending(producer_id, group_id, good, outcome.base_offset)
                    finally:
                        self._note_stored(shard, group_id, len(good))
            error = outcome.error
            if isinstance(outcome, Unverified):
                error = await verified(outcome, verify)
                if error is ErrorCode.NONE:
                    continue  # the member may have been fenced meanwhile
            return error_for_clients(error)

    def _shard_for_transaction(self, group_id: str, member: tuple[str, str | None, int]) -> Shard:
        """Return the shard of a group whose member commits in a transaction. Raises KafkaError."""
        shard = self._shards.of_named(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            self._shards.check_room(group_id)
            group = self._new_group(group_id)
        error = group.transaction_error(*member)
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        if shard.source.log.config.message_magic < 2:
            raise KafkaError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
        return shard

    async def _made_in_thread(
        self, pairs: Sequence[tuple[bytes, bytes | None]], options: BatchOptions
    ) -> bytes:
        return await asyncio.to_thread(records.make, pairs, self._now_ms(), options)

    def _note_stored(self, shard: Shard, group_id: str, count: int) -> None:
        self.stored += count
        # It may have been deleted meanwhile. The later record creates a new one.
        if not shard.retired:
            self._group_of(shard, group_id)

    def _encoded_in_slices(
        self, group_id: str, commits: Mapping[TopicPartition, CommittedOffset]
    ) -> Generator[
        None,
        None,
        tuple[dict[TopicPartition, CommittedOffset], list[tuple[bytes, bytes | None]]],
    ]:
        """Return the commits whose metadata is not too large, and their records."""
        limit = self._config.offset_metadata_max_bytes
        good: dict[TopicPartition, CommittedOffset] = {}
        pairs: list[tuple[bytes, bytes | None]] = []
        for number, (partition, commit) in enumerate(commits.items(), 1):
            if _java_length(commit.metadata) <= limit:
                good[partition] = commit
                pairs.append(schemas.encode_offset(group_id, *partition, commit))
            if number % slices.STEPS_PER_SLICE == 0:
                yield
        return good, pairs

    def _group_of(self, shard: Shard, group_id: str) -> Group:
        group = shard.groups.get(group_id)
        if group is None:
            group = shard.groups[group_id] = self._new_group(group_id)
            shard.empty_since_ms[group_id] = self._now_ms()
        return group

    def _check_member(
        self, shard: Shard, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> None:
        """Raise KafkaError unless this member may commit: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID,
        REBALANCE_IN_PROGRESS or FENCED_INSTANCE_ID, GROUP_MAX_SIZE_REACHED for one group too many.
        """
        if generation >= 0 and group_id not in shard.groups:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if group_id not in shard.groups:
            self._shards.check_room(group_id)
        # A consumer with manual assignment, or a tool, is not a member.
        group = self._group_of(shard, group_id)
        if generation < 0 and group.state is GroupState.EMPTY:
            return
        error = group.commit(member_id, instance_id, generation, self._clock_ms())
        if error is not ErrorCode.NONE:
            raise KafkaError(error)

    async def committed(
        self, group_id: str
    ) -> tuple[ErrorCode, Mapping[TopicPartition, CommittedOffset]]:
        """Handle OffsetFetch: return all committed offsets of the group."""
        try:
            shard = self._shards.of(group_id)
            if not self._leadership_confirmed(shard.source):
                nothing = schemas.encode_offset(group_id, "", NOBODY, None)
                error, _ = await self._appends.append(shard, [nothing])
                if error is not ErrorCode.NONE:
                    return error, {}
                shard = self._shards.of(group_id)
            return ErrorCode.NONE, shard.offsets.get(group_id, {})
        except KafkaError as error:
            return error.code, {}

    def unstable(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions whose offsets may be about to change, for OffsetFetch of version 7:
        a commit is in flight, or its transaction has not ended (KIP-447).
        """
        try:
            return self._shards.of(group_id).unstable_partitions(group_id)
        except KafkaError:
            return set()


def _java_length(text: str) -> int:
    """Return Java's String.length, which Kafka limits: in UTF-16 units, of two bytes each."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
