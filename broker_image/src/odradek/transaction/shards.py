"""The transactional ids that this broker coordinates: the shards of `__transaction_state` that it
leads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from odradek.coordination.led_shards import CoordinatorKind, LedShards
from odradek.coordination.partitioning import PartitionCount
from odradek.coordination.replicas import Replicas
from odradek.protocol.errors import ErrorCode
from odradek.quarantine import Quarantines, Work
from odradek.transaction.shard import TransactionShard
from odradek.values import TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from odradek.log.partition.log import Log

_TRANSACTIONS = CoordinatorKind(
    TRANSACTIONS_TOPIC,
    "transaction",
    "transactional id",
    "transactional ids",
    Work.TRANSACTION,
    Work.TRANSACTION_LOADING,
    "odradek.max.transactional.ids",
    # Java clients stop and say that a policy is not satisfied. What they try again says nothing.
    ErrorCode.POLICY_VIOLATION,
)


class TransactionShards(LedShards[TransactionShard]):
    """The loaded partitions of `__transaction_state`; a shard's `entries` are its ids."""

    def __init__(
        self,
        replicas: Replicas,
        partition_count: PartitionCount,
        most_ids: int,
        read_bytes: int,
        on_loaded: Callable[[TransactionShard], Awaitable[None]],
        on_gone: Callable[[TransactionShard], None],
        clock_ms: Callable[[], int],
        quarantines: Quarantines,
    ) -> None:
        async def load(shard: TransactionShard, log: Log) -> None:
            await shard.load(log, read_bytes)

        super().__init__(
            _TRANSACTIONS,
            lambda: replicas.partitions,
            partition_count,
            most_ids,
            TransactionShard,
            load,
            on_loaded,
            on_gone,
            clock_ms,
            quarantines,
        )
