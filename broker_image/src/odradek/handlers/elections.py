"""ElectLeaders (KIP-460): leader elections on request, by the controller.

The answer waits until this broker's metadata has the new leaders, so that a client that asks for
metadata next sees them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from time import monotonic

from odradek import slices
from odradek.controller.election import Cause
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.admin import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from odradek.values import BrokerId, TopicPartition

_CAUSES = {0: Cause.PREFERRED, 1: Cause.UNCLEAN}


async def elect_leaders(
    broker: Broker, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    """Return one outcome per partition; if all were asked for, only where one was needed."""
    wanted = await slices.run(_wanted(broker, request))
    cause = _CAUSES.get(request.election_type)
    if cause is None:
        refusal = KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
        )
        answer = await slices.run(_answer(((key, refusal) for key in wanted), refusal.code))
        slices.discard(wanted)
        return answer
    deadline = monotonic() + request.timeout_ms / 1000
    try:
        outcomes = await broker.controller.elect_leaders(wanted, cause)
    except KafkaError as refusal:
        answer = await slices.run(_answer(((key, refusal) for key in wanted), ErrorCode.NONE))
        slices.discard(wanted)
        return answer
    leaders: dict[TopicPartition, BrokerId] = {}
    results: dict[TopicPartition, KafkaError | None] = {}
    for few in slices.cut(outcomes.items(), slices.KEYS_AT_ONCE):
        for key, one in few:
            if isinstance(one, KafkaError):
                results[key] = one
            else:
                results[key] = None
                leaders[key] = one
        if len(few) == slices.KEYS_AT_ONCE:
            await slices.pause()
    slices.discard(outcomes)
    left_ms = max(deadline - monotonic(), 0) * 1000
    if not await broker.metadata.wait_until_led(leaders, left_ms):
        late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The election is not complete yet.")
        for key, leader in leaders.items():
            found = broker.metadata.partition(*key)
            if found is None or found.leader != leader:
                results[key] = late
    shown: Iterable[tuple[TopicPartition, KafkaError | None]] = results.items()
    if request.topic_partitions is None:
        shown = (
            (key, error)
            for key, error in shown
            if error is None or error.code is not ErrorCode.ELECTION_NOT_NEEDED
        )
    answer = await slices.run(_answer(shown, ErrorCode.NONE))
    slices.discard(wanted, results, leaders)
    return answer


def _wanted(
    broker: Broker, request: ElectLeadersRequest
) -> Generator[None, None, dict[TopicPartition, None]]:
    """Return the partitions of the request, each once, in slices."""
    named: Iterator[list[tuple[str, int]]]
    if request.topic_partitions is None:
        known = list(broker.metadata.topics.items())
        named = (
            [(topic, index) for (topic, _), index in few]
            for few in slices.cut_members(known, lambda entry: entry[1], slices.KEYS_AT_ONCE)
        )
    else:
        named = (
            [(topic.topic, index) for topic, index in few]
            for few in slices.cut_members(
                request.topic_partitions, lambda topic: topic.partition_id, slices.KEYS_AT_ONCE
            )
        )
    wanted: dict[TopicPartition, None] = {}
    for number, few in enumerate(named):
        if number:
            yield
        wanted.update((TopicPartition(*one), None) for one in few)
    return wanted


def _answer(
    results: Iterable[tuple[TopicPartition, KafkaError | None]], error_code: ErrorCode
) -> Generator[None, None, ElectLeadersResponse]:
    topics: dict[str, list[PartitionResult]] = defaultdict(list)
    for number, (key, error) in enumerate(results, 1):
        code, message = (ErrorCode.NONE, None) if error is None else (error.code, error.message)
        topics[key.topic].append(
            PartitionResult(partition_id=key.partition, error_code=code, error_message=message)
        )
        if number % slices.KEYS_AT_ONCE == 0:
            yield
    answer = ElectLeadersResponse(error_code=error_code, replica_election_results=[])
    for some in slices.cut(topics.items(), slices.KEYS_AT_ONCE):
        answer.replica_election_results += [
            ReplicaElectionResult(topic=topic, partition_result=found) for topic, found in some
        ]
        if len(some) == slices.KEYS_AT_ONCE:
            yield
    return answer
