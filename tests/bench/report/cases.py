"""Cases that move records: each measures one system once, and notes what it found."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from dataclasses import dataclass
from typing import Final

from confluent_kafka.admin import AdminClient

from tests.bench.bench_operator import peak_bytes
from tests.bench.bench_partitions import processor_s
from tests.bench.report import bare, latency
from tests.bench.report.bench import MEBI, Bench, Case, Volume, brokers_of, processor_time, topic
from tests.bench.report.floors import BATCH_BYTES, PARTITIONS, SENT_BYTES, Floor
from tests.bench.report.results import LIMIT, PER_GIGABYTE, WRITES, What
from tests.bench.report.systems import Running
from tests.bench.side_by_side import LIMIT_SECONDS, wait_for
from tests.bench.warm_tools import WarmTools

MEGA: Final = 1_000_000
GIGA: Final = 1_000_000_000
MANY_PARTITIONS: Final = 200
PRODUCERS: Final = 8
SINGLE_RECORDS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Shape:
    """What a Java producer writes."""

    size: int
    acks: str = "1"
    partitions: int = PARTITIONS
    codec: str = "none"

    def count(self, volume: Volume) -> int:
        """Return how many records: fewer bytes where they take longest."""
        share = 4 if self.size <= 100 else 1
        if self.acks == "all" or self.partitions >= MANY_PARTITIONS:
            share *= 2
        return max(1, volume.megabytes * MEGA // share // self.size)


def write(tools: WarmTools, bootstrap: str, name: str, shape: Shape, count: int) -> float:
    """Write records of a shape; return megabytes per second."""
    return tools.produce(bootstrap, name, count, shape.size, acks=shape.acks, codec=shape.codec)


def produce(title: str, shape: Shape, goal: float | None, share: float | None, quick: bool) -> Case:
    """A Java producer."""
    acks = (
        "Produce, one broker, acks=1" if shape.acks == "1" else "Produce, three brokers, acks=all"
    )
    speed = What(acks, title, "MB/s", goal, share=share)
    spent = What(f"{acks}: brokers' processor time", title, PER_GIGABYTE, less=True)

    def measure(bench: Bench, name: str) -> None:
        count = shape.count(bench.volume)
        with (
            topic(bench, name, shape.partitions) as made,
            processor_time(bench, name, spent, lambda: count * shape.size / GIGA),
        ):
            bootstrap = bench.systems[name].bootstrap
            reached = write(bench.tools[0], bootstrap, made, shape, count)
            bench.results.note(speed, name, reached)

    def limits(bench: Bench) -> None:
        count = shape.count(bench.volume)
        with Floor("hollow", str(shape.size)) as floor:
            reached = write(bench.tools[0], floor.bootstrap, bench.new_name(), shape, count)
            bench.results.note(speed, LIMIT, reached)
        with (
            tempfile.TemporaryDirectory(dir=bench.folder) as folder,
            Floor("keep", folder) as floor,
        ):
            before = processor_s(floor.pid)
            reached = write(bench.tools[0], floor.bootstrap, bench.new_name(), shape, count)
            bench.results.note(speed, WRITES, reached)
            each = (processor_s(floor.pid) - before) / (count * shape.size / GIGA)
            bench.results.note(spent, WRITES, each)

    return Case(f"produce {title}", measure, quick, None if share is None else limits, tools=1)


def single_records(acks: str) -> Case:
    """Batches of one record each by a Java producer, for brokers in JVMs to compile. Notes nothing.

    A JVM compiles what it calls often, and a large batch takes as many calls as a small one.
    """
    shape = Shape(100, acks)

    def measure(bench: Bench, name: str) -> None:
        with topic(bench, name, shape.partitions) as made:
            bench.tools[0].produce(
                bench.systems[name].bootstrap,
                made,
                SINGLE_RECORDS,
                shape.size,
                acks=acks,
                batch_bytes=0,
            )

    return Case(f"single records, acks={acks}", measure, tools=1)


def many_producers(shape: Shape) -> Case:
    """Java producers in JVMs of their own, at once."""
    section, title = "Produce, one broker, acks=1", "1 kB, eight producers"
    speed = What(section, title, "MB/s")
    spent = What(f"{section}: brokers' processor time", title, PER_GIGABYTE, less=True)

    def measure(bench: Bench, name: str) -> None:
        # Twice as much: the starts of the tools are in it.
        count = 2 * shape.count(bench.volume) // len(bench.tools)
        total = count * len(bench.tools) * shape.size
        with (
            topic(bench, name, shape.partitions) as made,
            processor_time(bench, name, spent, lambda: total / GIGA),
        ):
            bootstrap = bench.systems[name].bootstrap
            seconds = bench.java(lambda tools: write(tools, bootstrap, made, shape, count))
            bench.results.note(speed, name, total / MEGA / seconds)

    return Case("eight producers", measure, quick=False, tools=PRODUCERS)


def consume(
    title: str,
    size: int,
    goal: float | None,
    *,
    cold: bool = False,
    closed: bool = False,
    quick: bool = True,
) -> Case:
    """A Java consumer of what one producer wrote."""
    speed = What("Consume", title, "MB/s", goal, share=None if cold or closed else 0.9)
    spent = What("Consume: broker's processor time", title, PER_GIGABYTE, less=True)
    shape = Shape(size)
    # Segments that are closed after a mebibyte hold all but the last records.
    config = {"segment.bytes": str(MEBI)} if closed else None

    def measure(bench: Bench, name: str) -> None:
        running, tools = bench.systems[name], bench.tools[0]
        count = shape.count(bench.volume)
        with topic(bench, name, PARTITIONS, config) as made:
            write(tools, running.bootstrap, made, shape, count)
            if cold:
                forget(running, made)
            with processor_time(bench, name, spent, lambda: count * size / GIGA):
                bench.results.note(speed, name, tools.consume(running.bootstrap, made, count, size))

    def limit(bench: Bench) -> None:
        with Floor("hollow", str(size)) as floor:
            count = shape.count(bench.volume)
            reached = bench.tools[0].consume(floor.bootstrap, bench.new_name(), count, size)
            bench.results.note(speed, LIMIT, reached)

    return Case(f"consume {title}", measure, quick, None if speed.share is None else limit, tools=1)


def forget(running: Running, name: str) -> None:
    """Drop a topic's files from the page cache."""
    for broker in brokers_of(running):
        for folder in broker.partition_folders(name):
            for path in folder.glob("*.log"):
                fd = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)


