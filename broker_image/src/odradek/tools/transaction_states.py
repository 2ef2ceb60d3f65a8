"""What brokers know of transactions, as `odradek transactions` asks for it (KIP-664).

A transaction hangs in a partition if its producer has it open there, and the coordinator does not
know of it: nobody will end it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import Final, NamedTuple

from odradek import slices
from odradek.protocol.errors import ErrorCode, name_of
from odradek.protocol.messages.transaction_states import (
    DescribedTransaction,
    DescribeProducersRequest,
    DescribeProducersTopicRequest,
    DescribeTransactionsRequest,
    ListedTransaction,
    ListTransactionsRequest,
    ProducerState,
)
from odradek.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from odradek.tools.client import ToolClient
from odradek.tools.errors import FAILURES, NothingDoneError, refused, shown
from odradek.tools.retries import Retries, no_leader
from odradek.values import TRANSACTIONS_TOPIC, TopicPartition

# As many partitions as Kafka's tool asks for at once.
_AT_ONCE: Final = 500
_DESCRIBE_VERSION: Final = 0
_MARKERS_VERSION: Final = 0
_WITHOUT_DURATION: Final = 0
_WITH_DURATION: Final = 1
# An id that nobody uses: only who may look at every id is told that it is unknown.
_NOBODYS_ID: Final = "?"


class OpenTransaction(NamedTuple):
    """A transaction that a producer has open in a partition."""

    partition: TopicPartition
    producer: ProducerState


class Hanging(NamedTuple):
    """The transactions that hang, and those that do or not: who asks may not look at every id, and
    none that they may look at is their producer's.
    """

    found: list[OpenTransaction]
    unknown: list[OpenTransaction]


async def listed(
    brokers: ToolClient,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    longer_than_ms: int = -1,
) -> list[tuple[int, ListedTransaction]]:
    """Return the transactional ids of all coordinators that pass the filters, with the broker."""
    request = ListTransactionsRequest(
        state_filters=[*states],
        producer_id_filters=[*producer_ids],
        duration_filter=longer_than_ms,
    )
    version = _WITHOUT_DURATION if longer_than_ms < 0 else _WITH_DURATION

    async def of(node: int) -> list[tuple[int, ListedTransaction]]:
        answer = await brokers.call(node, request, version)
        _check(answer.error_code, f"broker {node}")
        return [(node, one) for one in answer.transaction_states]

    async def of_all() -> list[list[tuple[int, ListedTransaction]]]:
        return await asyncio.gather(*(of(node) for node in sorted(brokers.nodes)))

    found = await Retries(brokers).run(of_all, NothingDoneError)
    return sorted(
        (one for some in found for one in some), key=lambda one: (one[1].transactional_id, one[0])
    )


async def described(
    brokers: ToolClient, transactional_id: str
) -> tuple[int, DescribedTransaction | None]:
    """Return the coordinator of an id, and its state, None of one that is unknown."""

    async def attempt() -> tuple[int, DescribedTransaction | None]:
        node = await brokers.transaction_coordinator(transactional_id)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer = await brokers.call(node, request, _DESCRIBE_VERSION)
        [state] = answer.transaction_states
        if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return node, None
        _check(state.error_code, f"transactional id {shown(transactional_id)}")
        return node, state

    return await Retries(brokers).run(attempt, NothingDoneError)


async def producers(
    brokers: ToolClient, node: int, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[ProducerState]]:
    """Return the producers that a broker's replicas of partitions know. Raises ToolError."""
    found: dict[TopicPartition, list[ProducerState]] = {}
    for some in slices.cut(sorted(partitions), _AT_ONCE):
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersTopicRequest(
                    name=topic, partition_indexes=[one.partition for one in group]
                )
                for topic, group in groupby(some, key=lambda one: one.topic)
            ]
        )
        answer = await brokers.call(node, request, _DESCRIBE_VERSION)
        for topic in answer.topics:
            for one in topic.partitions:
                key = TopicPartition(topic.name, one.partition_index)
                _check(one.error_code, f"{key} on broker {node}", one.error_message)
                found[key] = one.active_producers
    return found


async def open_in(brokers: ToolClient, partition: TopicPartition) -> list[OpenTransaction]:
    """Return the open transactions of a partition, as its leader knows them. Raises ToolError."""

    async def attempt() -> list[OpenTransaction]:
        found = await producers(brokers, _leader(brokers, partition), [partition])
        return _open(found)

    return await Retries(brokers).run(attempt, NothingDoneError)


