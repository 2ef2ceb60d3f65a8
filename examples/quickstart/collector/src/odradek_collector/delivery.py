"""Delivery at least once: only offsets of lines that the brokers have are remembered.

Lines go to librdkafka in the order of their file, and acknowledgements come back in any order. A
`Ledger` holds the lines of one file that are under way; its `delivered` offset is the end of the
longest run of acknowledged lines. The state file on the volume holds those offsets. What is sent
but not acknowledged when the collector dies is sent again.

The queue of librdkafka is the only buffer and has a bound: when it is full, reading stops.
"""

import json
import logging
import os
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from odradek_collector.lines import Event
from odradek_collector.tail import Position

log = logging.getLogger(__name__)

_QUEUE_MESSAGES = 10_000
_QUEUE_KBYTES = 32 * 1024
_FULL_QUEUE_WAIT_S = 0.5

# Sending the same line again would end the same way; everything else is tried again.
_HOPELESS = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD)


class DeliveryError(RuntimeError):
    """The producer cannot go on; a new process can, from the state file."""


@dataclass(slots=True)
class _Pending:
    end: int
    done: bool = False


class Ledger:
    """Lines of one file that are under way, in the file's order."""

    def __init__(self, delivered: int) -> None:
        self.delivered = delivered
        self._pending: deque[_Pending] = deque()

    def add(self, end: int) -> _Pending:
        """Note that the line that ends at `end` is sent."""
        entry = _Pending(end)
        self._pending.append(entry)
        return entry

    def settle(self, entry: _Pending) -> None:
        """Note that a line needs no more sending."""
        entry.done = True
        while self._pending and self._pending[0].done:
            self.delivered = self._pending.popleft().end

    @property
    def idle(self) -> bool:
        """Tell whether nothing is under way."""
        return not self._pending


@dataclass(slots=True)
class State:
    """What the volume remembers. `offsets` is the last acknowledged offset of each partition."""

    acknowledged: int = 0
    offsets: dict[int, int] = field(default_factory=dict)
    files: dict[str, Position] = field(default_factory=dict)

    def counts(self) -> dict[str, object]:
        """Return what a reader of the topic can be compared with."""
        offsets = {str(partition): offset for partition, offset in sorted(self.offsets.items())}
        return {"acknowledged": self.acknowledged, "offsets": offsets}


def load_state(path: Path) -> State:
    """Read the state file, if there is one. Raises ValueError where it is broken."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return State(
            acknowledged=int(document["acknowledged"]),
            offsets={int(key): int(value) for key, value in document["offsets"].items()},
            files={name: Position(**fields) for name, fields in document["files"].items()},
        )
    except FileNotFoundError:
        return State()
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a collector's state: {error!r}") from error


def save_state(path: Path, state: State) -> None:
    """Replace the state file in one step, durably."""
    files = {name: asdict(position) for name, position in state.files.items()}
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({**state.counts(), "files": files}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def producer_settings(bootstrap: str, *, idempotence: bool) -> dict[str, str | int | float | bool]:
    """Return librdkafka's settings. A line is tried until it is acknowledged, for ever."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "odradek-collector",
        "acks": "all",
        "enable.idempotence": idempotence,
        # Without idempotence only one request in flight keeps a component's lines in order.
        "max.in.flight.requests.per.connection": 5 if idempotence else 1,
        "message.timeout.ms": 0,
        "linger.ms": 50,
        "compression.type": "none",
        "queue.buffering.max.messages": _QUEUE_MESSAGES,
        "queue.buffering.max.kbytes": _QUEUE_KBYTES,
        "reconnect.backoff.max.ms": 2000,
    }


class Sender:
    """Sends events to one topic and settles them in their ledgers. Used by one thread.

    `dropped` counts lines that no broker would ever take.
    """

    def __init__(self, producer: Producer, topic: str, state: State) -> None:
        self._producer = producer
        self._topic = topic
        self._state = state
        self._again: deque[tuple[Event, Ledger, _Pending]] = deque()
        self._fatal: str | None = None
        self.dropped = 0

    def send(self, event: Event, ledger: Ledger, end: int) -> None:
        """Send the line that ends at `end` of the ledger's file. Waits while the queue is full."""
        self._produce(event, ledger, ledger.add(end))

    def serve(self, timeout_s: float) -> None:
        """Handle acknowledgements, and send again what failed. Raises DeliveryError."""
        self._producer.poll(timeout_s)
        if self._fatal is not None:
            raise DeliveryError(self._fatal)
        for _ in range(len(self._again)):
            self._produce(*self._again.popleft())

    def flush(self, timeout_s: float) -> int:
        """Wait for acknowledgements; returns how many lines are still under way."""
        return int(self._producer.flush(timeout_s)) + len(self._again)

    def _produce(self, event: Event, ledger: Ledger, entry: _Pending) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            self._on_delivery(error, message, event, ledger, entry)

        while True:
            try:
                self._producer.produce(
                    self._topic, value=event.value(), key=event.key(), on_delivery=delivered
                )
                return
            except BufferError:
                self._producer.poll(_FULL_QUEUE_WAIT_S)
                if self._fatal is not None:
                    raise DeliveryError(self._fatal) from None

    def _on_delivery(
        self,
        error: KafkaError | None,
        message: Message,
        event: Event,
        ledger: Ledger,
        entry: _Pending,
    ) -> None:
        if error is None:
            partition, offset = message.partition(), message.offset()
            if partition is not None and offset is not None:
                self._state.offsets[partition] = max(offset, self._state.offsets.get(partition, -1))
            self._state.acknowledged += 1
            ledger.settle(entry)
        elif error.fatal():
            self._fatal = error.str()
        elif error.code() in _HOPELESS:
            log.warning("a line of %s is dropped: %s", event.origin.component, error.str())
            self.dropped += 1
            ledger.settle(entry)
        else:
            if not self._again:
                log.warning("not delivered, sent again: %s", error.str())
            self._again.append((event, ledger, entry))
