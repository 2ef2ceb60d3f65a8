"""Cases with more and more partitions: on one broker, on three, and with three replicas on three.

A system grows from size to size. At each size there is a rest and a new controller; at the least
partitions also a clean stop and a SIGKILL of the same broker. This project has these at the most,
too: Kafka takes many minutes. All times end when every partition is led again. A new controller is
one that reads everything: the znode of the former one is deleted, so that no time-out is in the
figure. Kafka 4.1.0 has no such znode, and is left out. What grows faster than the partitions shows
as a figure that is not the same for each size.

To describe all partitions takes a broker and this process longer than what is awaited, so a few
topics are asked for until they are as they should be, and only then all.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from odradek.zk import znodes
from tests.bench.bench_controller import leaders
from tests.bench.bench_partitions import descriptors
from tests.bench.report import failover
from tests.bench.report.bench import Bench, Case, brokers_of
from tests.bench.report.connections import check_descriptors, idle_ms_per_second
from tests.bench.report.results import What
from tests.bench.report.systems import KAFKA, OURS
from tests.bench.side_by_side import all_in_sync, controller_of, wait_for
from tests.support.broker import Broker, Cluster
from tests.support.clients import settings
from tests.support.memory_use import resident_bytes

ONE_BROKER: Final = (2500, 7000, 20_000)
ONE_REPLICA: Final = (5000, 20_000)
THREE_REPLICAS: Final = (2000, 7000)
PER_TOPIC: Final = 100
# The interval in which both systems write down high watermarks.
IDLE_SECONDS: Final = 5.0
REQUEST_SECONDS: Final = 280.0
# A busy machine may need minutes for what takes seconds at rest.
LIMIT_SECONDS: Final = 600.0
KIBI: Final = 1024
# Kafka holds a descriptor per replica, and more while it creates and recovers them.
DESCRIPTORS_EACH: Final = 1.3
PREFIX: Final = "many-"
# A controller that reads so many partitions: at most half of Kafka's time.
GOAL_PARTITIONS: Final = 20_000
RELOAD_GOAL: Final = 0.5

_wait_for: Final = partial(wait_for, seconds=LIMIT_SECONDS)


@dataclass(frozen=True, slots=True)
class _Subject:
    """A system that grows, and where its figures go."""

    bench: Bench
    name: str
    section: str
    cluster: Cluster
    replicas: int

    @property
    def brokers(self) -> list[Broker]:
        return brokers_of(self.cluster)

    def note(
        self, size: int, what: str, unit: str, value: float, goal: float | None = None
    ) -> None:
        """Keep a figure; less is better for all of them."""
        row = What(self.section, f"{size} partitions: {what}", unit, goal, less=True)
        self.bench.results.note(row, self.name, value)

    def await_leaders(self, size: int) -> float:
        """Return when all brokers know a leader of each partition, and all replicas are in sync."""

        some = _sample(size)

        def are_led(names: Sequence[str] | None, partitions: int) -> bool:
            found = (leaders(one, PREFIX, names) for one in self.brokers)
            return all(len(one) == partitions and min(one) > 0 for one in found)

        def all_led() -> bool:
            return are_led(some, sum(_partitions(name, size) for name in some)) and are_led(
                None, size
            )

        def all_synced() -> bool:
            # Not of the topics that new controllers made: these have a replica on each broker.
            return all_in_sync(self.brokers[0], some) and all_in_sync(self.brokers[0], _names(size))

        _wait_for(all_led, f"{size} partitions have a leader")
        return _wait_for(all_synced, "every replica is in sync")

    def grow(self, before: int, size: int) -> None:
        """Create topics of 100 partitions one after the other."""
        admin = AdminClient({**settings(self.cluster.bootstrap), "socket.timeout.ms": 290_000})
        began = time.perf_counter()
        for first in range(before, size, PER_TOPIC):
            wanted = NewTopic(f"{PREFIX}{first}", min(PER_TOPIC, size - first), self.replicas)
            admin.create_topics([wanted], request_timeout=REQUEST_SECONDS)[wanted.topic].result()
        lasted = self.await_leaders(size) - began
        self.note(size, "creation", "ms each", lasted * 1000 / (size - before))

    def rest(self, size: int, empty: float, seconds: float) -> None:
        """Note what the partitions of a broker take while nobody uses them."""
        broker = self.brokers[-1]
        self.note(size, "processor time at rest", "ms/s", idle_ms_per_second(broker, seconds))
        memory = resident_bytes(broker.pid) - empty
        held = size * self.replicas / len(self.brokers)
        self.note(size, "memory", "KiB per replica", max(0.1, memory / held / KIBI))
        self.note(size, "descriptors", "", descriptors(broker.pid))

    def reload(self, size: int) -> None:
        """Note the time from the end of a controller to a topic that the next one made."""
        made = self.bench.new_name()
        with self.cluster.zookeeper.client() as keeper:
            began = time.perf_counter()
            keeper.delete(znodes.CONTROLLER_PATH)
        asyncio.run(failover.create(self.brokers, made))
        led = _wait_for(
            lambda: all(leaders(one, made, [made]) for one in self.brokers), f"brokers know {made}"
        )
        goal = RELOAD_GOAL if size >= GOAL_PARTITIONS else None
        self.note(size, "controller reload", "s", led - began, goal)

    def restart(self, size: int) -> None:
        """Note a stop, a start after it, and one after SIGKILL, of a broker that is not controller
        where there are several.
        """
        controller = controller_of(self.cluster)
        broker = next((one for one in self.brokers if one is not controller), controller)
        left = [one for one in self.brokers if one is not broker]
        began = time.perf_counter()
        broker.signal(signal.SIGTERM)
        if self.replicas > 1:
            some = _sample(size)

            def have_moved() -> bool:
                return broker.broker_id not in leaders(
                    left[0], PREFIX, some
                ) and broker.broker_id not in leaders(left[0], PREFIX)

            moved = _wait_for(have_moved, "its leaderships moved")
            self.note(size, "controlled shutdown, to the last new leader", "s", moved - began)
        broker.wait(LIMIT_SECONDS)
        self.note(size, "stop, to the end of the process", "s", time.perf_counter() - began)
        began = time.perf_counter()
        broker.start()
        self.note(
            size,
            "start after a stop, to the last replica in sync",
            "s",
            self.await_leaders(size) - began,
        )
        self.cluster.crash(broker.broker_id)
        began = time.perf_counter()
        broker.start()
        self.note(
            size,
            "start after SIGKILL, to the last replica in sync",
            "s",
            self.await_leaders(size) - began,
        )


def _names(size: int) -> list[str]:
    """Return the names of all topics."""
    return [f"{PREFIX}{first}" for first in range(0, size, PER_TOPIC)]


def _sample(size: int) -> list[str]:
    """Return the names of the first topic, the last, and some in between."""
    names = _names(size)
    chosen = names[:: max(1, len(names) // 8)]
    return chosen if chosen[-1] == names[-1] else [*chosen, names[-1]]


def _partitions(name: str, size: int) -> int:
    """Return how many partitions a topic has."""
    return min(PER_TOPIC, size - int(name.removeprefix(PREFIX)))


def one_broker(sizes: Sequence[int] = ONE_BROKER, seconds: float = IDLE_SECONDS) -> Case:
    """One replica of each partition; each system's own broker."""
    return _case("one replica, one broker", 1, 1, sizes, seconds)


