"""What the log costs beside the least it could cost. `python -m pytest -s tests/bench/bench_log.py`
prints ratios.

No figure is asserted: machines differ. Goals: append at least 0.8 of plain crc32c + pwrite,
planning of a 1 MiB fetch under 30 microseconds, 2 000 partitions opened in seconds with at most 20
KiB each.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from odradek import config_loading
from odradek.log.manager import LogManager
from odradek.log.partition.log import Log, LogEnvironment
from odradek.log.records import batch, compression, records
from odradek.log.records.records import BatchOptions
from odradek.topic_config import TopicConfig
from tests.support.logs import Partition, new_log

pytestmark = pytest.mark.bench
BATCH_BYTES = 64 * 1024
ROUNDS = 7
BATCHES = 800
MEBIBYTE = 1 << 20
CLOSED_BYTES = 64 * MEBIBYTE


def batch_of(size: int) -> bytes:
    values = [(None, b"v" * 100)] * (size // 110)
    return records.make(values, time.time_ns() // 1_000_000, BatchOptions(codec=compression.NONE))


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def test_append_beside_crc_and_pwrite(tmp_path: Path) -> None:
    data = bytearray(batch_of(BATCH_BYTES))  # as a request frame is: it can be patched in place
    fd = os.open(tmp_path / "plain", os.O_RDWR | os.O_CREAT)
    log = Partition(tmp_path / "topic-0").open(clean=True)
    log.environment = LogEnvironment()

    def plain() -> None:
        view = memoryview(data)
        for number in range(BATCHES):
            crc32c(view[21:])
            os.pwrite(fd, data, number * len(data))

    def appended() -> None:
        for _ in range(BATCHES):
            data[:8] = bytes(8)  # where the append before has put its offset
            log.append_as_leader(data, 0)

    times: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        os.ftruncate(fd, 0)
        log.truncate_fully_and_start_at(0)
        times.append((seconds(plain), seconds(appended)))
    least, ours = (min(column) for column in zip(*times, strict=True))
    mib = BATCHES * len(data) / 2**20
    print(
        f"\nappend of {len(data)} byte batches: {mib / ours:.0f} MiB/s, plain crc32c + pwrite "
        f"{mib / least:.0f} MiB/s, ratio {least / ours:.2f}, "
        f"{(ours - least) / BATCHES * 1e6:.1f} us of Python a batch"
    )
    os.close(fd)


def planning_us(log: Log, offsets: list[int], upto: int | None) -> float:
    def plan() -> None:
        for offset in offsets:
            piece = log.reader.plan(offset, 1 << 20, upto)
            assert piece.region is not None
            piece.region.close()

    plan()
    return min(seconds(plan) for _ in range(ROUNDS)) / len(offsets) * 1e6


def test_read_planning(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "topic-0", TopicConfig(segment_bytes=16 << 20))
    partition.clock.wall_ms = time.time_ns() // 1_000_000
    log = partition.open(clean=True)
    data = batch_of(16 * 1024)
    while len(log.segments) < 10:
        log.append_as_leader(data, 0)
    end = log.log_end_offset
    everywhere = list(range(0, end - end // 20, end // 200))
    tail = [end - 1 - number for number in range(200)]
    print(
        f"\nplanning of a 1 MiB fetch: anywhere {planning_us(log, everywhere, None):.1f} us, "
        f"at the tail {planning_us(log, tail, None):.1f} us, at the high watermark "
        f"{planning_us(log, [end - 500] * 200, end - 100):.1f} us"
    )


@pytest.mark.parametrize("size", [1 << 10, 16 << 10, 64 << 10])
def test_read_of_a_closed_segment_beside_pread_and_crc(tmp_path: Path, size: int) -> None:
    partition = Partition(tmp_path / "topic-0", TopicConfig(segment_bytes=CLOSED_BYTES))
    log = partition.open(clean=True)
    data = batch_of(size)
    while len(log.segments) < 2:
        log.append_as_leader(data, 0)
    records_each = batch.parse(data).record_count
    at_once = MEBIBYTE // len(data) * records_each
    offsets = range(0, log.segments[1].base_offset - at_once, at_once)
    buffer = memoryview(bytearray(MEBIBYTE))
    fd = log.segments[0].log.acquire()

    def plain() -> None:
        for number in range(len(offsets)):
            os.preadv(fd, [buffer], number * MEBIBYTE)
            crc32c(buffer)

    def read() -> None:
        for offset in offsets:
            piece = log.reader.read(offset, MEBIBYTE)
            assert piece.region is not None
            piece.region.close()

    plain()
    times = [(seconds(plain), seconds(read)) for _ in range(ROUNDS)]
    least, ours = (min(column) / len(offsets) * 1e6 for column in zip(*times, strict=True))
    print(
        f"\nread of 1 MiB of a closed segment, batches of {len(data)} bytes: {ours:.0f} us, "
        f"pread + crc32c {least:.0f} us, ratio {ours / least:.2f}"
    )
    log.segments[0].log.release()


def resident_kib() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize() // 1024


def test_opening_two_thousand_partitions(tmp_path: Path) -> None:
    settings, _ = config_loading.from_values(
        {"broker.id": "1", "zookeeper.connect": "unused", "log.dirs": str(tmp_path)}
    )
    topic = TopicConfig()

    def manager() -> LogManager:
        return LogManager(settings, "cluster", lambda name: topic)

    first = manager()
    first.load()
    data = batch_of(2000)
    for partition in range(2000):
        log = new_log(first, "topic", partition, topic)
        log.append_as_leader(data, 0)
    closing = seconds(first.close)
    del first, log
    before = resident_kib()
    second = manager()
    opening = seconds(second.load)
    grown = resident_kib() - before
    assert len(second.logs()) == 2000
    print(
        f"\n2000 partitions: closed in {closing:.1f} s, opened in {opening:.2f} s, "
        f"{grown / 2000:.1f} KiB each"
    )
    second.close()
