"""Producer state: what the log knows of its producers, so that a retry is written once.

Of each producer id the last five batches are kept: their sequence ranges and offsets. A batch whose
range is among them is a repeat and gets its first offset back; one that follows the last is new;
anything else is out of order (KIP-98; 2.8's rules). The state follows from the batches alone, so
followers and a restarted broker build it by reading headers; `.snapshot` files at segment
boundaries and at a clean shutdown shorten that.

A batch with a new producer id costs its sender 70 bytes, and the log half a kilobyte of memory. So
the number of producers is bounded: at the bound, the tenth that wrote longest ago is forgotten, as
if it had expired. Kafka has no such bound.

Snapshot, version 1, big-endian:

    version i16, CRC-32C u32 of what follows, count i32, and for each producer:
    id i64, epoch i16, last sequence i32, last offset i64, offset delta i32, timestamp i64,
    coordinator epoch i32, first offset of the open transaction i64 (-1: none)
"""

import heapq
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from odradek.log.partition.transactions import Transactions
from odradek.log.partition.verification import Verifications
from odradek.log.records.batch import (
    CLIENT,
    CONTROL,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    TRANSACTIONAL_CLIENT,
    Header,
    Origin,
)
from odradek.log.records.contents import Marker
from odradek.log.segment import files
from odradek.log.segment.names import base_offset_of
from odradek.log.segment.transaction_index import AbortedTxn
from odradek.protocol.errors import ErrorCode, KafkaError

SNAPSHOT_SUFFIX = ".snapshot"
RETAINED_BATCHES = 5
MOST_PRODUCERS = 10_000
MAX_SEQUENCE = 2**31 - 1
NO_EPOCH = -1
NO_SEQUENCE = -1

_HEAD = struct.Struct(">hIi")
_CRC_START = 6
_ENTRY = struct.Struct(">qhiqiqiq")
_VERSION = 1


_tuple = tuple.__new__


class CorruptSnapshotError(Exception):
    """A snapshot with a wrong version, length or checksum."""


