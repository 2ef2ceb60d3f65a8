"""Consumer groups (G2, G3): membership, description, deletion; and FindCoordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from odradek import slices
from odradek.coordination.partitioning import partition_of
from odradek.group.group import Group
from odradek.group.members import JoinResult, JoinSpec
from odradek.group.states import GroupState
from odradek.handlers import authorization, automatic_topics
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import groups as messages
from odradek.security.acls import ResourceType
from odradek.values import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

GROUP, TRANSACTION = 0, 1
FIRST_WITH_PROTOCOL_IN_SYNC = 5
# Members that leave before others run.
LEAVING_AT_ONCE = 1000


async def find_coordinator(
    broker: Broker, request: messages.FindCoordinatorRequest, context: RequestContext
) -> messages.FindCoordinatorResponse:
    """Return the leader of the partition of a group or of a transactional id; create their topic on
    demand. An empty transactional id has a partition too, as in Kafka.
    """
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
    if request.key_type == GROUP:
        topic, partition_count = OFFSETS_TOPIC, broker.groups.partition_count
    elif request.key_type == TRANSACTION:
        topic, partition_count = TRANSACTIONS_TOPIC, broker.transactions.partition_count
    else:
        return ErrorCode.INVALID_REQUEST, None
    cache = broker.metadata
    partitions = cache.topics.get(topic)
    if partitions is None:
        await automatic_topics.create(broker, topic, context)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
    if partition_count() is None:
        await partition_count.learn()
    count = partition_count()
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
    """Wait for the group's next generation; the answer to its leader lists the members."""
    protocols = await slices.run(_protocols(request.protocols))
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
        protocols=tuple(protocols),
        requires_known_id=context.version >= 4,
    )
    if context.is_connected():
        joined = await broker.groups.join(request.group_id, spec)
    else:
        # Read late. A static member would fence its successor; of others each is waited for.
        joined = JoinResult(ErrorCode.NETWORK_EXCEPTION, request.member_id)
    del spec
    slices.discard(protocols)
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


def _protocols(
    given: list[messages.JoinGroupRequestProtocol],
) -> Generator[None, None, list[tuple[str, bytes]]]:
    found: list[tuple[str, bytes]] = []
    for few in slices.cut(given, slices.KEYS_AT_ONCE):
        found += [(each.name, bytes(each.metadata)) for each in few]
        if len(few) == slices.KEYS_AT_ONCE:
            yield
    return found


async def sync_group(
    broker: Broker, request: messages.SyncGroupRequest, context: RequestContext
) -> messages.SyncGroupResponse:
    """Take the leader's assignment; return to each member its share."""
    said = request.protocol_type, request.protocol_name
    if context.version >= FIRST_WITH_PROTOCOL_IN_SYNC and None in said:
        return messages.SyncGroupResponse(
            error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, assignment=b""
        )
    assignments: dict[str, bytes] = {}
    for few in slices.cut(request.assignments, slices.KEYS_AT_ONCE):
        assignments |= {each.member_id: bytes(each.assignment) for each in few}
        if len(few) == slices.KEYS_AT_ONCE:
            await slices.pause()
    synced = await broker.groups.sync(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        said,
        assignments,
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
    """Remove members. Before version 3 there is one, and its error is the request's."""
    if context.version < 3:
        error, errors = broker.groups.leave(request.group_id, [(request.member_id, None)])
        return messages.LeaveGroupResponse(error_code=errors[0] if errors else error)
    error, _ = broker.groups.leave(request.group_id, [])
    answer = messages.LeaveGroupResponse(error_code=error)
    for number, few in enumerate(slices.cut(request.members, LEAVING_AT_ONCE)):
        if number:
            await slices.pause()
        leaving = [(each.member_id, each.group_instance_id) for each in few]
        answer.error_code, errors = broker.groups.leave(request.group_id, leaving)
        if answer.error_code != ErrorCode.NONE:
            answer.members = []
            break
        answer.members += [
            messages.MemberResponse(
                member_id=member_id, group_instance_id=instance_id, error_code=each
            )
            for (member_id, instance_id), each in zip(leaving, errors, strict=True)
        ]
    return answer


async def describe_groups(
    broker: Broker, request: messages.DescribeGroupsRequest, context: RequestContext
) -> messages.DescribeGroupsResponse:
    """Return state and members of each group; an unknown group is Dead.

    A group that is named twice is answered once: a short request must not make an endless answer.
    """
    found = []
    group_ids = await slices.unique(request.groups)
    for group_id in group_ids:
        found.append(_described(group_id, *broker.groups.find(group_id)))
        await asyncio.sleep(0)  # hashing thousands of long ids must not delay others
        if request.include_authorized_operations and found[-1].error_code == ErrorCode.NONE:
            found[-1].authorized_operations = authorization.operations_on(
                broker, context, ResourceType.GROUP, group_id
            )
    slices.discard(group_ids)
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
    """Return the groups that this broker coordinates: all, or those in the given states."""
    error, groups = broker.groups.groups()
    wanted: set[str] = set()
    for few in slices.cut(request.states_filter, slices.KEYS_AT_ONCE):
        wanted.update(state.lower() for state in few)
        if len(few) == slices.KEYS_AT_ONCE:
            await slices.pause()
    answer = messages.ListGroupsResponse(error_code=error, groups=[])
    for some in slices.cut(groups, slices.KEYS_AT_ONCE // 5):
        answer.groups += [
            messages.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
            )
            for group in some
            if not wanted or group.state.value.lower() in wanted
        ]
        if len(some) == slices.KEYS_AT_ONCE // 5:
            await slices.pause()
    slices.discard(wanted)
    return answer


async def delete_groups(
    broker: Broker, request: messages.DeleteGroupsRequest, context: RequestContext
) -> messages.DeleteGroupsResponse:
    """Delete groups without members, and their offsets."""
    results = []
    group_ids = await slices.unique(request.groups_names)
    for group_id in group_ids:
        error = await broker.groups.deletion.delete_group(group_id)
        results.append(messages.DeletableGroupResult(group_id=group_id, error_code=error))
        await asyncio.sleep(0)  # as in `describe_groups`
    slices.discard(group_ids)
    return messages.DeleteGroupsResponse(results=results)
