"""Carries the controller's messages to the brokers (row C8).

Every broker has one queue and one task, which sends a request, waits for the answer and only then
takes the next: a broker sees what the controller decided in the order in which it was decided. A
request that fails is repeated until it is acknowledged or the broker is gone. A queue that grows
beyond its bound is emptied, and the core is asked to tell that broker everything again, which is
shorter than a long history.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from odradek.controller import requests
from odradek.controller.events import (
    Event,
    LeaderAndIsr,
    LiveBroker,
    Message,
    ReplicasFailed,
    ReplicasStopped,
    ResendRequired,
    StopReplicas,
    UpdateMetadata,
)
from odradek.protocol.errors import ErrorCode
from odradek.values import BrokerId, TopicPartition

logger = logging.getLogger(__name__)

LONGEST_QUEUE = 2000  # requests to one broker
RETRY_SECONDS = 0.1
LOG_EVERY_ATTEMPTS = 50  # a broker that is down is reported every few seconds, not ten times each


class Peer(Protocol):
    """What `net.client.PeerClient` offers."""

    async def call(self, request: Any, version: int, timeout_ms: int) -> Any:
        """Send a request and return its response."""

    async def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends: it is named in every request. `listener` is the one between brokers."""

    controller_id: int
    epoch: int
    listener: str
    timeout_ms: int


@dataclass(slots=True)
class _Channel:
    broker: LiveBroker
    queue: deque[Message]
    wake: asyncio.Event
    task: asyncio.Task[None] | None = None


class Outbox:
    """The channels of one term of office.

    `connect(host, port)` makes a peer. `tell(event)` is given what answers mean to the core, and
    `deposed()` is called when a broker knows a newer controller.
    """

    def __init__(
        self,
        sender: Sender,
        connect: Callable[[str, int], Peer],
        tell: Callable[[Event], None],
        deposed: Callable[[], None],
    ) -> None:
        self._sender = sender
        self._connect = connect
        self._tell = tell
        self._deposed = deposed
        self._channels: dict[BrokerId, _Channel] = {}

    def keep(self, brokers: Mapping[BrokerId, LiveBroker]) -> None:
        """Have a channel for each of these brokers and for no others."""
        for broker_id in list(self._channels):
            known = self._channels[broker_id].broker
            if broker_id not in brokers or brokers[broker_id].epoch != known.epoch:
                self._cancel(self._channels.pop(broker_id))
        for broker_id, broker in brokers.items():
            if broker_id not in self._channels:
                channel = _Channel(broker, deque(), asyncio.Event())
                channel.task = asyncio.create_task(self._run(channel), name=f"outbox-{broker_id}")
                self._channels[broker_id] = channel

    def send(self, message: Message) -> None:
        """Queue a message for whom it names."""
        for broker_id in message.to if isinstance(message, UpdateMetadata) else (message.to,):
            channel = self._channels.get(broker_id)
            if channel is None:
                continue
            channel.queue.append(message)
            channel.wake.set()
            if len(channel.queue) > LONGEST_QUEUE:
                logger.warning("broker %d is %d requests behind", broker_id, len(channel.queue))
                channel.queue.clear()
                self._tell(ResendRequired(broker_id))

    def queued(self) -> int:
        """Return how many requests wait for all brokers together."""
        return sum(len(channel.queue) for channel in self._channels.values())

    async def close(self) -> None:
        """Drop what is queued and close the connections."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            self._cancel(channel)
        tasks = [channel.task for channel in channels if channel.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cancel(self, channel: _Channel) -> None:
        if channel.task is not None:
            channel.task.cancel()

    async def _run(self, channel: _Channel) -> None:
        registration = channel.broker.registration
        where = requests.endpoint(channel.broker, self._sender.listener)
        if where is None:
            logger.error(
                "broker %d has no listener %s", registration.broker_id, self._sender.listener
            )
            return
        peer = self._connect(where.host, where.port)
        try:
            while True:
                while not channel.queue:
                    channel.wake.clear()
                    await channel.wake.wait()
                message = channel.queue.popleft()
                await self._deliver(peer, channel.broker, message)
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("sending to broker %d failed", registration.broker_id)
            raise
        finally:
            await peer.close()

    async def _deliver(self, peer: Peer, broker: LiveBroker, message: Message) -> None:
        """Send until acknowledged."""
        broker_id = broker.registration.broker_id
        request, version = self._request(message, broker.epoch)
        attempt = 0
        while True:
            try:
                response = await peer.call(request, version, self._sender.timeout_ms)
            except (ConnectionError, TimeoutError) as error:
                if attempt % LOG_EVERY_ATTEMPTS == 0:
                    logger.warning("broker %d does not answer: %s", broker_id, error)
                attempt += 1
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._note_answer(broker_id, message, response)
            return

    def _request(self, message: Message, broker_epoch: int) -> tuple[Any, int]:
        controller, epoch = self._sender.controller_id, self._sender.epoch
        match message:
            case UpdateMetadata():
                request = requests.update_metadata(message, controller, epoch, broker_epoch)
                return request, requests.UPDATE_METADATA_VERSION
            case LeaderAndIsr():
                roles = requests.leader_and_isr(
                    message, controller, epoch, broker_epoch, self._sender.listener
                )
                return roles, requests.LEADER_AND_ISR_VERSION
            case StopReplicas():
                request_to_stop = requests.stop_replica(message, controller, epoch, broker_epoch)
                return request_to_stop, requests.STOP_REPLICA_VERSION

    def _note_answer(self, broker_id: BrokerId, message: Message, response: Any) -> None:
        if response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH:
            self._deposed()
            return
        if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
            # It has registered anew, or will: then it is told everything again.
            logger.info("broker %d is not what it was when it was addressed", broker_id)
            return
        if response.error_code != ErrorCode.NONE:
            logger.error(
                "broker %d refused %s: error %d",
                broker_id,
                type(message).__name__,
                response.error_code,
            )
        if isinstance(message, LeaderAndIsr):
            broken = frozenset(
                TopicPartition(one.topic_name, one.partition_index)
                for one in response.partition_errors
                if one.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            )
            if broken:
                self._tell(ReplicasFailed(broker_id, broken))
        elif isinstance(message, StopReplicas) and message.delete:
            failed = frozenset(message.partitions)
            if response.error_code == ErrorCode.NONE:
                failed &= _not_deleted(response)
            deleted = frozenset(message.partitions) - failed
            self._tell(ReplicasStopped(broker_id, deleted, failed))


def _not_deleted(response: Any) -> frozenset[TopicPartition]:
    """Return the partitions that could not be deleted; one that is unknown need not be."""
    harmless = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return frozenset(
        TopicPartition(one.topic_name, one.partition_index)
        for one in response.partition_errors
        if one.error_code not in harmless
    )
