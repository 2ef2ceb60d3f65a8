"""Replicas that fail while their broker lives, and return, inside a step (KIP-112).

A broker answers LeaderAndIsr with KAFKA_STORAGE_ERROR for a replica on a failed disk, and also if
it could not take the role for a passing reason, such as too many open files. The replica counts as
offline until the broker says, by any later answer, that it has a role again.

A replica may be able to follow and fail whenever it is elected. It would be elected without end. So
after `MAX_FAILURES` it stays out until its broker registers again, the broker reports a failed
log.dir, or `FailedReplicasDue`, which comes every five minutes. At that time, too, the brokers
receive LeaderAndIsr for the replicas that failed, and StopReplica for those that they failed to
delete: nothing else may be due to be sent.
"""

from collections.abc import Iterable

from odradek.controller import deletion, leader_election, reassignment
from odradek.controller.context import ControllerContext, Draft, Replica
from odradek.controller.events import (
    FailedReplicasDue,
    LogDirFailed,
    ReplicasAnswered,
    ReplicasFailed,
)
from odradek.controller.states import PartitionPhase, ReplicaPhase
from odradek.values import BrokerId, TopicPartition

MAX_FAILURES = 2  # each may cost two elections


def take_offline(draft: Draft, broker_id: BrokerId, partitions: Iterable[TopicPartition]) -> None:
    """Mark a broker's replicas of these partitions as offline."""
    mine = [one for one in partitions if broker_id in draft.replicas_of(one)]
    deletion.pause(draft, broker_id, mine)
    for partition in mine:
        if draft.in_deleted_topic(partition) or draft.is_deleting(Replica(partition, broker_id)):
            continue
        draft.enter_replica(Replica(partition, broker_id), ReplicaPhase.OFFLINE)
        leadership = draft.leaderships.get(partition)
        if leadership is not None and leadership.state.leader == broker_id:
            draft.enter_partition(partition, PartitionPhase.OFFLINE)


def check(draft: Draft, event: LogDirFailed) -> None:
    """Send a broker LeaderAndIsr again: it answers partitions on the failed disk with an error."""
    draft.forgive_failures(lambda replica: replica.broker_id == event.broker_id)
    for partition in draft.partitions_on({event.broker_id}):
        if partition in draft.leaderships and not draft.in_deleted_topic(partition):
            draft.add_leader_and_isr([event.broker_id], partition)


def fail(draft: Draft, event: ReplicasFailed) -> None:
    """Take replicas offline whose broker answered with a storage error, and elect other leaders."""
    known = [
        one
        for one in sorted(event.partitions)
        if one in draft.partitions and event.broker_id in draft.replicas_of(one)
    ]
    broken = {Replica(one, event.broker_id) for one in known} - draft.failed
    draft.failed |= broken
    for replica in broken:
        draft.failures.edit()[replica] = (draft.failures.get(replica) or 0) + 1
    affected = [one for one in known if Replica(one, event.broker_id) in broken]
    take_offline(draft, event.broker_id, affected)
    leader_election.elect_all(draft, affected)
    reassignment.proceed_all(draft, affected)
    unwritten = [one for one in affected if not draft.is_being_written(one)]
    draft.add_update_metadata(draft.brokers if unwritten else (), unwritten)


def take_back(draft: Draft, event: ReplicasAnswered) -> None:
    """Bring replicas online that failed before and work, except those that fail too often."""
    if not draft.failed:
        return
    back = [
        one
        for one in (Replica(partition, event.broker_id) for partition in sorted(event.partitions))
        if one in draft.failed
        and (draft.failures.get(one) or 0) < MAX_FAILURES
        and not draft.in_deleted_topic(one.partition)
        and not draft.is_deleting(one)
    ]
    if not back:
        return
    draft.failed -= set(back)
    for replica in back:
        draft.enter_replica(replica, ReplicaPhase.ONLINE)
    partitions = [one.partition for one in back]
    leaderless = (PartitionPhase.NEW, PartitionPhase.OFFLINE)
    leader_election.elect_all(
        draft, [one for one in partitions if draft.partitions[one] in leaderless]
    )
    reassignment.proceed_all(draft, partitions)
    unwritten = [one for one in partitions if not draft.is_being_written(one)]
    draft.add_update_metadata(draft.brokers if unwritten else (), unwritten)


def are_due(context: ControllerContext) -> bool:
    """Return whether there is anything to do at the time of FailedReplicasDue."""
    return bool(context.failed or context.failures) or any(
        phase is ReplicaPhase.DELETION_INELIGIBLE and replica.broker_id in context.brokers
        for replica, phase in context.replicas.items()
    )


def ask_again(draft: Draft, _: FailedReplicasDue) -> None:
    """Send LeaderAndIsr or StopReplica again for all replicas that failed; each may return."""
    draft.forgive_failures(lambda replica: True)
    undeleted = [
        replica
        for replica, phase in draft.replicas.items()
        if phase is ReplicaPhase.DELETION_INELIGIBLE and replica.broker_id in draft.brokers
    ]
    for replica in undeleted:
        deletion.start(draft, replica)
    for one in sorted(draft.failed):
        has_state = one.partition in draft.leaderships and not draft.in_deleted_topic(one.partition)
        if has_state and one.broker_id not in draft.shutting_down:
            draft.add_leader_and_isr([one.broker_id], one.partition)
