"""The active controller of one epoch: reads znodes, steps the core, carries out actions (row C3).

A watch only tells which znodes to read again (`ZnodeChange`, `TopicChange`). Their present contents
become an event. `advance` gives it to the core and carries out the actions, with all events that
follow from them, before anything else is handled. Calls are answered from the resulting context.
`loop` starts and stops the active controller.

Leaders change in-sync replicas on their own, and announce it later. So states are read again where
a decision on an old state may be to change nothing: then no failed write shows that it was old.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from odradek import slices
from odradek.config import BrokerConfig
from odradek.controller import deletion, elect_leaders, reassignment, replica_failures, requests
from odradek.controller.context import ControllerContext, ControllerSettings
from odradek.controller.controller_znode import ControllerLease
from odradek.controller.election import Cause
from odradek.controller.event_queue import EventQueue, TopicChange, ZnodeChange
from odradek.controller.events import (
    BrokersChanged,
    ContextLoaded,
    DeletionsRequested,
    ElectionRequested,
    Event,
    FailedReplicasDue,
    FinishPreferredElection,
    IsrChanged,
    LiveBroker,
    LogDirFailed,
    PartitionsChanged,
    PreferredRequested,
    ReassignmentRequested,
    RebalanceDue,
    RemoveDeletions,
    RemoveReassignments,
    RemoveTopic,
    ShutdownRequested,
    TopicRemoved,
    TopicsChanged,
    UncleanChanged,
    WatchStates,
    WriteAssignments,
    WriteStates,
)
from odradek.controller.outbox import Outbox
from odradek.controller.replica_assignment import ReplicaAssignment
from odradek.controller.step import (
    broker_events,
    departed_partitions,
    imbalanced_partitions,
    load_events,
    step,
)
from odradek.controller.store import ControllerStore
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replica.purgatory import Purgatory
from odradek.values import NO_BROKER_EPOCH, BrokerId, TopicPartition
from odradek.zk import znodes
from odradek.zk.session import Watch

logger = logging.getLogger(__name__)

FIRST_REBALANCE_SECONDS = 5.0
# As often as Kafka looks for imbalance. A replica that fails each time costs four elections then.
FAILED_REPLICAS_SECONDS = 300.0
# Between two readings of the names of all topics, for each name, which takes some 5 us. So that it
# does not take most of the time while others create topics one by one.
LISTING_PAUSE_SECONDS = 50e-6
LONGEST_LISTING_PAUSE_SECONDS = 1.0
# Partitions of one call that are looked into without a pause.
PARTITIONS_AT_ONCE = 1000
# Topics that are read again at once: each takes some ten microseconds to decode.
TOPICS_AT_ONCE = 1000
# Of a list of topics in the log.
SHOWN_TOPICS = 20


class ActiveController:
    """The controller of one epoch; `context` is the cluster as this controller knows it.

    In `deletions` wait those who requested the deletion of a topic, until it is settled.
    """

    def __init__(
        self,
        config: BrokerConfig,
        lease: ControllerLease,
        store: ControllerStore,
        outbox: Outbox,
        queue: EventQueue,
        deletions: Purgatory[str],
    ) -> None:
        self.lease = lease
        self.outbox = outbox
        settings = ControllerSettings(
            unclean_leader_election=config.unclean_leader_election_enable,
            delete_topics=config.delete_topic_enable,
            imbalance_percentage=config.leader_imbalance_per_broker_percentage,
        )
        self.context = ControllerContext(BrokerId(config.broker_id), lease.epoch, settings)
        self._config = config
        self._store = store
        self._queue = queue
        self._deletions = deletions
        # The broker epochs of those that have no listener for requests of this controller.
        self._unreachable: dict[BrokerId, int] = {}
        self._rebalance: asyncio.TimerHandle | None = None
        self._failed_replicas: asyncio.TimerHandle | None = None
        self._listing: asyncio.TimerHandle | None = None
        # When the names of all topics may be read again, on the clock of the event loop.
        self._next_listing = 0.0

    async def start(self) -> None:
        """Read all state, send it to all brokers, and watch."""
        with slices.collector_paused():
            for event in await self._load():
                await self.advance(event)
        for change in (
            ZnodeChange.DELETIONS,
            ZnodeChange.ISR_CHANGES,
            ZnodeChange.LOG_DIR_EVENTS,
            ZnodeChange.PREFERRED,
            ZnodeChange.REASSIGNMENT,
        ):
            self._queue.put(change)
        if self._config.auto_leader_rebalance_enable:
            self._schedule_rebalance(FIRST_REBALANCE_SECONDS)
        self._schedule_failed_replicas()

    async def stop(self) -> None:
        """Stop everything that only the controller does (row C4)."""
        if self._rebalance is not None:
            self._rebalance.cancel()
        if self._failed_replicas is not None:
            self._failed_replicas.cancel()
        if self._listing is not None:
            self._listing.cancel()
        await self.outbox.close()

    def _schedule_rebalance(self, seconds: float) -> None:
        def due() -> None:
            self._queue.put(RebalanceDue())
            self._schedule_rebalance(float(self._config.leader_imbalance_check_interval_seconds))

        self._rebalance = asyncio.get_running_loop().call_later(seconds, due)

    def _schedule_failed_replicas(self) -> None:
        def due() -> None:
            if replica_failures.are_due(self.context):
                self._queue.put(FailedReplicasDue())
            self._schedule_failed_replicas()

        loop = asyncio.get_running_loop()
        self._failed_replicas = loop.call_later(FAILED_REPLICAS_SECONDS, due)

    def reconnected(self) -> None:
        """Read everything again: watches were lost with the connection."""
        self._store.forget_reassignment()
        for change in ZnodeChange:
            self._queue.put(change)
        self._queue.put_states(self.context.being_reassigned())

    # --- reading ---

    async def _load(self) -> list[ContextLoaded | BrokersChanged]:
        zk = self._store
        brokers, (topics, unclean), deletions, _, _ = await asyncio.gather(
            self._read_brokers(self._queue.watch(ZnodeChange.BROKERS)),
            self._read_all_topics(),
            zk.read_deletions(self._queue.watch(ZnodeChange.DELETIONS)),
            # They announce states that are read only afterwards.
            zk.remove_notifications(znodes.LOG_DIR_EVENTS_PATH),
            zk.remove_notifications(znodes.ISR_CHANGES_PATH),
        )
        partitions = [
            TopicPartition(topic, number)
            for topic, assignment in topics.items()
            for number in assignment.partitions
        ]
        states = await zk.read_states_with_zxids(partitions)
        loaded = ContextLoaded(
            brokers=brokers,
            topics=topics,
            leaderships={one: leadership for one, (leadership, _) in states.items()},
            unclean=unclean,
            # Others may be of topics created meanwhile: `DELETIONS` looks for those.
            deletions=deletions.intersection(topics),
        )
        written = {one: zxid for one, (_, zxid) in states.items()}
        return load_events(loaded, written, self.lease.previous_election_zxid)

    async def _read_brokers(self, watch: Watch) -> dict[BrokerId, LiveBroker]:
        """Return the registered brokers that this controller can send requests to; the watch fires
        when one registers or is gone.

        One that can be told no role would lead nothing of what it was elected for. As in Kafka it
        is not live until it registers with the listener that this broker uses between brokers.
        """
        listener = self._config.inter_broker_listener_name
        registered = await self._store.read_brokers(watch)
        unreachable = {
            broker_id: broker.epoch
            for broker_id, broker in registered.items()
            if requests.endpoint(broker, listener) is None
        }
        for broker_id, epoch in unreachable.items():
            if self._unreachable.get(broker_id) != epoch:
                logger.error(
                    "failed to send requests to broker %d: it has no listener %s; "
                    "taking it for down until it registers with one",
                    broker_id,
                    listener,
                )
        self._unreachable = unreachable
        return {one: broker for one, broker in registered.items() if one not in unreachable}

    async def _read_all_topics(self) -> tuple[dict[str, znodes.TopicAssignment], dict[str, bool]]:
        """Return the assignments of all topics, and what they say of unclean elections."""
        names = await self._store.read_topic_names(self._queue.watch(ZnodeChange.TOPICS))
        topics, unclean = await asyncio.gather(
            self._read_assignments(names), self._store.read_unclean(names)
        )
        return topics, {topic: one for topic, one in unclean.items() if topic in topics}

    async def read(self, change: ZnodeChange) -> None:
        """Read znodes that changed, and watch them again."""
        zk, watch = self._store, self._queue.watch(change)
        match change:
            case ZnodeChange.BROKERS:
                brokers = await self._read_brokers(watch)
                await self._read_states_again(departed_partitions(self.context, brokers))
                for event in broker_events(self.context, brokers):
                    await self.advance(event)
            case ZnodeChange.TOPICS:
                await self._list_topics()
            case ZnodeChange.CREATED_TOPICS:
                await self._change_topics(self._queue.take_created())
            case ZnodeChange.DELETIONS:
                requested_deletions = await zk.read_deletions(watch)
                if requested_deletions:
                    await self._find_topics(requested_deletions)
                    await self.advance(DeletionsRequested(requested_deletions))
            case ZnodeChange.ISR_CHANGES:
                paths, changed = await zk.read_isr_changes(watch)
                if changed:
                    await self.advance(IsrChanged(changed))
                await zk.remove(paths)
            case ZnodeChange.LOG_DIR_EVENTS:
                paths, failed = await zk.read_log_dir_events(watch)
                for broker_id in failed:
                    await self.advance(LogDirFailed(broker_id))
                await zk.remove(paths)
            case ZnodeChange.PREFERRED:
                wanted = await zk.read_preferred(watch)
                if wanted is not None:
                    await self._elect_preferred(wanted)
            case ZnodeChange.REASSIGNMENT:
                assignments = await zk.read_reassignment(watch)
                if assignments is not None:
                    requested = ReassignmentRequested(assignments, by_znode=True)
                    try:
                        await self._read_reassignment(requested)
                    except BaseException:
                        zk.forget_reassignment()
                        raise
            case ZnodeChange.REASSIGNED_STATES:
                changed_states = self._queue.take_states()
                watched = sorted(filter(self.context.is_being_reassigned, changed_states))
                states = await zk.read_states(watched, self._queue.on_state_change)
                await self.advance(IsrChanged(states))
            case ZnodeChange.KNOWN_TOPICS:
                await self._read_known_topics()

    async def _read_states_again(self, partitions: Iterable[TopicPartition]) -> None:
        """Take over the in-sync replicas that leaders wrote, without waiting for notifications."""
        states = await self._store.read_states(partitions)
        if states:
            await self.advance(IsrChanged(states))

    async def _elect_preferred(self, requested: Sequence[TopicPartition]) -> None:
        await self.read(ZnodeChange.BROKERS)
        await self._find_topics({one.topic for one in requested})
        refused = await self._refuse_elections(requested, Cause.PREFERRED)
        wanted = tuple(one for one in requested if one not in refused)
        await self.advance(PreferredRequested(wanted))
        outcomes = elect_leaders.outcomes(self.context, wanted, Cause.PREFERRED)
        for partition, result in (refused | dict(outcomes)).items():
            if isinstance(result, KafkaError) and result.code != ErrorCode.ELECTION_NOT_NEEDED:
                logger.warning(
                    "failed to elect the preferred leader of %s: %s", partition, result.message
                )

    async def _read_reassignment(self, event: ReassignmentRequested) -> None:
        await self._find_topics({one.topic for one in event.wanted})
        await self._read_states_again(reassignment.depend_on_isr(self.context, event))
        for partition, refusal in reassignment.refusals(self.context, event).items():
            logger.warning("failed to reassign %s: %s", partition, refusal.message)
        await self.advance(event)

    async def _list_topics(self) -> None:
        """Read the names of all topics; not too often, if there are many."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._next_listing:
            if self._listing is None:
                self._listing = loop.call_at(self._next_listing, self._list_topics_later)
            return
        await self._read_names()

    async def _find_topics(self, requested: AbstractSet[str]) -> None:
        """Read the names of all topics now if any of these is not known.

        It may be older than the request that names it, which would be refused.
        """
        if not requested <= self.context.topics.keys():
            await self._read_names()

    async def _read_names(self) -> None:
        """Compare the names of all topics with those that are known."""
        names = set(await self._store.read_topic_names(self._queue.watch(ZnodeChange.TOPICS)))
        pause_s = min(len(names) * LISTING_PAUSE_SECONDS, LONGEST_LISTING_PAUSE_SECONDS)
        self._next_listing = asyncio.get_running_loop().time() + pause_s
        known = self.context.topics.keys()
        await self._change_topics(names - known, frozenset(known - names))

    def _list_topics_later(self) -> None:
        self._listing = None
        self._queue.put(ZnodeChange.TOPICS)

    async def _change_topics(
        self, added: Iterable[str], removed: frozenset[str] = frozenset()
    ) -> None:
        """Read topics that are not known yet, and forget those that are gone."""
        unknown = [one for one in sorted(added) if one not in self.context.topics]
        found = await self._read_assignments(unknown)
        event = TopicsChanged(found, removed, await self._store.read_unclean(found))
        if event.added or event.removed:
            await self.advance(event)
            # A topic's deletion may have been requested before the topic was read.
            self._queue.put(ZnodeChange.DELETIONS)
        if event.removed:
            # What is requested of these may have been left for now: see `write_assignments`.
            self._queue.put(ZnodeChange.REASSIGNMENT)

    async def _read_assignments(self, topics: Iterable[str]) -> dict[str, znodes.TopicAssignment]:
        """Return topics' assignments, and watch them; the event's path names the topic."""
        return await self._store.read_topics(topics, self._queue.on_topic_change)

    async def read_topic(self, topic: str) -> None:
        """Read a topic's znode again; skip an unknown topic: it is deleted, or `TOPICS` adds it."""
        known = self.context.topics.get(topic)
        if known is None:
            return
        found = (await self._read_assignments([topic])).get(topic)
        if found is None:
            # One that is made anew before the names are read again would not be missed.
            self._next_listing = 0.0
            self._queue.put(ZnodeChange.TOPICS)
        elif await self._was_made_anew(topic, known, found):
            await self._change_topics((), frozenset({topic}))
            await self._change_topics({topic})
        else:
            await self.advance(PartitionsChanged(topic, found))

    async def _was_made_anew(
        self, topic: str, known: znodes.TopicAssignment, found: znodes.TopicAssignment
    ) -> bool:
        """Return whether somebody removed a topic by hand and made it anew since.

        A tool may write another id for the same topic: then the states of its partitions are there.
        """
        if None in (known.topic_id, found.topic_id) or known.topic_id == found.topic_id:
            return False
        partitions = [TopicPartition(topic, number) for number in found.partitions]
        return not await self._store.read_states(partitions)

    async def _read_known_topics(self) -> None:
        """Watch the znodes of all topics again, many at once, and have those that changed read."""
        for few in slices.cut(self.context.topics.items(), TOPICS_AT_ONCE):
            found = await self._read_assignments([topic for topic, _ in few])
            for topic, known in few:
                if found.get(topic) != known:
                    self._queue.put(TopicChange(topic))

    async def read_topic_config(self, topic: str) -> None:
        """Read again the part of a topic's configuration that the controller uses."""
        found = await self._store.read_unclean([topic])
        await self.advance(UncleanChanged(topic, found.get(topic)))

    # --- calls ---

    async def shut_down(self, broker_id: BrokerId, broker_epoch: int) -> list[TopicPartition]:
        """Move leaderships off a broker; see `loop.Controller.controlled_shutdown`."""
        await self.read(ZnodeChange.BROKERS)
        broker = self.context.brokers.get(broker_id)
        if broker is None:
            listener = self._config.inter_broker_listener_name
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"Broker {broker_id} is not registered"
                + (f" with a listener {listener}." if broker_id in self._unreachable else "."),
            )
        if NO_BROKER_EPOCH != broker_epoch < broker.epoch:
            # It stopped without an answer, and is back: nothing would let it lead or follow again.
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Broker {broker_id} registered again since it asked for a controlled shutdown.",
            )
        await self._read_states_again(self.context.replicated_partitions_on(broker_id))
        await self.advance(ShutdownRequested(broker_id))
        return sorted(self.context.replicated_partitions_led_by(broker_id))

    async def elect(
        self, partitions: Iterable[TopicPartition], cause: Cause
    ) -> dict[TopicPartition, BrokerId | KafkaError]:
        """Elect leaders; see `loop.Controller.elect_leaders`."""
        await self.read(ZnodeChange.BROKERS)
        found: dict[TopicPartition, BrokerId | KafkaError] = {}
        for few in slices.cut(partitions, PARTITIONS_AT_ONCE):
            refused = await self._refuse_elections(few, cause)
            wanted = tuple(one for one in few if one not in refused)
            if wanted:
                await self.advance(ElectionRequested(wanted, cause))
            found |= {**refused, **elect_leaders.outcomes(self.context, wanted, cause)}
            await slices.pause()
        return found

    async def _refuse_elections(
        self, partitions: Sequence[TopicPartition], cause: Cause
    ) -> dict[TopicPartition, KafkaError]:
        """Read the states that elections depend on; return the partitions for which none is held,
        and why. The brokers were just read.
        """
        await self._read_states_again(elect_leaders.depend_on_isr(self.context, partitions, cause))
        return elect_leaders.refusals(self.context, partitions, cause)

    async def reassign(
        self, wanted: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Start, replace and cancel reassignments; see `loop.Controller.reassign`."""
        await self.read(ZnodeChange.BROKERS)
        found: dict[TopicPartition, KafkaError | None] = {}
        possible: dict[TopicPartition, tuple[BrokerId, ...] | None] = {}
        for few in slices.cut(wanted.items()):
            found |= reassignment.impossible(self.context, few)
            possible |= {one: target for one, target in few if one not in found}
            await slices.pause()
        event = ReassignmentRequested(possible, by_znode=False)
        await self._read_states_again(reassignment.depend_on_isr(self.context, event))
        refused = reassignment.refusals(self.context, event)
        accepted = {one: target for one, target in possible.items() if one not in refused}
        await self.advance(ReassignmentRequested(accepted, by_znode=False))
        found |= refused
        found |= dict.fromkeys(accepted)
        return found

    async def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None
    ) -> Mapping[TopicPartition, ReplicaAssignment]:
        """Return ongoing reassignments; see `loop.Controller.list_reassignments`."""
        if partitions is None:
            return reassignment.list_reassignments(self.context, None)
        found: dict[TopicPartition, ReplicaAssignment] = {}
        for few in slices.cut(partitions, PARTITIONS_AT_ONCE):
            found |= reassignment.list_reassignments(self.context, few)
            await slices.pause()
        return found

    async def rebalance(self) -> None:
        """Elect the preferred leaders of brokers that lead too few partitions (row C11)."""
        due = imbalanced_partitions(self.context)
        preferred = elect_leaders.depend_on_isr(self.context, due, Cause.PREFERRED)
        await self._read_states_again(preferred)
        await self.advance(RebalanceDue())

    # --- actions ---

    async def advance(self, event: Event) -> None:
        """Step the core with an event, and carry out all actions and the events that follow."""
        events = deque([event])
        finished: list[str] = []
        while events:
            before = self.context
            self.context, actions = step(before, events.popleft())
            if self._deletions:
                self._deletions.wake_each(deletion.settled(before, self.context))
            self.outbox.update_brokers(self.context.brokers)
            removed = {
                one.topic: self.context.topics[one.topic].partitions
                for one in actions
                if isinstance(one, RemoveTopic)
            }
            for action in actions:
                match action:
                    case WriteStates():
                        events.append(await self._store.write_states(action))
                    case WriteAssignments(assignments):
                        for partition, one in assignments.items():
                            logger.info(
                                "assigning %s to replicas %s, adding %s, removing %s",
                                partition,
                                one.replicas,
                                one.adding,
                                one.removing,
                            )
                        events.append(await self._store.write_assignments(assignments))
                    case RemoveReassignments(done):
                        await self._store.remove_reassignments(done)
                    case WatchStates(partitions):
                        self._queue.put_states(partitions)
                    case RemoveTopic():
                        pass  # all topics at once below
                    case RemoveDeletions(topics):
                        logger.warning(
                            "dropping requests to delete %s: unknown, or deletion is disabled",
                            ", ".join(map(repr, topics[:SHOWN_TOPICS])),
                        )
                        await self._store.remove_deletions(topics)
                    case FinishPreferredElection():
                        # Not before its elections, which a conflict may delay, are held.
                        finished.append(znodes.PREFERRED_ELECTION_PATH)
                    case _:
                        self.outbox.send(action)
            if removed:
                await self._store.remove_topics(removed)
                events.extend(map(TopicRemoved, removed))
                # Topics with these names may have been created again meanwhile.
                self._queue.put(ZnodeChange.TOPICS)
        await self._store.remove(finished)
