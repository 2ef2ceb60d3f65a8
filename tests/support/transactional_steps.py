"""What an application does with transactions, through any client that Python has.

The programs of tests/peers do the same in Java, Go and JavaScript. The outcome must be the same,
but for the names of errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tests.support.broker import wait_until

PARTITIONS = 2
SOURCE_RECORDS = 6
# Longer than a busy machine needs from the first record to the last acknowledgement of it.
LATE_TIMEOUT_MS = 5000
PATIENCE_S = 120

Outcome = dict[str, Any]
Offsets = Mapping[int, int]


class Producer(Protocol):
    """A producer that has initialized its transactions, if it has an id."""

    def begin(self) -> None: ...
    def send(self, topic: str, values: Mapping[str, int]) -> None:
        """Send values to their partitions, and wait until they are acknowledged."""

    def send_offsets(self, consumer: Any, topic: str, offsets: Offsets) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Consumer(Protocol):
    """A consumer of all partitions of a topic, from their start."""

    def poll(self) -> list[str]: ...
    def committed(self) -> Offsets:
        """Return the group's offsets, -1 where there is none."""

    def close(self) -> None: ...


class Client(Protocol):
    """What a library has; `error_name` is what an application sees of a refusal."""

    def producer(self, transactional_id: str | None, timeout_ms: int = 60_000) -> Producer: ...
    def consumer(self, topic: str, partitions: int, isolation: str, group: str) -> Consumer: ...
    def error_name(self, error: Exception) -> str: ...


def transact(client: Client, prefix: str) -> Outcome:
    """Do everything with topics that exist, and return what the application saw.

    Every producer and consumer is closed, also after a failure: the threads that some leave
    behind would disturb the tests that come next.
    """
    outcome: Outcome = {}
    with contextlib.ExitStack() as opened:

        def opened_producer(transactional_id: str | None, timeout_ms: int = 60_000) -> Producer:
            producer = client.producer(transactional_id, timeout_ms)
            return opened.enter_context(contextlib.closing(producer))

        # Its time runs while everything else is done.
        late = opened_producer(f"{prefix}-late", LATE_TIMEOUT_MS)
        late.begin()
        late.send(f"{prefix}-late", {"late": 0})

        _end_transactions(client, prefix)
        for isolation in ("read_committed", "read_uncommitted"):
            found = _read(client, f"{prefix}-ends", PARTITIONS, isolation, {"end 0", "end 1"})
            outcome[isolation] = sorted(found)
        for when, offsets in zip(("before", "after"), _copy(client, prefix), strict=True):
            outcome[when] = {str(partition): offset for partition, offset in offsets.items()}

        zombie = opened_producer(f"{prefix}-fenced")
        zombie.begin()
        zombie.send(f"{prefix}-fenced", {"zombie": 0})
        heir = opened_producer(f"{prefix}-fenced")
        heir.begin()
        heir.send(f"{prefix}-fenced", {"heir": 0})
        heir.commit()
        outcome["fenced"] = _refusal(client, zombie.commit)

        plain = opened_producer(None)
        plain.send(f"{prefix}-late", {"after": 0})
        outcome["late_read"] = _read(client, f"{prefix}-late", 1, "read_committed", {"after"})
        outcome["late"] = _refusal(client, late.commit)
    return outcome


def _end_transactions(client: Client, prefix: str) -> None:
    with contextlib.closing(client.producer(f"{prefix}-ends")) as producer:
        for name, count, end in (
            ("committed", 4, producer.commit),
            ("aborted", 4, producer.abort),
            ("end", PARTITIONS, producer.commit),
        ):
            producer.begin()
            values = {f"{name} {number}": number % PARTITIONS for number in range(count)}
            producer.send(f"{prefix}-ends", values)
            end()


def _read(client: Client, topic: str, partitions: int, isolation: str, last: set[str]) -> list[str]:
    """Return what is in a topic up to its last values."""
    found: list[str] = []
    with contextlib.closing(client.consumer(topic, partitions, isolation, "")) as consumer:

        def is_at_the_end() -> bool:
            found.extend(consumer.poll())
            return last <= {*found}

        wait_until(is_at_the_end, f"{last} read with {isolation}", PATIENCE_S)
    return found


def _copy(client: Client, prefix: str) -> tuple[Offsets, Offsets]:
    """Consume, transform and produce; return the offsets after an abort, and after a commit."""
    source, target, group = (f"{prefix}-{part}" for part in ("source", "copies", "group"))
    found: list[str] = []
    with (
        contextlib.closing(
            client.consumer(source, PARTITIONS, "read_committed", group)
        ) as consumer,
        contextlib.closing(client.producer(f"{prefix}-copy")) as producer,
    ):

        def is_read() -> bool:
            found.extend(consumer.poll())
            return len(found) == SOURCE_RECORDS

        wait_until(is_read, "the source is read", PATIENCE_S)
        places = {value: int(value.split()[-1]) % PARTITIONS for value in found}
        ends = dict.fromkeys(range(PARTITIONS), SOURCE_RECORDS // PARTITIONS)
        producer.begin()
        producer.send(target, {f"no copy of {value}": place for value, place in places.items()})
        producer.send_offsets(consumer, source, ends)
        producer.abort()
        producer.begin()
        # Acknowledged only after the end of the one before.
        producer.send(target, {f"copy of {value}": place for value, place in places.items()})
        before = consumer.committed()
        producer.send_offsets(consumer, source, ends)
        producer.commit()
        wait_until(lambda: -1 not in consumer.committed().values(), "offsets", PATIENCE_S)
        return before, consumer.committed()


def _refusal(client: Client, call: Callable[[], None]) -> str:
    try:
        call()
    except Exception as error:  # each library has classes of its own
        return client.error_name(error)
    return ""
