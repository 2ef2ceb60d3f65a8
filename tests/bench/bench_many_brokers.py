"""What several brokers of one command do together, beside one, and what a model says of it.

    python -m tests.bench.bench_many_brokers [rounds]

Two clients, each a process with one connection, write or read as fast as they can: both of one
broker, or each of its own of two that `odradek broker --count 2` started. They are measured by
turns, and what counts is the ratio of the medians.

The model of docs/sizing.md: a request costs a broker `b` and its client `c` of a processor. One
broker uses one processor at most, so N of them on C processors do min(N / b, C / (b + c)) requests
in a second, where the clients share the machine. `b` and `c` come from the runs with one broker.
The last column is what was measured, divided by what the model says.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.bench_partitions import processor_s
from tests.bench.bench_produce_fetch import positive
from tests.bench.report import bare
from tests.bench.report.floors import BATCH_BYTES, PARTITIONS, SENT_BYTES
from tests.support import clients, zookeeper
from tests.support.broker import STEADY, FreshBroker, wait_until
from tests.support.ports import own_address

BROKERS: Final = 2
CLIENTS: Final = 2
PORT: Final = 9092
SECONDS: Final = 4.0
MICRO: Final = 1e6


class Together(FreshBroker):
    """Brokers 1 to `count` of one command, on an address that no other has."""

    count = BROKERS

    def __init__(self, folder: Path, connect: str) -> None:
        self.host = own_address()
        listeners = {"listeners": f"PLAINTEXT://{self.host}:{PORT}"}
        super().__init__(folder, 1, connect, {**STEADY, **listeners}, PORT)
        self.address = f"{self.host}:{PORT}"

    def spawn(self, *arguments: str) -> None:
        """Start the command."""
        super().spawn("--count", str(self.count), *arguments)

    def wait_until_up(self) -> None:
        """Wait until each broker serves."""
        wait_until(
            lambda: self.log_text().count(self.says_when_up) == self.count, f"{self.count} brokers"
        )

    def processor_s(self) -> float:
        """Return the processor time of all its brokers, in seconds."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return processor_s(self.pid) + sum(processor_s(int(one)) for one in children)


class Alone(Together):
    """One broker."""

    count = 1


@dataclass(frozen=True, slots=True)
class Load:
    """What each client asks for, again and again."""

    title: str
    frame: Callable[[str], bytes]
    under_way: int = bare.UNDER_WAY


SMALL: Final = bare.batch(100)
LOADS: Final = (
    Load("Produce of one record of 100 B", lambda topic: bare.produce_frame(topic, 1, SMALL)),
    Load("Fetch of 1 MiB", bare.fetch_frame, under_way=1),
)


@dataclass(frozen=True, slots=True)
class Round:
    """Requests per second of all clients, and microseconds of processor time per request."""

    rate: float
    broker_us: float
    client_us: float


def predicted(one: Round, brokers: int, processors: int) -> float:
    """Return how many requests per second so many brokers serve, by the model."""
    both = one.broker_us + one.client_us
    return min(brokers * MICRO / one.broker_us, processors * MICRO / both)


def ask(address: tuple[str, int], frame: bytes, under_way: int) -> tuple[float, int, float]:
    """Be a client; return answers per second, their number, and seconds of processor time."""
    before = time.process_time()
    connect = partial(socket.create_connection, address)
    rate, count = bare.rate(connect, frame, SECONDS, under_way)
    return rate, count, time.process_time() - before


def measure(
    broker: Together, load: Load, topics: Sequence[str], pool: ProcessPoolExecutor
) -> Round:
    """Let the clients ask, by turns of the brokers; topic N is led by broker N."""
    before = broker.processor_s()
    asked = [
        pool.submit(
            ask,
            (broker.host, PORT + number % broker.count),
            load.frame(topics[number % broker.count]),
            load.under_way,
        )
        for number in range(CLIENTS)
    ]
    found = [one.result() for one in asked]
    spent = broker.processor_s() - before
    count = sum(each for _, each, _ in found)
    client = sum(each for _, _, each in found)
    return Round(sum(rate for rate, _, _ in found), spent / count * MICRO, client / count * MICRO)


def prepare(broker: Together) -> list[str]:
    """Make a topic on each broker, with records to read; return their names by broker."""
    names = [f"on-{broker.broker_id + number}" for number in range(broker.count)]
    admin = AdminClient(clients.settings(broker.address))
    for number, name in enumerate(names):
        partitions = [[broker.broker_id + number]] * PARTITIONS
        clients.make_topic(admin, NewTopic(name, len(partitions), replica_assignment=partitions))
        clients.await_leaders(broker.address, name, PARTITIONS)
        connect = partial(socket.create_connection, (broker.host, PORT + number))
        written = bare.produce_frame(name, 1, bare.batch(BATCH_BYTES))
        for _ in range(2 * SENT_BYTES // BATCH_BYTES):
            bare.check(connect, written)
    return names


@contextlib.contextmanager
def running(folder: Path, kind: type[Together]) -> Iterator[Together]:
    """Brokers of one command with a ZooKeeper, until the context ends."""
    folder.mkdir()
    with zookeeper.Server(folder) as server:
        broker = kind(folder, server.connect)
        try:
            broker.start()
            yield broker
        finally:
            broker.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table; return 0."""
    parser = argparse.ArgumentParser(description="Two brokers of one command, beside one.")
    parser.add_argument("rounds", type=positive, nargs="?", default=5)
    options = parser.parse_args(arguments)
    processors = os.cpu_count() or 1
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spawned = multiprocessing.get_context("spawn")
        pool = stack.enter_context(ProcessPoolExecutor(CLIENTS, mp_context=spawned))
        alone = stack.enter_context(running(folder / "alone", Alone))
        together = stack.enter_context(running(folder / "together", Together))
        topics = {one: prepare(one) for one in (alone, together)}
        print(
            f"{'':34}{'one broker':>12}{f'{BROKERS} brokers':>12}{'ratio':>8}{'model':>8}"
            f"{'of it':>8}   processor, us a request: broker, client"
        )
        for load in LOADS:
            found: dict[Together, list[Round]] = {alone: [], together: []}
            for number in range(-1, options.rounds):  # the first one warms up
                for one in (alone, together) if number % 2 else (together, alone):
                    each = measure(one, load, topics[one], pool)
                    if number >= 0:
                        found[one].append(each)
            _show(load, found[alone], found[together], processors)
    return 0


def _show(load: Load, alone: Sequence[Round], together: Sequence[Round], processors: int) -> None:
    rates = [statistics.median(one.rate for one in each) for each in (alone, together)]
    typical = sorted(alone, key=lambda one: one.rate)[len(alone) // 2]
    ratio = rates[1] / rates[0]
    model = predicted(typical, BROKERS, processors) / predicted(typical, 1, processors)
    print(
        f"{load.title:34}{rates[0]:>10.0f}/s{rates[1]:>10.0f}/s{ratio:>8.2f}{model:>8.2f}"
        f"{ratio / model:>8.2f}   {typical.broker_us:.0f}, {typical.client_us:.0f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
