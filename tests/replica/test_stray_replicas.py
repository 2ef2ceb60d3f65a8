"""What stays on a broker that was down when its replica moved away is deleted once it is surely of
no use: not before somebody leads the partition elsewhere, and not what is newer than that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from odradek.protocol.messages.control import UpdateMetadataPartitionState
from odradek.replica.metadata import LEADER_DURING_DELETE, described
from odradek.values import NO_LEADER
from tests.support.control import state, update
from tests.support.logs import new_log
from tests.support.replicas import KEY, Replicas

EPOCH = state().leader_epoch
MOVED = state(leader=2, replicas=(2, 3))


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Replicas]:
    """Back from an absence, with an empty replica of no role yet."""
    async with Replicas(tmp_path) as replicas:
        new_log(replicas.logs, *KEY, replicas.topic_configs(KEY.topic))
        working = asyncio.create_task(replicas.manager.run())
        yield replicas
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working


async def is_kept(broker: Replicas, told: UpdateMetadataPartitionState) -> bool:
    """Whether the log is still there when everything that the request leads to has been done."""
    await tell(broker, told)
    # In order, or both at once: when the second is gone, the first has been decided on.
    marker = f"{KEY.topic}-marker"
    folder = Path(new_log(broker.logs, marker, 0, broker.topic_configs(marker)).directory)
    await tell(broker, state(topic=marker, leader=2, replicas=(2, 3)))
    async with asyncio.timeout(60):
        while folder.exists():  # the log is gone before
            await asyncio.sleep(0.01)
    return broker.logs.get(*KEY) is not None


async def tell(broker: Replicas, told: UpdateMetadataPartitionState) -> None:
    request = update(told)
    broker.metadata.update(request)
    broker.manager.drop_moved_replicas(list(described(request)))


async def test_what_others_have_instead_is_deleted_from_the_disk(
    broker: Replicas, tmp_path: Path
) -> None:
    assert not await is_kept(broker, MOVED)
    async with asyncio.timeout(60):  # the log is gone before its folder is
        while (tmp_path / "data" / str(KEY)).exists():
            await asyncio.sleep(0.01)
    assert list((tmp_path / "data").glob(f"{KEY}.*-delete"))


async def test_role_that_was_never_taken_away_goes_with_it(broker: Replicas) -> None:
    await broker.lead(epoch=EPOCH)
    assert not await is_kept(broker, MOVED)
    assert KEY not in broker.manager.partitions


@pytest.mark.parametrize(
    "told",
    [
        state(leader=1, replicas=(1, 2)),
        state(leader=NO_LEADER, replicas=(2, 3)),
        state(leader=LEADER_DURING_DELETE, replicas=(2, 3)),
        replace(MOVED, isr=[1, 2, 3]),
    ],
    ids=["has a replica here", "has no leader", "is being deleted", "may still be led from here"],
)
async def test_partition_stays_that(broker: Replicas, told: UpdateMetadataPartitionState) -> None:
    assert await is_kept(broker, told)


async def test_partition_stays_that_had_no_leader_until_it_has_one(broker: Replicas) -> None:
    assert await is_kept(broker, state(leader=NO_LEADER, replicas=(2, 3)))
    assert not await is_kept(broker, MOVED)


async def test_records_of_a_newer_epoch_stay(broker: Replicas) -> None:
    log = broker.logs.get(*KEY)
    assert log is not None
    log.assign_epoch(EPOCH + 1)
    assert await is_kept(broker, MOVED)


async def test_role_of_a_newer_epoch_stays(broker: Replicas) -> None:
    await broker.lead(epoch=EPOCH + 1)
    assert await is_kept(broker, MOVED)
    assert KEY in broker.manager.partitions


async def test_log_on_a_failed_disk_is_left_alone(broker: Replicas) -> None:
    log = broker.logs.get(*KEY)
    assert log is not None
    log.fail(OSError("the disk is gone"))
    assert await is_kept(broker, MOVED)
    log.failures.error = None


async def test_replica_that_is_wanted_again_before_its_turn_stays(broker: Replicas) -> None:
    await tell(broker, MOVED)
    await broker.take(leader=2, isr=(2,), replicas=(1, 2), epoch=EPOCH + 1)
    assert await is_kept(broker, MOVED)
    assert KEY in broker.manager.partitions
