"""Which partitions a leader counts as under-replicated: as Kafka does since 2.4 (KIP-455)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from odradek.metrics import replica_series
from tests.support.replicas import Replicas


class Follower:
    """A broker that is not the controller."""

    active = False


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path) as replicas:
        yield replicas


def under_replicated(broker: Replicas) -> float:
    """Return the value of the metric."""
    found = {one.name: one for one in replica_series.roles(broker.manager, Follower())}
    return found["odradek_under_replicated_partitions"].samples[0].value


@pytest.mark.parametrize(
    ("replicas", "adding", "isr", "count"),
    [
        ((1, 2), (), (1, 2), 0),
        ((1, 2), (), (1,), 1),
        ((1, 2), (2,), (1,), 0),
        ((3, 1, 2), (3,), (1, 2), 0),
        ((3, 1, 2), (3,), (1, 2, 3), 0),
        ((3, 1, 2), (3,), (1,), 1),
        # Only how many are in sync counts, as in Kafka.
        ((3, 1, 2), (3,), (1, 3), 0),
    ],
)
async def test_leader_needs_as_many_in_sync_as_there_are_without_what_is_added(
    broker: Replicas,
    replicas: tuple[int, ...],
    adding: tuple[int, ...],
    isr: tuple[int, ...],
    count: int,
) -> None:
    await broker.take(leader=1, replicas=replicas, adding=adding, isr=isr)
    assert under_replicated(broker) == count


async def test_next_leader_epoch_says_that_nothing_is_added_any_more(broker: Replicas) -> None:
    await broker.take(leader=1, replicas=(1, 2), adding=(2,), isr=(1,), epoch=4)
    await broker.take(leader=1, replicas=(1, 2), isr=(1,), epoch=4, is_new=False)
    assert under_replicated(broker) == 0, "a role of the same epoch is no news, as in Kafka"
    await broker.take(leader=1, replicas=(1, 2), isr=(1,), epoch=5, is_new=False)
    assert under_replicated(broker) == 1


async def test_only_the_leader_counts(broker: Replicas) -> None:
    await broker.take(leader=2, replicas=(1, 2, 3), isr=(2,))
    assert under_replicated(broker) == 0
