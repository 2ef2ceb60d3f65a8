"""The controller's ordered queues of requests, one per broker (row C8).

Each broker has one queue and one task. The task sends a request, waits for the answer, and only
then takes the next, so a broker sees the controller's decisions in their order. A failed request
is retried until it is acknowledged or the broker is gone. A queue that exceeds its limit is
cleared, and the core sends that broker its full state again, which is shorter than a long history.
So it does, after a pause, for a request that cannot be made, that the broker rejects as a whole, or
whose answer nobody foresaw. The requests behind that one are sent meanwhile.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from odradek import slices
from odradek.controller import requests
from odradek.controller.events import (
    EpochsRefused,
    Event,
    LeaderAndIsr,
    LiveBroker,
    Message,
    ReplicasAnswered,
    ReplicasFailed,
    ReplicasStopped,
    ResendRequired,
    StopReplicas,
    UpdateMetadata,
)
from odradek.controller.requests import Sender
from odradek.protocol.errors import ErrorCode, name_of
from odradek.quarantine import Quarantines, Work
from odradek.values import BrokerId, TopicPartition

logger = logging.getLogger(__name__)

LONGEST_QUEUE = 2000  # requests to one broker
RETRY_SECONDS = 0.1
LOG_EVERY_ATTEMPTS = 50  # so that a broker that is down is logged once per 5 s

# A replica that took its role before answers a request for the same leader epoch with the second.
_HAS_A_ROLE = (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH)


class RejectedError(Exception):
    """A broker did nothing of what a request says."""


class BrokerConnection(Protocol):
    """What the outbox needs of `net.client.PeerClient`."""

    async def call(self, request: Any, version: int, timeout_ms: int) -> Any:
        """Send a request and return its response."""

    async def close(self) -> None:
        """Close the connection."""


@dataclass(slots=True)
class _BrokerChannel:
    broker: LiveBroker
    queue: deque[Message]
    wake: asyncio.Event
    task: asyncio.Task[None] | None = None
    # After an unexpected exception: sends the full state again, then ends the quarantine.
    resend: asyncio.TimerHandle | None = None
    release: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        """Return the name of the broker in logs."""
        return f"broker {self.broker.registration.broker_id}"


class Outbox:
    """The channels of one controller epoch.

    `connect(host, port)` returns a connection. `on_event(event)` receives the events that answers
    cause, and `on_fenced()` is called when a broker knows a newer controller.
    """

    def __init__(
        self,
        sender: Sender,
        connect: Callable[[str, int], BrokerConnection],
        on_event: Callable[[Event], None],
        on_fenced: Callable[[], None],
        quarantines: Quarantines,
    ) -> None:
        self._sender = sender
        self._connect = connect
        self._on_event = on_event
        self._on_fenced = on_fenced
        self._quarantines = quarantines
        self._channels: dict[BrokerId, _BrokerChannel] = {}

    def update_brokers(self, brokers: Mapping[BrokerId, LiveBroker]) -> None:
        """Open channels to new brokers, and close those of brokers that are gone or restarted."""
        for broker_id in list(self._channels):
            known = self._channels[broker_id].broker
            if broker_id not in brokers or brokers[broker_id].epoch != known.epoch:
                self._cancel(self._channels.pop(broker_id))
        for broker_id, broker in brokers.items():
            if broker_id not in self._channels:
                channel = _BrokerChannel(broker, deque(), asyncio.Event())
                channel.task = asyncio.create_task(self._run(channel), name=f"outbox-{broker_id}")
                self._channels[broker_id] = channel

    def send(self, message: Message) -> None:
        """Queue a message for the brokers that it names."""
        for broker_id in message.to if isinstance(message, UpdateMetadata) else (message.to,):
            channel = self._channels.get(broker_id)
            if channel is None:
                continue
            channel.queue.append(message)
            channel.wake.set()
            if len(channel.queue) > LONGEST_QUEUE:
                logger.warning(
                    "broker %d has %d queued requests; clearing them and sending its full state",
                    broker_id,
                    len(channel.queue),
                )
                channel.queue.clear()
                self._on_event(ResendRequired(broker_id))

    def queued(self) -> int:
        """Return the number of queued requests to all brokers."""
        return sum(len(channel.queue) for channel in self._channels.values())

    async def close(self) -> None:
        """Drop queued requests and close the connections."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            self._cancel(channel)
        tasks = [channel.task for channel in channels if channel.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cancel(self, channel: _BrokerChannel) -> None:
        for work in (channel.task, channel.resend, channel.release):
            if work is not None:
                work.cancel()
        self._quarantines.release(Work.CHANNEL, channel.name)

    async def _run(self, channel: _BrokerChannel) -> None:
        where = requests.endpoint(channel.broker, self._sender.listener)
        assert where is not None, f"{channel.name} has no listener {self._sender.listener}"
        connection: BrokerConnection | None = None
        try:
            while True:
                while not channel.queue:
                    channel.wake.clear()
                    await channel.wake.wait()
                message = channel.queue.popleft()
                try:
                    connection = connection or self._connect(where.host, where.port)
                    await self._deliver(connection, channel.broker, message)
                except Exception as error:
                    self._quarantine(channel, error)
                    await _close(connection)
        finally:
            await _close(connection)

    def _quarantine(self, channel: _BrokerChannel, error: Exception) -> None:
        """Have the full state sent again: the broker lacks what the failed message said."""
        loop = asyncio.get_running_loop()
        pause_s = self._quarantines.put(
            Work.CHANNEL, channel.name, error, "sending its full state again"
        )

        def resend() -> None:
            channel.resend = None
            channel.release = loop.call_later(
                pause_s, self._quarantines.release, Work.CHANNEL, channel.name
            )
            self._on_event(ResendRequired(channel.broker.registration.broker_id))

        if channel.release is not None:
            channel.release.cancel()
        if channel.resend is None:
            channel.resend = loop.call_later(pause_s, resend)

    async def _deliver(
        self, connection: BrokerConnection, broker: LiveBroker, message: Message
    ) -> None:
        """Send a request until it is acknowledged."""
        broker_id = broker.registration.broker_id
        request, version = await slices.run(
            requests.build_in_slices(message, self._sender, broker.epoch)
        )
        attempt = 0
        while True:
            try:
                response = await connection.call(request, version, self._sender.timeout_ms)
            except (ConnectionError, TimeoutError) as error:
                if attempt % LOG_EVERY_ATTEMPTS == 0:
                    logger.warning(
                        "failed to send %s to broker %d: %s; retrying",
                        type(message).__name__,
                        broker_id,
                        error,
                    )
                attempt += 1
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._handle_response(broker_id, message, response)
            return

    def _handle_response(self, broker_id: BrokerId, message: Message, response: Any) -> None:
        if response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH:
            self._on_fenced()
            return
        if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
            # It has registered again, or will. Then it receives its full state.
            logger.info("broker %d rejected the request: stale broker epoch", broker_id)
            return
        if response.error_code != ErrorCode.NONE:
            rejected = RejectedError(f"{type(message).__name__}: {name_of(response.error_code)}")
            if not (isinstance(message, StopReplicas) and message.delete):
                raise rejected
            logger.error("broker %d rejected %s", broker_id, rejected)
        if isinstance(message, LeaderAndIsr):
            working = _answered_with(response, _HAS_A_ROLE)
            if working:
                self._on_event(ReplicasAnswered(broker_id, working))
            broken = _answered_with(response, (ErrorCode.KAFKA_STORAGE_ERROR,))
            if broken:
                logger.warning(
                    "broker %d failed to take the roles of %d replicas: storage error",
                    broker_id,
                    len(broken),
                )
                self._on_event(ReplicasFailed(broker_id, broken))
            fenced = _answered_with(response, (ErrorCode.FENCED_LEADER_EPOCH,))
            if fenced:
                logger.warning(
                    "broker %d has records of higher leader epochs than these of %d partitions; "
                    "raising the epochs",
                    broker_id,
                    len(fenced),
                )
                epochs = (
                    (role.partition, role.leadership.state.leader_epoch)
                    for role in message.roles
                    if role.partition in fenced
                )
                self._on_event(EpochsRefused(broker_id, frozenset(epochs)))
        elif isinstance(message, StopReplicas) and message.delete:
            failed = frozenset(message.partitions)
            if response.error_code == ErrorCode.NONE:
                failed &= _not_deleted(response)
            deleted = frozenset(message.partitions) - failed
            self._on_event(ReplicasStopped(broker_id, deleted, failed))


async def _close(connection: BrokerConnection | None) -> None:
    if connection is not None:
        with contextlib.suppress(Exception):
            await connection.close()


def _answered_with(response: Any, codes: Collection[ErrorCode]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(one.topic_name, one.partition_index)
        for one in response.partition_errors
        if one.error_code in codes
    )


def _not_deleted(response: Any) -> frozenset[TopicPartition]:
    """Return the partitions that the broker failed to delete; unknown ones count as deleted."""
    harmless = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return frozenset(
        TopicPartition(one.topic_name, one.partition_index)
        for one in response.partition_errors
        if one.error_code not in harmless
    )
