"""What is known of a cluster and its topics: values that several kinds read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from odradek.values import BrokerId
from odradek.zk.znodes import PartitionState, TopicAssignment
from odradek_operator.shared.broker_sets import NO_BROKERS, BrokerSets


@dataclass(frozen=True, slots=True)
class Partitions:
    """Counts over all partitions of a cluster.

    `under_replicated` is counted as Kafka does (`Partition.isUnderReplicated`): what a reassignment
    adds need not be in sync yet, and once all that stay are, those that it removes are missed no
    more. `copying` partitions lack only replicas that are added.

    `holders` are the brokers that hold replicas, `widest` is the topic with the most replicas, and
    how many these are. `unreadable` says what is wrong with the znodes of topics that are in none
    of this: who holds their replicas, and whether in sync, is not known. `lagging` are the brokers
    that some partition needs and has not in sync, `sharing` the pairs that hold replicas of one
    partition. Of those `replacing`, one takes the replicas over from the other. `widest` is without
    replicas that are just added.
    """

    under_replicated: int
    offline: int
    holders: frozenset[int]
    widest: tuple[int, str] = (0, "")
    unreadable: tuple[str, ...] = ()
    lagging: frozenset[int] = frozenset()
    sharing: frozenset[frozenset[int]] = frozenset()
    replacing: frozenset[frozenset[int]] = frozenset()
    copying: int = 0

    @property
    def all_in_sync(self) -> bool:
        """Return whether every partition is known to have all its replicas, added ones too."""
        return not (self.under_replicated or self.copying or self.offline or self.unreadable)


class Owner(Enum):
    """State of the KafkaCluster resource that a topic or group refers to.

    CONFLICTED: an older KafkaCluster keeps its state in the same znodes, so what is there is that
    one's. NOT_PERMITTED: it is in another namespace, and does not exist, or does not allow this
    one. UNWATCHED: it is in a namespace that this operator may not read.
    """

    PRESENT = "present"
    TERMINATING = "terminating"
    GONE = "not there"
    CONFLICTED = "in conflict with an older one"
    NOT_PERMITTED = "not there, or does not name this namespace in spec.jobs.allowedNamespaces"
    UNWATCHED = "in a namespace that this operator may not read"

    @property
    def reason(self) -> str:
        """Reason of the condition of a resource that waits for its cluster.

        RefNotPermitted is the word of the Gateway API for a reference that nobody granted.
        """
        match self:
            case Owner.CONFLICTED:
                return "ClusterConflict"
            case Owner.NOT_PERMITTED | Owner.UNWATCHED:
                return "RefNotPermitted"
            case _:
                return "ClusterNotFound"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What all topics of a cluster share. `brokers` maps registered ids to racks.

    `wanted` are the brokers of the spec. Where brokers share nodes, `nodes` has the node of each
    that is known to have one, and no partition may have two replicas on one.

    `settled_seconds` is how long the set of registered brokers has not changed. `reachable` False:
    ZooKeeper did not answer, or nobody can log in, as `away` says, and nothing else here means
    anything. The defaults are None while the cluster's spec is invalid; `min_insync` is that of
    topics without one. Unless it `deletes_topics`, the controller drops requests to.
    """

    owner: Owner
    paused: bool = False
    reachable: bool = True
    away: str = "ZooKeeper does not answer"
    brokers: Mapping[BrokerId, str | None] = field(default_factory=dict)
    wanted: BrokerSets = NO_BROKERS
    nodes: Mapping[int, str] = field(default_factory=dict)
    settled_seconds: float = 0.0
    default_partitions: int | None = 1
    default_replication_factor: int | None = 1
    min_insync: int = 1
    deletes_topics: bool = True

    @property
    def places(self) -> int:
        """How many replicas of a partition the registered brokers can have."""
        if not self.wanted.share_nodes:
            return len(self.brokers)
        return len({self.nodes.get(one, str(one)) for one in self.brokers})

    @property
    def most_replicas(self) -> int:
        """How many replicas a partition can have once all brokers are registered."""
        expected = self.wanted.counts[0] if self.wanted.share_nodes else len(self.wanted)
        return max(expected, self.places)


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as it is in ZooKeeper. `assignment` None: there is no such topic.

    `config` None: there is no configuration znode. `unreadable` says which znode makes no sense.
    `others` are the topics that there are, where this is none of them and its name may collide.
    `preceding` is one that an older Topic may create just now, and whose name collides.
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
    preceding: str | None = None


FINISHED_PHASES: Final = ("Completed", "Cancelled", "RolledBack", "Failed")
