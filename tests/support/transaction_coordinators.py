"""A coordinator of transactions on a real log; appends and leaders answer as a test wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field

import pytest
from kazoo.exceptions import ConnectionLoss
from prometheus_client import CollectorRegistry

from odradek.log.records.batch import Origin
from odradek.log.records.records import make
from odradek.metrics.broker_metrics import BrokerMetrics
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from odradek.quarantine import Quarantines
from odradek.replica.appends import AppendOutcome
from odradek.transaction import records
from odradek.transaction.coordinator import TransactionCoordinator
from odradek.transaction.states import TransactionState
from odradek.transaction.transaction import NO_PARTITIONS, ProducerIdAndEpoch, Transaction
from odradek.values import NO_LEADER, TRANSACTIONS_TOPIC, TopicPartition
from tests.support.one_partition import OnePartition
from tests.support.replicas import Replicas

STATE = TopicPartition(TRANSACTIONS_TOPIC, 0)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OTHER = 2
ID = "a"
TIMEOUT_MS = 60_000
EMPTY = Transaction(ID, 7, 0, TIMEOUT_MS, TransactionState.EMPTY, NO_PARTITIONS, -1, 1)


async def until(condition: Callable[[], object]) -> None:
    """Return once the condition holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@dataclass
class FaultyReplicas:
    """Appends to the real log; the next ones end as `refused` or `lost` say: an error before the
    write, or after it.
    """

    real: Replicas
    refused: list[ErrorCode] = field(default_factory=list)
    lost: list[ErrorCode] = field(default_factory=list)
    held: asyncio.Event | None = None

    @property
    def partitions(self) -> object:
        return self.real.manager.partitions

    async def append(
        self,
        entries: Sequence[tuple[TopicPartition, bytes]],
        acks: int,
        timeout_ms: int,
        origin: Origin,
    ) -> list[AppendOutcome]:
        if self.refused:
            return [AppendOutcome(entries[0][0], self.refused.pop(0))]
        outcomes = await self.real.manager.append(entries, acks, timeout_ms, origin)
        if self.held is not None:
            await self.held.wait()
        if self.lost:
            outcomes[0].error = self.lost.pop(0)
        return outcomes


@dataclass
class Leader:
    """A broker that answers markers with the next of `codes`, NONE once there are no more."""

    codes: list[int | type[Exception]] = field(default_factory=list)
    marked: list[tuple[TopicPartition, int, bool, int]] = field(default_factory=list)
    requests: int = 0
    closed: int = 0
    held: asyncio.Event | None = None

    async def call(
        self, request: WriteTxnMarkersRequest, version: int, timeout_ms: int
    ) -> WriteTxnMarkersResponse:
        self.requests += 1
        if self.held is not None:
            await self.held.wait()
        code = self.codes.pop(0) if self.codes else ErrorCode.NONE
        if isinstance(code, type):
            raise code
        results = []
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                for index in topic.partition_indexes:
                    key = TopicPartition(topic.name, index)
                    said = marker.producer_epoch, marker.transaction_result
                    self.marked.append((key, *said, marker.coordinator_epoch))
                topics.append(
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                )
            results.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        return WriteTxnMarkersResponse(markers=results)

    async def close(self) -> None:
        self.closed += 1


@dataclass
class Cluster:
    """Leaders of partitions, and how many partitions there are, which ZooKeeper does not tell for a
    moment.
    """

    leaders: dict[TopicPartition, int] = field(
        default_factory=lambda: dict.fromkeys((T0, T1), OTHER)
    )
    partitions: int = 2
    silent: int = 0

    def leader_of(self, partition: TopicPartition) -> int | None:
        return self.leaders.get(partition)

    async def partitions_of(self, topic: str) -> range:
        if self.silent:
            self.silent -= 1
            raise ConnectionLoss
        return range(self.partitions)

    def lose_leader(self, partition: TopicPartition) -> None:
        self.leaders[partition] = NO_LEADER


