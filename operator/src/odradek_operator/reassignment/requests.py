"""What a Reassignment asks of the brokers: replica sizes, and to cancel moves."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from odradek.protocol.errors import name_of
from odradek.protocol.messages.admin import (
    AlterPartitionReassignmentsRequest,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from odradek.values import TopicPartition
from odradek_operator.reassignment.decide import MoveState, ReassignmentDecision, ReassignmentPlan
from odradek_operator.shared.broker_client import BrokerError, OperatorClient
from odradek_operator.shared.broker_security import OperatorSecurity

STOP_TIMEOUT_MS = 5000

log = logging.getLogger(__name__)

Endpoints = Mapping[int, tuple[str, int]]


def replica_bytes(
    endpoints: Endpoints,
    ids: Iterable[int],
    partitions: Iterable[TopicPartition],
    security: OperatorSecurity | None = None,
) -> dict[int, dict[TopicPartition, int]]:
    """Return bytes per broker and partition; brokers that do not answer are missing."""
    topics = [
        DescribableLogDirTopic(topic=topic, partition_index=numbers)
        for topic, numbers in _by_topic(partitions).items()
    ]
    found: dict[int, dict[TopicPartition, int]] = {}
    if not topics:
        return found
    with OperatorClient(endpoints, security) as brokers:
        for broker_id in sorted(set(ids) & set(endpoints)):
            try:
                answer = brokers.call(broker_id, DescribeLogDirsRequest(topics=topics), 1)
            except BrokerError as error:
                log.info("%s", error)
                continue
            found[broker_id] = {
                TopicPartition(topic.name, replica.partition_index): replica.partition_size
                for folder in answer.results
                for topic in folder.topics
                for replica in topic.partitions
                if not replica.is_future_key
            }
    return found


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for one in partitions:
        found.setdefault(one.topic, []).append(one.partition)
    return found


def sizes(
    endpoints: Endpoints, plan: ReassignmentPlan, security: OperatorSecurity | None = None
) -> dict[TopicPartition, int]:
    """Return the size of the largest replica per partition of a plan.

    None are returned unless those of all partitions are known: a sum of some says nothing.
    """
    holders = {one for replicas in plan.originals.values() for one in replicas}
    largest: dict[TopicPartition, int] = {}
    for replicas in replica_bytes(endpoints, holders, plan.targets, security).values():
        for partition, size in replicas.items():
            largest[partition] = max(size, largest.get(partition, 0))
    return largest if largest.keys() == plan.targets.keys() else {}


def moved(
    endpoints: Endpoints,
    plan: ReassignmentPlan,
    decision: ReassignmentDecision,
    security: OperatorSecurity | None = None,
) -> int | None:
    """Return how many bytes have been copied, partly copied replicas included.

    None if a broker that copies does not answer.
    """
    done = [one for one, state in decision.states.items() if state is MoveState.DONE]
    moving = [one for one, state in decision.states.items() if state is MoveState.MOVING]
    copied = sum(len(plan.added(one)) * plan.sizes.get(one, 0) for one in done)
    targets = {broker for one in moving for broker in plan.added(one)}
    held = replica_bytes(endpoints, targets, moving, security)
    if held.keys() != targets:
        return None
    for broker, replicas in held.items():
        for partition, size in replicas.items():
            if broker in plan.added(partition):
                # A topic that is written to grows beyond what the plan counted.
                copied += min(size, plan.sizes.get(partition, 0))
    return copied


def stop(
    endpoints: Endpoints,
    controller: int | None,
    partitions: Iterable[TopicPartition],
    security: OperatorSecurity | None = None,
) -> None:
    """Ask the controller to cancel reassignments, which restores the original replicas (KIP-455).

    If that fails, a move runs to its end and is rolled back afterwards.
    """
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=STOP_TIMEOUT_MS,
        topics=[
            ReassignableTopic(
                name=topic,
                partitions=[ReassignablePartition(partition_index=one) for one in numbers],
            )
            for topic, numbers in _by_topic(partitions).items()
        ],
    )
    try:
        if controller is None:
            raise BrokerError("no controller is elected")
        with OperatorClient(endpoints, security) as brokers:
            answer = brokers.call(controller, request, 0)
        if answer.error_code:
            raise BrokerError(f"{name_of(answer.error_code)} {answer.error_message}")
    except BrokerError as error:
        log.warning("failed to cancel reassignments: %s; retrying", error)
