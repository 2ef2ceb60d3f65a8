"""The rules of the APIs of transactions: each needs Write on the transactional id."""

from __future__ import annotations

from odradek.handlers import authorization, transactions
from odradek.handlers.authorization import allowed
from odradek.handlers.context import Broker, RequestContext
from odradek.handlers.rules import Handle
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import transactions as messages
from odradek.security.acls import AclOperation, ResourceType

ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def may_write(broker: Broker, context: RequestContext, transactional_id: str) -> bool:
    """Return whether the sender may use the transactional id."""
    return allowed(
        broker, context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )


async def add_partitions_to_txn(
    broker: Broker,
    request: messages.AddPartitionsToTxnRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Write on each topic, too; without it on one, none is added."""
    if not may_write(broker, context, request.transactional_id):
        return await transactions.refuse_all(request, ID_DENIED)
    _, refused = await authorization.split(
        broker,
        context,
        AclOperation.WRITE,
        ResourceType.TOPIC,
        request.topics,
        lambda topic: str(topic.name),
    )
    if not refused:
        return await handle(broker, request, context)
    denied = {topic.name for topic in refused}
    return await transactions.add_allowed_partitions(broker, request, context, denied)


async def add_offsets_to_txn(
    broker: Broker,
    request: messages.AddOffsetsToTxnRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Read on the group, too."""
    if not may_write(broker, context, request.transactional_id):
        return messages.AddOffsetsToTxnResponse(error_code=ID_DENIED)
    if not allowed(broker, context, AclOperation.READ, ResourceType.GROUP, request.group_id):
        return messages.AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return await handle(broker, request, context)


async def end_txn(
    broker: Broker,
    request: messages.EndTxnRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need nothing else."""
    if not may_write(broker, context, request.transactional_id):
        return messages.EndTxnResponse(error_code=ID_DENIED)
    return await handle(broker, request, context)
