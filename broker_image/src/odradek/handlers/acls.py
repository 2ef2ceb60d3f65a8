"""DescribeAcls, CreateAcls, DeleteAcls (KIP-140): refused, as by Kafka without an authorizer.

Clients that list ACLs among other things accept SECURITY_DISABLED, but not a missing answer.
"""

from __future__ import annotations

from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

_CODE = ErrorCode.SECURITY_DISABLED
_MESSAGE = "No Authorizer is configured on the broker"


async def describe_acls(
    broker: Broker, request: DescribeAclsRequest, context: RequestContext
) -> DescribeAclsResponse:
    """Return the refusal, without resources."""
    return DescribeAclsResponse(error_code=_CODE, error_message=_MESSAGE, resources=[])


async def create_acls(
    broker: Broker, request: CreateAclsRequest, context: RequestContext
) -> CreateAclsResponse:
    """Return one refusal per ACL."""
    refusal = AclCreationResult(error_code=_CODE, error_message=_MESSAGE)
    return CreateAclsResponse(results=[refusal] * len(request.creations))


async def delete_acls(
    broker: Broker, request: DeleteAclsRequest, context: RequestContext
) -> DeleteAclsResponse:
    """Return one refusal per filter."""
    refusal = DeleteAclsFilterResult(error_code=_CODE, error_message=_MESSAGE, matching_acls=[])
    return DeleteAclsResponse(filter_results=[refusal] * len(request.filters))
