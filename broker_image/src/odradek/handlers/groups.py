"""Consumer groups (G2, G3): find the coordinator, membership, committed offsets.

OffsetCommit and OffsetFetch of version 0 keep offsets in ZooKeeper (Z8), later versions in
`__consumer_offsets`, as in Kafka.
"""

from __future__ import annotations

import logging

from kazoo.exceptions import KazooException

from odradek.clock import wall_ms
from odradek.group.group import Group
from odradek.group.members import JoinSpec
from odradek.group.offsets import CommittedOffset
from odradek.group.partitioning import OFFSETS_TOPIC, partition_of
from odradek.group.states import GroupState
from odradek.handlers import operations, topics
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import group_offsets as offset_messages
from odradek.protocol.messages import groups as messages
from odradek.values import TopicPartition
from odradek.zk import consumers
from odradek.zk.payload import ZnodeError
from odradek.zk.session import NoNodeError

GROUP, TRANSACTION = 0, 1

logger = logging.getLogger(__name__)


async def find_coordinator(
    broker: Broker, request: messages.FindCoordinatorRequest, context: RequestContext
) -> messages.FindCoordinatorResponse:
    """Name the broker that leads the group's partition, creating `__consumer_offsets` on demand."""
    error, node = await _coordinator(broker, request, context)
    if error is not ErrorCode.NONE or node is None:
        return messages.FindCoordinatorResponse(
            error_code=error, error_message=error.name, node_id=-1, host="", port=-1
        )
    node_id, host, port = node
    return messages.FindCoordinatorResponse(node_id=node_id, host=host, port=port)


async def _coordinator(
    broker: Broker, request: messages.FindCoordinatorRequest, context: RequestContext
) -> tuple[ErrorCode, tuple[int, str, int] | None]:
    if request.key_type == TRANSACTION:
        # Not retriable, so that a transactional producer fails at once: transactions are not built.
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None
    if request.key_type != GROUP:
        return ErrorCode.INVALID_REQUEST, None
    cache = broker.metadata
    partitions = cache.topics.get(OFFSETS_TOPIC)
    if partitions is None:
        await topics.create_automatically(broker, OFFSETS_TOPIC)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
    if broker.groups.partition_count() is None:
        await broker.groups.partition_count.learn()
    count = broker.groups.partition_count()
    if count is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
    info = partitions.get(partition_of(request.key, count))
    endpoint = cache.endpoint(info.leader, context.listener) if info is not None else None
    if info is None or endpoint is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
    return ErrorCode.NONE, (info.leader, *endpoint)


async def join_group(
    broker: Broker, request: messages.JoinGroupRequest, context: RequestContext
) -> messages.JoinGroupResponse:
    """Wait for the group's next generation, and tell its leader who is in it."""
    spec = JoinSpec(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=f"/{context.host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if context.version >= 1 else request.session_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        requires_known_id=context.version >= 4,
    )
    joined = await broker.groups.join(request.group_id, spec)
    return messages.JoinGroupResponse(
        error_code=joined.error,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol_name if context.version >= 7 else joined.protocol_name or "",
        leader=joined.leader,
        member_id=joined.member_id,
        members=[
            messages.JoinGroupResponseMember(
                member_id=member_id, group_instance_id=instance_id, metadata=metadata
            )
            for member_id, instance_id, metadata in joined.members
        ],
    )


async def sync_group(
    broker: Broker, request: messages.SyncGroupRequest, context: RequestContext
) -> messages.SyncGroupResponse:
    """Take the leader's assignment, hand each member its share."""
    synced = await broker.groups.sync(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        (request.protocol_type, request.protocol_name),
        {each.member_id: bytes(each.assignment) for each in request.assignments},
    )
    return messages.SyncGroupResponse(
        error_code=synced.error,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol_name,
        assignment=synced.assignment,
    )


async def heartbeat(
    broker: Broker, request: messages.HeartbeatRequest, context: RequestContext
) -> messages.HeartbeatResponse:
    """Keep a member's session alive."""
    error = broker.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return messages.HeartbeatResponse(error_code=error)


