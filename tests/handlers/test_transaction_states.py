"""What replicas tell of the producers of their logs: DescribeProducers, and metrics."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from odradek.clock import wall_ms
from odradek.handlers import transaction_states
from odradek.handlers.context import Broker
from odradek.log.records import records
from odradek.log.records.records import BatchOptions
from odradek.metrics.broker_metrics import BrokerMetrics
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transaction_states import (
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersTopicRequest,
)
from tests.handlers.large_requests import context
from tests.support.control import state, update
from tests.support.replicas import KEY, TOPIC, Replicas
from tests.support.transactions import end, write, write_plain


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


def series(replicas: Replicas, name: str, **labels: str) -> float | None:
    """Return the value of a metric of the partitions."""
    broker = BrokerMetrics()
    broker.watch({}, replicas.manager, None, None, None, {})  # type: ignore[arg-type]
    registry = CollectorRegistry()
    registry.register(broker)
    return registry.get_sample_value(name, labels)


@pytest.mark.parametrize("leader", [1, 2])
async def test_late_transactions_and_the_records_behind_them_are_counted_by_leaders(
    replicas: Replicas, leader: int
) -> None:
    await replicas.take(leader=leader)
    partition = replicas.manager.partitions[KEY]

    def shown() -> tuple[float | None, float | None]:
        partition.high_watermark = partition.log.log_end_offset
        lag = series(
            replicas,
            "odradek_last_stable_offset_lag",
            topic=TOPIC,
            partition=str(KEY.partition),
        )
        return lag, series(replicas, "odradek_partitions_with_late_transactions")

    write_plain(partition.log)
    assert shown() == (None, 0)
    write(partition.log, 7)
    write_plain(partition.log)
    late = shown()
    assert late == ((2, 1) if leader == 1 else (None, 0))
    end(partition.log, 7, commit=False)
    assert shown() == (None, 0)
    options = BatchOptions(producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    now = records.make([(None, b"v")], wall_ms(), options, partition.log.log_end_offset)
    partition.log.append_as_follower(now)
    assert shown() == ((1, 0) if leader == 1 else (None, 0))
