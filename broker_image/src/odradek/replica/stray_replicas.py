"""Replicas that moved to other brokers while this one was away.

A controller has StopReplica delete what leaves a broker, but forgets a broker that is down when the
move ends. What that one still has on its disk when it returns would stay for ever (Kafka with
ZooKeeper leaves it so, as "stray"). Each UpdateMetadata says who has which replica, so this broker
finds out by itself. It deletes nothing that may be of use: somebody must be leading the partition,
in an epoch that no record here is newer than, and this broker must not be in sync. (Kafka's
controller tells of the new replicas while ZooKeeper may still have one elected that leaves.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from odradek.replica.hosted import HostedPartitions
from odradek.replica.metadata import PartitionInfo, described
from odradek.values import NO_LEADER, TopicPartition

if TYPE_CHECKING:
    from odradek.log.manager import LogManager
    from odradek.protocol.messages.control import UpdateMetadataRequest


class StrayReplicas:
    """`delete(partitions)` is awaited in `run` with those that are found."""

    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        hosted: HostedPartitions,
        delete: Callable[[Collection[TopicPartition]], Awaitable[None]],
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._hosted = hosted
        self._delete = delete
        self._found: set[TopicPartition] = set()
        self._wake = asyncio.Event()

    def look_for(self, request: UpdateMetadataRequest) -> None:
        """Note the leftovers among the partitions that the controller describes."""
        for topic, state in described(request):
            key = TopicPartition(topic, state.partition_index)
            if self._broker_id not in state.replicas and self.owner(key) is not None:
                self._found.add(key)
                self._wake.set()

    def owner(self, key: TopicPartition) -> PartitionInfo | None:
        """Who has the partition that is left over here; None where it is not."""
        info = self._hosted.metadata.partition(*key)
        log = self._logs.get(*key)
        if info is None or log is None or log.failure is not None:
            return None
        if self._broker_id in (*info.replicas, *info.isr) or info.leader == NO_LEADER:
            return None
        role = self._hosted.partitions.get(key)
        newest = max(log.latest_epoch, -1 if role is None else role.leader_epoch)
        return info if newest <= info.leader_epoch else None

    async def run(self) -> None:
        """Delete what is found, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            found, self._found = self._found, set()
            await self._delete(found)
