"""Producers of which compaction left nothing go on where they were, once they have expired."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from odradek.log.partition import cleaner
from odradek.log.partition.appending import AppendInfo
from odradek.log.partition.log import Log
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from tests.support.logs import Partition, batch

CONFIG = TopicConfig(cleanup_policy=("compact",), segment_bytes=400, file_delete_delay_ms=0)
IDLE, BUSY, OTHER = 5, 6, 7


def send(partition: Partition, log: Log, producer_id: int, sequence: int) -> AppendInfo:
    now_ms = partition.clock.now_ms()
    data = batch(
        bytes(50),
        timestamp=now_ms,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )
    appended = log.append_as_leader(data, 0)
    log.high_watermark = log.log_end_offset
    return appended


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "topic-0", CONFIG)


@pytest.fixture
def log(partition: Partition) -> Log:
    """A log of which one producer wrote the first batch, and was idle until it was forgotten."""
    log = partition.open(clean=True)
    send(partition, log, IDLE, 0)
    partition.clock.advance(2 * log.producers.expiry_ms)
    log.expire_producers()
    for sequence in range(12):
        send(partition, log, BUSY, sequence)
    log.roll()
    dirty = cleaner.dirty_range(log, 0, partition.clock.now_ms())
    cleaner.clean(log, dirty, 1000, cleaner.Throttle())
    log.delete_due()
    (left,) = [header for segment in log.segments for _, header in segment.scan(0)]
    assert (left.producer_id, left.base_offset) == (BUSY, 12)
    return log


@pytest.mark.parametrize("clean", [True, False])
def test_after_a_restart(partition: Partition, log: Log, clean: bool) -> None:
    (partition.close if clean else partition.crash)(log)
    log = partition.open(clean=clean)
    assert send(partition, log, IDLE, 1).base_offset == 13


def test_after_a_truncation(partition: Partition, log: Log) -> None:
    send(partition, log, BUSY, 12)
    log.truncate_to(13)
    assert send(partition, log, IDLE, 1).base_offset == 13


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_at_a_follower_that_becomes_leader(
    partition: Partition, log: Log, tmp_path: Path, policy: str
) -> None:
    """The policy may be another one by then."""
    config = dataclasses.replace(CONFIG, cleanup_policy=(policy,))
    follower = Partition(tmp_path / "follower" / "topic-0", config, partition.clock)
    copy = follower.open(clean=True)
    copy.append_as_follower(log.reader.read_bytes(0, 1 << 20))
    assert copy.log_end_offset == 13
    assert send(follower, copy, IDLE, 1).base_offset == 13


@pytest.fixture
def follower(partition: Partition, tmp_path: Path) -> Partition:
    """A follower where the topic is compacted no more."""
    config = dataclasses.replace(CONFIG, cleanup_policy=("delete",))
    return Partition(tmp_path / "follower" / "topic-0", config, partition.clock)


@pytest.mark.parametrize("clean", [True, False])
def test_after_a_restart_of_a_follower_under_another_policy(
    follower: Partition, log: Log, clean: bool
) -> None:
    copy = follower.open(clean=True)
    copy.append_as_follower(log.reader.read_bytes(0, 1 << 20))
    (follower.close if clean else follower.crash)(copy)
    copy = follower.open(clean=clean)
    assert send(follower, copy, IDLE, 1).base_offset == 13


def test_after_a_truncation_of_a_follower_under_another_policy(
    partition: Partition, follower: Partition, log: Log, tmp_path: Path
) -> None:
    """It has the first batch, and a snapshot behind the gap."""
    other = Partition(tmp_path / "other" / "topic-0", CONFIG, partition.clock)
    first = other.open(clean=True)
    send(other, first, OTHER, 0)
    copy = follower.open(clean=True)
    for source in (first, log):
        copy.append_as_follower(source.reader.read_bytes(0, 1 << 20))
    copy.roll()
    send(follower, copy, BUSY, 12)
    copy.truncate_to(13)
    assert send(follower, copy, IDLE, 1).base_offset == 13


def test_not_where_nothing_is_missing(partition: Partition, tmp_path: Path) -> None:
    """A batch that overtook the first one of its producer must not be taken."""
    log = partition.open(clean=True)
    send(partition, log, BUSY, 0)
    follower = Partition(tmp_path / "follower" / "topic-0", CONFIG, partition.clock)
    copy = follower.open(clean=True)
    copy.append_as_follower(log.reader.read_bytes(0, 1 << 20))
    for where, one in ((partition, log), (follower, copy)):
        with pytest.raises(KafkaError) as refused:
            send(where, one, IDLE, 1)
        assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
