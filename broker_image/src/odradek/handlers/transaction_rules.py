"""The rules of the APIs of transactions: producers need Write on the transactional id, those who
look at it Describe, and AddPartitionsToTxn of a broker ClusterAction.
"""

from __future__ import annotations

from dataclasses import replace

from odradek import slices
from odradek.handlers import authorization, rules, transactions
from odradek.handlers.authorization import allowed
from odradek.handlers.context import Broker, RequestContext
from odradek.handlers.rules import Handle
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import transaction_states as states
from odradek.protocol.messages import transactions as messages
from odradek.security.acls import AclOperation, ResourceType
from odradek.zk import admin

ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
TOPIC_DENIED = "Topic authorization failed."


def may_write(broker: Broker, context: RequestContext, transactional_id: str) -> bool:
    """Return whether the sender may use the transactional id."""
    return allowed(
        broker, context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )


_of_broker = rules.of_brokers(rules.answer(messages.AddPartitionsToTxnResponse))


async def add_partitions_to_txn(
    broker: Broker,
    request: messages.AddPartitionsToTxnRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Write on each topic, too; without it on one, none is added. See `rules.of_brokers` for
    the versions of brokers.
    """
    if context.version >= transactions.FIRST_OF_BROKERS:
        return await _of_broker(broker, request, context, handle)
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


async def write_txn_markers(
    broker: Broker,
    request: messages.WriteTxnMarkersRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Alter on the cluster, as those who end hanging transactions have (KIP-1037), or
    ClusterAction, as brokers have.
    """
    if allowed(broker, context, AclOperation.ALTER, ResourceType.CLUSTER, log=False) or allowed(
        broker, context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER
    ):
        return await handle(broker, request, context)
    return await rules.refuse_markers(request, context)


async def describe_producers(
    broker: Broker,
    request: states.DescribeProducersRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Read on each topic. The handler refuses names that no topic can have."""
    legal: list[states.DescribeProducersTopicRequest] = []
    illegal: list[states.DescribeProducersTopicRequest] = []
    for few in slices.cut(request.topics):
        for topic in few:
            (legal if admin.is_legal_topic_name(topic.name) else illegal).append(topic)
        if len(few) == slices.STEPS_PER_SLICE:
            await slices.pause()
    passed, refused = await authorization.split(
        broker,
        context,
        AclOperation.READ,
        ResourceType.TOPIC,
        legal,
        lambda topic: str(topic.name),
    )
    denials = await slices.run(
        rules.each_refused(
            refused,
            lambda topic: topic.partition_indexes,
            lambda topic, found: states.DescribeProducersTopicResponse(
                name=topic.name, partitions=found
            ),
            lambda index: states.DescribeProducersPartitionResponse(
                partition_index=index,
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                error_message=TOPIC_DENIED,
            ),
        )
    )
    answered: states.DescribeProducersResponse = await handle(
        broker, replace(request, topics=illegal + passed), context
    )
    answered.topics += denials
    return answered


async def describe_transactions(
    broker: Broker,
    request: states.DescribeTransactionsRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Describe on each transactional id; only topics with Describe are shown."""
    passed, refused = await authorization.split(
        broker,
        context,
        AclOperation.DESCRIBE,
        ResourceType.TRANSACTIONAL_ID,
        request.transactional_ids,
        str,
    )
    answered: states.DescribeTransactionsResponse = await handle(
        broker, replace(request, transactional_ids=passed), context
    )
    for one in answered.transaction_states:
        one.topics, _ = await authorization.split(
            broker,
            context,
            AclOperation.DESCRIBE,
            ResourceType.TOPIC,
            one.topics,
            lambda topic: str(topic.topic),
        )
    answered.transaction_states += await authorization.answers(
        await slices.unique(refused),
        lambda name: states.DescribedTransaction(error_code=ID_DENIED, transactional_id=name),
    )
    return answered


async def list_transactions(
    broker: Broker,
    request: states.ListTransactionsRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need nothing: only transactional ids with Describe are listed."""
    answered: states.ListTransactionsResponse = await handle(broker, request, context)
    answered.transaction_states, _ = await authorization.split(
        broker,
        context,
        AclOperation.DESCRIBE,
        ResourceType.TRANSACTIONAL_ID,
        answered.transaction_states,
        lambda one: str(one.transactional_id),
        log=False,
    )
    return answered
