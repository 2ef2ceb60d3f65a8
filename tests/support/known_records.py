"""Known records for a windowed job: a steady producer, the job's query, and what it must yield.

Record n is n seconds after the first one, in partition n modulo their number. No more than
IN_FLIGHT records are sent and not acknowledged, so none comes later than the job's watermark
allows, even if its partition has no leader for a while.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import confluent_kafka

from tests.support.clients import settings
from tests.support.job_results import KEYS, Row

FIRST = datetime(2026, 11, 23, tzinfo=UTC)
IN_FLIGHT = 400
DELAY = "30 minutes"
_WINDOW_S = 60
_LATER = timedelta(days=10)
_END_SECONDS = 300

JOB: dict[str, Any] = {
    "startingOffsets": "earliest",
    "trigger": "2s",
    "format": "json",
    "schema": "n long, k int, at timestamp",
    "watermark": {"column": "at", "delay": DELAY},
    "outputMode": "append",
    "sql": """
      select unix_seconds(window(at, '1 minute').start) as start, k, count(*) as lines,
             array_join(cast(sort_array(collect_list(n)) as array<string>), ' ') as numbers
      from records
      group by window(at, '1 minute'), k
    """,
}
"""What a job has of its spec, whatever its sink is."""


def rows_of(count: int) -> list[Row]:
    """Return what the job must yield of the first `count` records, in order."""
    numbers: dict[tuple[int, int], list[int]] = defaultdict(list)
    for n in range(count):
        start = int(FIRST.timestamp()) + n // _WINDOW_S * _WINDOW_S
        numbers[start, n % KEYS].append(n)
    return sorted(
        Row(start, key, len(found), " ".join(map(str, found)))
        for (start, key), found in numbers.items()
    )


class KnownRecords:
    """A thread that produces the records, `per_second` of them after the first ones."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, per_second: float) -> None:
        self._topic = topic
        self._partitions = partitions
        self._pause_s = 1 / per_second
        self._producer = confluent_kafka.Producer(
            {**settings(bootstrap), "acks": "all", "enable.idempotence": True, "linger.ms": 5}
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._errors: list[object] = []
        self._acknowledged = 0
        self.count = 0
        """How many records were sent."""

    def start(self, first: int) -> None:
        """Send `first` records at once, and begin with the steady ones."""
        for _ in range(first):
            self._send_next()
        assert self._producer.flush(_END_SECONDS) == 0
        self._thread.start()

    def stop(self) -> None:
        """Send the rest of the last minute and no more, and wait until all are acknowledged."""
        self._end()
        while self.count % _WINDOW_S:
            self._send_next()
        assert self._producer.flush(_END_SECONDS) == 0
        assert self._errors == []
        assert self._acknowledged == self.count

    def close(self) -> None:
        """End, whatever is sent yet."""
        self._end()
        self._producer.purge()

    def _end(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def close_windows(self) -> None:
        """Send a record that is so much later that all windows close. The job has read the rest."""
        self._send({"n": -1, "k": -1, "at": (FIRST + _LATER).isoformat()}, 0)
        assert self._producer.flush(_END_SECONDS) == 0
        assert self._errors == []

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += self._pause_s
            self._send_next()

    def _send_next(self) -> None:
        while self.count - self._acknowledged >= IN_FLIGHT and not self._stop.is_set():
            self._producer.poll(0.1)
        n = self.count
        at = FIRST + timedelta(seconds=n)
        self._send({"n": n, "k": n % KEYS, "at": at.isoformat()}, n % self._partitions)
        self.count += 1

    def _send(self, value: dict[str, Any], partition: int) -> None:
        self._producer.produce(
            self._topic, json.dumps(value), partition=partition, on_delivery=self._note
        )
        self._producer.poll(0)

    def _note(self, error: object, _: confluent_kafka.Message) -> None:
        if error is None:
            self._acknowledged += 1
        else:
            self._errors.append(error)
