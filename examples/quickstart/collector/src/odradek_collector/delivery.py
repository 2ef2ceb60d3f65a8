"""Sends lines at least once: only positions of acknowledged lines are stored.

Lines go to librdkafka in the order of their file, and acknowledgements arrive in any order. A
`Ledger` has the unacknowledged lines of one file; its `delivered` offset is the end of the longest
run of acknowledged lines. The state file on the volume has those offsets. A restarted collector
resends lines that were sent but not acknowledged.

The queue of librdkafka is the only buffer, and it is bounded: when it is full, reading stops.
"""

import json
import logging
import os
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from odradek_collector.lines import LogEvent
from odradek_collector.tail import Position

log = logging.getLogger(__name__)

_QUEUE_MESSAGES = 10_000
_QUEUE_KBYTES = 32 * 1024
_FULL_QUEUE_WAIT_S = 0.5

# Errors that a retry would not cure; all others are retried.
_PERMANENT = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD)


class DeliveryError(RuntimeError):
    """The producer failed for good; a new process can continue from the state file."""


@dataclass(slots=True)
class _Pending:
    end: int
    done: bool = False


class Ledger:
    """The unacknowledged lines of one file, in the file's order."""

    def __init__(self, delivered: int) -> None:
        self.delivered = delivered
        self._pending: deque[_Pending] = deque()

    def add(self, end: int) -> _Pending:
        """Add a line that was sent and ends at `end`."""
        entry = _Pending(end)
        self._pending.append(entry)
        return entry

    def settle(self, entry: _Pending) -> None:
        """Settle a line that was acknowledged or dropped."""
        entry.done = True
        while self._pending and self._pending[0].done:
            self.delivered = self._pending.popleft().end

    @property
    def idle(self) -> bool:
        """Whether all lines are settled."""
        return not self._pending


@dataclass(slots=True)
class CollectorState:
    """The collector's state on the volume. `offsets` is the last acknowledged one per partition."""

    acknowledged: int = 0
    offsets: dict[int, int] = field(default_factory=dict)
    files: dict[str, Position] = field(default_factory=dict)

    def counts(self) -> dict[str, object]:
        """Return the numbers to compare with what a consumer of the topic read."""
        offsets = {str(partition): offset for partition, offset in sorted(self.offsets.items())}
        return {"acknowledged": self.acknowledged, "offsets": offsets}


def load_state(path: Path) -> CollectorState:
    """Return the stored state, empty if there is none. Raises ValueError if it is unreadable."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return CollectorState(
            acknowledged=int(document["acknowledged"]),
            offsets={int(key): int(value) for key, value in document["offsets"].items()},
            files={name: Position(**fields) for name, fields in document["files"].items()},
        )
    except FileNotFoundError:
        return CollectorState()
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a collector's state file: {error!r}") from error


def save_state(path: Path, state: CollectorState) -> None:
    """Replace the state file, atomically and durably."""
    files = {name: asdict(position) for name, position in state.files.items()}
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({**state.counts(), "files": files}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


@dataclass(frozen=True, slots=True)
class Login:
    """Who the collector is to brokers, and whom it trusts (PEM)."""

    username: str
    password: str = field(repr=False)
    authority: str


def read_login(folder: Path, username: str) -> Login:
    """Return the login whose `password` and `ca.crt` are in a folder.

    Raises ValueError, which names the file, if one is missing or empty.
    """
    found = []
    for name in ("password", "ca.crt"):
        try:
            text = (folder / name).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"cannot read {folder / name}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{folder / name} is not UTF-8 text") from error
        if not text.strip():
            raise ValueError(f"{folder / name} is empty")
        found.append(text)
    return Login(username, *found)


def producer_settings(
    bootstrap: str, login: Login | None, *, idempotence: bool
) -> dict[str, str | int | float | bool]:
    """Return librdkafka's settings. Sending a line is retried forever."""
    secured = {} if login is None else _secured(login)
    return {
        **secured,
        "bootstrap.servers": bootstrap,
        "client.id": "odradek-collector",
        "acks": "all",
        "enable.idempotence": idempotence,
        # Without idempotence, one request in flight keeps a component's lines in order.
        "max.in.flight.requests.per.connection": 5 if idempotence else 1,
        "message.timeout.ms": 0,
        "linger.ms": 50,
        "compression.type": "none",
        "queue.buffering.max.messages": _QUEUE_MESSAGES,
        "queue.buffering.max.kbytes": _QUEUE_KBYTES,
        "reconnect.backoff.max.ms": 2000,
    }


def _secured(login: Login) -> dict[str, str | int | float | bool]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": login.username,
        "sasl.password": login.password,
        "ssl.ca.pem": login.authority,
    }


class EventSender:
    """Sends events to one topic and settles them in their ledgers. Used by one thread.

    `dropped` counts lines that the brokers rejected as invalid.
    """

    def __init__(self, producer: Producer, topic: str, state: CollectorState) -> None:
        self._producer = producer
        self._topic = topic
        self._state = state
        self._resend: deque[tuple[LogEvent, Ledger, _Pending]] = deque()
        self._fatal: str | None = None
        self.dropped = 0

    def send(self, event: LogEvent, ledger: Ledger, end: int) -> None:
        """Send the line that ends at `end` of the ledger's file. Blocks while the queue is full."""
        self._produce(event, ledger, ledger.add(end))

    def serve(self, timeout_s: float) -> None:
        """Handle acknowledgements, and resend failed lines. Raises DeliveryError."""
        self._producer.poll(timeout_s)
        if self._fatal is not None:
            raise DeliveryError(self._fatal)
        for _ in range(len(self._resend)):
            self._produce(*self._resend.popleft())

    def flush(self, timeout_s: float) -> int:
        """Wait for acknowledgements, and return the number of unacknowledged lines."""
        return int(self._producer.flush(timeout_s)) + len(self._resend)

    def _produce(self, event: LogEvent, ledger: Ledger, entry: _Pending) -> None:
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
        event: LogEvent,
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
        elif error.code() in _PERMANENT:
            log.warning("dropped a line of %s: %s", event.origin.component, error.str())
            self.dropped += 1
            ledger.settle(entry)
        else:
            if not self._resend:
                log.warning("failed to deliver lines: %s; retrying", error.str())
            self._resend.append((event, ledger, entry))
