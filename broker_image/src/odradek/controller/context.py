"""What the controller knows: an immutable `Context`, and the `Draft` through which it changes.

A step reads and writes a draft, which copies only the maps that it touches and checks every
transition against the tables of `states`. `Draft.finish` gives the next context and the actions,
the messages of one step gathered into one request of each kind a broker (row C8).
"""

from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from odradek.controller import placement, states
from odradek.controller.election import Available, Cause
from odradek.controller.events import (
    Action,
    DropDeletions,
    DropReassignments,
    FinishPreferredElection,
    LeaderAndIsr,
    Leadership,
    LiveBroker,
    PartitionMetadata,
    PartitionRole,
    RemoveTopic,
    StopReplicas,
    UpdateMetadata,
    WatchStates,
    WritePlacements,
    WriteStates,
)
from odradek.controller.placement import Placement
from odradek.controller.states import PartitionPhase, ReplicaPhase
from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from odradek.zk.znodes import PartitionState, TopicAssignment

K = TypeVar("K")
V = TypeVar("V")

# In place of a leader in UpdateMetadata: the partition is being deleted.
LEADER_DURING_DELETE = BrokerId(-2)

# A replica in one of these holds nothing that counts any more.
GOING = frozenset(
    {
        ReplicaPhase.DELETION_STARTED,
        ReplicaPhase.DELETION_SUCCESSFUL,
        ReplicaPhase.DELETION_INELIGIBLE,
    }
)


@dataclass(frozen=True, slots=True, order=True)
class Replica:
    """One replica of a partition."""

    partition: TopicPartition
    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class Settings:
    """Configuration that the core depends on."""

    unclean_leader_election: bool = False
    delete_topics: bool = True
    imbalance_percentage: int = 10


@dataclass(frozen=True, slots=True)
class Context:
    """The cluster as the controller of epoch `epoch` knows it.

    `causes` says why a state is being written; `failed` are replicas on broken disks; `deletions`
    are the topics being deleted.
    """

    broker_id: BrokerId
    epoch: ControllerEpoch
    settings: Settings = field(default_factory=Settings)
    brokers: Mapping[BrokerId, LiveBroker] = field(default_factory=dict)
    shutting_down: frozenset[BrokerId] = frozenset()
    topics: Mapping[str, TopicAssignment] = field(default_factory=dict)
    leaderships: Mapping[TopicPartition, Leadership] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, PartitionPhase] = field(default_factory=dict)
    replicas: Mapping[Replica, ReplicaPhase] = field(default_factory=dict)
    unclean: Mapping[str, bool] = field(default_factory=dict)
    failed: frozenset[Replica] = frozenset()
    awaited: frozenset[BrokerId] = frozenset()
    deletions: frozenset[str] = frozenset()
    causes: Mapping[TopicPartition, Cause] = field(default_factory=dict)

    def offline_partitions(self) -> list[TopicPartition]:
        """Return partitions, other than those being deleted, that have no living leader."""
        return [
            partition
            for partition, phase in self.partitions.items()
            if phase is not PartitionPhase.ONLINE and partition.topic not in self.deletions
        ]

    def placement(self, partition: TopicPartition) -> Placement | None:
        """Return where the replicas of a partition are and go, None if there is no such one."""
        return _placement(self.topics.get(partition.topic), partition)

    def is_going(self, replica: Replica) -> bool:
        """Say whether a replica is being deleted."""
        return self.replicas.get(replica) in GOING

    def moving(self) -> list[TopicPartition]:
        """Return the partitions that are being reassigned."""
        return list(_moving(self.topics))

    def led_with_others(self, broker_id: BrokerId) -> list[TopicPartition]:
        """Return what keeps a broker from leaving: replicated partitions that it leads."""
        return [
            partition
            for partition, leadership in self.leaderships.items()
            if leadership.state.leader == broker_id
            and partition.topic in self.topics
            and len(self.topics[partition.topic].partitions.get(partition.partition, ())) > 1
            and partition.topic not in self.deletions
        ]


def _placement(topic: TopicAssignment | None, partition: TopicPartition) -> Placement | None:
    if topic is None or partition.partition not in topic.partitions:
        return None
    return placement.of(topic, partition.partition)


def _moving(topics: Mapping[str, TopicAssignment]) -> Iterator[TopicPartition]:
    for topic, assignment in topics.items():
        for number in sorted(assignment.adding.keys() | assignment.removing.keys()):
            yield TopicPartition(topic, number)


