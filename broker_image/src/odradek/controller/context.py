"""The controller's view of the cluster: `ControllerContext`, changed through a `Draft`.

The context is immutable. A step reads and writes a draft, which copies only the maps that it
changes, and checks every transition against the tables of `states`. `Draft.finish` returns the next
context and the actions. It merges the messages of one step into one request per kind and broker
(row C8).
"""

from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from odradek.controller import replica_assignment, states
from odradek.controller.election import Available, Cause
from odradek.controller.events import (
    Action,
    FinishPreferredElection,
    LeaderAndIsr,
    Leadership,
    LiveBroker,
    PartitionMetadata,
    PartitionRole,
    RemoveDeletions,
    RemoveReassignments,
    RemoveTopic,
    StopReplicas,
    WatchStates,
    WriteAssignments,
    WriteStates,
)
from odradek.controller.metadata_batch import MetadataBatch
from odradek.controller.replica_assignment import ReplicaAssignment
from odradek.controller.states import PartitionPhase, ReplicaPhase
from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from odradek.zk.znodes import PartitionState, TopicAssignment

K = TypeVar("K")
V = TypeVar("V")

# In place of a leader in UpdateMetadata: the partition is being deleted.
LEADER_DURING_DELETE = BrokerId(-2)

MOST_FORMER_TOPICS = 10_000
"""How many deleted topics the controller remembers."""

# The records of a replica in one of these phases do not count any more. A tuple: hashing a member
# of an enumeration takes longer than comparing it.
DELETION_PHASES = (
    ReplicaPhase.DELETION_STARTED,
    ReplicaPhase.DELETION_SUCCESSFUL,
    ReplicaPhase.DELETION_INELIGIBLE,
)


