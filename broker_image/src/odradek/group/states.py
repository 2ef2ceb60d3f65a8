"""The states of a group, and which state may follow which (KIP-62's group coordinator).

Empty: no members, perhaps offsets. PreparingRebalance: members are asked to join again.
CompletingRebalance: everybody joined, the leader's assignment is awaited. Stable: members work.
Dead: the group is gone or its coordinator moved away.
"""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """A group's state; the value is Kafka's name for it, as DescribeGroups tells it."""

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


class IllegalTransitionError(AssertionError):
    """A change of state that the table does not know: a programmer's error."""


def check(previous: GroupState, following: GroupState) -> None:
    """Raise IllegalTransitionError unless `following` may come after `previous`."""
    if previous not in ALLOWED_PREVIOUS[following]:
        raise IllegalTransitionError(f"{previous.value} -> {following.value}")