async def leave_group(
    broker: Broker, request: messages.LeaveGroupRequest, context: RequestContext
) -> messages.LeaveGroupResponse:
    """Take members out; before version 3 one, and its error is the request's."""
    leaving = (
        [(each.member_id, each.group_instance_id) for each in request.members]
        if context.version >= 3
        else [(request.member_id, None)]
    )
    error, errors = broker.groups.leave(request.group_id, leaving)
    if context.version < 3:
        return messages.LeaveGroupResponse(error_code=errors[0] if errors else error)
    return messages.LeaveGroupResponse(
        error_code=error,
        members=[
            messages.MemberResponse(
                member_id=member_id, group_instance_id=instance_id, error_code=each
            )
            for (member_id, instance_id), each in zip(leaving, errors, strict=False)
        ],
    )


async def describe_groups(
    broker: Broker, request: messages.DescribeGroupsRequest, context: RequestContext
) -> messages.DescribeGroupsResponse:
    """State and members of each group; one that nobody ever joined is Dead.

    A group named twice is answered once: a short request is not to make an endless answer.
    """
    found = [
        _described(group_id, *broker.groups.find(group_id))
        for group_id in dict.fromkeys(request.groups)
    ]
    if request.include_authorized_operations:
        for group in found:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = operations.ON_GROUP
    return messages.DescribeGroupsResponse(groups=found)


def _described(group_id: str, error: ErrorCode, group: Group | None) -> messages.DescribedGroup:
    if group is None:
        state = "" if error is not ErrorCode.NONE else GroupState.DEAD.value
        return messages.DescribedGroup(
            error_code=error,
            group_id=group_id,
            group_state=state,
            protocol_type="",
            protocol_data="",
            members=[],
        )
    settled = group.state is GroupState.STABLE
    protocol = group.protocol_name or "" if settled else ""
    return messages.DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol,
        members=[
            messages.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol) if settled else b"",
                member_assignment=member.assignment if settled else b"",
            )
            for member in group.members.values()
        ],
    )


async def list_groups(
    broker: Broker, request: messages.ListGroupsRequest, context: RequestContext
) -> messages.ListGroupsResponse:
    """The groups coordinated here, all or those in the named states."""
    error, groups = broker.groups.groups()
    wanted = {state.lower() for state in request.states_filter}
    return messages.ListGroupsResponse(
        error_code=error,
        groups=[
            messages.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
            )
            for group in groups
            if not wanted or group.state.value.lower() in wanted
        ],
    )


async def delete_groups(
    broker: Broker, request: messages.DeleteGroupsRequest, context: RequestContext
) -> messages.DeleteGroupsResponse:
    """Forget groups without members, and their offsets."""
    return messages.DeleteGroupsResponse(
        results=[
            messages.DeletableGroupResult(
                group_id=group_id, error_code=await broker.groups.commits.delete_group(group_id)
            )
            for group_id in dict.fromkeys(request.groups_names)
        ]
    )


# --- offsets ------------------------------------------------------------------------------------


