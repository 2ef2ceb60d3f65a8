"""The controller candidate on a broker: one queue, whose items are handled one at a time.

Watches, answers of brokers, timers and calls all put items into one `EventQueue`. `candidacy` is
the state machine of the election. While this broker is the controller, its `ActiveController`
handles the other items. Fenced writes, expired sessions and unexpected errors all end in the same
way: the active controller is stopped, and the broker is a candidate again.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from odradek import slices
from odradek.clock import wall_ms
from odradek.config import BrokerConfig
from odradek.controller import candidacy, controller_znode, deletion
from odradek.controller.active_controller import ActiveController
from odradek.controller.candidacy import CandidateAction, CandidateEvent, CandidateState
from odradek.controller.controller_znode import ControllerLease
from odradek.controller.election import Cause
from odradek.controller.event_queue import (
    ControllerCall,
    EventQueue,
    Item,
    TopicChange,
    TopicConfigChange,
    ZnodeChange,
)
from odradek.controller.events import RebalanceDue, UncleanChanged
from odradek.controller.outbox import BrokerConnection, Outbox
from odradek.controller.replica_assignment import ReplicaAssignment
from odradek.controller.requests import Sender
from odradek.controller.step import imbalance
from odradek.controller.store import ControllerMovedError, ControllerStore
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quarantine import Quarantines, Work
from odradek.replica.purgatory import Purgatory
from odradek.values import NO_BROKER_EPOCH, BrokerId, ControllerEpoch, TopicPartition
from odradek.zk.session import (
    ConnectionLoss,
    Session,
    SessionExpiredError,
    SessionState,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

ERROR_PAUSE_SECONDS = 1.0


class Registrar(Protocol):
    """What the controller needs of `zk.registration.Registration`."""

    def on_registered(self, listener: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call the listener after each registration that follows a lost session."""


