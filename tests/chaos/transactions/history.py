"""What was observed of transactions during a run: values only, no connection, no clock.

Times are monotonic nanoseconds of the one process that runs every client.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.chaos.history import Image, Place, Read

NEVER = 0
_COPIED = "|"


class Outcome(enum.Enum):
    """What a producer knows of the end of its transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Sent(NamedTuple):
    """A record of a transaction; its value is unique over the run."""

    place: Place
    value: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """A transaction as its producer saw it. `instance` counts the producers of the id."""

    transactional_id: str
    instance: int
    number: int
    sent: tuple[Sent, ...]
    outcome: Outcome
    began_ns: int
    commit_began_ns: int
    ended_ns: int
    story: str

    def __str__(self) -> str:
        story = f" ({self.story})" if self.story else ""
        return (
            f"{self.outcome.value} transaction "
            f"{self.transactional_id}/{self.instance}/{self.number}{story}"
        )


@dataclass(frozen=True, slots=True)
class Ready:
    """The moment at which a producer was told that former ones of its id are fenced."""

    transactional_id: str
    instance: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class StableOffset:
    """A last stable offset that a leader told between two moments."""

    place: Place
    offset: int
    began_ns: int
    ended_ns: int


class Ends(NamedTuple):
    """The last stable offset of a partition, and its high watermark."""

    stable: int
    high_watermark: int


@dataclass(slots=True)
class History:
    """Everything that one run observed; filled by the load, read by the checker.

    Records of `source` are copied to `copy`. Brokers that may not know of their successors answer
    during `stale`.
    """

    source: str
    copy: str
    attempts: list[Attempt] = field(default_factory=list)
    ready: list[Ready] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    stable: list[StableOffset] = field(default_factory=list)
    stale: list[tuple[int, int]] = field(default_factory=list)
    # What readers of committed records, and of all records, are told at last.
    committed: dict[Place, list[tuple[int, str]]] = field(default_factory=dict)
    everything: dict[Place, list[tuple[int, str]]] = field(default_factory=dict)
    ends: dict[Place, Ends] = field(default_factory=dict)
    images: list[Image] = field(default_factory=list)
    client_failures: list[str] = field(default_factory=list)


def value_of(transactional_id: str, instance: int, number: int, index: int) -> str:
    """Return the value of a transaction's record."""
    return f"{transactional_id}/{instance}/{number}/{index}"


def copy_of(value: str, copied: str) -> str:
    """Return the value of a record that is a copy of another."""
    return f"{value}{_COPIED}{copied}"


def original_of(value: str) -> str:
    """Return the value that a copy is of."""
    return value.partition(_COPIED)[2]


def write(history: History, path: Path) -> None:
    """Write everything but the images, one JSON object per line."""
    with path.open("w") as out:
        for line in _lines(history):
            out.write(json.dumps(line, default=lambda one: one.value) + "\n")


def _lines(history: History) -> Iterator[dict[str, object]]:
    for name in ("attempts", "ready", "reads", "stable"):
        for one in getattr(history, name):
            yield {"is": name, **dataclasses.asdict(one)}
    for began_ns, ended_ns in history.stale:
        yield {"is": "stale", "began_ns": began_ns, "ended_ns": ended_ns}
    for name in ("committed", "everything"):
        for place, records in getattr(history, name).items():
            for offset, value in records:
                yield {"is": name, "place": place, "offset": offset, "value": value}
    for place, ends in history.ends.items():
        yield {"is": "ends", "place": place, **ends._asdict()}
