"""Random histories of producers with one transactional id, in which the core must stay safe."""

from __future__ import annotations

from collections import Counter

from odradek.transaction.decisions import LAST_EPOCH
from odradek.transaction.states import TransactionState
from tests.support.sampling import how_many
from tests.transaction.history import History

HISTORIES = how_many(2000, full=100_000)
STEPS = 150


def test_histories_keep_every_promise() -> None:
    states: Counter[TransactionState] = Counter()
    commits = aborts = fenced = exhausted = 0
    for seed in range(HISTORIES):
        history = History(seed)
        try:
            history.run(STEPS)
        except AssertionError as error:
            error.add_note(f"in the history of seed {seed}")
            raise
        states += history.coordinator.states
        exhausted += any(epoch >= LAST_EPOCH for epoch in history.coordinator.newest.values())
        for producer in history.producers:
            commits += sum(producer.told.values())
            aborts += len(producer.told) - sum(producer.told.values())
            fenced += producer.is_fenced
    # What the promises are about did happen.
    assert set(states) == set(TransactionState) - {TransactionState.PREPARE_EPOCH_FENCE}
    assert min(commits, aborts, fenced, exhausted, *states.values()) > HISTORIES / 100
    assert commits > HISTORIES / 2
