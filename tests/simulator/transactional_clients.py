"""Producers with transactions: several partitions, commits and aborts, and instances that fence.

Left out is what protocol 2.8 cannot exclude (KIP-890): a request of an earlier transaction that
arrives in the next one of the same epoch. So a producer ends a transaction only once all its
records are acknowledged, and takes a new epoch if an answer of its coordinator was missing. Where
it cannot end a transaction, it stops, and the next instance fences it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from odradek.coordination.partitioning import partition_of
from odradek.log.records.batch import TRANSACTIONAL
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.protocol.messages.producers import InitProducerIdRequest
from odradek.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
)
from odradek.values import TRANSACTIONS_TOPIC, TopicPartition
from tests.simulator.batches import Batch, pack
from tests.simulator.checks import Checks
from tests.simulator.clients import PRODUCE_VERSION, RETRIABLE, RETRY_S, Clients
from tests.simulator.transaction_checks import SentTransaction, TransactionChecks
from tests.simulator.world import World

INIT_VERSION = 4
ADD_VERSION = 2
END_VERSION = 2
TIMEOUTS_MS = (1000, 2500, 4000)
LIFE_S = (0.5, 9.0)
COMMITS = 0.7
ADDS_ALL = 0.5
STALLS = 0.03
# How often an instance is gone right after it asked for the end.
STOPS = 0.07
STOPS_S = 0.02
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
# Those of a partition after which a producer gives up: its transaction may have timed out.
ENDED = FENCED | {ErrorCode.INVALID_TXN_STATE}
# The errors after which a producer asks its coordinator again, or looks for it.
COORDINATOR_RETRIABLE = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        # A broker that just started does not know all partitions.
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class EndedError(Exception):
    """The instance cannot go on: another one, or its coordinator, fenced it; or it is gone."""


class TransactionalClients:
    """All producers with transactions, in the process of the other clients."""

    def __init__(
        self,
        world: World,
        clients: Clients,
        checks: Checks,
        transactions: TransactionChecks,
        keys: list[TopicPartition],
        state_partitions: int,
    ) -> None:
        self.world = world
        self.clients = clients
        self.checks = checks
        self.transactions = transactions
        self.keys = keys
        self.running = 0
        """How many instances there are now."""
        self._state_partitions = state_partitions

    def start(self, ids: int) -> None:
        """Start a producer for each of so many transactional ids."""
        for number in range(ids):
            self.clients.process.spawn(self._live(f"id-{number}"))

    async def _live(self, transactional_id: str) -> None:
        """Run one instance after the other; the next one may begin while another one goes on."""
        chance = self.world.chance
        number = 0
        while self.clients.sending:
            number += 1
            instance = Instance(self, transactional_id, f"{transactional_id}.{number}")
            self.running += 1
            task = self.clients.process.spawn(instance.run())
            await asyncio.wait({task}, timeout=chance.uniform(*LIFE_S))
            if chance.random() < 0.5:
                task.cancel()  # killed, whatever it did

    async def ask(self, transactional_id: str, request: Any, version: int) -> Any:
        """Return the response of an id's coordinator, None without one."""
        partition = partition_of(transactional_id, self._state_partitions)
        known = self.clients.leader(TopicPartition(TRANSACTIONS_TOPIC, partition))
        return None if known is None else await self.clients.call(known[0], request, version)


