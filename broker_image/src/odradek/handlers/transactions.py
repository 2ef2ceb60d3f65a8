"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn: what producers tell their coordinator (KIP-98).

Since version 4 AddPartitionsToTxn is for brokers, which ask whether partitions are in a transaction
(KIP-890).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping

from odradek import slices
from odradek.coordination.partitioning import partition_of
from odradek.handlers import automatic_topics
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.api import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
)
from odradek.transaction.decisions import error_for
from odradek.transaction.transaction import ProducerIdAndEpoch
from odradek.values import INTERNAL_TOPICS, OFFSETS_TOPIC, TopicPartition

FIRST_OF_BROKERS = 4
"""The first version of AddPartitionsToTxn that only brokers send."""
# To hash a long id takes as long as to look at many partitions.
_STEPS_PER_ID = 10


async def add_partitions_to_txn(
    broker: Broker, request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse:
    """Add partitions to the producer's transaction: all, or none. For a broker, add or verify those
    of many transactions.
    """
    if context.version < FIRST_OF_BROKERS:
        return await add_allowed_partitions(broker, request, context, frozenset())
    results = []
    steps = 0
    for transaction in request.transactions:
        if transaction.verify_only:
            topics = await _verified(broker, transaction)
        else:
            topics = await _added(broker, transaction, context, frozenset())
        results.append(
            AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id, topic_results=topics
            )
        )
        steps += _STEPS_PER_ID + sum(len(topic.partitions) for topic in transaction.topics)
        if steps >= slices.STEPS_PER_SLICE:
            steps = 0
            await slices.pause()
    return AddPartitionsToTxnResponse(results_by_transaction=results)


async def _verified(
    broker: Broker, transaction: AddPartitionsToTxnTransaction
) -> list[AddPartitionsToTxnTopicResult]:
    """Return whether each partition is in the ongoing transaction.

    Kafka refuses a partition that is not in its metadata. Here the transaction alone counts: a
    coordinator that just started may not know the topic yet.
    """
    asked = await slices.run(_keys(transaction.topics))
    found = broker.transactions.verify_partitions(
        transaction.transactional_id, _producer(transaction), asked
    )
    return await slices.run(_results(transaction.topics, found, ErrorCode.NONE))


async def add_allowed_partitions(
    broker: Broker,
    request: AddPartitionsToTxnRequest,
    context: RequestContext,
    denied: Collection[str],
) -> AddPartitionsToTxnResponse:
    """As `add_partitions_to_txn` for a client; nothing is added if one of the topics is denied,
    internal, or unknown.
    """
    denied = {*denied, *INTERNAL_TOPICS}
    return AddPartitionsToTxnResponse(results=await _added(broker, request, context, denied))


async def _added(
    broker: Broker,
    transaction: AddPartitionsToTxnRequest | AddPartitionsToTxnTransaction,
    context: RequestContext,
    denied: Collection[str],
) -> list[AddPartitionsToTxnTopicResult]:
    """Add partitions, all or none; return the results."""
    refused = await slices.run(_refused(broker, transaction.topics, denied))
    if refused:
        error = ErrorCode.OPERATION_NOT_ATTEMPTED
    else:
        added = await slices.run(_keys(transaction.topics))
        error = await broker.transactions.add_partitions(
            transaction.transactional_id, _producer(transaction), added
        )
        slices.discard(added)
    error = error_for(error, ApiKey.ADD_PARTITIONS_TO_TXN, context.version)
    return await slices.run(_results(transaction.topics, refused, error))


async def refuse_all(
    request: AddPartitionsToTxnRequest, error: ErrorCode
) -> AddPartitionsToTxnResponse:
    """Refuse each partition with the same error."""
    return AddPartitionsToTxnResponse(results=await slices.run(_results(request.topics, {}, error)))


def _refused(
    broker: Broker, topics: Collection[AddPartitionsToTxnTopic], denied: Collection[str]
) -> Generator[None, None, dict[TopicPartition, ErrorCode]]:
    """Return the partitions that cannot be added, in slices."""
    refused: dict[TopicPartition, ErrorCode] = {}
    for number, few in enumerate(slices.cut_members(topics, lambda topic: topic.partitions)):
        if number:
            yield
        for topic, index in few:
            if topic.name in denied:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif broker.metadata.partition(topic.name, index) is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                continue
            refused[TopicPartition(topic.name, index)] = error
    return refused


def _keys(
    topics: Collection[AddPartitionsToTxnTopic],
) -> Generator[None, None, set[TopicPartition]]:
    keys: set[TopicPartition] = set()
    for number, few in enumerate(slices.cut_members(topics, lambda topic: topic.partitions)):
        if number:
            yield
        keys.update(TopicPartition(topic.name, index) for topic, index in few)
    return keys


def _results(
    topics: Collection[AddPartitionsToTxnTopic],
    refused: Mapping[TopicPartition, ErrorCode],
    error: ErrorCode,
) -> Generator[None, None, list[AddPartitionsToTxnTopicResult]]:
    """Return the answers of all partitions, in slices: `error` where none is refused by itself."""
    results: dict[str, AddPartitionsToTxnTopicResult] = {}
    for number, few in enumerate(slices.cut_members(topics, lambda topic: topic.partitions)):
        if number:
            yield
        for topic, index in few:
            if topic.name not in results:
                results[topic.name] = AddPartitionsToTxnTopicResult(name=topic.name, results=[])
            results[topic.name].results.append(
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    error_code=refused.get(TopicPartition(topic.name, index), error),
                )
            )
    return [*results.values()]


async def add_offsets_to_txn(
    broker: Broker, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    """Add the partition with the offsets of a group to the producer's transaction.

    The topic of offsets is made if nobody used a group yet: producers look for the group's
    coordinator only afterwards.
    """
    await broker.groups.partition_count.learn()
    count = broker.groups.partition_count()
    if count is None:
        if OFFSETS_TOPIC not in broker.metadata.topics:
            await automatic_topics.create(broker, OFFSETS_TOPIC, context)
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    else:
        partition = TopicPartition(OFFSETS_TOPIC, partition_of(request.group_id, count))
        error = await broker.transactions.add_partitions(
            request.transactional_id, _producer(request), {partition}
        )
    error = error_for(error, ApiKey.ADD_OFFSETS_TO_TXN, context.version)
    return AddOffsetsToTxnResponse(error_code=error)


async def end_txn(
    broker: Broker, request: EndTxnRequest, context: RequestContext
) -> EndTxnResponse:
    """Commit or abort the producer's transaction: the answer comes once that is decided, before all
    markers are written.

    A producer that has hung up may have asked again, and must not end its next transaction so.
    """
    if not context.is_connected():
        return EndTxnResponse(error_code=ErrorCode.NETWORK_EXCEPTION)
    error = await broker.transactions.end(
        request.transactional_id, _producer(request), commits=request.committed
    )
    return EndTxnResponse(error_code=error_for(error, ApiKey.END_TXN, context.version))


def _producer(
    request: AddPartitionsToTxnRequest
    | AddPartitionsToTxnTransaction
    | AddOffsetsToTxnRequest
    | EndTxnRequest,
) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
