"""The states of a group as a table of legal transitions (KIP-62's group coordinator).

Empty: no members, perhaps offsets. PreparingRebalance: members must join again.
CompletingRebalance: all members joined, and wait for the leader's assignment. Stable: the members
have their assignments. Dead: the group was deleted, or its coordinator moved to another broker.
"""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """A group's state; the value is Kafka's name for it, as DescribeGroups returns it."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_S = GroupState
ALLOWED_PREVIOUS: dict[GroupState, frozenset[GroupState]] = {
    _S.EMPTY: frozenset({_S.PREPARING_REBALANCE}),
    _S.PREPARING_REBALANCE: frozenset({_S.EMPTY, _S.STABLE, _S.COMPLETING_REBALANCE}),
    _S.COMPLETING_REBALANCE: frozenset({_S.PREPARING_REBALANCE}),
    _S.STABLE: frozenset({_S.COMPLETING_REBALANCE}),
    _S.DEAD: frozenset(GroupState),
}


class IllegalGroupTransitionError(AssertionError):
    """A transition that the table does not have: a programmer's error."""


def check_transition(previous: GroupState, following: GroupState) -> None:
    """Raise IllegalGroupTransitionError unless `following` may come after `previous`."""
    if previous not in ALLOWED_PREVIOUS[following]:
        raise IllegalGroupTransitionError(f"{previous.value} -> {following.value}")
