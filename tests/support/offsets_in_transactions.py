"""A group coordinator on a real `__consumer_offsets-0`, where the test completes appends and ends
transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from odradek.group.coordinator import GroupCoordinator
from odradek.group.group import Group
from odradek.group.offsets import CommittedOffset
from odradek.group.pending_offsets import PendingCommit
from odradek.group.shard import Shard
from odradek.log.records import records
from odradek.log.records.batch import Origin
from odradek.log.records.records import BatchOptions
from odradek.protocol.errors import ErrorCode
from odradek.replica.appends import AppendOutcome, Unverified
from odradek.replica.partition import Partition
from odradek.replica.verified_appends import Verify
from odradek.values import OFFSETS_TOPIC, TopicPartition
from tests.support.one_partition import OnePartition
from tests.support.replicas import Replicas
from tests.support.verifiers import trust

KEY = TopicPartition(OFFSETS_TOPIC, 0)
NOBODY = ("", None, -1)
Errors: TypeAlias = dict[TopicPartition, ErrorCode]
State: TypeAlias = tuple[
    dict[str, dict[TopicPartition, CommittedOffset]], dict[int, frozenset[PendingCommit]]
]


def codes(*partitions: int, code: ErrorCode = ErrorCode.NONE) -> Errors:
    """Return the outcome of a request about partitions of the topic t."""
    return {TopicPartition("t", partition): code for partition in partitions}


@dataclass
class HeldOutcomes:
    """Appends to real logs at once; while `held`, the test lets each caller know the outcome.

    `failure` is the outcome of the appends from now on, which are written all the same.
    """

    replicas: Replicas
    held: bool = False
    failure: ErrorCode = ErrorCode.NONE
    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        return self.replicas.manager.partitions

    async def append(
        self,
        entries: Sequence[tuple[TopicPartition, bytes]],
        acks: int,
        timeout_ms: int,
        origin: Origin,
    ) -> list[AppendOutcome]:
        outcomes = await self.replicas.manager.append(entries, acks, timeout_ms, origin)
        if any(isinstance(outcome, Unverified) for outcome in outcomes):
            return outcomes  # nothing was appended yet
        if self.failure is not ErrorCode.NONE:
            for outcome in outcomes:
                outcome.error = self.failure
        if self.held:
            release: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append(release)
            await release
        return outcomes


@dataclass
class Clock:
    """A wall clock that the test moves."""

    now_ms: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


class Coordinating:
    """Broker 1 as the coordinator of all groups. Groups commit offsets of the topic t."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self.appends = HeldOutcomes(replicas)
        self.clock = Clock()
        self.epoch = 0
        self.verify: Verify = trust
        self.coordinator = self._coordinator()

    def _coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            self.replicas.config,
            self.appends,
            OnePartition(),  # type: ignore[arg-type]
            lambda _: True,
            now_ms=self.clock,
        )

    async def start(self) -> None:
        """Lead the partition, and load what it has."""
        await self.replicas.lead(topic=OFFSETS_TOPIC, epoch=self.epoch)
        await self.loaded()

    async def loaded(self) -> None:
        """Wait until requests are served."""
        while self.coordinator.find("any")[0] is not ErrorCode.NONE:
            await asyncio.sleep(0)

    async def change_leader(self) -> None:
        """Lose the leadership, and get it back."""
        self.epoch += 1
        await self.replicas.take(leader=2, replicas=(1, 2), epoch=self.epoch, topic=OFFSETS_TOPIC)
        self.coordinator.refresh()
        self.epoch += 1
        await self.replicas.lead(topic=OFFSETS_TOPIC, epoch=self.epoch)
        await self.loaded()

    # --- requests -------------------------------------------------------------------------------

    def offsets(self, values: Mapping[int, int]) -> dict[TopicPartition, CommittedOffset]:
        """Return commits of offsets by partition."""
        return {
            TopicPartition("t", partition): CommittedOffset(offset, "", self.clock())
            for partition, offset in values.items()
        }

    def commit(self, values: Mapping[int, int], group: str = "g") -> Coroutine[Any, Any, Errors]:
        """Commit outside of transactions."""
        return self.coordinator.commits.commit(group, NOBODY, self.offsets(values))

    def commit_in_transaction(
        self,
        producer_id: int,
        values: Mapping[int, int],
        group: str = "g",
        member: tuple[str, str | None, int] = NOBODY,
        epoch: int = 0,
    ) -> Coroutine[Any, Any, Errors]:
        """Commit in a producer's transaction."""
        return self.coordinator.commits.commit_in_transaction(
            group, member, (producer_id, epoch), self.offsets(values), self.verify
        )

    async def append_marker(self, producer_id: int, *, commit: bool, epoch: int = 0) -> int:
        """Write the end of a producer's transaction to the log; return its offset."""
        options = BatchOptions(
            producer_id=producer_id, producer_epoch=epoch, transactional=True, control=True
        )
        kind = b"\0\0\0\1" if commit else b"\0\0\0\0"
        data = records.make([(kind, b"\0\0\0\0\0\5")], self.clock(), options)
        [outcome] = await self.replicas.manager.append([(KEY, data)], -1, 5000, Origin.COORDINATOR)
        assert outcome.error is ErrorCode.NONE
        return outcome.base_offset

    async def tell(self, producer_id: int, position: int, *, commit: bool) -> None:
        """Tell the coordinator of a marker."""
        await self.coordinator.commits.complete_transaction(
            0, producer_id, position, commits=commit
        )

    async def end(self, producer_id: int, *, commit: bool) -> None:
        """Write a marker, and tell the coordinator."""
        position = await self.append_marker(producer_id, commit=commit)
        await self.tell(producer_id, position, commit=commit)

    async def committed(self, group: str = "g") -> dict[int, int]:
        """Return the offsets of a group by partition."""
        error, found = await self.coordinator.commits.committed(group)
        assert error is ErrorCode.NONE, error
        return {key.partition: commit.offset for key, commit in found.items()}

    def unstable(self, group: str = "g") -> set[int]:
        """Return the partitions whose offsets may be about to change."""
        return {key.partition for key in self.coordinator.commits.unstable(group)}

    def listed(self) -> set[str]:
        """Return the groups that there are."""
        return {group.group_id for group in self.coordinator.groups()[1]}

    # --- memory and log -------------------------------------------------------------------------

    def state(self) -> State:
        """Return the offsets that count, and those that are pending."""
        shard = self.coordinator._shards.at(0)
        assert shard is not None
        return _state_of(shard)

    async def state_in_log(self) -> State:
        """Return what a fresh load of the log gives."""
        partition = self.replicas.manager.partitions[KEY]
        shard = Shard(partition)
        await shard.load(partition.log, 1 << 20, lambda name: Group(name, lambda *_: None), int)
        state = _state_of(shard)
        shard.retire()
        return state


def _state_of(shard: Shard) -> State:
    pending = shard._pending
    return (
        {group_id: dict(offsets) for group_id, offsets in shard.offsets.items()},
        {
            producer_id: frozenset(pending.of_producer(producer_id))
            for producer_id in pending._of_producer
        },
    )
