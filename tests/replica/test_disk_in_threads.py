"""What waits for the disk does not hold up the event loop, and nothing overtakes it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.control import StopReplicaRequest, StopReplicaTopicV1
from odradek.protocol.messages.fetch import FetchRequest, FetchResponse
from odradek.protocol.messages.offsets import OffsetForLeaderEpochResponse
from odradek.replica.appends import AppendOutcome
from odradek.replica.truncation import Truncation
from odradek.values import TopicPartition
from tests.support import logs
from tests.support.replicas import KEY, Replicas
from tests.support.slow_disk import SlowDisk


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path, log_flush_interval_messages="1") as replicas:
        yield replicas


async def produce(broker: Replicas, acks: int) -> AppendOutcome:
    outcomes = await broker.manager.append([(KEY, logs.batch(b"a"))], acks, 30_000, Origin.CLIENT)
    return outcomes[0]


@pytest.mark.parametrize("acks", [1, -1])
async def test_flush_messages_delays_the_acknowledgement_and_not_the_loop(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    await broker.lead()
    partition = broker.manager.partitions[KEY]
    disk = SlowDisk(monkeypatch, "flush")
    waiting = asyncio.create_task(produce(broker, acks))
    await disk.reached()
    assert partition.log.log_end_offset == 1
    assert partition.high_watermark == 0, "nobody sees what may be lost"
    assert not waiting.done()
    disk.go_on.set()
    assert (await waiting).error is ErrorCode.NONE
    assert partition.log.recovery_point == 1
    assert partition.high_watermark == 1


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_failed_flush_is_not_acknowledged(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    await broker.lead()
    disk = SlowDisk(monkeypatch, "flush")
    disk.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(OSError(errno.EIO, "bad disk")))
    disk.go_on.set()
    assert (await produce(broker, acks)).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.manager.partitions[KEY].high_watermark == 0
    disk.failure = None


class Silent:
    """Stands for a leader that notes the fetch offsets it is sent, and has nothing new."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def call(self, request: object, version: int, timeout_ms: int) -> object:
        if not isinstance(request, FetchRequest):
            return OffsetForLeaderEpochResponse(topics=[])
        self.asked += [one.fetch_offset for topic in request.topics for one in topic.partitions]
        return FetchResponse(responses=[])


async def test_a_follower_reports_no_log_end_that_it_failed_to_flush(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.take(leader=2, replicas=(1, 2))
    log = broker.manager.partitions[KEY].log
    leader = Silent()
    fetcher = broker.fetcher_from(2, leader)
    following = fetcher._followed.by_key[KEY]
    following.truncating = False
    log.append_as_follower(logs.batch(b"a"))
    disk = SlowDisk(monkeypatch, "flush")
    disk.go_on.set()
    disk.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "too many open files")
    for _ in range(2):
        await fetcher._round(fetcher._followed.ready())
        assert leader.asked == []
        broker.clock.now += broker.config.replica_fetch_backoff_ms
    disk.failure = None
    await fetcher._round(fetcher._followed.ready())
    assert leader.asked == [log.recovery_point] == [1]


