"""DescribeProducers: what replicas tell of the producers of their logs."""

from __future__ import annotations

import pytest

from odradek.handlers import transaction_states
from odradek.handlers.context import Broker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transaction_states import (
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersTopicRequest,
)
from tests.handlers.large_requests import context
from tests.support.control import state, update
from tests.support.replicas import KEY, TOPIC, Replicas
from tests.support.transactions import end, write


async def ask(broker: Broker, *partitions: int) -> list[DescribeProducersPartitionResponse]:
    topic = DescribeProducersTopicRequest(name=TOPIC, partition_indexes=[*partitions])
    request = DescribeProducersRequest(topics=[topic, topic])
    answer = await transaction_states.describe_producers(broker, request, context(0))
    [told] = answer.topics
    assert told.name == TOPIC
    return told.partitions


@pytest.mark.parametrize("leader", [1, 2])
async def test_leader_and_follower_tell_of_their_producers(
    broker: Broker, replicas: Replicas, leader: int
) -> None:
    await replicas.take(leader=leader, isr=(1, 2), replicas=(1, 2))
    replicas.metadata.update(update(state(TOPIC, leader=leader)))
    log = replicas.manager.partitions[KEY].log
    write(log, 7)
    end(log, 7, commit=True)
    write(log, 8)
    write(log, 7)
    [told] = await ask(broker, KEY.partition)
    assert told.error_code == ErrorCode.NONE
    assert [
        (
            one.producer_id,
            one.producer_epoch,
            one.last_sequence,
            one.coordinator_epoch,
            one.current_txn_start_offset,
        )
        for one in told.active_producers
    ] == [(7, 0, 1, 5, 3), (8, 0, 0, -1, 2)]


async def test_replicas_of_others_and_failed_ones_are_refused(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead()
    replicas.metadata.update(update(state(TOPIC), state(TOPIC, 1, leader=2, replicas=(2,))))
    replicas.manager.partitions[KEY].offline = True
    told = await ask(broker, 0, 1, 2, 1)
    assert [(one.partition_index, one.error_code) for one in told] == [
        (0, ErrorCode.KAFKA_STORAGE_ERROR),
        (1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
