"""Transactions that a test leaves open or decided, while something happens to their coordinator."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.clients import OUTLIVES_BROKERS, settings
from tests.support.transactional_steps import PATIENCE_S

# Nothing of a test takes as long.
TIMEOUT_MS = 600_000
CUT_OFF_S = 30


class TransactionalProducer:
    """A producer, and a group whose offset it commits in its transactions. `partitions` has their
    number for each topic that it writes to.
    """

    def __init__(
        self, bootstrap: str, transactional_id: str, group: str, partitions: Mapping[str, int]
    ) -> None:
        self.transactional_id = transactional_id
        self._partitions = partitions
        self._place = TopicPartition(next(iter(partitions)), 0)
        self._settings = {**settings(bootstrap), **OUTLIVES_BROKERS}
        self._group = group
        self._consumer = self._member()
        self._numbers = itertools.count(1)
        self.written: list[str] = []
        self.committed: list[str] = []
        self.offset = confluent_kafka.OFFSET_INVALID
        self._pending = 0
        self.producer = self.heir()

    def _member(self) -> Consumer:
        return Consumer(
            {**self._settings, "group.id": self._group, "isolation.level": "read_committed"}
        )

    def heir(self) -> Producer:
        """Return a new producer with the same id, which ends what the one before left."""
        producer = Producer(
            {
                **self._settings,
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": TIMEOUT_MS,
            }
        )
        producer.init_transactions(PATIENCE_S)
        return producer

    def renew(self) -> None:
        """Go on with a new producer. Where the group's coordinator was restarted since the last
        commit of its offset, librdkafka 2.16 never sends TxnOffsetCommit again.
        """
        self.producer = self.heir()

    def is_cut_off(self) -> bool:
        """Return whether the client has given up every broker. librdkafka 2.16 does for good when a
        Kafka that has just started names none.
        """
        try:
            self.producer.list_topics(timeout=CUT_OFF_S)
        except confluent_kafka.KafkaException:
            return True
        return False

    def fence(self) -> None:
        """Have a new producer abort what is open; the old one is told so."""
        zombie, self.producer = self.producer, self.heir()
        self.forget()
        with pytest.raises(confluent_kafka.KafkaException) as refusal:
            zombie.commit_transaction(PATIENCE_S)
        assert refusal.value.args[0].name() == "_FENCED"

    def begin(self, *topics: str) -> None:
        """Write to topics, and commit an offset, in a new transaction."""
        self.producer.begin_transaction()
        self.write(*topics)
        self._pending = next(self._numbers)
        place = TopicPartition(self._place.topic, 0, self._pending)
        member = self._consumer.consumer_group_metadata()
        self.producer.send_offsets_to_transaction([place], member, PATIENCE_S)

    def write(self, *topics: str) -> None:
        """Write to every partition of topics, and wait until all is acknowledged."""
        errors: list[object] = []
        places = [(topic, number) for topic in topics for number in range(self._partitions[topic])]
        for topic, partition in places:
            value = f"{self.transactional_id} {next(self._numbers)}"
            self.written.append(value)
            self.producer.produce(
                topic, value, partition=partition, on_delivery=lambda one, _: errors.append(one)
            )
        assert self.producer.flush(PATIENCE_S) == 0
        assert errors == [None] * len(places), self.transactional_id

    def commit(self) -> None:
        """Commit the records and the offset."""
        self.producer.commit_transaction(PATIENCE_S)
        self.committed[:] = self.written
        self.offset = self._pending

    def abort(self) -> None:
        """Abort the transaction."""
        self.producer.abort_transaction(PATIENCE_S)
        self.forget()

    def forget(self) -> None:
        """Expect nothing of the open transaction."""
        self.written[:] = self.committed

    def has_offset(self) -> bool:
        """Return whether the group's offset is that of the last committed transaction.

        A new consumer is asked: an older one may be cut off as its producer (`is_cut_off`).
        """
        consumer = self._member()
        try:
            [found] = consumer.committed([self._place], PATIENCE_S)
        finally:
            consumer.close()
        return found.error is None and found.offset == self.offset
