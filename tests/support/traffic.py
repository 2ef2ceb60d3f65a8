"""A producer and a consumer that run while a test changes the cluster."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping

from confluent_kafka import Consumer, Producer

from tests.support.broker import Cluster, wait_until

LINES = 1000


class _LastLines(logging.Handler):
    """Keeps the last lines of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=LINES)
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class Traffic:
    """A producer with acks=all and a consumer of one topic, which run until `end`.

    `settings` say who they are, where brokers want to know.
    """

    def __init__(
        self, cluster: Cluster, topic: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self.topic = topic
        self.acknowledged: list[bytes] = []
        self.refused: list[str] = []
        self.read: Counter[bytes] = Counter()
        self._said: deque[str] = deque(maxlen=20)
        self._log = _LastLines()
        self._settings = {"bootstrap.servers": cluster.bootstrap, **(settings or {})}
        self._enough_written, self._enough_read = threading.Event(), threading.Event()
        self._producer = threading.Thread(target=self._produce, daemon=True)
        self._consumer = threading.Thread(target=self._consume, daemon=True)

    def __enter__(self) -> Traffic:
        self._producer.start()
        self._consumer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough_written.set()
        self._enough_read.set()
        self._consumer.join(120)

    def _produce(self) -> None:
        producer = Producer(
            {
                **self._settings,
                "acks": "all",
                "enable.idempotence": True,
                # With a request per record the clients would compute more than the brokers.
                "linger.ms": 25,
                "log_level": 0,
                "error_cb": lambda error: self._note("producer", error),
            }
        )
        number = 0
        while not self._enough_written.wait(0.01):
            value = b"live %d" % number
            producer.produce(
                self.topic,
                value,
                partition=number % 2,
                on_delivery=lambda error, message: (
                    self.refused.append(str(error))
                    if error
                    else self.acknowledged.append(message.value() or b"")
                ),
            )
            producer.poll(0)
            number += 1
        producer.flush(120)

    def _consume(self) -> None:
        logger = logging.Logger("consumer")
        logger.addHandler(self._log)
        consumer = Consumer(
            {
                **self._settings,
                "group.id": f"readers-of-{self.topic}",
                "auto.offset.reset": "earliest",
                # So many milliseconds, however much there is: it would ask again for each record.
                "fetch.min.bytes": 1_000_000,
                "fetch.wait.max.ms": 100,
                # What a consumer that reads nothing more waits for is in these lines only.
                "debug": "topic,cgrp,fetch",
                "logger": logger,
                "error_cb": lambda error: self._note("consumer", error),
            }
        )
        consumer.subscribe(
            [self.topic],
            on_assign=lambda _consumer, given: self._note("given", given),
            on_revoke=lambda _consumer, taken: self._note("taken", taken),
            on_lost=lambda _consumer, lost: self._note("lost", lost),
        )
        while not self._enough_read.is_set():
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    self.read[message.value() or b""] += 1
                else:
                    self._note("consumer", message.error())
        consumer.close()

    def _note(self, who: str, what: object) -> None:
        self._said.append(f"{time.strftime('%H:%M:%S')} {who}: {what}")

    def await_progress(self, where: str) -> None:
        """Wait until another 100 records are read; what both clients said is in the failure."""
        before, written = len(self.read), len(self.acknowledged)
        try:
            wait_until(lambda: len(self.read) > before + 100, f"records pass {where}")
        except AssertionError as error:
            error.add_note(
                f"since then {len(self.read) - before} were read and "
                f"{len(self.acknowledged) - written} acknowledged; refused: {self.refused[:5]}; "
                f"producer runs: {self._producer.is_alive()}, consumer runs: "
                f"{self._consumer.is_alive()}; they said: {[*self._said]}"
            )
            error.add_note("\n".join(["the consumer's log:", *self._log.lines]))
            raise

    def end(self) -> None:
        """Stop the producer, and check that every record is read exactly once."""
        self._enough_written.set()
        self._producer.join(150)
        assert not self._producer.is_alive()
        assert not self.refused
        assert len(self.acknowledged) > 50
        wait_until(lambda: all(self.read[one] for one in self.acknowledged), "all records are read")
        assert {self.read[one] for one in self.acknowledged} == {1}
