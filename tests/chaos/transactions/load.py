"""The clients of a run with transactions, each in a thread of its own.

Writers spread transactions over all partitions of the sources; they commit, abort, pause for longer
than their timeout, and are replaced by a second instance of their id. Copiers are a group that
copies one source in transactions. A reader of committed records reads everything from the start,
and another consumer asks for last stable offsets.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition

from tests.chaos.history import Place, Read
from tests.chaos.load import offset_and_value, place_of
from tests.chaos.transactions.history import (
    Ends,
    History,
    Outcome,
    StableOffset,
    copy_of,
    original_of,
)
from tests.chaos.transactions.producing import Instance
from tests.support.clients import QUIET

COPIERS = 2
GROUP = "copiers"
LONGEST_TRANSACTION_MS = 60_000
SAMPLE_SECONDS = 0.3
ASK_SECONDS = 5
RECORDS, PARTITIONS = 8, 4
PAUSE_SECONDS = 0.1
FLUSHES = 0.1


@dataclass(frozen=True, slots=True)
class Habits:
    """How a writer behaves: the chance per transaction of each event."""

    timeout_ms: int
    aborts: float = 0.2
    sleeps: float = 0
    replaced: float = 0


WRITERS = {
    "steady": Habits(LONGEST_TRANSACTION_MS),
    "hasty": Habits(10_000, aborts=0.1),
    "sleepy": Habits(3000, sleeps=0.1),
    "rivals": Habits(10_000, replaced=0.1),
}


class Load:
    """Every client of a run; a context manager that starts them and ends them in order."""

    def __init__(
        self, bootstrap: str, places: Sequence[Place], history: History, seed: int
    ) -> None:
        self._bootstrap = bootstrap
        self._places = places
        self._targets = [place for place in places if place.topic != history.copy]
        self._history = history
        self._stop_writing = threading.Event()
        self._stop_copying = threading.Event()
        self._stop = threading.Event()
        # Per transactional id, when the latest transaction began whose commit is acknowledged.
        self._latest_ns: dict[str, int] = {}
        self._latest: dict[str, Instance] = {}
        self._copied: set[str] = set()
        self._to_copy: set[str] = set()
        self._writers = [
            threading.Thread(
                target=self._write, args=(name, habits, random.Random(f"{seed}{name}"))
            )
            for name, habits in WRITERS.items()
        ]
        self._copiers = [
            threading.Thread(target=self._copy, args=(f"copier-{number}",))
            for number in range(COPIERS)
        ]
        self._others = [
            threading.Thread(target=self._read_all),
            threading.Thread(target=self._sample),
        ]
        self.ids = [*WRITERS, *(f"copier-{number}" for number in range(COPIERS))]

    def __enter__(self) -> Load:
        for thread in (*self._writers, *self._copiers, *self._others):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_writing()
        self.stop_copying()
        self._stop.set()
        for thread in self._others:
            thread.join()

    def stop_writing(self) -> None:
        """End the writers; return when each knows what it can of its transactions."""
        self._stop_writing.set()
        for thread in self._writers:
            thread.join()

    def stop_copying(self) -> None:
        """End the copiers, as `stop_writing`."""
        self._stop_copying.set()
        for thread in self._copiers:
            thread.join()

    def behind(self, moment_ns: int) -> list[str]:
        """Return the producers that committed nothing that was begun after a moment, with the last
        errors that they were told.
        """
        return [
            str(self._latest.get(name, name))
            for name in self.ids
            if self._latest_ns.get(name, 0) <= moment_ns
        ]

    def not_copied(self) -> list[str]:
        """Return the records of the source that the reader has not seen in the copy."""
        return sorted(self._to_copy.copy() - self._copied.copy())

    # --- writers ---

    def _next(
        self, name: str, number: int, timeout_ms: int, stop: threading.Event
    ) -> Instance | None:
        """Return an instance that is ready, with this number or a later one; None: at the end."""
        while not stop.is_set():
            instance = Instance(self._bootstrap, name, number, timeout_ms, self._history)
            self._latest[name] = instance
            if instance.get_ready(stop):
                return instance
            number += 1
        return None

    def _write(self, name: str, habits: Habits, chance: random.Random) -> None:
        instance = self._next(name, 0, habits.timeout_ms, self._stop_writing)
        while instance is not None and not self._stop_writing.wait(
            chance.uniform(0, PAUSE_SECONDS)
        ):
            successor = self._transact(instance, habits, chance)
            if successor is not None:
                instance = successor
            elif not instance.usable:
                instance = self._next(
                    name, instance.number + 1, habits.timeout_ms, self._stop_writing
                )

    def _transact(
        self, instance: Instance, habits: Habits, chance: random.Random
    ) -> Instance | None:
        """Write a transaction; return the instance that replaced the writer meanwhile."""
        began_ns = time.monotonic_ns()
        instance.begin()
        places = chance.sample(self._targets, chance.randint(1, PARTITIONS))
        records = chance.randint(1, RECORDS)
        whole = all(instance.send(chance.choice(places)) for _ in range(records))
        if chance.random() < habits.sleeps:
            self._stop_writing.wait(habits.timeout_ms / 1000 * chance.uniform(0.5, 2))
        commits = whole and chance.random() >= habits.aborts
        if not commits or chance.random() < FLUSHES:
            instance.flush()
        if chance.random() < habits.replaced:
            return self._replace(instance, habits, commits, races=chance.random() < 0.5)
        if instance.end(commits=commits) is Outcome.COMMITTED:
            self._latest_ns[instance.transactional_id] = began_ns
        return None

    def _replace(
        self, instance: Instance, habits: Habits, commits: bool, *, races: bool
    ) -> Instance | None:
        """End a transaction while a second instance becomes ready, or once it is."""
        made: list[Instance | None] = []
        instance.contested = True

        def make() -> None:
            name, number = instance.transactional_id, instance.number + 1
            made.append(self._next(name, number, habits.timeout_ms, self._stop_writing))

        maker = threading.Thread(target=make)
        maker.start()
        if not races:
            maker.join()
        instance.end(commits=commits)
        maker.join()
        return made[0]

    # --- copiers ---

    def _copy(self, name: str) -> None:
        number = 0
        while not self._stop_copying.is_set():
            instance = self._next(name, number, LONGEST_TRANSACTION_MS, self._stop_copying)
            if instance is None:
                return
            number = instance.number + 1
            consumer = self._consumer(
                **{"group.id": GROUP, "auto.offset.reset": "earliest", "client.id": name}
            )
            consumer.subscribe([self._history.source])
            # After a transaction that was not committed, both start anew, at committed offsets.
            while not self._stop_copying.is_set():
                messages = [one for one in consumer.consume(100, 0.3) if one.error() is None]
                if messages and not self._copy_some(instance, consumer, messages):
                    break
            consumer.close()

    def _copy_some(
        self,
        instance: Instance,
        consumer: confluent_kafka.Consumer,
        messages: Sequence[confluent_kafka.Message],
    ) -> bool:
        began_ns = time.monotonic_ns()
        positions: dict[int, int] = {}
        instance.begin()
        whole = True
        for message in messages:
            place, (offset, value) = place_of(message), offset_and_value(message)
            positions[place.partition] = offset + 1
            whole = whole and instance.send(
                Place(self._history.copy, place.partition), copy_of("", value)
            )
        offsets = [TopicPartition(self._history.source, *one) for one in positions.items()]
        whole = whole and instance.send_offsets(offsets, consumer)
        if instance.end(commits=whole) is not Outcome.COMMITTED:
            return False
        self._latest_ns[instance.transactional_id] = began_ns
        return True

    # --- readers ---

    def _consumer(self, **settings: object) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "session.timeout.ms": 10_000,
                "max.poll.interval.ms": 30_000,
                "reconnect.backoff.max.ms": 1000,
                "fetch.wait.max.ms": 300,
                **QUIET,
                **settings,
            }
        )

    def _read_all(self) -> None:
        consumer = self._consumer()
        consumer.assign([TopicPartition(*place, 0) for place in self._places])
        while not self._stop.is_set():
            for message in consumer.consume(500, 0.5):
                self._take(message)
        consumer.close()

    def _take(self, message: confluent_kafka.Message) -> None:
        error = message.error()
        if error is not None:
            if error.code() in (
                confluent_kafka.KafkaError._AUTO_OFFSET_RESET,
                confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE,
            ):
                self._history.client_failures.append(f"the reader: {error}")
            return
        place, (offset, value) = place_of(message), offset_and_value(message)
        self._history.reads.append(Read("reader", place, offset, value))
        if place.topic == self._history.source:
            self._to_copy.add(value)
        elif place.topic == self._history.copy:
            self._copied.add(original_of(value))

    def _sample(self) -> None:
        consumer = self._consumer()
        while not self._stop.wait(SAMPLE_SECONDS):
            for place in self._places:
                began_ns = time.monotonic_ns()
                with contextlib.suppress(KafkaException):
                    offset = end_of(consumer, place)
                    self._history.stable.append(
                        StableOffset(place, offset, began_ns, time.monotonic_ns())
                    )
        consumer.close()


def end_of(consumer: confluent_kafka.Consumer, place: Place) -> int:
    """Return the end of a partition as the consumer's isolation level has it. Raise
    KafkaException.
    """
    found = consumer.get_watermark_offsets(TopicPartition(*place), ASK_SECONDS)
    if found is None:
        raise KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT))
    end: int = found[1]
    return end


def ends(bootstrap: str, places: Sequence[Place]) -> dict[Place, Ends]:
    """Return both ends of each partition. Raise KafkaException."""
    consumers = [
        confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "ends",
                "isolation.level": isolation,
                **QUIET,
            }
        )
        for isolation in ("read_committed", "read_uncommitted")
    ]
    found = {place: Ends(*(end_of(one, place) for one in consumers)) for place in places}
    for one in consumers:
        one.close()
    return found
