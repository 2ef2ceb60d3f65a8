"""The groups whose records are in one partition of `__consumer_offsets`, during one leadership.

A shard is loaded by reading the partition from its start; the last record per key counts. It serves
requests once it is loaded, and is dropped when the leadership ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

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


class Shard:
    """The groups and offsets of one partition.

    `source` and `leadership_generation` name the leadership that it belongs to. A new leader epoch
    of the same leader leaves the log, and so the shard, as it is.
    """

    def __init__(self, source: Partition) -> None:
        self.source = source
        self.leadership_generation = source.leadership_generation
        self.partition = source.key.partition
        self.loaded = False
        self.retired = False
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        # The log offset of the last write per key, for keys with several writes in flight.
        self._positions: dict[tuple[str, TopicPartition], int] = {}
        self._writes = 0
        self._transactions = PendingTransactions()
        self.empty_since_ms: dict[str, int] = {}
        """When groups lost their last member, in ms of the wall clock, if that is known."""

    async def load(
        self,
        log: Log,
        read_bytes: int,
        new_group: Callable[[str], Group],
        clock_ms: Callable[[], int],
    ) -> None:
        """Read the whole partition. Raise KafkaError or CorruptBatchError if it is damaged."""
        stored: dict[str, GroupValue] = {}
        position, end = log.log_start_offset, log.log_end_offset
        while position < end:
            piece = await asyncio.to_thread(log.reader.read, position, read_bytes)
            if piece.region is None:
                break
            with piece.region as region:
                data = await asyncio.to_thread(region.read)
            # Decoding takes long: use a thread, since nothing else uses the shard yet.
            following = await asyncio.to_thread(self._take_batches, data, stored, position)
            if self.retired:
                return
            if following == position:
                break
            position = following
        for group_id, value in stored.items():
            group = new_group(group_id)
            group.protocol_type = value.protocol_type or None
            group.protocol_name = value.protocol
            members = list(schemas.members_of(value, clock_ms()))
            group.restore(members, value.generation, value.leader)
            self.groups[group_id] = group
            if not members:
                self.empty_since_ms[group_id] = value.current_state_timestamp
        for group_id in self.offsets:
            if group_id not in self.groups:
                self.groups[group_id] = new_group(group_id)
        self.loaded = True

    def _take_batches(self, data: bytes, stored: dict[str, GroupValue], position: int) -> int:
        """Apply the whole batches in `data`; return the offset after the last one."""
        for at, header in batch.scan(data):
            found = contents.decode(data, at) if header.record_count else []
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
                self._positions.clear()

    def take(
        self, group_id: str, changes: Mapping[TopicPartition, CommittedOffset | None], position: int
    ) -> None:
        """Apply commits, or deletions (None), whose records begin at log offset `position`.

        Writes in flight complete in any order. The later record counts, as it does when the log is
        read again.
        """
        for partition, committed in changes.items():
            if position >= self._positions.get((group_id, partition), -1):
                self._positions[group_id, partition] = position
                self._set(group_id, partition, committed)

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

    def retire(self) -> None:
        """Drop all groups when the leadership ends; waiting members look for the coordinator."""
        self.retired = True
        for group in self.groups.values():
            try:
                group.retire(ErrorCode.NOT_COORDINATOR)
            except Exception:
                logger.exception("group %s: failed to answer its members", group.group_id)
        self.groups.clear()
        self.offsets.clear()
        self._positions.clear()
