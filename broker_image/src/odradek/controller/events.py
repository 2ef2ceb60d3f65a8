"""What the controller's core is told (events) and what it wants done (actions), as values.

`loop` turns znodes and answers into events and carries actions out; `step` is the pure function
between them. Within one event's actions the order counts: messages come before writes, and the
result of a write comes back as `StatesWritten` before any other event is looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from odradek.controller.election import Cause
from odradek.controller.placement import Placement
from odradek.values import BrokerId, TopicPartition
from odradek.zk.znodes import BrokerRegistration, PartitionState, TopicAssignment


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A registered broker; `epoch` is the czxid of its znode, another one after every restart."""

    registration: BrokerRegistration
    epoch: int


@dataclass(frozen=True, slots=True)
class Leadership:
    """A partition's `state` znode with the version that the next write must name."""

    state: PartitionState
    zk_version: int


# --- events ---


@dataclass(frozen=True, slots=True)
class ContextLoaded:
    """Everything a new controller reads.

    `unclean` holds topics that override unclean election, `deletions` the requested deletions.
    `awaited` are registered, but not among `brokers` until the next event.
    """

    brokers: Mapping[BrokerId, LiveBroker]
    topics: Mapping[str, TopicAssignment]
    leaderships: Mapping[TopicPartition, Leadership]
    unclean: Mapping[str, bool] = field(default_factory=dict)
    deletions: frozenset[str] = frozenset()
    awaited: frozenset[BrokerId] = frozenset()


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """All brokers that are registered now; none of them may have restarted unseen (`split`)."""

    brokers: Mapping[BrokerId, LiveBroker]


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """Topics that appeared, with their overrides of unclean election, and topics that are gone."""

    added: Mapping[str, TopicAssignment]
    removed: frozenset[str] = frozenset()
    unclean: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionsChanged:
    """A topic's znode was written."""

    topic: str
    assignment: TopicAssignment


@dataclass(frozen=True, slots=True)
class UncleanChanged:
    """A topic's override of unclean election; None where it has none."""

    topic: str
    enabled: bool | None


@dataclass(frozen=True, slots=True)
class DeletionsRequested:
    """All topics that /admin/delete_topics names."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class ReplicasStopped:
    """A broker answered StopReplica with delete."""

    broker_id: BrokerId
    deleted: frozenset[TopicPartition]
    failed: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    """The znodes of a deleted topic are gone."""

    topic: str


@dataclass(frozen=True, slots=True)
class IsrChanged:
    """States that leaders wrote, read again after their notice."""

    leaderships: Mapping[TopicPartition, Leadership]


@dataclass(frozen=True, slots=True)
class PreferredRequested:
    """Partitions that shall be led by their preferred replicas."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ElectionRequested:
    """ElectLeaders (KIP-460): partitions whose leader shall be chosen by the rule of `cause`."""

    partitions: tuple[TopicPartition, ...]
    cause: Cause


@dataclass(frozen=True, slots=True)
class ReassignmentRequested:
    """The replicas that partitions shall have; None cancels what is under way (KIP-455).

    `by_znode`: /admin/reassign_partitions asks for it, and these are all of its entries.
    """

    wanted: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    by_znode: bool


@dataclass(frozen=True, slots=True)
class RebalanceDue:
    """It is time to look for brokers that lead too little of what they are preferred for."""


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """A broker wants to leave; its leaderships shall move first."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class LogDirFailed:
    """A broker says that one of its log.dirs failed."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class ReplicasFailed:
    """A broker answered LeaderAndIsr with storage errors for these partitions."""

    broker_id: BrokerId
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ResendRequired:
    """Messages to a broker were given up; it must be told everything again."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class StatesWritten:
    """How WriteStates went.

    `written` stand as wanted; for `conflicts` somebody else wrote first, and this is what stands;
    `missing` have no znode, nor has their topic.
    """

    written: Mapping[TopicPartition, Leadership]
    conflicts: Mapping[TopicPartition, Leadership] = field(default_factory=dict)
    missing: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class PlacementsWritten:
    """The topics' znodes say this now of these partitions; those that are gone are left out."""

    written: Mapping[TopicPartition, Placement]


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
    | ResendRequired
    | StatesWritten
    | PlacementsWritten
)


# --- actions ---


@dataclass(frozen=True, slots=True)
class WriteStates:
    """Create and update `state` znodes; an update names the version it replaces."""

    creates: Mapping[TopicPartition, PartitionState]
    updates: Mapping[TopicPartition, Leadership]


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """What every broker learns of a partition."""

    partition: TopicPartition
    leadership: Leadership
    replicas: tuple[BrokerId, ...]
    offline_replicas: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class UpdateMetadata:
    """Tell these brokers who lives, and of these partitions."""

    to: tuple[BrokerId, ...]
    brokers: tuple[LiveBroker, ...]
    partitions: tuple[PartitionMetadata, ...]


@dataclass(frozen=True, slots=True)
class PartitionRole:
    """What a replica learns of its partition; `is_new` where it cannot have existed before."""

    partition: TopicPartition
    leadership: Leadership
    replicas: tuple[BrokerId, ...]
    is_new: bool


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """Tell a broker to lead or follow. `leaders` are the living leaders that it will follow."""

    to: BrokerId
    roles: tuple[PartitionRole, ...]
    leaders: tuple[LiveBroker, ...]


@dataclass(frozen=True, slots=True)
class StopReplicas:
    """Tell a broker to stop replicas, and to delete them where `delete` says so."""

    to: BrokerId
    partitions: tuple[TopicPartition, ...]
    delete: bool


@dataclass(frozen=True, slots=True)
class RemoveTopic:
    """Remove a topic whose replicas are all deleted; answered by TopicRemoved."""

    topic: str


@dataclass(frozen=True, slots=True)
class DropDeletions:
    """Remove requests for deletions that will not be done."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FinishPreferredElection:
    """Remove the request for a preferred election."""


@dataclass(frozen=True, slots=True)
class WritePlacements:
    """Write where partitions are and go into their topics' znodes: answered, PlacementsWritten."""

    placements: Mapping[TopicPartition, Placement]


@dataclass(frozen=True, slots=True)
class DropReassignments:
    """Take entries out of /admin/reassign_partitions, and remove it when none is left.

    An entry goes if it names these replicas; None stands for any.
    """

    done: Mapping[TopicPartition, tuple[BrokerId, ...] | None]


@dataclass(frozen=True, slots=True)
class WatchStates:
    """Watch the states of partitions that move, without waiting for the leaders' notices."""

    partitions: tuple[TopicPartition, ...]


Message = UpdateMetadata | LeaderAndIsr | StopReplicas
Action = (
    Message
    | WriteStates
    | WritePlacements
    | DropReassignments
    | WatchStates
    | RemoveTopic
    | DropDeletions
    | FinishPreferredElection
)
