"""What the cases of the report share: systems, clients, results, and figures of processes."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient

from tests.bench.bench_partitions import processor_s
from tests.bench.report.results import Results, What
from tests.bench.report.systems import SYSTEMS, Launcher, Running
from tests.bench.side_by_side import await_removal
from tests.bench.warm_tools import WarmTools
from tests.support import clients
from tests.support.broker import Broker

MEBI: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Volume:
    """How much one run moves."""

    megabytes: int
    seconds: float
    latency_seconds: float


@dataclass(slots=True)
class Bench:
    """What the cases share: systems, how to start others, clients, and the results."""

    folder: Path
    launcher: Launcher
    systems: Mapping[str, Running]
    tools: Sequence[WarmTools]
    volume: Volume
    results: Results
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def new_name(self) -> str:
        """Return the name of a topic that no system has."""
        return f"bench-{next(self._numbers)}"

    def java(self, work: Callable[[WarmTools], object]) -> float:
        """Run a tool in each JVM at once; return the seconds until the last has ended."""
        began = time.perf_counter()
        with ThreadPoolExecutor(len(self.tools)) as pool:
            list(pool.map(work, self.tools))
        return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement; `measure` notes what it found of a system. With `quick` it is in short runs.

    `limit` measures what the machine, or the client, reaches at most. A case that takes minutes
    says how many `rounds` do at most, and measures fewer `systems`: how much a broker differs from
    itself is known from the others. There are no `warm_ups` where other cases of the group run the
    same code of clients and brokers before; None are as many as Kafka's brokers need to be warm.
    `tools` are the clients in JVMs that it needs. `seconds` are about those of a round. A case that
    `restarts` brokers runs after all rounds of the others, which would find cold JVMs.
    """

    title: str
    measure: Callable[[Bench, str], None]
    quick: bool = True
    limit: Callable[[Bench], None] | None = None
    rounds: int | None = None
    warm_ups: int | None = 2
    tools: int = 0
    seconds: float = 10.0
    restarts: bool = False
    systems: Sequence[str] = SYSTEMS


def brokers_of(running: Running) -> list[Broker]:
    """Return the brokers of a system."""
    return list(running.brokers.values())


@contextlib.contextmanager
def processor_time(
    bench: Bench, name: str, what: What, amount: Callable[[], float]
) -> Iterator[None]:
    """Note the processor time of a system's brokers meanwhile, per unit of the amount."""
    brokers = brokers_of(bench.systems[name])
    before = sum(processor_s(one.pid) for one in brokers)
    yield
    spent = sum(processor_s(one.pid) for one in brokers) - before
    bench.results.note(what, name, spent / amount())


@contextlib.contextmanager
def topic(
    bench: Bench, name: str, partitions: int, config: dict[str, str] | None = None
) -> Iterator[str]:
    """A new topic of a system with a replica on each broker, deleted at the end with its files."""
    running = bench.systems[name]
    made = bench.new_name()
    clients.create_topic(running.bootstrap, made, partitions, len(running.brokers), config)
    yield made
    delete_topic(running.bootstrap, made)
    await_removal(brokers_of(running), made)


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic; return when a broker has said that it is."""
    # While nobody refers to a client, its requests end.
    admin = AdminClient(clients.settings(bootstrap))
    admin.delete_topics([name])[name].result(60)
