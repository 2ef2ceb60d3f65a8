"""Deletes stray replicas: those that moved to other brokers while this broker was down.

The controller sends StopReplica to delete a replica that leaves a broker, but not to a broker that
is down when the move ends. After its restart that broker would keep the replica for ever; Kafka
with ZooKeeper does, and calls it stray. Each UpdateMetadata names the replicas of its partitions,
so this broker finds its stray replicas by itself. It deletes only what is surely of no use: the
partition must have a leader, no record here may be of a newer leader epoch, and this broker must
not be in sync. (Kafka's controller announces new replicas while ZooKeeper may still elect one of
the old ones.) Nor may the leader epoch be one that was raised after ZooKeeper went back to an older
copy: that names former replicas, and this one may be the last with the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING

from odradek.quarantine import Quarantines, Work
from odradek.replica.hosted import HostedPartitions
from odradek.replica.metadata import PartitionInfo
from odradek.values import EPOCHS_ABOVE, NO_LEADER, TopicPartition

if TYPE_CHECKING:
    from odradek.log.manager import LogManager
    from odradek.protocol.messages.control import UpdateMetadataPartitionState


class StrayReplicas:
    """Finds stray replicas in `look_for`; `run` passes them to `delete(partitions)`."""

    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        hosted: HostedPartitions,
        delete: Callable[[Collection[TopicPartition]], Awaitable[None]],
        quarantines: Quarantines,
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._hosted = hosted
        self._delete = delete
        self._quarantines = quarantines
        self._found: set[TopicPartition] = set()
        self._wake = asyncio.Event()

    def look_for(self, states: Iterable[tuple[str, UpdateMetadataPartitionState]]) -> None:
        """Note the stray replicas among the partitions that the controller describes."""
        for topic, state in states:
            key = TopicPartition(topic, state.partition_index)
            if self._broker_id not in state.replicas and self.owner(key) is not None:
                self._found.add(key)
                self._wake.set()

    def owner(self, key: TopicPartition) -> PartitionInfo | None:
        """Return who has the partition whose replica here is stray; None where it is not stray."""
        info = self._hosted.metadata.partition(*key)
        log = self._logs.get(*key)
        if info is None or log is None or log.failure is not None:
            return None
        if self._broker_id in (*info.replicas, *info.isr) or info.leader == NO_LEADER:
            return None
        role = self._hosted.partitions.get(key)
        newest = max(log.latest_epoch, -1 if role is None else role.leader_epoch)
        # Not all of it: the epoch that was raised was below that of a log.
        was_raised = info.leader_epoch - newest >= EPOCHS_ABOVE // 2
        return info if newest <= info.leader_epoch and not was_raised else None

    async def run(self) -> None:
        """Delete the stray replicas that were found, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            found, self._found = self._found, set()
            try:
                await self._delete(found)
            except Exception:
                # One at a time: the next UpdateMetadata finds again what cannot be deleted now.
                for key in sorted(found):
                    with self._quarantines.guard(Work.STRAY_REPLICA, key):
                        await self._delete({key})
            else:
                for key in found:
                    self._quarantines.release(Work.STRAY_REPLICA, key)
