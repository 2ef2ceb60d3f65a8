"""The transactional ids that a broker coordinates, loaded from the log of a partition it leads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from odradek import quarantine
from odradek.clock import monotonic_ms
from odradek.log.records.batch import Origin
from odradek.log.records.records import BatchOptions, make
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quarantine import Quarantines
from odradek.transaction import records
from odradek.transaction.shard import WHAT_TO_DO, TransactionShard
from odradek.transaction.shards import TransactionShards
from odradek.transaction.states import TransactionState
from odradek.transaction.transaction import NO_PARTITIONS, Transaction
from odradek.values import TRANSACTIONS_TOPIC, TopicPartition
from tests.support.one_partition import OnePartition
from tests.support.replicas import Replicas
from tests.support.transaction_coordinators import until

KEY = TopicPartition(TRANSACTIONS_TOPIC, 0)
EMPTY = Transaction("a", 7, 0, 60_000, TransactionState.EMPTY, NO_PARTITIONS, -1, 1)
ONGOING = replace(
    EMPTY,
    state=TransactionState.ONGOING,
    partitions=frozenset({TopicPartition("t", 0), TopicPartition("t", 2)}),
    start_ms=2,
    updated_ms=2,
)
DEAD = replace(EMPTY, state=TransactionState.DEAD)
OF_KAFKA_4 = (records.encode_key("a"), b"\0\1" + bytes(30))


@dataclass
class Coordinating:
    """A broker that leads the topic's partition, and what its coordinator is told."""

    replicas: Replicas
    quarantines: Quarantines = field(default_factory=Quarantines)
    loaded: list[TransactionShard] = field(default_factory=list)
    gone: list[TransactionShard] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shards = TransactionShards(
            self.replicas.manager,
            OnePartition(),  # type: ignore[arg-type]
            1000,
            100,
            self._note_loaded,
            self.gone.append,
            monotonic_ms,
            self.quarantines,
        )

    async def _note_loaded(self, shard: TransactionShard) -> None:
        self.loaded.append(shard)

    async def write(self, data: bytes) -> None:
        [outcome] = await self.replicas.manager.append([(KEY, data)], -1, 0, Origin.COORDINATOR)
        assert outcome.error is ErrorCode.NONE

    async def write_all(self, *transactions: Transaction) -> None:
        for one in transactions:
            await self.write(make([records.encode(one)], 1))

    def error(self) -> ErrorCode:
        try:
            self.shards.of("a")
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    async def loaded_shard(self) -> TransactionShard:
        await until(lambda: self.error() is ErrorCode.NONE)
        return self.shards.of("a")

    async def states(self) -> dict[str, Transaction | None]:
        shard = await self.loaded_shard()
        return {name: entry.current for name, entry in shard.entries.items()}


@pytest.fixture
async def coordinating(tmp_path: Path) -> AsyncIterator[Coordinating]:
    async with Replicas(tmp_path) as replicas:
        await replicas.lead(topic=TRANSACTIONS_TOPIC, epoch=5)
        coordinating = Coordinating(replicas)
        yield coordinating
        coordinating.shards.close()


async def test_last_record_of_each_id_counts_and_a_tombstone_removes(
    coordinating: Coordinating,
) -> None:
    other = replace(EMPTY, transactional_id="b")
    gone = replace(EMPTY, transactional_id="c")
    await coordinating.write_all(
        ONGOING, EMPTY, other, gone, ONGOING, replace(DEAD, transactional_id="c"), DEAD, ONGOING
    )
    assert await coordinating.states() == {"a": ONGOING, "b": other}


async def test_records_that_no_coordinator_wrote_do_not_affect_the_others(
    coordinating: Coordinating,
) -> None:
    await coordinating.write_all(EMPTY)
    options = BatchOptions(producer_id=9, producer_epoch=0, transactional=True, control=True)
    await coordinating.write(make([(b"\0\0\0\1", bytes(6))], 1, options))
    cut = records.encode(ONGOING)[1]
    assert cut is not None
    await coordinating.write(
        make([(b"anything", b"x"), (b"\0", b"x"), (records.encode_key("a"), cut[:9])], 1)
    )
    other = replace(EMPTY, transactional_id="b")
    await coordinating.write_all(other)
    assert await coordinating.states() == {"a": EMPTY, "b": other}


async def test_a_record_of_a_newer_version_keeps_its_partition_loading_and_says_what_to_do(
    coordinating: Coordinating, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 0.001)
    await coordinating.write_all(EMPTY)
    await coordinating.write(make([OF_KAFKA_4], 1))
    seen = set()

    def tried_again() -> bool:
        seen.add(coordinating.error())
        return coordinating.quarantines.totals()["transaction-loading"] > 2

    await until(tried_again)
    assert seen == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert coordinating.quarantines.held()["transaction-loading"] == 1
    [line, *_] = [one for one in caplog.records if one.levelname == "ERROR"]
    assert WHAT_TO_DO in line.getMessage()
    assert "offset 1, transactional id 'a'" in line.getMessage()
    assert coordinating.loaded == []


async def test_coordinator_hears_of_loaded_shards_and_of_those_that_it_loses(
    coordinating: Coordinating,
) -> None:
    await coordinating.write_all(ONGOING)
    shard = await coordinating.loaded_shard()
    assert coordinating.loaded == [shard]
    await coordinating.replicas.take(leader=2, epoch=6, replicas=(1, 2), topic=KEY.topic)
    assert coordinating.error() is ErrorCode.NOT_COORDINATOR
    assert coordinating.gone == [shard]
    assert (shard.retired, shard.entries) == (True, {})
    await coordinating.replicas.take(leader=1, epoch=7, replicas=(1, 2), topic=KEY.topic)
    following = await coordinating.loaded_shard()
    assert coordinating.loaded == [shard, following]


async def test_coordinator_epoch_is_the_leader_epoch_of_the_shards_own_leadership(
    coordinating: Coordinating,
) -> None:
    """A shard that is not given up yet must not send markers in the name of its successor."""
    shard = await coordinating.loaded_shard()
    assert shard.coordinator_epoch == 5
    await coordinating.replicas.lead(topic=KEY.topic, epoch=6)
    assert (await coordinating.loaded_shard(), shard.coordinator_epoch) == (shard, 6)
    await coordinating.replicas.take(leader=2, epoch=7, replicas=(1, 2), topic=KEY.topic)
    assert shard.coordinator_epoch == 6
    await coordinating.replicas.take(leader=1, epoch=8, replicas=(1, 2), topic=KEY.topic)
    assert (shard.coordinator_epoch, (await coordinating.loaded_shard()).coordinator_epoch) == (
        6,
        8,
    )
