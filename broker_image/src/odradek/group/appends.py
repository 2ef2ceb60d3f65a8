"""The coordinator's appends to `__consumer_offsets`, and what their errors mean to clients.

Offsets and memberships count once they are written with acks=all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from odradek.coordination.replicas import Replicas
from odradek.group.group import Group
from odradek.group.shard import Shard
from odradek.group.shards import Shards
from odradek.log.records import records
from odradek.log.records.batch import Origin
from odradek.net.rare_log import RareLog
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import OFFSETS_TOPIC, TopicPartition

if TYPE_CHECKING:
    from odradek.replica.appends import AppendOutcome

COMMIT_TIMEOUT_MS = 5000
"""Kafka's offsets.commit.timeout.ms: the limit for replicas to acknowledge a commit."""

# The error for the client if a write to __consumer_offsets fails, mapped as in Kafka.
_FOR_CLIENTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})

_rare_log = RareLog(logging.getLogger(__name__))


def error_for_clients(error: ErrorCode) -> ErrorCode:
    """Return the error for the client whose append failed with an error of the log."""
    return _FOR_CLIENTS.get(error, error)


class GroupAppends:
    """Appends records to the partitions of `shards`."""

    def __init__(self, replicas: Replicas, shards: Shards, now_ms: Callable[[], int]) -> None:
        self._replicas = replicas
        self._shards = shards
        self._now_ms = now_ms

    async def append(
        self, shard: Shard, pairs: Iterable[tuple[bytes, bytes | None]]
    ) -> tuple[ErrorCode, int]:
        """Write records; return the outcome, and the log offset of the first record."""
        return await self.append_batch(shard, records.make(pairs, self._now_ms()))

    async def append_batch(self, shard: Shard, data: bytes) -> tuple[ErrorCode, int]:
        """As `append`, for a batch."""
        outcome = await self.append_unmapped(shard, data)
        return error_for_clients(outcome.error), outcome.base_offset

    async def append_unmapped(self, shard: Shard, data: bytes) -> AppendOutcome:
        """Write a batch; return the outcome with the error of the log."""
        key = TopicPartition(OFFSETS_TOPIC, shard.partition)
        [outcome] = await self._replicas.append(
            [(key, data)], -1, COMMIT_TIMEOUT_MS, Origin.COORDINATOR
        )
        return outcome

    async def store_group(self, group: Group, record: tuple[bytes, bytes | None]) -> ErrorCode:
        """Write a group's membership, encoded by `offsets.encode_group`.

        One that is too large has an error of its own, as in Kafka: it is no commit.
        """
        try:
            shard = self._shards.of_members(group.group_id)
        except KafkaError as refusal:
            return refusal.code
        outcome = await self.append_unmapped(shard, records.make([record], self._now_ms()))
        if outcome.error in _TOO_LARGE:
            _rare_log.log(
                logging.ERROR,
                "failed to store group %.80s: its %d members take more than one batch of %s may "
                "have (max.message.bytes)",
                group.group_id,
                len(group.members),
                OFFSETS_TOPIC,
            )
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return error_for_clients(outcome.error)
