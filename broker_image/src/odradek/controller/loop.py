"""The controller's life on a broker: one queue, handled one item at a time.

Watches, answers of brokers, timers and callers all put items into one `Inbox`. While this broker is
controller, its `Term` takes them one at a time.

While this broker is not controller, it takes part in the race of `office`. Broken fences, lost
sessions and unexpected errors all end in the same way: everything that only a controller does is
stopped, and the race begins anew.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from odradek.clock import wall_ms
from odradek.config import BrokerConfig
from odradek.controller import claim, office
from odradek.controller.claim import Office
from odradek.controller.election import Cause
from odradek.controller.inbox import (
    Call,
    Inbox,
    Item,
    Reading,
    TopicConfigWritten,
    TopicWritten,
)
from odradek.controller.office import Duty, Order, Signal
from odradek.controller.outbox import Outbox, Peer, Sender
from odradek.controller.placement import Placement
from odradek.controller.step import imbalance
from odradek.controller.store import FencedError, Store
from odradek.controller.term import Term
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import BrokerId, ControllerEpoch, TopicPartition
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
    """Takes part in the race for controller and, while it is won, directs the cluster.

    `connect(host, port)` makes a PeerClient. `start` is called once the broker is registered;
    `stop` gives up the office. For metrics: `active`, `epoch`, `elections`, `last_election_ms`,
    `offline_partitions`, `preferred_imbalance`, `queue_length`, `requests_queued`.
    """

    def __init__(
        self,
        config: BrokerConfig,
        session: Session,
        connect: Callable[[str, int], Peer],
        registration: Registrar | None = None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.broker_id = BrokerId(config.broker_id)
        self.elections = 0
        self.last_election_ms = 0.0
        self._config = config
        self._session = session
        self._connect = connect
        self._now_ms = now_ms
        self._duty = Duty.OUT
        self._term: Term | None = None
        self._inbox = Inbox()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        if registration is not None:
            registration.on_registered(self._note_registered)

    # --- what others see ---

    @property
    def active(self) -> bool:
        """Say whether this broker holds the office."""
        return self._term is not None and self._duty is Duty.ACTIVE

    @property
    def epoch(self) -> ControllerEpoch:
        """Return the epoch of the term, -1 outside of one."""
        return ControllerEpoch(-1) if self._term is None else self._term.office.epoch

    def knows(self, topic: str) -> bool:
        """Say whether the term has read that this topic exists."""
        return self._term is not None and topic in self._term.context.topics

    @property
    def offline_partitions(self) -> int:
        """Return how many partitions have no living leader."""
        return 0 if self._term is None else len(self._term.context.offline_partitions())

    @property
    def preferred_imbalance(self) -> int:
        """Return how many partitions are not led by their preferred replica."""
        return 0 if self._term is None else imbalance(self._term.context)

    @property
    def queue_length(self) -> int:
        """Return how many items wait to be handled."""
        return len(self._inbox)

    @property
    def requests_queued(self) -> int:
        """Return how many requests wait to be sent to brokers."""
        return 0 if self._term is None else self._term.outbox.queued()

    async def start(self) -> None:
        """Enter the race; the broker must be registered."""
        self._unsubscribe = self._session.on_state(self._note_session)
        self._task = asyncio.create_task(self._run(), name="controller")
        self._inbox.put(Signal.REGISTERED)

    async def stop(self) -> None:
        """Leave the race, giving up the office."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        was_active = self._term is not None
        await self._resign()
        self._fail_calls()
        if was_active and self._session.state is SessionState.CONNECTED:
            with contextlib.suppress(SessionExpiredError):
                await claim.yield_office(self._session)

    async def controlled_shutdown(self, broker_id: int) -> list[TopicPartition]:
        """Move leaderships off a broker; returns the replicated partitions that it still leads.

        Raises KafkaError NOT_CONTROLLER or BROKER_NOT_AVAILABLE (row C6, ControlledShutdown).
        """
        return await self._call(lambda term: term.shut_down(BrokerId(broker_id)))

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition], cause: Cause
    ) -> Mapping[TopicPartition, BrokerId | KafkaError]:
        """Hold elections of cause PREFERRED or UNCLEAN; the leader of each partition, or a refusal.

        Raises KafkaError NOT_CONTROLLER (row C11, ElectLeaders).
        """
        return await self._call(lambda term: term.elect(partitions, cause))

    async def reassign(
        self, wanted: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> Mapping[TopicPartition, KafkaError | None]:
        """Begin to move partitions to these replicas, or back where None; why not, where refused.

        Raises KafkaError NOT_CONTROLLER (row C10, AlterPartitionReassignments).
        """
        return await self._call(lambda term: term.reassign(wanted))

    async def list_moving(
        self, partitions: Iterable[TopicPartition] | None
    ) -> Mapping[TopicPartition, Placement]:
        """Return the moves under way, of these partitions or of all.

        Raises KafkaError NOT_CONTROLLER (row C10, ListPartitionReassignments).
        """
        return await self._call(lambda term: term.list_moving(partitions))

    async def _call(self, work: Callable[[Term], Awaitable[T]]) -> T:
        """Have a request of a caller done in its turn."""
        if not self.active:
            raise _not_controller()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._inbox.put(Call(work, future))
        return await future

    def topic_config_changed(self, topic: str) -> None:
        """Have the topic's unclean.leader.election.enable read again."""
        if self.active:
            self._inbox.put(TopicConfigWritten(topic))

    # --- the queue ---

    def _note_session(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._inbox.put(Signal.EXPIRED)
        elif state is SessionState.CONNECTED:
            # The watches went with the old connection.
            self._inbox.put(Signal.CHANGED)
            if self._term is not None:
                for reading in Reading:
                    self._inbox.put(reading)
                for topic in self._term.context.topics:
                    self._inbox.put(TopicWritten(topic))
                self._inbox.read_states(self._term.context.moving())

    async def _note_registered(self) -> None:
        self._inbox.put(Signal.REGISTERED)

    async def _run(self) -> None:
        while True:
            item = await self._inbox.get()
            try:
                await self._handle(item)
            except FencedError:
                logger.warning("controller epoch %d is over", self.epoch)
                self._inbox.put(Signal.DEPOSED)
            except SessionExpiredError:
                await self._signal(Signal.EXPIRED)
            except ConnectionLoss:
                # Everything is read again when the connection is back.
                logger.info("connection lost while handling %s", item)
            except Exception:
                logger.exception("controller failed at %s", item)
                await self._abandon()

    async def _abandon(self) -> None:
        """Give up the office after an unexpected error; the next term reads everything anew."""
        await asyncio.sleep(ERROR_PAUSE_SECONDS)
        if self._duty is Duty.CLAIMING:
            self._duty = Duty.IDLE
        self._inbox.put(Signal.DEPOSED)

    async def _handle(self, item: Item) -> None:
        if isinstance(item, Signal):
            await self._signal(item)
        elif self._term is None:
            if isinstance(item, Call) and not item.future.done():
                item.future.set_exception(_not_controller())
        elif isinstance(item, Call):
            await _serve(self._term, item)
        elif isinstance(item, Reading):
            await self._term.read(item)
        elif isinstance(item, TopicWritten):
            await self._term.read_topic(item.topic)
        elif isinstance(item, TopicConfigWritten):
            await self._term.read_topic_config(item.topic)
        else:
            await self._term.advance(item)

    # --- the race ---

    async def _signal(self, signal: Signal) -> None:
        signals = deque([signal])
        while signals:
            now = signals.popleft()
            move = office.move(self._duty, now)
            if move.duty is not self._duty:
                logger.info(
                    "controller: %s, %s -> %s", now.value, self._duty.value, move.duty.value
                )
            self._duty = move.duty
            for order in move.orders:
                signals.extend(await self._obey(order))

    async def _obey(self, order: Order) -> list[Signal]:
        match order:
            case Order.LOOK:
                return [await self._look()]
            case Order.CLAIM:
                return [await self._claim()]
            case Order.ENTER:
                await self._enter()
            case Order.RESIGN:
                await self._resign()
            case Order.YIELD:
                await claim.yield_office(self._session)
        return []

    async def _look(self) -> Signal:
        found = await claim.find_controller(self._session, self._inbox.watch(Signal.CHANGED))
        if found is None:
            return Signal.SEEN_VACANT
        return Signal.SEEN_SELF if found[1] else Signal.SEEN_OTHER

    async def _claim(self) -> Signal:
        try:
            won = await claim.claim(self._session, self.broker_id, self._now_ms())
        except ConnectionLoss:
            return Signal.LOST  # a claim that went through is seen at the next look
        if won is None:
            return Signal.LOST
        self._begin(won)
        return Signal.WON

    def _begin(self, won: Office) -> None:
        sender = Sender(
            controller_id=self.broker_id,
            epoch=won.epoch,
            listener=self._config.inter_broker_listener_name,
            timeout_ms=self._config.controller_socket_timeout_ms,
        )
        outbox = Outbox(
            sender, self._connect, self._inbox.put, lambda: self._inbox.put(Signal.DEPOSED)
        )
        self._term = Term(self._config, won, Store(self._session, won), outbox, self._inbox)

    async def _enter(self) -> None:
        """Take up office: read everything, tell everybody, and watch (row C3)."""
        term = self._term
        assert term is not None
        started = time.monotonic()
        logger.info("broker %d is controller, epoch %d", self.broker_id, term.office.epoch)
        await term.begin()
        self.elections += 1
        self.last_election_ms = (time.monotonic() - started) * 1000

    async def _resign(self) -> None:
        """Stop everything that only a controller does (row C4)."""
        term, self._term = self._term, None
        if term is None:
            return
        logger.info(
            "broker %d is no longer controller of epoch %d", self.broker_id, term.office.epoch
        )
        await term.end()
        self._fail_calls()

    def _fail_calls(self) -> None:
        for call in self._inbox.calls():
            if not call.future.done():
                call.future.set_exception(_not_controller())


async def _serve(term: Term, call: Call) -> None:
    """Do what a caller asks for; whoever ends the term, the caller is answered."""
    try:
        result = await call.work(term)
    except BaseException as error:
        refused = isinstance(error, KafkaError)
        if not call.future.done():
            call.future.set_exception(error if refused else _not_controller())
        if not refused:
            raise
        return
    if not call.future.done():
        call.future.set_result(result)


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
