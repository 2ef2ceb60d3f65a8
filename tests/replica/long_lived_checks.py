"""The objects of replicas are frozen, and freed when the replicas are deleted."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from odradek import long_lived
from odradek.log.records.batch import Origin
from odradek.log.segment.index import OffsetIndex
from odradek.protocol.messages.control import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from odradek.values import TopicPartition
from tests.support import logs
from tests.support.replicas import Replicas

TOPICS = ("a", "b", "c")


@pytest.fixture(autouse=True)
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is frozen, few replicas are enough for a freeze, and the collector is off."""
    monkeypatch.setattr(long_lived, "MADE_PER_FREEZE", len(TOPICS))
    gc.unfreeze()
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path) as built:
        yield built


async def make(replicas: Replicas) -> None:
    for topic in TOPICS:
        await replicas.lead(topic=topic)
        key = TopicPartition(topic, 0)
        await replicas.manager.append([(key, logs.batch(b"value"))], 1, 0, Origin.CLIENT)


async def delete(replicas: Replicas) -> None:
    states = [
        StopReplicaTopicState(
            topic_name=topic,
            partition_states=[
                StopReplicaPartitionState(partition_index=0, leader_epoch=-2, delete_partition=True)
            ],
        )
        for topic in TOPICS
    ]
    await replicas.manager.stop_replicas(
        StopReplicaRequest(
            controller_id=1, controller_epoch=1, broker_epoch=100, topic_states=states
        )
    )
    assert not replicas.manager.partitions


class Cycle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


async def test_replicas_are_frozen_once_enough_were_made(replicas: Replicas) -> None:
    await make(replicas)
    held = {id(partition.log) for partition in replicas.manager.partitions.values()}
    assert not held & {id(one) for one in gc.get_objects()}, "a collection looks through them"


async def test_deleted_replicas_are_freed_without_a_collection(
    replicas: Replicas, tmp_path: Path
) -> None:
    """However often they are made, frozen and deleted."""
    for _ in range(3):
        await make(replicas)
        assert gc.get_freeze_count()
        found = [partition.log for partition in replicas.manager.partitions.values()]
        parts = [one for log in found for one in (log, log.reader, log.segments)]
        alive = [weakref.ref(one) for one in parts]
        del found, parts
        await delete(replicas)
        assert not [one() for one in alive if one() is not None]
    gc.unfreeze()
    indexes = [one.file.path for one in gc.get_objects() if isinstance(one, OffsetIndex)]
    assert not [path for path in indexes if path.startswith(str(tmp_path))], "nor their maps"


async def test_garbage_is_not_frozen(replicas: Replicas) -> None:
    garbage = weakref.ref(Cycle())
    await make(replicas)
    assert garbage() is None


async def test_what_died_frozen_goes_after_enough_deletions(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_lived, "DELETED_PER_THAW", 2 * len(TOPICS))
    cycle: Cycle | None = Cycle()
    garbage = weakref.ref(cycle)
    await make(replicas)
    del cycle
    gc.collect()
    assert garbage() is not None, "it is frozen"
    for _ in range(2):
        await delete(replicas)
        assert garbage() is not None
        await make(replicas)
    assert garbage() is None
