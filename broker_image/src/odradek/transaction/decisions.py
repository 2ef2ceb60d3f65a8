"""What requests and timers do to a transactional id (KIP-98, 360, 588): pure decisions.

Each function looks at an entry and returns what to do. It changes nothing. After a `Write`, the
coordinator calls `TransactionEntry.begin`, writes the record, calls `settle`, and then gives the
answer. A transaction in PrepareCommit or PrepareAbort needs markers in all its partitions, and
then `complete`. The rules are those of TransactionCoordinator and TransactionMetadata in Kafka
2.8.2, except where a comment says otherwise.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from odradek.protocol.api import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.transaction.states import IDLE, PREPARED, TransactionState
from odradek.transaction.transaction import (
    NO_PARTITIONS,
    NOT_STARTED_MS,
    ProducerIdAndEpoch,
    Transaction,
    TransactionEntry,
)
from odradek.values import TopicPartition

LAST_EPOCH = 2**15 - 2
"""The highest epoch that a producer gets. The one above it is for fencing that producer."""

NO_PRODUCER = ProducerIdAndEpoch(-1, -1)

_PREPARED_BY_OUTCOME = {
    True: TransactionState.PREPARE_COMMIT,
    False: TransactionState.PREPARE_ABORT,
}
_COMPLETE = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}

# The first version of each request whose clients know PRODUCER_FENCED.
_FENCED_SINCE = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the request. `producer` is for InitProducerId only."""

    error: ErrorCode
    producer: ProducerIdAndEpoch = NO_PRODUCER


@dataclass(frozen=True, slots=True)
class Write:
    """Write `following`, which is then current; then give `answer`. In Dead, write a tombstone."""

    following: Transaction
    answer: Answer


@dataclass(frozen=True, slots=True)
class ProducerIdNeeded:
    """Take a producer id, and decide again with it as `spare_producer_id`."""


def initialize(
    entry: TransactionEntry,
    timeout_ms: int,
    named: ProducerIdAndEpoch | None,
    spare_producer_id: int | None,
    now_ms: int,
) -> Answer | Write | ProducerIdNeeded:
    """Decide InitProducerId: fence the former producer and abort what it left open.

    `named` is what a producer says that it was until now (version 3 on, KIP-360), None if it says
    nothing. `spare_producer_id` is an id that nobody has; it is taken only if the answer has it.
    """
    current = entry.current
    if entry.pending is not None:
        return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    if current is not None:
        if named not in (None, current.producer, current.last):
            return Answer(ErrorCode.PRODUCER_FENCED)
        if current.state in PREPARED:
            return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        if current.state is TransactionState.ONGOING:
            # Asked again once it is aborted, the new producer gets the epoch above this one.
            return Write(_fenced(current, now_ms), Answer(ErrorCode.CONCURRENT_TRANSACTIONS))
    producer = _next_producer(current, named, spare_producer_id)
    if producer is None:
        return ProducerIdNeeded()
    following = Transaction(
        entry.transactional_id,
        producer.producer_id,
        producer.epoch,
        timeout_ms,
        TransactionState.EMPTY,
        NO_PARTITIONS,
        NOT_STARTED_MS,
        now_ms,
        last=named,
    )
    return Write(following, Answer(ErrorCode.NONE, producer))


def _next_producer(
    current: Transaction | None, named: ProducerIdAndEpoch | None, spare_producer_id: int | None
) -> ProducerIdAndEpoch | None:
    """Return who the asking producer becomes; None: that takes a producer id."""
    if current is not None:
        if named is not None and named != current.producer:
            return current.producer  # the answer to its first request was lost
        if current.epoch < LAST_EPOCH:
            return ProducerIdAndEpoch(current.producer_id, current.epoch + 1)
    return None if spare_producer_id is None else ProducerIdAndEpoch(spare_producer_id, 0)


def add_partitions(
    entry: TransactionEntry,
    producer: ProducerIdAndEpoch,
    partitions: AbstractSet[TopicPartition],
    now_ms: int,
) -> Answer | Write:
    """Decide AddPartitionsToTxn, and AddOffsetsToTxn with the group's partition."""
    current = _current(entry, producer)
    if isinstance(current, ErrorCode):
        return Answer(current)
    if current.state in PREPARED:
        return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    goes_on = current.state is TransactionState.ONGOING
    if goes_on and partitions <= current.partitions:
        return Answer(ErrorCode.NONE)
    following = replace(
        current,
        state=TransactionState.ONGOING,
        partitions=current.partitions | partitions,
        start_ms=current.start_ms if goes_on else now_ms,
        updated_ms=now_ms,
        last=None,
    )
    return Write(following, Answer(ErrorCode.NONE))


