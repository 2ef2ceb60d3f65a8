"""Elections that a client requests (ElectLeaders, KIP-460): which are held, and their results.

A preferred election is held if the first replica does not lead, an unclean one if the partition has
no leader.
"""

from collections.abc import Iterable, Mapping

from odradek.controller.context import ControllerContext
from odradek.controller.election import Cause
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import BrokerId, TopicPartition

_UNAVAILABLE = {
    Cause.PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    Cause.UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}


def refusals(
    context: ControllerContext, partitions: Iterable[TopicPartition], cause: Cause
) -> dict[TopicPartition, KafkaError]:
    """Return the partitions for which no election is held, and why."""
    found = {one: _refusal(context, one, cause) for one in partitions}
    return {one: refusal for one, refusal in found.items() if refusal is not None}


def depend_on_isr(
    context: ControllerContext, partitions: Iterable[TopicPartition], cause: Cause
) -> list[TopicPartition]:
    """Return the partitions whose election depends on their present in-sync replicas.

    A preferred replica whose broker is down or shuts down cannot lead in any case.
    """
    electable = context.brokers.keys() - context.shutting_down
    return [
        one
        for one in partitions
        if _refusal(context, one, cause) is None
        and (cause is not Cause.PREFERRED or _preferred(context, one) in electable)
    ]


def _refusal(
    context: ControllerContext, partition: TopicPartition, cause: Cause
) -> KafkaError | None:
    if partition not in context.leaderships:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if partition.topic in context.deletions:
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
    if _has_valid_leader(context, partition, cause):
        return KafkaError(
            ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
        )
    return None


def _has_valid_leader(context: ControllerContext, partition: TopicPartition, cause: Cause) -> bool:
    leader = context.leaderships[partition].state.leader
    if cause is Cause.PREFERRED:
        return leader == _preferred(context, partition)
    return leader in context.brokers


def _preferred(context: ControllerContext, partition: TopicPartition) -> BrokerId:
    return context.topics[partition.topic].partitions[partition.partition][0]


def outcomes(
    context: ControllerContext, partitions: Iterable[TopicPartition], cause: Cause
) -> Mapping[TopicPartition, BrokerId | KafkaError]:
    """Return the leader of each partition after its election, or why it has none."""
    return {
        one: context.leaderships[one].state.leader
        if one in context.leaderships and _has_valid_leader(context, one, cause)
        else KafkaError(_UNAVAILABLE[cause], f"No replica of {one} can be elected.")
        for one in partitions
    }
