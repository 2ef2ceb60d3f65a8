"""The two state machines of the controller as tables of legal transitions (row C5).

A partition's leadership and a replica's life are each in one phase. The tables name, for every
phase, the phases it may be entered from; every change goes through `enter_partition` or
`enter_replica`, and one that the tables do not know raises `IllegalTransitionError`, a programmer's
error.
"""

import enum


class PartitionPhase(enum.Enum):
    """Where a partition's leadership stands."""

    NON_EXISTENT = "non-existent"
    NEW = "new"  # has replicas and never had a leader
    ONLINE = "online"  # has a leader
    OFFLINE = "offline"  # had a leader, which is gone


class ReplicaPhase(enum.Enum):
    """Where one replica of a partition stands."""

    NON_EXISTENT = "non-existent"
    NEW = "new"  # just assigned; may only follow
    ONLINE = "online"
    OFFLINE = "offline"  # its broker or its disk is down
    DELETION_STARTED = "deletion-started"  # StopReplica with delete is on its way
    DELETION_SUCCESSFUL = "deletion-successful"
    DELETION_INELIGIBLE = "deletion-ineligible"  # cannot be deleted until its broker is back


_P, _R = PartitionPhase, ReplicaPhase

# Phase -> the phases it may be entered from.
PARTITION_SOURCES: dict[PartitionPhase, frozenset[PartitionPhase]] = {
    _P.NEW: frozenset({_P.NON_EXISTENT}),
    _P.ONLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
    _P.OFFLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
    _P.NON_EXISTENT: frozenset({_P.OFFLINE}),
}
# A reassigned replica is NEW while it catches up and leaves by the way of deletion, so that
# reassignment needs no phases of its own.
REPLICA_SOURCES: dict[ReplicaPhase, frozenset[ReplicaPhase]] = {
    _R.NEW: frozenset({_R.NON_EXISTENT}),
    _R.ONLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE, _R.DELETION_INELIGIBLE}),
    _R.OFFLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE, _R.DELETION_INELIGIBLE}),
    _R.DELETION_STARTED: frozenset({_R.OFFLINE}),
    _R.DELETION_SUCCESSFUL: frozenset({_R.DELETION_STARTED}),
    _R.DELETION_INELIGIBLE: frozenset({_R.OFFLINE, _R.DELETION_STARTED}),
    _R.NON_EXISTENT: frozenset({_R.DELETION_SUCCESSFUL}),
}


class IllegalTransitionError(AssertionError):
    """A phase was to be entered from one that does not lead there."""


def enter_partition(subject: object, source: PartitionPhase, target: PartitionPhase) -> None:
    """Raise IllegalTransitionError unless the table lets `source` become `target`."""
    if source not in PARTITION_SOURCES[target]:
        raise IllegalTransitionError(f"partition {subject}: {source.value} to {target.value}")


def enter_replica(subject: object, source: ReplicaPhase, target: ReplicaPhase) -> None:
    """Raise IllegalTransitionError unless the table lets `source` become `target`."""
    if source not in REPLICA_SOURCES[target]:
        raise IllegalTransitionError(f"replica {subject}: {source.value} to {target.value}")
