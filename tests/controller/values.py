"""Values of the controller, made of plain numbers."""

from collections.abc import Iterable, Mapping

from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch
from odradek.zk.znodes import PartitionState, TopicAssignment


def broker_ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def partition_state(
    leader: int, epoch: int, isr: Iterable[int], controller_epoch: int
) -> PartitionState:
    return PartitionState(
        BrokerId(leader), LeaderEpoch(epoch), broker_ids(*isr), ControllerEpoch(controller_epoch)
    )


def topic_assignment(
    partitions: Mapping[int, Iterable[int]],
    adding: Mapping[int, Iterable[int]] | None = None,
    removing: Mapping[int, Iterable[int]] | None = None,
) -> TopicAssignment:
    """Return an assignment of the replicas of each partition."""
    placed, added, removed = (
        {number: broker_ids(*replicas) for number, replicas in (each or {}).items()}
        for each in (partitions, adding, removing)
    )
    return TopicAssignment(placed, added, removed)
