"""Where the replicas of a partition are, and where they are going (row C10, KIP-455).

A topic's znode lists all replicas of a partition, those that are wanted first. While it moves,
`adding` names those that it did not have before and `removing` those that it shall not keep, as
Kafka writes them since 2.4. So the znode alone tells both ends of a move, whoever is controller:

    target = replicas without removing      origin = replicas without adding

A replica that one move was adding and the next does not want is in both lists. It belongs to
neither end, and leaves as soon as the partition can do without it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from odradek.values import BrokerId
from odradek.zk.znodes import TopicAssignment


@dataclass(frozen=True, slots=True)
class Placement:
    """The replicas of one partition, preferred first."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def is_moving(self) -> bool:
        """Say whether the partition has not arrived yet."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """Return the replicas that it shall have, in their order."""
        return _without(self.replicas, self.removing)

    @property
    def origin(self) -> tuple[BrokerId, ...]:
        """Return the replicas that it had; the order is lost where both ends have a replica."""
        return _without(self.replicas, self.adding)

    @property
    def abandoned(self) -> tuple[BrokerId, ...]:
        """Return the replicas that belong to neither end."""
        return tuple(one for one in self.adding if one in self.removing)

    def towards(self, target: tuple[BrokerId, ...]) -> "Placement":
        """Return the placement with another target and the same origin."""
        origin = self.origin
        ends = tuple(dict.fromkeys(target + origin))
        neither = _without(self.replicas, ends)
        return Placement(
            ends + neither, _without(ends, origin) + neither, _without(ends, target) + neither
        )

    def without(self, brokers: Collection[BrokerId]) -> "Placement":
        """Return the placement without replicas on these brokers."""
        return Placement(
            _without(self.replicas, brokers),
            _without(self.adding, brokers),
            _without(self.removing, brokers),
        )


def _without(replicas: tuple[BrokerId, ...], brokers: Collection[BrokerId]) -> tuple[BrokerId, ...]:
    return tuple(one for one in replicas if one not in brokers)


def of(assignment: TopicAssignment, number: int) -> Placement:
    """Return the placement of one of a topic's partitions."""
    return Placement(
        assignment.partitions[number],
        assignment.adding.get(number, ()),
        assignment.removing.get(number, ()),
    )


def placed(assignment: TopicAssignment, changes: Mapping[int, Placement]) -> TopicAssignment:
    """Return the topic with these of its partitions placed anew."""

    def changed(
        lists: Mapping[int, tuple[BrokerId, ...]], news: Mapping[int, tuple[BrokerId, ...]]
    ) -> dict[int, tuple[BrokerId, ...]]:
        return {number: found for number, found in {**lists, **news}.items() if found}

    return TopicAssignment(
        {**assignment.partitions, **{number: one.replicas for number, one in changes.items()}},
        changed(assignment.adding, {number: one.adding for number, one in changes.items()}),
        changed(assignment.removing, {number: one.removing for number, one in changes.items()}),
        assignment.topic_id,
    )
