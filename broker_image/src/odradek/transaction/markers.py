"""Sends the markers of ended transactions to the leaders of their partitions (KIP-98).

A marker is sent again until its partition has it or is deleted: what coordinated the transaction
may be forgotten only then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from kazoo.exceptions import KazooException

from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode, name_of
from odradek.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from odradek.replica.metadata import MetadataCache
from odradek.transaction.channels import BrokerChannels, Spawn
from odradek.transaction.transaction import by_topic
from odradek.values import NO_LEADER, TopicPartition
from odradek.zk import admin, znodes
from odradek.zk.payload import ZnodeError
from odradek.zk.session import NoNodeError, Session

# The later version came with Kafka 2.8, and says nothing more.
_VERSION: Final = 0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0
# The leader waits that long for its followers.
_ANSWER_MS: Final = 5_000
_ATTEMPTS_PER_LINE: Final = 30

_DONE: Final = (
    ErrorCode.NONE,
    # As in Kafka: there is nothing to end in a partition of an old message format.
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    # A newer producer wrote there. If this is a former coordinator, it cannot complete anything;
    # if somebody made that producer up, the other partitions must not wait.
    ErrorCode.INVALID_PRODUCER_EPOCH,
)

logger = logging.getLogger(__name__)


class MarkerFencedError(Exception):
    """A leader knows another, newer coordinator of the transaction."""


@dataclass(frozen=True, slots=True)
class EndedTransaction:
    """What a marker says of its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commits: bool


class Leaders(Protocol):
    """What the sender needs to know of the cluster."""

    def leader_of(self, partition: TopicPartition) -> int | None:
        """Return a partition's leader, NO_LEADER without one, None if the partition is unknown."""

    async def partitions_of(self, topic: str) -> Collection[int]:
        """Return the partitions that a topic has, none of one that is deleted or about to be.

        Raises KazooException or ZnodeError.
        """


class ClusterLeaders:
    """The leaders that the controller tells, and the partitions that ZooKeeper has."""

    def __init__(self, metadata: MetadataCache, session: Session) -> None:
        self._metadata = metadata
        self._session = session

    def leader_of(self, partition: TopicPartition) -> int | None:
        """Return a partition's leader as the metadata cache has it."""
        known = self._metadata.partition(*partition)
        return None if known is None else known.leader

    async def partitions_of(self, topic: str) -> Collection[int]:
        """Return the partitions in the topic's znode, none if its deletion is requested: that ends
        only when all brokers with replicas are there.
        """
        if not admin.is_legal_topic_name(topic):
            return ()  # nor can there be one: somebody else wrote it into the coordinator's topic
        path = znodes.topic_path(topic)
        if await self._session.exists(znodes.delete_topic_path(topic)) is not None:
            return ()
        try:
            data, _ = await self._session.get(path)
        except NoNodeError:
            return ()
        return znodes.decode_topic(path, data).partitions


Answers: TypeAlias = Mapping[TopicPartition, int]


class _Marker(NamedTuple):
    """One marker for partitions of one leader."""

    ended: EndedTransaction
    partitions: Collection[TopicPartition]


class _Sent(NamedTuple):
    leader: int
    partitions: set[TopicPartition]


