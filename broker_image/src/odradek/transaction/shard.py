"""The transactional ids whose records are in one partition of `__transaction_state`, while it is
led: of each id the last record counts.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from odradek import slices
from odradek.coordination.shard import LedShard
from odradek.log.records import batch
from odradek.protocol.primitives import MalformedError
from odradek.transaction import records
from odradek.transaction.records import UnknownTransactionRecordError
from odradek.transaction.transaction import TransactionEntry

if TYPE_CHECKING:
    from odradek.log.partition.log import Log
    from odradek.log.records.records import Record
    from odradek.replica.partition import Partition

logger = logging.getLogger(__name__)

WHAT_TO_DO = (
    "let a broker of the version that wrote it lead the partition, or stop all transactional "
    "producers and delete the topic"
)


class TransactionShard(LedShard):
    """The transactional ids of one partition."""

    def __init__(self, source: Partition) -> None:
        super().__init__(source)
        self.entries: dict[str, TransactionEntry] = {}
        self.confirmed = False
        """Whether all that was read is committed: before, nobody acts upon it."""
        self._epoch = source.leader_epoch

    @property
    def size(self) -> int:
        """How many transactional ids it knows."""
        return len(self.entries)

    @property
    def coordinator_epoch(self) -> int:
        """The newest leader epoch of this leadership: markers of a former coordinator have less."""
        if self.leadership_generation == self.source.leadership_generation:
            self._epoch = self.source.leader_epoch
        return self._epoch

    async def load(self, log: Log, read_bytes: int) -> None:
        """Read the whole partition. Raise KafkaError or CorruptBatchError if it is damaged, and
        UnknownTransactionRecordError if a newer version wrote what must not be lost.
        """
        entries: dict[str, TransactionEntry] = {}
        await self._read(log, read_bytes, lambda data, at: self._take_batches(data, entries, at))
        if self.retired:
            return
        self.entries = entries
        self.loaded = True

    def _take_batches(
        self, data: bytes, entries: dict[str, TransactionEntry], position: int
    ) -> int:
        """Apply the whole batches in `data`; return the offset after the last one."""
        for at, header in batch.scan(data):
            # A coordinator writes no control records there.
            if not header.is_control:
                for record in self._decoded(data, at, header):
                    self._apply(record, entries)
            position = header.last_offset + 1
        return position

    def _apply(self, record: Record, entries: dict[str, TransactionEntry]) -> None:
        if record.key is None:
            return
        try:
            transactional_id = records.decode_key(record.key)
        except (UnknownTransactionRecordError, MalformedError) as error:
            # As Kafka since 3.5, for which such a record is about something else than an id.
            logger.warning("%s: skipping a record: %s", self.source.key, error)
            return
        if record.value is None:
            entries.pop(transactional_id, None)
            return
        try:
            current = records.decode(transactional_id, record.value)
        except UnknownTransactionRecordError as error:
            raise UnknownTransactionRecordError(
                f"offset {record.offset}, transactional id {transactional_id[:80]!r}: {error}: "
                f"{WHAT_TO_DO}"
            ) from error
        except MalformedError as error:
            logger.warning("%s: skipping a record: %s", self.source.key, error)
            return
        entries[transactional_id] = TransactionEntry(transactional_id, current)

    def retire(self) -> None:
        """Drop all ids when the leadership ends."""
        self.retired = True
        entries, self.entries = self.entries, {}
        slices.discard(entries)
