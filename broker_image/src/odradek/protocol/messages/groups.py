"""Consumer groups: finding the coordinator, membership and inspection."""

from odradek.protocol.primitives import Kind
from odradek.protocol.schema import (
    Request,
    array,
    binary,
    boolean,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
)


@message(versions=(0, 3), flexible_from=3)
class FindCoordinatorResponse:
    """The broker that coordinates the group."""

    throttle_time_ms: int = int32(since=1, default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(since=1, nullable_since=1, default=None)
    node_id: int = int32()
    host: str = string()
    port: int = int32()


@message(versions=(0, 3), flexible_from=3)
class FindCoordinatorRequest(Request[FindCoordinatorResponse]):
    """Ask who coordinates `key`: a group (type 0) or a transactional id (type 1)."""

    key: str = string()
    key_type: int = int8(since=1, default=0)


@struct
class JoinGroupResponseMember:
    """A member and its subscription, told to the leader only."""

    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable_since=5, default=None)
    metadata: bytes = binary()


@message(versions=(0, 7), flexible_from=6)
class JoinGroupResponse:
    """The generation joined; the leader gets all members and assigns partitions."""

    throttle_time_ms: int = int32(since=2, default=0)
    error_code: int = int16(default=0)
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(since=7, nullable_since=7, default=None)
    protocol_name: str | None = string(nullable_since=7, default=None)
    leader: str = string()
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)


@struct
class JoinGroupRequestProtocol:
    """An assignment strategy the member supports, with its subscription."""

    name: str = string()
    metadata: bytes = binary()


@message(versions=(0, 7), flexible_from=6)
class JoinGroupRequest(Request[JoinGroupResponse]):
    """Join a group, or take part in its rebalance."""

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(since=1, default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable_since=5, default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)


@message(versions=(0, 5), flexible_from=4)
class SyncGroupResponse:
    """What the member shall consume."""

    throttle_time_ms: int = int32(since=1, default=0)
    error_code: int = int16(default=0)
    protocol_type: str | None = string(since=5, nullable_since=5, default=None)
    protocol_name: str | None = string(since=5, nullable_since=5, default=None)
    assignment: bytes = binary()


@struct
class SyncGroupRequestAssignment:
    """What the leader gives to one member."""

    member_id: str = string()
    assignment: bytes = binary()


@message(versions=(0, 5), flexible_from=4)
class SyncGroupRequest(Request[SyncGroupResponse]):
    """Hand in (leader) and fetch (everyone) the assignment of a generation."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)
    protocol_type: str | None = string(since=5, nullable_since=5, default=None)
    protocol_name: str | None = string(since=5, nullable_since=5, default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


@message(versions=(0, 4), flexible_from=4)
class HeartbeatResponse:
    """Whether the member still belongs to the group, or must rejoin."""

    throttle_time_ms: int = int32(since=1, default=0)
    error_code: int = int16(default=0)


@message(versions=(0, 4), flexible_from=4)
class HeartbeatRequest(Request[HeartbeatResponse]):
    """Keep a membership alive."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)


@struct
class MemberResponse:
    """Outcome for one member."""

    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0, default=None)
    error_code: int = int16(default=0)


@message(versions=(0, 4), flexible_from=4)
class LeaveGroupResponse:
    """Outcome of a LeaveGroupRequest."""

    throttle_time_ms: int = int32(since=1, default=0)
    error_code: int = int16(default=0)
    members: list[MemberResponse] = array(MemberResponse, since=3, default_factory=list)


@struct
class MemberIdentity:
    """A member that leaves."""

    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0, default=None)


@message(versions=(0, 4), flexible_from=4)
class LeaveGroupRequest(Request[LeaveGroupResponse]):
    """Leave a group; several members at once from version 3 on (KIP-345)."""

    group_id: str = string()
    member_id: str = string(until=2, default="")
    members: list[MemberIdentity] = array(MemberIdentity, since=3, default_factory=list)


@struct
class DescribedGroupMember:
    """A member with its subscription and assignment."""

    member_id: str = string()
    group_instance_id: str | None = string(since=4, nullable_since=4, default=None)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = binary()
    member_assignment: bytes = binary()


@struct
class DescribedGroup:
    """State and members of one group."""

    error_code: int = int16(default=0)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(since=3, default=-0x80000000)


@message(versions=(0, 5), flexible_from=5)
class DescribeGroupsResponse:
    """Answer to a DescribeGroupsRequest."""

    throttle_time_ms: int = int32(since=1, default=0)
    groups: list[DescribedGroup] = array(DescribedGroup)


@message(versions=(0, 5), flexible_from=5)
class DescribeGroupsRequest(Request[DescribeGroupsResponse]):
    """Inspect groups."""

    groups: list[str] = array(Kind.STRING)
    include_authorized_operations: bool = boolean(since=3, default=False)


@struct
class ListedGroup:
    """A group the broker coordinates."""

    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4, default="")


@message(versions=(0, 4), flexible_from=3)
class ListGroupsResponse:
    """Groups the answering broker coordinates."""

    throttle_time_ms: int = int32(since=1, default=0)
    error_code: int = int16(default=0)
    groups: list[ListedGroup] = array(ListedGroup)


@message(versions=(0, 4), flexible_from=3)
class ListGroupsRequest(Request[ListGroupsResponse]):
    """List groups; an empty `states_filter` means all (KIP-518)."""

    states_filter: list[str] = array(Kind.STRING, since=4, default_factory=list)


@struct
class DeletableGroupResult:
    """Outcome for one group."""

    group_id: str = string()
    error_code: int = int16(default=0)


@message(versions=(0, 2), flexible_from=2)
class DeleteGroupsResponse:
    """Outcome of a DeleteGroupsRequest."""

    throttle_time_ms: int = int32(default=0)
    results: list[DeletableGroupResult] = array(DeletableGroupResult)


@message(versions=(0, 2), flexible_from=2)
class DeleteGroupsRequest(Request[DeleteGroupsResponse]):
    """Delete groups without members (KIP-229)."""

    groups_names: list[str] = array(Kind.STRING)
