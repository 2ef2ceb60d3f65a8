"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn: what producers tell their coordinator (KIP-98)."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping

from odradek import slices
from odradek.coordination.partitioning import partition_of
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.api import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
)
from odradek.transaction.decisions import error_for
from odradek.transaction.transaction import ProducerIdAndEpoch
from odradek.values import INTERNAL_TOPICS, OFFSETS_TOPIC, TopicPartition


async def add_partitions_to_txn(
    broker: Broker, request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse:
    """Add partitions to the producer's transaction: all, or none."""
    return await add_allowed_partitions(broker, request, context, frozenset())


async def add_allowed_partitions(
    broker: Broker,
    request: AddPartitionsToTxnRequest,
    context: RequestContext,
    denied: Collection[str],
) -> AddPartitionsToTxnResponse:
    """As `add_partitions_to_txn`; nothing is added if one of the topics is denied, internal, or
    unknown.
    """
    refused = await slices.run(_refused(broker, request.topics, denied))
    if refused:
        error = ErrorCode.OPERATION_NOT_ATTEMPTED
    else:
        added = await slices.run(_keys(request.topics))
        error = await broker.transactions.add_partitions(
            request.transactional_id, _producer(request), added
        )
        slices.discard(added)
    error = error_for(error, ApiKey.ADD_PARTITIONS_TO_TXN, context.version)
    results = await slices.run(_results(request.topics, refused, error))
    return AddPartitionsToTxnResponse(results=results)


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
            if topic.name in denied or topic.name in INTERNAL_TOPICS:
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
    """Add the partition with the offsets of a group to the producer's transaction."""
    await broker.groups.partition_count.learn()
    count = broker.groups.partition_count()
    if count is None:
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
    """
    error = await broker.transactions.end(
        request.transactional_id, _producer(request), commits=request.committed
    )
    return EndTxnResponse(error_code=error_for(error, ApiKey.END_TXN, context.version))


def _producer(
    request: AddPartitionsToTxnRequest | AddOffsetsToTxnRequest | EndTxnRequest,
) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
