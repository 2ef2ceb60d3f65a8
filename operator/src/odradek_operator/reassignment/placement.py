"""Which replicas go where: the modes of a Reassignment as pure functions.

Each mode returns the partitions that change, with their new replicas, preferred leader first. Data
moves as little as the mode allows: a replica that may stay stays. If brokers have racks, no
partition ends on fewer racks than it was on, and a new replica goes to an unused rack while there
is one. If brokers share nodes, none goes to a node that has another replica. Otherwise the broker
with the fewest replicas of the topic, then the fewest overall, is chosen. Preferred leaders of
moved partitions are balanced; those of partitions that only gain or lose replicas stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from typing import Final

from odradek.assignment import same_node
from odradek.values import TopicPartition

Replicas = tuple[int, ...]
Layout = Mapping[TopicPartition, Replicas]


class PlanError(Exception):
    """A mode cannot be planned as things are: `reason` in CamelCase, and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Seen:
    """What is there. `brokers` are those that may get replicas, with their racks.

    `others` are brokers that may get none, and may hold some: they are to go, or none of ours.

    `leaders` and `in_sync` tell of partitions that have a state. `nodes` has the nodes of all
    brokers that are known, where they share them.
    """

    replicas: Layout
    brokers: Mapping[int, str | None]
    leaders: Mapping[TopicPartition, int] = field(default_factory=dict)
    in_sync: Mapping[TopicPartition, frozenset[int]] = field(default_factory=dict)
    nodes: Mapping[int, str] = field(default_factory=dict)
    others: frozenset[int] = frozenset()

    def node(self, broker: int) -> str:
        """Return the node of a broker; one that shares none is its own."""
        return self.nodes.get(broker, f"broker {broker}")

    def places(self, brokers: Iterable[int]) -> int:
        """Return on how many nodes brokers are."""
        return len({self.node(one) for one in brokers})


class _Draft:
    """A layout that changes partition by partition, with its counts kept up to date."""

    def __init__(self, seen: Seen) -> None:
        self.replicas = dict(seen.replicas)
        self.brokers = seen.brokers
        self._seen = seen
        all_located = all(rack is not None for rack in seen.brokers.values())
        self._racks = seen.brokers if all_located else {}
        self._before = seen.replicas
        self._moved: list[TopicPartition] = []
        self.load = Counter(one for replicas in seen.replicas.values() for one in replicas)
        self._leader_counts = Counter(
            replicas[0] for replicas in seen.replicas.values() if replicas
        )
        self._of_topic = Counter(
            (partition.topic, one)
            for partition, replicas in seen.replicas.items()
            for one in replicas
        )

    def spread(self, replicas: Iterable[int]) -> int:
        """Return on how many racks replicas are; a broker that is away is on none."""
        return len({self._racks[one] for one in replicas if one in self._racks})

    def fits(self, broker: int, others: Iterable[int]) -> bool:
        """Return whether a broker shares no node with the others."""
        return self._seen.node(broker) not in map(self._seen.node, others)

    def weight(self, partition: TopicPartition, broker: int) -> tuple[int, int, int]:
        """Return how unwelcome one more replica of this partition is on a broker."""
        return self._of_topic[partition.topic, broker], self.load[broker], broker

    def surplus(self, topic: str, source: int, target: int) -> int:
        """Return how many more replicas of a topic one broker has than another."""
        return self._of_topic[topic, source] - self._of_topic[topic, target]

    def newcomer(self, partition: TopicPartition, kept: Replicas, among: Iterable[int]) -> int:
        """Return the best broker for one more replica; PlanError if no node is free."""
        free = [one for one in among if one not in kept and self.fits(one, kept)]
        if not free:
            raise PlanError(
                "NotEnoughBrokers",
                f"{partition} has replicas on brokers {sorted(kept)}; no other node has a broker",
            )
        return min(free, key=lambda one: (-self.spread((*kept, one)), self.weight(partition, one)))

    def set(
        self, partition: TopicPartition, replicas: Replicas, *, keep_order: bool = False
    ) -> None:
        """Give a partition other replicas, and the preferred leader that is needed most."""
        before = self.replicas[partition]
        for one in before:
            self.load[one] -= 1
            self._of_topic[partition.topic, one] -= 1
        for one in replicas:
            self.load[one] += 1
            self._of_topic[partition.topic, one] += 1
        self._leader_counts[before[0]] -= 1
        # A stable sort: where two are needed alike, the one that stood first stays first.
        first = (
            replicas[0] if keep_order else min(replicas, key=lambda one: self._leader_counts[one])
        )
        ordered = (first, *(one for one in replicas if one != first))
        self._leader_counts[first] += 1
        self.replicas[partition] = ordered
        if not keep_order:
            self._moved.append(partition)

    def _hand_over(self, partition: TopicPartition) -> bool:
        replicas = self.replicas[partition]
        first = min(replicas, key=lambda one: self._leader_counts[one])
        if self._leader_counts[replicas[0]] - self._leader_counts[first] <= 1:
            return False
        self._leader_counts[replicas[0]] -= 1
        self._leader_counts[first] += 1
        self.replicas[partition] = (first, *(one for one in replicas if one != first))
        return True

    def changes(self) -> dict[TopicPartition, Replicas]:
        """Even the leaders out among what moved, and return what differs from the beginning."""
        # Each swap brings two counts nearer to each other, so this ends. All are looked at before
        # the first is again, else each swap would cost a look at those before it.
        while sum(map(self._hand_over, self._moved)):
            pass
        return {
            partition: replicas
            for partition, replicas in sorted(self.replicas.items())
            if replicas != tuple(self._before[partition])
        }


