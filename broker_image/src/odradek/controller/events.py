"""The events and actions of the controller's pure core, as values.

`active_controller` turns znodes and answers into events and carries out actions; `step` is the pure
function between them. The order of one event's actions counts: messages come before writes, and the
result of a write comes back as `StatesWritten` before any other event is handled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from odradek.controller.election import Cause
from odradek.controller.replica_assignment import ReplicaAssignment
from odradek.values import BrokerId, LeaderEpoch, TopicPartition
from odradek.zk.znodes import BrokerRegistration, PartitionState, TopicAssignment


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A registered broker; its `epoch` is the czxid of its znode, a new one after each restart."""

    registration: BrokerRegistration
    epoch: int


@dataclass(frozen=True, slots=True)
class Leadership:
    """A partition's `state` znode, and the version that the next write must name."""

    state: PartitionState
    zk_version: int


# --- events ---


@dataclass(frozen=True, slots=True)
class ContextLoaded:
    """Everything a new controller reads.

    `unclean` are the topics that override unclean.leader.election.enable, `deletions` the topics to
    be deleted. `awaited` brokers are registered, but not in `brokers` until the next event. Leaders
    of `led_since_restart` partitions registered after the partition's state was written.
    """

    brokers: Mapping[BrokerId, LiveBroker]
    topics: Mapping[str, TopicAssignment]
    leaderships: Mapping[TopicPartition, Leadership]
    unclean: Mapping[str, bool] = field(default_factory=dict)
    deletions: frozenset[str] = frozenset()
    awaited: frozenset[BrokerId] = frozenset()
    led_since_restart: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """All registered brokers, none restarted since the last event; see `step.broker_events`."""

    brokers: Mapping[BrokerId, LiveBroker]


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """Topics that were created, with their overrides of unclean election, and removed topics."""

    added: Mapping[str, TopicAssignment]
    removed: frozenset[str] = frozenset()
    unclean: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionsChanged:
    """A topic's znode changed."""

    topic: str
    assignment: TopicAssignment


@dataclass(frozen=True, slots=True)
class UncleanChanged:
    """A topic's override of unclean.leader.election.enable; None if it has none.

    Without a topic, the default of all topics.
    """

    topic: str | None
    enabled: bool | None


@dataclass(frozen=True, slots=True)
class DeletionsRequested:
    """All topics in /admin/delete_topics."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class ReplicasStopped:
    """A broker answered StopReplica with delete."""

    broker_id: BrokerId
    deleted: frozenset[TopicPartition]
    failed: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    """The znodes of a deleted topic are removed."""

    topic: str


@dataclass(frozen=True, slots=True)
class IsrChanged:
    """States that leaders wrote, read after their ISR change notifications."""

    leaderships: Mapping[TopicPartition, Leadership]


@dataclass(frozen=True, slots=True)
class PreferredRequested:
    """The partitions in /admin/preferred_replica_election."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ElectionRequested:
    """The partitions of an ElectLeaders request (KIP-460), and the rule to apply."""

    partitions: tuple[TopicPartition, ...]
    cause: Cause


@dataclass(frozen=True, slots=True)
class ReassignmentRequested:
    """The target replicas of partitions; None cancels a reassignment (KIP-455).

    `by_znode`: these are all entries of /admin/reassign_partitions.
    """

    wanted: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    by_znode: bool


@dataclass(frozen=True, slots=True)
class RebalanceDue:
    """It is time to look for brokers that lead too few of their preferred partitions."""


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """A broker requested a controlled shutdown."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class LogDirFailed:
    """A broker reported that one of its log.dirs failed."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class ReplicasFailed:
    """A broker answered LeaderAndIsr with storage errors for these partitions."""

    broker_id: BrokerId
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ReplicasAnswered:
    """A broker answered LeaderAndIsr: it has the role, or that of a later epoch, of these."""

    broker_id: BrokerId
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class EpochsRefused:
    """A broker answered LeaderAndIsr with FENCED_LEADER_EPOCH: its logs of these partitions have
    higher leader epochs than these.
    """

    broker_id: BrokerId
    epochs: frozenset[tuple[TopicPartition, LeaderEpoch]]


