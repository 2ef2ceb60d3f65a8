"""Deletion of committed offsets, and of groups: on request, and with the partitions of a topic.

Deletions are records, too: tombstones. Many are written piece by piece, while clients wait for the
group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from odradek import slices
from odradek.group import offsets as schemas
from odradek.group.appends import GroupAppends
from odradek.group.group import CONSUMER_PROTOCOL, Group
from odradek.group.shard import Shard
from odradek.group.shards import Shards
from odradek.group.states import GroupState
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quarantine import Quarantines, Work
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.replica.partition import Partition

logger = logging.getLogger(__name__)

DELETED_AT_ONCE = 1000
"""Offsets that are deleted without a pause, in about ten milliseconds."""

GROUPS_AT_ONCE = 50
"""Groups whose offsets of deleted partitions are deleted at the same time."""

CommitsSince: TypeAlias = dict[str, list[Collection[TopicPartition]]]
"""What groups commit while partitions are forgotten."""


@dataclass(frozen=True, slots=True)
class _PutOff:
    """The partitions that were deleted while a shard of one leadership was loaded."""

    source: Partition
    leadership_generation: int
    deleted: list[AbstractSet[TopicPartition]]

    def is_of(self, shard: Shard) -> bool:
        """Return whether a shard is of that leadership."""
        generation = shard.leadership_generation
        return self.source is shard.source and self.leadership_generation == generation


class OffsetDeletion:
    """Deletes offsets of the groups in `shards`, and these groups."""

    def __init__(self, shards: Shards, appends: GroupAppends, quarantines: Quarantines) -> None:
        self._shards = shards
        self._appends = appends
        self._quarantines = quarantines
        # The commits since each deletion of partitions that is under way began.
        self._since_deletions: list[CommitsSince] = []
        self._put_off: dict[int, _PutOff] = {}

    def note_commit(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Note that a group commits: deletions of partitions under way spare these offsets."""
        for since in self._since_deletions:
            since.setdefault(group_id, []).append(partitions)

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
        error = await self.delete(shard, group, partitions, whole=True)
        slices.discard(partitions)
        return error

    async def delete_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Handle OffsetDelete: return its error, and errors by partition.

        A topic that the last generation reads, or may read for all that is known, is refused with
        GROUP_SUBSCRIBED_TO_TOPIC. One that was empty and is joined again reads nothing yet. A
        group without members goes with its last offset, as in Kafka.
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
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL:
            return ErrorCode.NON_EMPTY_GROUP, {}
        subscribed = group.subscribed_topics()
        if wanted is partitions:
            wanted = [each for each in partitions if shard.has_commit(group_id, each)]
        empty = group.state is GroupState.EMPTY and not group.pending
        all_wanted = len(wanted) == len(shard.partitions_of(group_id))
        whole = empty and len(partitions) > 0 and all_wanted

        def is_read(each: TopicPartition) -> bool:
            return subscribed is None or each.topic in subscribed

        def stays(each: TopicPartition) -> bool:
            return is_read(each) or not shard.has_commit(group_id, each)

        error = await self.delete(shard, group, wanted, whole=whole, stays=stays)
        answers: dict[TopicPartition, ErrorCode] = {}
        for few in slices.cut(partitions, slices.KEYS_AT_ONCE):
            for each in few:
                answers[each] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read(each) else error
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

    def put_off(self, deleted: AbstractSet[TopicPartition]) -> None:
        """Note deleted partitions for the shards that are loaded now: what they have of these is
        not known yet. It must be done at once: who leads later may have offsets of new topics.
        """
        loading = {shard.partition: shard for shard in self._shards.all() if not shard.loaded}
        former, self._put_off = self._put_off, {}
        if not loading:
            return
        kept = frozenset(deleted)
        for index, shard in loading.items():
            known = former.get(index)
            before = known.deleted if known is not None and known.is_of(shard) else []
            generation = shard.leadership_generation
            self._put_off[index] = _PutOff(shard.source, generation, [*before, kept])

    def go_on(self, shard: Shard) -> None:
        """Drop what was put off from a shard that is loaded, and has served no request yet."""
        found = self._put_off.pop(shard.partition, None)
        if found is not None and found.is_of(shard):
            since: CommitsSince = {}
            self._since_deletions.append(since)
            self._shards.spawn(self._forget_each(shard, found.deleted, since))

    async def _forget_each(
        self, shard: Shard, each: Iterable[AbstractSet[TopicPartition]], since: CommitsSince
    ) -> None:
        try:
            for deleted in each:
                await self._forget_in(shard, deleted, since)
        finally:
            self._end(since)

    async def forget_partitions(self, deleted: set[TopicPartition]) -> None:
        """Drop the committed offsets of deleted partitions, and empty the set.

        A topic created again has other records at those offsets: its readers would skip them. Its
        own offsets, committed while this goes on, stay.
        """
        since: CommitsSince = {}
        self._since_deletions.append(since)
        try:
            for shard in self._shards.all():
                if shard.loaded:
                    await self._forget_in(shard, deleted, since)
        finally:
            self._end(since)
            slices.discard(deleted)

    def _end(self, since: CommitsSince) -> None:
        # Not `remove`: another that has noted the same is equal.
        self._since_deletions = [one for one in self._since_deletions if one is not since]

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
        return await self.delete(shard, group, found, whole=whole, stays=stays)

    async def delete(
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
                if error is not ErrorCode.NONE:
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
            error, position = await self._appends.append(shard, pairs)
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
