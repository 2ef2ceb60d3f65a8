"""An unexpected exception about one partition leaves the others, and the broker, as they are.

The exceptions are injected: nothing that a client, a peer or a disk does is known to cause them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from odradek import quarantine
from odradek.log.partition.producers import ProducerStates
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.control import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    StopReplicaTopicV1,
)
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from odradek.protocol.messages.offsets import (
    OffsetForLeaderEpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from odradek.replica import isr_notices, isr_writer
from odradek.replica.metadata import described
from odradek.replica.partition import Partition
from odradek.replica.purgatory import Purgatory
from odradek.values import NO_LEADER, TopicPartition
from odradek.zk import znodes
from tests.support import logs
from tests.support.control import state, update
from tests.support.replicas import Replicas

SICK, SOUND = TopicPartition("sick", 0), TopicPartition("sound", 0)
LEADER = 2


class Failing:
    """Raises as often as it is told, then does what it stands for."""

    def __init__(self, real: Callable[..., Any], times: int = 1) -> None:
        self.real, self.times = real, times
        self.failed = 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self.failed < self.times:
            self.failed += 1
            raise KeyError("unforeseen")
        return self.real(*arguments, **options)


class Leader:
    """Broker 2 leads every partition, each with one record."""

    fetches = 0

    async def call(self, request: Any, version: int, timeout_ms: int) -> Any:
        await asyncio.sleep(0.001)
        answer = self.fetched if isinstance(request, FetchRequest) else self.epoch_ends
        return answer(request)

    async def close(self) -> None:
        pass

    def fetched(self, request: FetchRequest) -> FetchResponse:
        self.fetches += 1
        answers = []
        for topic in request.topics:
            parts = [
                FetchablePartitionResponse(
                    partition=one.partition,
                    high_watermark=1,
                    record_set=b"" if one.fetch_offset else logs.batch(b"v"),
                )
                for one in topic.partitions
            ]
            answers.append(FetchableTopicResponse(topic=topic.topic, partition_responses=parts))
        return FetchResponse(responses=answers)

    def epoch_ends(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        ends = [
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    OffsetForLeaderEpochEndOffset(
                        partition=one.partition, leader_epoch=0, end_offset=1
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return OffsetForLeaderEpochResponse(topics=ends)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 0.01)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path) as replicas:
        yield replicas


@contextlib.asynccontextmanager
async def working(broker: Replicas, leader: object = None) -> AsyncIterator[None]:
    """The background work of the broker; it must not end by itself."""
    broker.connect = lambda _: leader  # type: ignore[assignment,return-value]
    running = asyncio.create_task(broker.manager.run())
    clock = asyncio.create_task(let_time_pass(broker))
    yield
    assert not running.done(), running.exception()
    for task in (running, clock):
        task.cancel()
    await asyncio.gather(running, clock, return_exceptions=True)


async def let_time_pass(broker: Replicas) -> None:
    while True:
        await asyncio.sleep(0.001)
        broker.clock.now += 1


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def counted(broker: Replicas) -> list[tuple[str, int, int]]:
    """(kind, exceptions, held now), of the kinds with an exception."""
    totals, held = broker.manager.quarantines.totals(), broker.manager.quarantines.held()
    return [(kind, total, held[kind]) for kind, total in totals.items() if total]


async def follow(broker: Replicas) -> None:
    for key in (SICK, SOUND):
        await broker.take(leader=LEADER, replicas=(1, LEADER), topic=key.topic)


def end(broker: Replicas, key: TopicPartition) -> int:
    return broker.manager.partitions[key].log.log_end_offset


async def test_a_partition_that_cannot_be_copied_is_left_out_until_it_can(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await follow(broker)
    sick = broker.manager.partitions[SICK].log
    failing = Failing(sick.append_as_follower, times=3)
    monkeypatch.setattr(sick, "append_as_follower", failing)
    async with working(broker, Leader()):
        await until(lambda: end(broker, SOUND) == 1)
        await until(lambda: end(broker, SICK) == 1)
        await until(lambda: counted(broker) == [("copying", 3, 0)])


async def test_a_partition_in_quarantine_holds_up_no_fetch_of_others(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await follow(broker)
    sick = broker.manager.partitions[SICK].log
    monkeypatch.setattr(sick, "append_as_follower", Failing(sick.append_as_follower, times=10**9))
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(quarantine, "LONGEST_PAUSE_S", 3600.0)
    leader = Leader()
    async with working(broker, leader):
        await until(lambda: end(broker, SOUND) == 1 and leader.fetches > 3)
        assert counted(broker) == [("copying", 1, 1)]
        await broker.take(leader=LEADER, replicas=(1, LEADER), topic=SICK.topic, epoch=1)
        await until(lambda: counted(broker) == [("copying", 2, 1)])


async def test_a_fetcher_that_fails_as_a_whole_begins_anew(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await follow(broker)
    leader = Leader()
    monkeypatch.setattr(leader, "fetched", Failing(leader.fetched, times=2))
    async with working(broker, leader):
        await until(lambda: end(broker, SOUND) == end(broker, SICK) == 1)
        await until(lambda: counted(broker) == [("source", 2, 0)])


async def test_a_truncation_that_breaks_off_takes_its_partition_offline_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller is told; the next start recovers the log, though the broker stops in order."""
    async with Replicas(tmp_path) as broker:
        await broker.lead(topic=SICK.topic)
        sick = broker.manager.partitions[SICK].log
        for _ in range(3):
            sick.append_as_leader(logs.batch(b"v"), 0)
        await follow_in_epoch(broker, 1)
        monkeypatch.setattr(sick, "reload_producers", Failing(len))
        async with working(broker, Leader()):
            await until(lambda: end(broker, SOUND) == 1)
            await until(lambda: broker.failed_replicas)
            assert broker.manager.partitions[SICK].offline
            assert counted(broker) == [("truncation", 1, 0)]
            _, answer = await follow_in_epoch(broker, 2)
            assert answer == {SICK: ErrorCode.KAFKA_STORAGE_ERROR, SOUND: ErrorCode.NONE}
        assert broker.logs.online_directories
    async with Replicas(tmp_path) as broker:
        await broker.take(leader=LEADER, replicas=(1, LEADER), topic=SICK.topic, epoch=3)
        log = broker.manager.partitions[SICK].log
        assert log.log_end_offset == log.producers.end_offset == 1


