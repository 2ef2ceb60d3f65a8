"""Calls that name very many partitions: others run in between, and each gets its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from odradek.controller.active_controller import PARTITIONS_AT_ONCE
from odradek.controller.election import Cause
from odradek.controller.replica_assignment import MOST_REPLICAS
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import BrokerId, TopicPartition
from tests.controller.conftest import Cluster
from tests.controller.test_reassignment import start
from tests.controller.values import broker_ids

T = TypeVar("T")

PIECES = 20
LED = TopicPartition("t", 0)
UNKNOWN = [TopicPartition("t", 1 + index) for index in range(PIECES * PARTITIONS_AT_ONCE)]


async def turns_of(work: Awaitable[T]) -> tuple[T, int]:
    """Return a result, and the turns of the event loop that it took."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        return await work, turns
    finally:
        counting.cancel()


def code(outcome: object) -> ErrorCode | None:
    return outcome.code if isinstance(outcome, KafkaError) else None


async def test_elections_and_reassignments_are_held_piece_by_piece(cluster: Cluster) -> None:
    one, *_ = await start(cluster, 1, 2)
    named = [*UNKNOWN, LED]
    elected, turns = await turns_of(one.elect_leaders(named, Cause.PREFERRED))
    assert turns > PIECES
    assert code(elected[LED]) is ErrorCode.ELECTION_NOT_NEEDED
    assert {code(elected[each]) for each in UNKNOWN} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    wanted: dict[TopicPartition, tuple[BrokerId, ...] | None] = dict.fromkeys(
        named, broker_ids(2, 1)
    )
    malformed, cancelled = UNKNOWN[:2]
    wanted[malformed] = broker_ids(*range(MOST_REPLICAS + 1))
    wanted[cancelled] = None
    moved, turns = await turns_of(one.reassign(wanted))
    assert turns > PIECES
    assert moved[LED] is None
    assert code(moved[malformed]) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert code(moved[cancelled]) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    others = {code(moved[each]) for each in UNKNOWN[2:]}
    assert others == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    moving, turns = await turns_of(one.list_reassignments(named))
    assert turns > PIECES
    assert moving.keys() <= {LED}
