"""The controller's life on a broker: one queue, handled one item at a time.

Watches, answers of brokers, timers and callers all put items into one `Inbox`. A watch only says
what to read again. An item becomes events for the pure core (`step`), whose actions are carried out
at once; what a write brought comes back as an event before the next item is taken.

While this broker is not controller, it takes part in the race of `office`. Broken fences, lost
sessions and unexpected errors all end in the same way: everything that only a controller does is
stopped, and the race begins anew.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from odradek.config import BrokerConfig
from odradek.controller import claim, office, requested
from odradek.controller.claim import Office
from odradek.controller.context import Context, Settings
from odradek.controller.election import Cause
from odradek.controller.events import (
    ContextLoaded,
    DeletionsRequested,
    DropDeletions,
    ElectionRequested,
    Event,
    FinishPreferredElection,
    IsrChanged,
    LogDirFailed,
    PartitionsChanged,
    PreferredRequested,
    RebalanceDue,
    RemoveTopic,
    ShutdownRequested,
    TopicRemoved,
    TopicsChanged,
    UncleanChanged,
    WriteStates,
)
from odradek.controller.inbox import (
    Call,
    ElectionCall,
    Inbox,
    Item,
    Reading,
    ShutdownCall,
    TopicConfigWritten,
    TopicWritten,
)
from odradek.controller.office import Duty, Order, Signal
from odradek.controller.outbox import Outbox, Peer, Sender
from odradek.controller.step import imbalance, split, step
from odradek.controller.store import FencedError, Store
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.zk import znodes
from odradek.zk.session import (
    ConnectionLoss,
    Session,
    SessionExpiredError,
    SessionState,
)
from odradek.zk.znodes import BrokerId, ControllerEpoch, TopicPartition

logger = logging.getLogger(__name__)

FIRST_REBALANCE_SECONDS = 5.0
ERROR_PAUSE_SECONDS = 1.0


class Registrar(Protocol):
    """What the controller needs of `zk.registration.Registration`."""

    def on_registered(self, listener: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call the listener after each registration that follows a lost session."""