def bare_produce() -> Case:
    """Six batches of 64 KiB a request, by a bare socket."""
    speed = What("Bare sockets", "Produce of six 64 KiB batches", "MB/s", share=0.7)
    spent = What(
        "Bare sockets: broker's processor time",
        "Produce of six 64 KiB batches",
        PER_GIGABYTE,
        0.15,
        less=True,
    )

    def most(bench: Bench) -> int:
        return 2 * bench.volume.megabytes * MEGA // (PARTITIONS * BATCH_BYTES)

    def measure(bench: Bench, name: str) -> None:
        [broker] = brokers_of(bench.systems[name])
        moved: list[float] = []
        with topic(bench, name, PARTITIONS) as made:
            frame = bare.six_batches(made)
            bare.check(broker.connect, frame)
            with processor_time(bench, name, spent, lambda: moved[0]):
                rate, count = bare.rate(broker.connect, frame, LIMIT_SECONDS, most=most(bench))
                moved.append(count * len(frame) / GIGA)
            bench.results.note(speed, name, rate * len(frame) / MEGA)

    def limit(bench: Bench) -> None:
        path = bench.folder / "floor"
        frame = bare.six_batches("floor")
        with Floor("write", str(path)) as floor:
            before = processor_s(floor.pid)
            rate, count = bare.rate(floor.connect, frame, LIMIT_SECONDS, most=most(bench))
            bench.results.note(speed, LIMIT, rate * len(frame) / MEGA)
            each = (processor_s(floor.pid) - before) / (count * len(frame) / GIGA)
            bench.results.note(spent, LIMIT, each)
        path.unlink()

    return Case("bare produce", measure, limit=limit)


