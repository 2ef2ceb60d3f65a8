"""The coordinator's memory equals the log after commits, transactions, deletions and new leaders in
random order, whose appends complete in another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from odradek.values import TopicPartition
from tests.support.offsets_in_transactions import Coordinating, State
from tests.support.replicas import Replicas
from tests.support.sampling import how_many

GROUPS = ("g", "h")
PARTITIONS = range(3)
PRODUCERS = (7, 8, 9)
STEPS = 60
DAY_MS = 24 * 3600 * 1000


@dataclass
class Model:
    """A coordinator with requests in flight, and the markers that it has not been told of."""

    coordinating: Coordinating
    chance: Random
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    markers: dict[int, tuple[int, bool]] = field(default_factory=dict)
    offset: int = 0

    async def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let a request run to its append."""
        self.tasks.add(asyncio.create_task(work))
        await self.turns()

    async def turns(self) -> None:
        for _ in range(12):
            await asyncio.sleep(0)

    def some_offsets(self) -> dict[int, int]:
        self.offset += 1
        count = self.chance.randint(1, len(PARTITIONS))
        return dict.fromkeys(self.chance.sample(PARTITIONS, count), self.offset)

    async def step(self) -> None:
        """Do one thing that may happen."""
        chance, coordinating = self.chance, self.coordinating
        group, producer = chance.choice(GROUPS), chance.choice(PRODUCERS)
        step = chance.random()
        if step < 0.2:
            await self.begin(coordinating.commit(self.some_offsets(), group))
        elif step < 0.5:
            # A producer begins its next transaction when its marker is known.
            if producer not in self.markers:
                offsets = self.some_offsets()
                await self.begin(coordinating.commit_in_transaction(producer, offsets, group))
        elif step < 0.65:
            if producer not in self.markers:
                commit = chance.random() < 0.6
                position = await coordinating.append_marker(producer, commit=commit)
                self.markers[producer] = position, commit
        elif step < 0.8:
            if producer in self.markers:
                position, commit = self.markers.pop(producer)
                await coordinating.tell(producer, position, commit=commit)
        elif step < 0.85:
            await self.delete(group)
        elif step < 0.88:
            await self.settle()
            await coordinating.change_leader()
        else:
            await self.settle_one()

    async def delete(self, group: str) -> None:
        coordinator = self.coordinating.coordinator
        partitions = [TopicPartition("t", one) for one in self.some_offsets()]
        kind = self.chance.randrange(4)
        if kind == 0:
            await self.begin(coordinator.deletion.delete_group(group))
        elif kind == 1:
            await self.begin(coordinator.deletion.delete_offsets(group, partitions))
        elif kind == 2:
            await self.begin(coordinator.deletion.forget_partitions(set(partitions)))
        else:
            self.coordinating.clock.now_ms += 8 * DAY_MS
            await self.begin(coordinator.expiry.expire())

    async def settle_one(self) -> None:
        """Let one of the appends in flight complete."""
        waiting = self.coordinating.appends.waiting
        if waiting:
            waiting.pop(self.chance.randrange(len(waiting))).set_result(None)
        await self.turns()

    async def settle(self) -> None:
        """Let everything in flight complete, and tell of all markers."""
        for producer, (position, commit) in sorted(self.markers.items()):
            await self.coordinating.tell(producer, position, commit=commit)
        self.markers.clear()
        while not all(task.done() for task in self.tasks):
            await self.settle_one()
        await asyncio.gather(*self.tasks)
        self.tasks.clear()

    async def check(self) -> State:
        """Compare memory and log; return what they have."""
        await self.settle()
        state = self.coordinating.state()
        assert state == await self.coordinating.state_in_log()
        listed = self.coordinating.listed()
        assert state[0].keys() <= listed
        assert {commit.group_id for commits in state[1].values() for commit in commits} <= listed
        for group in GROUPS:
            pending = {
                commit.partition.partition
                for commits in state[1].values()
                for commit in commits
                if commit.group_id == group
            }
            assert self.coordinating.unstable(group) == pending
        return state


@pytest.mark.parametrize("seed", range(how_many(10, full=300)))
async def test_memory_is_what_a_fresh_load_gives(tmp_path: Path, seed: int) -> None:
    async with Replicas(tmp_path) as replicas:
        coordinating = Coordinating(replicas)
        await coordinating.start()
        coordinating.appends.held = True
        model = Model(coordinating, Random(seed))
        for _ in range(STEPS):
            await model.step()
            if model.chance.random() < 0.2:
                await model.check()
        await model.check()
        for producer in PRODUCERS:
            await coordinating.end(producer, commit=True)
        assert (await model.check())[1] == {}
        coordinating.coordinator.close()