class Controller:
    """A candidate in the election of the controller; once elected, it manages the cluster.

    `connect(host, port)` returns a PeerClient. `start` is called once the broker is registered;
    `stop` resigns. For metrics: `active`, `epoch`, `elections`, `last_election_ms`,
    `offline_partitions`, `preferred_imbalance`, `queue_length`, `requests_queued`.
    """

    def __init__(
        self,
        config: BrokerConfig,
        session: Session,
        connect: Callable[[str, int], BrokerConnection],
        registration: Registrar | None = None,
        now_ms: Callable[[], int] = wall_ms,
        quarantines: Quarantines | None = None,
    ) -> None:
        self.broker_id = BrokerId(config.broker_id)
        self.elections = 0
        self.last_election_ms = 0.0
        self._config = config
        self._session = session
        self._connect = connect
        self._now_ms = now_ms
        self._quarantines = quarantines or Quarantines()
        self._state = CandidateState.UNREGISTERED
        self._controller: ActiveController | None = None
        self._queue = EventQueue()
        self._deletions: Purgatory[str] = Purgatory()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        if registration is not None:
            registration.on_registered(self._on_registered)

    # --- questions ---

    @property
    def active(self) -> bool:
        """Return whether this broker is the controller."""
        return self._controller is not None and self._state is CandidateState.ACTIVE

    @property
    def epoch(self) -> ControllerEpoch:
        """Return the controller epoch, -1 unless this broker is the controller."""
        controller = self._controller
        return ControllerEpoch(-1) if controller is None else controller.lease.epoch

    def knows(self, topic: str) -> bool:
        """Return whether this broker is the controller and has read the topic's znode."""
        return self._controller is not None and topic in self._controller.context.topics

    async def wait_until_deleted(self, topic: str, timeout_ms: float) -> bool:
        """Wait until a topic whose deletion was requested is gone from ZooKeeper too, so that its
        name is free; return False on timeout.

        Nobody waits for a deletion that is halted, as the broker of a replica may never return, nor
        for the next controller.
        """
        return self._is_settled(topic) or await self._deletions.wait(
            (topic,), timeout_ms, lambda: self._is_settled(topic)
        )

    def _is_settled(self, topic: str) -> bool:
        return self._controller is None or deletion.is_settled(self._controller.context, topic)

    @property
    def offline_partitions(self) -> int:
        """Return the number of partitions without a live leader."""
        controller = self._controller
        return 0 if controller is None else len(controller.context.offline_partitions())

    @property
    def preferred_imbalance(self) -> int:
        """Return the number of partitions that their preferred replica does not lead."""
        return 0 if self._controller is None else imbalance(self._controller.context)

    @property
    def queue_length(self) -> int:
        """Return the number of queued items."""
        return len(self._queue)

    @property
    def requests_queued(self) -> int:
        """Return the number of queued requests to brokers."""
        return 0 if self._controller is None else self._controller.outbox.queued()

    async def start(self) -> None:
        """Become a candidate; the broker must be registered."""
        self._unsubscribe = self._session.on_state(self._on_session_state)
        self._task = asyncio.create_task(self._run(), name="controller")
        self._queue.put(CandidateEvent.REGISTERED)

    async def stop(self) -> None:
        """Resign, and take no further part in elections."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        was_active = self._controller is not None
        await self._stop_controller()
        self._fail_calls()
        if was_active and self._session.state is SessionState.CONNECTED:
            with contextlib.suppress(SessionExpiredError):
                await controller_znode.resign(self._session)

    async def controlled_shutdown(
        self, broker_id: int, broker_epoch: int = NO_BROKER_EPOCH
    ) -> list[TopicPartition]:
        """Move leaderships off a broker; return the replicated partitions that it still leads.

        Raise KafkaError NOT_CONTROLLER, BROKER_NOT_AVAILABLE, or STALE_BROKER_EPOCH if the broker
        has restarted since it asked under `broker_epoch` (row C6, ControlledShutdown).
        """
        return await self._call(
            lambda controller: controller.shut_down(BrokerId(broker_id), broker_epoch)
        )

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition], cause: Cause
    ) -> dict[TopicPartition, BrokerId | KafkaError]:
        """Elect leaders for cause PREFERRED or UNCLEAN; return each leader, or why there is none.

        Raise KafkaError NOT_CONTROLLER (row C11, ElectLeaders).
        """
        return await self._call(lambda controller: controller.elect(partitions, cause))

    async def reassign(
        self, wanted: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Start to reassign partitions to these replicas, None cancels; return each error or None.

        Raise KafkaError NOT_CONTROLLER (row C10, AlterPartitionReassignments).
        """
        return await self._call(lambda controller: controller.reassign(wanted))

    async def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None
    ) -> Mapping[TopicPartition, ReplicaAssignment]:
        """Return the ongoing reassignments of these partitions, or all with None.

        Raise KafkaError NOT_CONTROLLER (row C10, ListPartitionReassignments).
        """
        return await self._call(lambda controller: controller.list_reassignments(partitions))

    async def _call(self, work: Callable[[ActiveController], Awaitable[T]]) -> T:
        """Queue a call and return its result."""
        if not self.active:
            raise _not_controller()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(ControllerCall(work, future))
        return await future

    def topic_created(self, topic: str) -> None:
        """Take a topic that this broker just created, without a look at the list of all."""
        if self.active:
            self._queue.put_created(topic)

    def topic_config_changed(self, topic: str) -> None:
        """Read the topic's unclean.leader.election.enable again."""
        if self.active:
            self._queue.put(TopicConfigChange(topic))

    def default_unclean_changed(self, enabled: bool) -> None:
        """Take a new unclean.leader.election.enable of this broker, which topics override."""
        if enabled == self._config.unclean_leader_election_enable:
            return
        self._config = replace(self._config, unclean_leader_election_enable=enabled)
        if self.active:
            self._queue.put(UncleanChanged(None, enabled))

    # --- the queue ---

    def _on_session_state(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._queue.put(CandidateEvent.SESSION_EXPIRED)
        elif state is SessionState.CONNECTED:
            # The watches were lost with the old connection.
            self._queue.put(CandidateEvent.ZNODE_CHANGED)
            if self._controller is not None:
                self._controller.reconnected()

    async def _on_registered(self) -> None:
        self._queue.put(CandidateEvent.REGISTERED)

    async def _run(self) -> None:
        while True:
            item = await self._queue.get()
            try:
                try:
                    await self._handle(item)
                except SessionExpiredError:
                    await self._advance(CandidateEvent.SESSION_EXPIRED)
            except ControllerMovedError:
                logger.warning("controller epoch %d was fenced by a newer controller", self.epoch)
                self._queue.put(CandidateEvent.FENCED)
            except ConnectionLoss:
                # Everything is read again after the reconnect.
                logger.info("failed to handle %s: connection to ZooKeeper lost; retrying", item)
            except Exception as error:
                # What it knows of the cluster cannot be trusted any more.
                self._quarantines.note(
                    Work.CONTROLLER,
                    f"broker {self.broker_id}",
                    error,
                    f"resigning as controller after {item}",
                )
                await self._recover()

    async def _recover(self) -> None:
        """Resign after an unexpected error; the next controller reads everything again."""
        await asyncio.sleep(ERROR_PAUSE_SECONDS)
        if self._state is CandidateState.ELECTING:
            self._state = CandidateState.IDLE
        self._queue.put(CandidateEvent.FENCED)

    async def _handle(self, item: Item) -> None:
        if isinstance(item, CandidateEvent):
            await self._advance(item)
        elif self._controller is None:
            if isinstance(item, ControllerCall) and not item.future.done():
                item.future.set_exception(_not_controller())
        elif isinstance(item, ControllerCall):
            await _answer(self._controller, item)
        elif isinstance(item, ZnodeChange):
            await self._controller.read(item)
        elif isinstance(item, TopicChange):
            await self._controller.read_topic(item.topic)
        elif isinstance(item, TopicConfigChange):
            await self._controller.read_topic_config(item.topic)
        elif isinstance(item, RebalanceDue):
            await self._controller.rebalance()
        else:
            await self._controller.advance(item)

    # --- the election ---

    async def _advance(self, event: CandidateEvent) -> None:
        events = deque([event])
        while events:
            following = events.popleft()
            transition = candidacy.transition(self._state, following)
            if transition.state is not self._state:
                logger.info(
                    "controller candidate: %s on %s -> %s",
                    self._state.value,
                    following.value,
                    transition.state.value,
                )
            self._state = transition.state
            for action in transition.actions:
                events.extend(await self._perform(action))

    async def _perform(self, action: CandidateAction) -> list[CandidateEvent]:
        match action:
            case CandidateAction.READ_ZNODE:
                return [await self._read_znode()]
            case CandidateAction.ELECT:
                return [await self._elect()]
            case CandidateAction.START:
                await self._start_controller()
            case CandidateAction.STOP:
                await self._stop_controller()
            case CandidateAction.RESIGN:
                await controller_znode.resign(self._session)
        return []

    async def _read_znode(self) -> CandidateEvent:
        watch = self._queue.watch(CandidateEvent.ZNODE_CHANGED)
        found = await controller_znode.find_controller(self._session, watch)
        if found is None:
            return CandidateEvent.NO_CONTROLLER
        return CandidateEvent.SELF_CONTROLLER if found[1] else CandidateEvent.OTHER_CONTROLLER

    async def _elect(self) -> CandidateEvent:
        try:
            lease = await controller_znode.elect(self._session, self.broker_id, self._now_ms())
        except ConnectionLoss:
            return CandidateEvent.LOST  # if it was won after all, the next read shows it
        if lease is None:
            return CandidateEvent.LOST
        self._create_controller(lease)
        return CandidateEvent.WON

    def _create_controller(self, lease: ControllerLease) -> None:
        sender = Sender(
            controller_id=self.broker_id,
            epoch=lease.epoch,
            listener=self._config.inter_broker_listener_name,
            timeout_ms=self._config.controller_socket_timeout_ms,
        )
        outbox = Outbox(
            sender,
            self._connect,
            self._queue.put,
            lambda: self._queue.put(CandidateEvent.FENCED),
            self._quarantines,
        )
        store = ControllerStore(self._session, lease)
        self._controller = ActiveController(
            self._config, lease, store, outbox, self._queue, self._deletions
        )

    async def _start_controller(self) -> None:
        """Read all state, send it to all brokers, and watch (row C3)."""
        controller = self._controller
        assert controller is not None
        started = time.monotonic()
        logger.info("broker %d is controller, epoch %d", self.broker_id, controller.lease.epoch)
        await controller.start()
        self.elections += 1
        self.last_election_ms = (time.monotonic() - started) * 1000

    async def _stop_controller(self) -> None:
        """Stop everything that only the controller does (row C4)."""
        controller, self._controller = self._controller, None
        if controller is None:
            return
        logger.info(
            "broker %d is no longer controller, epoch %d", self.broker_id, controller.lease.epoch
        )
        self._deletions.wake_all()
        await controller.stop()
        self._fail_calls()

    def _fail_calls(self) -> None:
        for call in self._queue.calls():
            if not call.future.done():
                call.future.set_exception(_not_controller())


async def _answer(controller: ActiveController, call: ControllerCall) -> None:
    """Do a call's work and set its future, also if the controller fails meanwhile."""
    try:
        result = await call.work(controller)
    except BaseException as error:
        refused = isinstance(error, KafkaError)
        if not call.future.done():
            call.future.set_exception(error if refused else _not_controller())
        if not refused:
            raise
        return
    if not call.future.done():
        call.future.set_result(result)
    elif isinstance(result, dict):
        slices.discard(result)  # the client is gone


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
