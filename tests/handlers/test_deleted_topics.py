"""What the group coordinator hears of topics that are deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace

from odradek import slices
from odradek.handlers import control
from odradek.handlers.context import Broker, RequestContext
from odradek.replica.metadata import LEADER_DURING_DELETE
from odradek.values import NO_LEADER
from tests.support.control import state, update

CONTEXT = RequestContext(
    version=5, client_id="1", listener="PLAINTEXT", host="127.0.0.1", connection_id=1
)


async def test_offsets_of_deleted_partitions_are_forgotten_and_of_no_others(
    broker: Broker,
) -> None:
    told: list[Collection[tuple[str, int]]] = []
    groups = SimpleNamespace(forget_partitions=told.append)
    broker = replace(broker, groups=groups)  # type: ignore[arg-type]
    await control.update_metadata(
        broker, update(state(), state(index=1, leader=NO_LEADER)), CONTEXT
    )
    assert told == []
    deleted = state(index=1, leader=LEADER_DURING_DELETE)
    await control.update_metadata(broker, update(state(), deleted), CONTEXT)
    assert told == [{("orders", 1)}]


async def test_deleted_partitions_are_forgotten_though_the_connection_is_lost_meanwhile(
    broker: Broker,
) -> None:
    told: list[Collection[tuple[str, int]]] = []
    groups = SimpleNamespace(forget_partitions=told.append)
    broker = replace(broker, groups=groups)  # type: ignore[arg-type]
    indexes = range(3 * slices.STEPS_PER_SLICE)
    request = update(*(state(index=index, leader=LEADER_DURING_DELETE) for index in indexes))
    updating = asyncio.create_task(control.update_metadata(broker, request, CONTEXT))
    while not broker.metadata.initialized:
        await asyncio.sleep(0)
    assert not told
    updating.cancel()
    await asyncio.wait({updating})
    assert updating.cancelled()
    assert told == [{("orders", index) for index in indexes}]
