"""Access control lists: who may do what to which resource."""

from odradek.protocol.schema import (
    Request,
    array,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
)

LITERAL = 3  # the only pattern type there was in version 0


@struct
class AclDescription:
    """What one principal may do, or may not."""

    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@struct
class DescribeAclsResource:
    """The ACLs of one resource."""

    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(since=1, default=LITERAL)
    acls: list[AclDescription] = array(AclDescription)


@message(versions=(0, 2), flexible_from=2)
class DescribeAclsResponse:
    """Answer to a DescribeAclsRequest."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)


@message(versions=(0, 2), flexible_from=2)
class DescribeAclsRequest(Request[DescribeAclsResponse]):
    """Ask for the ACLs that match a filter, in which null means any (KIP-140)."""

    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable_since=0, default=None)
    pattern_type_filter: int = int8(since=1, default=LITERAL)
    principal_filter: str | None = string(nullable_since=0, default=None)
    host_filter: str | None = string(nullable_since=0, default=None)
    operation: int = int8()
    permission_type: int = int8()


@struct
class AclCreationResult:
    """Outcome for one ACL."""

    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)


@message(versions=(0, 2), flexible_from=2)
class CreateAclsResponse:
    """Outcome of a CreateAclsRequest, in the order of its ACLs."""

    throttle_time_ms: int = int32(default=0)
    results: list[AclCreationResult] = array(AclCreationResult)


@struct
class AclCreation:
    """One ACL to create."""

    resource_type: int = int8()
    resource_name: str = string()
    resource_pattern_type: int = int8(since=1, default=LITERAL)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@message(versions=(0, 2), flexible_from=2)
class CreateAclsRequest(Request[CreateAclsResponse]):
    """Create ACLs (KIP-140)."""

    creations: list[AclCreation] = array(AclCreation)


@struct
class DeleteAclsMatchingAcl:
    """An ACL that matched, and whether it was deleted."""

    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(since=1, default=LITERAL)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@struct
class DeleteAclsFilterResult:
    """Outcome for one filter."""

    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


@message(versions=(0, 2), flexible_from=2)
class DeleteAclsResponse:
    """Outcome of a DeleteAclsRequest, in the order of its filters."""

    throttle_time_ms: int = int32(default=0)
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)


@struct
class DeleteAclsFilter:
    """Which ACLs to delete; null means any."""

    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable_since=0, default=None)
    pattern_type_filter: int = int8(since=1, default=LITERAL)
    principal_filter: str | None = string(nullable_since=0, default=None)
    host_filter: str | None = string(nullable_since=0, default=None)
    operation: int = int8()
    permission_type: int = int8()


@message(versions=(0, 2), flexible_from=2)
class DeleteAclsRequest(Request[DeleteAclsResponse]):
    """Delete the ACLs that match any of the filters (KIP-140)."""

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)
