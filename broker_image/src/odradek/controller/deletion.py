"""Deletion of topics inside a step (row C9).

Every living replica gets StopReplica with delete; a replica whose broker is down, or that failed,
makes the deletion wait as DELETION_INELIGIBLE and is tried again when its broker returns. Only
when all replicas are DELETION_SUCCESSFUL are the znodes removed, the request last: a controller
that dies in between leaves the request to the next one, which begins anew (deleting twice does no
harm).
"""

from collections.abc import Collection

from odradek.controller.context import Draft, Replica
from odradek.controller.states import PartitionPhase, ReplicaPhase
from odradek.values import BrokerId, TopicPartition

_UNDER_WAY = (ReplicaPhase.DELETION_STARTED, ReplicaPhase.DELETION_SUCCESSFUL)


def request(draft: Draft, topics: Collection[str]) -> None:
    """Begin the deletion of topics; requests that cannot be met are dropped."""
    if not draft.settings.delete_topics:
        if topics:
            draft.drop_deletions(topics)
        return
    unknown = [topic for topic in topics if topic not in draft.topics]
    if unknown:
        draft.drop_deletions(unknown)
    fresh = sorted(set(topics) - set(unknown) - draft.deletions)
    draft.deletions |= set(fresh)
    for topic in fresh:
        _begin(draft, topic)


def _begin(draft: Draft, topic: str) -> None:
    partitions = draft.partitions_of(topic)
    draft.drop_reassignments_of(topic)
    draft.tell_metadata(draft.brokers, partitions)
    for partition in partitions:
        draft.enter_partition(partition, PartitionPhase.OFFLINE, PartitionPhase.NON_EXISTENT)
        for broker_id in draft.replicas_of(partition):
            replica = Replica(partition, broker_id)
            # A reassignment may have been deleting it already.
            if draft.replicas.get(replica) not in _UNDER_WAY:
                start(draft, replica)
    _finish_if_done(draft, topic)


def start(draft: Draft, replica: Replica) -> None:
    """Have a replica deleted, if its broker lives."""
    draft.enter_replica(replica, ReplicaPhase.OFFLINE)
    if replica.broker_id in draft.brokers:
        draft.enter_replica(replica, ReplicaPhase.DELETION_STARTED)
        draft.stop_replica(replica.broker_id, replica.partition, delete=True)
    else:
        draft.enter_replica(replica, ReplicaPhase.DELETION_INELIGIBLE)


def pause(draft: Draft, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> None:
    """Note that replicas being deleted cannot be, because their broker is gone or refused."""
    for partition in partitions:
        replica = Replica(partition, broker_id)
        if draft.replicas.get(replica) is ReplicaPhase.DELETION_STARTED:
            draft.enter_replica(replica, ReplicaPhase.DELETION_INELIGIBLE)


def resume(draft: Draft, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> None:
    """Try replicas again whose broker has returned."""
    for partition in partitions:
        replica = Replica(partition, broker_id)
        if draft.replicas.get(replica) is ReplicaPhase.DELETION_INELIGIBLE:
            start(draft, replica)


def resend(draft: Draft, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> None:
    """Send StopReplica again for deletions that the broker has not answered."""
    for partition in partitions:
        if draft.replicas.get(Replica(partition, broker_id)) is ReplicaPhase.DELETION_STARTED:
            draft.stop_replica(broker_id, partition, delete=True)


def complete(draft: Draft, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> None:
    """Note replicas that are deleted, and remove topics that have no others."""
    for partition in partitions:
        replica = Replica(partition, broker_id)
        if draft.replicas.get(replica) is ReplicaPhase.DELETION_STARTED:
            draft.enter_replica(replica, ReplicaPhase.DELETION_SUCCESSFUL)
    for topic in sorted({partition.topic for partition in partitions} & draft.deletions):
        _finish_if_done(draft, topic)


def _finish_if_done(draft: Draft, topic: str) -> None:
    replicas = [
        Replica(partition, broker_id)
        for partition in draft.partitions_of(topic)
        for broker_id in draft.replicas_of(partition)
    ]
    if all(draft.replicas.get(one) is ReplicaPhase.DELETION_SUCCESSFUL for one in replicas):
        for replica in replicas:
            draft.enter_replica(replica, ReplicaPhase.NON_EXISTENT)
        draft.remove_topic(topic)
