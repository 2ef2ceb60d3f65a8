"""Of two commits under way at once, the later record in the log is the group's offset."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from odradek import config as configuration
from odradek.group.coordinator import OFFSETS_TOPIC, GroupCoordinator
from odradek.group.offsets import Committed
from odradek.log.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.replica.appends import AppendOutcome
from odradek.replica.partition import TopicPartition

WHERE = ("t", 0)
KEY = TopicPartition(OFFSETS_TOPIC, 0)
NOBODY = ("", None, -1)


@dataclass
class SlowReplicas:
    """Leads an empty `__consumer_offsets-0`; an append is settled when the test says so."""

    appends: list[asyncio.Future[ErrorCode]] = field(default_factory=list)
    partition: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(
            key=KEY,
            offline=False,
            leads=True,
            leader_epoch=0,
            reign=0,
            log=SimpleNamespace(log_start_offset=0, log_end_offset=0),
        )
    )

    @property
    def partitions(self) -> dict[TopicPartition, object]:
        return {KEY: self.partition}

    async def append(
        self,
        entries: Sequence[tuple[TopicPartition, bytes]],
        acks: int,
        timeout_ms: int,
        origin: Origin,
    ) -> list[AppendOutcome]:
        position = len(self.appends)
        self.appends.append(asyncio.get_running_loop().create_future())
        return [AppendOutcome(KEY, await self.appends[position], base_offset=position)]


async def test_commit_that_is_settled_late_does_not_undo_a_later_one() -> None:
    replicas = SlowReplicas()
    config, _ = configuration.from_values({"broker.id": "1", "zookeeper.connect": "unused"})
    coordinator = GroupCoordinator(config, replicas, lambda: 1)  # type: ignore[arg-type]
    coordinator.refresh()
    await asyncio.sleep(0)
    commits = [
        asyncio.create_task(coordinator.commit("g", NOBODY, {WHERE: Committed(offset, "", 0)}))
        for offset in (5, 9)
    ]
    await asyncio.sleep(0)
    for settled in (1, 0):
        replicas.appends[settled].set_result(ErrorCode.NONE)
        assert await commits[settled] == {WHERE: ErrorCode.NONE}
    error, found = coordinator.committed("g")
    coordinator.close()
    assert error is ErrorCode.NONE
    assert found[WHERE].offset == 9


async def loaded(replicas: SlowReplicas) -> GroupCoordinator:
    """A coordinator whose one shard is read, with a commit of group g at 7 in it."""
    config, _ = configuration.from_values({"broker.id": "1", "zookeeper.connect": "unused"})
    coordinator = GroupCoordinator(config, replicas, lambda: 1)  # type: ignore[arg-type]
    coordinator.refresh()
    await asyncio.sleep(0)
    commit = asyncio.create_task(coordinator.commit("g", NOBODY, {WHERE: Committed(7, "", 0)}))
    await asyncio.sleep(0)
    replicas.appends[-1].set_result(ErrorCode.NONE)
    await commit
    return coordinator


async def test_new_epoch_of_the_same_leader_keeps_its_groups() -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    replicas.partition.leader_epoch += 1
    error, found = coordinator.committed("g")
    assert (error, found[WHERE].offset) == (ErrorCode.NONE, 7)
    coordinator.close()


async def test_leadership_that_was_lost_between_is_read_anew() -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    replicas.partition.reign += 1
    assert coordinator.committed("g")[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await asyncio.sleep(0)
    assert coordinator.committed("g") == (ErrorCode.NONE, {})
    coordinator.close()
