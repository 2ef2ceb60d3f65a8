"""OffsetFetch: one answer per partition."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import cast

import pytest

from odradek.group.coordinator import GroupCoordinator
from odradek.group.offsets import CommittedOffset
from odradek.handlers import group_offsets
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from odradek.values import TopicPartition
from tests.support.control import state, update

ORDERS = TopicPartition("orders", 0)


class Committed:
    """The offsets of one group."""

    def __init__(self) -> None:
        self.deleted: list[TopicPartition] = []

    async def committed(
        self, group_id: str
    ) -> tuple[ErrorCode, dict[TopicPartition, CommittedOffset]]:
        return ErrorCode.NONE, {ORDERS: CommittedOffset(5, "much metadata", 0)}

    async def delete_offsets(
        self, group_id: str, partitions: list[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        self.deleted = partitions
        return ErrorCode.NONE, dict.fromkeys(partitions, ErrorCode.NONE)


def serving(broker: Broker, offsets: Committed) -> tuple[Broker, RequestContext]:
    groups = cast("GroupCoordinator", SimpleNamespace(commits=offsets, deletion=offsets))
    return dataclasses.replace(broker, groups=groups), RequestContext(5, "c", "PLAINTEXT", "h", 1)


@pytest.mark.parametrize("version", [0, 5])
async def test_a_partition_named_twice_is_answered_once(broker: Broker, version: int) -> None:
    serves, _ = serving(broker, Committed())
    request = OffsetFetchRequest(
        group_id="readers",
        topics=[OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1, 0])] * 100,
    )
    context = RequestContext(version, "c", "PLAINTEXT", "h", 1)
    answer = await group_offsets.offset_fetch(serves, request, context)
    [topic] = answer.topics
    assert [part.partition_index for part in topic.partitions] == [0, 1]


async def test_the_offset_of_a_partition_named_twice_is_deleted_once(broker: Broker) -> None:
    offsets = Committed()
    serves, context = serving(broker, offsets)
    broker.metadata.update(update(state("orders", 0)))
    parts = [OffsetDeleteRequestPartition(partition_index=0)] * 3
    request = OffsetDeleteRequest(
        group_id="readers", topics=[OffsetDeleteRequestTopic(name="orders", partitions=parts)]
    )
    await group_offsets.offset_delete(serves, request, context)
    assert [*offsets.deleted] == [ORDERS]


async def test_deletion_of_offsets_refuses_partitions_that_do_not_exist(broker: Broker) -> None:
    offsets = Committed()
    serves, context = serving(broker, offsets)
    broker.metadata.update(update(state("orders", 0)))
    request = OffsetDeleteRequest(
        group_id="readers",
        topics=[
            OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequestPartition(partition_index=one) for one in (0, 99)],
            )
            for name in ("orders", "nosuch")
        ],
    )
    answer = await group_offsets.offset_delete(serves, request, context)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [
        (topic.name, part.partition_index, part.error_code)
        for topic in answer.topics
        for part in topic.partitions
    ] == [
        ("orders", 0, ErrorCode.NONE),
        ("orders", 99, unknown),
        ("nosuch", 0, unknown),
        ("nosuch", 99, unknown),
    ]
    assert [*offsets.deleted] == [ORDERS]