def plan_explicit(seen: Seen, wanted: Layout) -> dict[TopicPartition, Replicas]:
    """Return the moves as written, without those that are done already."""
    for partition, replicas in wanted.items():
        if partition not in seen.replicas:
            text = f"partition {partition} does not exist; {_IF_GONE}"
            raise PlanError("UnknownPartition", text)
        if len(set(replicas)) != len(replicas):
            raise PlanError("InvalidMove", f"{partition} lists a broker twice")
        known = {*seen.brokers, *seen.replicas[partition]}
        _require(set(replicas) - known)
        if reason := same_node(partition, replicas, seen.nodes):
            raise PlanError("InvalidMove", reason)
    return {
        partition: replicas
        for partition, replicas in sorted(wanted.items())
        if tuple(seen.replicas[partition]) != replicas
    }


# Not an end: applied together with a Topic, a Reassignment may be the first to be looked at.
_IF_GONE: Final = "looked for again every minute; if the topic went, delete this Reassignment"


def _require(unknown: Collection[int]) -> None:
    if unknown:
        raise PlanError("BrokerUnavailable", f"brokers {sorted(unknown)} are not registered")


def plan_added(seen: Seen, added: Collection[int]) -> dict[TopicPartition, Replicas]:
    """Return moves that give new brokers their share, taken from those that have most."""
    _require(set(added) - set(seen.brokers))
    draft = _Draft(seen)
    donations = _Donations(draft, set(added))
    share = -(-sum(draft.load.values()) // max(1, len(seen.brokers)))
    hungry = sorted(set(added))
    while hungry:
        target = min(hungry, key=lambda one: (draft.load[one], one))
        if draft.load[target] >= share or not donations.feed(target):
            hungry.remove(target)
    return draft.changes()


class _Donations:
    """Moves replicas to the brokers that are added, from those that were there before."""

    def __init__(self, draft: _Draft, added: set[int]) -> None:
        self._draft = draft
        self._added = added
        self._held: dict[int, list[TopicPartition]] = {}
        for partition, replicas in draft.replicas.items():
            for one in replicas:
                self._held.setdefault(one, []).append(partition)
        self._offers: dict[tuple[int, int], _Offers] = {}

    def feed(self, target: int) -> bool:
        """Move one replica; return False if others have no more, or nothing can go to `target`."""
        draft = self._draft
        sources = sorted(
            (one for one in draft.brokers if one not in self._added),
            key=lambda one: (-draft.load[one], one),
        )
        for source in sources:
            if draft.load[source] - draft.load[target] <= 1:
                return False
            offers = self._offers.get((source, target))
            if offers is None:
                held = self._held.get(source, ())
                offers = self._offers[source, target] = _Offers(draft, source, target, held)
            best = offers.take()
            if best is not None:
                draft.set(*best)
                self._reconsider(*best)
                return True
        return False

    def _reconsider(self, partition: TopicPartition, replicas: Replicas) -> None:
        for source in replicas:
            for target in self._added:
                offers = self._offers.get((source, target))
                if offers is not None:
                    offers.reconsider(partition)


class _Offers:
    """The partitions of which one broker may give its replica to another, the best first.

    Who gives gets nothing, and the other way round. So the surplus of a topic only falls, and a
    topic need be looked at again only once it is the first.
    """

    def __init__(
        self, draft: _Draft, source: int, target: int, held: Iterable[TopicPartition]
    ) -> None:
        self._draft = draft
        self._source = source
        self._target = target
        # Heaps: of each topic the partitions, and the topics by what their surplus was, negative.
        self._numbers: dict[str, list[int]] = {}
        self._topics: list[tuple[int, str]] = []
        # Those that share a node with another replica, or would be on fewer racks.
        self._unfit: set[TopicPartition] = set()
        for partition in held:
            self._add(partition)

    def _add(self, partition: TopicPartition) -> None:
        numbers = self._numbers.get(partition.topic)
        if numbers is None:
            numbers = self._numbers[partition.topic] = []
            heappush(self._topics, (self._rank(partition.topic), partition.topic))
        heappush(numbers, partition.partition)

    def _rank(self, topic: str) -> int:
        """Return how good a topic is: of each one a share is moved, and not all of a small one."""
        return -self._draft.surplus(topic, self._source, self._target)

    def reconsider(self, partition: TopicPartition) -> None:
        """Offer a partition again whose other replicas have moved."""
        if partition in self._unfit:
            self._unfit.discard(partition)
            self._add(partition)

    def take(self) -> tuple[TopicPartition, Replicas] | None:
        """Return the best partition with its new replicas, once; None if there is no more."""
        while self._topics:
            rank, topic = self._topics[0]
            numbers = self._numbers[topic]
            if not numbers:
                heappop(self._topics)
                del self._numbers[topic]
            elif (now := self._rank(topic)) != rank:
                heapreplace(self._topics, (now, topic))
            else:
                partition = TopicPartition(topic, heappop(numbers))
                moved = self._moved(partition)
                if moved is not None:
                    return partition, moved
        return None

    def _moved(self, partition: TopicPartition) -> Replicas | None:
        """Return the replicas after a move; None if it is not possible."""
        draft, source, target = self._draft, self._source, self._target
        replicas = draft.replicas[partition]
        if source not in replicas or target in replicas:
            return None  # for good
        moved = tuple(target if one == source else one for one in replicas)
        fits = draft.fits(target, (one for one in replicas if one != source))
        if fits and draft.spread(moved) >= draft.spread(replicas):
            return moved
        self._unfit.add(partition)
        return None


def unknown_brokers(seen: Seen, named: Collection[int]) -> list[int]:
    """Return the brokers that are not there and hold nothing: they have gone, or never were."""
    return sorted(set(named) - _known_brokers(seen))


def _known_brokers(seen: Seen) -> set[int]:
    holders = {one for replicas in seen.replicas.values() for one in replicas}
    return {*seen.brokers, *seen.others, *seen.nodes, *holders}


def plan_removed(seen: Seen, removed: Collection[int]) -> dict[TopicPartition, Replicas]:
    """Return moves that leave nothing on these brokers, which may be dead.

    Nothing is on brokers that nobody knows; beside others that hold replicas, they are a mistake.
    """
    unknown = unknown_brokers(seen, removed)
    if unknown and any(set(replicas) & set(removed) for replicas in seen.replicas.values()):
        raise PlanError(
            "UnknownBroker",
            f"brokers {unknown} are none of {sorted(_known_brokers(seen))}: they are not "
            "registered, not in spec.brokers of the KafkaCluster, and hold no replicas; make a "
            "Reassignment without them",
        )
    staying = {one: rack for one, rack in seen.brokers.items() if one not in removed}
    draft = _Draft(Seen(seen.replicas, staying, nodes=seen.nodes))
    for partition, replicas in sorted(seen.replicas.items()):
        if not set(replicas) & set(removed):
            continue
        if len(replicas) > len(staying):
            raise PlanError(
                "NotEnoughBrokers",
                f"{partition} has {len(replicas)} replicas, but only {len(staying)} brokers remain",
            )
        if len(replicas) > seen.places(staying):
            raise PlanError(
                "NotEnoughBrokers",
                f"{partition} has {len(replicas)} replicas, but only {seen.places(staying)} nodes "
                "remain",
            )
        kept = tuple(one for one in replicas if one not in removed)
        moved = list(replicas)
        for place, one in enumerate(replicas):
            if one in removed:
                # Counts change with each partition, and not with each replica: that is enough.
                moved[place] = draft.newcomer(partition, kept, staying)
                kept = (*kept, moved[place])
        draft.set(partition, tuple(moved))
    return draft.changes()


def plan_factor(seen: Seen, topics: Collection[str], factor: int) -> dict[TopicPartition, Replicas]:
    """Return moves after which each partition of the topics has `factor` replicas."""
    if factor > len(seen.brokers):
        raise PlanError(
            "NotEnoughBrokers",
            f"replication factor {factor} is larger than the number of brokers, "
            f"{len(seen.brokers)}",
        )
    if factor > seen.places(seen.brokers):
        raise PlanError(
            "NotEnoughBrokers",
            f"replication factor {factor} is larger than the number of nodes, "
            f"{seen.places(seen.brokers)}",
        )
    _require_topics(seen, topics)
    draft = _Draft(seen)
    for partition, replicas in sorted(seen.replicas.items()):
        if partition.topic in topics and len(replicas) != factor:
            resized = _resized(draft, seen, partition, tuple(replicas), factor)
            draft.set(partition, resized, keep_order=True)
    return draft.changes()


def _resized(
    draft: _Draft, seen: Seen, partition: TopicPartition, replicas: Replicas, factor: int
) -> Replicas:
    while len(replicas) < factor:
        replicas = (*replicas, draft.newcomer(partition, replicas, draft.brokers))
    in_sync = seen.in_sync.get(partition, frozenset())
    leader = seen.leaders.get(partition, replicas[0])

    def dispensable(one: int) -> tuple[bool, bool, int, int, tuple[int, int, int]]:
        rest = tuple(other for other in replicas if other != one)
        # The leader has the data for certain, and who is not in sync has the least of it.
        return (
            one != leader,
            one not in in_sync,
            seen.places(rest),
            draft.spread(rest),
            draft.weight(partition, one),
        )

    while len(replicas) > factor:
        out = max(replicas, key=dispensable)
        replicas = tuple(one for one in replicas if one != out)
    return replicas


def plan_preferred(seen: Seen, topics: Collection[str]) -> dict[TopicPartition, Replicas]:
    """Return the partitions that another than their preferred replica leads, replicas unchanged."""
    _require_topics(seen, topics)
    return {
        partition: tuple(replicas)
        for partition, replicas in sorted(seen.replicas.items())
        if partition.topic in topics and seen.leaders.get(partition, replicas[0]) != replicas[0]
    }


def _require_topics(seen: Seen, topics: Collection[str]) -> None:
    unknown = set(topics) - {partition.topic for partition in seen.replicas}
    if unknown:
        text = f"unknown topics: {', '.join(sorted(unknown))}; {_IF_GONE}"
        raise PlanError("UnknownTopic", text)
