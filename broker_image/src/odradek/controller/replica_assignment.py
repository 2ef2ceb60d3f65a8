"""The replicas of a partition, and its target while it is being reassigned (row C10, KIP-455).

A topic's znode lists all replicas of a partition, those of the target first. During a reassignment
`adding` lists the replicas that are new, and `removing` those that will be deleted, as in Kafka
since 2.4. So the znode alone tells target and origin to any controller:

    target = replicas without removing      origin = replicas without adding

A replica that one reassignment was adding and the next does not want is in both lists. It belongs
to neither target nor origin, and is removed as soon as the partition can do without it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from odradek.values import BrokerId
from odradek.zk.znodes import TopicAssignment

MOST_REPLICAS = 1000
"""Replicas of one partition that a reassignment may ask for."""
# So many are looked for one by one, which is quicker than to hash them.
_FEW = 8


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """The replicas of one partition, preferred first."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def is_being_reassigned(self) -> bool:
        """Return whether the reassignment is not complete yet."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """Return the replicas after the reassignment, preferred first."""
        return _without(self.replicas, self.removing)

    @property
    def origin(self) -> tuple[BrokerId, ...]:
        """Return the replicas before the reassignment; those also in the target come first."""
        return _without(self.replicas, self.adding)

    @property
    def abandoned(self) -> tuple[BrokerId, ...]:
        """Return the replicas that belong to neither target nor origin."""
        return tuple(one for one in self.adding if one in self.removing)

    def reassign_to(self, target: tuple[BrokerId, ...]) -> "ReplicaAssignment":
        """Return the assignment with another target and the same origin."""
        origin = self.origin
        ends = tuple(dict.fromkeys(target + origin))
        neither = _without(self.replicas, ends)
        return ReplicaAssignment(
            ends + neither, _without(ends, origin) + neither, _without(ends, target) + neither
        )

    def as_told(
        self, deleted: Collection[BrokerId], isr: Collection[BrokerId]
    ) -> "ReplicaAssignment":
        """Return the assignment as LeaderAndIsr tells it: without replicas that are being deleted.

        To the brokers a reassignment is over once it removes no other replica and its target is in
        sync, or was when the others began to be deleted, as in phase B of Kafka's controller. The
        topic's znode follows.
        """
        kept = self.without(deleted)
        if kept.removing:
            return kept
        is_handed_over = any(one not in self.abandoned for one in deleted)
        if is_handed_over or all(one in isr for one in kept.replicas):
            return ReplicaAssignment(kept.replicas)
        return kept

    def without(self, brokers: Collection[BrokerId]) -> "ReplicaAssignment":
        """Return the assignment without replicas on these brokers."""
        return ReplicaAssignment(
            _without(self.replicas, brokers),
            _without(self.adding, brokers),
            _without(self.removing, brokers),
        )


def _without(replicas: tuple[BrokerId, ...], brokers: Collection[BrokerId]) -> tuple[BrokerId, ...]:
    left_out = frozenset(brokers) if len(brokers) > _FEW else brokers
    return tuple(one for one in replicas if one not in left_out)


def of(assignment: TopicAssignment, number: int) -> ReplicaAssignment:
    """Return the assignment of one of a topic's partitions."""
    return ReplicaAssignment(
        assignment.partitions[number],
        assignment.adding.get(number, ()),
        assignment.removing.get(number, ()),
    )


def with_changes(
    assignment: TopicAssignment, changes: Mapping[int, ReplicaAssignment]
) -> TopicAssignment:
    """Return the topic's assignment with new assignments of some partitions."""

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


def sound(assignment: TopicAssignment) -> TopicAssignment:
    """Return what the controller can act on of an assignment that somebody may have edited by hand.

    Partitions without replicas are left out, and so is what is named twice or is being added or
    removed without being a replica. One without any of that is returned itself.
    """
    partitions = assignment.partitions
    if not (assignment.adding or assignment.removing) and all(
        len(set(replicas)) == len(replicas) > 0 for replicas in partitions.values()
    ):
        return assignment
    placed = {
        number: tuple(dict.fromkeys(replicas))
        for number, replicas in partitions.items()
        if replicas
    }

    def among_replicas(
        lists: Mapping[int, tuple[BrokerId, ...]],
    ) -> dict[int, tuple[BrokerId, ...]]:
        found = {
            number: tuple(one for one in dict.fromkeys(some) if one in placed.get(number, ()))
            for number, some in lists.items()
        }
        return {number: some for number, some in found.items() if some}

    cleared = TopicAssignment(
        placed,
        among_replicas(assignment.adding),
        among_replicas(assignment.removing),
        assignment.topic_id,
    )
    return assignment if cleared == assignment else cleared
