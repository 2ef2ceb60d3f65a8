"""All that a schedule with transactions has beside the others."""

from __future__ import annotations

from collections import Counter

from odradek.transaction.states import IDLE, TransactionState
from odradek.values import TRANSACTIONS_TOPIC, TopicPartition
from tests.simulator.checks import Checks
from tests.simulator.clients import Clients
from tests.simulator.committed_readers import CommittedReaders
from tests.simulator.transaction_checks import TransactionChecks
from tests.simulator.transactional_clients import TransactionalClients
from tests.simulator.world import World

STATE_PARTITIONS = 2


class Transactions:
    """Producers with transactions, and readers of committed records."""

    def __init__(
        self, world: World, clients: Clients, checks: Checks, keys: list[TopicPartition], ids: int
    ) -> None:
        self._keys = keys
        self._ids = ids
        self._clients = clients
        self._brokers = checks.brokers
        self._checks = TransactionChecks(checks)
        self._producers = TransactionalClients(
            world, clients, checks, self._checks, keys, STATE_PARTITIONS
        )
        self._readers = CommittedReaders(world, clients, checks, self._checks)

    @property
    def are_there(self) -> bool:
        """Return whether the schedule has any."""
        return self._ids > 0

    @property
    def state_keys(self) -> list[TopicPartition]:
        """Return the partitions of the coordinators' topic."""
        partitions = STATE_PARTITIONS if self.are_there else 0
        return [TopicPartition(TRANSACTIONS_TOPIC, number) for number in range(partitions)]

    def start(self) -> None:
        """Start producers and readers, if there are any; the topics exist."""
        if self.are_there:
            self._readers.start(self._keys)
            self._producers.start(self._ids)

    @property
    def all_ended(self) -> bool:
        """Return whether no transaction is left: with producers, coordinators, or in partitions."""
        if not self.are_there:
            return True
        found = self._coordinated()
        return (
            not self._producers.running
            and found.keys() <= IDLE
            and found.total() >= len(self._checks.ids)
            and all(
                position == self._clients.positions[key]
                for key, position in self._readers.positions.items()
            )
        )

    def _coordinated(self) -> Counter[TransactionState]:
        """Return how many transactional ids are in each state at their coordinators."""
        found: Counter[TransactionState] = Counter()
        for broker in self._brokers.values():
            if broker.registered:
                found += broker.transactions.count_by_state()
        return found

    def situation(self) -> str:
        """Return what a trace says of a schedule that does not come to its end."""
        if not self.are_there:
            return "no transactions"
        return (
            f"committed records read to {self._readers.positions}, "
            f"{self._producers.running} producers with transactions, "
            f"coordinated: {dict(self._coordinated())}"
        )

    def check_end(self) -> None:
        """Check that each transaction is visible wholly or not at all."""
        self._checks.check_end()
