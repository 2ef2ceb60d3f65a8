"""ElectLeaders (KIP-460): leader elections on request, by the controller.

The answer waits until this broker's metadata has the new leaders, so that a client that asks for
metadata next sees them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from time import monotonic

from odradek.controller.election import Cause
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.admin import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from odradek.values import TopicPartition

_CAUSES = {0: Cause.PREFERRED, 1: Cause.UNCLEAN}


async def elect_leaders(
    broker: Broker, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    """Return one outcome per partition; if all were asked for, only where one was needed."""
    wanted = _wanted(broker, request)
    cause = _CAUSES.get(request.election_type)
    if cause is None:
        refusal = KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
        )
        return _answer(dict.fromkeys(wanted, refusal), refusal.code)
    deadline = monotonic() + request.timeout_ms / 1000
    try:
        outcomes = await broker.controller.elect_leaders(wanted, cause)
    except KafkaError as refusal:
        return _answer(dict.fromkeys(wanted, refusal), ErrorCode.NONE)
    leaders = {key: one for key, one in outcomes.items() if not isinstance(one, KafkaError)}
    results: dict[TopicPartition, KafkaError | None] = {
        key: one if isinstance(one, KafkaError) else None for key, one in outcomes.items()
    }
    left_ms = max(deadline - monotonic(), 0) * 1000
    if not await broker.metadata.wait_until_led(leaders, left_ms):
        late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The election is not complete yet.")
        for key, leader in leaders.items():
            found = broker.metadata.partition(*key)
            if found is None or found.leader != leader:
                results[key] = late
    if request.topic_partitions is None:
        results = {
            key: error
            for key, error in results.items()
            if error is None or error.code is not ErrorCode.ELECTION_NOT_NEEDED
        }
    return _answer(results, ErrorCode.NONE)


def _wanted(broker: Broker, request: ElectLeadersRequest) -> list[TopicPartition]:
    if request.topic_partitions is None:
        known = broker.metadata.topics.items()
        return [TopicPartition(topic, index) for topic, found in known for index in found]
    named = (
        TopicPartition(topic.topic, index)
        for topic in request.topic_partitions
        for index in topic.partition_id
    )
    return list(dict.fromkeys(named))


def _answer(
    results: Mapping[TopicPartition, KafkaError | None], error_code: ErrorCode
) -> ElectLeadersResponse:
    topics: dict[str, list[PartitionResult]] = defaultdict(list)
    for key, error in results.items():
        code, message = (ErrorCode.NONE, None) if error is None else (error.code, error.message)
        topics[key.topic].append(
            PartitionResult(partition_id=key.partition, error_code=code, error_message=message)
        )
    return ElectLeadersResponse(
        error_code=error_code,
        replica_election_results=[
            ReplicaElectionResult(topic=topic, partition_result=found)
            for topic, found in topics.items()
        ],
    )
