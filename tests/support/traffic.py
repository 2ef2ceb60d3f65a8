"""A producer and a consumer that run while a test changes the cluster."""

from __future__ import annotations

import threading
from collections import Counter

from confluent_kafka import Consumer, Producer

from tests.support.broker import Cluster, wait_until


class Traffic:
    """A producer with acks=all and a consumer of one topic, which run until `end`."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.topic = topic
        self.acknowledged: list[bytes] = []
        self.refused: list[str] = []
        self.read: Counter[bytes] = Counter()
        self._bootstrap = cluster.bootstrap
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
                "bootstrap.servers": self._bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        number = 0
        while not self._enough_written.wait(0.005):
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
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"readers-of-{self.topic}",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        consumer.subscribe([self.topic])
        while not self._enough_read.is_set():
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    self.read[message.value() or b""] += 1
        consumer.close()

    def end(self) -> None:
        """Stop the producer, and check that every record is read exactly once."""
        self._enough_written.set()
        self._producer.join(150)
        assert not self._producer.is_alive()
        assert not self.refused
        assert len(self.acknowledged) > 50
        wait_until(lambda: all(self.read[one] for one in self.acknowledged), "all records are read")
        assert {self.read[one] for one in self.acknowledged} == {1}