class Instance:
    """One life of a producer with a transactional id."""

    def __init__(self, clients: TransactionalClients, transactional_id: str, name: str) -> None:
        self._all = clients
        self._chance = clients.world.chance
        self._id = transactional_id
        self._name = name
        self._producer = -1, -1
        self._sequences: dict[TopicPartition, int] = defaultdict(int)
        # Whether a request of this epoch may still arrive at a coordinator.
        self._is_unsure = False

    def _say(self, what: str) -> None:
        self._all.world.say(f"{self._name} {self._producer}: {what}")

    async def run(self) -> None:
        """Run transactions until fenced, or until nobody sends any more."""
        try:
            await self._initialize()
            number = 0
            while self._all.clients.sending:
                number += 1
                await self._run_transaction(f"{self._name}.{number}")
                if self._is_unsure:
                    await self._initialize()
                await asyncio.sleep(self._chance.choice((0, self._chance.uniform(0.0, 0.3))))
        except* EndedError as ended:
            self._say(f"ends: {ended.exceptions}")
        finally:
            self._all.running -= 1

    # --- the coordinator ----------------------------------------------------------------------

    async def _initialize(self) -> None:
        """Get the next epoch. Raise EndedError."""
        producer_id, epoch = self._producer
        request = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._chance.choice(TIMEOUTS_MS),
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        answer = await self._asked(request, INIT_VERSION, lambda answer: int(answer.error_code))
        self._producer = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        self._is_unsure = False
        self._all.transactions.ids.add(self._id)
        self._say("is initialized")

    async def _add(self, keys: list[TopicPartition]) -> None:
        """Add partitions to the transaction. Raise EndedError."""
        topics: dict[str, list[int]] = defaultdict(list)
        for key in keys:
            topics[key.topic].append(key.partition)
        request = AddPartitionsToTxnRequest(
            transactional_id=self._id,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=some)
                for topic, some in topics.items()
            ],
        )
        await self._asked(request, ADD_VERSION, _worst_of)

    async def _end(self, sent: SentTransaction, *, commits: bool) -> None:
        """End the transaction. Raise EndedError."""
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            committed=commits,
        )
        was_unsure, self._is_unsure = self._is_unsure, False
        sent.may_be_committed = commits
        self._say(f"{'commits' if commits else 'aborts'} {sent.name}")
        try:
            await self._asked(request, END_VERSION, lambda answer: int(answer.error_code))
            sent.is_committed = commits
            self._say(f"ended {sent.name}")
        except EndedError:
            if not self._is_unsure:
                sent.may_be_committed = False
            raise
        finally:
            self._is_unsure |= was_unsure

    async def _asked(self, request: Any, version: int, error_of: Any) -> Any:
        """Return the answer of the coordinator once it is one. Raise EndedError."""
        while True:
            answer = await self._all.ask(self._id, request, version)
            if answer is None:
                self._is_unsure = True
            else:
                error = error_of(answer)
                if error == ErrorCode.NONE:
                    return answer
                if error in FENCED:
                    raise EndedError(f"{ErrorCode(error).name} to {type(request).__name__}")
                if error not in COORDINATOR_RETRIABLE:
                    self._all.checks.fail(
                        f"{self._name} {self._producer}: {ErrorCode(error).name} to "
                        f"{type(request).__name__}"
                    )
                # An outcome that the coordinator does not know may come to be.
                self._is_unsure |= error == ErrorCode.COORDINATOR_NOT_AVAILABLE
                self._is_unsure |= error == ErrorCode.NOT_COORDINATOR
            await asyncio.sleep(RETRY_S)

    # --- transactions -------------------------------------------------------------------------

    async def _run_transaction(self, name: str) -> None:
        """Run a whole transaction. Raise EndedError."""
        chance = self._chance
        sent = self._all.transactions.begin(name, self._name)
        keys = chance.sample(self._all.keys, chance.randint(1, len(self._all.keys)))
        if chance.random() < ADDS_ALL:
            await self._add(keys)
            async with asyncio.TaskGroup() as tasks:
                for key in keys:
                    tasks.create_task(self._write(sent, key))
        else:
            for key in keys:
                await self._add([key])
                await self._write(sent, key)
        if chance.random() < STALLS:
            await asyncio.sleep(chance.uniform(0, 6))
        try:
            async with asyncio.timeout(
                chance.uniform(0, STOPS_S) if chance.random() < STOPS else None
            ):
                await self._end(sent, commits=chance.random() < COMMITS)
        except TimeoutError:
            raise EndedError("is gone") from None

    async def _write(self, sent: SentTransaction, key: TopicPartition) -> None:
        """Write some batches to a partition. Raise EndedError."""
        for _ in range(self._chance.choice((1, 1, 2, 3))):
            values = tuple(
                self._all.transactions.send(sent, key)
                for _ in range(self._chance.choice((1, 1, 2)))
            )
            producer_id, epoch = self._producer
            batch = Batch(0, -1, producer_id, self._sequences[key], values, epoch, TRANSACTIONAL)
            self._sequences[key] += len(values)
            await self._send(key, batch)
            await asyncio.sleep(self._chance.uniform(0.0, 0.1))

    async def _send(self, key: TopicPartition, batch: Batch) -> None:
        """Send a batch until it is acknowledged. Raise EndedError."""
        part = PartitionProduceData(index=key.partition, records=pack([batch]))
        request = ProduceRequest(
            transactional_id=self._id,
            acks=-1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name=key.topic, partition_data=[part])],
        )
        clients, checks = self._all.clients, self._all.checks
        while True:
            known = clients.leader(key)
            response = None
            if known is not None:
                response = await clients.call(known[0], request, PRODUCE_VERSION)
            if known is not None and response is not None:
                answer = response.responses[0].partition_responses[0]
                if answer.error_code == ErrorCode.NONE:
                    checks.acknowledge(key, answer.base_offset, batch.values)
                    return
                if answer.error_code in ENDED:
                    raise EndedError(f"{ErrorCode(answer.error_code).name} of {key}")
                if answer.error_code not in RETRIABLE:
                    error = ErrorCode(answer.error_code).name
                    checks.misled(known[0], key, f"{error} to {batch.values} of {self._name}")
            await asyncio.sleep(RETRY_S)


def _worst_of(answer: Any) -> int:
    """Return the error of an answer to AddPartitionsToTxn: that of a partition that has its own."""
    errors = {one.error_code for topic in answer.results for one in topic.results}
    alone = errors - {ErrorCode.OPERATION_NOT_ATTEMPTED}
    return int(next(iter(alone or errors)))
