"""A sound producer that runs beside the fuzzer and must not notice it."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Mapping

import confluent_kafka

from tests.chaos.history import Place
from tests.chaos.load import read_to_end
from tests.support.clients import QUIET

RECORDS_PER_SECOND = 60
DELIVERY_S = 600
SHORT_GAP_S = 0.2


class SteadyProducer:
    """An idempotent producer with acks=all in a thread of its own; a context manager.

    `settings` say who it is, where brokers want to know, and where it goes then.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._settings = {"bootstrap.servers": bootstrap, **(settings or {})}
        self._places = [Place(topic, number) for number in range(partitions)]
        self._acknowledged: dict[Place, list[tuple[int, str]]] = defaultdict(list)
        # When each partition last acknowledged a record, by the time that this thread had.
        self._latest_s: dict[Place, float] = {}
        # When each gap worth mentioning ended, and how long it was.
        self._gaps_s: list[tuple[float, float]] = []
        self._turn_began_s = 0.0
        self._starved_s = 0.0
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> SteadyProducer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def acknowledged(self) -> int:
        """Return how many records were acknowledged."""
        return sum(map(len, self._acknowledged.values()))

    def longest_gap_s(self, since_s: float = 0.0) -> float:
        """Return the longest time between two acknowledgements of one partition, of those that
        ended after a moment; 0 for short ones.
        """
        return max((gap for ended, gap in self._gaps_s if ended >= since_s), default=0.0)

    @property
    def in_motion(self) -> bool:
        """Return whether every partition has acknowledged something."""
        return len(self._latest_s) == len(self._places)

    def _run(self) -> None:
        producer = confluent_kafka.Producer(
            {
                **self._settings,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": DELIVERY_S * 1000,
                **QUIET,
            }
        )
        number = 0
        while not self._stop.is_set():
            self._turn_began_s = time.monotonic()
            place = self._places[number % len(self._places)]
            answered = functools.partial(self._answered, place, str(number))
            producer.produce(
                place.topic, str(number), partition=place.partition, on_delivery=answered
            )
            number += 1
            producer.poll(1 / RECORDS_PER_SECOND)
            self._starved_s = self._starved_until(time.monotonic())
        left = producer.flush(DELIVERY_S)
        if left:
            self.failures.append(f"{left} records without an answer")

    def _starved_until(self, now_s: float) -> float:
        """Return how long this thread did not get to run: answers that came meanwhile came in time.

        The fuzzer works in the same process.
        """
        return self._starved_s + max(0.0, now_s - self._turn_began_s - 2 / RECORDS_PER_SECOND)

    def _answered(
        self, place: Place, value: str, error: object, message: confluent_kafka.Message
    ) -> None:
        now = time.monotonic()
        offset = message.offset()
        if error is not None or offset is None:
            self.failures.append(f"{value} at {place}: {error}")
            return
        self._acknowledged[place].append((offset, value))
        attentive = now - self._starved_until(now)
        gap = attentive - self._latest_s.get(place, attentive)
        if gap > SHORT_GAP_S:
            self._gaps_s.append((now, gap))
        self._latest_s[place] = attentive

    def differences(self) -> Mapping[Place, str]:
        """Return the partitions that hold anything else than what was acknowledged, once ended."""
        found = read_to_end(self._bootstrap, self._places)
        return {
            place: f"{len(held)} records, {len(self._acknowledged[place])} acknowledged, "
            f"first of {sorted({*held} ^ {*self._acknowledged[place]})[:5]}"
            for place, held in found.items()
            if held != sorted(self._acknowledged[place])
        }
