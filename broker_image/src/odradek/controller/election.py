"""Who leads a partition, and with which in-sync set: every rule of choice (row C6).

Each rule is a function of the assigned replicas (preferred first), the present state, and who is
available. It returns the leader and in-sync set that should stand, or None where the rule leaves
the partition as it is. A leader always comes from the in-sync set, except that an offline partition
whose in-sync replicas are all gone may take any living replica where unclean election is allowed:
that loses records, so it is off by default.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from odradek.values import NO_LEADER, BrokerId
from odradek.zk.znodes import PartitionState


class Cause(enum.Enum):
    """Why a partition's leader is looked at."""

    AVAILABILITY = "availability"  # a broker came, went, or lost a disk
    PREFERRED = "preferred"
    CONTROLLED_SHUTDOWN = "controlled-shutdown"
    REASSIGNMENT = "reassignment"
    UNCLEAN = "unclean"  # an operator accepts to lose records for a leader


@dataclass(frozen=True, slots=True)
class Available:
    """Brokers as one partition sees them.

    `alive` hold a working replica; `electable` are those of them that are not shutting down.
    """

    alive: Collection[BrokerId]
    electable: Collection[BrokerId]


@dataclass(frozen=True, slots=True)
class Choice:
    """The leader, or NO_LEADER, and the in-sync set that should stand."""

    leader: BrokerId
    isr: tuple[BrokerId, ...]


def choose_first(replicas: Sequence[BrokerId], available: Available) -> Choice | None:
    """Choose for a partition that never had a leader: all living replicas are in sync."""
    living = tuple(replica for replica in replicas if replica in available.alive)
    return Choice(living[0], living) if living else None


def choose_available(
    replicas: Sequence[BrokerId], state: PartitionState, available: Available, unclean: bool
) -> Choice | None:
    """Replace a leader that is gone and take dead brokers out of the in-sync set.

    An in-sync set is never emptied: when all its members are gone it stays as it was, since each of
    them holds every committed record and the first to return may lead.
    """
    living_isr = tuple(member for member in state.isr if member in available.alive)
    if state.leader in available.alive:
        return _unless_same(Choice(state.leader, living_isr or (state.leader,)), state)
    leader = _first(replicas, available.electable, living_isr) or _first(
        replicas, available.alive, living_isr
    )
    if leader is not None:
        return Choice(leader, living_isr)
    if unclean:
        leader = _first(replicas, available.electable, replicas)
        if leader is not None:
            return Choice(leader, (leader,))
    return _unless_same(Choice(NO_LEADER, living_isr or state.isr), state)


def choose_preferred(
    replicas: Sequence[BrokerId], state: PartitionState, available: Available
) -> Choice | None:
    """Give the leadership back to the first replica, if it is alive and in sync."""
    preferred = replicas[0]
    if preferred in state.isr and preferred in available.electable:
        return _unless_same(Choice(preferred, state.isr), state)
    return None


def choose_for_shutdown(
    replicas: Sequence[BrokerId], state: PartitionState, available: Available
) -> Choice | None:
    """Move the leadership and the in-sync set off brokers that are shutting down.

    None where no other in-sync replica lives: the partition then stays until the broker is gone.
    """
    staying = tuple(member for member in state.isr if member in available.electable)
    leader = state.leader if state.leader in staying else _first(replicas, staying, staying)
    return None if leader is None else _unless_same(Choice(leader, staying), state)


def choose_reassigned(
    staying: Sequence[BrokerId], state: PartitionState, available: Available
) -> Choice | None:
    """Leave the partition to the replicas that stay, also where nothing changes: it is told anew.

    None where none of them could lead.
    """
    leader: BrokerId | None = state.leader
    if state.leader not in staying or state.leader not in available.alive:
        leader = _first(staying, available.electable, state.isr) or _first(
            staying, available.alive, state.isr
        )
    if leader is None:
        return None
    return Choice(leader, tuple(member for member in state.isr if member in staying))


def choose(
    cause: Cause,
    replicas: Sequence[BrokerId],
    state: PartitionState,
    available: Available,
    unclean: bool,
) -> Choice | None:
    """Apply the rule that belongs to the cause."""
    match cause:
        case Cause.AVAILABILITY:
            return choose_available(replicas, state, available, unclean)
        case Cause.PREFERRED:
            return choose_preferred(replicas, state, available)
        case Cause.CONTROLLED_SHUTDOWN:
            return choose_for_shutdown(replicas, state, available)
        case Cause.REASSIGNMENT:
            return choose_reassigned(replicas, state, available)
        case Cause.UNCLEAN:
            return choose_available(replicas, state, available, unclean=True)


def _first(
    candidates: Sequence[BrokerId], among: Collection[BrokerId], and_among: Collection[BrokerId]
) -> BrokerId | None:
    return next((one for one in candidates if one in among and one in and_among), None)


def _unless_same(choice: Choice, state: PartitionState) -> Choice | None:
    return None if (choice.leader, choice.isr) == (state.leader, state.isr) else choice
