"""The groups whose records are in one partition of `__consumer_offsets`, during one leadership.

A shard is filled by reading the partition from its start; the last record of a key counts. It is
served only when that is done, and thrown away when the leadership ends.
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
from odradek.group.offsets import Committed, GroupKey, GroupValue
from odradek.log.records import batch, contents
from odradek.protocol.errors import ErrorCode
from odradek.protocol.primitives import MalformedError

if TYPE_CHECKING:
    from odradek.log.partition.log import Log
    from odradek.log.records.records import Record
    from odradek.replica.partition import Partition

logger = logging.getLogger(__name__)

TopicIndex = tuple[str, int]


class Undecided:
    """What Kafka's transactions wrote, as long as no marker has said what became of it.

    There are no transactions here, but a partition that was Kafka's may hold commits of some, and
    those of an aborted one never were.
    """

    def __init__(self) -> None:
        self._of_producer: dict[int, dict[bytes | None, Record]] = {}

    def add(self, producer_id: int, found: Iterable[Record]) -> None:
        """Keep records until their producer's next marker."""
        self._of_producer.setdefault(producer_id, {}).update((one.key, one) for one in found)

    def supersede(self, key: bytes | None) -> None:
        """A later record of that key counts, whatever the marker says."""
        for kept in self._of_producer.values():
            kept.pop(key, None)

    def decide(self, producer_id: int, markers: Iterable[Record]) -> list[Record]:
        """Those of a producer's records that count now."""
        decided: list[Record] = []
        for marker in markers:
            kept = self._of_producer.pop(producer_id, {})
            if contents.is_commit(marker):
                decided.extend(kept.values())
        return decided


class Shard:
    """Groups and offsets of one partition.

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
        self.offsets: dict[str, dict[TopicIndex, Committed]] = {}
        # Where in the log what was written last is, of those that were written beside others.
        self._positions: dict[tuple[str, TopicIndex], int] = {}
        self._writes = 0
        self._undecided = Undecided()
        self.empty_since_ms: dict[str, int] = {}
        """Wall-clock time since when a group has had no members, where that is known."""

    async def load(
        self,
        log: Log,
        read_bytes: int,
        new_group: Callable[[str], Group],
        clock_ms: Callable[[], int],
    ) -> None:
        """Read the whole partition. Raises KafkaError or CorruptBatchError where it is damaged."""
        stored: dict[str, GroupValue] = {}
        position, end = log.log_start_offset, log.log_end_offset
        while position < end:
            piece = await asyncio.to_thread(log.reader.read, position, read_bytes)
            if piece.region is None:
                break
            with piece.region as region:
                data = await asyncio.to_thread(region.read)
            # Reading records takes long: in a thread, for nobody else looks at the shard yet.
            following = await asyncio.to_thread(self._take, data, stored, position)
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

    def _take(self, data: bytes, stored: dict[str, GroupValue], position: int) -> int:
        """Take in the whole batches of `data`; the offset after the last of them."""
        for at, header in batch.scan(data):
            found = contents.decode(data, at) if header.record_count else []
            if header.is_control:
                found = self._undecided.decide(header.producer_id, found)
            elif header.is_transactional:
                self._undecided.add(header.producer_id, found)
                found = []
            for record in found:
                self._undecided.supersede(record.key)
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
                # One name of a topic for all groups that read it.
                where = (sys.intern(key.topic), key.partition)
                value = record.value
                self._set(key.group, where, None if value is None else schemas.decode_offset(value))
        except (schemas.UnknownRecordError, MalformedError) as error:
            logger.warning("__consumer_offsets-%d: skipping a record: %s", self.partition, error)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Mark a write whose outcome is not known yet.

        Only beside others does it matter which of them comes later in the log.
        """
        self._writes += 1
        try:
            yield
        finally:
            self._writes -= 1
            if not self._writes:
                self._positions.clear()

    def take(
        self, group_id: str, changes: Mapping[TopicIndex, Committed | None], position: int
    ) -> None:
        """Take in commits, or deletions (None), whose records begin at `position` of the log.

        Writes that wait for the same replicas are settled in any order; the later record counts,
        as it does for whoever reads the log next.
        """
        for where, committed in changes.items():
            if position >= self._positions.get((group_id, where), -1):
                self._positions[group_id, where] = position
                self._set(group_id, where, committed)

    def _set(self, group_id: str, where: TopicIndex, committed: Committed | None) -> None:
        if committed is not None:
            self.offsets.setdefault(group_id, {})[where] = committed
            return
        offsets = self.offsets.get(group_id)
        if offsets is not None:
            offsets.pop(where, None)
            if not offsets:
                del self.offsets[group_id]

    def retire(self) -> None:
        """The leadership ended: everybody who waits is sent to the next coordinator."""
        self.retired = True
        for group in self.groups.values():
            group.retire(ErrorCode.NOT_COORDINATOR)
        self.groups.clear()
        self.offsets.clear()
        self._positions.clear()