def verify(
    entry: TransactionEntry, producer: ProducerIdAndEpoch, partitions: AbstractSet[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Return for each partition NONE if it is in the producer's ongoing transaction, else why not
    (KIP-890).

    A transition that is pending does not count yet: if it ends the transaction, each of its
    partitions gets a marker, behind what is written there until then.
    """
    current = entry.current
    if current is None or current.producer_id != producer.producer_id:
        return dict.fromkeys(partitions, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if current.epoch != producer.epoch or producer.epoch > LAST_EPOCH:
        return dict.fromkeys(partitions, ErrorCode.PRODUCER_FENCED)
    if current.state in PREPARED:
        return dict.fromkeys(partitions, ErrorCode.CONCURRENT_TRANSACTIONS)
    is_in = current.partitions
    return {
        key: ErrorCode.NONE if key in is_in else ErrorCode.INVALID_TXN_STATE for key in partitions
    }


def end(
    entry: TransactionEntry, producer: ProducerIdAndEpoch, commit: bool, now_ms: int
) -> Answer | Write:
    """Decide EndTxn. Its answer is given when the outcome is durable, before any marker."""
    current = _current(entry, producer)
    if isinstance(current, ErrorCode):
        return Answer(current)
    if current.state is TransactionState.ONGOING:
        prepared = _PREPARED_BY_OUTCOME[commit]
        return Write(replace(current, state=prepared, updated_ms=now_ms), Answer(ErrorCode.NONE))
    if current.state is _PREPARED_BY_OUTCOME[commit]:
        return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    if current.state is _COMPLETE[_PREPARED_BY_OUTCOME[commit]]:
        return Answer(ErrorCode.NONE)
    return Answer(ErrorCode.INVALID_TXN_STATE)


def _current(entry: TransactionEntry, producer: ProducerIdAndEpoch) -> Transaction | ErrorCode:
    """Return the state that the producer may change now, or why it may not."""
    current = entry.current
    if current is None or current.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # Kafka takes the epoch above LAST_EPOCH from a client that makes it up, and cannot fence it.
    if current.epoch != producer.epoch or producer.epoch > LAST_EPOCH:
        return ErrorCode.PRODUCER_FENCED
    # Kafka refuses a producer at once while the abort that fences it is being written. Here it
    # has to ask again: the abort may fail.
    if entry.pending is not None:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return current


def _fenced(current: Transaction, now_ms: int) -> Transaction:
    """Return the abort of an ongoing transaction with an epoch that no producer gets."""
    return replace(
        current,
        state=TransactionState.PREPARE_ABORT,
        epoch=min(current.epoch + 1, LAST_EPOCH + 1),
        updated_ms=now_ms,
    )


def complete(entry: TransactionEntry, now_ms: int) -> Write:
    """End a transaction in PrepareCommit or PrepareAbort whose markers are all written."""
    current = entry.current
    assert current is not None
    assert entry.pending is None
    following = replace(
        current,
        state=_COMPLETE[current.state],
        partitions=NO_PARTITIONS,
        updated_ms=now_ms,
    )
    return Write(following, Answer(ErrorCode.NONE))


def time_out(entry: TransactionEntry, now_ms: int) -> Write | None:
    """Abort a transaction that is open for longer than its timeout, and fence its producer."""
    current = entry.current
    if current is None or entry.pending is not None:
        return None
    if current.state is not TransactionState.ONGOING:
        return None
    if now_ms <= current.start_ms + current.timeout_ms:
        return None
    return Write(_fenced(current, now_ms), Answer(ErrorCode.NONE))


def expire(entry: TransactionEntry, expiration_ms: int, now_ms: int) -> Write | None:
    """Delete an id without a transaction that was not used for `expiration_ms`."""
    current = entry.current
    if current is None or entry.pending is not None or current.state not in IDLE:
        return None
    if current.updated_ms > now_ms - expiration_ms:
        return None
    return Write(replace(current, state=TransactionState.DEAD, last=None), Answer(ErrorCode.NONE))


def error_for(error: ErrorCode, key: ApiKey, version: int) -> ErrorCode:
    """Return the code for a client of that version: old ones do not know PRODUCER_FENCED."""
    if error is ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE[key]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
