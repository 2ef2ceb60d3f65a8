"""The states of a transactional id as a table of legal transitions (KIP-98).

Empty: no transaction yet. Ongoing: partitions were added. PrepareCommit and PrepareAbort: the
outcome is durable, its markers are under way. CompleteCommit and CompleteAbort: every partition
has its marker. Dead: the id has expired; its record is a tombstone. PrepareEpochFence is Kafka's
step, in memory only, between an Ongoing transaction and its abort with a newer epoch. Here both
are one step.
"""

from __future__ import annotations

from enum import IntEnum


class TransactionState(IntEnum):
    """A transactional id's state; the value is Kafka's number for it in `__transaction_state`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    def __str__(self) -> str:
        """Return Kafka's name for it, such as PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))


_S = TransactionState
ALLOWED_PREVIOUS: dict[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.EMPTY, _S.ONGOING, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: frozenset({_S.ONGOING, _S.PREPARE_EPOCH_FENCE}),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}
PREPARED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
"""The outcome is decided; markers are under way."""
IDLE = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""There is no transaction; the id can expire."""


class IllegalTransactionTransitionError(AssertionError):
    """A transition that the table does not have: a programmer's error."""


def check_transition(previous: TransactionState, following: TransactionState) -> None:
    """Raise IllegalTransactionTransitionError unless `following` may come after `previous`."""
    if previous not in ALLOWED_PREVIOUS[following]:
        raise IllegalTransactionTransitionError(f"{previous} -> {following}")
