"""Readers of committed records (isolation level 1), which leave aborted transactions out.

They do so as clients do: with the aborted transactions that a fetch names, and the markers among
the records. One that came to the end may begin again, and has to be given the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.values import TopicPartition
from tests.simulator.batches import Batch, unpack
from tests.simulator.checks import Checks
from tests.simulator.clients import FETCH_VERSION, RETRIABLE, RETRY_S, Clients
from tests.simulator.simulated_log import BATCH_BYTES
from tests.simulator.transaction_checks import HIDDEN, TransactionChecks
from tests.simulator.world import World

READ_COMMITTED = 1
AGAIN = 0.1
SIZES = (1, 3 * BATCH_BYTES, 10 * BATCH_BYTES, 1 << 20)


class CommittedReaders:
    """A reader per partition."""

    def __init__(
        self, world: World, clients: Clients, checks: Checks, transactions: TransactionChecks
    ) -> None:
        self.positions: dict[TopicPartition, int] = {}
        self._world = world
        self._clients = clients
        self._checks = checks
        self._transactions = transactions

    def start(self, keys: Iterable[TopicPartition]) -> None:
        """Start to read."""
        for key in keys:
            self.positions[key] = 0
            self._clients.process.spawn(self._read(key))

    async def _read(self, key: TopicPartition) -> None:
        chance = self._world.chance
        known = self._clients.leader(key)
        while True:
            answer = None if known is None else await self._fetch(key, *known)
            if answer is None:
                await asyncio.sleep(RETRY_S)
                known = self._clients.leader(key)
            elif not answer.record_set and self._clients.sending and chance.random() < AGAIN:
                self.positions[key] = 0

    async def _fetch(self, key: TopicPartition, leader: int, epoch: int) -> Any:
        position = self.positions[key]
        part = FetchPartition(
            partition=key.partition,
            current_leader_epoch=epoch,
            fetch_offset=position,
            partition_max_bytes=self._world.chance.choice(SIZES),
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=1000,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=READ_COMMITTED,
            topics=[FetchTopic(topic=key.topic, partitions=[part])],
        )
        response = await self._clients.call(leader, request, FETCH_VERSION)
        if response is None:
            return None
        answer = response.responses[0].partition_responses[0]
        if answer.error_code in RETRIABLE:
            return None
        if answer.error_code != ErrorCode.NONE:
            error = ErrorCode(answer.error_code).name
            self._checks.misled(leader, key, f"{error} to the reader at {position}")
            return None
        self._transactions.told(
            key, epoch, leader, answer.last_stable_offset, answer.high_watermark
        )
        self._take(key, answer)
        return answer

    def _take(self, key: TopicPartition, answer: Any) -> None:
        aborts = {(one.first_offset, one.producer_id) for one in answer.aborted_transactions or ()}
        aborted: set[int] = set()
        for batch in unpack(answer.record_set) if answer.record_set else ():
            begun = {one for one in aborts if one[0] < batch.end}
            aborts -= begun
            aborted |= {producer_id for _, producer_id in begun}
            is_hidden = batch.marker is not None or (
                batch.is_transactional and batch.producer_id in aborted
            )
            if batch.marker is not None and not batch.marker[1]:
                aborted.discard(batch.producer_id)
            self._take_batch(key, batch, answer.last_stable_offset, is_hidden)

    def _take_batch(self, key: TopicPartition, batch: Batch, stable: int, is_hidden: bool) -> None:
        for at, value in enumerate(batch.values, batch.base_offset):
            position = self.positions[key]
            if at > position:
                self._checks.fail(f"the reader of {key} is given {at} at {position}")
            elif at == position:
                if at >= stable:
                    self._checks.fail(f"the reader of {key} is given {at}, stable is {stable}")
                self._checks.commit(key, at, value, "the reader of committed records")
                settled = HIDDEN if is_hidden else value
                self._transactions.settled(key, at, settled, "the reader of committed records")
                self.positions[key] = at + 1