async def offset_commit(
    broker: Broker, request: offset_messages.OffsetCommitRequest, context: RequestContext
) -> offset_messages.OffsetCommitResponse:
    """Keep the group's positions; partitions that nobody has heard of are refused one by one."""
    now = wall_ms()
    commits: dict[TopicPartition, CommittedOffset] = {}
    errors: dict[TopicPartition, ErrorCode] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            key = TopicPartition(topic.name, partition.partition_index)
            if broker.metadata.partition(*key) is None:
                errors[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            given_ms = partition.commit_timestamp
            committed_ms = given_ms if given_ms >= 0 else now
            retention_ms = request.retention_time_ms
            commits[key] = CommittedOffset(
                partition.committed_offset,
                partition.committed_metadata or "",
                committed_ms,
                partition.committed_leader_epoch,
                committed_ms + retention_ms if retention_ms >= 0 else -1,
            )
    if context.version == 0:
        errors.update(await _commit_to_zookeeper(broker, request.group_id, commits))
    elif commits:
        member = (request.member_id, request.group_instance_id, request.generation_id)
        errors.update(await broker.groups.commits.commit(request.group_id, member, commits))
    return offset_messages.OffsetCommitResponse(
        topics=[
            offset_messages.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    offset_messages.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=errors[TopicPartition(topic.name, partition.partition_index)],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _commit_to_zookeeper(
    broker: Broker, group_id: str, commits: dict[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, ErrorCode]:
    errors: dict[TopicPartition, ErrorCode] = {}
    for key, commit in commits.items():
        path = consumers.offset_path(group_id, key.topic, key.partition)
        data = consumers.encode_offset(commit.offset)
        try:
            try:
                await broker.session.set(path, data)
            except NoNodeError:
                await broker.session.ensure(path.rpartition("/")[0])
                await broker.session.create(path, data)
            errors[key] = ErrorCode.NONE
        except KazooException as failure:
            logger.warning("group %s: %s cannot be written: %r", group_id, path, failure)
            errors[key] = ErrorCode.UNKNOWN_SERVER_ERROR
    return errors


async def offset_fetch(
    broker: Broker, request: offset_messages.OffsetFetchRequest, context: RequestContext
) -> offset_messages.OffsetFetchResponse:
    """The group's positions; -1 where it has none."""
    if context.version == 0:
        return await _fetch_from_zookeeper(broker, request)
    error, committed = await broker.groups.commits.committed(request.group_id)
    asked: dict[str, list[int]] = {}
    if request.topics is None:
        for topic, index in committed:
            asked.setdefault(topic, []).append(index)
    else:
        for wanted in request.topics:
            asked.setdefault(wanted.name, []).extend(wanted.partition_indexes)
    nothing = CommittedOffset(-1, "", -1)
    return offset_messages.OffsetFetchResponse(
        # Version 1 has no error of its own: each partition carries it.
        error_code=error,
        topics=[
            offset_messages.OffsetFetchResponseTopic(
                name=topic,
                partitions=[
                    offset_messages.OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=found.offset,
                        committed_leader_epoch=found.leader_epoch,
                        metadata=found.metadata,
                        error_code=error,
                    )
                    for index in indexes
                    for found in (committed.get(TopicPartition(topic, index), nothing),)
                ],
            )
            for topic, indexes in asked.items()
        ],
    )


async def _fetch_from_zookeeper(
    broker: Broker, request: offset_messages.OffsetFetchRequest
) -> offset_messages.OffsetFetchResponse:
    async def one(topic: str, index: int) -> offset_messages.OffsetFetchResponsePartition:
        path = consumers.offset_path(request.group_id, topic, index)
        offset, error = -1, ErrorCode.NONE
        if broker.metadata.partition(topic, index) is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            try:
                data, _ = await broker.session.get(path)
                offset = consumers.decode_offset(path, data)
            except NoNodeError:
                # The articles' clients take this code for "no offset yet".
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            except (KazooException, ZnodeError) as failure:
                logger.warning("group %s: %s: %r", request.group_id, path, failure)
                error = ErrorCode.UNKNOWN_SERVER_ERROR
        return offset_messages.OffsetFetchResponsePartition(
            partition_index=index, committed_offset=offset, metadata="", error_code=error
        )

    return offset_messages.OffsetFetchResponse(
        topics=[
            offset_messages.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[await one(topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.topics or []
        ]
    )


async def offset_delete(
    broker: Broker, request: offset_messages.OffsetDeleteRequest, context: RequestContext
) -> offset_messages.OffsetDeleteResponse:
    """Forget positions in topics that the group does not read."""
    partitions = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    error, errors = await broker.groups.commits.delete_offsets(request.group_id, partitions)
    if error is not ErrorCode.NONE:
        return offset_messages.OffsetDeleteResponse(error_code=error, topics=[])
    return offset_messages.OffsetDeleteResponse(
        topics=[
            offset_messages.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    offset_messages.OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=errors[TopicPartition(topic.name, partition.partition_index)],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