@dataclass(slots=True)
class _Term:
    """What belongs to one term of office."""

    office: Office
    store: Store
    outbox: Outbox
    context: Context
    rebalance: asyncio.TimerHandle | None = None


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
        wall_clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.broker_id = BrokerId(config.broker_id)
        self.elections = 0
        self.last_election_ms = 0.0
        self._config = config
        self._session = session
        self._connect = connect
        self._wall_clock_ms = wall_clock_ms
        self._duty = Duty.OUT
        self._term: _Term | None = None
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
        if not self.active:
            raise _not_controller()
        future: asyncio.Future[list[TopicPartition]] = asyncio.get_running_loop().create_future()
        self._inbox.put(ShutdownCall(BrokerId(broker_id), future))
        return await future

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition], cause: Cause
    ) -> Mapping[TopicPartition, BrokerId | KafkaError]:
        """Hold elections of cause PREFERRED or UNCLEAN; the leader of each partition, or a refusal.

        Raises KafkaError NOT_CONTROLLER (row C11, ElectLeaders).
        """
        if not self.active:
            raise _not_controller()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Mapping[TopicPartition, BrokerId | KafkaError]] = (
            loop.create_future()
        )
        self._inbox.put(ElectionCall(tuple(partitions), cause, future))
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
        elif isinstance(item, Reading):
            await self._read(self._term, item)
        elif isinstance(item, TopicWritten):
            await self._read_topic(self._term, item.topic)
        elif isinstance(item, TopicConfigWritten):
            found = await self._term.store.read_unclean([item.topic])
            await self._advance(self._term, UncleanChanged(item.topic, found.get(item.topic)))
        elif isinstance(item, ShutdownCall):
            await self._shut_down(self._term, item)
        elif isinstance(item, ElectionCall):
            await self._elect(self._term, item)
        else:
            await self._advance(self._term, item)

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
            won = await claim.claim(self._session, self.broker_id, self._wall_clock_ms())
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
        settings = Settings(
            unclean_leader_election=self._config.unclean_leader_election_enable,
            delete_topics=self._config.delete_topic_enable,
            imbalance_percentage=self._config.leader_imbalance_per_broker_percentage,
        )
        self._term = _Term(
            won,
            Store(self._session, won),
            Outbox(sender, self._connect, self._inbox.put, lambda: self._inbox.put(Signal.DEPOSED)),
            Context(self.broker_id, won.epoch, settings),
        )

    async def _enter(self) -> None:
        """Take up office: read everything, tell everybody, and watch (row C3)."""
        term = self._term
        assert term is not None
        started = time.monotonic()
        logger.info("broker %d is controller, epoch %d", self.broker_id, term.office.epoch)
        # What the notices tell is read below anyway.
        await term.store.drop_notices(znodes.LOG_DIR_EVENTS_PATH)
        await term.store.drop_notices(znodes.ISR_CHANGES_PATH)
        await self._advance(term, await self._load(term.store))
        for reading in (Reading.ISR_CHANGES, Reading.LOG_DIR_EVENTS, Reading.PREFERRED):
            self._inbox.put(reading)
        if self._config.auto_leader_rebalance_enable:
            self._schedule_rebalance(term, FIRST_REBALANCE_SECONDS)
        self.elections += 1
        self.last_election_ms = (time.monotonic() - started) * 1000

    async def _load(self, zk: Store) -> ContextLoaded:
        brokers = await zk.read_brokers(self._inbox.watch(Reading.BROKERS))
        names = await zk.read_topic_names(self._inbox.watch(Reading.TOPICS))
        topics = await self._read_assignments(zk, names)
        partitions = [
            TopicPartition(topic, number)
            for topic, assignment in topics.items()
            for number in assignment.partitions
        ]
        return ContextLoaded(
            brokers=brokers,
            topics=topics,
            leaderships=await zk.read_states(partitions),
            unclean=await zk.read_unclean(topics),
            deletions=await zk.read_deletions(self._inbox.watch(Reading.DELETIONS)),
        )

    async def _resign(self) -> None:
        """Stop everything that only a controller does (row C4)."""
        term, self._term = self._term, None
        if term is None:
            return
        logger.info(
            "broker %d is no longer controller of epoch %d", self.broker_id, term.office.epoch
        )
        if term.rebalance is not None:
            term.rebalance.cancel()
        await term.outbox.close()
        self._fail_calls()

    def _fail_calls(self) -> None:
        for call in self._inbox.calls():
            if not call.future.done():
                call.future.set_exception(_not_controller())

    # --- reading ---

    async def _read(self, term: _Term, reading: Reading) -> None:
        zk, watch = term.store, self._inbox.watch(reading)
        match reading:
            case Reading.BROKERS:
                brokers = await zk.read_brokers(watch)
                for event in split(term.context, brokers):
                    await self._advance(term, event)
            case Reading.TOPICS:
                await self._read_topics(term)
            case Reading.DELETIONS:
                requested = await zk.read_deletions(watch)
                if requested:
                    await self._advance(term, DeletionsRequested(requested))
            case Reading.ISR_CHANGES:
                paths, changed = await zk.read_isr_changes(watch)
                if changed:
                    await self._advance(term, IsrChanged(changed))
                await zk.remove(paths)
            case Reading.LOG_DIR_EVENTS:
                paths, failed = await zk.read_log_dir_events(watch)
                for broker_id in failed:
                    await self._advance(term, LogDirFailed(broker_id))
                await zk.remove(paths)
            case Reading.PREFERRED:
                wanted = await zk.read_preferred(watch)
                if wanted is not None:
                    await self._advance(term, PreferredRequested(wanted))

    async def _read_topics(self, term: _Term) -> None:
        names = set(await term.store.read_topic_names(self._inbox.watch(Reading.TOPICS)))
        known = term.context.topics.keys()
        added = await self._read_assignments(term.store, sorted(names - known))
        event = TopicsChanged(added, frozenset(known - names), await term.store.read_unclean(added))
        if event.added or event.removed:
            await self._advance(term, event)
            # A request to delete a topic may have come before the topic was known.
            self._inbox.put(Reading.DELETIONS)

    async def _read_assignments(
        self, zk: Store, topics: list[str]
    ) -> dict[str, znodes.TopicAssignment]:
        """Read topics and watch them: a watch names the topic in its path."""
        return await zk.read_topics(topics, self._inbox.watch_topic)

    async def _read_topic(self, term: _Term, topic: str) -> None:
        found = await self._read_assignments(term.store, [topic])
        if topic in found:
            await self._advance(term, PartitionsChanged(topic, found[topic]))

    async def _shut_down(self, term: _Term, call: ShutdownCall) -> None:
        try:
            if call.broker_id not in term.context.brokers:
                raise KafkaError(
                    ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {call.broker_id} is not registered."
                )
            await self._advance(term, ShutdownRequested(call.broker_id))
        except BaseException as error:
            if not call.future.done():
                refusal = error if isinstance(error, KafkaError) else _not_controller()
                call.future.set_exception(refusal)
            if not isinstance(error, KafkaError):
                raise
            return
        if not call.future.done():
            call.future.set_result(sorted(term.context.led_with_others(call.broker_id)))

    async def _elect(self, term: _Term, call: ElectionCall) -> None:
        refused = requested.refusals(term.context, call.partitions, call.cause)
        wanted = tuple(one for one in call.partitions if one not in refused)
        try:
            await self._advance(term, ElectionRequested(wanted, call.cause))
        except BaseException:
            if not call.future.done():
                call.future.set_exception(_not_controller())
            raise
        if not call.future.done():
            elected = requested.outcomes(term.context, wanted, call.cause)
            call.future.set_result({**refused, **elected})

    def _schedule_rebalance(self, term: _Term, seconds: float) -> None:
        def due() -> None:
            self._inbox.put(RebalanceDue())
            self._schedule_rebalance(
                term, float(self._config.leader_imbalance_check_interval_seconds)
            )

        term.rebalance = asyncio.get_running_loop().call_later(seconds, due)

    # --- acting ---

    async def _advance(self, term: _Term, event: Event) -> None:
        """Give the core an event and do what it wants, with all that follows from it."""
        events = deque([event])
        while events:
            term.context, actions = step(term.context, events.popleft())
            term.outbox.keep(term.context.brokers)
            for action in actions:
                match action:
                    case WriteStates():
                        events.append(await term.store.write_states(action))
                    case RemoveTopic(topic):
                        await term.store.remove_topic(topic)
                        events.append(TopicRemoved(topic))
                        # The name may have been taken again meanwhile.
                        self._inbox.put(Reading.TOPICS)
                    case DropDeletions(topics):
                        await term.store.drop_deletions(topics)
                    case FinishPreferredElection():
                        await term.store.remove([znodes.PREFERRED_ELECTION_PATH])
                    case _:
                        term.outbox.send(action)


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