@dataclass(frozen=True, slots=True)
class FailedReplicasDue:
    """It is time to ask the brokers again for replicas that failed, or were not deleted."""


@dataclass(frozen=True, slots=True)
class ResendRequired:
    """Queued messages to a broker were dropped; it must receive its full state again."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class StatesWritten:
    """The result of WriteStates.

    `written` succeeded. `conflicts` are the present states of partitions that somebody else wrote
    first. `missing` partitions have no znode, or their topic has none.
    """

    written: Mapping[TopicPartition, Leadership]
    conflicts: Mapping[TopicPartition, Leadership] = field(default_factory=dict)
    missing: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class AssignmentsWritten:
    """The assignments now in the topics' znodes; removed partitions are left out."""

    written: Mapping[TopicPartition, ReplicaAssignment]


Event = (
    ContextLoaded
    | BrokersChanged
    | TopicsChanged
    | PartitionsChanged
    | UncleanChanged
    | DeletionsRequested
    | ReplicasStopped
    | TopicRemoved
    | IsrChanged
    | PreferredRequested
    | ElectionRequested
    | ReassignmentRequested
    | RebalanceDue
    | ShutdownRequested
    | LogDirFailed
    | ReplicasFailed
    | ReplicasAnswered
    | EpochsRefused
    | FailedReplicasDue
    | ResendRequired
    | StatesWritten
    | AssignmentsWritten
)


# --- actions ---


@dataclass(frozen=True, slots=True)
class WriteStates:
    """Create and update `state` znodes; an update names the version that it replaces."""

    creates: Mapping[TopicPartition, PartitionState]
    updates: Mapping[TopicPartition, Leadership]


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """A partition in UpdateMetadata."""

    partition: TopicPartition
    leadership: Leadership
    replicas: tuple[BrokerId, ...]
    offline_replicas: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class UpdateMetadata:
    """Send these brokers the list of live brokers, and the metadata of partitions."""

    to: tuple[BrokerId, ...]
    brokers: tuple[LiveBroker, ...]
    partitions: tuple[PartitionMetadata, ...]


@dataclass(frozen=True, slots=True)
class PartitionRole:
    """A partition in LeaderAndIsr; `is_new` if the replica cannot have existed before.

    `adding` and `removing` are those of the replicas that a reassignment adds and removes.
    """

    partition: TopicPartition
    leadership: Leadership
    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]
    is_new: bool


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """Make a broker leader or follower. `leaders` are the live leaders of the partitions."""

    to: BrokerId
    roles: tuple[PartitionRole, ...]
    leaders: tuple[LiveBroker, ...]


@dataclass(frozen=True, slots=True)
class StopReplicas:
    """Make a broker stop replicas, and delete them if `delete`."""

    to: BrokerId
    partitions: tuple[TopicPartition, ...]
    delete: bool


@dataclass(frozen=True, slots=True)
class RemoveTopic:
    """Remove the znodes of a topic whose replicas are all deleted; TopicRemoved follows."""

    topic: str


@dataclass(frozen=True, slots=True)
class RemoveDeletions:
    """Remove rejected deletion requests."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FinishPreferredElection:
    """Remove /admin/preferred_replica_election."""


@dataclass(frozen=True, slots=True)
class WriteAssignments:
    """Write assignments into their topics' znodes; AssignmentsWritten follows."""

    assignments: Mapping[TopicPartition, ReplicaAssignment]


@dataclass(frozen=True, slots=True)
class RemoveReassignments:
    """Remove entries from /admin/reassign_partitions, and remove it when it is empty.

    An entry is removed if it names these replicas; None stands for any.
    """

    done: Mapping[TopicPartition, tuple[BrokerId, ...] | None]


@dataclass(frozen=True, slots=True)
class WatchStates:
    """Watch the states of reassigned partitions, without waiting for ISR change notifications."""

    partitions: tuple[TopicPartition, ...]


Message = UpdateMetadata | LeaderAndIsr | StopReplicas
Action = (
    Message
    | WriteStates
    | WriteAssignments
    | RemoveReassignments
    | WatchStates
    | RemoveTopic
    | RemoveDeletions
    | FinishPreferredElection
)
