"""Topic deletion inside a step (row C9).

Every live replica receives StopReplica with delete. A replica that failed or whose broker is down
becomes DELETION_INELIGIBLE; it is retried when its broker returns. The znodes are removed when all
replicas are DELETION_SUCCESSFUL, the deletion request last. If the controller dies in between, the
next one finds the request and starts again: deleting twice does no harm.

A partition without a state never had a leader, and no broker was told to have a replica of it. So a
topic may be made on brokers that never come, and deleted again.
"""

from collections.abc import Collection

from odradek.controller.context import ControllerContext, Draft, Replica
from odradek.controller.states import PartitionPhase, ReplicaPhase
from odradek.values import BrokerId, TopicPartition

_IN_PROGRESS = (ReplicaPhase.DELETION_STARTED, ReplicaPhase.DELETION_SUCCESSFUL)


def request(draft: Draft, topics: Collection[str]) -> None:
    """Start the deletion of topics; remove requests that are disabled or name unknown topics."""
    if not draft.settings.delete_topics:
        if topics:
            draft.remove_deletions(topics)
        return
    unknown = [topic for topic in topics if topic not in draft.topics]
    if unknown:
        draft.remove_deletions(unknown)
    added = sorted(set(topics) - set(unknown) - draft.deletions)
    draft.deletions |= set(added)
    for topic in added:
        _start_topic(draft, topic)


def _start_topic(draft: Draft, topic: str) -> None:
    partitions = draft.partitions_of(topic)
    draft.remove_reassignments_of(topic)
    draft.add_update_metadata(draft.brokers, partitions)
    for partition in partitions:
        draft.enter_partition(partition, PartitionPhase.OFFLINE, PartitionPhase.NON_EXISTENT)
        for broker_id in draft.replicas_of(partition):
            replica = Replica(partition, broker_id)
            # A reassignment may have started its deletion already.
            if draft.replicas.get(replica) not in _IN_PROGRESS:
                start(draft, replica)
    _finish_if_done(draft, topic)


def start(draft: Draft, replica: Replica) -> None:
    """Start to delete a replica; it is ineligible while its broker is down, if that may have it."""
    draft.enter_replica(replica, ReplicaPhase.OFFLINE)
    if replica.broker_id in draft.brokers:
        draft.enter_replica(replica, ReplicaPhase.DELETION_STARTED)
        draft.add_stop_replica(replica.broker_id, replica.partition, delete=True)
    elif replica.partition in draft.leaderships:
        _halt(draft, replica)
    else:
        draft.enter_replica(
            replica, ReplicaPhase.DELETION_STARTED, ReplicaPhase.DELETION_SUCCESSFUL
        )


def pause(draft: Draft, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> None:
    """Mark deletions as ineligible whose broker is gone or reported an error."""
    for partition in partitions:
        replica = Replica(partition, broker_id)
        if draft.replicas.get(replica) is ReplicaPhase.DELETION_STARTED:
            _halt(draft, replica)


def _halt(draft: Draft, replica: Replica) -> None:
    draft.enter_replica(replica, ReplicaPhase.DELETION_INELIGIBLE)
    if draft.in_deleted_topic(replica.partition):
        draft.halted |= {replica.partition.topic}


def resume(draft: Draft, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> None:
    """Retry deletions whose broker has returned."""
    for partition in partitions:
        replica = Replica(partition, broker_id)
        if draft.replicas.get(replica) is ReplicaPhase.DELETION_INELIGIBLE:
            start(draft, replica)


def resend(draft: Draft, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> None:
    """Send StopReplica again for deletions that the broker has not answered."""
    for partition in partitions:
        if draft.replicas.get(Replica(partition, broker_id)) is ReplicaPhase.DELETION_STARTED:
            draft.add_stop_replica(broker_id, partition, delete=True)


def complete(draft: Draft, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> None:
    """Mark replicas as deleted, and remove topics that have no other replicas."""
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


def is_settled(context: ControllerContext, topic: str) -> bool:
    """Return whether a topic whose deletion was requested is gone, or has to wait for a broker."""
    return topic not in context.topics or topic in context.halted


def settled(before: ControllerContext, after: ControllerContext) -> set[str]:
    """Return the topics that a step settled; see `is_settled`."""
    found: set[str] = set()
    if after.topics is not before.topics:
        found |= before.topics.keys() - after.topics.keys()
    if after.halted is not before.halted:
        found |= after.halted - before.halted
    return found
