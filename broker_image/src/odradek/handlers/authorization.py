"""What handlers ask the authorizer; without one, everybody may do everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from odradek import slices
from odradek.handlers import operations
from odradek.handlers.context import Broker, RequestContext
from odradek.security.acls import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AclOperation,
    ResourceType,
)

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def allowed(
    broker: Broker,
    context: RequestContext,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str = CLUSTER_NAME,
    *,
    log: bool = True,
) -> bool:
    """Return whether the sender of the request may do this; `log` as of `Authorizer.allow`."""
    authorizer = broker.authorizer
    return authorizer is None or authorizer.allow(
        context.principal, context.host, operation, resource_type, name, log=log
    )


async def split(
    broker: Broker,
    context: RequestContext,
    operation: AclOperation,
    resource_type: ResourceType,
    items: Iterable[Item],
    name_of: Callable[[Item], str],
    *,
    log: bool = True,
) -> tuple[list[Item], list[Item]]:
    """Return the items that are allowed, and those that are not, in slices."""
    passed: list[Item] = []
    refused: list[Item] = []
    for few in slices.cut(items):
        for one in few:
            may = allowed(broker, context, operation, resource_type, name_of(one), log=log)
            (passed if may else refused).append(one)
        if len(few) == slices.STEPS_PER_SLICE:
            await slices.pause()
    return passed, refused


async def answers(items: Iterable[Item], make: Callable[[Item], Answer]) -> list[Answer]:
    """Return the answer to each item, in slices."""
    made: list[Answer] = []
    for few in slices.cut(items):
        made += map(make, few)
        if len(few) == slices.STEPS_PER_SLICE:
            await slices.pause()
    return made


def operations_on(
    broker: Broker,
    context: RequestContext,
    resource_type: ResourceType,
    name: str = CLUSTER_NAME,
) -> int:
    """Return what the sender may do to a resource, as bits (KIP-430)."""
    authorizer = broker.authorizer
    if authorizer is None:
        return operations.bits(SUPPORTED_OPERATIONS[resource_type])
    return operations.bits(
        authorizer.operations(context.principal, context.host, resource_type, name)
    )


def operations_on_cluster(broker: Broker, context: RequestContext) -> int:
    """Return what the sender may do to the cluster, as bits; 0 without Describe on it."""
    if not allowed(broker, context, AclOperation.DESCRIBE, ResourceType.CLUSTER):
        return 0
    return operations_on(broker, context, ResourceType.CLUSTER)
