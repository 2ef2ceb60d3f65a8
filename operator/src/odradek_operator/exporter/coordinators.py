"""Groups as their coordinators hold them: found by ListGroups, read in batches per coordinator.

A group that is no longer listed is gone only if its coordinator says so: the broker that listed it
may not answer, or its shard may be without a leader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from odradek.protocol import consumer_protocol
from odradek.protocol.errors import name_of
from odradek.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchResponse
from odradek.protocol.messages.groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
)
from odradek.values import TopicPartition
from odradek_operator.exporter.brokers import RoundBrokers
from odradek_operator.group import coordinator

Item = TypeVar("Item")

# Requests sent together, and groups per DescribeGroups.
_BATCH: Final = 100


@dataclass(frozen=True, slots=True)
class GroupCommits:
    """A group; nobody ever joined a `simple` one: who commits for it is no member.

    `assigned` has the topics of its members.
    """

    members: int
    simple: bool
    assigned: frozenset[str]
    committed: Mapping[TopicPartition, int]


@dataclass(slots=True)
class CoordinatorAnswers:
    """What coordinators said of groups. Of a group in none of the first three they said nothing.

    `unlisted` says why brokers do not list their groups.
    """

    groups: dict[str, GroupCommits] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)
    unlisted: dict[int, str] = field(default_factory=dict)


def read(
    brokers: RoundBrokers, is_wanted: Callable[[str], bool], known: Collection[str]
) -> CoordinatorAnswers:
    """Read all groups that are wanted. `known` are those that coordinators held before."""
    found = CoordinatorAnswers()
    by_broker: dict[int, list[str]] = {}
    lists = brokers.each(
        dict.fromkeys(brokers.answering),
        lambda broker_id, _: brokers.client.call(broker_id, ListGroupsRequest(), 0),
    )
    for broker_id, answer in lists.items():
        if answer.error_code:
            found.unlisted[broker_id] = f"ListGroups: {name_of(answer.error_code)}"
            continue
        by_broker[broker_id] = [one.group_id for one in answer.groups if is_wanted(one.group_id)]
    listed = {name for names in by_broker.values() for name in names}
    for name, broker_id in _find(brokers, sorted(set(known) - listed), found.failures):
        if broker_id not in found.unlisted:
            by_broker.setdefault(broker_id, []).append(name)
    for part in brokers.each(
        by_broker, lambda broker_id, names: _read_of(brokers, broker_id, names)
    ).values():
        found.groups |= part.groups
        found.gone |= part.gone
        found.failures |= part.failures
    # A former coordinator may still list a group.
    found.gone -= found.groups.keys()
    for name in found.groups.keys() & found.failures.keys():
        del found.failures[name]
    return found


def _find(
    brokers: RoundBrokers, names: Sequence[str], failures: dict[str, str]
) -> Iterator[tuple[str, int]]:
    """Yield groups with their coordinators, as any one broker knows them."""
    for asked in brokers.answering if names else ():
        answers = brokers.each(
            {asked: names},
            lambda broker_id, names: [
                answer
                for batch in _batches(names)
                for answer in brokers.client.call_together(
                    broker_id, [FindCoordinatorRequest(key=name) for name in batch], 1
                )
            ],
        )
        for name, answer in zip(names, answers.get(asked, ()), strict=False):
            if answer.error_code:
                failures[name] = f"FindCoordinator: {name_of(answer.error_code)}"
            else:
                yield name, answer.node_id
        if answers:
            return


def _read_of(brokers: RoundBrokers, broker_id: int, names: Sequence[str]) -> CoordinatorAnswers:
    """Read groups of one coordinator. Raises BrokerError."""
    found = CoordinatorAnswers()
    for batch in _batches(names):
        described = brokers.client.call(broker_id, DescribeGroupsRequest(groups=list(batch)), 0)
        present = []
        for group in described.groups:
            if group.error_code:
                found.failures[group.group_id] = f"DescribeGroups: {name_of(group.error_code)}"
            elif group.group_state == "Dead":
                found.gone.add(group.group_id)
            else:
                present.append(group)
        fetched = brokers.client.call_together(
            broker_id,
            [OffsetFetchRequest(group_id=one.group_id, topics=None) for one in present],
            2,
        )
        for group, answer in zip(present, fetched, strict=True):
            problem = _problem(answer)
            if problem is not None:
                found.failures[group.group_id] = f"OffsetFetch: {problem}"
                continue
            found.groups[group.group_id] = GroupCommits(
                members=len(group.members),
                simple=not group.protocol_type,
                assigned=_assigned(group),
                committed=coordinator.committed_answered(answer),
            )
    return found


def _assigned(group: DescribedGroup) -> frozenset[str]:
    if group.protocol_type != "consumer":
        return frozenset()
    shares = (consumer_protocol.assigned(bytes(one.member_assignment)) for one in group.members)
    return frozenset(partition.topic for share in shares for partition in share)


def _problem(answer: OffsetFetchResponse) -> str | None:
    if answer.error_code:
        return name_of(answer.error_code)
    for topic in answer.topics:
        for one in topic.partitions:
            if one.error_code:
                return f"{topic.name}-{one.partition_index}: {name_of(one.error_code)}"
    return None


def _batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for begin in range(0, len(items), _BATCH):
        yield items[begin : begin + _BATCH]
