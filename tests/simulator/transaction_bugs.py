"""Bugs of transactions to plant into the real code; see `bugs`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
        self._shards.spawn(self._marked(shard, ended, set(following.partitions)))
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
    "takes a lost marker for written": [
        (markers, "_DONE", (*markers._DONE, ErrorCode.NETWORK_EXCEPTION))
    ],
    "aborts without fencing": [(decisions, "_fenced", _keep_the_epoch)],
    "lets a fenced producer end a transaction": [(decisions, "_current", _end_of_any)],
}
