"""What is known of a topic and its cluster, and what can be done about a topic: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from odradek.values import BrokerId
from odradek.zk.znodes import PartitionState, TopicAssignment
from odradek_operator.status import Condition, Event

# status.incarnation of a topic that this operator is about to create.
CREATING: Final = 0
STEADY_SECONDS: Final = 60.0


class Owner(Enum):
    """State of the KafkaCluster resource that a topic or group refers to.

    CONFLICTED: an older KafkaCluster keeps its state in the same znodes, so what is there is that
    one's.
    """

    PRESENT = "present"
    TERMINATING = "terminating"
    GONE = "gone"
    CONFLICTED = "in conflict with an older one"

    @property
    def reason(self) -> str:
        """Reason of the condition of a resource that waits for its cluster."""
        return "ClusterConflict" if self is Owner.CONFLICTED else "ClusterNotFound"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What all topics of a cluster share. `brokers` maps registered ids to racks.

    `settled_seconds` is how long the set of registered brokers has not changed. `reachable` False:
    ZooKeeper did not answer, and nothing else here means anything. The defaults are None while the
    cluster's spec is invalid.
    """

    owner: Owner
    paused: bool = False
    reachable: bool = True
    brokers: Mapping[BrokerId, str | None] = field(default_factory=dict)
    expected: int = 0
    settled_seconds: float = 0.0
    default_partitions: int | None = 1
    default_replication_factor: int | None = 1


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as it is in ZooKeeper. `assignment` None: there is no such topic.

    `config` None: there is no configuration znode. `unreadable` says which znode makes no sense.
    `others` are the topics that there are, where this is none of them and its name may collide.
    """

    assignment: TopicAssignment | None = None
    version: int = -1
    incarnation: int | None = None
    config: Mapping[str, str] | None = None
    config_version: int = -1
    states: Mapping[int, PartitionState] = field(default_factory=dict)
    deletion_requested: bool = False
    unreadable: str | None = None
    others: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Write `/config/topics/T` and `/brokers/topics/T` in one transaction."""

    topic: str
    assignment: TopicAssignment
    config: Mapping[str, str]
    config_version: int | None


@dataclass(frozen=True, slots=True)
class GrowTopic:
    """Write `/brokers/topics/T` with more partitions if it still has this version."""

    topic: str
    assignment: TopicAssignment
    version: int


@dataclass(frozen=True, slots=True)
class SetConfig:
    """Write `/config/topics/T` and a notice; `version` None creates the znode."""

    topic: str
    config: Mapping[str, str]
    version: int | None


@dataclass(frozen=True, slots=True)
class RequestDeletion:
    """Create `/admin/delete_topics/T` if `/brokers/topics/T` still has this version."""

    topic: str
    version: int


@dataclass(frozen=True, slots=True)
class OwnMove:
    """A Reassignment that a Topic made: whether it has ended, and how it stands."""

    name: str
    finished: bool
    outcome: str


@dataclass(frozen=True, slots=True)
class StartMove:
    """Create a Reassignment, unless one of this Topic has not ended."""

    wanted: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Add or take away the operator's finalizer."""

    present: bool


Step = CreateTopic | GrowTopic | SetConfig | RequestDeletion | StartMove | SetFinalizer


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. `again` is in how many seconds to look again if nothing happens before.

    With `told_first` the status is written before the steps, and they are only done if it was.
    """

    steps: tuple[Step, ...] = ()
    conditions: tuple[Condition, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    again: float = STEADY_SECONDS
    told_first: bool = False