class Replica(NamedTuple):
    """One replica of a partition. A tuple, as elections look thousands of them up."""

    partition: TopicPartition
    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The configuration that the core uses."""

    unclean_leader_election: bool = False
    delete_topics: bool = True
    imbalance_percentage: int = 10


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """The cluster as the controller of this epoch knows it.

    `causes` are the reasons of writes in progress, `conflicts` how often each of them has failed,
    `failed` the replicas whose brokers answered with storage errors, `failures` how often they did
    since the last FailedReplicasDue, `deletions` the topics being deleted, `halted` those of them
    with a replica that could not be deleted once, `awaited` the brokers that the next event brings
    online.

    `former_epochs` are the highest leader epochs of deleted topics. One that is made anew begins
    above: clients ignore metadata of an older epoch than they know, and would wait for the former
    leader for good. At a newer one they compare their position with the log. Kafka tells newer
    clients the topic's id instead, and begins at 0.
    """

    broker_id: BrokerId
    epoch: ControllerEpoch
    settings: ControllerSettings = field(default_factory=ControllerSettings)
    brokers: Mapping[BrokerId, LiveBroker] = field(default_factory=dict)
    shutting_down: frozenset[BrokerId] = frozenset()
    topics: Mapping[str, TopicAssignment] = field(default_factory=dict)
    leaderships: Mapping[TopicPartition, Leadership] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, PartitionPhase] = field(default_factory=dict)
    replicas: Mapping[Replica, ReplicaPhase] = field(default_factory=dict)
    unclean: Mapping[str, bool] = field(default_factory=dict)
    failed: frozenset[Replica] = frozenset()
    failures: Mapping[Replica, int] = field(default_factory=dict)
    awaited: frozenset[BrokerId] = frozenset()
    deletions: frozenset[str] = frozenset()
    halted: frozenset[str] = frozenset()
    former_epochs: Mapping[str, LeaderEpoch] = field(default_factory=dict)
    causes: Mapping[TopicPartition, Cause] = field(default_factory=dict)
    conflicts: Mapping[TopicPartition, int] = field(default_factory=dict)

    def offline_partitions(self) -> list[TopicPartition]:
        """Return the partitions without a live leader, except those of deleted topics."""
        return [
            partition
            for partition, phase in self.partitions.items()
            if phase is not PartitionPhase.ONLINE and partition.topic not in self.deletions
        ]

    def assignment(self, partition: TopicPartition) -> ReplicaAssignment | None:
        """Return the replica assignment of a partition, None if there is no such partition."""
        return _assignment(self.topics.get(partition.topic), partition)

    def is_deleting(self, replica: Replica) -> bool:
        """Return whether a replica is being deleted."""
        return self.replicas.get(replica) in DELETION_PHASES

    def being_reassigned(self) -> list[TopicPartition]:
        """Return the partitions that are being reassigned."""
        return list(_being_reassigned(self.topics))

    def is_being_reassigned(self, partition: TopicPartition) -> bool:
        """Return whether a partition is being reassigned."""
        assignment = self.assignment(partition)
        return assignment is not None and assignment.is_being_reassigned

    def replicated_partitions_on(self, broker_id: BrokerId) -> list[TopicPartition]:
        """Return the partitions with several replicas that have one on a broker."""
        return [
            TopicPartition(topic, number)
            for topic, assignment in self.topics.items()
            if topic not in self.deletions
            for number, replicas in assignment.partitions.items()
            if broker_id in replicas and len(replicas) > 1
        ]

    def replicated_partitions_led_by(self, broker_id: BrokerId) -> list[TopicPartition]:
        """Return the partitions with several replicas that a broker leads: it should not stop."""
        return [
            partition
            for partition, leadership in self.leaderships.items()
            if leadership.state.leader == broker_id
            and partition.topic in self.topics
            and len(self.topics[partition.topic].partitions.get(partition.partition, ())) > 1
            and partition.topic not in self.deletions
        ]


def _assignment(
    topic: TopicAssignment | None, partition: TopicPartition
) -> ReplicaAssignment | None:
    if topic is None or partition.partition not in topic.partitions:
        return None
    return replica_assignment.of(topic, partition.partition)


def _being_reassigned(topics: Mapping[str, TopicAssignment]) -> Iterator[TopicPartition]:
    for topic, assignment in topics.items():
        for number in sorted(assignment.adding.keys() | assignment.removing.keys()):
            yield TopicPartition(topic, number)


class Editable(Generic[K, V]):
    """A mapping that is copied at its first change; `current` is the present one."""

    __slots__ = ("_own", "current")

    def __init__(self, base: Mapping[K, V]) -> None:
        self.current = base
        self._own: dict[K, V] | None = None

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
        """Return the present items."""
        return self.current.items()

    def edit(self) -> dict[K, V]:
        """Return a copy that may be changed."""
        if self._own is None:
            self.current = self._own = dict(self.current)
        return self._own


class Draft:
    """The mutable copy of the context during a step, and the actions so far."""

    def __init__(self, context: ControllerContext) -> None:
        self.base = context
        self.settings = context.settings
        self.brokers = context.brokers
        self.shutting_down = context.shutting_down
        self.failed = context.failed
        self.awaited = context.awaited
        self.deletions = context.deletions
        self.halted = context.halted
        self.topics = Editable(context.topics)
        self.leaderships = Editable(context.leaderships)
        self.partitions = Editable(context.partitions)
        self.replicas = Editable(context.replicas)
        self.unclean = Editable(context.unclean)
        self.causes = Editable(context.causes)
        self.conflicts = Editable(context.conflicts)
        self.failures = Editable(context.failures)
        self.former_epochs = Editable(context.former_epochs)
        self._creates: dict[TopicPartition, PartitionState] = {}
        self._updates: dict[TopicPartition, Leadership] = {}
        self._metadata = MetadataBatch()
        self._roles: dict[BrokerId, dict[TopicPartition, PartitionRole]] = {}
        self._stops: dict[tuple[BrokerId, bool], dict[TopicPartition, None]] = {}
        self._removed_reassignments: dict[TopicPartition, tuple[BrokerId, ...] | None] | None = None
        self._assignments: dict[TopicPartition, ReplicaAssignment] = {}
        self._last: list[Action] = []

    # --- questions ---

    def replicas_of(self, partition: TopicPartition) -> tuple[BrokerId, ...]:
        """Return the assigned brokers, preferred first."""
        return self.topics.current[partition.topic].partitions[partition.partition]

    def kept_replicas(self, partition: TopicPartition) -> tuple[BrokerId, ...]:
        """Return the assigned brokers whose replicas are not being deleted, preferred first."""
        replicas, phases = self.replicas_of(partition), self.replicas.current
        for one in replicas:
            if phases.get(Replica(partition, one)) in DELETION_PHASES:
                break
        else:  # the usual case
            return replicas
        return tuple(
            one for one in replicas if phases.get(Replica(partition, one)) not in DELETION_PHASES
        )

    def told_assignment(self, partition: TopicPartition) -> ReplicaAssignment:
        """Return the assignment that LeaderAndIsr tells: see `ReplicaAssignment.as_told`."""
        kept, topic = self.kept_replicas(partition), self.topics[partition.topic]
        if partition.partition not in topic.adding and partition.partition not in topic.removing:
            return ReplicaAssignment(kept)
        current = replica_assignment.of(topic, partition.partition)
        leadership = self.leaderships.get(partition)
        deleted = [one for one in current.replicas if one not in kept]
        return current.as_told(deleted, () if leadership is None else leadership.state.isr)

    def is_deleting(self, replica: Replica) -> bool:
        """Return whether a replica is being deleted."""
        return self.replicas.get(replica) in DELETION_PHASES

    def assignment(self, partition: TopicPartition) -> ReplicaAssignment | None:
        """Return the replica assignment of a partition, None if there is no such partition."""
        return _assignment(self.topics.get(partition.topic), partition)

    def being_reassigned(self) -> list[TopicPartition]:
        """Return the partitions that are being reassigned."""
        return list(_being_reassigned(self.topics.current))

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
        """Return whether a replica's broker is registered and its disk works."""
        return broker_id in self.brokers and Replica(partition, broker_id) not in self.failed

    def available(self, partition: TopicPartition) -> Available:
        """Return the brokers that have a working replica, and those that can lead."""
        alive = [one for one in self.kept_replicas(partition) if self.is_alive(partition, one)]
        return Available(alive, [one for one in alive if one not in self.shutting_down])

    def in_deleted_topic(self, partition: TopicPartition) -> bool:
        """Return whether the partition's topic is being deleted."""
        return partition.topic in self.deletions

    def allows_unclean(self, partition: TopicPartition) -> bool:
        """Return whether a replica that is not in sync may lead the partition.

        It may not while an in-sync replica is awaited.
        """
        if not self.awaited.isdisjoint(self.leaderships[partition].state.isr):
            return False
        override = self.unclean.get(partition.topic)
        return self.settings.unclean_leader_election if override is None else override

    def first_state(
        self, topic: str, leader: BrokerId, isr: tuple[BrokerId, ...]
    ) -> PartitionState:
        """Return the first state of a partition: its epoch is above those of a former topic."""
        former = self.former_epochs.get(topic)
        epoch = LeaderEpoch(0 if former is None else former + 1)
        return PartitionState(leader, epoch, isr, self.base.epoch)

    def next_state(
        self, before: PartitionState, leader: BrokerId, isr: tuple[BrokerId, ...], by: int = 1
    ) -> PartitionState:
        """Return the next state: every change by the controller starts a new leader epoch."""
        epoch = LeaderEpoch(before.leader_epoch + by)
        return PartitionState(leader, epoch, isr, self.base.epoch)

    # --- changes ---

    def enter_partition(self, partition: TopicPartition, *phases: PartitionPhase) -> None:
        """Enter the phases one after the other, each checked."""
        for phase in phases:
            now = self.partitions.get(partition) or PartitionPhase.NON_EXISTENT
            states.enter_partition(partition, now, phase)
            self.partitions.edit()[partition] = phase

    def enter_replica(self, replica: Replica, *phases: ReplicaPhase) -> None:
        """Enter the phases one after the other, each checked."""
        for phase in phases:
            now = self.replicas.get(replica) or ReplicaPhase.NON_EXISTENT
            states.enter_replica(replica, now, phase)
            self.replicas.edit()[replica] = phase

    def set_assignments(self, assignments: Mapping[TopicPartition, ReplicaAssignment]) -> None:
        """Set the replica assignments of those of the partitions that still exist."""
        by_topic: dict[str, dict[int, ReplicaAssignment]] = {}
        for partition, one in assignments.items():
            if self.assignment(partition) is not None:
                by_topic.setdefault(partition.topic, {})[partition.partition] = one
        for topic, changes in by_topic.items():
            self.topics.edit()[topic] = replica_assignment.with_changes(self.topics[topic], changes)

    def forget_topic(self, topic: str) -> None:
        """Remove everything known about a topic."""
        gone: list[Replica] = []
        for partition in self.partitions_of(topic):
            gone += [Replica(partition, broker_id) for broker_id in self.replicas_of(partition)]
            self.leaderships.edit().pop(partition, None)
            self.partitions.edit().pop(partition, None)
            self.causes.edit().pop(partition, None)
            self.conflicts.edit().pop(partition, None)
        for replica in gone:
            self.replicas.edit().pop(replica, None)
            if replica in self.failures:
                self.failures.edit().pop(replica)
        if not self.failed.isdisjoint(gone):
            self.failed -= frozenset(gone)
        self.topics.edit().pop(topic)
        self.unclean.edit().pop(topic, None)
        self.deletions -= {topic}
        self.halted -= {topic}

    def forget_replica(self, replica: Replica) -> None:
        """Remove everything known about a replica that is not assigned any more, or anew."""
        self.replicas.edit().pop(replica, None)
        if replica in self.failed:
            self.failed -= {replica}
        if replica in self.failures:
            self.failures.edit().pop(replica)

    def forget_failures(self, of: Callable[[Replica], bool]) -> None:
        """Forget that some replicas failed, and how often."""
        self.failed = frozenset(one for one in self.failed if not of(one))
        self.forgive_failures(of)

    def forgive_failures(self, of: Callable[[Replica], bool]) -> None:
        """Forget how often some replicas failed: they may return when they work again."""
        for replica in filter(of, tuple(self.failures)):
            self.failures.edit().pop(replica)

    # --- actions ---

    def create_state(self, partition: TopicPartition, state: PartitionState) -> None:
        """Write the first state of a partition."""
        self._creates[partition] = state

    def update_state(self, partition: TopicPartition, wanted: Leadership, cause: Cause) -> None:
        """Update the state of a partition; `wanted` names the version that it replaces."""
        self._updates[partition] = wanted
        self.causes.edit()[partition] = cause

    def is_being_written(self, partition: TopicPartition) -> bool:
        """Return whether this step writes the partition's state; brokers learn it afterwards."""
        return partition in self._updates or partition in self._creates

    def add_update_metadata(
        self, to: Collection[BrokerId], partitions: Iterable[TopicPartition] = ()
    ) -> None:
        """Send brokers the live brokers, and the metadata of partitions that have a state."""
        known = [partition for partition in partitions if partition in self.leaderships]
        self._metadata.add(to, {partition: self._describe(partition) for partition in known})

    def _describe(self, partition: TopicPartition) -> PartitionMetadata:
        leadership = self.leaderships[partition]
        if self.in_deleted_topic(partition):
            gone = replace(leadership.state, leader=LEADER_DURING_DELETE)
            leadership = replace(leadership, state=gone)
        deleted = self.in_deleted_topic(partition)
        replicas = self.replicas_of(partition) if deleted else self.kept_replicas(partition)
        offline = tuple(one for one in replicas if not self.is_alive(partition, one))
        return PartitionMetadata(partition, leadership, replicas, offline)

    def add_leader_and_isr(
        self, to: Iterable[BrokerId], partition: TopicPartition, is_new: bool = False
    ) -> None:
        """Send live brokers the state of a partition of which they have a replica.

        A replica that a reassignment adds is new until it is in sync: it may be created on any
        disk, whatever a failed disk may have held.
        """
        leadership, told = self.leaderships[partition], self.told_assignment(partition)
        for broker_id in to:
            if broker_id in self.brokers and broker_id in told.replicas:
                new = is_new or (broker_id in told.adding and broker_id not in leadership.state.isr)
                self._roles.setdefault(broker_id, {})[partition] = PartitionRole(
                    partition, leadership, told.replicas, told.adding, told.removing, new
                )

    def add_stop_replica(self, to: BrokerId, partition: TopicPartition, delete: bool) -> None:
        """Make a broker stop a replica, and delete it if `delete`."""
        self._stops.setdefault((to, delete), {})[partition] = None

    def remove_topic(self, topic: str) -> None:
        """Remove the znodes of a topic that no broker has any more, and remember its epochs.

        Those of a topic whose znodes somebody removed by hand are not remembered: brokers know
        that it was made anew by its epoch, which falls.
        """
        self._last.append(RemoveTopic(topic))
        known = [one for one in self.partitions_of(topic) if one in self.leaderships]
        if known:
            former = self.former_epochs.edit()
            former.pop(topic, None)
            former[topic] = max(self.leaderships[one].state.leader_epoch for one in known)
            if len(former) > MOST_FORMER_TOPICS:
                del former[next(iter(former))]

    def remove_deletions(self, topics: Iterable[str]) -> None:
        """Remove deletion requests."""
        self._last.append(RemoveDeletions(tuple(sorted(topics))))

    def write_assignment(self, partition: TopicPartition, wanted: ReplicaAssignment) -> None:
        """Write the replica assignment of a partition into its topic's znode."""
        self._assignments[partition] = wanted

    def remove_reassignments(
        self, done: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> None:
        """Remove entries from /admin/reassign_partitions that name these replicas; None is any."""
        self._removed_reassignments = {**(self._removed_reassignments or {}), **done}

    def remove_reassignments_of(self, topic: str) -> None:
        """Remove the entries of a topic from /admin/reassign_partitions."""
        reassigning = _being_reassigned({topic: self.topics[topic]})
        if wanted := dict.fromkeys(reassigning):
            self.remove_reassignments(wanted)

    def watch_states(self, partitions: Collection[TopicPartition]) -> None:
        """Watch the states of these partitions."""
        if partitions:
            self._last.append(WatchStates(tuple(partitions)))

    def finish_preferred_election(self) -> None:
        """Remove /admin/preferred_replica_election."""
        self._last.append(FinishPreferredElection())

    def finish(self) -> tuple[ControllerContext, list[Action]]:
        """Return the next context, and the actions in their order."""
        context = replace(
            self.base,
            settings=self.settings,
            brokers=self.brokers,
            shutting_down=self.shutting_down,
            failed=self.failed,
            awaited=self.awaited,
            deletions=self.deletions,
            halted=self.halted,
            topics=self.topics.current,
            leaderships=self.leaderships.current,
            partitions=self.partitions.current,
            replicas=self.replicas.current,
            unclean=self.unclean.current,
            causes=self.causes.current,
            conflicts=self.conflicts.current,
            failures=self.failures.current,
            former_epochs=self.former_epochs.current,
        )
        # A broker that is new to this controller first receives metadata: where the others are. The
        # others first receive LeaderAndIsr, so that none tells clients that it leads too early.
        added = self.brokers.keys() - self.base.brokers.keys()
        actions: list[Action] = [
            *self._metadata.messages(added, self.brokers),
            *self._role_messages(),
            *self._metadata.messages(self.brokers.keys() - added, self.brokers),
        ]
        actions += [
            StopReplicas(broker_id, tuple(partitions), delete)
            for (broker_id, delete), partitions in sorted(self._stops.items(), key=lambda i: i[0])
            if broker_id in self.brokers
        ]
        if self._creates or self._updates:
            actions.append(WriteStates(self._creates, self._updates))
        if self._removed_reassignments is not None:
            actions.append(RemoveReassignments(self._removed_reassignments))
        if self._assignments:
            actions.append(WriteAssignments(self._assignments))
        return context, actions + self._last

    def _role_messages(self) -> Iterator[LeaderAndIsr]:
        for broker_id, roles in sorted(self._roles.items()):
            leaders = sorted({role.leadership.state.leader for role in roles.values()})
            live = tuple(self.brokers[leader] for leader in leaders if leader in self.brokers)
            yield LeaderAndIsr(broker_id, tuple(roles.values()), live)
