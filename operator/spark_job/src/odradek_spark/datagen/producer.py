"""Writes generated records to a topic, at a rate."""

import json
import shlex
import time
from collections.abc import Callable, Iterable
from random import Random

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from odradek_spark.broker_access import BrokerAccess
from odradek_spark.client_errors import Refusals, starting_threads
from odradek_spark.datagen.quickstarts import Record

_METADATA_TIMEOUT_S = 10.0
# The first request for a topic may create it, if the brokers are set to; it then gets its leaders.
_CREATION_PATIENCE_S = 10.0
_WHILE_CREATED = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)
_GONE = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
_RETRY_PAUSE_S = 0.2
_FLUSH_TIMEOUT_S = 60.0
# What librdkafka takes is a number of milliseconds, an int of C.
_LONGEST_POLL_S = 3600.0


class DatagenError(Exception):
    """The records could not be written; one line for the user."""


Pause = Callable[[], float]


def steady(rate: float) -> Pause:
    """Return pauses of 1/rate seconds."""
    return lambda: 1 / rate


def at_random(max_interval_ms: int) -> Pause:
    """Return pauses of up to so many milliseconds, as ksql-datagen makes them."""
    random = Random()  # noqa: S311 - not the records' own, which a seed repeats
    return lambda: random.uniform(0, max_interval_ms / 1000)


class RecordWriter:
    """Writes to one topic; `delivered` counts what the brokers have acknowledged."""

    def __init__(self, access: BrokerAccess, topic: str, key: str) -> None:
        """Raise DatagenError if no broker answers, or the topic is not there and not created, and
        Python's error if no thread can be started.
        """
        self.delivered = 0
        self._topic = topic
        self._key = key
        self._failure: KafkaError | None = None
        self._refusals = Refusals()
        with starting_threads():
            self._producer = Producer(
                {
                    **access.client_settings(),
                    "client.id": "odradek-datagen",
                    "enable.idempotence": True,
                    "linger.ms": 20,
                    "log_level": 0,
                    "error_cb": self._refusals,
                }
            )
        self._await_topic(access.bootstrap)

    def _await_topic(self, bootstrap: str) -> None:
        until = time.monotonic() + _CREATION_PATIENCE_S
        while True:
            try:
                found = self._producer.list_topics(self._topic, timeout=_METADATA_TIMEOUT_S)
            except KafkaException as error:
                self._producer.poll(0)
                why = self._refusals.text()
                raise DatagenError(f"no broker answers at {bootstrap}{why}") from error
            problem = found.topics[self._topic].error
            if problem is None:
                return
            if problem.code() not in _WHILE_CREATED or time.monotonic() > until:
                if problem.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    arguments = shlex.join((self._topic, "--bootstrap-server", bootstrap))
                    raise DatagenError(
                        f"topic {self._topic} does not exist, and the brokers do not create it "
                        f"by themselves; create it with: odradek topics create {arguments}"
                    )
                raise DatagenError(f"topic {self._topic} cannot be used: {problem.str()}")
            time.sleep(_RETRY_PAUSE_S)

    def write(self, records: Iterable[Record], pause: Pause | None) -> None:
        """Write the records, each after its pause. Raises DatagenError if one is refused."""
        due = time.monotonic()
        for record in records:
            if pause is not None:
                due = max(due + pause(), time.monotonic() - 1)
                self._wait_until(due)
            self._produce(record)
        self.finish()

    def finish(self) -> None:
        """Wait until all is acknowledged. Raises DatagenError."""
        waiting = self._producer.flush(_FLUSH_TIMEOUT_S)
        self._check()
        if waiting:
            raise DatagenError(f"{waiting} records are not acknowledged")

    def _wait_until(self, due: float) -> None:
        while (rest := due - time.monotonic()) > 0:
            self._producer.poll(min(rest, _LONGEST_POLL_S))

    def _produce(self, record: Record) -> None:
        value = json.dumps(record)
        while True:
            self._check()
            try:
                self._producer.produce(
                    self._topic, value, str(record[self._key]), on_delivery=self._told
                )
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                # The client knows, without asking, that the topic is gone, or gave up.
                self._failure = self._failure or error.args[0]
                self._check()
            else:
                self._producer.poll(0)
                return

    def _told(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.delivered += 1
        elif self._failure is None:
            self._failure = error

    def _check(self) -> None:
        if self._failure is None:
            return
        if self._failure.code() in _GONE:
            raise DatagenError(
                f"topic {self._topic} does not exist any more: {self.delivered} records were "
                "written before"
            )
        raise DatagenError(f"topic {self._topic} refuses records: {self._failure.str()}")