class Editable(Generic[K, V]):
    """A mapping that is copied at its first change."""

    __slots__ = ("_base", "_own")

    def __init__(self, base: Mapping[K, V]) -> None:
        self._base = base
        self._own: dict[K, V] | None = None

    @property
    def current(self) -> Mapping[K, V]:
        """Return the mapping as it stands."""
        return self._base if self._own is None else self._own

    def __getitem__(self, key: K) -> V:
        return self.current[key]

    def __contains__(self, key: object) -> bool:
        return key in self.current

    def __iter__(self) -> Iterator[K]:
        return iter(self.current)

    def get(self, key: K) -> V | None:
        """Return the value, or None."""
        return self.current.get(key)

    def items(self) -> ItemsView[K, V]:
        """Return the items as they stand."""
        return self.current.items()

    def edit(self) -> dict[K, V]:
        """Return the mapping to be changed."""
        if self._own is None:
            self._own = dict(self._base)
        return self._own


class Draft:
    """A context under change, and the actions gathered so far."""

    def __init__(self, context: Context) -> None:
        self.base = context
        self.settings = context.settings
        self.brokers = context.brokers
        self.shutting_down = context.shutting_down
        self.failed = context.failed
        self.awaited = context.awaited
        self.deletions = context.deletions
        self.topics = Editable(context.topics)
        self.leaderships = Editable(context.leaderships)
        self.partitions = Editable(context.partitions)
        self.replicas = Editable(context.replicas)
        self.unclean = Editable(context.unclean)
        self.causes = Editable(context.causes)
        self._creates: dict[TopicPartition, PartitionState] = {}
        self._updates: dict[TopicPartition, Leadership] = {}
        self._metadata: dict[BrokerId, dict[TopicPartition, PartitionMetadata]] = {}
        self._roles: dict[BrokerId, dict[TopicPartition, PartitionRole]] = {}
        self._stops: dict[tuple[BrokerId, bool], dict[TopicPartition, None]] = {}
        self._dropped: dict[TopicPartition, tuple[BrokerId, ...] | None] | None = None
        self._placements: dict[TopicPartition, Placement] = {}
        self._last: list[Action] = []

    # --- questions ---

    def replicas_of(self, partition: TopicPartition) -> tuple[BrokerId, ...]:
        """Return the assigned brokers, preferred first."""
        return self.topics[partition.topic].partitions[partition.partition]

    def holders(self, partition: TopicPartition) -> tuple[BrokerId, ...]:
        """Return the assigned brokers whose replicas are not being deleted, preferred first."""
        assigned = self.replicas_of(partition)
        return tuple(one for one in assigned if not self.is_going(Replica(partition, one)))

    def is_going(self, replica: Replica) -> bool:
        """Say whether a replica is being deleted."""
        return self.replicas.get(replica) in GOING

    def placement(self, partition: TopicPartition) -> Placement | None:
        """Return where the replicas of a partition are and go, None if there is no such one."""
        return _placement(self.topics.get(partition.topic), partition)

    def moving(self) -> list[TopicPartition]:
        """Return the partitions that are being reassigned."""
        return list(_moving(self.topics.current))

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic."""
        return [TopicPartition(topic, number) for number in self.topics[topic].partitions]

    def all_partitions(self) -> Iterator[TopicPartition]:
        """Yield the partitions of all topics."""
        for topic in self.topics:
            yield from self.partitions_of(topic)

    def partitions_on(self, brokers: Collection[BrokerId]) -> list[TopicPartition]:
        """Return the partitions that have a replica on any of the brokers."""
        return [
            TopicPartition(topic, number)
            for topic, assignment in self.topics.items()
            for number, replicas in assignment.partitions.items()
            if any(replica in brokers for replica in replicas)
        ]

    def is_alive(self, partition: TopicPartition, broker_id: BrokerId) -> bool:
        """Say whether a replica's broker is registered and its disk works."""
        return broker_id in self.brokers and Replica(partition, broker_id) not in self.failed

    def available(self, partition: TopicPartition) -> Available:
        """Return who can hold and lead a partition."""
        alive = [one for one in self.holders(partition) if self.is_alive(partition, one)]
        return Available(alive, [one for one in alive if one not in self.shutting_down])

    def is_deleted(self, partition: TopicPartition) -> bool:
        """Say whether the partition is being deleted."""
        return partition.topic in self.deletions

    def allows_unclean(self, partition: TopicPartition) -> bool:
        """Say whether the partition may be led by a replica that is not in sync.

        Not where one that is in sync is awaited.
        """
        if not self.awaited.isdisjoint(self.leaderships[partition].state.isr):
            return False
        override = self.unclean.get(partition.topic)
        return self.settings.unclean_leader_election if override is None else override

    def next_state(
        self, before: PartitionState | None, leader: BrokerId, isr: tuple[BrokerId, ...]
    ) -> PartitionState:
        """Return the state that follows: every change by the controller starts a leader epoch."""
        epoch = LeaderEpoch(0 if before is None else before.leader_epoch + 1)
        return PartitionState(leader, epoch, isr, self.base.epoch)

    # --- changes ---

    def enter_partition(self, partition: TopicPartition, *phases: PartitionPhase) -> None:
        """Go through the phases, each checked."""
        for phase in phases:
            now = self.partitions.get(partition) or PartitionPhase.NON_EXISTENT
            states.enter_partition(partition, now, phase)
            self.partitions.edit()[partition] = phase

    def enter_replica(self, replica: Replica, *phases: ReplicaPhase) -> None:
        """Go through the phases, each checked."""
        for phase in phases:
            now = self.replicas.get(replica) or ReplicaPhase.NON_EXISTENT
            states.enter_replica(replica, now, phase)
            self.replicas.edit()[replica] = phase

    def place(self, placements: Mapping[TopicPartition, Placement]) -> None:
        """Take over where replicas are and go, of partitions that still exist."""
        by_topic: dict[str, dict[int, Placement]] = {}
        for partition, one in placements.items():
            if self.placement(partition) is not None:
                by_topic.setdefault(partition.topic, {})[partition.partition] = one
        for topic, changes in by_topic.items():
            self.topics.edit()[topic] = placement.placed(self.topics[topic], changes)

    def forget_topic(self, topic: str) -> None:
        """Drop everything known of a topic."""
        for partition in self.partitions_of(topic):
            for broker_id in self.replicas_of(partition):
                self.replicas.edit().pop(Replica(partition, broker_id), None)
            self.leaderships.edit().pop(partition, None)
            self.partitions.edit().pop(partition, None)
            self.causes.edit().pop(partition, None)
        self.failed = frozenset(one for one in self.failed if one.partition.topic != topic)
        self.topics.edit().pop(topic)
        self.unclean.edit().pop(topic, None)
        self.deletions -= {topic}

    # --- actions ---

    def create_state(self, partition: TopicPartition, state: PartitionState) -> None:
        """Write the first state of a partition."""
        self._creates[partition] = state

    def update_state(self, partition: TopicPartition, wanted: Leadership, cause: Cause) -> None:
        """Replace the state of a partition; `wanted` names the version to be replaced."""
        self._updates[partition] = wanted
        self.causes.edit()[partition] = cause

    def is_being_written(self, partition: TopicPartition) -> bool:
        """Say whether this step writes the partition's state: others hear of it afterwards."""
        return partition in self._updates or partition in self._creates

    def tell_metadata(
        self, to: Iterable[BrokerId], partitions: Iterable[TopicPartition] = ()
    ) -> None:
        """Tell brokers who lives, and of those of the partitions that have a state."""
        known = [partition for partition in partitions if partition in self.leaderships]
        described = {partition: self._describe(partition) for partition in known}
        for broker_id in to:
            self._metadata.setdefault(broker_id, {}).update(described)

    def _describe(self, partition: TopicPartition) -> PartitionMetadata:
        leadership = self.leaderships[partition]
        if self.is_deleted(partition):
            gone = replace(leadership.state, leader=LEADER_DURING_DELETE)
            leadership = replace(leadership, state=gone)
        deleted = self.is_deleted(partition)
        replicas = self.replicas_of(partition) if deleted else self.holders(partition)
        offline = tuple(one for one in replicas if not self.is_alive(partition, one))
        return PartitionMetadata(partition, leadership, replicas, offline)

    def tell_role(
        self, to: Iterable[BrokerId], partition: TopicPartition, is_new: bool = False
    ) -> None:
        """Tell living brokers the state of a partition that they hold a replica of.

        A replica that a reassignment adds is new until it is in sync: it may be created on any
        disk, whatever a broken one may have held.
        """
        leadership, holders = self.leaderships[partition], self.holders(partition)
        adding = self.topics[partition.topic].adding.get(partition.partition, ())
        for broker_id in to:
            if broker_id in self.brokers and broker_id in holders:
                new = is_new or (broker_id in adding and broker_id not in leadership.state.isr)
                self._roles.setdefault(broker_id, {})[partition] = PartitionRole(
                    partition, leadership, holders, new
                )

    def stop_replica(self, to: BrokerId, partition: TopicPartition, delete: bool) -> None:
        """Tell a broker to stop a replica."""
        self._stops.setdefault((to, delete), {})[partition] = None

    def remove_topic(self, topic: str) -> None:
        """Remove the znodes of a topic."""
        self._last.append(RemoveTopic(topic))

    def drop_deletions(self, topics: Iterable[str]) -> None:
        """Remove requests for deletion."""
        self._last.append(DropDeletions(tuple(sorted(topics))))

    def write_placement(self, partition: TopicPartition, wanted: Placement) -> None:
        """Write into a topic's znode where the replicas of a partition are and go."""
        self._placements[partition] = wanted

    def drop_reassignments(
        self, done: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> None:
        """Take requests out of /admin/reassign_partitions: those for these replicas, None: any."""
        self._dropped = {**(self._dropped or {}), **done}

    def drop_reassignments_of(self, topic: str) -> None:
        """Take the requests for a topic out of /admin/reassign_partitions."""
        moving = _moving({topic: self.topics[topic]})
        if wanted := dict.fromkeys(moving):
            self.drop_reassignments(wanted)

    def watch_states(self, partitions: Collection[TopicPartition]) -> None:
        """Have every change of these states told."""
        if partitions:
            self._last.append(WatchStates(tuple(partitions)))

    def finish_preferred_election(self) -> None:
        """Remove the request for a preferred election."""
        self._last.append(FinishPreferredElection())

    def finish(self) -> tuple[Context, list[Action]]:
        """Return the next context and the actions, in the order in which they are to be done."""
        context = replace(
            self.base,
            brokers=self.brokers,
            shutting_down=self.shutting_down,
            failed=self.failed,
            awaited=self.awaited,
            deletions=self.deletions,
            topics=self.topics.current,
            leaderships=self.leaderships.current,
            partitions=self.partitions.current,
            replicas=self.replicas.current,
            unclean=self.unclean.current,
            causes=self.causes.current,
        )
        # A broker that is new to this controller hears first where the others are. Elsewhere roles
        # go first, so that no broker tells clients of a leadership of its own that it has not yet.
        fresh = self.brokers.keys() - self.base.brokers.keys()
        actions: list[Action] = [
            *self._metadata_messages(fresh),
            *self._role_messages(),
            *self._metadata_messages(self.brokers.keys() - fresh),
        ]
        actions += [
            StopReplicas(broker_id, tuple(partitions), delete)
            for (broker_id, delete), partitions in sorted(self._stops.items(), key=lambda i: i[0])
            if broker_id in self.brokers
        ]
        if self._creates or self._updates:
            actions.append(WriteStates(self._creates, self._updates))
        if self._dropped is not None:
            actions.append(DropReassignments(self._dropped))
        if self._placements:
            actions.append(WritePlacements(self._placements))
        return context, actions + self._last

    def _metadata_messages(self, to_whom: AbstractSet[BrokerId]) -> Iterator[UpdateMetadata]:
        """Yield one message for all of these brokers that are told the same."""
        living = tuple(self.brokers[broker_id] for broker_id in sorted(self.brokers))
        alike: dict[tuple[TopicPartition, ...], list[BrokerId]] = {}
        for broker_id, described in sorted(self._metadata.items()):
            if broker_id in to_whom:
                alike.setdefault(tuple(described), []).append(broker_id)
        for partitions, to in alike.items():
            described = self._metadata[to[0]]
            yield UpdateMetadata(tuple(to), living, tuple(described[one] for one in partitions))

    def _role_messages(self) -> Iterator[LeaderAndIsr]:
        for broker_id, roles in sorted(self._roles.items()):
            leaders = sorted({role.leadership.state.leader for role in roles.values()})
            living = tuple(self.brokers[leader] for leader in leaders if leader in self.brokers)
            yield LeaderAndIsr(broker_id, tuple(roles.values()), living)