def bare_fetch() -> Case:
    """One mebibyte an answer, by a bare socket."""
    speed = What("Bare sockets", "Fetch of 1 MiB", "MB/s")
    spent = What(
        "Bare sockets: broker's processor time", "Fetch of 1 MiB", PER_GIGABYTE, 0.25, less=True
    )

    def measure(bench: Bench, name: str) -> None:
        [broker] = brokers_of(bench.systems[name])
        moved: list[float] = []
        with topic(bench, name, 1) as made:
            written = bare.produce_frame(made, 1, bare.batch(64 * 1024))
            for _ in range(2 * SENT_BYTES // (64 * 1024)):
                bare.check(broker.connect, written)
            frame = bare.fetch_frame(made)
            with processor_time(bench, name, spent, lambda: moved[0]):
                rate, count = bare.rate(broker.connect, frame, bench.volume.seconds, 1)
                moved.append(count * SENT_BYTES / GIGA)
            bench.results.note(speed, name, rate * SENT_BYTES / MEGA)

    def limit(bench: Bench) -> None:
        path = bench.folder / "floor"
        path.write_bytes(os.urandom(SENT_BYTES))
        with Floor("send", str(path)) as floor:
            before = processor_s(floor.pid)
            rate, count = bare.rate(
                floor.connect, bare.fetch_frame("floor"), bench.volume.seconds, 1
            )
            bench.results.note(speed, LIMIT, rate * SENT_BYTES / MEGA)
            each = (processor_s(floor.pid) - before) / (count * SENT_BYTES / GIGA)
            bench.results.note(spent, LIMIT, each)
        path.unlink()

    return Case("bare fetch", measure, limit=limit)


def small_requests() -> Case:
    """One record of 100 bytes a request, by a bare socket."""
    speed = What("Bare sockets", "Produce of one record of 100 B", "requests/s", 1.5)
    spent = What(
        "Bare sockets: broker's processor time",
        "Produce of one record of 100 B",
        "us each",
        0.35,
        less=True,
    )

    def measure(bench: Bench, name: str) -> None:
        [broker] = brokers_of(bench.systems[name])
        moved: list[float] = []
        with topic(bench, name, 1) as made:
            frame = bare.produce_frame(made, 1, bare.batch(100))
            bare.check(broker.connect, frame)
            bare.rate(broker.connect, frame, bench.volume.seconds / 2)
            with processor_time(bench, name, spent, lambda: moved[0]):
                rate, count = bare.rate(broker.connect, frame, bench.volume.seconds)
                moved.append(count / 1e6)
            bench.results.note(speed, name, rate)

    return Case("small requests", measure)


def end_to_end(megabytes_per_second: int, quick: bool) -> Case:
    """From the producer's call to the consumer's, at a rate."""
    goal = 0.3 if megabytes_per_second >= 10 else None
    section = "End to end, records of 10 kB by librdkafka, acks=all, one broker"

    def note(bench: Bench, name: str, bootstrap: str, made: str) -> None:
        # Of many records, some are beyond the last percentile in less time.
        seconds = bench.volume.latency_seconds / (1 if megabytes_per_second <= 10 else 2)
        found = latency.measure(bootstrap, made, megabytes_per_second, seconds)
        for percentile, value in found.items():
            wanted = goal if percentile > 90 else None
            what = What(
                section, f"{megabytes_per_second} MB/s, p{percentile:g}", "ms", wanted, less=True
            )
            bench.results.note(what, name, value)

    def measure(bench: Bench, name: str) -> None:
        with topic(bench, name, 1) as made:
            note(bench, name, bench.systems[name].bootstrap, made)

    def limit(bench: Bench) -> None:
        with Floor("pass") as floor:
            note(bench, LIMIT, floor.bootstrap, bench.new_name())

    return Case(f"latency at {megabytes_per_second} MB/s", measure, quick, limit)


def memory() -> Case:
    """The most memory that the broker has had so far, after the other cases of a round."""
    what = What("One broker", "most memory so far", "MiB", less=True)

    def measure(bench: Bench, name: str) -> None:
        [broker] = brokers_of(bench.systems[name])
        bench.results.note(what, name, peak_bytes(broker.pid) / MEBI)

    return Case("memory", measure)


def start_up() -> Case:
    """A clean stop, and the time from the start to the first answer that names the broker."""
    what = What("One broker", "start-up to the first answer", "s", 0.33, less=True)

    def measure(bench: Bench, name: str) -> None:
        [broker] = brokers_of(bench.systems[name])
        broker.terminate()
        began = time.perf_counter()
        broker.spawn()
        client = AdminClient(
            {
                "bootstrap.servers": broker.address,
                "log_level": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 20,
            }
        )

        def answers() -> bool:
            with contextlib.suppress(Exception):
                return broker.broker_id in client.list_topics(timeout=5).brokers
            return False

        bench.results.note(what, name, wait_for(answers, f"{name} answers") - began)
        broker.wait_until_up()

    return Case("start-up", measure, restarts=True)
