"""Producers with acks=all and idempotence, and a consumer of committed records.

They get their metadata from any broker, however old it is, as real clients do. A producer sends a
batch with the same sequence number until it is acknowledged.
"""

from __future__ import annotations

import asyncio
from typing import Any

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.values import TopicPartition
from tests.simulator.batches import Batch, pack, unpack
from tests.simulator.broker import name_of
from tests.simulator.checks import Checks
from tests.simulator.network import Network
from tests.simulator.world import Process, World

PRODUCE_VERSION = 8
FETCH_VERSION = 10
RETRY_S = 0.15
# Brokers give lower ones to producers with transactions.
FIRST_PRODUCER_ID = 1_000_000
# The errors after which a client refreshes its metadata, or waits.
RETRIABLE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class Clients:
    """All clients, in one process without faults."""

    def __init__(self, world: World, network: Network, checks: Checks) -> None:
        self.process = Process(world, "clients")
        self.sending = True
        self.unanswered = 0
        self.positions: dict[TopicPartition, int] = {}
        self._world = world
        self._network = network
        self._checks = checks

    def start(self, keys: list[TopicPartition], producers: int) -> None:
        """Start to produce and to consume."""
        for key in keys:
            for number in range(producers):
                self.process.spawn(self._produce(key, number))
            self.consume(key)

    def consume(self, key: TopicPartition) -> None:
        """Start to consume."""
        self.positions[key] = 0
        self.process.spawn(self._consume(key))

    def leader(self, key: TopicPartition) -> tuple[int, int] | None:
        """Return (leader, epoch) from a random broker; they may be out of date."""
        living = [
            one
            for one in self._checks.brokers.values()
            if one.process is not None and not one.process.paused and hasattr(one, "metadata")
        ]
        if not living:
            return None
        info = self._world.chance.choice(living).metadata.partition(*key)
        return None if info is None or info.leader < 0 else (info.leader, info.leader_epoch)

    async def call(self, leader: int, request: Any, version: int) -> Any:
        """Return the response, None without one: the request may be carried out all the same."""
        try:
            return await self._network.call(
                self.process, name_of(leader), request, version, self._network.connect()
            )
        except (ConnectionError, TimeoutError):
            return None

    # --- producers ----------------------------------------------------------------------------

    async def _produce(self, key: TopicPartition, number: int) -> None:
        chance = self._world.chance
        producer_id = FIRST_PRODUCER_ID * (key.partition + 1) + number
        sequence = 0
        while self.sending:
            count = chance.choice((1, 1, 1, 2, 3))
            values = tuple(f"{producer_id}:{sequence + at}" for at in range(count))
            self.unanswered += 1
            await self._send(key, Batch(0, -1, producer_id, sequence, values))
            self.unanswered -= 1
            sequence += count
            await asyncio.sleep(chance.uniform(0.02, 0.7))

    async def _send(self, key: TopicPartition, batch: Batch) -> None:
        data = pack([batch])
        known = self.leader(key)
        while True:
            if known is None:
                await asyncio.sleep(RETRY_S)
                known = self.leader(key)
                continue
            request = ProduceRequest(
                acks=-1,
                timeout_ms=1000,
                topic_data=[
                    TopicProduceData(
                        name=key.topic,
                        partition_data=[PartitionProduceData(index=key.partition, records=data)],
                    )
                ],
            )
            response = await self.call(known[0], request, PRODUCE_VERSION)
            if response is not None:
                answer = response.responses[0].partition_responses[0]
                if answer.error_code == ErrorCode.NONE:
                    self._checks.acknowledge(key, answer.base_offset, batch.values)
                    return
                if answer.error_code not in RETRIABLE:
                    error = ErrorCode(answer.error_code).name
                    self._checks.misled(known[0], key, f"{error} to {batch.values}")
            await asyncio.sleep(RETRY_S)
            known = self.leader(key)

    # --- the consumer -------------------------------------------------------------------------

    async def _consume(self, key: TopicPartition) -> None:
        known = self.leader(key)
        while True:
            answer = None if known is None else await self._fetch(key, *known)
            if answer is None:
                await asyncio.sleep(RETRY_S)
                known = self.leader(key)

    async def _fetch(self, key: TopicPartition, leader: int, epoch: int) -> Any:
        position = self.positions[key]
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=1000,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[
                FetchTopic(
                    topic=key.topic,
                    partitions=[
                        FetchPartition(
                            partition=key.partition,
                            current_leader_epoch=epoch,
                            fetch_offset=position,
                            partition_max_bytes=1 << 20,
                        )
                    ],
                )
            ],
        )
        response = await self.call(leader, request, FETCH_VERSION)
        if response is None:
            return None
        answer = response.responses[0].partition_responses[0]
        if answer.error_code in RETRIABLE:
            return None
        if answer.error_code != ErrorCode.NONE:
            error = ErrorCode(answer.error_code).name
            self._checks.misled(leader, key, f"{error} to the consumer at {position}")
            return None
        self._checks.fetched(key, epoch, leader, answer.high_watermark)
        for batch in unpack(answer.record_set) if answer.record_set else ():
            for at, value in enumerate(batch.values, batch.base_offset):
                if at == self.positions[key]:
                    self._checks.commit(key, at, value, "the consumer")
                    self.positions[key] = at + 1
                elif at > self.positions[key]:
                    self._checks.fail(f"the consumer of {key} is given {at} at {position}")
        return answer
