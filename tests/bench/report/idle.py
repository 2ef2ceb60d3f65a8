"""Thousands of partitions that nobody uses, on one broker that has nothing else."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.bench_controller import leaders
from tests.bench.report.bench import MEBI, Bench, Case, brokers_of
from tests.bench.report.connections import check_descriptors, idle_ms_per_second
from tests.bench.report.results import What
from tests.bench.side_by_side import wait_for
from tests.support.clients import settings
from tests.support.memory_use import resident_bytes

COUNT: Final = 5000
PER_TOPIC: Final = 100
IDLE_SECONDS: Final = 15.0
REQUEST_SECONDS: Final = 280.0
# Kafka holds a descriptor per partition, and more while it creates them.
DESCRIPTORS_EACH: Final = 2
PREFIX: Final = "many-"


def partitions(count: int = COUNT, seconds: float = IDLE_SECONDS) -> Case:
    """Topics of 100 partitions one after the other, and then nothing; each system's own broker.

    Once is enough: it takes minutes, and what counts, processor time and memory, depends little on
    the machine.
    """
    section = f"{count} partitions of one broker, idle"
    created = What(section, "their creation", "s", less=True)
    spent = What(section, "broker's processor time", "ms/s", less=True)
    memory = What(section, "broker's memory", "MiB", less=True)

    def measure(bench: Bench, name: str) -> None:
        check_descriptors(count * DESCRIPTORS_EACH)
        folder = bench.folder / bench.new_name()
        with bench.launcher.start(name, folder, 1) as running:
            [broker] = brokers_of(running)
            admin = AdminClient({**settings(running.bootstrap), "socket.timeout.ms": 290_000})
            began = time.perf_counter()
            for first in range(0, count, PER_TOPIC):
                wanted = NewTopic(f"{PREFIX}{first}", min(PER_TOPIC, count - first), 1)
                admin.create_topics([wanted], request_timeout=REQUEST_SECONDS)[
                    wanted.topic
                ].result()
            led = wait_for(
                lambda: leaders(broker, PREFIX) == [broker.broker_id] * count,
                f"{count} partitions have a leader",
            )
            bench.results.note(created, name, led - began)
            bench.results.note(spent, name, idle_ms_per_second(broker, seconds))
            bench.results.note(memory, name, resident_bytes(broker.pid) / MEBI)

    return Case(f"{count} partitions, idle", measure, quick=False, rounds=1)
