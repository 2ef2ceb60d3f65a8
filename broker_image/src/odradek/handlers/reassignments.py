"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455), on the controller.

An accepted reassignment is in ZooKeeper and continues under any controller. The answer does not
wait for its end.
"""

from __future__ import annotations

from collections import defaultdict

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
    wanted = {
        TopicPartition(topic.name, one.partition_index): None
        if one.replicas is None
        else tuple(map(BrokerId, one.replicas))
        for topic in request.topics
        for one in topic.partitions
    }
    try:
        outcomes = await broker.controller.reassign(wanted)
    except KafkaError as refusal:
        return AlterPartitionReassignmentsResponse(
            error_code=refusal.code, error_message=refusal.message, responses=[]
        )
    topics: dict[str, list[ReassignablePartitionResponse]] = defaultdict(list)
    for key in wanted:
        error = outcomes[key]
        code, message = (ErrorCode.NONE, None) if error is None else (error.code, error.message)
        topics[key.topic].append(
            ReassignablePartitionResponse(
                partition_index=key.partition, error_code=code, error_message=message
            )
        )
    return AlterPartitionReassignmentsResponse(
        responses=[
            ReassignableTopicResponse(name=name, partitions=found) for name, found in topics.items()
        ]
    )


async def list_partition_reassignments(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """Return the ongoing reassignments among the requested partitions."""
    asked = None
    if request.topics is not None:
        asked = [
            TopicPartition(topic.name, index)
            for topic in request.topics
            for index in topic.partition_indexes
        ]
    try:
        moving = await broker.controller.list_reassignments(asked)
    except KafkaError as refusal:
        return ListPartitionReassignmentsResponse(
            error_code=refusal.code, error_message=refusal.message, topics=[]
        )
    topics: dict[str, list[OngoingPartitionReassignment]] = defaultdict(list)
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
