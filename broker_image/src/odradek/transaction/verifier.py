"""Asks coordinators whether partitions are in ongoing transactions, for their leaders (KIP-890).

A transactional id's coordinator is the leader of its partition of `__transaction_state`. A broker
that does not know the question, as Kafka before 3.6, is not asked: its transactions are not
verified.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias
from weakref import WeakSet

from odradek.coordination.partitioning import PartitionCount, partition_of
from odradek.net.client import PeerClient
from odradek.net.rare_log import RareLog
from odradek.protocol.api import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from odradek.transaction.channels import BrokerChannels, Spawn
from odradek.transaction.markers import Leaders
from odradek.transaction.transaction import ProducerIdAndEpoch, by_topic
from odradek.values import TRANSACTIONS_TOPIC, TopicPartition

if TYPE_CHECKING:
    from odradek.log.partition.verification import Verification

_VERSION: Final = 4
_ANSWER_MS: Final = 5_000
"""A coordinator answers from memory. If it does not, the producer tries again."""

NOT_KNOWN: Final = ErrorCode.NOT_ENOUGH_REPLICAS
"""As in Kafka: all producers send the batch again, and do not look for another leader first."""

# What a coordinator says of a partition, as a producer is told it. Anything else may change.
_FINAL: Final[Mapping[int, ErrorCode]] = {
    ErrorCode.NONE: ErrorCode.NONE,
    ErrorCode.INVALID_TXN_STATE: ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_REQUEST: ErrorCode.INVALID_REQUEST,
    # Which the producer can do nothing about.
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ErrorCode.INVALID_TXN_STATE,
}

Answers: TypeAlias = Mapping[TopicPartition, int]

logger = logging.getLogger(__name__)
_rare_log = RareLog(logger)


class Coordinator(Protocol):
    """What the verifier needs of this broker's `TransactionCoordinator`."""

    partition_count: PartitionCount

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: AbstractSet[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return NONE for each partition that is in the producer's ongoing transaction."""


class _Asked(NamedTuple):
    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: Collection[TopicPartition]


class TransactionVerifier:
    """Built by the server, and used from the event loop. `connect` and `spawn` are those of
    `BrokerChannels`.
    """

    def __init__(
        self,
        broker_id: int,
        coordinator: Coordinator,
        leaders: Leaders,
        connect: Callable[[int], PeerClient | None],
        spawn: Spawn,
    ) -> None:
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._leaders = leaders
        # The connections whose broker is known to understand the question.
        self._able: WeakSet[PeerClient] = WeakSet()
        self._channels: BrokerChannels[_Asked, Answers] = BrokerChannels(
            connect, self._exchange, spawn
        )

    async def verify(
        self, transactional_id: str, waiting: Mapping[TopicPartition, Verification]
    ) -> dict[TopicPartition, ErrorCode]:
        """Return for each partition NONE, NOT_ENOUGH_REPLICAS if the coordinator cannot say it now,
        or why the partition is not in the ongoing transaction of the producer.
        """
        by_producer: dict[ProducerIdAndEpoch, list[TopicPartition]] = {}
        for key, one in waiting.items():
            producer = ProducerIdAndEpoch(one.producer_id, one.epoch)
            by_producer.setdefault(producer, []).append(key)
        questions = [_Asked(transactional_id, *one) for one in by_producer.items()]
        if len(questions) == 1:
            found = [await self._answers(questions[0])]
        else:
            found = await asyncio.gather(*map(self._answers, questions))
        answered = {key: code for answers in found for key, code in answers.items()}
        return {key: _FINAL.get(answered.get(key, NOT_KNOWN), NOT_KNOWN) for key in waiting}

    async def _answers(self, question: _Asked) -> Answers:
        """Return what the coordinator says, nothing if it cannot be asked."""
        transactional_id, producer, partitions = question
        await self._coordinator.partition_count.learn()
        count = self._coordinator.partition_count()
        if count is None:
            return {}
        partition = partition_of(transactional_id, count)
        leader = self._leaders.leader_of(TopicPartition(TRANSACTIONS_TOPIC, partition))
        if leader is None or leader < 0:
            return {}
        if leader == self._broker_id:
            return self._coordinator.verify_partitions(transactional_id, producer, {*partitions})
        return await self._channels.ask(leader, question) or {}

    async def _exchange(
        self, client: PeerClient, questions: Sequence[_Asked]
    ) -> Sequence[Answers | None]:
        """Ask one coordinator. Raises OSError or TimeoutError."""
        if client not in self._able:
            if not await _understands(client):
                # Asked again next time: another broker may have its address by then.
                return [dict.fromkeys(one.partitions, ErrorCode.NONE) for one in questions]
            self._able.add(client)
        # A request names an id once; another producer of the same id tries again.
        producers: dict[str, ProducerIdAndEpoch] = {}
        for one in questions:
            producers.setdefault(one.transactional_id, one.producer)
        asked = [one for one in questions if producers[one.transactional_id] == one.producer]
        response = await client.call(_request(producers, asked), _VERSION, _ANSWER_MS)
        if response.error_code:
            _rare_log.log(
                logging.WARNING,
                "%s:%d refuses to verify transactions: error %d",
                client.host,
                client.port,
                response.error_code,
            )
        found = _codes(response)
        return [
            (
                dict.fromkeys(one.partitions, response.error_code)
                if response.error_code
                else found.get(one.transactional_id)
            )
            if producers[one.transactional_id] == one.producer
            else None
            for one in questions
        ]

    async def close(self) -> None:
        """Ask nothing more."""
        await self._channels.close()


async def _understands(client: PeerClient) -> bool:
    """Return whether a broker verifies partitions. Raises OSError or TimeoutError."""
    answer = await client.call(ApiVersionsRequest(), 0, _ANSWER_MS)
    return any(
        one.api_key == ApiKey.ADD_PARTITIONS_TO_TXN and one.max_version >= _VERSION
        for one in answer.api_keys
    )


def _request(
    producers: Mapping[str, ProducerIdAndEpoch], questions: Iterable[_Asked]
) -> AddPartitionsToTxnRequest:
    partitions: dict[str, set[TopicPartition]] = {}
    for one in questions:
        partitions.setdefault(one.transactional_id, set()).update(one.partitions)
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=producers[transactional_id].producer_id,
                producer_epoch=producers[transactional_id].epoch,
                verify_only=True,
                topics=[
                    AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                    for topic, indexes in by_topic(keys).items()
                ],
            )
            for transactional_id, keys in partitions.items()
        ]
    )


def _codes(response: AddPartitionsToTxnResponse) -> dict[str, Answers]:
    return {
        one.transactional_id: {
            TopicPartition(topic.name, part.partition_index): part.error_code
            for topic in one.topic_results
            for part in topic.results
        }
        for one in response.results_by_transaction
    }
