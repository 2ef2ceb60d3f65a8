"""One term of office: znodes become events, the core steps, its actions are carried out (row C3).

A watch only says what to read again (`inbox.Reading`, `inbox.TopicWritten`); reading makes an event
of what stands now. `advance` gives it to the core and does what the core wants, with all that
follows from it, before anything else is looked at. Callers' requests are answered from the context
that this leaves. `loop` decides when a term begins and ends.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping

from odradek.config import BrokerConfig
from odradek.controller import reassignment, requested
from odradek.controller.claim import Office
from odradek.controller.context import Context, Settings
from odradek.controller.election import Cause
from odradek.controller.events import (
    BrokersChanged,
    ContextLoaded,
    DeletionsRequested,
    DropDeletions,
    DropReassignments,
    ElectionRequested,
    Event,
    FinishPreferredElection,
    IsrChanged,
    LogDirFailed,
    PartitionsChanged,
    PreferredRequested,
    ReassignmentRequested,
    RebalanceDue,
    RemoveTopic,
    ShutdownRequested,
    TopicRemoved,
    TopicsChanged,
    UncleanChanged,
    WatchStates,
    WritePlacements,
    WriteStates,
)
from odradek.controller.inbox import Inbox, Reading
from odradek.controller.outbox import Outbox
from odradek.controller.placement import Placement
from odradek.controller.step import split, split_load, step
from odradek.controller.store import Store
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import BrokerId, TopicPartition
from odradek.zk import znodes

logger = logging.getLogger(__name__)

FIRST_REBALANCE_SECONDS = 5.0


class Term:
    """What belongs to one term of office; `context` is the cluster as this controller knows it."""

    def __init__(
        self, config: BrokerConfig, office: Office, store: Store, outbox: Outbox, inbox: Inbox
    ) -> None:
        self.office = office
        self.outbox = outbox
        settings = Settings(
            unclean_leader_election=config.unclean_leader_election_enable,
            delete_topics=config.delete_topic_enable,
            imbalance_percentage=config.leader_imbalance_per_broker_percentage,
        )
        self.context = Context(BrokerId(config.broker_id), office.epoch, settings)
        self._config = config
        self._store = store
        self._inbox = inbox
        self._rebalance: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Read everything, tell everybody, and watch."""
        # What the notices tell is read below anyway.
        await self._store.drop_notices(znodes.LOG_DIR_EVENTS_PATH)
        await self._store.drop_notices(znodes.ISR_CHANGES_PATH)
        for event in await self._load():
            await self.advance(event)
        for reading in (
            Reading.ISR_CHANGES,
            Reading.LOG_DIR_EVENTS,
            Reading.PREFERRED,
            Reading.REASSIGNMENT,
        ):
            self._inbox.put(reading)
        if self._config.auto_leader_rebalance_enable:
            self._schedule_rebalance(FIRST_REBALANCE_SECONDS)

    async def end(self) -> None:
        """Stop everything that only a controller does (row C4)."""
        if self._rebalance is not None:
            self._rebalance.cancel()
        await self.outbox.close()

    def _schedule_rebalance(self, seconds: float) -> None:
        def due() -> None:
            self._inbox.put(RebalanceDue())
            self._schedule_rebalance(float(self._config.leader_imbalance_check_interval_seconds))

        self._rebalance = asyncio.get_running_loop().call_later(seconds, due)

    # --- reading ---

    async def _load(self) -> list[ContextLoaded | BrokersChanged]:
        zk = self._store
        brokers = await zk.read_brokers(self._inbox.watch(Reading.BROKERS))
        names = await zk.read_topic_names(self._inbox.watch(Reading.TOPICS))
        topics = await self._read_assignments(names)
        partitions = [
            TopicPartition(topic, number)
            for topic, assignment in topics.items()
            for number in assignment.partitions
        ]
        states = await zk.read_dated_states(partitions)
        loaded = ContextLoaded(
            brokers=brokers,
            topics=topics,
            leaderships={one: leadership for one, (leadership, _) in states.items()},
            unclean=await zk.read_unclean(topics),
            deletions=await zk.read_deletions(self._inbox.watch(Reading.DELETIONS)),
        )
        written = {one: zxid for one, (_, zxid) in states.items()}
        return split_load(loaded, written, self.office.former)

    async def read(self, reading: Reading) -> None:
        """Read what a watch told to have changed, and watch it again."""
        zk, watch = self._store, self._inbox.watch(reading)
        match reading:
            case Reading.BROKERS:
                brokers = await zk.read_brokers(watch)
                for event in split(self.context, brokers):
                    await self.advance(event)
            case Reading.TOPICS:
                await self._read_topics()
            case Reading.DELETIONS:
                requested_deletions = await zk.read_deletions(watch)
                if requested_deletions:
                    await self.advance(DeletionsRequested(requested_deletions))
            case Reading.ISR_CHANGES:
                paths, changed = await zk.read_isr_changes(watch)
                if changed:
                    await self.advance(IsrChanged(changed))
                await zk.remove(paths)
            case Reading.LOG_DIR_EVENTS:
                paths, failed = await zk.read_log_dir_events(watch)
                for broker_id in failed:
                    await self.advance(LogDirFailed(broker_id))
                await zk.remove(paths)
            case Reading.PREFERRED:
                wanted = await zk.read_preferred(watch)
                if wanted is not None:
                    await self.advance(PreferredRequested(wanted))
            case Reading.REASSIGNMENT:
                placements = await zk.read_reassignment(watch)
                if placements is not None:
                    await self._read_reassignment(ReassignmentRequested(placements, by_znode=True))
            case Reading.MOVING_STATES:
                moving = self._inbox.take_states().intersection(self.context.moving())
                states = await zk.read_states(sorted(moving), self._inbox.watch_state)
                await self.advance(IsrChanged(states))

    async def _read_reassignment(self, event: ReassignmentRequested) -> None:
        for partition, refusal in reassignment.refusals(self.context, event).items():
            logger.warning("%s is not reassigned as wanted: %s", partition, refusal.message)
        await self.advance(event)

    async def _read_topics(self) -> None:
        names = set(await self._store.read_topic_names(self._inbox.watch(Reading.TOPICS)))
        known = self.context.topics.keys()
        added = await self._read_assignments(sorted(names - known))
        event = TopicsChanged(
            added, frozenset(known - names), await self._store.read_unclean(added)
        )
        if event.added or event.removed:
            await self.advance(event)
            # A request to delete a topic may have come before the topic was known.
            self._inbox.put(Reading.DELETIONS)

    async def _read_assignments(self, topics: Iterable[str]) -> dict[str, znodes.TopicAssignment]:
        """Read topics and watch them: a watch names the topic in its path."""
        return await self._store.read_topics(topics, self._inbox.watch_topic)

    async def read_topic(self, topic: str) -> None:
        """Read a topic's znode again; one that is unknown was removed, or comes with the others."""
        if topic not in self.context.topics:
            return
        found = await self._read_assignments([topic])
        if topic in found:
            await self.advance(PartitionsChanged(topic, found[topic]))

    async def read_topic_config(self, topic: str) -> None:
        """Read again what of a topic's configuration concerns the controller."""
        found = await self._store.read_unclean([topic])
        await self.advance(UncleanChanged(topic, found.get(topic)))

    # --- callers ---

    async def shut_down(self, broker_id: BrokerId) -> list[TopicPartition]:
        """Move leaderships off a broker; see `loop.Controller.controlled_shutdown`."""
        if broker_id not in self.context.brokers:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {broker_id} is not registered."
            )
        await self.advance(ShutdownRequested(broker_id))
        return sorted(self.context.led_with_others(broker_id))

    async def elect(
        self, partitions: Iterable[TopicPartition], cause: Cause
    ) -> Mapping[TopicPartition, BrokerId | KafkaError]:
        """Hold elections; see `loop.Controller.elect_leaders`."""
        asked = tuple(partitions)
        refused = requested.refusals(self.context, asked, cause)
        wanted = tuple(one for one in asked if one not in refused)
        await self.advance(ElectionRequested(wanted, cause))
        return {**refused, **requested.outcomes(self.context, wanted, cause)}

    async def reassign(
        self, wanted: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> Mapping[TopicPartition, KafkaError | None]:
        """Begin, replace and cancel moves; see `loop.Controller.reassign`."""
        event = ReassignmentRequested(wanted, by_znode=False)
        refused = reassignment.refusals(self.context, event)
        accepted = {one: target for one, target in wanted.items() if one not in refused}
        await self.advance(ReassignmentRequested(accepted, by_znode=False))
        return {**refused, **dict.fromkeys(accepted)}

    async def list_moving(
        self, partitions: Iterable[TopicPartition] | None
    ) -> Mapping[TopicPartition, Placement]:
        """Return the moves under way; see `loop.Controller.list_moving`."""
        return reassignment.list_moving(self.context, partitions)

    # --- acting ---

    async def advance(self, event: Event) -> None:
        """Give the core an event and do what it wants, with all that follows from it."""
        events = deque([event])
        while events:
            self.context, actions = step(self.context, events.popleft())
            self.outbox.keep(self.context.brokers)
            removed = {
                one.topic: self.context.topics[one.topic].partitions
                for one in actions
                if isinstance(one, RemoveTopic)
            }
            for action in actions:
                match action:
                    case WriteStates():
                        events.append(await self._store.write_states(action))
                    case WritePlacements(placements):
                        for partition, one in placements.items():
                            logger.info(
                                "%s is on %s, adding %s, removing %s",
                                partition,
                                one.replicas,
                                one.adding,
                                one.removing,
                            )
                        events.append(await self._store.write_placements(placements))
                    case DropReassignments(done):
                        await self._store.drop_reassignments(done)
                    case WatchStates(partitions):
                        self._inbox.read_states(partitions)
                    case RemoveTopic():
                        pass  # all together below
                    case DropDeletions(topics):
                        await self._store.drop_deletions(topics)
                    case FinishPreferredElection():
                        await self._store.remove([znodes.PREFERRED_ELECTION_PATH])
                    case _:
                        self.outbox.send(action)
            if removed:
                await self._store.remove_topics(removed)
                events.extend(map(TopicRemoved, removed))
                # The names may have been taken again meanwhile.
                self._inbox.put(Reading.TOPICS)
