"""Which producers may begin a transaction in a partition: those of which the coordinator says that
the partition is in their ongoing transaction (KIP-890).

A late batch, of a transaction that has ended, must not open one that nobody ends. So the first
batch of a transaction is not appended before the coordinator was asked. The log says that by
`VerificationNeededError`, and takes the batch once its `Verification` is `verified`. That holds
until the transaction begins or a marker ends it, and in the leader epoch in which it was asked for
only; what is read again after a truncation has none. So nothing that the coordinator said of one
transaction counts for a later one, however late the answer comes. Kafka's VerificationGuard does
the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek.log.records.batch import Header
from odradek.protocol.errors import ErrorCode, KafkaError

_HALF_OF_SEQUENCES: Final = 2**30
_SEQUENCES: Final = 2**31
_MOST_EPOCHS: Final = 5
"""Epochs of one producer that are known: clients make up as many as they like."""


@dataclass(slots=True, eq=False)
class Verification:
    """What is known of the next transaction of a producer in one partition.

    `ended` is set by a marker: batches that waited until then are late. Who asks the coordinator
    sets `verified` or `refused`, which has no effect where the log has forgotten the verification.
    """

    producer_id: int
    epoch: int
    leader_epoch: int
    lowest_sequence: int
    verified: bool = False
    refused: bool = False
    ended: bool = False
    # Whether it was there at the last round of expiry.
    is_old: bool = False


class VerificationNeededError(Exception):
    """A batch may be appended once the coordinator has said that its transaction is ongoing."""

    def __init__(self, verification: Verification) -> None:
        super().__init__(f"producer {verification.producer_id}")
        self.verification = verification


class Verifications:
    """The verifications of one partition, by producer id and epoch.

    One writer at a time. Of more than `most` producers, and of many epochs of one, the oldest are
    forgotten: who waits asks again.
    """

    __slots__ = ("_most", "_of_producer")

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_producer: dict[int, dict[int, Verification]] = {}

    def require(self, header: Header, leader_epoch: int, *, is_first: bool) -> None:
        """Return if the batch may begin a transaction.

        Raises VerificationNeededError if the coordinator is to be asked, and, if the batch
        `is_first` of its producer here, so that its sequence shows no gap, KafkaError
        OUT_OF_ORDER_SEQUENCE_NUMBER for one that overtook another: that one may come again.
        """
        producer_id, epoch, sequence = (
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
        )
        known = self._of_producer.get(producer_id, {}).get(epoch)
        if known is None or known.refused:
            known = self._add(Verification(producer_id, epoch, leader_epoch, sequence))
        elif known.leader_epoch != leader_epoch:
            lowest = known.lowest_sequence
            known = self._add(Verification(producer_id, epoch, leader_epoch, lowest))
        if _is_before(sequence, known.lowest_sequence):
            known.lowest_sequence = sequence
        elif is_first and sequence != known.lowest_sequence:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} sent sequence {sequence}, and {known.lowest_sequence} "
                "before",
            )
        if not known.verified:
            raise VerificationNeededError(known)

    def _add(self, verification: Verification) -> Verification:
        of_producer = self._of_producer.get(verification.producer_id)
        if of_producer is None:
            while len(self._of_producer) >= self._most:
                del self._of_producer[next(iter(self._of_producer))]
            of_producer = self._of_producer[verification.producer_id] = {}
        elif verification.epoch not in of_producer and len(of_producer) >= _MOST_EPOCHS:
            del of_producer[next(iter(of_producer))]
        of_producer[verification.epoch] = verification
        return verification

    def begin(self, producer_id: int) -> None:
        """Forget a producer whose transaction has begun."""
        self._of_producer.pop(producer_id, None)

    def end(self, producer_id: int) -> None:
        """Note a marker: what was not appended before it is late."""
        for one in self._of_producer.pop(producer_id, {}).values():
            one.ended = True

    def expire(self) -> None:
        """Forget those that were there at the last call: nobody came again."""
        for producer_id, of_producer in [*self._of_producer.items()]:
            for epoch, one in [*of_producer.items()]:
                if one.is_old or one.refused:
                    del of_producer[epoch]
                one.is_old = True
            if not of_producer:
                del self._of_producer[producer_id]

    def clear(self) -> None:
        """Forget everything."""
        self._of_producer.clear()


def _is_before(sequence: int, other: int) -> bool:
    """Return whether a sequence comes before another; they wrap."""
    return 0 < (other - sequence) % _SEQUENCES < _HALF_OF_SEQUENCES
