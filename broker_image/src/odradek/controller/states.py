"""The states of partitions and replicas as tables of legal transitions (row C5).

Each partition and each replica is in one phase. For every phase, a table names the phases that it
may be entered from. Every change goes through `enter_partition` or `enter_replica`. An illegal one
raises `IllegalControllerTransitionError`, a programmer's error.

Phases hash by identity: an enumeration's own hash is a call of Python, and a controller that takes
over looks hundreds of thousands of them up.
"""

import enum


class PartitionPhase(enum.Enum):
    """The state of a partition (Kafka: PartitionState)."""

    NON_EXISTENT = "non-existent"
    NEW = "new"  # has replicas and never had a leader
    ONLINE = "online"  # has a leader
    OFFLINE = "offline"  # its leader is not alive

    __hash__ = object.__hash__


class ReplicaPhase(enum.Enum):
    """The state of one replica of a partition (Kafka: ReplicaState)."""

    NON_EXISTENT = "non-existent"
    NEW = "new"  # just assigned; may only follow
    ONLINE = "online"
    OFFLINE = "offline"  # its broker or its disk is down
    DELETION_STARTED = "deletion-started"  # its broker has not answered StopReplica with delete
    DELETION_SUCCESSFUL = "deletion-successful"
    DELETION_INELIGIBLE = "deletion-ineligible"  # cannot be deleted until its broker is back

    __hash__ = object.__hash__


_P, _R = PartitionPhase, ReplicaPhase

# Phase -> the phases it may be entered from.
PARTITION_SOURCES: dict[PartitionPhase, frozenset[PartitionPhase]] = {
    _P.NEW: frozenset({_P.NON_EXISTENT}),
    _P.ONLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
    _P.OFFLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
    _P.NON_EXISTENT: frozenset({_P.OFFLINE}),
}
# A reassignment adds a replica as NEW and removes one by deletion, so it needs no other phases.
REPLICA_SOURCES: dict[ReplicaPhase, frozenset[ReplicaPhase]] = {
    _R.NEW: frozenset({_R.NON_EXISTENT}),
    _R.ONLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE, _R.DELETION_INELIGIBLE}),
    _R.OFFLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE, _R.DELETION_INELIGIBLE}),
    _R.DELETION_STARTED: frozenset({_R.OFFLINE}),
    _R.DELETION_SUCCESSFUL: frozenset({_R.DELETION_STARTED}),
    _R.DELETION_INELIGIBLE: frozenset({_R.OFFLINE, _R.DELETION_STARTED}),
    _R.NON_EXISTENT: frozenset({_R.DELETION_SUCCESSFUL}),
}


class IllegalControllerTransitionError(AssertionError):
    """A transition that the table does not have."""


def enter_partition(subject: object, source: PartitionPhase, target: PartitionPhase) -> None:
    """Raise IllegalControllerTransitionError unless `source` may become `target`."""
    if source not in PARTITION_SOURCES[target]:
        raise IllegalControllerTransitionError(
            f"partition {subject}: {source.value} to {target.value}"
        )


def enter_replica(subject: object, source: ReplicaPhase, target: ReplicaPhase) -> None:
    """Raise IllegalControllerTransitionError unless `source` may become `target`."""
    if source not in REPLICA_SOURCES[target]:
        raise IllegalControllerTransitionError(
            f"replica {subject}: {source.value} to {target.value}"
        )
