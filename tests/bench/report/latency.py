"""End-to-end latency at a fixed rate, by librdkafka, from `produce()` to the consumer's `poll()`.

    python -m tests.bench.report.latency BOOTSTRAP TOPIC RECORDS

This is the consumer: it prints "ready" once it reads, and then the percentiles in milliseconds as
JSON. The producer is the process that started it; both read the machine's monotonic clock.
"""

from __future__ import annotations

import gc
import json
import struct
import subprocess
import sys
import time
from typing import Final

import confluent_kafka

from tests.support.clients import settings

RECORD_BYTES: Final = 10_000
PERCENTILES: Final = (50.0, 99.0, 99.9)
LIMIT_SECONDS: Final = 60.0
# Of the beginning, while connections and JVMs warm up, nothing is counted.
WARM_UP_SHARE: Final = 0.25
_STAMP: Final = struct.Struct(">d")
_PADDING: Final = b"v" * (RECORD_BYTES - _STAMP.size)


def measure(
    bootstrap: str, topic: str, megabytes_per_second: int, seconds: float
) -> dict[float, float]:
    """Write records at a rate; return the latencies' `PERCENTILES` in milliseconds.

    One of them is left out if a single record would decide it.
    """
    per_second = megabytes_per_second * 1_000_000 // RECORD_BYTES
    count = int(per_second * seconds)
    line = [sys.executable, "-m", "tests.bench.report.latency", bootstrap, topic, str(count)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as consumer:
        assert consumer.stdout is not None
        try:
            assert consumer.stdout.readline() == "ready\n"
            _write(bootstrap, topic, count, per_second)
            said = json.loads(consumer.stdout.readline())
        except BaseException:
            consumer.kill()
            raise
    counted = count * (1 - WARM_UP_SHARE)
    return {
        percentile: float(value)
        for percentile, value in zip(PERCENTILES, said, strict=True)
        if counted * (100 - percentile) / 100 >= 2
    }


def _write(bootstrap: str, topic: str, count: int, per_second: int) -> None:
    producer = confluent_kafka.Producer({**settings(bootstrap), "acks": "all", "linger.ms": 1})
    producer.list_topics(topic, timeout=LIMIT_SECONDS)
    began = time.monotonic()
    for number in range(count):
        due = began + number / per_second
        while (wait := due - time.monotonic()) > 0:
            # What is due within a millisecond goes out together, as from any busy producer.
            time.sleep(max(wait, 0.001))
        producer.produce(topic, _STAMP.pack(time.monotonic()) + _PADDING, partition=0)
        producer.poll(0)
    assert producer.flush(LIMIT_SECONDS) == 0


def _read(bootstrap: str, topic: str, count: int) -> list[float]:
    consumer = confluent_kafka.Consumer(
        {**settings(bootstrap), "group.id": "latency", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    # The fetch of an empty partition is under way once nothing came for a moment.
    consumer.poll(1)
    print("ready", flush=True)
    found: list[float] = []
    until = time.monotonic() + LIMIT_SECONDS
    while len(found) < count:
        message = consumer.poll(1)
        if message is None:
            assert time.monotonic() < until, f"{len(found)} of {count} records"
            continue
        assert message.error() is None, message.error()
        value = message.value()
        assert isinstance(value, bytes)
        found.append(time.monotonic() - _STAMP.unpack_from(value)[0])
    consumer.close()
    return found


def percentiles(latencies: list[float]) -> list[float]:
    """Return `PERCENTILES` of latencies in seconds, in milliseconds."""
    counted = sorted(latencies[int(len(latencies) * WARM_UP_SHARE) :])
    return [
        counted[min(len(counted) - 1, int(len(counted) * one / 100))] * 1000 for one in PERCENTILES
    ]


if __name__ == "__main__":
    gc.disable()
    print(json.dumps(percentiles(_read(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
