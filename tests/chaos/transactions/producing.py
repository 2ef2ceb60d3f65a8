"""One instance of a transactional producer, and what it knows of each of its transactions.

Every call is repeated while the client says that it may be. An error that asks for an abort gets
one. After a fatal error the instance is of no use any more: its transaction was aborted, unless a
commit had begun that another instance may have interrupted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.chaos.history import Place
from tests.chaos.transactions.history import (
    NEVER,
    Attempt,
    History,
    Outcome,
    Ready,
    Sent,
    value_of,
)
from tests.support.clients import QUIET

CALL_SECONDS = 5
SILENT = logging.getLogger("tests.chaos.transactions.producers")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False
ANSWER_SECONDS = 150
IDLE_MS = 5000
# What a fenced producer is told: by its client, or by a broker.
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
# Brokers, Kafka's too, tell it who aborts a transaction of which they got no partition. librdkafka
# does so where the request that adds the first one was lost, or is to be repeated.
_EXCUSED = (*_FENCED, KafkaError.INVALID_TXN_STATE)


class Instance:
    """Used by one thread; another may make the successor meanwhile."""

    def __init__(
        self, bootstrap: str, transactional_id: str, number: int, timeout_ms: int, history: History
    ) -> None:
        self.usable = True
        # A successor that is being made may fence this one at any time.
        self.contested = False
        self.transactional_id = transactional_id
        self.number = number
        self._history = history
        self._transactions = 0
        self._sent: list[Sent] = []
        self._story: list[str] = []
        self._began_ns = NEVER
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": f"{transactional_id}-{number}",
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 0,
                "request.timeout.ms": 10_000,
                "topic.metadata.refresh.interval.ms": 2000,
                "reconnect.backoff.max.ms": 1000,
                # Without a change of some connection, librdkafka waits for ever for a group's
                # coordinator that went, whatever the timeout (its issues 5456 and 5511).
                "connections.max.idle.ms": IDLE_MS,
                **QUIET,
            },
            # A fenced producer is no news here, and its client tells of it whatever the log level.
            logger=SILENT,
        )

    def __str__(self) -> str:
        said = f": {self._story[-1]}" if self._story else ""
        return f"{self.transactional_id}/{self.number}/{self._transactions}{said}"

    def get_ready(self, stop: threading.Event) -> bool:
        """Fence former instances; return whether that succeeded."""
        while not stop.is_set():
            try:
                self._producer.init_transactions(CALL_SECONDS)
            except KafkaException as failure:
                error = failure.args[0]
                self._story.append(f"init: {error}")
                if not error.retriable():
                    self.usable = False
                    self._note_fatal(error)
                    return False
            else:
                ready = Ready(self.transactional_id, self.number, time.monotonic_ns())
                self._history.ready.append(ready)
                return True
        return False

    def begin(self) -> None:
        """Begin a transaction."""
        self._sent, self._story = [], []
        self._transactions += 1
        self._began_ns = time.monotonic_ns()
        self._producer.begin_transaction()

    def send(self, place: Place, suffix: str = "") -> bool:
        """Send a record to a partition; return whether the transaction can still be committed."""
        value = value_of(self.transactional_id, self.number, self._transactions, len(self._sent))
        try:
            self._producer.produce(place.topic, value + suffix, partition=place.partition)
        except KafkaException as failure:
            self._story.append(f"produce: {failure.args[0]}")
            return False
        self._sent.append(Sent(place, value + suffix))
        self._producer.poll(0)
        return True

    def flush(self) -> None:
        """Wait for the answers to what was sent: an abort withdraws what is still in the client."""
        self._producer.flush(CALL_SECONDS)

    def send_offsets(
        self, positions: Sequence[TopicPartition], consumer: confluent_kafka.Consumer
    ) -> bool:
        """Commit a group's offsets in the transaction; return whether it can still be committed."""
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                metadata = consumer.consumer_group_metadata()
                self._producer.send_offsets_to_transaction(list(positions), metadata, CALL_SECONDS)
            except KafkaException as failure:
                error = failure.args[0]
                self._story.append(f"offsets: {error}")
                if not error.retriable() or time.monotonic() > until:
                    return False
            else:
                return True

    def end(self, *, commits: bool) -> Outcome:
        """Commit or abort; return what is known afterwards."""
        commit_began_ns = time.monotonic_ns() if commits else NEVER
        outcome = self._ended(commits)
        self._history.attempts.append(
            Attempt(
                self.transactional_id,
                self.number,
                self._transactions,
                tuple(self._sent),
                outcome,
                self._began_ns,
                commit_began_ns,
                time.monotonic_ns(),
                "; ".join(dict.fromkeys(self._story)),
            )
        )
        return outcome

    def _ended(self, commits: bool) -> Outcome:
        if commits:
            error = self._repeated("commit", self._producer.commit_transaction)
            if error is None:
                return Outcome.COMMITTED
            if not error.txn_requires_abort():
                return self._ended_by_others(error, commits)
        error = self._repeated("abort", self._producer.abort_transaction)
        if error is None:
            return Outcome.ABORTED
        return self._ended_by_others(error, commits)

    def _repeated(self, what: str, call: Callable[[float], object]) -> KafkaError | None:
        """Call until that succeeds; return the error after which it cannot."""
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                call(CALL_SECONDS)
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                self._story.append(f"{what}: {error}")
                if not error.retriable() or time.monotonic() > until:
                    return error
            else:
                return None

    def _ended_by_others(self, error: KafkaError, commits: bool) -> Outcome:
        self.usable = False
        self._note_fatal(error)
        is_fenced = error.code() in _FENCED and not self.contested
        return Outcome.ABORTED if is_fenced or not commits else Outcome.UNKNOWN

    def _note_fatal(self, error: KafkaError) -> None:
        if error.code() not in _EXCUSED:
            self._history.client_failures.append(f"{self}; {error}")
