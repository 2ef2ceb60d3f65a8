"""Bugs of transactions to plant into the real code; see `bugs`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from odradek.coordination.led_shards import LedShards
from odradek.log.partition.producers import ProducerStates
from odradek.log.partition.transactions import Transactions
from odradek.log.records.batch import CONTROL, Header
from odradek.protocol.errors import ErrorCode
from odradek.transaction import decisions, markers
from odradek.transaction.coordinator import TransactionCoordinator
from odradek.transaction.markers import EndedTransaction
from odradek.transaction.shard import TransactionShard
from odradek.transaction.states import PREPARED, TransactionState
from odradek.transaction.transaction import Transaction, TransactionEntry

_write = TransactionCoordinator._write


async def _mark_at_once(
    self: TransactionCoordinator,
    shard: TransactionShard,
    entry: TransactionEntry,
    following: Transaction,
) -> ErrorCode:
    """Have markers written before the outcome is durable."""
    if following.state in PREPARED:
        ended = EndedTransaction(
            following.transactional_id,
            following.producer_id,
            following.epoch,
            shard.coordinator_epoch,
            following.state is TransactionState.PREPARE_COMMIT,
        )
        self._shards.spawn(self._marked(shard, ended, following.partitions))
    return await _write(self, shard, entry, following)


async def _answer_at_once(
    self: TransactionCoordinator, shard: TransactionShard, entry: TransactionEntry, found: Any
) -> decisions.Answer:
    """Answer before the decision is durable."""
    if isinstance(found, decisions.Answer):
        return found
    entry.begin(found.following)
    shard.entries[entry.transactional_id] = entry
    self._shards.spawn(self._write(shard, entry, found.following))
    answer: decisions.Answer = found.answer
    return answer


async def _trust_what_was_read(self: TransactionCoordinator, shard: TransactionShard) -> None:
    """Act upon what the log has, also where no other replica has it."""
    shard.confirmed = True
    for entry in [*shard.entries.values()]:
        if entry.current is not None and entry.current.state in PREPARED:
            self._shards.spawn(self._finish(shard, entry))


def _guess(self: LedShards[Any], shard: Any) -> None:
    """Take a record for lost if the outcome of its write is unknown."""
    for entry in [*shard.entries.values()]:
        if entry.pending is not None:
            entry.give_up()
            if entry.current is None:
                del shard.entries[entry.transactional_id]


def _take_any_marker(self: ProducerStates, header: Header, marker: Any) -> None:
    """Take markers of former coordinators."""


_check = ProducerStates.check


def _check_no_epoch_of_markers(self: ProducerStates, header: Header, origin: Any) -> Any:
    """Take markers of any producer epoch."""
    return None if header.attributes & CONTROL else _check(self, header, origin)


def _end_at_once(self: Transactions, producer_id: int, last_offset: int) -> None:
    """Take a transaction for decided before its marker is replicated."""
    del self._open[producer_id]
    self._changed()


def _keep_the_epoch(current: Transaction, now_ms: int) -> Transaction:
    """Abort a transaction without a newer epoch: its producer may go on to write."""
    return replace(current, state=TransactionState.PREPARE_ABORT, updated_ms=now_ms)


def _end_of_any(entry: TransactionEntry, producer: Any) -> Any:
    """Let a fenced producer change its successor's transaction."""
    if entry.current is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return ErrorCode.CONCURRENT_TRANSACTIONS if entry.pending is not None else entry.current


TRANSACTION_BUGS: dict[str, list[tuple[object, str, Any]]] = {
    "writes markers before the outcome is durable": [
        (TransactionCoordinator, "_write", _mark_at_once)
    ],
    "answers before the outcome is durable": [
        (TransactionCoordinator, "_carried_out", _answer_at_once)
    ],
    "coordinates what is not committed": [
        (TransactionCoordinator, "_confirm", _trust_what_was_read)
    ],
    "guesses the outcome of a write": [(LedShards, "reload", _guess)],
    "takes markers of former coordinators": [(ProducerStates, "check_marker", _take_any_marker)],
    "takes markers of any producer epoch": [(ProducerStates, "check", _check_no_epoch_of_markers)],
    "takes a lost marker for written": [
        (markers, "_DONE", (*markers._DONE, ErrorCode.NETWORK_EXCEPTION))
    ],
    "shows what is decided before the marker is replicated": [(Transactions, "end", _end_at_once)],
    "aborts without fencing": [(decisions, "_fenced", _keep_the_epoch)],
    "lets a fenced producer end a transaction": [(decisions, "_current", _end_of_any)],
}
