"""Which partitions are under-replicated: their ISR lacks replicas, other than those being added.

So count Kafka's tools since 2.4. Metadata does not say what a reassignment adds; the controller
does (KIP-455).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.admin import ListPartitionReassignmentsRequest
from odradek.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from odradek.terminal_text import tell
from odradek.tools.client import ToolClient
from odradek.tools.errors import ToolError, refused
from odradek.values import TopicPartition

Adding: TypeAlias = Mapping[TopicPartition, frozenset[int]]
"""The replicas that reassignments add, by partition."""

_VERSION: Final = 0


def is_under_replicated(topic: str, partition: MetadataResponsePartition, adding: Adding) -> bool:
    """Return whether the ISR of a partition is smaller than its replicas that are not added."""
    missing = len(partition.replica_nodes) - len(partition.isr_nodes)
    if missing <= 0:  # the usual case
        return False
    none: frozenset[int] = frozenset()
    added = adding.get(TopicPartition(topic, partition.partition_index), none)
    return missing > len(added.intersection(partition.replica_nodes))


def under_replicated(
    topic: MetadataResponseTopic, adding: Adding
) -> list[MetadataResponsePartition]:
    """Return the under-replicated partitions of a topic."""
    return [one for one in topic.partitions if is_under_replicated(topic.name, one, adding)]


async def adding_replicas(brokers: ToolClient) -> Adding:
    """Return the replicas that reassignments add; while every replica is in sync nobody is asked.

    Empty for a user without Describe on the cluster, as in Kafka's tool. Raises ToolError.
    """
    if not any(under_replicated(topic, {}) for topic in brokers.topics()):
        return {}
    answer = await brokers.call_controller(
        ListPartitionReassignmentsRequest(), _VERSION, lambda answer: [answer.error_code]
    )
    if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return {}
    if answer.error_code != ErrorCode.NONE:
        raise refused("the list of reassignments", answer.error_code, answer.error_message)
    return {
        TopicPartition(topic.name, one.partition_index): frozenset(one.adding_replicas)
        for topic in answer.topics
        for one in topic.partitions
    }


async def adding_replicas_or_warning(brokers: ToolClient) -> Adding:
    """Return the replicas that reassignments add; without an answer warn, and count all replicas.

    Whoever looks for what is wrong with a cluster is not to wait for its controller.
    """
    try:
        return await adding_replicas(brokers)
    except ToolError as error:
        tell(f"warning: {error}; replicas that a reassignment adds count as missing")
        return {}
