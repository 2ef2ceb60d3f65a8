"""The clients of a run, each in a thread of its own, recording the answers.

Producers are idempotent with acks=all and give every record a unique value; they spread over all
partitions in turn. One consumer is assigned every partition and reads from the start on; two others
share a group, commit after every batch and leave and return by turns. A sampler reads the states
and epochs that ZooKeeper holds. Appending to a list is atomic in CPython, so threads share one
`History`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import confluent_kafka
from confluent_kafka import TopicPartition
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from odradek.zk import znodes
from tests.chaos.history import UNKNOWN, Acknowledged, Commit, History, Place, Read, State, value_of
from tests.support.broker import wait_until
from tests.support.clients import QUIET

GROUP = "chaos"
RECORDS_PER_SECOND = 100
SAMPLE_SECONDS = 0.3
MEMBER_LIFE_SECONDS = 30
DELIVERY_MS = 600_000
# Requests in flight of each producer.
PRODUCERS = {"p0": 1, "p1": 1, "p2": 5}


def place_of(message: confluent_kafka.Message) -> Place:
    """Return the partition of a message that has one."""
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return Place(topic, partition)


def offset_and_value(message: confluent_kafka.Message) -> tuple[int, str]:
    """Return the offset and the text of a message that is no error."""
    offset, value = message.offset(), message.value()
    assert offset is not None
    assert value is not None
    return offset, value.decode()


class Load:
    """Every client of a run; a context manager that starts them and ends them in order."""

    def __init__(
        self, bootstrap: str, places: Sequence[Place], history: History, client: KazooClient
    ) -> None:
        self._bootstrap = bootstrap
        self._places = places
        self._history = history
        history.pipelined = frozenset(name for name, count in PRODUCERS.items() if count > 1)
        self._client = client
        self._stop_sending = threading.Event()
        self._stop = threading.Event()
        # Per partition, when the latest acknowledged record was sent.
        self._latest_sent_ns: dict[Place, int] = {}
        self.failed = Counter[str]()
        self._senders = [
            threading.Thread(target=self._send, args=(name, in_flight))
            for name, in_flight in PRODUCERS.items()
        ]
        self._others = [
            threading.Thread(target=self._read_all),
            threading.Thread(target=self._sample),
            *(threading.Thread(target=self._take_part, args=(number,)) for number in range(2)),
        ]

    def __enter__(self) -> Load:
        for thread in (*self._senders, *self._others):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_sending()
        self._stop.set()
        for thread in self._others:
            thread.join()

    def stop_sending(self) -> None:
        """End the producers; return when each has an answer for everything it sent."""
        self._stop_sending.set()
        for thread in self._senders:
            thread.join()

    def behind(self, moment_ns: int) -> list[Place]:
        """Return the partitions that acknowledged no record that was sent after a moment."""
        return [place for place in self._places if self._latest_sent_ns.get(place, 0) <= moment_ns]

    # --- producers ---

    def _send(self, name: str, in_flight: int) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "client.id": name,
                "acks": "all",
                "enable.idempotence": True,
                "max.in.flight": in_flight,
                "linger.ms": 0,
                "message.timeout.ms": DELIVERY_MS,
                "request.timeout.ms": 10_000,
                "topic.metadata.refresh.interval.ms": 2000,
                "reconnect.backoff.max.ms": 1000,
                "error_cb": lambda error: self._note_error(name, error),
                **QUIET,
            }
        )
        number = 0
        while not self._stop_sending.wait(1 / RECORDS_PER_SECOND):
            if self._send_one(producer, name, number):
                number += 1
                self._history.sent[name] = number
            producer.poll(0)
        left = producer.flush(DELIVERY_MS / 1000)
        if left:
            self._history.client_failures.append(f"{name}: {left} records without an answer")

    def _send_one(self, producer: confluent_kafka.Producer, name: str, number: int) -> bool:
        place = self._places[number % len(self._places)]
        sent_ns = time.monotonic_ns()

        def answered(error: object, message: confluent_kafka.Message) -> None:
            if error is not None:
                self.failed[str(error)] += 1
                return
            now = time.monotonic_ns()
            offset = message.offset()
            at = UNKNOWN if offset is None else offset
            one = Acknowledged(name, number, place, at, sent_ns, now)
            self._history.acknowledged.append(one)
            self._latest_sent_ns[place] = max(self._latest_sent_ns.get(place, 0), sent_ns)

        try:
            producer.produce(
                place.topic, value_of(name, number), partition=place.partition, on_delivery=answered
            )
        except BufferError:
            return False
        return True

    def _note_error(self, name: str, error: confluent_kafka.KafkaError) -> None:
        if error.code() == confluent_kafka.KafkaError._FATAL or error.fatal():
            self._history.client_failures.append(f"{name}: {error}")

    # --- consumers ---

    def _consumer(self, **settings: object) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "session.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 1000,
                "fetch.wait.max.ms": 300,
                **QUIET,
                **settings,
            }
        )

    def _read_all(self) -> None:
        consumer = self._consumer(**{"group.id": "reader"})
        consumer.assign([TopicPartition(*place, 0) for place in self._places])
        while not self._stop.is_set():
            for message in consumer.consume(500, 0.5):
                self._take("reader", message)
        consumer.close()

    def _take(self, reader: str, message: confluent_kafka.Message) -> bool:
        """Record a message, or an error after which this consumer reads at a wrong offset."""
        error = message.error()
        place = Place(message.topic() or "", message.partition() or 0)
        if error is None:
            offset, value = offset_and_value(message)
            self._history.reads.append(Read(reader, place, offset, value))
        elif error.code() in (
            confluent_kafka.KafkaError._AUTO_OFFSET_RESET,
            confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE,
        ):
            self._history.client_failures.append(f"{reader} at {place}: {error}")
        return error is None

    def _take_part(self, number: int) -> None:
        """Join the group again and again; read new records and commit them."""
        life = 0
        while not self._stop.is_set():
            life += 1
            consumer = self._consumer(**{"auto.offset.reset": "earliest"})
            consumer.subscribe(sorted({place.topic for place in self._places}))
            until = time.monotonic() + MEMBER_LIFE_SECONDS * (1 + number / 2)
            while not self._stop.is_set() and time.monotonic() < until:
                messages = [one for one in consumer.consume(500, 0.5) if one.error() is None]
                if messages:
                    self._commit(consumer, messages)
            consumer.close()

    def _commit(
        self, consumer: confluent_kafka.Consumer, messages: Sequence[confluent_kafka.Message]
    ) -> None:
        offsets: dict[Place, int] = {}
        for message in messages:
            place, (offset, _) = place_of(message), offset_and_value(message)
            offsets[place] = max(offsets.get(place, 0), offset + 1)
        wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        began = time.monotonic_ns()
        try:
            done = consumer.commit(offsets=wanted, asynchronous=False)
        except confluent_kafka.KafkaException:
            return  # in doubt: a rebalance came between, or the answer was lost
        ended = time.monotonic_ns()
        for one in done:
            if one.error is None:
                place = Place(one.topic, one.partition)
                self._history.commits.append(Commit(place, one.offset, began, ended))

    # --- samples ---

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            with contextlib.suppress(KazooException, KazooTimeoutError):
                self._history.controller_epochs.append(
                    int(self._client.get(znodes.CONTROLLER_EPOCH_PATH)[0])
                )
                self._history.states.extend(read_states(self._client, self._places))

    def read_committed(self) -> None:
        """Read the group's offsets back, after the cluster has healed.

        Before that, a coordinator that was stopped and does not know of its successor may answer
        with old offsets, as Kafka's does.
        """
        began = time.monotonic_ns()
        wanted = [TopicPartition(*place) for place in self._places]
        onlooker = self._consumer()
        found: list[TopicPartition] = []

        def told() -> bool:
            found[:] = onlooker.committed(wanted, 60)
            return True

        wait_until(told, "the coordinator answers")
        for one in found:
            place = Place(one.topic, one.partition)
            self._history.committed_seen.append(
                Commit(place, max(one.offset, -1), began, time.monotonic_ns())
            )
        onlooker.close()


def read_states(client: KazooClient, places: Sequence[Place]) -> Iterator[State]:
    """Yield the state znode of each partition, with its replicas. Raise KazooException."""
    for place in places:
        path = znodes.state_path(*place)
        state = znodes.decode_state(path, client.get(path)[0])
        replicas = (1, 2, 3)
        yield State(
            place, replicas, state.isr, state.leader, state.leader_epoch, state.controller_epoch
        )


def without_leader(bootstrap: str, places: Sequence[Place]) -> list[Place]:
    """Return the partitions whose leader does not answer as leader yet.

    A load should not begin before: if the first batch of an idempotent producer came too early,
    Apache Kafka takes the second one for the first, and acknowledges both.
    """
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "onlooker", **QUIET}
    )
    missing = []
    for place in places:
        try:
            consumer.get_watermark_offsets(TopicPartition(*place), 30)
        except confluent_kafka.KafkaException:
            missing.append(place)
    consumer.close()
    return missing


def read_to_end(
    bootstrap: str,
    places: Sequence[Place],
    seconds: float = 120,
    isolation: str = "read_committed",
) -> dict[Place, list[tuple[int, str]]]:
    """Return every record of the partitions, from the start to the end for that isolation level."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "final",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(*place, 0) for place in places])
    found: dict[Place, list[tuple[int, str]]] = {place: [] for place in places}
    ended: set[Place] = set()
    until = time.monotonic() + seconds
    while len(ended) < len(places):
        if time.monotonic() > until:
            raise AssertionError(f"the final read did not reach the end of {set(places) - ended}")
        for message in consumer.consume(1000, 0.5):
            place, error = place_of(message), message.error()
            if error is None:
                found[place].append(offset_and_value(message))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(place)
    consumer.close()
    return found