@dataclass
class ProducerIds:
    """Gives the ids from 100 on."""

    given: int = 99

    async def take(self) -> int:
        self.given += 1
        await asyncio.sleep(0)
        return self.given


class Coordinating:
    """A coordinator that leads the only partition of `__transaction_state`."""

    def __init__(self, real: Replicas) -> None:
        self.real = real
        self.replicas = FaultyReplicas(real)
        self.cluster = Cluster()
        self.leader = Leader()
        self.others: dict[int, Leader] = {}
        self.now_ms = 1_000_000
        self.clock_ms = 0
        self.end_offset_confirmed = True
        self.quarantines = Quarantines()
        self.coordinator = self._new()

    def _new(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            self.real.config,
            self.replicas,  # type: ignore[arg-type]
            OnePartition(),  # type: ignore[arg-type]
            ProducerIds(),
            self.cluster,
            lambda broker_id: self.others.get(broker_id, self.leader),  # type: ignore[arg-type,return-value]
            lambda partition: self.end_offset_confirmed,
            self._confirm_end_offset,
            self.quarantines,
            lambda: self.clock_ms,
            lambda: self.now_ms,
        )

    async def _confirm_end_offset(self, partition: object) -> bool:
        return self.end_offset_confirmed

    async def restart(self) -> None:
        """Read the log again, as another leader would."""
        await self.coordinator.close()
        self.coordinator = self._new()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the timers of the coordinator, which look at the clock once per tick."""
        run = asyncio.create_task(self.coordinator.run())
        for _ in range(3):  # until each of them has looked for the first time
            await asyncio.sleep(0)
        try:
            yield
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)

    async def write(self, *transactions: Transaction) -> None:
        """Write what a former coordinator wrote."""
        for one in transactions:
            data = make([records.encode(one)], 1)
            [outcome] = await self.real.manager.append([(STATE, data)], -1, 0, Origin.COORDINATOR)
            assert outcome.error is ErrorCode.NONE

    def state(self, transactional_id: str = ID) -> TransactionState | None:
        """Return the state of an id in memory, None while it is unknown or loading."""
        for shard in self.coordinator._shards.loaded():
            entry = shard.entries.get(transactional_id)
            if entry is not None and entry.current is not None and shard.confirmed:
                return entry.current.state
        return None

    def refusal(self, look: Callable[[], object]) -> ErrorCode:
        """Return why the coordinator does not tell something."""
        with pytest.raises(KafkaError) as refused:
            look()
        return refused.value.code

    async def state_is(self, state: TransactionState) -> None:
        await until(lambda: self.state() is state)

    async def init(self, named: ProducerIdAndEpoch | None = None) -> ProducerIdAndEpoch:
        """Become the producer of the id, asking again where a client would."""
        code = ErrorCode.NONE
        async with asyncio.timeout(60):
            while True:
                answer = await self.coordinator.init_producer_id(ID, TIMEOUT_MS, named)
                code = answer.error
                if code is ErrorCode.NONE:
                    return answer.producer
                assert code in RETRIABLE, code
                await asyncio.sleep(0.005)

    async def add(
        self, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition] = (T0, T1)
    ) -> ErrorCode:
        return await self._asked(
            lambda: self.coordinator.add_partitions(ID, producer, {*partitions})
        )

    async def end(self, producer: ProducerIdAndEpoch, *, commits: bool) -> ErrorCode:
        return await self._asked(lambda: self.coordinator.end(ID, producer, commits=commits))

    async def _asked(self, ask: Callable[[], object]) -> ErrorCode:
        async with asyncio.timeout(60):
            while True:
                code: ErrorCode = await ask()  # type: ignore[misc]
                if code not in RETRIABLE:
                    return code
                await asyncio.sleep(0.005)


def series(on: Coordinating, name: str, **labels: str) -> float | None:
    """Return the value of a metric of the coordinator."""
    broker = BrokerMetrics()
    broker.watch({}, None, None, None, on.coordinator, {})  # type: ignore[arg-type]
    registry = CollectorRegistry()
    registry.register(broker)
    return registry.get_sample_value(name, labels)


RETRIABLE = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
