"""The groups whose records are in one partition of `__consumer_offsets`, during one leadership.

Of each key the last record counts.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from odradek import slices
from odradek.coordination.shard import LedShard
from odradek.group import offsets as schemas
from odradek.group.group import Group
from odradek.group.offsets import CommittedOffset, GroupKey, GroupValue
from odradek.group.pending_offsets import PendingCommit, PendingOffsets
from odradek.group.writes_in_flight import WritesInFlight
from odradek.log.records import batch, contents
from odradek.protocol.errors import ErrorCode
from odradek.protocol.primitives import MalformedError
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.log.partition.log import Log
    from odradek.log.records.batch import Header
    from odradek.log.records.records import Record
    from odradek.replica.partition import Partition

Changes: TypeAlias = Mapping[TopicPartition, CommittedOffset | None]

TAKEN_AT_ONCE = slices.KEYS_AT_ONCE // 5

logger = logging.getLogger(__name__)


class Shard(LedShard):
    """The groups and offsets of one partition."""

    def __init__(self, source: Partition) -> None:
        super().__init__(source)
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self.in_flight = WritesInFlight()
        # Held while many changes are taken in slices; the other changes of that group meanwhile.
        self._taking = asyncio.Lock()
        self._meanwhile: dict[str, list[tuple[Changes, int]]] = {}
        self._pending = PendingOffsets()
        # Markers that came before everything was loaded: producer, position, and if it commits.
        self._early_markers: list[tuple[int, int, bool]] = []
        self.empty_since_ms: dict[str, int] = {}
        """When groups lost their last member, in ms of the wall clock, if that is known."""

    @property
    def size(self) -> int:
        """How many groups it knows."""
        return len(self.groups)

    async def load(
        self,
        log: Log,
        read_bytes: int,
        new_group: Callable[[str], Group],
        clock_ms: Callable[[], int],
    ) -> None:
        """Read the whole partition. Raise KafkaError or CorruptBatchError if it is damaged."""
        stored: dict[str, GroupValue] = {}
        await self._read(log, read_bytes, lambda data, at: self._take_batches(data, stored, at))
        if self.retired:
            return
        groups: dict[str, Group] = {}
        for few in slices.cut(stored.items()):
            for group_id, value in few:
                group = groups[group_id] = _restored(new_group(group_id), value, clock_ms())
                if not group.members:
                    self.empty_since_ms[group_id] = value.current_state_timestamp
            if len(few) == slices.STEPS_PER_SLICE:
                await slices.pause()
            if self.retired:
                return
        for some in slices.cut([*self.offsets, *self._pending.groups()]):
            for group_id in some:
                if group_id not in groups:
                    groups[group_id] = new_group(group_id)
            if len(some) == slices.STEPS_PER_SLICE:
                await slices.pause()
            if self.retired:
                return
        with self.in_flight.one():
            while self._early_markers:
                # One that was read, too, ends nothing more.
                await slices.run(self._ended_in_slices(*self._early_markers.pop(0)))
        if self.retired:
            return
        self.groups = groups
        self.loaded = True
        slices.discard(stored)

    def _take_batches(self, data: bytes, stored: dict[str, GroupValue], position: int) -> int:
        """Apply the whole batches in `data`; return the offset after the last one."""
        for at, header in batch.scan(data):
            found = self._decoded(data, at, header)
            for record in found:
                if header.is_control:
                    self._apply_marker(header.producer_id, contents.is_commit(record))
                else:
                    self._apply(record, stored, header)
            position = header.last_offset + 1
        return position

    def _apply(self, record: Record, stored: dict[str, GroupValue], header: Header) -> None:
        if record.key is None:
            return
        try:
            key = schemas.decode_key(record.key)
            if isinstance(key, GroupKey):
                if record.value is None:
                    stored.pop(key.group, None)
                else:
                    stored[key.group] = schemas.decode_group(record.value)
            else:
                # All groups that read a topic share one string.
                partition = TopicPartition(sys.intern(key.topic), key.partition)
                value = record.value
                committed = None if value is None else schemas.decode_offset(value)
                at = header.base_offset
                if header.is_transactional:
                    commit = PendingCommit(key.group, partition, committed, at)
                    self._pending.add(header.producer_id, commit)
                else:
                    self._pending.supersede(key.group, partition, at)
                    self._set(key.group, partition, committed)
        except (schemas.UnknownRecordError, MalformedError) as error:
            logger.warning("__consumer_offsets-%d: skipping a record: %s", self.partition, error)

    def _apply_marker(self, producer_id: int, commits: bool) -> None:
        for commit in self._pending.of_producer(producer_id):
            self._pending.remove(producer_id, commit)
            if commits:
                group_id, partition, committed, position = commit
                self._pending.supersede(group_id, partition, position)
                self._set(group_id, partition, committed)

    def take(self, group_id: str, changes: Changes, position: int) -> None:
        """Apply commits, or deletions (None), whose records begin at log offset `position`.

        Writes in flight complete in any order. The later record counts, as it does when the log is
        read again.
        """
        if group_id in self._meanwhile:
            self._meanwhile[group_id].append((changes, position))
        for partition, committed in changes.items():
            if self.in_flight.is_latest(group_id, partition, position):
                self._set(group_id, partition, committed)
                self._pending.supersede(group_id, partition, position)

    async def take_in_slices(self, group_id: str, changes: Changes, position: int) -> None:
        """As `take`, for many changes: they take effect at once, and even if the client goes, since
        their records are in the log.
        """
        try:
            await self._taking.acquire()
        except BaseException:
            if not self.retired:
                self.take(group_id, changes, position)
            raise
        try:
            await _to_the_end(self._taken_in_slices(group_id, changes, position))
        finally:
            self._taking.release()

    def _taken_in_slices(
        self, group_id: str, changes: Changes, position: int
    ) -> Generator[None, None, None]:
        former = self.offsets.get(group_id, {})
        following = dict(former)
        meanwhile = self._meanwhile[group_id] = []
        for few in slices.cut(changes.items(), TAKEN_AT_ONCE):
            self._replace(group_id, following, few, position)
            yield
            if self.retired:
                return
        del self._meanwhile[group_id]
        for others, their_position in meanwhile:
            self._replace(group_id, following, others.items(), their_position)
        self.offsets[group_id] = following
        if not following:
            del self.offsets[group_id]
        slices.discard(former)

    def _replace(
        self,
        group_id: str,
        offsets: dict[TopicPartition, CommittedOffset],
        changes: Iterable[tuple[TopicPartition, CommittedOffset | None]],
        position: int,
    ) -> None:
        for partition, committed in changes:
            if not self.in_flight.is_latest(group_id, partition, position):
                continue
            self._pending.supersede(group_id, partition, position)
            if committed is None:
                offsets.pop(partition, None)
            else:
                offsets[partition] = committed

    # --- transactions ---------------------------------------------------------------------------

    async def take_pending(
        self, producer_id: int, group_id: str, commits: Changes, position: int
    ) -> None:
        """Keep commits, appended at log offset `position`, until their transaction ends. It may
        have ended meanwhile, and a later record may have superseded them.
        """
        await _to_the_end(self._pending_in_slices(producer_id, group_id, commits, position))

    def _pending_in_slices(
        self, producer_id: int, group_id: str, commits: Changes, position: int
    ) -> Generator[None, None, None]:
        for few in slices.cut(commits.items(), TAKEN_AT_ONCE):
            if self.retired:
                return
            outcome = self.in_flight.outcome(producer_id, position)
            if outcome is None:
                for partition, committed in few:
                    if not self.in_flight.is_superseded(group_id, partition, position):
                        commit = PendingCommit(group_id, partition, committed, position)
                        self._pending.add(producer_id, commit)
            elif outcome:
                self.take(group_id, dict(few), position)
            if len(few) == TAKEN_AT_ONCE:
                yield

    async def end_transaction(self, producer_id: int, position: int, *, commits: bool) -> None:
        """Let the commits of a producer count, or drop them: its marker is at log offset
        `position`. No offset changes and is stable while this goes on.
        """
        if not self.loaded:
            self._early_markers.append((producer_id, position, commits))
            return
        with self.in_flight.one():
            self.in_flight.note_marker(producer_id, position, commits=commits)
            await _to_the_end(self._ended_in_slices(producer_id, position, commits))

    def _ended_in_slices(
        self, producer_id: int, position: int, commits: bool
    ) -> Generator[None, None, None]:
        for few in slices.cut(self._pending.of_producer(producer_id), TAKEN_AT_ONCE):
            if self.retired:
                return
            for commit in few:
                if commit.position >= position:
                    continue
                if commits:
                    changes = {commit.partition: commit.committed}
                    self.take(commit.group_id, changes, commit.position)
                self._pending.remove(producer_id, commit)
            if len(few) == TAKEN_AT_ONCE:
                yield

    def is_unstable(self, group_id: str, partition: TopicPartition) -> bool:
        """Return whether a commit is in flight, or pending in a transaction."""
        return partition in self._pending.partitions_of(group_id) or any(
            partition in commits for commits in self.in_flight.commits_of(group_id)
        )

    def unstable_partitions(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions in which a commit of the group is in flight or pending."""
        pending = self._pending.partitions_of(group_id)
        return set(pending).union(*self.in_flight.commits_of(group_id))

    def partitions_of(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions in which a group has an offset, or an unstable one."""
        offsets = self.offsets.get(group_id, {}).keys()
        unstable = self.unstable_partitions(group_id)
        return offsets | unstable if unstable else offsets

    def has_commit(self, group_id: str, partition: TopicPartition) -> bool:
        """Return whether a group has an offset in a partition, or an unstable one."""
        return partition in self.offsets.get(group_id, {}) or self.is_unstable(group_id, partition)

    def _set(
        self, group_id: str, partition: TopicPartition, committed: CommittedOffset | None
    ) -> None:
        if committed is not None:
            self.offsets.setdefault(group_id, {})[partition] = committed
            return
        offsets = self.offsets.get(group_id)
        if offsets is not None:
            offsets.pop(partition, None)
            if not offsets:
                del self.offsets[group_id]

    def offsets_of(self, group_id: str) -> list[tuple[TopicPartition, CommittedOffset]] | None:
        """Return the committed offsets of a group at one moment; None if its leadership ended. May
        be called from any thread.
        """
        while not self.retired:
            offsets = self.offsets.get(group_id)
            if offsets is None:
                return []
            # One call into C, which no other thread interrupts.
            found = list(offsets.items())
            # Else others took its place, and it was being emptied.
            if self.offsets.get(group_id) is offsets:
                return found
        return None

    def retire(self) -> None:
        """Drop all groups when the leadership ends; waiting members look for the coordinator."""
        self.retired = True
        groups, self.groups = self.groups, {}
        offsets, self.offsets = self.offsets, {}
        for group in groups.values():
            try:
                group.retire(ErrorCode.NOT_COORDINATOR)
            except Exception:
                logger.exception("group %s: failed to answer its members", group.group_id)
        self.in_flight.forget_positions()
        self._pending.discard()
        slices.discard(*offsets.values())
        slices.discard(groups, offsets)


async def _to_the_end(work: Generator[None, None, None]) -> None:
    """Run work, at once if the client goes meanwhile: its records are in the log."""
    try:
        await slices.run(work)
    finally:
        for _ in work:
            pass


def _restored(group: Group, value: GroupValue, now_ms: int) -> Group:
    """Give a new group the membership that was stored."""
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    group.restore(list(schemas.members_of(value, now_ms)), value.generation, value.leader)
    return group
