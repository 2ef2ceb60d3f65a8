"""The schedule of faults that follows from a seed."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

from tests.simulator.zookeeper import SESSION_S

REPLICAS = 3
MOVING = 0.3
CALM_S = 1.5
DURABLE = 0.25


class Kind(enum.Enum):
    """The kinds of faults."""

    KILL = "kill"
    KILL_TWO = "kill two"
    KILL_ALL = "kill all"
    POWER = "power failure"
    PAUSE = "stop"
    CUT_ZOOKEEPER = "cut from ZooKeeper"
    CUT_PEER = "cut from a peer"
    ZOOKEEPER_DOWN = "ZooKeeper is down"
    WEATHER = "bad network"
    DEPOSE = "controller deposed by hand"
    REASSIGN = "partition moves"
    NO_FILES = "out of file descriptors"
    NO_SPACE = "disk full"
    TOPIC_ID = "topic id dropped or replaced by a tool"


SHARES = {
    Kind.KILL: 5,
    Kind.KILL_TWO: 2,
    Kind.KILL_ALL: 1,
    Kind.POWER: 1,
    Kind.PAUSE: 5,
    Kind.CUT_ZOOKEEPER: 3,
    Kind.CUT_PEER: 3,
    Kind.ZOOKEEPER_DOWN: 1,
    Kind.WEATHER: 3,
    Kind.DEPOSE: 2,
    Kind.REASSIGN: 0,
    Kind.NO_FILES: 4,
    Kind.NO_SPACE: 2,
    Kind.TOPIC_ID: 2,
}
# Only in schedules with more brokers than replicas.
MOVING_SHARES = {**SHARES, Kind.REASSIGN: 14}


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at` seconds, for `lasts` seconds; `aim` chooses the broker, see `run`."""

    at: float
    kind: Kind
    aim: int
    lasts: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run: its seed, its faults, and when the last of them is over.

    A durable one sets flush.messages to 1: then any number of machines may lose their power.
    """

    seed: int
    brokers: tuple[int, ...]
    durable: bool
    partitions: int
    producers: int
    faults: tuple[Fault, ...]
    transactional_ids: int = 0
    """How many producers have transactions; without one, nobody coordinates them."""

    @property
    def over_at(self) -> float:
        """Return when all faults end."""
        return max((one.at + one.lasts for one in self.faults), default=0.0) + CALM_S


def plan(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    chance = random.Random(f"schedule {seed}")
    moving = chance.random() < MOVING
    shares = MOVING_SHARES if moving else SHARES
    faults = _faults(chance, shares, chance.uniform(0.8, 2.0))
    durable = chance.random() < DURABLE
    brokers = tuple(range(1, REPLICAS + moving + 1))
    return Schedule(seed, brokers, durable, chance.choice((1, 1, 2)), chance.choice((1, 2)), faults)


def transactions(seed: int) -> Schedule:
    """Return a schedule with transactions, beside a producer without: of any faults."""
    chance = random.Random(f"transactions {seed}")
    moving = chance.random() < MOVING
    shares = MOVING_SHARES if moving else SHARES
    faults = _faults(chance, shares, chance.uniform(2.0, 4.0))
    durable = chance.random() < DURABLE
    brokers = tuple(range(1, REPLICAS + moving + 1))
    return Schedule(
        seed, brokers, durable, chance.choice((2, 3)), 1, faults, chance.choice((2, 3, 4))
    )


def _faults(chance: random.Random, shares: dict[Kind, int], at: float) -> tuple[Fault, ...]:
    """Return some faults, the first one at `at` seconds."""
    faults = []
    for _ in range(chance.randint(2, 6)):
        kind = chance.choices(list(shares), list(shares.values()))[0]
        lasts = _duration(kind, chance)
        faults.append(Fault(at, kind, chance.randrange(1 << 16), lasts))
        # In half the schedules faults overlap.
        at += chance.choice((chance.uniform(0.0, 0.5), chance.uniform(0.2, lasts + 2)))
    return tuple(faults)


def outage(seed: int) -> Schedule:
    """Return a schedule in which all machines lose their power while no controller can see it."""
    chance = random.Random(f"outage {seed}")
    at = chance.uniform(1.5, 2.5)
    faults = (
        Fault(at, Kind.ZOOKEEPER_DOWN, 0, chance.uniform(2.0, 4.0)),
        Fault(at + chance.uniform(0.0, 0.5), Kind.KILL_ALL, 0, chance.uniform(0.1, 1.5)),
    )
    return Schedule(seed, tuple(range(1, REPLICAS + 1)), True, 2, 2, faults)


def _duration(kind: Kind, chance: random.Random) -> float:
    if kind in (Kind.PAUSE, Kind.CUT_ZOOKEEPER):
        return chance.choice((chance.uniform(0.2, SESSION_S), chance.uniform(SESSION_S, 6)))
    if kind in (Kind.DEPOSE, Kind.REASSIGN, Kind.TOPIC_ID):
        return 0.0
    if kind is Kind.NO_FILES:
        return chance.uniform(1, 8)
    return chance.choice((chance.uniform(0, 1), chance.uniform(1, 5)))