async def cut_slowly(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> tuple[SlowDisk, asyncio.Task[None]]:
    """Have a follower of three records cut to one, on a disk that does not go on by itself."""
    await broker.lead(replicas=(1, 2))
    for _ in range(3):
        await produce(broker, 1)
    await broker.take(leader=2, replicas=(1, 2), epoch=1)
    fetcher = broker.fetcher_from(2)
    disk = SlowDisk(monkeypatch, "truncate_to")
    following = fetcher._followed.by_key[KEY]
    cutting = asyncio.create_task(fetcher._agreement.cut(following, Truncation(1, complete=True)))
    await disk.reached()
    return disk, cutting


def stop(*, delete: bool) -> StopReplicaRequest:
    return StopReplicaRequest(
        controller_id=1,
        controller_epoch=1,
        delete_partitions=delete,
        topics=[StopReplicaTopicV1(name=KEY.topic, partition_indexes=[0])],
    )


async def test_a_new_role_is_taken_after_a_cut_under_way(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, cutting = await cut_slowly(broker, monkeypatch)
    partition = broker.manager.partitions[KEY]
    async with asyncio.timeout(30):
        await broker.lead(replicas=(1, 2), epoch=2)
    assert (partition.is_leader, partition.leader_epoch) == (False, 1)
    assert (await produce(broker, 1)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    disk.go_on.set()
    await cutting
    assert partition.is_leader
    assert partition.log.log_end_offset == partition.leader_epoch_start == 1
    assert partition.high_watermark == 1
    assert partition.log.epochs.entries == [(0, 0), (2, 1)]


async def test_a_slow_cut_holds_up_no_role_of_another_partition(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, cutting = await cut_slowly(broker, monkeypatch)
    async with asyncio.timeout(30):
        await broker.lead(replicas=(1, 2), epoch=2)
        await broker.lead(topic="other")
        await broker.take(leader=2, replicas=(1, 2), topic="third")
    assert broker.manager.partitions[TopicPartition("other", 0)].is_leader
    assert broker.manager.partitions[TopicPartition("third", 0)].leader == 2
    disk.go_on.set()
    await cutting


async def test_of_the_roles_that_came_during_a_cut_the_newest_is_taken(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, cutting = await cut_slowly(broker, monkeypatch)
    partition = broker.manager.partitions[KEY]
    await broker.lead(replicas=(1, 2), epoch=2)
    await broker.take(leader=2, replicas=(1, 2), epoch=4)
    await broker.lead(replicas=(1, 2), epoch=3)
    disk.go_on.set()
    await cutting
    assert (partition.leader, partition.leader_epoch) == (2, 4)


async def test_a_role_that_cannot_be_taken_after_a_cut_is_asked_for_again(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller was answered that it is taken."""
    disk, cutting = await cut_slowly(broker, monkeypatch)
    partition = broker.manager.partitions[KEY]
    await broker.lead(replicas=(1, 2), epoch=2)
    with monkeypatch.context() as patched:
        patched.setattr(partition.log, "assign_epoch", lambda epoch: 1 / 0)
        disk.go_on.set()
        await cutting
    assert not partition.is_leader
    assert broker.failed_replicas == 1
    await broker.lead(replicas=(1, 2), epoch=2)
    assert partition.is_leader


async def test_a_role_that_came_during_a_cut_is_not_taken_of_a_stopped_replica(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, cutting = await cut_slowly(broker, monkeypatch)
    partition = broker.manager.partitions[KEY]
    await broker.lead(replicas=(1, 2), epoch=2)
    async with asyncio.timeout(30):
        await broker.manager.stop_replicas(stop(delete=False))
    disk.go_on.set()
    await cutting
    assert (partition.leader, partition.leader_epoch) == (2, 1)


async def test_a_deletion_that_waits_for_a_cut_holds_up_no_role(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, cutting = await cut_slowly(broker, monkeypatch)
    deleting = asyncio.create_task(broker.manager.stop_replicas(stop(delete=True)))
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await broker.lead(topic="other")
    assert not deleting.done()
    disk.go_on.set()
    await cutting
    assert await deleting == (ErrorCode.NONE, {KEY: ErrorCode.NONE})
    assert broker.logs.get(*KEY) is None


async def test_a_deletion_for_a_former_registration_deletes_nothing(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, cutting = await cut_slowly(broker, monkeypatch)
    deleting = asyncio.create_task(broker.manager.stop_replicas(stop(delete=True)))
    await asyncio.sleep(0)
    broker.session.generation += 1
    await broker.take(leader=2, isr=(2,), replicas=(1, 2), epoch=2)
    disk.go_on.set()
    await cutting
    assert await deleting == (ErrorCode.STALE_BROKER_EPOCH, {})
    assert broker.logs.get(*KEY) is not None
    assert broker.manager.partitions[KEY].leader_epoch == 2
