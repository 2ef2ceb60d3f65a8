"""ElectLeaders: the outcome of each partition."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import cast

from odradek.controller.election import Cause
from odradek.controller.loop import Controller
from odradek.handlers import elections
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.admin import ElectLeadersRequest, TopicPartitions
from odradek.replica.metadata import PartitionInfo
from odradek.values import BrokerId, TopicPartition
from tests.support.replicas import TOPIC

CONTEXT = RequestContext(2, "c", "PLAINTEXT", "h", 1)
ELECTED = BrokerId(2)
Outcomes = Mapping[TopicPartition, BrokerId | KafkaError]


def with_controller(broker: Broker, outcome: Outcomes | KafkaError) -> Broker:
    """Partitions 0, 1 and 2 are led by brokers 2, 1 and 1 as far as this broker was told."""
    broker.metadata.topics[TOPIC] = {
        index: PartitionInfo(leader, 0, (1, 2), (1, 2), ())
        for index, leader in enumerate((2, 1, 1))
    }

    async def elect(wanted: Iterable[TopicPartition], cause: Cause) -> Outcomes:
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    return dataclasses.replace(
        broker, controller=cast("Controller", SimpleNamespace(elect_leaders=elect))
    )


async def elect(broker: Broker, partitions: list[int] | None) -> dict[int, int]:
    named = None
    if partitions is not None:
        named = [TopicPartitions(topic=TOPIC, partition_id=partitions)]
    request = ElectLeadersRequest(election_type=0, topic_partitions=named, timeout_ms=10)
    answer = await elections.elect_leaders(broker, request, CONTEXT)
    assert answer.error_code == ErrorCode.NONE
    return {
        one.partition_id: one.error_code
        for topic in answer.replica_election_results
        for one in topic.partition_result
    }


async def test_only_the_partitions_that_are_late_time_out(broker: Broker) -> None:
    needless = KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
    outcomes: Outcomes = {
        TopicPartition(TOPIC, 0): ELECTED,
        TopicPartition(TOPIC, 1): ELECTED,
        TopicPartition(TOPIC, 2): needless,
    }
    assert await elect(with_controller(broker, outcomes), [0, 1, 2]) == {
        0: ErrorCode.NONE,
        1: ErrorCode.REQUEST_TIMED_OUT,
        2: ErrorCode.ELECTION_NOT_NEEDED,
    }


async def test_broker_that_is_not_controller_says_so_of_every_partition(broker: Broker) -> None:
    refusal = KafkaError(ErrorCode.NOT_CONTROLLER)
    found = await elect(with_controller(broker, refusal), None)
    assert found == dict.fromkeys(range(3), ErrorCode.NOT_CONTROLLER)
