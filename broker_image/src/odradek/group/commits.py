"""The committed offsets of groups, and the coordinator's writes to `__consumer_offsets`.

Offsets and memberships count once they are written with acks=all. Writes in flight complete in any
order; in memory the later record counts, as it does when the log is read again.

A broker whose ZooKeeper session may have expired does not know whether it still leads. Its writes
are safe: replicas do not acknowledge the writes of a former leader. So before it returns offsets
from memory, it writes a record too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from odradek import slices
from odradek.coordination.replicas import Replicas
from odradek.group import offsets as schemas
from odradek.group.group import Group
from odradek.group.offsets import CommittedOffset
from odradek.group.shard import Shard
from odradek.group.shards import Shards
from odradek.group.states import GroupState
from odradek.log.records import records
from odradek.log.records.batch import Origin
from odradek.log.records.records import BatchOptions
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quarantine import Quarantines, Work
from odradek.replica.appends import Unverified
from odradek.replica.verified_appends import Verify, verified
from odradek.values import OFFSETS_TOPIC, TopicPartition

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.replica.appends import AppendOutcome
    from odradek.replica.partition import Partition

logger = logging.getLogger(__name__)

COMMIT_TIMEOUT_MS = 5000
"""Kafka's offsets.commit.timeout.ms: the limit for replicas to acknowledge a commit."""

DELETED_AT_ONCE = 1000
"""Offsets that are deleted without a pause, in about ten milliseconds."""

GROUPS_AT_ONCE = 50
"""Groups whose offsets of deleted partitions are deleted at the same time."""

NOBODY = -1
"""The partition of an offset that no group has, written to confirm the leadership."""

_PLAIN = BatchOptions()

# The error for the client if a write to __consumer_offsets fails, mapped as in Kafka.
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


