"""Appends that wait for the coordinator of their transaction, and what may happen meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from odradek.log.partition.verification import Verification
from odradek.log.records import contents, records
from odradek.log.records.batch import Origin
from odradek.log.records.contents import Marker
from odradek.log.records.records import BatchOptions
from odradek.protocol.errors import ErrorCode
from odradek.values import TopicPartition
from tests.support.logs import START_MS
from tests.support.replicas import KEY, Replicas

PRODUCER = 7
UNKNOWN = TopicPartition("unknown", 0)


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path) as built:
        await built.lead()
        yield built


class Asked:
    """A coordinator that answers `code`, and what it was asked."""

    def __init__(self, code: ErrorCode = ErrorCode.NONE) -> None:
        self.code = code
        self.keys: list[list[TopicPartition]] = []

    async def verify(
        self, waiting: Mapping[TopicPartition, Verification]
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.keys.append([*waiting])
        await self.meanwhile()
        return dict.fromkeys(waiting, self.code)

    async def meanwhile(self) -> None:
        """Do nothing, unless a test replaces it."""


async def send(replicas: Replicas, asked: Asked, sequence: int) -> list[ErrorCode]:
    options = BatchOptions(
        producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence, transactional=True
    )
    data = records.make([(b"k", b"v")], START_MS, options)
    appended = await replicas.manager.begin_verified_append(
        [(UNKNOWN, data), (KEY, data)], -1, 30_000, Origin.TRANSACTIONAL_CLIENT, asked.verify
    )
    await appended.acknowledged()
    return [one.error for one in appended.outcomes]


async def mark(replicas: Replicas) -> None:
    data = contents.make_marker(PRODUCER, 0, Marker(0, True), START_MS)
    await replicas.manager.append([(KEY, data)], 1, 0, Origin.COORDINATOR)


async def test_only_what_begins_a_transaction_is_asked_for(replicas: Replicas) -> None:
    asked = Asked()
    known = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for sequence in range(3):
        assert await send(replicas, asked, sequence) == [known, ErrorCode.NONE]
    assert asked.keys == [[KEY]]


async def test_refused_batch_is_not_appended(replicas: Replicas) -> None:
    for code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.NOT_ENOUGH_REPLICAS):
        assert (await send(replicas, Asked(code), 0))[1] is code
    assert replicas.manager.partitions[KEY].log.log_end_offset == 0
    assert (await send(replicas, Asked(), 0))[1] is ErrorCode.NONE


async def test_batch_that_waits_while_a_marker_comes_is_late(replicas: Replicas) -> None:
    asked = Asked()
    asked.meanwhile = lambda: mark(replicas)  # type: ignore[method-assign]
    assert (await send(replicas, asked, 0))[1] is ErrorCode.INVALID_TXN_STATE
    assert replicas.manager.partitions[KEY].log.log_end_offset == 1


async def test_new_leader_epoch_has_the_coordinator_asked_again(replicas: Replicas) -> None:
    asked = Asked()

    async def lead_on() -> None:
        if len(asked.keys) == 1:
            await replicas.lead(epoch=9)

    asked.meanwhile = lead_on  # type: ignore[method-assign]
    assert (await send(replicas, asked, 0))[1] is ErrorCode.NONE
    assert asked.keys == [[KEY], [KEY]]
