"""The transitions of a transactional id: the legal ones, one at a time, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek.transaction.states import (
    ALLOWED_PREVIOUS,
    IllegalTransactionTransitionError,
    TransactionState,
    check_transition,
)
from odradek.transaction.transaction import ProducerIdAndEpoch, Transaction, TransactionEntry
from odradek.values import TopicPartition

S = TransactionState
ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
EMPTY = Transaction("id", 1000, 3, 60_000, S.EMPTY, frozenset(), -1, 10)
ONGOING = replace(EMPTY, state=S.ONGOING, partitions=frozenset({ONE}), start_ms=20, updated_ms=20)

# As in the classes of kafka.coordinator.transaction (validPreviousStates).
LEGAL = {
    (S.EMPTY, S.EMPTY),
    (S.COMPLETE_COMMIT, S.EMPTY),
    (S.COMPLETE_ABORT, S.EMPTY),
    (S.EMPTY, S.ONGOING),
    (S.ONGOING, S.ONGOING),
    (S.COMPLETE_COMMIT, S.ONGOING),
    (S.COMPLETE_ABORT, S.ONGOING),
    (S.ONGOING, S.PREPARE_COMMIT),
    (S.ONGOING, S.PREPARE_ABORT),
    (S.PREPARE_EPOCH_FENCE, S.PREPARE_ABORT),
    (S.PREPARE_COMMIT, S.COMPLETE_COMMIT),
    (S.PREPARE_ABORT, S.COMPLETE_ABORT),
    (S.EMPTY, S.DEAD),
    (S.COMPLETE_COMMIT, S.DEAD),
    (S.COMPLETE_ABORT, S.DEAD),
    (S.ONGOING, S.PREPARE_EPOCH_FENCE),
}


def test_table_has_a_row_for_each_state() -> None:
    assert set(ALLOWED_PREVIOUS) == set(S)


@pytest.mark.parametrize("following", S)
@pytest.mark.parametrize("previous", S)
def test_transition_is_legal_as_in_kafka(previous: S, following: S) -> None:
    if (previous, following) in LEGAL:
        check_transition(previous, following)
    else:
        with pytest.raises(IllegalTransactionTransitionError, match=f"{previous} -> {following}"):
            check_transition(previous, following)


def test_states_have_kafkas_numbers_and_names() -> None:
    assert [f"{int(state)} {state}" for state in S] == [
        "0 Empty",
        "1 Ongoing",
        "2 PrepareCommit",
        "3 PrepareAbort",
        "4 CompleteCommit",
        "5 CompleteAbort",
        "6 Dead",
        "7 PrepareEpochFence",
    ]


def test_pending_state_becomes_current_when_it_is_settled() -> None:
    entry = TransactionEntry("id", EMPTY)
    entry.begin(ONGOING)
    assert (entry.current, entry.pending) == (EMPTY, ONGOING)
    entry.settle()
    assert (entry.current, entry.pending) == (ONGOING, None)


def test_given_up_transition_leaves_nothing() -> None:
    entry = TransactionEntry("id", EMPTY)
    entry.begin(ONGOING)
    entry.give_up()
    assert (entry.current, entry.pending) == (EMPTY, None)
    entry.begin(ONGOING)


def test_id_is_unknown_until_its_first_record_is_settled_and_after_its_tombstone() -> None:
    entry = TransactionEntry("id")
    first = replace(EMPTY, epoch=0)
    entry.begin(first)
    assert entry.current is None
    entry.settle()
    assert entry.current == first
    entry.begin(replace(first, state=S.DEAD))
    assert entry.current == first
    entry.settle()
    assert entry.current is None


def test_two_transitions_at_a_time_are_a_programmers_error() -> None:
    entry = TransactionEntry("id", EMPTY)
    entry.begin(ONGOING)
    with pytest.raises(AssertionError, match="two transitions"):
        entry.begin(ONGOING)


def test_nothing_can_be_settled_or_given_up_when_nothing_is_pending() -> None:
    entry = TransactionEntry("id", EMPTY)
    with pytest.raises(AssertionError, match="nothing is pending"):
        entry.settle()
    with pytest.raises(AssertionError, match="nothing is pending"):
        entry.give_up()


PREPARED = replace(ONGOING, state=S.PREPARE_COMMIT)


@pytest.mark.parametrize(
    ("current", "following"),
    [
        pytest.param(EMPTY, replace(EMPTY, transactional_id="other"), id="another id"),
        pytest.param(EMPTY, PREPARED, id="state not in the table"),
        pytest.param(EMPTY, replace(EMPTY, epoch=2), id="epoch falls"),
        pytest.param(EMPTY, replace(EMPTY, epoch=5), id="epoch is left out"),
        pytest.param(EMPTY, replace(EMPTY, producer_id=7), id="new producer id not from 0"),
        pytest.param(EMPTY, replace(ONGOING, producer_id=7, epoch=0), id="new id is not Empty"),
        pytest.param(EMPTY, replace(EMPTY, start_ms=5), id="Empty has started"),
        pytest.param(EMPTY, replace(EMPTY, partitions=frozenset({ONE})), id="Empty has partitions"),
        pytest.param(ONGOING, replace(ONGOING, partitions=frozenset({OTHER})), id="one is lost"),
        pytest.param(ONGOING, replace(PREPARED, partitions=frozenset()), id="end without them"),
        pytest.param(PREPARED, replace(PREPARED, state=S.COMPLETE_COMMIT), id="complete with them"),
        pytest.param(
            EMPTY, replace(ONGOING, last=ProducerIdAndEpoch(1000, 2)), id="last while it writes"
        ),
        pytest.param(None, replace(EMPTY, epoch=1), id="first epoch is not 0"),
        pytest.param(None, replace(ONGOING, epoch=0), id="first state is not Empty"),
        pytest.param(None, replace(EMPTY, epoch=0, state=S.DEAD), id="unknown id dies"),
    ],
)
def test_illegal_transition_is_a_programmers_error(
    current: Transaction | None, following: Transaction
) -> None:
    entry = TransactionEntry("id", current)
    with pytest.raises(AssertionError):
        entry.begin(following)
    assert entry.pending is None
