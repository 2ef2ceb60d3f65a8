"""What was observed during a run: values only, no connection, no clock.

Times are monotonic nanoseconds of the one process that runs every client. An acknowledgement holds
from its arrival; a send without one is in doubt and promises nothing. `write` saves a run as JSON
lines, so that a verdict can be examined afterwards.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

UNKNOWN = -1


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A record that a producer was told is committed at `offset`; `number` is its send order.

    The offset is UNKNOWN where the client learned of the commit from the answer to a later batch.
    """

    producer: str
    number: int
    place: Place
    offset: int
    sent_ns: int
    acknowledged_ns: int

    @property
    def value(self) -> str:
        """Return the record's value, unique over the run."""
        return value_of(self.producer, self.number)


@dataclass(frozen=True, slots=True)
class Read:
    """A record that a consumer received, in the order of its reads."""

    reader: str
    place: Place
    offset: int
    value: str


@dataclass(frozen=True, slots=True)
class Commit:
    """A group's offset that was committed, or read back, between two moments."""

    place: Place
    offset: int
    began_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class State:
    """A partition's state znode at one sample."""

    place: Place
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    controller_epoch: int


@dataclass(frozen=True, slots=True)
class Image:
    """The segments of one replica, joined, after its broker was stopped."""

    broker: int
    place: Place
    data: bytes


@dataclass(slots=True)
class History:
    """Everything that one run observed; filled by the load, read by the checker."""

    acknowledged: list[Acknowledged] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    # Producers with several requests in flight: see `checker.duplicated`.
    pipelined: frozenset[str] = frozenset()
    reads: list[Read] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    committed_seen: list[Commit] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    controller_epochs: list[int] = field(default_factory=list)
    # The last read of every partition, from its start to its high watermark.
    final: dict[Place, list[tuple[int, str]]] = field(default_factory=dict)
    high_watermarks: dict[Place, int] = field(default_factory=dict)
    images: list[Image] = field(default_factory=list)
    client_failures: list[str] = field(default_factory=list)


def value_of(producer: str, number: int) -> str:
    """Return the value that a producer gives its record of that number."""
    return f"{producer}:{number}"


def write(history: History, path: Path) -> None:
    """Write everything but the images, one JSON object per line, in the order of the fields."""
    with path.open("w") as out:
        for name in ("acknowledged", "reads", "commits", "committed_seen", "states"):
            for one in getattr(history, name):
                out.write(json.dumps({"is": name, **dataclasses.asdict(one)}) + "\n")
        for epoch in history.controller_epochs:
            out.write(json.dumps({"is": "controller_epoch", "epoch": epoch}) + "\n")
        for place, records in history.final.items():
            for offset, value in records:
                line = {"is": "final", "place": place, "offset": offset, "value": value}
                out.write(json.dumps(line) + "\n")
