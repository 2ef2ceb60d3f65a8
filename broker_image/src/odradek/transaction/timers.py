"""What happens to transactional ids by themselves: transactions that take too long are aborted, and
ids that nobody uses are forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from odradek import slices
from odradek.protocol.errors import ErrorCode
from odradek.transaction import decisions
from odradek.transaction.shard import TransactionShard
from odradek.transaction.shards import TransactionShards
from odradek.transaction.transaction import Transaction, TransactionEntry

EXPIRED_AT_ONCE: Final = 50
"""Ids whose tombstones are written at the same time."""

logger = logging.getLogger(__name__)


class TransactionTimers:
    """`write` writes the record of a pending state and makes it current, as the coordinator's."""

    def __init__(
        self,
        shards: TransactionShards,
        write: Callable[
            [TransactionShard, TransactionEntry, Transaction], Coroutine[Any, Any, ErrorCode]
        ],
        now_ms: Callable[[], int],
    ) -> None:
        self._shards = shards
        self._write = write
        self._now_ms = now_ms
        self.timed_out = 0
        """How many transactions were aborted because they took too long."""

    async def abort_timed_out(self) -> None:
        """Begin to abort transactions that are open for longer than their timeout."""
        for shard in self._confirmed():
            for few in slices.cut([*shard.entries.values()]):
                for entry in few:
                    found = decisions.time_out(entry, self._now_ms())
                    if found is not None and not shard.retired:
                        logger.info(
                            "transactional id %s: aborting its transaction after %d ms",
                            entry.transactional_id,
                            found.following.timeout_ms,
                        )
                        self.timed_out += 1
                        entry.begin(found.following)
                        self._shards.spawn(self._write(shard, entry, found.following))
                if len(few) == slices.STEPS_PER_SLICE:
                    await slices.pause()

    async def expire(self, expiration_ms: int) -> None:
        """Write tombstones of ids that nobody used for `expiration_ms`, some at a time."""
        for shard in self._confirmed():
            for few in slices.cut([*shard.entries.values()], EXPIRED_AT_ONCE):
                writes = []
                for entry in few:
                    found = decisions.expire(entry, expiration_ms, self._now_ms())
                    if found is not None and not shard.retired:
                        entry.begin(found.following)
                        writes.append(self._write(shard, entry, found.following))
                await asyncio.gather(*writes)
                await slices.pause()

    def _confirmed(self) -> list[TransactionShard]:
        return [shard for shard in self._shards.loaded() if shard.confirmed]
