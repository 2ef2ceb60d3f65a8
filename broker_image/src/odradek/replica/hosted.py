"""The partitions on this broker, and the requests that wait for them.

Each partition position has its own wait queue: the log end (fetches of followers), the high
watermark (fetches of consumers, and produces with acks=all) and the low watermark (DeleteRecords).
A change of role wakes all of them. The fetch sessions (KIP-227) that have the partition note the
same changes.
"""

from __future__ import annotations

from collections.abc import Callable

from odradek.protocol.errors import NO_ERROR, ErrorCode
from odradek.replica.fetch_sessions import SessionWatchers
from odradek.replica.metadata import MetadataCache
from odradek.replica.partition import NO_EPOCH, Partition
from odradek.replica.purgatory import Purgatory
from odradek.values import TopicPartition


class HostedPartitions:
    """A registry. The `ReplicaManager` adds and removes; appends and fetches look up."""

    def __init__(self, metadata: MetadataCache) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        self.metadata = metadata
        self.sessions = SessionWatchers()
        # Told of each change that wakes everybody.
        self.on_change: Callable[[TopicPartition], None] = lambda key: None
        self.for_log_end: Purgatory[TopicPartition] = Purgatory()
        self.for_high_watermark: Purgatory[TopicPartition] = Purgatory()
        self.for_acknowledgement: Purgatory[TopicPartition] = Purgatory()
        self.for_low_watermark: Purgatory[TopicPartition] = Purgatory()

    def leader_or_error(
        self, key: TopicPartition, leader_epoch: int = NO_EPOCH
    ) -> tuple[Partition | None, ErrorCode]:
        """Return the partition if this broker leads it in this epoch (-1: any), else the error."""
        partition = self.partitions.get(key)
        if partition is not None:
            error = partition.check_leader(leader_epoch)
            return (partition, error) if error is NO_ERROR else (None, error)
        if self.metadata.partition(key.topic, key.partition) is not None:
            return None, ErrorCode.NOT_LEADER_OR_FOLLOWER
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def follower(self, key: TopicPartition) -> Partition | None:
        """Return the partition if this broker follows another that leads it."""
        partition = self.partitions.get(key)
        return partition if partition is not None and partition.is_follower else None

    def wake_log_end(self, key: TopicPartition) -> None:
        """Wake those who wait for the partition's log end."""
        self.for_log_end.wake(key)
        self.sessions.log_end_moved(key)

    def wake_high_watermark(self, key: TopicPartition) -> None:
        """Wake those who wait for the partition's high watermark."""
        self.for_high_watermark.wake(key)
        self.for_acknowledgement.wake(key)
        self.sessions.high_watermark_moved(key)

    def wake_low_watermark(self, key: TopicPartition) -> None:
        """Wake those who wait for the partition's low watermark."""
        self.for_low_watermark.wake(key)

    def wake_all(self, key: TopicPartition) -> None:
        """Wake everybody: the partition changed its role, was deleted, or its storage failed."""
        self.for_log_end.wake(key)
        self.wake_high_watermark(key)
        self.for_low_watermark.wake(key)
        self.sessions.changed(key, wakes=True)
        self.on_change(key)

    def close(self) -> None:
        """End every wait."""
        for waiting in (
            self.for_log_end,
            self.for_high_watermark,
            self.for_acknowledgement,
            self.for_low_watermark,
        ):
            waiting.close()
