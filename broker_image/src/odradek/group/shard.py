"""The groups whose records are in one partition of `__consumer_offsets`, during one leadership.

Of each key the last record counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from odradek import slices
from odradek.coordination.shard import LedShard
from odradek.group import offsets as schemas
from odradek.group.group import Group
from odradek.group.offsets import CommittedOffset, GroupKey, GroupValue
from odradek.log.records import batch, contents
from odradek.protocol.errors import ErrorCode
from odradek.protocol.primitives import MalformedError
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.log.partition.log import Log
    from odradek.log.records.records import Record
    from odradek.replica.partition import Partition

Changes: TypeAlias = Mapping[TopicPartition, CommittedOffset | None]

logger = logging.getLogger(__name__)


class PendingTransactions:
    """The records of Kafka's transactions that no marker has committed or aborted yet.

    This broker has no transactions. But a partition that Kafka wrote may contain transactional
    commits, and those of aborted transactions do not count.
    """

    def __init__(self) -> None:
        self._of_producer: dict[int, dict[bytes | None, Record]] = {}

    def add(self, producer_id: int, found: Iterable[Record]) -> None:
        """Keep records until their producer's next marker."""
        self._of_producer.setdefault(producer_id, {}).update((one.key, one) for one in found)

    def supersede(self, key: bytes | None) -> None:
        """Forget the key's records: a later record counts, whatever the marker says."""
        for kept in self._of_producer.values():
            kept.pop(key, None)

    def complete(self, producer_id: int, markers: Iterable[Record]) -> list[Record]:
        """Return those of a producer's records that the markers commit."""
        committed: list[Record] = []
        for marker in markers:
            kept = self._of_producer.pop(producer_id, {})
            if contents.is_commit(marker):
                committed.extend(kept.values())
        return committed


class Shard(LedShard):
    """The groups and offsets of one partition."""

    def __init__(self, source: Partition) -> None:
        super().__init__(source)
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        # The log offset of the last write per key, for keys with several writes in flight.
        self._positions: dict[tuple[str, TopicPartition], int] = {}
        self._writes = 0
        # Held while many changes are taken in slices; the other changes of that group meanwhile.
        self._taking = asyncio.Lock()
        self._meanwhile: dict[str, list[tuple[Changes, int]]] = {}
        self._transactions = PendingTransactions()
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
        for some in slices.cut(self.offsets):
            for group_id in some:
                if group_id not in groups:
                    groups[group_id] = new_group(group_id)
            if len(some) == slices.STEPS_PER_SLICE:
                await slices.pause()
            if self.retired:
                return
        self.groups = groups
        self.loaded = True
        slices.discard(stored)

    def _take_batches(self, data: bytes, stored: dict[str, GroupValue], position: int) -> int:
        """Apply the whole batches in `data`; return the offset after the last one."""
        for at, header in batch.scan(data):
            found = self._decoded(data, at, header)
            if header.is_control:
                found = self._transactions.complete(header.producer_id, found)
            elif header.is_transactional:
                self._transactions.add(header.producer_id, found)
                found = []
            for record in found:
                self._transactions.supersede(record.key)
                self._apply(record, stored)
            position = header.last_offset + 1
        return position

    def _apply(self, record: Record, stored: dict[str, GroupValue]) -> None:
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
                self._set(key.group, partition, committed)
        except (schemas.UnknownRecordError, MalformedError) as error:
            logger.warning("__consumer_offsets-%d: skipping a record: %s", self.partition, error)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Mark a write in flight.

        Log offsets of writes are kept only while several are in flight, to order them.
        """
        self._writes += 1
        try:
            yield
        finally:
            self._writes -= 1
            if not self._writes:
                self._forget_positions()

    def _forget_positions(self) -> None:
        if len(self._positions) > slices.FREED_AT_ONCE:
            former, self._positions = self._positions, {}
            slices.discard(former)
        else:
            self._positions.clear()

    def take(self, group_id: str, changes: Changes, position: int) -> None:
        """Apply commits, or deletions (None), whose records begin at log offset `position`.

        Writes in flight complete in any order. The later record counts, as it does when the log is
        read again.
        """
        if group_id in self._meanwhile:
            self._meanwhile[group_id].append((changes, position))
        for partition, committed in changes.items():
            if self._is_latest(group_id, partition, position):
                self._set(group_id, partition, committed)

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
        work = self._taken_in_slices(group_id, changes, position)
        try:
            await slices.run(work)
        finally:
            for _ in work:
                pass
            self._taking.release()

    def _taken_in_slices(
        self, group_id: str, changes: Changes, position: int
    ) -> Generator[None, None, None]:
        former = self.offsets.get(group_id, {})
        following = dict(former)
        meanwhile = self._meanwhile[group_id] = []
        for few in slices.cut(changes.items(), slices.KEYS_AT_ONCE // 5):
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
            if not self._is_latest(group_id, partition, position):
                continue
            if committed is None:
                offsets.pop(partition, None)
            else:
                offsets[partition] = committed

    def _is_latest(self, group_id: str, partition: TopicPartition, position: int) -> bool:
        """Return whether no record of the partition at a later position was taken; note this."""
        if position < self._positions.get((group_id, partition), -1):
            return False
        self._positions[group_id, partition] = position
        return True

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
        self._forget_positions()
        slices.discard(*offsets.values())
        slices.discard(groups, offsets)


def _restored(group: Group, value: GroupValue, now_ms: int) -> Group:
    """Give a new group the membership that was stored."""
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    group.restore(list(schemas.members_of(value, now_ms)), value.generation, value.leader)
    return group
