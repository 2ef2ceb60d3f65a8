"""TxnOffsetCommit, and OffsetFetch that asks for stable offsets only, on a real log."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator

import pytest

from odradek.group.coordinator import GroupCoordinator
from odradek.handlers import group_offsets, transaction_offsets
from odradek.handlers.context import Broker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from odradek.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.handlers.large_requests import context
from tests.support.control import state, update
from tests.support.offsets_in_transactions import Coordinating
from tests.support.replicas import Replicas

PRODUCER = 7
Codes = dict[tuple[str, int], int]


@pytest.fixture
async def coordinating(replicas: Replicas) -> AsyncIterator[Coordinating]:
    """A coordinator where group g has committed the offset 1 in the partition 0."""
    built = Coordinating(replicas)
    await built.start()
    await built.commit({0: 1})
    yield built
    built.coordinator.close()


@pytest.fixture
def serving(broker: Broker, coordinating: Coordinating) -> Broker:
    """The broker, which knows three partitions of the topic t."""
    broker.metadata.update(update(*(state("t", index) for index in range(3))))
    return dataclasses.replace(broker, groups=coordinating.coordinator)


def request(*partitions: int, group: str = "g", topic: str = "t") -> TxnOffsetCommitRequest:
    """Return a commit of offset 2, and of a leader epoch, in each partition."""
    return TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=group,
        producer_id=PRODUCER,
        producer_epoch=0,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=2,
                        committed_leader_epoch=4,
                        committed_metadata="mine",
                    )
                    for index in partitions
                ],
            )
        ],
    )


async def commit(serving: Broker, sent: TxnOffsetCommitRequest, version: int = 3) -> Codes:
    answer = await transaction_offsets.txn_offset_commit(serving, sent, context(version))
    return {
        (topic.name, part.partition_index): part.error_code
        for topic in answer.topics
        for part in topic.partitions
    }


async def fetch(
    serving: Broker, *partitions: int, stable: bool
) -> dict[int, tuple[int, int, str | None, int]]:
    """Return offset, leader epoch, metadata and error by partition; of all without partitions."""
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[*partitions])]
    answer = await group_offsets.offset_fetch(
        serving,
        OffsetFetchRequest(
            group_id="g", topics=topics if partitions else None, require_stable=stable
        ),
        context(7),
    )
    assert answer.error_code == ErrorCode.NONE
    return {
        part.partition_index: (
            part.committed_offset,
            part.committed_leader_epoch,
            part.metadata,
            part.error_code,
        )
        for topic in answer.topics
        for part in topic.partitions
    }


UNSTABLE = (-1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
NONE = (-1, -1, "", ErrorCode.NONE)
BEFORE = (1, -1, "", ErrorCode.NONE)
AFTER = (2, 4, "mine", ErrorCode.NONE)


async def test_stable_offsets_are_told_once_the_transaction_is_over(
    serving: Broker, coordinating: Coordinating
) -> None:
    assert await commit(serving, request(0, 1)) == {("t", 0): 0, ("t", 1): 0}
    assert await fetch(serving, 0, 1, 2, stable=True) == {0: UNSTABLE, 1: UNSTABLE, 2: NONE}
    assert await fetch(serving, 0, 1, 2, stable=False) == {0: BEFORE, 1: NONE, 2: NONE}
    # As in Kafka, all partitions are those that have an offset.
    assert await fetch(serving, stable=True) == {0: UNSTABLE}
    await coordinating.end(PRODUCER, commit=True)
    assert await fetch(serving, 0, 1, 2, stable=True) == {0: AFTER, 1: AFTER, 2: NONE}


async def test_offset_of_an_aborted_transaction_leaves_the_one_before(
    serving: Broker, coordinating: Coordinating
) -> None:
    await commit(serving, request(0))
    await coordinating.end(PRODUCER, commit=False)
    assert await fetch(serving, 0, stable=True) == {0: BEFORE}


async def test_unknown_partitions_are_refused_by_themselves(serving: Broker) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await commit(serving, request(0, 3)) == {("t", 0): 0, ("t", 3): unknown}
    assert await commit(serving, request(0, topic="nosuch")) == {("nosuch", 0): unknown}


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (0, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (3, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
async def test_old_producers_are_not_told_that_a_group_is_loading(
    serving: Broker, coordinating: Coordinating, version: int, code: ErrorCode
) -> None:
    shards = coordinating.coordinator._shards
    async with shards.withheld("g"):
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await commit(serving, request(0, 3), version) == {("t", 0): code, ("t", 3): unknown}


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("member_id", "gone", ErrorCode.UNKNOWN_MEMBER_ID),
        ("generation_id", 5, ErrorCode.ILLEGAL_GENERATION),
        ("group_id", "", ErrorCode.INVALID_GROUP_ID),
        ("producer_id", -1, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
async def test_what_a_request_names_is_checked(
    serving: Broker, field: str, value: object, code: ErrorCode
) -> None:
    sent = dataclasses.replace(request(0, 1), **{field: value})  # type: ignore[arg-type]
    assert await commit(serving, sent) == {("t", 0): code, ("t", 1): code}


async def test_what_counts_is_served_by_the_next_coordinator(
    serving: Broker, coordinating: Coordinating
) -> None:
    await commit(serving, request(0))
    await coordinating.change_leader()
    assert await fetch(serving, 0, stable=True) == {0: UNSTABLE}
    await coordinating.end(PRODUCER, commit=True)
    await coordinating.change_leader()
    assert await fetch(serving, 0, stable=True) == {0: AFTER}


async def test_offsets_of_a_transaction_are_counted_as_committed(
    serving: Broker, coordinating: Coordinating
) -> None:
    coordinator: GroupCoordinator = coordinating.coordinator
    before = coordinator.commits.stored
    await commit(serving, request(0, 1))
    assert coordinator.commits.stored == before + 2
