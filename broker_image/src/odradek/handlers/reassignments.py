"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455), on the controller.

An accepted reassignment is in ZooKeeper and continues under any controller. The answer does not
wait for its end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from typing import cast

from odradek import slices
from odradek.assignment import Nodes, same_node
from odradek.controller.replica_assignment import MOST_REPLICAS
from odradek.handlers import replica_lists
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from odradek.values import BrokerId, TopicPartition


async def alter_partition_reassignments(
    broker: Broker, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Start, replace and cancel reassignments; return one outcome per partition."""
    wanted: dict[TopicPartition, tuple[BrokerId, ...] | None] = {}
    refused: dict[TopicPartition, KafkaError | None] = {}
    nodes = replica_lists.nodes(broker)
    for number, few in enumerate(
        slices.cut_members(request.topics, lambda topic: topic.partitions, slices.KEYS_AT_ONCE // 5)
    ):
        if number:
            await slices.pause()
        wanted.update(
            (
                TopicPartition(topic.name, one.partition_index),
                _target(one.replicas),
            )
            for topic, one in few
        )
        if nodes:
            refused |= _on_one_node(
                wanted,
                [TopicPartition(topic.name, one.partition_index) for topic, one in few],
                nodes,
            )
    try:
        outcomes = await broker.controller.reassign(
            {one: target for one, target in wanted.items() if one not in refused}
            if refused
            else wanted
        )
        outcomes = {**outcomes, **refused} if refused else outcomes
    except KafkaError as refusal:
        slices.discard(wanted)
        return AlterPartitionReassignmentsResponse(
            error_code=refusal.code, error_message=refusal.message, responses=[]
        )
    answer = AlterPartitionReassignmentsResponse(
        responses=await slices.run(_each_outcome(wanted, outcomes))
    )
    slices.discard(wanted, outcomes)
    return answer


def _on_one_node(
    wanted: Mapping[TopicPartition, tuple[BrokerId, ...] | None],
    few: Iterable[TopicPartition],
    nodes: Nodes,
) -> dict[TopicPartition, KafkaError | None]:
    """Return the refusals of those partitions that would have two replicas on one node."""
    return {
        one: KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
        for one in few
        if (reason := same_node(one, wanted[one] or (), nodes)) is not None
    }


def _target(replicas: list[int] | None) -> tuple[BrokerId, ...] | None:
    """Return the wanted replicas; of too many, which are refused, one too many."""
    if replicas is None:
        return None
    return cast("tuple[BrokerId, ...]", tuple(replicas[: MOST_REPLICAS + 1]))


def _each_outcome(
    wanted: Iterable[TopicPartition], outcomes: Mapping[TopicPartition, KafkaError | None]
) -> Generator[None, None, list[ReassignableTopicResponse]]:
    topics: dict[str, list[ReassignablePartitionResponse]] = defaultdict(list)
    for number, key in enumerate(wanted, 1):
        error = outcomes[key]
        code, message = (ErrorCode.NONE, None) if error is None else (error.code, error.message)
        topics[key.topic].append(
            ReassignablePartitionResponse(
                partition_index=key.partition, error_code=code, error_message=message
            )
        )
        if number % slices.KEYS_AT_ONCE == 0:
            yield
    answers: list[ReassignableTopicResponse] = []
    for few in slices.cut(topics.items(), slices.KEYS_AT_ONCE):
        answers += [ReassignableTopicResponse(name=name, partitions=found) for name, found in few]
        if len(few) == slices.KEYS_AT_ONCE:
            yield
    return answers


async def list_partition_reassignments(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """Return the ongoing reassignments among the requested partitions."""
    asked: list[TopicPartition] | None = None
    if request.topics is not None:
        asked = []
        for number, few in enumerate(
            slices.cut_members(
                request.topics, lambda topic: topic.partition_indexes, slices.KEYS_AT_ONCE
            )
        ):
            if number:
                await slices.pause()
            asked += [TopicPartition(topic.name, index) for topic, index in few]
    try:
        moving = await broker.controller.list_reassignments(asked)
    except KafkaError as refusal:
        slices.discard(asked or [])
        return ListPartitionReassignmentsResponse(
            error_code=refusal.code, error_message=refusal.message, topics=[]
        )
    topics: dict[str, list[OngoingPartitionReassignment]] = defaultdict(list)
    slices.discard(asked or [])
    for key, placement in moving.items():
        topics[key.topic].append(
            OngoingPartitionReassignment(
                partition_index=key.partition,
                replicas=list(placement.replicas),
                adding_replicas=list(placement.adding),
                removing_replicas=list(placement.removing),
            )
        )
    return ListPartitionReassignmentsResponse(
        topics=[
            OngoingTopicReassignment(name=name, partitions=found) for name, found in topics.items()
        ]
    )