async def follow_in_epoch(broker: Replicas, epoch: int) -> Any:
    """Send one LeaderAndIsr for both partitions."""
    return await broker.manager.become_leader_or_follower(roles(epoch, leader=LEADER))


def roles(epoch: int, leader: int) -> LeaderAndIsrRequest:
    return LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=1,
        ungrouped_partition_states=[
            LeaderAndIsrPartitionState(
                topic_name=key.topic,
                partition_index=key.partition,
                controller_epoch=1,
                leader=leader,
                leader_epoch=epoch,
                isr=[1, LEADER],
                zk_version=epoch,
                replicas=[1, LEADER],
                is_new=True,
            )
            for key in (SICK, SOUND)
        ],
        live_leaders=[],
    )


async def test_a_role_that_cannot_be_taken_is_refused_and_may_be_asked_for_again(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await follow(broker)
    sick = broker.manager.partitions[SICK]
    monkeypatch.setattr(sick.log, "assign_epoch", Failing(sick.log.assign_epoch))
    _, answer = await broker.manager.become_leader_or_follower(roles(1, leader=1))
    assert answer == {SICK: ErrorCode.KAFKA_STORAGE_ERROR, SOUND: ErrorCode.NONE}
    assert not sick.is_leader
    assert counted(broker) == [("role", 1, 1)]
    _, answer = await broker.manager.become_leader_or_follower(roles(1, leader=1))
    assert answer[SICK] is ErrorCode.NONE
    assert sick.is_leader
    assert counted(broker) == [("role", 1, 0)]


async def test_a_replica_that_cannot_be_hosted_or_stopped_fails_alone(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller would repeat the request for ever, and the broker never get another."""
    for method in ("_host", "stop"):
        real = getattr(broker.manager._roles, method)

        def work(
            key: TopicPartition, *arguments: Any, real: Callable[..., Any] = real, **options: Any
        ) -> Any:
            if key == SICK:
                raise KeyError("unforeseen")
            return real(key, *arguments, **options)

        monkeypatch.setattr(broker.manager._roles, method, work)
    failed = {SICK: ErrorCode.KAFKA_STORAGE_ERROR, SOUND: ErrorCode.NONE}
    _, answer = await broker.manager.become_leader_or_follower(roles(1, leader=1))
    assert answer == failed
    topics = [StopReplicaTopicV1(name=key.topic, partition_indexes=[0]) for key in (SICK, SOUND)]
    _, answer = await broker.manager.stop_replicas(
        StopReplicaRequest(controller_id=1, controller_epoch=1, topics=topics)
    )
    assert answer == failed


async def test_a_role_that_broke_off_half_way_is_taken_at_the_next_request(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await follow(broker)
    sick = broker.manager.partitions[SICK]
    failing = Failing(Partition.advance_high_watermark)
    monkeypatch.setattr(Partition, "advance_high_watermark", lambda self: failing(self))
    _, answer = await broker.manager.become_leader_or_follower(roles(1, leader=1))
    assert answer == {SICK: ErrorCode.KAFKA_STORAGE_ERROR, SOUND: ErrorCode.NONE}
    assert sick.leader == NO_LEADER
    _, answer = await broker.manager.become_leader_or_follower(roles(1, leader=1))
    assert answer == {SICK: ErrorCode.NONE, SOUND: ErrorCode.STALE_CONTROLLER_EPOCH}
    assert sick.is_leader


async def test_in_sync_sets_of_other_partitions_shrink_beside_one_that_cannot_be_checked(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in (SICK, SOUND):
        await broker.lead(isr=(1, LEADER), replicas=(1, LEADER), topic=key.topic)
        broker.session.znodes[znodes.state_path(*key)] = b"", 0
        broker.manager.partitions[key].log.append_as_leader(logs.batch(b"v"), 0)
    real = Partition.propose_shrink
    failing = Failing(real)

    def propose(self: Partition) -> object:
        return failing(self) if self.key == SICK else real(self)

    monkeypatch.setattr(Partition, "propose_shrink", propose)
    broker.clock.now += broker.config.replica_lag_time_max_ms + 1
    async with working(broker):
        broker.manager.check_in_sync_sets()
        await until(lambda: in_sync(broker, SOUND) == (1,))
        assert in_sync(broker, SICK) == (1, LEADER)
        assert counted(broker) == [("isr-check", 1, 1)]
        broker.manager.check_in_sync_sets()
        await until(lambda: in_sync(broker, SICK) == (1,))
        assert counted(broker) == [("isr-check", 1, 0)]


def in_sync(broker: Replicas, key: TopicPartition) -> tuple[int, ...]:
    return broker.manager.partitions[key].isr.committed


async def test_an_in_sync_set_that_cannot_be_written_stays_pending_and_is_written_later(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.lead(isr=(1, LEADER), replicas=(1, LEADER), topic=SICK.topic)
    broker.session.znodes[znodes.state_path(*SICK)] = b"", 0
    partition = broker.manager.partitions[SICK]
    partition.log.append_as_leader(logs.batch(b"v"), 0)
    broker.clock.now += broker.config.replica_lag_time_max_ms + 1
    writer = broker.manager.isr_writer
    # After the write: the second attempt finds its own.
    monkeypatch.setattr(writer, "_finish", Failing(writer._finish))
    async with working(broker):
        broker.manager.check_in_sync_sets()
        await until(lambda: in_sync(broker, SICK) == (1,))
        assert partition.zk_version == 1
        await until(lambda: counted(broker) == [("isr-write", 1, 0)])


async def test_more_poisonous_changes_than_writers_hold_up_no_other_change(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isr_writer, "CONCURRENT_WRITES", 1)
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(quarantine, "LONGEST_PAUSE_S", 3600.0)
    for key in (SICK, SOUND):
        await broker.lead(isr=(1, LEADER), replicas=(1, LEADER), topic=key.topic)
        broker.session.znodes[znodes.state_path(*key)] = b"", 0
        broker.manager.partitions[key].log.append_as_leader(logs.batch(b"v"), 0)
    broker.clock.now += broker.config.replica_lag_time_max_ms + 1
    monkeypatch.setattr(
        znodes, "encode_state", Failing(znodes.encode_state)
    )  # of the first that is written: the sick one's
    async with working(broker):
        broker.manager.check_in_sync_sets()
        await until(lambda: in_sync(broker, SOUND) == (1,))
    assert in_sync(broker, SICK) == (1, LEADER)
    assert broker.manager.partitions[SICK].isr.pending == (1,)


async def test_announcements_that_fail_are_made_later(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = asyncio.Event()

    async def create(*arguments: Any, **options: Any) -> str:
        told.set()
        return "path"

    failing = Failing(create, times=2)
    monkeypatch.setattr(broker.session, "create", failing, raising=False)
    monkeypatch.setattr(isr_notices, "CHECK_S", 0.001)
    broker.manager.isr_writer._notices.add(SICK)
    broker.clock.now += isr_notices.LONGEST_MS
    async with working(broker):
        async with asyncio.timeout(60):
            await told.wait()
        assert broker.manager.quarantines.totals()["isr-notice"] == 2


async def test_a_stray_replica_that_cannot_be_deleted_stays_alone(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in (SICK, SOUND):
        logs.new_log(broker.logs, *key, broker.topic_configs(key.topic))
    stray = [state(topic=key.topic, leader=2, replicas=(2, 3)) for key in (SICK, SOUND)]
    real = broker.manager._roles.stop
    failing = Failing(real, times=2)

    async def stop(key: TopicPartition, *arguments: Any, **options: Any) -> Any:
        return await (failing if key == SICK else real)(key, *arguments, **options)

    monkeypatch.setattr(broker.manager._roles, "stop", stop)
    async with working(broker):
        request = update(*stray)
        broker.metadata.update(request)
        broker.manager.drop_moved_replicas(list(described(request)))
        await until(lambda: broker.logs.get(*SOUND) is None)
        await until(lambda: counted(broker) == [("stray-replica", 1, 1)])
        assert broker.logs.get(*SICK) is not None
        broker.manager.drop_moved_replicas(list(described(request)))
        await until(lambda: broker.logs.get(*SICK) is None)
        await until(lambda: counted(broker) == [("stray-replica", 1, 0)])


@pytest.mark.parametrize(("epoch", "is_kept"), [(3, False), (10_002, True)])
async def test_a_stray_replica_stays_if_leader_epochs_were_raised(
    broker: Replicas, epoch: int, is_kept: bool
) -> None:
    """As after ZooKeeper went back to an older copy: it may be the last with the records."""
    for key in (SICK, SOUND):
        logs.new_log(broker.logs, *key, broker.topic_configs(key.topic))
    sick = broker.logs.get(*SICK)
    assert sick is not None
    sick.assign_epoch(2)
    stray = [state(topic=key.topic, leader=2, replicas=(2, 3)) for key in (SICK, SOUND)]
    stray[0].leader_epoch = epoch
    async with working(broker):
        request = update(*stray)
        broker.metadata.update(request)
        broker.manager.drop_moved_replicas(list(described(request)))
        await until(lambda: broker.logs.get(*SOUND) is None)
        if not is_kept:
            await until(lambda: broker.logs.get(*SICK) is None)
    assert (broker.logs.get(*SICK) is not None) == is_kept


async def test_a_condition_that_raises_ends_the_wait_of_its_request_and_no_other(
    broker: Replicas,
) -> None:
    """Not the work of whoever appended, and not the waiters behind it."""
    waiting: Purgatory[str] = Purgatory()
    sick = asyncio.create_task(waiting.wait(["key"], 60_000, Failing(bool)))
    sound = asyncio.create_task(waiting.wait(["key"], 60_000))
    await asyncio.sleep(0)
    waiting.wake("key")
    assert await sound
    with pytest.raises(KeyError):
        await sick
    assert len(waiting) == 0


@pytest.mark.parametrize("as_leader", [True, False])
def test_an_append_that_broke_off_behind_its_write_does_not_forget_its_producer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_leader: bool
) -> None:
    """Else a retry would be stored twice: here, or after an election."""
    log = logs.Partition(tmp_path).open(clean=True)
    first = logs.batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0)
    failing = Failing(lambda *_: None)
    with monkeypatch.context() as patched:
        patched.setattr(ProducerStates, "note", lambda self, *_: failing())
        with pytest.raises(KeyError):
            log.append_as_leader(first, 0) if as_leader else log.append_as_follower(first)
    assert log.log_end_offset == 1
    if not as_leader:
        log.append_as_follower((1).to_bytes(8, "big") + logs.batch(b"w")[8:])
    retried = log.append_as_leader(first, 0)
    assert retried.duplicate
    assert retried.base_offset == 0
