"""What the group coordinator hears of topics that are deleted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace

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