class MarkerSender:
    """Sends markers from the event loop. `connect` returns a client of a broker, None while its
    address is unknown.
    """

    def __init__(
        self,
        leaders: Leaders,
        connect: Callable[[int], PeerClient | None],
        request_timeout_ms: int,
        spawn: Spawn,
    ) -> None:
        self._leaders = leaders
        self._timeout_ms = request_timeout_ms + _ANSWER_MS
        self._channels: BrokerChannels[_Marker, Answers] = BrokerChannels(
            connect, self._exchange, spawn
        )

    async def send(
        self,
        ended: EndedTransaction,
        missing: set[TopicPartition],
        is_coordinator: Callable[[], bool],
    ) -> None:
        """Return once each partition has the marker or is deleted, or somebody else is the
        coordinator. Partitions that need none any more are taken out of `missing`.

        Raises MarkerFencedError.
        """
        loop = asyncio.get_running_loop()
        sent: dict[asyncio.Future[Answers | None], _Sent] = {}
        pause_s, attempts = _FIRST_PAUSE_S, 0
        try:
            while is_coordinator():
                began_s = loop.time()
                found = await self._send_again(ended, missing, sent)
                found |= await _answered(sent, pause_s)
                missing -= _marked(ended, found)
                if not missing:
                    return
                attempts += 1
                if attempts % _ATTEMPTS_PER_LINE == 0:
                    _log_missing(ended, missing, found)
                await asyncio.sleep(max(pause_s - (loop.time() - began_s), 0))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            for answers in sent:
                answers.cancel()

    async def _send_again(
        self,
        ended: EndedTransaction,
        missing: Collection[TopicPartition],
        sent: dict[asyncio.Future[Answers | None], _Sent],
    ) -> dict[TopicPartition, int]:
        """Send a marker to each partition that waits for no answer of its leader; return what
        stands for the answers of those that have none.

        A broker that hangs delays the markers of no other, nor of partitions that others lead by
        now. What it answers about those counts no more: another marker of them is under way, and
        must not come after the end of the transaction.
        """
        for answers, (leader, keys) in [*sent.items()]:
            keys -= {key for key in keys if self._leaders.leader_of(key) != leader}
            if not keys:
                answers.cancel()
                del sent[answers]
        waiting = {key for _, keys in sent.values() for key in keys}
        by_leader: dict[int | None, list[TopicPartition]] = {}
        for key in missing:
            if key not in waiting:
                by_leader.setdefault(self._leaders.leader_of(key), []).append(key)
        found: dict[TopicPartition, int] = {}
        for topic, unknown in by_topic(by_leader.pop(None, ())).items():
            found |= await self._of_unknown(topic, unknown)
        found |= dict.fromkeys(by_leader.pop(NO_LEADER, ()), ErrorCode.LEADER_NOT_AVAILABLE)
        for broker_id, led in by_leader.items():
            assert broker_id is not None
            sent[self._channels.ask(broker_id, _Marker(ended, led))] = _Sent(broker_id, set(led))
        return found

    async def _of_unknown(
        self, topic: str, partitions: Collection[int]
    ) -> dict[TopicPartition, int]:
        """Return NONE for deleted partitions; the topic may have been created again with fewer. A
        broker that starts does not know all partitions yet.
        """
        there: Collection[int] | None = None
        with contextlib.suppress(KazooException, ZnodeError):
            there = await self._leaders.partitions_of(topic)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return {
            TopicPartition(topic, index): (
                unknown if there is None or index in there else ErrorCode.NONE
            )
            for index in partitions
        }

    async def _exchange(
        self, client: PeerClient, markers: Sequence[_Marker]
    ) -> Sequence[Answers | None]:
        """Have markers written by one leader. Raises OSError or TimeoutError."""
        request = WriteTxnMarkersRequest(markers=[_message(one) for one in markers])
        # A producer id has one transaction at a time.
        found = _codes(await client.call(request, _VERSION, self._timeout_ms))
        return [
            {
                key: found.get(one.ended.producer_id, {}).get(key, ErrorCode.UNKNOWN_SERVER_ERROR)
                for key in one.partitions
            }
            for one in markers
        ]

    async def close(self) -> None:
        """Send nothing more."""
        await self._channels.close()


async def _answered(
    sent: dict[asyncio.Future[Answers | None], _Sent], wait_s: float
) -> dict[TopicPartition, int]:
    """Wait for all answers, but not for long; take those that came out of `sent`, and return them
    by partition.
    """
    found: dict[TopicPartition, int] = {}
    if sent:
        done, _ = await asyncio.wait(sent, timeout=wait_s)
        for answers in done:
            keys = sent.pop(answers).partitions
            codes = answers.result() or {}
            found |= {key: codes.get(key, ErrorCode.NETWORK_EXCEPTION) for key in keys}
    return found


def _marked(ended: EndedTransaction, found: Answers) -> set[TopicPartition]:
    """Return the partitions that need no marker any more. Raises MarkerFencedError."""
    for key, code in found.items():
        if code == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            raise MarkerFencedError(f"{key}: {name_of(code)}")
        if code == ErrorCode.INVALID_PRODUCER_EPOCH:
            logger.warning(
                "transactional id %s: %s has no marker, but a newer epoch of %d",
                ended.transactional_id,
                key,
                ended.producer_id,
            )
    return {key for key, code in found.items() if code in _DONE}


def _log_missing(
    ended: EndedTransaction, missing: Collection[TopicPartition], found: Answers
) -> None:
    key = min(missing)
    logger.warning(
        "transactional id %s: %d partitions have no marker yet; retrying; %s: %s",
        ended.transactional_id,
        len(missing),
        key,
        name_of(found[key]) if key in found else "its leader does not answer",
    )


def _message(marker: _Marker) -> WritableTxnMarker:
    ended = marker.ended
    return WritableTxnMarker(
        producer_id=ended.producer_id,
        producer_epoch=ended.producer_epoch,
        transaction_result=ended.commits,
        coordinator_epoch=ended.coordinator_epoch,
        topics=[
            WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
            for topic, indexes in by_topic(marker.partitions).items()
        ],
    )


def _codes(answer: WriteTxnMarkersResponse) -> dict[int, dict[TopicPartition, int]]:
    return {
        marker.producer_id: {
            TopicPartition(topic.name, part.partition_index): part.error_code
            for topic in marker.topics
            for part in topic.partitions
        }
        for marker in answer.markers
    }
