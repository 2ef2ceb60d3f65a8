"""The rules of leader election: the leader of a partition and its in-sync replicas (row C6).

Each rule is a function of the assigned replicas (preferred first), the present state, and the
available brokers. It returns the new leader and in-sync replicas, or None to change nothing. A
leader is always an in-sync replica, with one exception: if all in-sync replicas are gone and
unclean election is enabled, any live replica may lead. That loses records, so it is off by default.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from odradek.values import NO_LEADER, BrokerId
from odradek.zk.znodes import PartitionState


class Cause(enum.Enum):
    """Why a leader is elected."""

    AVAILABILITY = "availability"  # a broker started, died, or lost a disk
    PREFERRED = "preferred"
    CONTROLLED_SHUTDOWN = "controlled-shutdown"
    REASSIGNMENT = "reassignment"
    UNCLEAN = "unclean"  # an administrator accepts losing records
    LEADER_RESTART = "leader-restart"  # unseen: its state does not tell what the restart lost


@dataclass(frozen=True, slots=True)
class Available:
    """The brokers that are available to one partition.

    `alive` have a working replica; `electable` are those of them that are not shutting down.
    """

    alive: Collection[BrokerId]
    electable: Collection[BrokerId]


@dataclass(frozen=True, slots=True)
class Choice:
    """The new leader, or NO_LEADER, and the new in-sync replicas."""

    leader: BrokerId
    isr: tuple[BrokerId, ...]


def choose_first(replicas: Sequence[BrokerId], available: Available) -> Choice | None:
    """Choose for a partition that never had a leader: all live replicas are in sync."""
    live = tuple(replica for replica in replicas if replica in available.alive)
    return Choice(live[0], live) if live else None


def choose_available(
    replicas: Sequence[BrokerId], state: PartitionState, available: Available, unclean: bool
) -> Choice | None:
    """Replace a dead leader, and remove dead brokers from the in-sync replicas.

    The in-sync replicas are never emptied. If all of them are dead, they stay: each of them has
    every committed record, and the first to return may lead.
    """
    live_isr = tuple(member for member in state.isr if member in available.alive)
    if state.leader in available.alive:
        return _unless_same(Choice(state.leader, live_isr or (state.leader,)), state)
    leader = _following_leader(replicas, available, live_isr)
    if leader is not None:
        return Choice(leader, live_isr)
    if unclean:
        leader = _first(replicas, available.electable, replicas)
        if leader is not None:
            return Choice(leader, (leader,))
    return _unless_same(Choice(NO_LEADER, live_isr or state.isr), state)


def choose_after_restart(
    replicas: Sequence[BrokerId], state: PartitionState, available: Available, unclean: bool
) -> Choice | None:
    """Choose as after any change of brokers; if nothing changes, start a new leader epoch.

    A leader that lost records with its power writes others at their offsets. In a new leader epoch
    its followers truncate what it lost; in the same one they would keep it.
    """
    choice = choose_available(replicas, state, available, unclean)
    if choice is None and state.leader != NO_LEADER:
        return Choice(state.leader, state.isr)
    return choice


def choose_preferred(
    replicas: Sequence[BrokerId], state: PartitionState, available: Available
) -> Choice | None:
    """Choose the preferred replica, if it is electable and in sync."""
    preferred = replicas[0]
    if preferred in state.isr and preferred in available.electable:
        return _unless_same(Choice(preferred, state.isr), state)
    return None


def choose_for_shutdown(
    replicas: Sequence[BrokerId], state: PartitionState, available: Available
) -> Choice | None:
    """Remove brokers that are shutting down from leadership and in-sync replicas.

    Return None if no other in-sync replica is alive: the partition stays until the broker is gone.
    """
    staying = tuple(member for member in state.isr if member in available.electable)
    leader = state.leader if state.leader in staying else _first(replicas, staying, staying)
    return None if leader is None else _unless_same(Choice(leader, staying), state)


def choose_reassigned(
    staying: Sequence[BrokerId], state: PartitionState, available: Available
) -> Choice | None:
    """Choose from the replicas that stay, also if nothing changes, to start a new leader epoch.

    Return None if none of them can lead.
    """
    leader: BrokerId | None = state.leader
    if state.leader not in staying or state.leader not in available.alive:
        leader = _following_leader(staying, available, state.isr)
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
    """Apply the rule for the cause."""
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
        case Cause.LEADER_RESTART:
            return choose_after_restart(replicas, state, available, unclean)


def _following_leader(
    replicas: Sequence[BrokerId], available: Available, isr: Collection[BrokerId]
) -> BrokerId | None:
    """Return the first live replica in sync, if possible one that is not shutting down."""
    leader = _first(replicas, available.electable, isr)
    return _first(replicas, available.alive, isr) if leader is None else leader


def _first(
    candidates: Sequence[BrokerId], among: Collection[BrokerId], and_among: Collection[BrokerId]
) -> BrokerId | None:
    return next((one for one in candidates if one in among and one in and_among), None)


def _unless_same(choice: Choice, state: PartitionState) -> Choice | None:
    return None if (choice.leader, choice.isr) == (state.leader, state.isr) else choice
