"""Where a follower cuts its log (KIP-101, KIP-279; row R5)."""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from odradek.log.partition.epochs import EpochCache
from odradek.replica import truncation
from odradek.replica.truncation import EpochEnd, Truncation


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


class Epochs(EpochCache):
    """The epochs of a log that is on no disk."""

    def __init__(self) -> None:
        super().__init__("nowhere")

    def _write(self) -> None:
        pass


class Replica:
    """A log as the list of the epochs of its records, and what it noted of epochs."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.epochs = Epochs()

    def append(self, records: list[int]) -> None:
        for epoch in records:
            if epoch > self.epochs.latest:
                self.epochs.assign(epoch, len(self.records))
            self.records.append(epoch)

    def lead(self, epoch: int, writes: int) -> None:
        self.epochs.assign(epoch, len(self.records))
        self.append([epoch] * writes)

    def end_of(self, epoch: int) -> EpochEnd:
        return EpochEnd(*self.epochs.end_offset(epoch, len(self.records)))

    def agree(self, leader: Replica) -> None:
        """Cut what the leader has not, with as many questions as there can be epochs."""
        for _ in range(len(self.epochs.entries) + 1):
            if self.epochs.latest == truncation.UNDEFINED:
                return
            answer = leader.end_of(self.epochs.latest)
            cut = truncation.decide(answer, self.end_of(answer.epoch), len(self.records), 0)
            del self.records[cut.offset :]
            self.epochs.truncate_from_end(len(self.records))
            if cut.complete:
                return
        raise AssertionError("asks for ever")


class Reign(NamedTuple):
    """One leader epoch: who leads, what it writes, how much of it each of the others copies."""

    leader: int
    writes: int
    copied: tuple[int | None, ...]  # None: does not even hear of the leader


reigns = st.lists(
    st.builds(
        Reign,
        st.integers(0, 2),
        st.integers(0, 3),
        st.tuples(*[st.none() | st.integers(0, 6)] * 3),
    ),
    max_size=12,
)


@given(reigns)
def test_follower_keeps_what_it_shares_with_the_leader_and_nothing_else(
    history: list[Reign],
) -> None:
    """Also where leaders come that lack what others wrote, and where epochs write nothing."""
    replicas = [Replica(), Replica(), Replica()]
    for epoch, term in enumerate(history):
        leader = replicas[term.leader]
        leader.lead(epoch, term.writes)
        for follower, copied in zip(replicas, term.copied, strict=True):
            if follower is leader or copied is None:
                continue
            pairs = zip(follower.records, leader.records, strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            follower.agree(leader)
            assert follower.records == leader.records[:shared]
            follower.append(leader.records[shared : shared + copied])
            assert follower.epochs.entries == first_offsets(follower.records)


def first_offsets(records: list[int]) -> list[tuple[int, int]]:
    """Each epoch that has records, and where they begin."""
    return [(epoch, records.index(epoch)) for epoch in sorted(set(records))]
