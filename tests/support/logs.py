"""Logs for tests: record batches, and partitions in a temporary folder with a settable clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odradek.log.manager import LogManager, NewLog
from odradek.log.partition import recovery
from odradek.log.partition.log import Log, LogEnvironment
from odradek.log.partition.producers import MOST_PRODUCERS
from odradek.log.records import batch as batches
from odradek.log.records import records
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition

START_MS = 1_700_000_000_000


@dataclass
class FakeClock:
    """Wall and monotonic time that only `advance` moves."""

    wall_ms: int = START_MS
    seconds: float = 0.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, ms: int) -> None:
        self.wall_ms += ms
        self.seconds += ms / 1000


@dataclass
class Partition:
    """One partition folder that can be closed, crashed and opened again."""

    folder: Path
    config: TopicConfig = field(default_factory=TopicConfig)
    clock: FakeClock = field(default_factory=FakeClock)
    failures: list[OSError] = field(default_factory=list)
    recovery_point: int = 0
    log_start: int = 0
    most_producers: int = MOST_PRODUCERS
    report: recovery.Report | None = None

    def environment(self) -> LogEnvironment:
        return LogEnvironment(
            now_ms=self.clock.now_ms,
            monotonic=self.clock.monotonic,
            chance=random.Random(0),
            most_producers=self.most_producers,
            on_failure=lambda log, error: self.failures.append(error),
            on_truncate=self._remember,
        )

    def _remember(self, log: Log) -> None:
        self.recovery_point = log.recovery_point

    def open(self, *, clean: bool) -> Log:
        log, self.report = recovery.open_log(
            str(self.folder),
            "topic",
            0,
            self.config,
            self.environment(),
            recovery.Checkpointed(clean, self.recovery_point, self.log_start),
        )
        return log

    def close(self, log: Log) -> None:
        log.close()
        self.recovery_point = log.recovery_point
        self.log_start = log.log_start_offset

    def crash(self, log: Log) -> None:
        """Abandon the log without a clean shutdown; checkpoints stay."""
        log.abandon()


def batch(
    *values: bytes, timestamp: int = START_MS, key: bytes | None = b"k", **options: Any
) -> bytes:
    """Return one batch of these values."""
    return records.make(
        [(key, value) for value in values], timestamp, records.BatchOptions(**options)
    )


def read_all(log: Log, offset: int | None = None, max_bytes: int = 1 << 20) -> list[records.Record]:
    """Return all records from `offset` (default: the log start) to the end, read in slices."""
    found: list[records.Record] = []
    offset = log.log_start_offset if offset is None else offset
    while True:
        piece = log.reader.read(offset, max_bytes)
        if piece.region is None:
            return found
        with piece.region as region:
            data = region.read()
        headers = [header for _, header in batches.scan(data)]
        assert headers, "a read that returns bytes returns at least one whole batch"
        found += [record for record in whole_records(data) if record.offset >= offset]
        # Continue after the batch, as consumers do: compaction may have removed its last records.
        offset = headers[-1].last_offset + 1


def whole_records(data: bytes) -> list[records.Record]:
    """Return the records of complete batches; a truncated last batch is ignored, as in clients."""
    found: list[records.Record] = []
    for position, header in batches.scan(data):
        batches.check_crc(data, position, header)
        found += records.decode(data, position)
    return found


def new_log(
    manager: LogManager, topic: str, partition: int, config: TopicConfig, *, is_new: bool = True
) -> Log:
    """Return the log of one partition, made if there is none. Raises KafkaError."""
    wanted = TopicPartition(topic, partition)
    for refusal in manager.make_missing({wanted: NewLog(config, is_new)}).values():
        raise refusal
    log = manager.get(topic, partition)
    assert log is not None
    return log


def flip(path: Path, bit: int) -> None:
    """Change the file in place, as a failing disk does under a running broker."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))
