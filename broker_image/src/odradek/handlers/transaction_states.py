"""DescribeProducers, DescribeTransactions, ListTransactions: to find hanging ones (KIP-664).

What a request names twice is answered once: a short request must not make an endless answer.
"""

from __future__ import annotations

from odradek import slices
from odradek.clock import wall_ms
from odradek.handlers import authorization
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import transaction_states as messages
from odradek.transaction.states import TransactionState
from odradek.transaction.transaction import Transaction, by_topic
from odradek.values import TopicPartition
from odradek.zk import admin

# The producers of a partition can be thousands.
DESCRIBED_AT_ONCE = 20
IDS_AT_ONCE = 20

_STATES = {str(state): state for state in TransactionState}


async def describe_producers(
    broker: Broker, request: messages.DescribeProducersRequest, context: RequestContext
) -> messages.DescribeProducersResponse:
    """Return the producers that each partition knows: its leader's or a follower's, as in Kafka."""
    wanted: dict[str, dict[int, None]] = {}
    for few in slices.cut(request.topics):
        for topic in few:
            indexes = await slices.unique(topic.partition_indexes)
            wanted.setdefault(topic.name, {}).update(indexes)
        if len(few) == slices.STEPS_PER_SLICE:
            await slices.pause()
    found = await authorization.answers(
        wanted,
        lambda name: messages.DescribeProducersTopicResponse(name=name, partitions=[]),
    )
    for told in found:
        for part in slices.cut(wanted[told.name], DESCRIBED_AT_ONCE):
            for index in part:
                told.partitions.append(await _described(broker, TopicPartition(told.name, index)))
            await slices.pause()
    slices.discard(wanted)
    return messages.DescribeProducersResponse(topics=found)


async def _described(
    broker: Broker, key: TopicPartition
) -> messages.DescribeProducersPartitionResponse:
    answer = messages.DescribeProducersPartitionResponse(partition_index=key.partition)
    partition = broker.replicas.partitions.get(key)
    if not admin.is_legal_topic_name(key.topic):
        answer.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
        answer.error_message = "no topic can have this name"
    elif key.topic not in broker.metadata.topics:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer.error_message = "there is no such topic"
    elif partition is None:
        _, answer.error_code = broker.replicas.leader_or_error(key)
    elif partition.offline:
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        for few in slices.cut(partition.log.producers_now(), slices.KEYS_AT_ONCE // 5):
            answer.active_producers += [
                messages.ProducerState(
                    producer_id=one.producer_id,
                    producer_epoch=one.epoch,
                    last_sequence=one.last_sequence,
                    last_timestamp=one.timestamp,
                    coordinator_epoch=one.coordinator_epoch,
                    current_txn_start_offset=one.transaction_start,
                )
                for one in few
            ]
            if len(few) == slices.KEYS_AT_ONCE // 5:
                await slices.pause()
    return answer


async def describe_transactions(
    broker: Broker, request: messages.DescribeTransactionsRequest, context: RequestContext
) -> messages.DescribeTransactionsResponse:
    """Return the state of each transactional id, or why it is not known here."""
    found = []
    for few in slices.cut(await slices.unique(request.transactional_ids), IDS_AT_ONCE):
        for transactional_id in few:
            try:
                current = broker.transactions.describe(transactional_id)
            except KafkaError as refusal:
                found.append(
                    messages.DescribedTransaction(
                        error_code=refusal.code, transactional_id=transactional_id
                    )
                )
            else:
                found.append(_shown(current))
        await slices.pause()  # hashing long ids must not delay others
    return messages.DescribeTransactionsResponse(transaction_states=found)


def _shown(current: Transaction) -> messages.DescribedTransaction:
    return messages.DescribedTransaction(
        transactional_id=current.transactional_id,
        transaction_state=str(current.state),
        transaction_timeout_ms=current.timeout_ms,
        transaction_start_time_ms=current.start_ms,
        producer_id=current.producer_id,
        producer_epoch=current.epoch,
        topics=[
            messages.DescribedTransactionTopic(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(current.partitions).items()
        ],
    )


async def list_transactions(
    broker: Broker, request: messages.ListTransactionsRequest, context: RequestContext
) -> messages.ListTransactionsResponse:
    """Return the transactional ids that this broker coordinates and that pass all filters."""
    try:
        everything = await slices.run(broker.transactions.all_current())
    except KafkaError as refusal:
        return messages.ListTransactionsResponse(error_code=refusal.code)
    names = await slices.unique(request.state_filters)
    producer_ids = await slices.unique(request.producer_id_filters)
    states = frozenset(_STATES[name] for name in names.keys() & _STATES.keys())
    now_ms = wall_ms()

    def passes(one: Transaction) -> bool:
        return (
            (not names or one.state in states)
            and (not producer_ids or one.producer_id in producer_ids)
            and (request.duration_filter < 0 or now_ms - one.start_ms > request.duration_filter)
        )

    answer = messages.ListTransactionsResponse()
    for few in slices.cut(names, slices.KEYS_AT_ONCE):
        answer.unknown_state_filters += [name for name in few if name not in _STATES]
        if len(few) == slices.KEYS_AT_ONCE:
            await slices.pause()
    for some in slices.cut(everything, slices.KEYS_AT_ONCE // 5):
        answer.transaction_states += [
            messages.ListedTransaction(
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                transaction_state=str(one.state),
            )
            for one in some
            if passes(one)
        ]
        if len(some) == slices.KEYS_AT_ONCE // 5:
            await slices.pause()
    slices.discard(names, producer_ids, everything)
    return answer
