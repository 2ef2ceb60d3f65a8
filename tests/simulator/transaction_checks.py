"""The invariants of transactions, checked while readers of committed records read and at the end.

A transaction is visible to them as a whole or not at all. It is visible if its producer was told
so, and hidden unless its producer asked for that. What a reader was told of an offset once is so
for ever.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from odradek.values import TopicPartition
from tests.simulator.checks import Checks

HIDDEN = None


@dataclass(slots=True)
class SentTransaction:
    """What a producer sent in one transaction, and what it knows of the outcome."""

    name: str
    producer: str
    values: dict[TopicPartition, list[str]] = field(default_factory=lambda: defaultdict(list))
    may_be_committed: bool = False
    """Whether the producer asked for that, and was not told that it failed."""
    is_committed: bool = False
    """Whether the producer was told so."""

    def next_value(self, key: TopicPartition) -> str:
        """Return a new value to send to a partition."""
        value = f"{self.name}/{key.partition}/{len(self.values[key])}"
        self.values[key].append(value)
        return value


class TransactionChecks:
    """Checks what producers with transactions and readers of committed records report."""

    def __init__(self, checks: Checks) -> None:
        self.transactions: list[SentTransaction] = []
        self.ids: set[str] = set()
        """The transactional ids that a coordinator knows for certain."""
        self._checks = checks
        self._of_value: dict[str, SentTransaction] = {}
        self._decided: dict[TopicPartition, dict[int, str | None]] = defaultdict(dict)
        # The newest leader epoch, the highest last stable offset, and the highest high watermark.
        self._decided_below: dict[TopicPartition, tuple[int, int, int]] = defaultdict(
            lambda: (-1, 0, 0)
        )
        # The last stable offset and the high watermark by leader.
        self._told: dict[tuple[TopicPartition, int, object], tuple[int, int]] = defaultdict(
            lambda: (0, 0)
        )

    def begin(self, name: str, producer: str) -> SentTransaction:
        """Note a transaction that begins."""
        begun = SentTransaction(name, producer)
        self.transactions.append(begun)
        return begun

    def send(self, sent: SentTransaction, key: TopicPartition) -> str:
        """Return a new value that the transaction sends to a partition."""
        value = sent.next_value(key)
        self._of_value[value] = sent
        return value

    def settled(self, key: TopicPartition, offset: int, value: str | None, who: str) -> None:
        """Check what a reader of committed records is given at an offset, None if it is hidden."""
        known = self._decided[key].setdefault(offset, value)
        if known != value:
            self._checks.fail(f"{key}@{offset} was {known}, and is {value} to {who}")
        sent = self._of_value.get(value or "")
        if sent is not None and not sent.may_be_committed:
            self._checks.fail(f"{value} at {key}@{offset} is visible, and was not committed")

    def told(self, key: TopicPartition, epoch: int, leader: int, stable: int, mark: int) -> None:
        """Check that neither offset falls that a leader tells the reader of a partition.

        The high watermark of a new leader may begin lower. Once it is as high, all is decided that
        was decided.
        """
        if stable > mark:
            self._checks.fail(f"{key}: last stable offset {stable} above high watermark {mark}")
        life = key, epoch, self._checks.brokers[leader].process
        told = self._told[life]
        if stable < told[0] or mark < told[1]:
            self._checks.fail(
                f"last stable offset and high watermark of {key} fell from {told} to "
                f"{(stable, mark)} in epoch {epoch}"
            )
        self._told[life] = stable, mark
        epoch_then, decided, mark_then = self._decided_below[key]
        if epoch < epoch_then:
            return  # a former leader does not know
        if stable < decided and mark >= mark_then:
            self._checks.fail(
                f"{key} was decided below {decided} in epoch {epoch_then}, and is below {stable} "
                f"in epoch {epoch}"
            )
        self._decided_below[key] = epoch, max(decided, stable), max(mark_then, mark)

    def check_end(self) -> None:
        """Check that each transaction is visible wholly or not at all, and in order."""
        visible = {
            key: [one for _, one in sorted(decided.items()) if one is not HIDDEN]
            for key, decided in self._decided.items()
        }
        shown = {value for values in visible.values() for value in values}
        for sent in self.transactions:
            values = [one for some in sent.values.values() for one in some]
            missing = [one for one in values if one not in shown]
            if sent.is_committed and missing:
                self._checks.fail(f"transaction {sent.name} is committed, and lacks {missing}")
            elif sent.may_be_committed and missing and len(missing) < len(values):
                self._checks.fail(f"transaction {sent.name} is half visible, and lacks {missing}")
        for key, values in visible.items():
            self._check_order(key, values)

    def _check_order(self, key: TopicPartition, values: list[str]) -> None:
        """Check that the values of each producer are in the order in which it sent them."""
        at = {value: number for number, value in enumerate(values)}
        last: dict[str, int] = defaultdict(lambda: -1)
        for sent in self.transactions:
            for value in sent.values.get(key, ()):
                if value in at:
                    if at[value] < last[sent.producer]:
                        self._checks.fail(f"{value} is out of order in {key}")
                    last[sent.producer] = at[value]
