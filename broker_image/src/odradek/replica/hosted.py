"""The partitions on this broker, and who waits for them to move.

What moves of a partition has its own waiters: the log end (followers' fetches), the high watermark
(consumers' fetches, and produces with acks=all), the low watermark (DeleteRecords). A change of
role wakes them all.
"""

from __future__ import annotations

from odradek.protocol.errors import ErrorCode
from odradek.replica.metadata import MetadataCache
from odradek.replica.partition import NO_EPOCH, Partition
from odradek.replica.purgatory import Purgatory
from odradek.values import TopicPartition


class HostedPartitions:
    """A registry; the `ReplicaManager` adds and removes, appends and fetches look up."""

    def __init__(self, metadata: MetadataCache) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        self.metadata = metadata
        self.for_log_end: Purgatory[TopicPartition] = Purgatory()
        self.for_high_watermark: Purgatory[TopicPartition] = Purgatory()
        self.for_acknowledgement: Purgatory[TopicPartition] = Purgatory()
        self.for_low_watermark: Purgatory[TopicPartition] = Purgatory()

    def leader_or_error(
        self, key: TopicPartition, leader_epoch: int = NO_EPOCH
    ) -> tuple[Partition | None, ErrorCode]:
        """The partition if this broker leads it in this epoch (-1: any), else why not."""
        partition = self.partitions.get(key)
        if partition is not None:
            error = partition.check_leader(leader_epoch)
            return (partition, error) if error is ErrorCode.NONE else (None, error)
        if self.metadata.partition(key.topic, key.partition) is not None:
            return None, ErrorCode.NOT_LEADER_OR_FOLLOWER
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def wake_log_end(self, key: TopicPartition) -> None:
        """The partition's log end moved."""
        self.for_log_end.wake(key)

    def wake_high_watermark(self, key: TopicPartition) -> None:
        """The partition's high watermark moved."""
        self.for_high_watermark.wake(key)
        self.for_acknowledgement.wake(key)

    def wake_low_watermark(self, key: TopicPartition) -> None:
        """A replica of the partition deleted its first records."""
        self.for_low_watermark.wake(key)

    def wake_all(self, key: TopicPartition) -> None:
        """The partition changed its role, went away, or its storage failed."""
        self.for_log_end.wake(key)
        self.wake_high_watermark(key)
        self.for_low_watermark.wake(key)

    def close(self) -> None:
        """End every wait."""
        for waiting in (
            self.for_log_end,
            self.for_high_watermark,
            self.for_acknowledgement,
            self.for_low_watermark,
        ):
            waiting.close()