class Commits:
    """The offsets of the groups in `shards`, and the records of their memberships."""

    def __init__(
        self,
        config: BrokerConfig,
        replicas: Replicas,
        shards: Shards,
        new_group: Callable[[str], Group],
        leadership_confirmed: Callable[[Partition], bool],
        clock_ms: Callable[[], int],
        now_ms: Callable[[], int],
        quarantines: Quarantines,
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._shards = shards
        self._new_group = new_group
        self._leadership_confirmed = leadership_confirmed
        self._clock_ms = clock_ms
        self._now_ms = now_ms
        self._quarantines = quarantines
        # The commits since each deletion of partitions that is under way began.
        self._since_deletions: list[dict[str, list[Collection[TopicPartition]]]] = []
        self.stored = 0
        """The number of offsets committed since the start."""
        self.expired = 0
        """The number of offsets expired since the start."""

    async def _append(
        self, shard: Shard, pairs: Iterable[tuple[bytes, bytes | None]]
    ) -> tuple[ErrorCode, int]:
        """Write records; return the outcome, and the log offset of the first record."""
        return await self._append_batch(shard, records.make(pairs, self._now_ms()))

    async def _append_batch(self, shard: Shard, data: bytes) -> tuple[ErrorCode, int]:
        outcome = await self._appended(shard, data)
        return _APPEND_ERRORS.get(outcome.error, outcome.error), outcome.base_offset

    async def _appended(self, shard: Shard, data: bytes) -> AppendOutcome:
        key = TopicPartition(OFFSETS_TOPIC, shard.partition)
        [outcome] = await self._replicas.append(
            [(key, data)], -1, COMMIT_TIMEOUT_MS, Origin.COORDINATOR
        )
        return outcome

    async def store_group(self, group: Group, record: tuple[bytes, bytes | None]) -> ErrorCode:
        """Write a group's membership, encoded by `offsets.encode_group`."""
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
        self._note_for_deletions(group_id, good)
        with shard.in_flight.commit(group_id, good):
            error, position = await self._append_batch(
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
            self._note_for_deletions(group_id, good)
            with shard.in_flight.commit_in_transaction(producer_id, group_id, good):
                outcome = await self._appended(
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
            return _APPEND_ERRORS.get(error, error)

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

    def _note_for_deletions(self, group_id: str, commits: Collection[TopicPartition]) -> None:
        for since in self._since_deletions:
            since.setdefault(group_id, []).append(commits)

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
            if len(commit.metadata.encode()) <= limit:
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
        error = group.heartbeat(member_id, instance_id, generation, self._clock_ms())
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            # Members that must join again may still commit their progress.
            return
        if error is ErrorCode.NONE and group.state is GroupState.COMPLETING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
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
                error, _ = await self._append(shard, [nothing])
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

    async def delete_group(self, group_id: str) -> ErrorCode:
        """Handle DeleteGroups: delete an empty group and its offsets, also those of transactions
        that go on; else NON_EMPTY_GROUP.
        """
        # In one piece: between the checks and the append nothing else runs.
        return await self._shards.carry_out(self._delete_group(group_id), ErrorCode.NOT_COORDINATOR)

    async def _delete_group(self, group_id: str) -> ErrorCode:
        try:
            shard = self._shards.of(group_id)
        except KafkaError as refusal:
            return refusal.code
        group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        partitions = [*shard.partitions_of(group_id)]
        error = await self._delete(shard, group, partitions, whole=True)
        slices.discard(partitions)
        return error

    async def delete_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Handle OffsetDelete: return its error, and errors by partition.

        A topic that a member reads is refused with GROUP_SUBSCRIBED_TO_TOPIC. A group without
        members goes with its last offset, as in Kafka.
        """
        return await self._shards.carry_out(
            self._delete_offsets(group_id, partitions), (ErrorCode.NOT_COORDINATOR, {})
        )

    async def _delete_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        wanted: Collection[TopicPartition] = partitions
        if len(partitions) > slices.KEYS_AT_ONCE:
            wanted = await slices.run(self._with_offsets(group_id, partitions))
        # Nothing else runs between these checks and the append.
        try:
            shard = self._shards.of_named(group_id)
        except KafkaError as refusal:
            return refusal.code, {}
        group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, {}
        if group.state is not GroupState.EMPTY and group.protocol_type != "consumer":
            return ErrorCode.NON_EMPTY_GROUP, {}
        subscribed = group.subscribed_topics()
        if wanted is partitions:
            wanted = [each for each in partitions if shard.has_commit(group_id, each)]
        empty = group.state is GroupState.EMPTY and not group.pending
        all_wanted = len(wanted) == len(shard.partitions_of(group_id))
        whole = empty and len(partitions) > 0 and all_wanted

        def stays(each: TopicPartition) -> bool:
            return each.topic in subscribed or not shard.has_commit(group_id, each)

        error = await self._delete(shard, group, wanted, whole=whole, stays=stays)
        answers: dict[TopicPartition, ErrorCode] = {}
        for few in slices.cut(partitions, slices.KEYS_AT_ONCE):
            for each in few:
                is_read = each.topic in subscribed
                answers[each] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else error
            if len(few) == slices.KEYS_AT_ONCE:
                await slices.pause()
        return ErrorCode.NONE, answers

    def _with_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Generator[None, None, list[TopicPartition]]:
        """Return those of the partitions that have an offset now, in slices."""
        found: list[TopicPartition] = []
        for few in slices.cut(partitions, slices.KEYS_AT_ONCE):
            try:
                shard = self._shards.of(group_id)
            except KafkaError:
                return []
            found += [each for each in few if shard.has_commit(group_id, each)]
            yield
        return found

    async def forget_partitions(self, deleted: set[TopicPartition]) -> None:
        """Drop the committed offsets of deleted partitions, and empty the set.

        A topic created again has other records at those offsets: its readers would skip them. Its
        own offsets, committed while this goes on, stay.
        """
        since: dict[str, list[Collection[TopicPartition]]] = {}
        self._since_deletions.append(since)
        try:
            for shard in self._shards.all():
                if shard.loaded:
                    await self._forget_in(shard, deleted, since)
        finally:
            self._since_deletions.remove(since)
            slices.discard(deleted)

    async def _forget_in(
        self,
        shard: Shard,
        deleted: AbstractSet[TopicPartition],
        since: Mapping[str, Sequence[Collection[TopicPartition]]],
    ) -> None:
        def look() -> Generator[None, None, list[tuple[Group, list[TopicPartition]]]]:
            affected: list[tuple[Group, list[TopicPartition]]] = []
            steps = 0
            for group_id, group in [*shard.groups.items()]:
                known = shard.partitions_of(group_id)
                fewer, others = sorted((known, deleted), key=len)
                found: list[TopicPartition] = []
                for few in slices.cut([*fewer], slices.KEYS_AT_ONCE):
                    found += [each for each in few if each in others]
                    if len(few) == slices.KEYS_AT_ONCE:
                        yield
                if found:
                    affected.append((group, found))
                steps += 1 + len(fewer)
                if steps >= slices.KEYS_AT_ONCE:
                    steps = 0
                    yield
            return affected

        for some in slices.cut(await slices.run(look()), GROUPS_AT_ONCE):
            forgetting = [self._forget(shard, group, found, since) for group, found in some]
            errors = await asyncio.gather(*forgetting, return_exceptions=True)
            for (group, found), error in zip(some, errors, strict=True):
                slices.discard(found)
                if isinstance(error, BaseException):
                    subject = f"group {group.group_id}"
                    self._quarantines.note(
                        Work.GROUP_EXPIRY, subject, error, "offsets of deleted topics stay"
                    )
                elif error is not ErrorCode.NONE:
                    logger.warning(
                        "failed to delete offsets of deleted partitions of group %s: %s",
                        group.group_id,
                        error.name,
                    )

    async def _forget(
        self,
        shard: Shard,
        group: Group,
        found: Sequence[TopicPartition],
        since: Mapping[str, Sequence[Collection[TopicPartition]]],
    ) -> ErrorCode:
        def stays(each: TopicPartition) -> bool:
            return any(each in commits for commits in since.get(group.group_id, ()))

        empty = group.state is GroupState.EMPTY and not group.pending
        whole = empty and len(found) == len(shard.partitions_of(group.group_id))
        return await self._delete(shard, group, found, whole=whole, stays=stays)

    async def _delete(
        self,
        shard: Shard,
        group: Group,
        partitions: Collection[TopicPartition],
        *,
        whole: bool,
        stays: Callable[[TopicPartition], bool] = lambda partition: False,
    ) -> ErrorCode:
        """Delete offsets, but for those that `stays` tells; with `whole` the group, if none stays.

        Many are deleted piece by piece, while clients wait for the group.
        """
        if len(partitions) <= DELETED_AT_ONCE:
            going = [each for each in partitions if not stays(each)]
            whole = whole and len(going) == len(partitions)
            return await self._delete_piece(shard, group, going, whole=whole)
        async with self._shards.withheld(group.group_id):
            for few in slices.cut(partitions, DELETED_AT_ONCE):
                going = [each for each in few if not stays(each)]
                whole = whole and len(going) == len(few)
                error = await self._delete_piece(shard, group, going, whole=False)
                if error is not ErrorCode.NONE or shard.retired:
                    return error
                await slices.pause()
            return await self._delete_piece(shard, group, (), whole=whole)

    async def _delete_piece(
        self, shard: Shard, group: Group, partitions: Sequence[TopicPartition], *, whole: bool
    ) -> ErrorCode:
        """Write tombstones for offsets and, with `whole`, for the group; then drop them."""
        if shard.retired:  # a later leadership of this broker may have other offsets
            return ErrorCode.NOT_COORDINATOR
        group_id = group.group_id
        pairs = [schemas.encode_offset(group_id, *partition, None) for partition in partitions]
        if whole:
            pairs.append((schemas.group_key(group_id), None))
        if not pairs:
            return ErrorCode.NONE
        with shard.in_flight.one():
            error, position = await self._append(shard, pairs)
            if error is not ErrorCode.NONE or shard.retired:
                return error
            shard.take(group_id, dict.fromkeys(partitions), position)
            untouched = shard.groups.get(group_id) is group and group.state is GroupState.EMPTY
            # A group stays if an offset was committed meanwhile.
            if whole and untouched and not shard.partitions_of(group_id):
                group.retire(ErrorCode.GROUP_ID_NOT_FOUND)
                del shard.groups[group_id]
                shard.empty_since_ms.pop(group_id, None)
        return error

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
                if steps >= DELETED_AT_ONCE:
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

            error = await self._delete(shard, group, old, whole=whole, stays=stays)
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
        group with members, only offsets of topics that it does not read expire, from the commit on.
        None expires where another commit is in flight or pending in a transaction.
        """
        offsets = shard.offsets.get(group.group_id, {})
        reads = group.subscribed_topics()
        if group.protocol_type is None:
            # Nobody ever joined: a consumer with manual assignment is alive while it commits.
            empty_since_ms = 0
        if group.state is GroupState.EMPTY:
            reads = frozenset()
        elif group.state is not GroupState.STABLE or not reads:
            return {}
        else:
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
