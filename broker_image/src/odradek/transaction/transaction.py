"""What the coordinator knows of one transactional id: its durable state, and the next one.

`Transaction` is one record of `__transaction_state`. `TransactionEntry` has the current one, and
the one whose record is being written. What was decided counts once its record is durable, so at
most one transition is pending at a time. Kafka remembers the epoch of an abort whose record could
not be written. Here such an epoch is only in `pending`, and gone with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from odradek.transaction.states import PREPARED, TransactionState, check_transition
from odradek.values import TopicPartition

NO_PARTITIONS: frozenset[TopicPartition] = frozenset()
NOT_STARTED_MS = -1


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partitions of each topic, both in order.

    50 000 take 40 ms of the event loop; to sort them as pairs takes 100.
    """
    found: dict[str, list[int]] = {}
    for topic, index in partitions:
        if topic in found:
            found[topic].append(index)
        else:
            found[topic] = [index]
    return {topic: sorted(found[topic]) for topic in sorted(found)}


class ProducerIdAndEpoch(NamedTuple):
    """A producer as it names itself."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """The state of one transactional id, as of one record. Times are of the wall clock."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    start_ms: int
    """When the first partition was added; -1 in Empty."""
    updated_ms: int
    last: ProducerIdAndEpoch | None = None
    """The producer that asked for this epoch by name (KIP-360), until it adds a partition.

    If it asks again, it did not get the answer. In memory only.
    """

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """Return the producer that may write now."""
        return ProducerIdAndEpoch(self.producer_id, self.epoch)


class TransactionEntry:
    """One transactional id at its coordinator. All fields are None while the id is unknown.

    Invariants: `pending` may follow `current`. The epoch of a producer id never falls; a new
    producer id starts at 0. A transaction keeps its partitions until its markers are written.
    """

    __slots__ = ("current", "pending", "transactional_id", "unmarked")

    def __init__(self, transactional_id: str, current: Transaction | None = None) -> None:
        """Start with what the log has of the id, None: nothing."""
        self.transactional_id = transactional_id
        self.current = current
        self.pending: Transaction | None = None
        """What is being written; stays after an unknown outcome, until the log is read again."""
        self.unmarked: set[TopicPartition] | None = None
        """The partitions that have no marker yet, while markers are sent."""

    def begin(self, following: Transaction) -> None:
        """Note that the record of `following` is being written."""
        assert self.pending is None, f"{self.transactional_id}: two transitions at a time"
        assert following.transactional_id == self.transactional_id
        self._check(following)
        self.pending = following

    def settle(self) -> None:
        """Make the pending state current: its record is durable. After Dead the id is unknown."""
        assert self.pending is not None, f"{self.transactional_id}: nothing is pending"
        self.current = None if self.pending.state is TransactionState.DEAD else self.pending
        self.pending = None
        self.unmarked = None

    def give_up(self) -> None:
        """Drop the pending state: its record is certainly not in the log, and never will be."""
        assert self.pending is not None, f"{self.transactional_id}: nothing is pending"
        self.pending = None

    def _check(self, following: Transaction) -> None:
        current = self.current
        if current is None or following.producer_id != current.producer_id:
            assert following.state is TransactionState.EMPTY
            assert following.epoch == 0
        if following.state is TransactionState.EMPTY:
            assert following.start_ms == NOT_STARTED_MS
        else:
            assert following.last is None
        if current is None:
            return
        check_transition(current.state, following.state)
        if following.producer_id == current.producer_id:
            assert following.epoch - current.epoch in (0, 1)
        if following.state is TransactionState.ONGOING:
            assert following.partitions >= current.partitions
        elif following.state in PREPARED:
            assert following.partitions == current.partitions
        else:
            assert not following.partitions
