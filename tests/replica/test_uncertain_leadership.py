"""A leader that may have been deposed without knowing gives no answer that only a leader can give.

Such a broker was stopped for longer than its session, or is cut off from ZooKeeper. What it answers
wrongly sends consumers back to the start of a partition, or ends a producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from odradek.log.records import records
from odradek.log.records.batch import Origin
from odradek.log.records.records import BatchOptions, Record
from odradek.protocol.errors import ErrorCode
from odradek.replica import isr
from odradek.replica.fetch_specs import FetchLimits, FetchResult, FetchSpec
from odradek.replica.metadata import described
from odradek.replica.reads import CONSUMER
from tests.support import logs
from tests.support.control import state, update
from tests.support.replicas import KEY, Replicas

FETCH_WAIT_MS = 500


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Replicas]:
    """Leader of an empty partition that 2 and 3 follow in sync."""
    async with Replicas(tmp_path) as replicas:
        await replicas.lead(isr=(1, 2, 3), replicas=(1, 2, 3))
        yield replicas


async def fetch(broker: Replicas, offset: int, replica: int = CONSUMER) -> FetchResult:
    limits = FetchLimits(0, 1, 1 << 20)
    return (await broker.manager.fetch([FetchSpec(KEY, offset, 1 << 20)], replica, limits))[0]


async def follow(broker: Replicas, *followers: int) -> None:
    """The followers ask, are answered, and ask again."""
    for _ in range(2):
        for follower in followers:
            await fetch(broker, 0, follower)
        broker.clock.now += FETCH_WAIT_MS


def leadership_confirmed(broker: Replicas) -> bool:
    return broker.manager.leadership_confirmed(broker.manager.partitions[KEY])


def end_session(broker: Replicas) -> None:
    broker.session.deadline = broker.clock.now / 1000


async def test_position_beyond_the_log_is_out_of_range_while_the_in_sync_set_follows(
    broker: Replicas,
) -> None:
    # The session lives, but a controller that cannot reach us may have made 2 the leader.
    assert (await fetch(broker, 7)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await follow(broker, 2, 3)
    assert (await fetch(broker, 7)).error is ErrorCode.OFFSET_OUT_OF_RANGE
    broker.clock.now += 60_000
    assert (await fetch(broker, 7)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await fetch(broker, 0)).error is ErrorCode.NONE


async def test_position_beyond_the_log_is_out_of_range_to_the_only_one_in_sync(
    broker: Replicas,
) -> None:
    await broker.lead(isr=(1,), replicas=(1, 2, 3), epoch=1)
    assert (await fetch(broker, 7)).error is ErrorCode.OFFSET_OUT_OF_RANGE
    end_session(broker)
    assert (await fetch(broker, 7)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_gap_in_sequences_is_final_only_while_the_in_sync_set_follows(
    broker: Replicas,
) -> None:
    async def produce(sequence: int) -> ErrorCode:
        options = BatchOptions(producer_id=5, producer_epoch=0, base_sequence=sequence)
        data = records.encode([Record(0, logs.START_MS, None, b"v")], options)
        return (await broker.manager.append([(KEY, data)], 1, 0, Origin.CLIENT))[0].error

    assert await produce(0) is ErrorCode.NONE
    assert await produce(9) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await follow(broker, 2, 3)
    assert await produce(9) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_new_session_is_no_proof_until_the_controller_has_told_the_role(
    broker: Replicas,
) -> None:
    assert leadership_confirmed(broker)
    broker.session.generation += 1
    assert not leadership_confirmed(broker)
    await broker.lead(isr=(1, 2, 3), replicas=(1, 2, 3))
    assert leadership_confirmed(broker)


async def test_whole_in_sync_set_that_goes_on_fetching_vouches_for_a_while(
    broker: Replicas,
) -> None:
    end_session(broker)
    await follow(broker, 2)
    assert not leadership_confirmed(broker)
    await follow(broker, 2, 3)
    assert leadership_confirmed(broker)
    broker.clock.now += 2 * FETCH_WAIT_MS
    assert not leadership_confirmed(broker)


async def test_fetches_that_waited_while_this_process_was_stopped_prove_nothing(
    broker: Replicas,
) -> None:
    await follow(broker, 2, 3)
    broker.clock.now += 60_000
    end_session(broker)
    for follower in (2, 3):
        await fetch(broker, 0, follower)
    assert not leadership_confirmed(broker)


async def is_done_soon(task: asyncio.Task[bool]) -> bool:
    """Return whether it ends in what are several looks for fetches."""
    done, _ = await asyncio.wait([task], timeout=0.1)
    return bool(done)


async def test_end_offset_is_confirmed_by_fetches_that_come_later(broker: Replicas) -> None:
    partition = broker.manager.partitions[KEY]
    await follow(broker, 2, 3)
    assert broker.manager.end_offset_confirmed(partition)
    asking = asyncio.create_task(broker.manager.confirm_end_offset(partition))
    await asyncio.sleep(0)
    broker.clock.now += 1
    # A fetch that was under way may be from before; the one after its answer is not.
    await follow(broker, 2)
    await fetch(broker, 0, 3)
    assert not await is_done_soon(asking)
    broker.clock.now += isr.BACKLOG_MS
    await fetch(broker, 0, 3)
    assert await asking


async def test_end_offset_is_not_confirmed_by_fetches_that_came_before(broker: Replicas) -> None:
    partition = broker.manager.partitions[KEY]
    await follow(broker, 2, 3)
    asking = asyncio.create_task(broker.manager.confirm_end_offset(partition))
    await asyncio.sleep(0)
    broker.clock.now += 60_000
    assert not await asking


async def test_end_offset_of_a_former_leader_is_refused_at_once(broker: Replicas) -> None:
    partition = broker.manager.partitions[KEY]
    await follow(broker, 2, 3)
    asking = asyncio.create_task(broker.manager.confirm_end_offset(partition))
    await asyncio.sleep(0)
    broker.manager.drop_moved_replicas(list(described(update(state(leader=2)))))
    assert await is_done_soon(asking)
    assert not await asking


async def test_leader_stays_when_it_hears_of_its_own_or_an_older_epoch(broker: Replicas) -> None:
    partition = broker.manager.partitions[KEY]
    await broker.lead(isr=(1, 2, 3), replicas=(1, 2, 3), epoch=3)
    broker.manager.drop_moved_replicas(list(described(update(state(leader=2)))))
    assert partition.is_leader  # told of epoch 3, which is its own
    await broker.lead(isr=(1, 2, 3), replicas=(1, 2, 3), epoch=4)
    broker.manager.drop_moved_replicas(list(described(update(state(leader=2)))))
    assert partition.is_leader  # told of an older epoch


async def test_leader_whose_replica_moved_away_while_it_was_away_steps_down(
    broker: Replicas,
) -> None:
    broker.manager.drop_moved_replicas(list(described(update(state(leader=2, replicas=(2, 3))))))
    assert not broker.manager.partitions[KEY].is_leader
    assert (await fetch(broker, 0)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await broker.lead(isr=(1, 2), replicas=(1, 2), epoch=4)
    assert broker.manager.partitions[KEY].is_leader


async def test_only_replica_is_always_sure(broker: Replicas) -> None:
    await broker.lead(epoch=1)
    end_session(broker)
    assert leadership_confirmed(broker)