class Written(NamedTuple):
    """One batch of a producer: last sequence, last offset, and the number of records before the
    last.
    """

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class Producer:
    """State of one producer id."""

    producer_id: int
    epoch: int = NO_EPOCH
    batches: list[Written] = field(default_factory=list)
    timestamp: int = -1
    coordinator_epoch: int = -1
    transaction_start: int = -1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 when none is known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Offset of the last record, -1 when none is known."""
        return self.batches[-1].last_offset if self.batches else -1

    def batch_at(self, epoch: int, base_sequence: int, offset_delta: int) -> Written | None:
        """Return the batch with just these sequences, None if none of the last ones has them."""
        if epoch != self.epoch:
            return None
        last = (base_sequence + offset_delta) & MAX_SEQUENCE
        for written in self.batches:
            if written.last_sequence == last and written.offset_delta == offset_delta:
                return written
        return None


class ProducerNow(NamedTuple):
    """A producer at one moment: -1 where nothing is known. The timestamp is of its last batch."""

    producer_id: int
    epoch: int
    last_sequence: int
    timestamp: int
    coordinator_epoch: int
    transaction_start: int


class FormerProducers(NamedTuple):
    """What a log that was deleted knew of its producers: the epoch and last sequence of each, and
    whether others may have written there.
    """

    last: Mapping[int, tuple[int, int]]
    forgetful: bool


NO_FORMER = FormerProducers({}, forgetful=False)
UNKNOWN_FORMER = FormerProducers({}, forgetful=True)


class ProducerStates:
    """The producers of one partition. One writer at a time; used under the log's append lock.

    Of more than `most` those that wrote longest ago are forgotten.
    """

    __slots__ = (
        "_former",
        "_most",
        "_producers",
        "end_offset",
        "expiry_ms",
        "forgetful",
        "forgotten",
        "snapshot_offset",
        "transactions",
        "verifications",
        "verifies",
    )

    def __init__(
        self,
        expiry_ms: int,
        most: int = MOST_PRODUCERS,
        verifies: Callable[[], bool] = lambda: False,
    ) -> None:
        self._producers: dict[int, Producer] = {}
        self._most = most
        # True when a producer that wrote here may be unknown: expired, one of too many, or its
        # batches deleted or compacted away.
        self.forgetful = False
        # Those of a former topic of this name.
        self._former = NO_FORMER
        # How many were forgotten because there were too many.
        self.forgotten = 0
        self.expiry_ms = expiry_ms
        self.end_offset = 0
        self.snapshot_offset = -1
        self.transactions = Transactions()
        # Whether the coordinator is asked before a transaction begins here.
        self.verifies = verifies
        self.verifications = Verifications(most)

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> Producer | None:
        """Return state of a producer id, None when unknown."""
        return self._producers.get(producer_id)

    def all_now(self) -> list[ProducerNow]:
        """Return all producers as they are now."""
        return [
            ProducerNow(
                one.producer_id,
                one.epoch,
                one.last_sequence,
                one.timestamp,
                one.coordinator_epoch,
                one.transaction_start,
            )
            for one in self._producers.values()
        ]

    @property
    def oldest_transaction_ms(self) -> int:
        """When the producer of the first open transaction wrote its last batch (ms), -1: none is.

        Kafka takes that for the age of the transaction. Any thread may ask.
        """
        producer = self._producers.get(self.transactions.first_producer)
        return -1 if producer is None else producer.timestamp

    def check(self, header: Header, origin: Origin, leader_epoch: int = -1) -> Written | None:
        """Check a batch before it is written; return the earlier batch if it is a duplicate, None
        if it is new.

        Raises VerificationNeededError for the first batch of a transaction, if `verifies` and the
        coordinator was not asked in this leader epoch. Raises KafkaError INVALID_PRODUCER_EPOCH for
        an old epoch, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap, and INVALID_TXN_STATE for a plain
        batch inside the producer's transaction. An unknown producer may start at any sequence (2.5
        and later) if the log may have forgotten it. If it surely never wrote here, its first
        batches were refused, and a batch that overtook them must not be taken: its acknowledgement
        would count for them too.
        """
        (
            _, _, _, _, _, attributes, offset_delta, _, _, producer_id, epoch, base_sequence, _,
        ) = header  # fmt: skip
        if producer_id == NO_PRODUCER_ID:
            return None
        known = self._producers.get(producer_id)
        from_client = origin is CLIENT or origin is TRANSACTIONAL_CLIENT
        if origin is TRANSACTIONAL_CLIENT and attributes & TRANSACTIONAL:
            self._check_room(known)
        if known is None:
            if from_client and base_sequence > 0 and not self._may_begin(header):
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id} begins with sequence {base_sequence}",
                )
            if attributes & TRANSACTIONAL and not attributes & CONTROL and self.verifies():
                self.verifications.require(header, leader_epoch, is_first=from_client)
            return None
        if epoch < known.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {epoch}, last seen {known.epoch}",
            )
        if attributes & CONTROL:
            return None
        if from_client:
            last = known.last_sequence
            expected = last + 1 if epoch == known.epoch and last != MAX_SEQUENCE else 0
            # What continues the last batch repeats none: the last five have far fewer records than
            # there are sequences. Without an epoch, sequences have no order.
            if base_sequence != expected or known.epoch == NO_EPOCH:
                repeated = known.batch_at(epoch, base_sequence, offset_delta)
                if repeated is not None:
                    return repeated
                if known.epoch != NO_EPOCH:
                    raise KafkaError(
                        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                        f"producer {producer_id} epoch {epoch} sent sequence {base_sequence}, "
                        f"expected {expected}",
                    )
        if attributes & TRANSACTIONAL:
            if known.transaction_start < 0 and self.verifies():
                is_first = from_client and known.epoch == NO_EPOCH
                self.verifications.require(header, leader_epoch, is_first=is_first)
        elif known.transaction_start >= 0:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"producer {producer_id} has an open transaction"
            )
        return None

    def _check_room(self, producer: Producer | None) -> None:
        """Raise KafkaError INVALID_TXN_STATE for the first batch of one transaction too many.

        Nobody ends transactions of producers that a client made up, and open ones are never
        forgotten.
        """
        if self.transactions.open_count < self._most:
            return
        if producer is None or producer.transaction_start < 0:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"{self._most} transactions are open in this partition"
            )

    def check_marker(self, header: Header, marker: Marker | None) -> None:
        """Check a control batch that a coordinator wants to write, besides `check`.

        Raises KafkaError TRANSACTION_COORDINATOR_FENCED if another coordinator of the producer's
        transactions, a newer one, wrote here, INVALID_RECORD if the batch has no marker.
        """
        if marker is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a control batch without a marker")
        known = self._producers.get(header.producer_id)
        if known is not None and marker.coordinator_epoch < known.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"producer {header.producer_id}: a marker of coordinator epoch "
                f"{marker.coordinator_epoch}, last seen {known.coordinator_epoch}",
            )

    def _may_begin(self, header: Header) -> bool:
        """Return whether an unknown producer may begin behind sequence 0: where it was forgotten,
        or with what follows or repeats its last batch in a former topic of this name.
        """
        if self.forgetful:
            return True
        former = self._former.last.get(header.producer_id)
        if former is None:
            return self._former.forgetful
        epoch, last = former
        # Sequences wrap: what is less than half of them back is a repeat.
        back = (last + 1 - header.base_sequence) & MAX_SEQUENCE
        return header.producer_epoch == epoch and back <= MAX_SEQUENCE // 2

    def as_former(self) -> FormerProducers:
        """Return what a new topic of this name has to know: of the topics before, too."""
        own = {one.producer_id: (one.epoch, one.last_sequence) for one in self._producers.values()}
        known = {**self._former.last, **own}
        if len(known) > self._most:
            return FormerProducers(own, forgetful=True)
        return FormerProducers(known, self.forgetful or self._former.forgetful)

    def go_on_from(self, former: FormerProducers) -> None:
        """Let the producers of a former topic of this name go on with their sequences."""
        self._former = former

    def aborted_by(
        self, header: Header, last_offset: int, marker: Marker | None
    ) -> AbortedTxn | None:
        """Return the transaction that a control batch aborts, which is to be noted then; None of
        other batches, and where the producer has no transaction.
        """
        if marker is None or marker.commits:
            return None
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.transaction_start < 0:
            return None
        beside = self.transactions.first_open_beside(header.producer_id)
        stable = last_offset + 1 if beside < 0 else beside
        return AbortedTxn(header.producer_id, producer.transaction_start, last_offset, stable)

    def update(self, header: Header, marker: Marker | None = None) -> None:
        """Note a batch of the log, with the marker of a control batch."""
        self.note(header, header.last_offset, header.max_timestamp, marker)

    def note(self, header: Header, last_offset: int, timestamp: int, marker: Marker | None) -> None:
        """As `update`, of a header as the producer sent it: the log's last offset and largest
        timestamp are given.
        """
        if header.producer_id != NO_PRODUCER_ID:
            self._note_producer(header, last_offset, timestamp, marker)
        # Last: readers of committed records may go no further.
        self.end_offset = last_offset + 1

    def _note_producer(
        self, header: Header, last_offset: int, timestamp: int, marker: Marker | None
    ) -> None:
        (
            _, _, _, _, _, attributes, offset_delta, _, _,
            producer_id, epoch, base_sequence, _,
        ) = header  # fmt: skip
        producer = self._producers.get(producer_id)
        if producer is None:
            if len(self._producers) >= self._most:
                self._make_room()
            producer = self._producers[producer_id] = Producer(producer_id)
        if producer.epoch != epoch:
            producer.batches.clear()
            producer.epoch = epoch
        producer.timestamp = timestamp
        if attributes & CONTROL:
            self.verifications.end(producer_id)
            if producer.transaction_start >= 0:
                self.transactions.end(producer_id, last_offset)
                producer.transaction_start = -1
            if marker is not None:
                producer.coordinator_epoch = marker.coordinator_epoch
            return
        if len(producer.batches) == RETAINED_BATCHES:
            del producer.batches[0]
        sequence = NO_SEQUENCE  # of what a coordinator wrote
        if base_sequence >= 0:
            sequence = (base_sequence + offset_delta) & MAX_SEQUENCE
        producer.batches.append(_tuple(Written, (sequence, last_offset, offset_delta, timestamp)))
        if attributes & TRANSACTIONAL and producer.transaction_start < 0:
            producer.transaction_start = last_offset - offset_delta
            self.transactions.begin(producer_id, producer.transaction_start)
            self.verifications.begin(producer_id)

    def forget_deleted(self, log_start: int) -> None:
        """Forget the open transactions whose records are all below the log start offset, and whose
        marker may never come.
        """
        for producer_id in self.transactions.open_producers:
            producer = self._producers[producer_id]
            if producer.last_offset < log_start:
                producer.transaction_start = -1
                self.transactions.drop(producer_id)

    def expire(self, now_ms: int) -> None:
        """Forget producers idle for the expiry time, unless their transaction is open, and
        verifications that nobody waits for any more.
        """
        self.verifications.expire()
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.transaction_start < 0 and now_ms - producer.timestamp >= self.expiry_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]
            self.forgetful = True

    def _make_room(self) -> None:
        """Forget those that wrote longest ago, a tenth at once, except open transactions."""
        idle = (one for one in self._producers.values() if one.transaction_start < 0)
        count = len(self._producers) - self._most + max(self._most // 10, 1)
        for producer in heapq.nsmallest(count, idle, key=lambda one: one.last_offset):
            del self._producers[producer.producer_id]
            self.forgotten += 1
        self.forgetful = True

    def clear(self, end_offset: int) -> None:
        """Forget everything; the next batch is expected at `end_offset`."""
        self._producers.clear()
        self.transactions.restart()
        self.verifications.clear()
        self.forgetful = end_offset > 0
        self.end_offset = end_offset
        self.snapshot_offset = -1

    def emptied(self) -> "ProducerStates":
        """Return a state with these bounds that knows nothing yet."""
        return ProducerStates(self.expiry_ms, self._most)

    def become(self, rebuilt: "ProducerStates") -> None:
        """Take over what another state knows. Readers see either all of its transactions or those
        before.
        """
        self._producers = rebuilt._producers
        self.transactions = rebuilt.transactions
        self.verifications.clear()
        self.forgetful = rebuilt.forgetful
        self.forgotten += rebuilt.forgotten
        self.end_offset = rebuilt.end_offset
        self.snapshot_offset = rebuilt.snapshot_offset

    # -- snapshots ------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return the bytes of a snapshot."""
        body = b"".join(
            _ENTRY.pack(
                producer.producer_id,
                producer.epoch,
                producer.last_sequence,
                producer.batches[-1].last_offset if producer.batches else -1,
                producer.batches[-1].offset_delta if producer.batches else 0,
                producer.timestamp,
                producer.coordinator_epoch,
                producer.transaction_start,
            )
            for producer in self._producers.values()
        )
        counted = struct.pack(">i", len(self._producers)) + body
        return struct.pack(">hI", _VERSION, crc32c(counted)) + counted

    def load(self, data: bytes, end_offset: int, now_ms: int) -> None:
        """Replace the state by a snapshot taken at `end_offset`. Raises CorruptSnapshotError."""
        producers = decode(data)
        self._producers = {producer.producer_id: producer for producer in producers}
        self.transactions.restart(
            (one.producer_id, one.transaction_start)
            for one in producers
            if one.transaction_start >= 0
        )
        self.end_offset = end_offset
        self.snapshot_offset = end_offset
        # So many are left where others were forgotten.
        if len(producers) >= self._most - max(self._most // 10, 1):
            self.forgetful = True
        if len(producers) > self._most:
            self._make_room()
        self.expire(now_ms)

    def write_snapshot(self, directory: str) -> bool:
        """Write a snapshot at the end offset, unless there is one; return whether it did. There is
        none at offset 0, before which nobody wrote.

        It is not durable by itself: it is checked when read, and the log's flush syncs it.
        """
        if self.end_offset in (0, self.snapshot_offset):
            return False
        path = snapshot_path(directory, self.end_offset)
        files.write_atomically(path, self.encode(), durable=False)
        self.snapshot_offset = self.end_offset
        return True


def snapshot_path(directory: str, offset: int) -> str:
    """Return path of the snapshot at `offset`."""
    return os.path.join(directory, f"{offset:020d}{SNAPSHOT_SUFFIX}")


def decode(data: bytes) -> list[Producer]:
    """Read a snapshot. Raises CorruptSnapshotError."""
    if len(data) < _HEAD.size:
        raise CorruptSnapshotError(f"{len(data)} bytes")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshotError(f"version {version}")
    if crc != crc32c(memoryview(data)[_CRC_START:]):
        raise CorruptSnapshotError("wrong checksum")
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshotError(f"{count} entries in {len(data)} bytes")
    producers = []
    for fields in _ENTRY.iter_unpack(data[_HEAD.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator, start = fields
        producer = Producer(
            producer_id,
            epoch,
            timestamp=timestamp,
            coordinator_epoch=coordinator,
            transaction_start=start,
        )
        if offset >= 0:
            producer.batches.append(Written(sequence, offset, delta, timestamp))
        producers.append(producer)
    return producers


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Return the offsets of the snapshots among the files of a folder, rising."""
    offsets = []
    for name in names:
        stem, suffix = os.path.splitext(name)
        offset = base_offset_of(stem)
        if suffix == SNAPSHOT_SUFFIX and offset is not None:
            offsets.append(offset)
    return sorted(offsets)


def drop_snapshots(directory: str, below: int | None = None) -> None:
    """Remove the snapshots in `directory`, or only those below an offset. Raises OSError."""
    for at in snapshot_offsets(files.list_names(directory)):
        if below is None or at < below:
            files.remove_if_there(snapshot_path(directory, at))
