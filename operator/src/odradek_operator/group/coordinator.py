"""What the operator asks brokers about groups: log ends, members and committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from odradek.protocol.errors import ErrorCode, name_of
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from odradek.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
)
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from odradek.values import TopicPartition
from odradek_operator.shared.broker_client import BrokerError, OperatorClient

Entry = TypeVar("Entry")


class GroupBusyError(Exception):
    """The coordinator rejects a change because the group has members."""


@dataclass(frozen=True, slots=True)
class CoordinatedGroup:
    """A group as its coordinator describes it; `state` is Kafka's, Dead if it does not exist.

    Nobody ever joined a `simple` one: who commits for it is no member.
    """

    state: str
    members: int
    committed: Mapping[TopicPartition, int]
    simple: bool


def find_offsets(
    brokers: OperatorClient, leaders: Mapping[TopicPartition, int], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """Return the offset of each partition at a time (-1 the end, -2 the beginning).

    A partition whose leader does not answer is missing; -1 means that no record is that late.
    """
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition, leader in leaders.items():
        by_leader.setdefault(leader, []).append(partition)
    found: dict[TopicPartition, int] = {}
    for leader, partitions in by_leader.items():
        request = offsets_request(partitions, timestamp_ms)
        try:
            found |= offsets_answered(brokers.call(leader, request, 2))
        except BrokerError:
            continue
    return found


def offsets_request(partitions: Iterable[TopicPartition], timestamp_ms: int) -> ListOffsetsRequest:
    """Return the question for the offset of each partition at a time (-1 the end, -2 the start)."""
    topics = [
        ListOffsetsTopic(
            name=name,
            partitions=[
                ListOffsetsPartition(partition_index=one, timestamp=timestamp_ms) for one in numbers
            ],
        )
        for name, numbers in _by_topic((one, one.partition) for one in partitions).items()
    ]
    return ListOffsetsRequest(replica_id=-1, topics=topics)


def offsets_answered(answer: ListOffsetsResponse) -> dict[TopicPartition, int]:
    """Return the offsets of an answer, without the partitions that have an error."""
    return {
        TopicPartition(topic.name, one.partition_index): one.offset
        for topic in answer.topics
        for one in topic.partitions
        if not one.error_code
    }


def _by_topic(entries: Iterable[tuple[TopicPartition, Entry]]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for partition, entry in entries:
        found.setdefault(partition.topic, []).append(entry)
    return found


def find_coordinator(brokers: OperatorClient, group: str) -> int:
    """Return the broker that coordinates a group. Raises BrokerError."""
    problem: BrokerError | None = None
    for broker_id in brokers.addresses:
        try:
            answer = brokers.call(broker_id, FindCoordinatorRequest(key=group), 1)
        except BrokerError as error:
            problem = error
            continue
        _raise(answer.error_code, f"coordinator of {group}")
        return answer.node_id
    raise problem or BrokerError("no broker is registered")


def _raise(code: int, what: str) -> None:
    if code in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.UNKNOWN_MEMBER_ID):
        raise GroupBusyError(what)
    if code:
        raise BrokerError(f"{what}: {name_of(code)}")


def describe(brokers: OperatorClient, group: str) -> CoordinatedGroup:
    """Return a group's state and offsets. Raises BrokerError."""
    node = find_coordinator(brokers, group)
    (described,) = brokers.call(node, DescribeGroupsRequest(groups=[group]), 0).groups
    _raise(described.error_code, f"group {group}")
    fetched = brokers.call(node, OffsetFetchRequest(group_id=group, topics=None), 2)
    _raise(fetched.error_code, f"offsets of {group}")
    committed = committed_answered(fetched)
    state, simple = described.group_state, not described.protocol_type
    return CoordinatedGroup(state, len(described.members), committed, simple and state != "Dead")


def committed_answered(answer: OffsetFetchResponse) -> dict[TopicPartition, int]:
    """Return the committed offsets of an answer, without the partitions that have an error."""
    return {
        TopicPartition(topic.name, one.partition_index): one.committed_offset
        for topic in answer.topics
        for one in topic.partitions
        if not one.error_code and one.committed_offset >= 0
    }


def commit(brokers: OperatorClient, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group without members. Raises BrokerError, or GroupBusyError."""
    topics = [
        OffsetCommitRequestTopic(name=name, partitions=entries)
        for name, entries in _by_topic(
            (
                partition,
                OffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=offset,
                    committed_metadata="",
                ),
            )
            for partition, offset in offsets.items()
        ).items()
    ]
    request = OffsetCommitRequest(group_id=group, topics=topics)
    answer = brokers.call(find_coordinator(brokers, group), request, 2)
    for topic in answer.topics:
        for one in topic.partitions:
            _raise(one.error_code, f"{topic.name}-{one.partition_index} of group {group}")


def delete(brokers: OperatorClient, group: str) -> None:
    """Delete a group, if it exists. Raises BrokerError, or GroupBusyError."""
    request = DeleteGroupsRequest(groups_names=[group])
    (result,) = brokers.call(find_coordinator(brokers, group), request, 0).results
    if result.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        _raise(result.error_code, f"group {group}")
