"""Followers on real logs find where theirs part from a new leader's, and cut what it has not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from odradek.log.partition.log import Log
from odradek.net.client import PeerClient
from odradek.protocol.messages.offsets import (
    OffsetForLeaderEpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from odradek.topic_config import TopicConfig
from tests.support import logs
from tests.support.replicas import KEY, Replicas

LEADER = 2
MANY_QUESTIONS = 10


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path) as replicas:
        yield replicas


class Leader:
    """Broker 2, which answers where its log's epochs end."""

    def __init__(self, log: Log) -> None:
        self.log = log

    async def call(
        self, request: OffsetForLeaderEpochRequest, version: int, timeout_ms: int
    ) -> OffsetForLeaderEpochResponse:
        (topic,) = request.topics
        (asked,) = topic.partitions
        epoch, end = self.log.end_offset_for_epoch(asked.leader_epoch)
        answer = OffsetForLeaderEpochEndOffset(
            partition=asked.partition, leader_epoch=epoch, end_offset=end
        )
        return OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderTopicResult(topic=topic.topic, partitions=[answer])]
        )


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    return Leader(logs.Partition(tmp_path / "leader").open(clean=True))


def write(log: Log, epoch: int, records: int) -> None:
    for _ in range(records):
        log.append_as_leader(logs.batch(b"v"), epoch)


def copy(source: Log, to: Log, begin: int, end: int) -> None:
    region = source.reader.read(begin, 1 << 20, end).region
    assert region is not None
    with region:
        to.append_as_follower(region.read())


async def follow(broker: Replicas, leader: Leader, epoch: int) -> None:
    """Have broker 1 follow in this epoch, until it agrees with the leader."""
    await broker.take(leader=LEADER, replicas=(1, LEADER), epoch=epoch)
    fetcher = broker.fetcher_from(LEADER)
    following = fetcher._followed.by_key[KEY]
    for _ in range(MANY_QUESTIONS):
        await fetcher._agreement.truncate(cast(PeerClient, leader), [following])
        if not following.truncating:
            return
    raise AssertionError("asks for ever")


async def test_epoch_that_led_without_writing_goes_though_nothing_is_cut(
    broker: Replicas, leader: Leader
) -> None:
    write(leader.log, epoch=3, records=2)
    write(leader.log, epoch=4, records=2)
    leader.log.assign_epoch(6)
    await broker.lead(replicas=(1, LEADER), epoch=3)
    log = broker.manager.partitions[KEY].log
    write(log, epoch=3, records=2)
    await broker.lead(replicas=(1, LEADER), epoch=5)
    await follow(broker, leader, epoch=6)
    assert (log.log_end_offset, log.epochs.entries) == (2, [(3, 0)])


async def test_epoch_that_led_without_writing_does_not_hide_what_is_copied_later(
    broker: Replicas, leader: Leader
) -> None:
    write(leader.log, epoch=4, records=4)
    leader.log.assign_epoch(6)
    await broker.lead(replicas=(1, LEADER), epoch=3)
    log = broker.manager.partitions[KEY].log
    copy(leader.log, log, 0, 2)
    await broker.lead(replicas=(1, LEADER), epoch=5)
    await follow(broker, leader, epoch=6)
    copy(leader.log, log, 2, 4)
    assert log.end_offset_for_epoch(4) == leader.log.end_offset_for_epoch(4) == (4, 4)


async def test_topic_of_an_old_format_is_cut_to_what_is_committed(tmp_path: Path) -> None:
    """Its batches carry no epochs: what the one notes of its own says nothing to the other."""
    config = TopicConfig(message_format_version="0.10.2")
    leader = Leader(logs.Partition(tmp_path / "leader", config).open(clean=True))
    async with Replicas(tmp_path, log_message_format_version="0.10.2") as broker:
        leader.log.assign_epoch(0)
        write(leader.log, epoch=0, records=1)
        await follow(broker, leader, epoch=0)
        partition = broker.manager.partitions[KEY]
        copy(leader.log, partition.log, 0, 1)
        await broker.lead(replicas=(1, LEADER), epoch=1)
        write(partition.log, epoch=1, records=1)
        partition.advance_high_watermark()
        copy(partition.log, leader.log, 1, 2)
        write(partition.log, epoch=1, records=1)
        leader.log.assign_epoch(2)
        await follow(broker, leader, epoch=2)
        assert partition.log.log_end_offset == 2
