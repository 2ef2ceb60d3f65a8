"""Where a follower cuts its log (KIP-101, KIP-279; row R5)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.replica import truncation
from odradek.replica.truncation import EpochEnd, Truncation

Entries = list[int]


def test_leader_without_epochs_leaves_what_is_committed() -> None:
    cut = truncation.decide(EpochEnd(-1, -1), EpochEnd(3, 20), 20, 12)
    assert cut == Truncation(12, complete=True)


def test_same_epoch_cuts_to_the_shorter_end() -> None:
    assert truncation.decide(EpochEnd(3, 15), EpochEnd(3, 20), 20, 12).offset == 15
    assert truncation.decide(EpochEnd(3, 25), EpochEnd(3, 20), 20, 12).offset == 20


def test_unknown_epoch_of_the_answer_cuts_later_epochs_and_asks_again() -> None:
    # The leader answers with epoch 2, which this follower never had: its own 1 ends at 8.
    cut = truncation.decide(EpochEnd(2, 15), EpochEnd(1, 8), 20, 5)
    assert cut == Truncation(8, complete=False)


class Replica:
    """A log as the list of the epochs of its records."""

    def __init__(self, epochs: Entries) -> None:
        self.epochs = epochs

    def end_of(self, epoch: int) -> EpochEnd:
        known = [one for one in self.epochs if one <= epoch]
        if not known:
            following = next((i for i, one in enumerate(self.epochs) if one > epoch), None)
            return EpochEnd(-1, -1) if following is None else EpochEnd(epoch, following)
        return EpochEnd(known[-1], len(known))


rising = st.lists(st.integers(0, 6), max_size=12).map(sorted)


@given(rising, rising, rising, st.data())
def test_logs_that_share_history_agree_after_truncation_and_keep_what_is_common(
    shared: Entries, leader_tail: Entries, follower_tail: Entries, data: st.DataObject
) -> None:
    # An epoch has one leader, so two logs may not both have written different records of one epoch.
    split = data.draw(st.sets(st.integers(10, 20), max_size=6))
    tails = [
        [10 + one for one in leader_tail if (10 + one in split)],
        [10 + one for one in follower_tail if (10 + one not in split)],
    ]
    leader, follower = Replica(shared + tails[0]), Replica(shared + tails[1])
    for _ in range(30):
        if not follower.epochs:
            break
        answer = leader.end_of(follower.epochs[-1])
        own = follower.end_of(answer.epoch)
        cut = truncation.decide(answer, own, len(follower.epochs), len(shared))
        follower.epochs = follower.epochs[: cut.offset]
        if cut.complete:
            break
    assert follower.epochs == leader.epochs[: len(follower.epochs)]
    assert len(follower.epochs) >= len(shared)
