"""What a replica manager acknowledges, shows and refuses (rows R2, R3, R4, C2)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kazoo.exceptions import ConnectionLoss

from odradek.log.partition import epochs
from odradek.log.partition.producers import FormerProducers
from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.control import UpdateMetadataPartitionState
from odradek.replica import appends
from odradek.replica.appends import AppendOutcome
from odradek.replica.fetch_specs import FetchLimits, FetchResult, FetchSpec
from odradek.replica.former_topics import FormerTopics
from odradek.replica.reads import CONSUMER, release
from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from odradek.zk import znodes
from tests.support import logs
from tests.support.replicas import KEY, Replicas

PATH = znodes.state_path(KEY.topic, KEY.partition)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path) as replicas:
        yield replicas


async def produce(
    broker: Replicas, *values: bytes, acks: int = -1, timeout_ms: int = 0
) -> AppendOutcome:
    records = logs.batch(*values)
    return (await broker.manager.append([(KEY, records)], acks, timeout_ms, Origin.CLIENT))[0]


async def fetch(
    broker: Replicas, offset: int, replica: int = CONSUMER, wait_ms: int = 0, **limits: int
) -> FetchResult:
    wish = FetchSpec(KEY, offset, limits.get("partition_bytes", 1 << 20))
    asked = FetchLimits(wait_ms, limits.get("min_bytes", 1), limits.get("max_bytes", 1 << 20))
    return (await broker.manager.fetch([wish], replica, asked))[0]


async def catch_up(broker: Replicas, offset: int, replica: int) -> None:
    """Fetch until the leader knows that the follower lives under its present registration."""
    for _ in range(3):
        await fetch(broker, offset, replica)
        await asyncio.sleep(0)


def size(result: FetchResult) -> int:
    length = result.region.length if result.region is not None else 0
    release([result])
    return length


async def test_single_replica_acknowledges_at_once(broker: Replicas) -> None:
    await broker.lead()
    outcome = await produce(broker, b"a", b"b")
    assert (outcome.error, outcome.base_offset) == (ErrorCode.NONE, 0)
    assert size(await fetch(broker, 0)) > 0


async def test_an_in_sync_replica_that_is_no_replica_leaves_the_set(broker: Replicas) -> None:
    await broker.lead(isr=(1, 7), replicas=(1, 2))
    await produce(broker, b"a", acks=1)
    broker.clock.now += broker.config.replica_lag_time_max_ms + 1
    change = broker.manager.partitions[KEY].propose_shrink()
    assert change is not None
    assert change.isr == (1,)


@pytest.mark.parametrize("limit", [None, "2"])
async def test_a_follower_may_lag_by_messages_where_the_broker_says_so(
    tmp_path: Path, limit: str | None
) -> None:
    settings = {} if limit is None else {"replica_lag_max_messages": limit}
    async with Replicas(tmp_path, **settings) as broker:
        await broker.lead(isr=(1, 2), replicas=(1, 2))
        partition = broker.manager.partitions[KEY]
        await produce(broker, b"a", b"b", acks=1)
        assert partition.propose_shrink() is None
        await produce(broker, b"c", acks=1)
        change = partition.propose_shrink()
        assert (None if change is None else change.isr) == (None if limit is None else (1,))


async def test_acks_all_waits_for_the_followers_fetch(broker: Replicas) -> None:
    await broker.lead(isr=(1, 2), replicas=(1, 2))
    waiting = asyncio.create_task(produce(broker, b"a", timeout_ms=60_000))
    await asyncio.sleep(0)
    release([await fetch(broker, 0, replica=2)])
    await asyncio.sleep(0)
    assert not waiting.done()
    await fetch(broker, 1, replica=2)
    assert (await waiting).error is ErrorCode.NONE


async def test_acknowledgement_of_many_partitions_is_looked_for_once_in_each(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [TopicPartition(f"topic-{number}", 0) for number in range(60)]
    for key in keys:
        await broker.lead(isr=(1, 2), replicas=(1, 2), topic=key.topic)
    asked, settled = 0, appends._Unacknowledged.settled

    def counted(one: appends._Unacknowledged) -> bool:
        nonlocal asked
        asked += 1
        return settled(one)

    monkeypatch.setattr(appends._Unacknowledged, "settled", counted)
    records = [(key, logs.batch(b"a")) for key in keys]
    produced = asyncio.create_task(broker.manager.append(records, -1, 60_000, Origin.CLIENT))
    await asyncio.sleep(0)
    # The high watermarks rise one after the other.
    at_end = [FetchSpec(key, 1, 1 << 20) for key in keys]
    await broker.manager.fetch(at_end, 2, FetchLimits(0, 1, 1 << 20))
    assert {one.error for one in await produced} == {ErrorCode.NONE}
    assert asked <= 4 * len(keys)


async def test_deletion_of_a_replica_lists_no_others(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.lead()
    await broker.lead(topic="another")

    def listed() -> None:
        raise AssertionError("all logs are listed")

    monkeypatch.setattr(broker.logs, "logs", listed)
    await broker.delete()
    assert [key.topic for key in broker.manager.partitions] == ["another"]


async def test_acks_all_times_out_without_the_follower(broker: Replicas) -> None:
    await broker.lead(isr=(1, 2), replicas=(1, 2))
    assert (await produce(broker, b"a", timeout_ms=1)).error is ErrorCode.REQUEST_TIMED_OUT


async def test_acks_one_does_not_wait(broker: Replicas) -> None:
    await broker.lead(isr=(1, 2), replicas=(1, 2))
    assert (await produce(broker, b"a", acks=1)).error is ErrorCode.NONE


async def test_consumer_sees_only_below_the_high_watermark_and_follower_up_to_the_end(
    broker: Replicas,
) -> None:
    await broker.lead(isr=(1, 2), replicas=(1, 2))
    await produce(broker, b"a", acks=1)
    assert size(await fetch(broker, 0)) == 0
    assert size(await fetch(broker, 0, replica=2)) > 0
    await fetch(broker, 1, replica=2)
    assert size(await fetch(broker, 0)) > 0


async def test_too_few_in_sync_replicas_refuse_before_writing(tmp_path: Path) -> None:
    async with Replicas(tmp_path, min_insync_replicas="2") as broker:
        await broker.lead(isr=(1,), replicas=(1, 2))
        assert (await produce(broker, b"a")).error is ErrorCode.NOT_ENOUGH_REPLICAS
        assert broker.manager.partitions[KEY].log.log_end_offset == 0
        assert (await produce(broker, b"a", acks=1)).error is ErrorCode.NONE


async def test_in_sync_set_that_shrank_meanwhile_is_told_after_the_append(tmp_path: Path) -> None:
    async with Replicas(tmp_path, min_insync_replicas="2") as broker:
        await broker.lead(isr=(1, 2), replicas=(1, 2))
        waiting = asyncio.create_task(produce(broker, b"a", timeout_ms=60_000))
        await asyncio.sleep(0)
        await confirm_shrink(broker)
        assert (await waiting).error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


async def confirm_shrink(broker: Replicas) -> None:
    """Let every follower lag, and write the shrunk set."""
    partition = broker.manager.partitions[KEY]
    broker.session.znodes[PATH] = b"", partition.zk_version
    broker.clock.now += broker.config.replica_lag_time_max_ms + 1
    change = partition.propose_shrink()
    assert change is not None
    await settle(broker, change)


async def settle(broker: Replicas, change: object) -> None:
    writer = broker.manager.isr_writer
    running = asyncio.create_task(writer.run())
    writer.submit(change)  # type: ignore[arg-type]
    while broker.manager.partitions[KEY].isr.pending is not None and not running.done():
        await asyncio.sleep(0.001)
    assert not running.done(), running.exception()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_shrink_releases_the_high_watermark_only_when_zookeeper_confirmed(
    broker: Replicas,
) -> None:
    await broker.lead(isr=(1, 2), replicas=(1, 2))
    await produce(broker, b"a", acks=1)
    partition = broker.manager.partitions[KEY]
    broker.clock.now += broker.config.replica_lag_time_max_ms + 1
    change = partition.propose_shrink()
    assert change is not None
    partition.advance_high_watermark()
    assert partition.high_watermark == 0
    broker.session.znodes[PATH] = b"", partition.zk_version
    await settle(broker, change)
    assert partition.high_watermark == 1
    assert znodes.decode_state(PATH, broker.session.znodes[PATH][0]).isr == (1,)


def controller_writes(broker: Replicas, leader: int, isr: tuple[int, ...]) -> None:
    """A state of a newer leader epoch, of which this broker was not told yet."""
    state = znodes.PartitionState(
        BrokerId(leader),
        LeaderEpoch(1),
        tuple(map(BrokerId, isr)),
        ControllerEpoch(2),
    )
    version = broker.manager.partitions[KEY].zk_version
    broker.session.znodes[PATH] = znodes.encode_state(state), version + 5


async def try_to_write(broker: Replicas) -> None:
    """Let the writer come to its end with a submitted change that it cannot write."""
    running = asyncio.create_task(broker.manager.isr_writer.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not running.done(), running.exception()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_refused_change_commits_nothing(broker: Replicas) -> None:
    await broker.lead(isr=(1, 2), replicas=(1, 2))
    await produce(broker, b"a", acks=1)
    partition = broker.manager.partitions[KEY]
    broker.clock.now += broker.config.replica_lag_time_max_ms + 1
    change = partition.propose_shrink()
    assert change is not None
    broker.manager.isr_writer.submit(change)
    controller_writes(broker, leader=2, isr=(2,))
    await try_to_write(broker)
    assert partition.isr.committed == (1, 2)
    assert partition.high_watermark == 0


async def test_nothing_is_committed_without_a_replica_that_a_refused_change_would_let_in(
    broker: Replicas,
) -> None:
    await broker.lead(isr=(1, 2), replicas=(1, 2, 3))
    partition = broker.manager.partitions[KEY]
    await catch_up(broker, 0, replica=3)
    assert partition.isr.pending == (1, 2, 3)
    # The change was written, its answer lost, and the controller made broker 3 the leader.
    controller_writes(broker, leader=3, isr=(1, 2, 3))
    await try_to_write(broker)
    broker.clock.now += broker.config.replica_lag_time_max_ms + 1
    await produce(broker, b"a", acks=1)
    await fetch(broker, 1, replica=2, wait_ms=0)
    assert partition.high_watermark == 0
    await broker.lead(isr=(1, 2), replicas=(1, 2, 3), epoch=6)
    await fetch(broker, 1, replica=2, wait_ms=0)
    assert partition.high_watermark == 1


async def test_change_whose_answer_was_lost_is_found_written(broker: Replicas) -> None:
    await broker.lead(isr=(1, 2), replicas=(1, 2))
    partition = broker.manager.partitions[KEY]
    broker.session.lost_answers.append(ConnectionLoss())
    broker.session.znodes[PATH] = b"", partition.zk_version
    await produce(broker, b"a", acks=1)
    broker.clock.now += broker.config.replica_lag_time_max_ms + 1
    change = partition.propose_shrink()
    assert change is not None
    await settle(broker, change)
    assert partition.isr.committed == (1,)
    assert partition.zk_version == broker.session.znodes[PATH][1]


async def test_new_leader_epoch_forgets_a_change_under_way(broker: Replicas) -> None:
    await broker.lead(isr=(1, 2), replicas=(1, 2))
    await produce(broker, b"a", acks=1)
    partition = broker.manager.partitions[KEY]
    broker.clock.now += broker.config.replica_lag_time_max_ms + 1
    change = partition.propose_shrink()
    assert change is not None
    await broker.lead(isr=(1, 2), replicas=(1, 2), epoch=1)
    assert partition.isr.pending is None
    assert not partition.confirm(change, 99)
    assert partition.isr.committed == (1, 2)


async def test_caught_up_follower_is_proposed_for_the_set(broker: Replicas) -> None:
    await broker.lead(isr=(1,), replicas=(1, 2))
    await produce(broker, b"a")
    await catch_up(broker, 0, replica=2)
    partition = broker.manager.partitions[KEY]
    assert partition.isr.pending is None
    await catch_up(broker, 1, replica=2)
    assert partition.isr.pending == (1, 2)


async def test_follower_behind_the_leaders_epoch_start_does_not_join(broker: Replicas) -> None:
    await broker.lead(isr=(1, 2), replicas=(1, 2))
    await produce(broker, b"a", acks=1)
    await broker.lead(isr=(1,), replicas=(1, 2), epoch=1)
    partition = broker.manager.partitions[KEY]
    await catch_up(broker, 0, replica=2)
    assert partition.isr.pending is None
    await catch_up(broker, 1, replica=2)
    assert partition.isr.pending == (1, 2)


async def test_uncertain_session_refuses_what_only_this_broker_vouches_for(
    broker: Replicas,
) -> None:
    await broker.lead(isr=(1,), replicas=(1, 2))
    broker.session.deadline = 0.0
    assert (await produce(broker, b"a")).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert broker.manager.partitions[KEY].log.log_end_offset == 0


async def test_uncertain_session_still_acknowledges_what_a_follower_has(broker: Replicas) -> None:
    await broker.lead(isr=(1, 2), replicas=(1, 2))
    broker.session.deadline = 0.0
    waiting = asyncio.create_task(produce(broker, b"a", timeout_ms=60_000))
    await asyncio.sleep(0)
    await fetch(broker, 1, replica=2)
    assert (await waiting).error is ErrorCode.NONE


async def test_uncertain_session_serves_a_partition_that_has_no_other_replica(
    broker: Replicas,
) -> None:
    await broker.lead()
    broker.session.deadline = 0.0
    assert (await produce(broker, b"a")).error is ErrorCode.NONE


async def test_lost_leadership_ends_waiting_produces_with_not_leader(broker: Replicas) -> None:
    await broker.lead(isr=(1, 2), replicas=(1, 2))
    waiting = asyncio.create_task(produce(broker, b"a", timeout_ms=60_000))
    await asyncio.sleep(0)
    await broker.take(leader=2, isr=(1, 2), replicas=(1, 2), epoch=1)
    assert (await waiting).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_what_was_committed_before_leadership_was_lost_is_acknowledged(
    broker: Replicas,
) -> None:
    """The request had to wait for another partition."""
    other = TopicPartition("other", 0)
    for key in (KEY, other):
        await broker.lead(isr=(1, 2), replicas=(1, 2), topic=key.topic)
    records = [(key, logs.batch(b"a")) for key in (KEY, other)]
    waiting = asyncio.create_task(broker.manager.append(records, -1, 60_000, Origin.CLIENT))
    await asyncio.sleep(0)
    await fetch(broker, 1, replica=2)
    for key in (KEY, other):
        await broker.take(leader=2, isr=(1, 2), replicas=(1, 2), epoch=1, topic=key.topic)
    assert [one.error for one in await waiting] == [
        ErrorCode.NONE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ]


async def test_produce_survives_a_new_epoch_of_the_same_leader(broker: Replicas) -> None:
    await broker.lead(isr=(1, 2, 3), replicas=(1, 2, 3))
    waiting = asyncio.create_task(produce(broker, b"a", timeout_ms=60_000))
    await asyncio.sleep(0)
    await broker.lead(isr=(1, 2), replicas=(1, 2, 3), epoch=1)
    await fetch(broker, 1, replica=2)
    assert (await waiting).error is ErrorCode.NONE


async def test_old_controller_is_refused(broker: Replicas) -> None:
    await broker.take(leader=1, controller_epoch=5)
    assert await broker.take(leader=1, epoch=1, controller_epoch=4) == (
        ErrorCode.STALE_CONTROLLER_EPOCH,
        {},
    )


async def test_role_of_a_known_epoch_is_not_taken_again(broker: Replicas) -> None:
    await broker.lead(epoch=3)
    assert await broker.take(leader=2, replicas=(1, 2), epoch=3) == (
        ErrorCode.NONE,
        {KEY: ErrorCode.STALE_CONTROLLER_EPOCH},
    )
    assert broker.manager.partitions[KEY].is_leader


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(1, ErrorCode.FENCED_LEADER_EPOCH), (3, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
async def test_request_of_another_leader_epoch_is_refused(
    broker: Replicas, epoch: int, error: ErrorCode
) -> None:
    await broker.lead(epoch=2)
    wish = FetchSpec(KEY, 0, 1000, leader_epoch=epoch)
    result = (await broker.manager.fetch([wish], CONSUMER, FetchLimits(0, 1, 1000)))[0]
    assert result.error is error


async def test_stranger_may_not_fetch_as_a_follower(broker: Replicas) -> None:
    await broker.lead(replicas=(1, 2))
    assert (await fetch(broker, 0, replica=7)).error is ErrorCode.REPLICA_NOT_AVAILABLE


@pytest.mark.parametrize("offset", [-1, 2])
async def test_offset_outside_the_log_is_out_of_range(broker: Replicas, offset: int) -> None:
    await broker.lead()
    await produce(broker, b"a")
    assert (await fetch(broker, offset)).error is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_fetch_waits_for_records_and_is_answered_when_they_come(broker: Replicas) -> None:
    await broker.lead()
    waiting = asyncio.create_task(fetch(broker, 0, wait_ms=60_000))
    await asyncio.sleep(0)
    assert not waiting.done()
    await produce(broker, b"a")
    assert size(await waiting) > 0


async def test_fetch_with_min_bytes_waits_until_enough_is_there(broker: Replicas) -> None:
    await broker.lead()
    waiting = asyncio.create_task(fetch(broker, 0, wait_ms=60_000, min_bytes=150))
    for _ in range(2):
        await produce(broker, b"a")
        await asyncio.sleep(0.001)
        assert not waiting.done()
    await produce(broker, b"a" * 100)
    assert size(await waiting) >= 150


async def test_first_batch_is_whole_even_beyond_the_limits(broker: Replicas) -> None:
    await broker.lead()
    await produce(broker, b"a" * 5000)
    assert size(await fetch(broker, 0, partition_bytes=100, max_bytes=100)) > 5000


@pytest.mark.parametrize("strict", [False, True])
async def test_later_partitions_get_whole_batches_or_none_unless_limits_are_strict(
    broker: Replicas, strict: bool
) -> None:
    await broker.lead()
    await produce(broker, b"a" * 1000)
    wish = FetchSpec(KEY, 0, 1 << 20)
    # Without `strict` nothing is worth waiting for: the next batch has no room however long.
    limits = FetchLimits(0 if strict else 60_000, 5000, 1500, strict)
    results = await broker.manager.fetch([wish, wish], CONSUMER, limits)
    assert [one.error for one in results] == [ErrorCode.NONE] * 2
    first, second = (size(one) for one in results)
    assert 1000 < first < 1500
    assert second == (1500 - first if strict else 0)


async def test_deleted_replica_is_unknown_afterwards(broker: Replicas) -> None:
    from odradek.protocol.messages.control import StopReplicaPartitionV0, StopReplicaRequest

    await broker.lead()
    await produce(broker, b"a")
    folder = Path(broker.manager.partitions[KEY].log.directory)
    error, errors = await broker.manager.stop_replicas(
        StopReplicaRequest(
            controller_id=1,
            controller_epoch=1,
            delete_partitions=True,
            ungrouped_partitions=[
                StopReplicaPartitionV0(topic_name=KEY.topic, partition_index=KEY.partition)
            ],
        )
    )
    assert (error, errors) == (ErrorCode.NONE, {KEY: ErrorCode.NONE})
    assert not folder.exists()
    assert (await fetch(broker, 0)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_failed_directory_is_told_whatever_the_epoch(broker: Replicas) -> None:
    await broker.lead(epoch=3)
    (partition,) = broker.manager.partitions.values()
    partition.offline = True
    assert await broker.take(leader=1, epoch=3) == (
        ErrorCode.NONE,
        {KEY: ErrorCode.KAFKA_STORAGE_ERROR},
    )


def no_descriptor(path: str, *_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, "no descriptor is left", path)


@pytest.mark.parametrize("leader", [1, 2])
async def test_no_role_is_taken_in_a_leader_epoch_below_one_in_the_log(
    broker: Replicas, leader: int
) -> None:
    """As after ZooKeeper went back to an older copy: records of it would not fit behind those."""
    await broker.lead(epoch=7)
    assert (await produce(broker, b"a")).error is ErrorCode.NONE
    del broker.manager._hosted.partitions[KEY]  # as if the broker had restarted
    for epoch, code in ((6, ErrorCode.FENCED_LEADER_EPOCH), (10_006, ErrorCode.NONE)):
        told = await broker.take(leader=leader, isr=(1, 2), replicas=(1, 2), epoch=epoch)
        assert told == (ErrorCode.NONE, {KEY: code})
        partition = broker.manager.partitions[KEY]
        assert partition.is_leader == (leader == 1 and code is ErrorCode.NONE)
        assert partition.is_follower == (leader == 2 and code is ErrorCode.NONE)
        assert partition.log.log_end_offset == 1


@pytest.mark.parametrize("former_leader", [None, 1, 2])
async def test_role_is_taken_whole_or_not_at_all(
    broker: Replicas, monkeypatch: pytest.MonkeyPatch, former_leader: int | None
) -> None:
    former_epoch = -1
    if former_leader is not None:
        await broker.take(leader=former_leader, isr=(1, 2), replicas=(1, 2), epoch=3)
        former_epoch = 3
    broker.session.generation += 1
    with monkeypatch.context() as patched:
        patched.setattr(epochs, "write_in_place", no_descriptor)
        patched.setattr(epochs, "write_atomically", no_descriptor)
        refused = await broker.take(leader=1, isr=(1, 2), replicas=(1, 2), epoch=4)
    assert refused == (ErrorCode.NONE, {KEY: ErrorCode.KAFKA_STORAGE_ERROR})
    partition = broker.manager.partitions[KEY]
    assert not partition.is_leader
    assert partition.leader_epoch == former_epoch
    assert not broker.manager.role_confirmed(partition)
    assert partition.log.latest_epoch < 4
    assert (await produce(broker, b"a", acks=-1)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.propose_shrink() is None
    # A lack of descriptors is no failure of the disk, and the same request is accepted later.
    accepted = await broker.take(leader=1, isr=(1, 2), replicas=(1, 2), epoch=4)
    assert accepted == (ErrorCode.NONE, {KEY: ErrorCode.NONE})
    assert partition.is_leader
    assert partition.followers.keys() == {2}
    assert broker.manager.role_confirmed(partition)
    assert epochs.EpochCache(partition.log.directory).load()
    assert partition.log.epochs.entries[-1] == (4, 0)
    assert (await produce(broker, b"a")).error is ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(
    ("epoch", "isr", "is_new", "found"),
    [
        (3, (1, 2), True, ErrorCode.NONE),
        # A topic without a former, one that had elections, and a replica that a reassignment added.
        (0, (1, 2), True, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (3, (1, 2), False, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (3, (2,), True, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
)
async def test_a_producer_goes_on_in_a_topic_made_anew_whoever_leads(
    broker: Replicas, epoch: int, isr: tuple[int, ...], is_new: bool, found: ErrorCode
) -> None:
    """Its first batches are in the former topic."""
    await broker.take(leader=2, isr=isr, replicas=(1, 2), epoch=epoch, is_new=is_new)
    await broker.take(leader=1, replicas=(1, 2), epoch=epoch + 1, is_new=False)
    data = logs.batch(b"value", producer_id=5, producer_epoch=0, base_sequence=7)
    [outcome] = await broker.manager.append([(KEY, data)], 1, 0, Origin.CLIENT)
    assert outcome.error is found


async def write_as(broker: Replicas, producer: int, sequence: int) -> ErrorCode:
    data = logs.batch(b"value", producer_id=producer, producer_epoch=0, base_sequence=sequence)
    [outcome] = await broker.manager.append([(KEY, data)], 1, 0, Origin.CLIENT)
    return outcome.error


async def make_anew(broker: Replicas, epoch: int = 1) -> None:
    """Have a producer write, and make the topic anew."""
    await broker.lead()
    for sequence in range(3):
        assert await write_as(broker, 5, sequence) is ErrorCode.NONE
    await broker.delete()
    await broker.lead(epoch=epoch)


async def test_a_producer_goes_on_where_the_controller_changed_before_its_topic_was_made_anew(
    broker: Replicas,
) -> None:
    """The new one does not know the former leader epochs."""
    await make_anew(broker, epoch=0)
    assert await write_as(broker, 5, 3) is ErrorCode.NONE


@pytest.mark.parametrize("times", [1, 2])
async def test_a_batch_that_overtook_another_is_refused_in_a_topic_made_anew(
    broker: Replicas, times: int
) -> None:
    """librdkafka takes its acknowledgement for that of the other, whose records would be lost."""
    await make_anew(broker)
    for again in range(1, times):
        await broker.delete()
        await broker.lead(epoch=1 + again)
    assert await write_as(broker, 5, 4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await write_as(broker, 5, 3) is ErrorCode.NONE
    assert await write_as(broker, 5, 4) is ErrorCode.NONE
    # Never seen in the former topic, which knew all that wrote there.
    assert await write_as(broker, 6, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await write_as(broker, 6, 0) is ErrorCode.NONE


# Without the former leader epochs, only this broker knows that there was a former topic.
@pytest.mark.parametrize("epoch", [0, 1])
async def test_a_producer_goes_on_in_a_topic_made_anew_after_its_leader_restarted(
    tmp_path: Path, epoch: int
) -> None:
    async with Replicas(tmp_path) as broker:
        await make_anew(broker, epoch)
    async with Replicas(tmp_path) as broker:
        await broker.take(leader=1, epoch=epoch + 1, is_new=False)
        assert await write_as(broker, 5, 3) is ErrorCode.NONE


async def test_a_batch_whose_answer_from_the_former_topic_was_lost_is_written_anew(
    broker: Replicas,
) -> None:
    await make_anew(broker)
    assert await write_as(broker, 5, 1) is ErrorCode.NONE
    assert await write_as(broker, 5, 2) is ErrorCode.NONE
    assert broker.manager.partitions[KEY].log.log_end_offset == 2


async def test_a_replica_that_was_moved_away_says_nothing_of_the_former_topic(
    broker: Replicas,
) -> None:
    await broker.lead()
    assert await write_as(broker, 5, 0) is ErrorCode.NONE
    broker.metadata.view.topics[KEY.topic] = {}  # brokers have it until it is being deleted
    await broker.delete()
    await broker.lead(epoch=2)
    assert await write_as(broker, 5, 9) is ErrorCode.NONE


async def test_what_is_known_of_a_former_topic_ends_where_it_is_made_anew_elsewhere(
    broker: Replicas,
) -> None:
    await make_anew(broker)
    await broker.delete()
    elsewhere = UpdateMetadataPartitionState(
        topic_name=KEY.topic,
        partition_index=0,
        controller_epoch=1,
        leader=2,
        leader_epoch=2,
        isr=[2],
        zk_version=0,
        replicas=[2],
    )
    broker.manager.drop_moved_replicas([(KEY.topic, elsewhere)])
    await broker.lead(epoch=3)
    assert await write_as(broker, 5, 9) is ErrorCode.NONE


async def test_no_more_than_so_many_former_producers_are_remembered() -> None:
    former = FormerTopics(most=5)
    for number in range(4):
        known = FormerProducers({number: (0, 7)}, forgetful=False)
        former.remember(TopicPartition("many", number), known)
    assert [former.take(TopicPartition("many", number)) is None for number in range(4)] == [
        True,
        True,
        False,
        False,
    ]