def one_replica(sizes: Sequence[int] = ONE_REPLICA, seconds: float = IDLE_SECONDS) -> Case:
    """One replica of each partition, on three brokers."""
    return _case("one replica, three brokers", 3, 1, sizes, seconds)


def three_replicas(sizes: Sequence[int] = THREE_REPLICAS, seconds: float = IDLE_SECONDS) -> Case:
    """Three replicas of each partition, on three brokers."""
    return _case("three replicas, three brokers", 3, 3, sizes, seconds)


def _case(what: str, brokers: int, replicas: int, sizes: Sequence[int], seconds: float) -> Case:
    section = f"Scale: partitions with {what}"

    def measure(bench: Bench, name: str) -> None:
        possible = [
            one
            for one in sizes
            if name != KAFKA or _has_descriptors(bench, section, one, one * replicas // brokers)
        ]
        if not possible:
            return
        folder = bench.folder / bench.new_name()
        with bench.launcher.start(name, folder, brokers) as running:
            assert isinstance(running, Cluster)
            subject = _Subject(bench, name, section, running, replicas)
            for broker in subject.brokers:
                broker.start_seconds = LIMIT_SECONDS
            empty = resident_bytes(subject.brokers[-1].pid)
            for before, size in zip((0, *possible), possible, strict=False):
                subject.grow(before, size)
                subject.rest(size, empty, seconds)
                subject.reload(size)
                # It takes longest: the least and the most say how it grows.
                if size == possible[0] or (size == possible[-1] and name == OURS):
                    subject.restart(size)

    return Case(f"scale, {what}", measure, quick=False, rounds=1)


def _has_descriptors(bench: Bench, section: str, size: int, held: int) -> bool:
    """Return whether a broker of Kafka can have `held` replicas here; remark if it cannot."""
    try:
        check_descriptors(int(held * DESCRIPTORS_EACH))
    except AssertionError as refusal:
        bench.results.remark(section, f"{KAFKA}, {size} partitions: {refusal}")
        return False
    return True