def _leader(brokers: ToolClient, partition: TopicPartition) -> int:
    leader = brokers.leaders.get(partition, -1)
    if leader not in brokers.nodes:
        raise NothingDoneError(f"{partition} has no leader")
    return leader


def _open(found: Mapping[TopicPartition, Iterable[ProducerState]]) -> list[OpenTransaction]:
    return [
        OpenTransaction(partition, one)
        for partition, known in found.items()
        for one in known
        if one.current_txn_start_offset >= 0
    ]


async def hanging(
    brokers: ToolClient,
    by_broker: Mapping[int, Iterable[TopicPartition]],
    last_batch_before_ms: int,
) -> Hanging:
    """Return the transactions that hang in these partitions of these brokers, and whose producers
    wrote their last batch before a time. Raises ToolError.
    """
    late = [
        one
        for one in await _open_on(brokers, by_broker)
        if one.producer.last_timestamp < last_batch_before_ms
    ]
    ids = {one.producer.producer_id for one in late}
    if not ids:
        return Hanging([], [])
    # What a coordinator that is away knows would seem to hang.
    away = [
        key
        for key, leader in brokers.leaders.items()
        if key.topic == TRANSACTIONS_TOPIC and leader not in brokers.nodes
    ]
    if away:
        raise no_leader(away)
    known = await listed(brokers, producer_ids=ids)
    awaited: dict[int, set[TopicPartition]] = {}
    for _, one in known:
        _, state = await described(brokers, one.transactional_id)
        if state is not None:
            awaited[state.producer_id] = {
                TopicPartition(topic.topic, index)
                for topic in state.topics
                for index in topic.partitions
            }
    unawaited = [
        one for one in late if one.partition not in awaited.get(one.producer.producer_id, ())
    ]
    # Its coordinator may have ended it before it was asked.
    places = {one.partition for one in unawaited}
    still_open = {
        _place(one)
        for one in await _open_on(
            brokers, {node: places.intersection(keys) for node, keys in by_broker.items()}
        )
    }
    found = sorted((one for one in unawaited if _place(one) in still_open), key=_place)
    unknown = [one for one in found if one.producer.producer_id not in awaited]
    if not unknown or await _sees_all_ids(brokers):
        return Hanging(found, [])
    return Hanging([one for one in found if one.producer.producer_id in awaited], unknown)


async def _sees_all_ids(brokers: ToolClient) -> bool:
    """Return whether this user may look at transactional ids whatever they are; lists leave out
    those that it may not see without a word.
    """
    request = DescribeTransactionsRequest(transactional_ids=[_NOBODYS_ID])
    answer = await brokers.call_any(request, _DESCRIBE_VERSION)
    [state] = answer.transaction_states
    return bool(state.error_code != ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


async def _open_on(
    brokers: ToolClient, by_broker: Mapping[int, Iterable[TopicPartition]]
) -> list[OpenTransaction]:
    """Return the open transactions in partitions of brokers. Raises ToolError."""
    found = await asyncio.gather(
        *(producers(brokers, node, partitions) for node, partitions in by_broker.items())
    )
    return [one for of_broker in found for one in _open(of_broker)]


def _place(one: OpenTransaction) -> tuple[TopicPartition, int]:
    """Return where a transaction begins."""
    return one.partition, one.producer.current_txn_start_offset


async def abort(brokers: ToolClient, transaction: OpenTransaction) -> None:
    """Have the leader write the marker that aborts a transaction in one partition.

    Raises ToolError. The coordinator epoch is the last that the partition knows; where it knows
    none, 0 is not above that of any coordinator.
    """
    partition, producer = transaction
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        coordinator_epoch=max(producer.coordinator_epoch, 0),
        topics=[
            WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])
        ],
    )

    async def attempt() -> None:
        request = WriteTxnMarkersRequest(markers=[marker])
        answer = await brokers.call(_leader(brokers, partition), request, _MARKERS_VERSION)
        [code] = [
            part.error_code
            for one in answer.markers
            for topic in one.topics
            for part in topic.partitions
        ]
        if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS):
            raise NothingDoneError(f"{partition}: {name_of(code)}")
        if code != ErrorCode.NONE:
            raise refused(str(partition), code, None)

    await Retries(brokers).run(attempt, NothingDoneError)


def _check(code: int, subject: str, said: str | None = None) -> None:
    """Raise NothingDoneError for what may pass, ToolError for other errors."""
    if code in FAILURES:
        raise NothingDoneError(f"{subject}: {name_of(code)}")
    if code != ErrorCode.NONE:
        raise refused(subject, code, said)
