"""The collector of garbage keeps away from what large requests are made of."""

from __future__ import annotations

import asyncio
import gc

import pytest

from odradek import slices
from odradek.handlers.context import Broker
from odradek.handlers.dispatch import ELEMENTS_AT_ONCE
from odradek.protocol.messages.control import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from odradek.protocol.messages.offsets import ListOffsetsRequest, ListOffsetsTopic
from odradek.replica.metadata import MetadataCache
from tests.handlers.large_requests import ask, collector_on


async def test_it_pauses_while_a_large_request_is_handled(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.metadata.update(
        UpdateMetadataRequest(controller_id=1, controller_epoch=1, live_brokers=[])
    )
    was_on: set[bool] = set()
    pause = slices.pause

    async def noting() -> None:
        was_on.add(gc.isenabled())
        await pause()

    monkeypatch.setattr(slices, "pause", noting)
    topics = [ListOffsetsTopic(name=f"t-{n}", partitions=[]) for n in range(ELEMENTS_AT_ONCE + 1)]
    await ask(broker, ListOffsetsRequest(replica_id=-1, topics=topics), 5)
    assert was_on == {False}
    await collector_on()


async def test_after_the_longest_pause_it_looks_through_nothing_that_was_made_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "LONGEST_PAUSE_S", 0.01)
    async with asyncio.timeout(60):
        with slices.collector_paused():
            made: list[object] = [[]]
            while not gc.isenabled():
                await asyncio.sleep(0)
            assert not [one for one in gc.get_objects() if one is made]
    await collector_on()


def test_metadata_of_many_partitions_is_frozen() -> None:
    cache = MetadataCache()

    def update(first: int) -> None:
        states = [
            UpdateMetadataPartitionState(
                partition_index=index,
                controller_epoch=1,
                leader=1,
                leader_epoch=1,
                isr=[1],
                zk_version=1,
                replicas=[1],
            )
            for index in range(first, first + 2500)
        ]
        topic = UpdateMetadataTopicState(topic_name="t", partition_states=states)
        cache.update(
            UpdateMetadataRequest(
                controller_id=1, controller_epoch=1, topic_states=[topic], live_brokers=[]
            )
        )

    update(0)
    update(2500)
    held = {id(info) for info in cache.topics["t"].values()}
    assert len(held) == 5000
    assert not held & {id(one) for one in gc.get_objects()}, "a collection looks through them"
