"""Partition reassignment inside a step (row C10, KIP-455).

/admin/reassign_partitions and AlterPartitionReassignments request reassignments. Their progress
follows from the assignment (topic znode), the state (state znode) and the phases of the replicas.
So every function here may be repeated, and a new controller continues where the old one stopped:

    1. the topic's znode gets the assignment with target and origin (`AssignmentsWritten`)
    2. a new leader epoch sends it to all replicas; the added ones begin to fetch
    3. when the whole target is in sync, a new state has leader and in-sync replicas of the target
       only, and its leader epoch tells the target that nothing is added or removed any more
    4. the other replicas are stopped and deleted; a broker that is down deletes its own on return
    5. the topic's znode gets the target only, and the entry is removed from its znode

A reassignment that is replaced or cancelled starts again at 1 with another target. Replicas that
belong to neither target nor origin go through 3 and 4 at once, whatever the others do.

Brokers do not count what is added when they look for under-replicated partitions, and take the
lists of a new leader epoch only. So there is one whenever the lists change.
"""

from collections.abc import Iterable, Mapping

from odradek.controller import deletion, election, leader_election, replica_assignment
from odradek.controller.context import ControllerContext, Draft, Replica
from odradek.controller.election import Cause, Choice
from odradek.controller.events import AssignmentsWritten, Leadership, ReassignmentRequested
from odradek.controller.replica_assignment import MOST_REPLICAS, ReplicaAssignment
from odradek.controller.states import ReplicaPhase
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import BrokerId, TopicPartition
from odradek.zk import znodes
from odradek.zk.admin import LARGEST_REASSIGNED_TOPIC
from odradek.zk.znodes import PartitionState

# --- requests -------------------------------------------------------------------------------------


def impossible(
    context: ControllerContext,
    wanted: Iterable[tuple[TopicPartition, tuple[BrokerId, ...] | None]],
) -> dict[TopicPartition, KafkaError]:
    """Return the partitions whose reassignment is refused whatever their states say, and why.

    A request may name a thousand brokers for each of a thousand partitions: what remains names only
    those that are there.
    """
    return {
        one: refusal
        for one, target in wanted
        if (refusal := _impossible(context, one, target, by_znode=False)) is not None
    }


def refusals(
    context: ControllerContext, event: ReassignmentRequested
) -> dict[TopicPartition, KafkaError]:
    """Return the partitions whose reassignment is refused, and why."""
    found = {
        one: _refusal(context, one, target, event.by_znode) for one, target in event.wanted.items()
    }
    refused = {one: refusal for one, refusal in found.items() if refusal is not None}
    return refused | _too_large(context, event, refused)


def _too_large(
    context: ControllerContext,
    event: ReassignmentRequested,
    refused: Mapping[TopicPartition, KafkaError],
) -> dict[TopicPartition, KafkaError]:
    """Return the partitions of topics whose assignments would not fit into one znode."""
    changes: dict[str, dict[int, ReplicaAssignment]] = {}
    for one, target in event.wanted.items():
        current = _start(context, one)
        if current is None or target is None or one in refused:
            continue
        after = _wanted(current, target)
        if after != context.assignment(one):
            changes.setdefault(one.topic, {})[one.partition] = after
    found: dict[TopicPartition, KafkaError] = {}
    for topic, wanted in changes.items():
        moving = replica_assignment.with_changes(context.topics[topic], wanted)
        size = len(znodes.encode_topic(moving))
        if size > LARGEST_REASSIGNED_TOPIC:
            refusal = KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Topic {topic} would take {size} bytes in ZooKeeper; the limit is "
                f"{LARGEST_REASSIGNED_TOPIC}. Reassign fewer partitions at a time.",
            )
            found |= {TopicPartition(topic, number): refusal for number in wanted}
    return found


def depend_on_isr(context: ControllerContext, event: ReassignmentRequested) -> list[TopicPartition]:
    """Return the partitions whose reassignment depends on their present in-sync replicas.

    Reassignments that go on as they are do not, so that a long list of them stays cheap.
    """
    found = []
    for partition, target in event.wanted.items():
        now = _start(context, partition)
        malformed = target is not None and _malformed(target) is not None
        if now is None or malformed or partition not in context.leaderships:
            continue
        after = _wanted(now, target)
        if after.abandoned or after != context.assignment(partition):
            found.append(partition)
    return found


def _refusal(
    context: ControllerContext,
    partition: TopicPartition,
    target: tuple[BrokerId, ...] | None,
    by_znode: bool,
) -> KafkaError | None:
    refusal = _impossible(context, partition, target, by_znode)
    if refusal is not None:
        return refusal
    current = _start(context, partition)
    assert current is not None, "else it is impossible"
    leadership = context.leaderships.get(partition)
    abandoned = _wanted(current, target).abandoned
    if leadership is not None and set(leadership.state.isr) <= set(abandoned):
        return KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Only replicas that would be deleted are in sync: records would be lost.",
        )
    return None


def _impossible(
    context: ControllerContext,
    partition: TopicPartition,
    target: tuple[BrokerId, ...] | None,
    by_znode: bool,
) -> KafkaError | None:
    malformed = None if target is None else _malformed(target)
    if malformed is not None:
        return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, malformed)
    current = _start(context, partition)
    if target is None and (current is None or not current.is_being_reassigned):
        return KafkaError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{partition} is not being reassigned."
        )
    if current is None or partition.topic in context.deletions:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    # A request through ZooKeeper waits for its brokers, as in Kafka: nobody receives an answer.
    dead = [] if by_znode or target is None else _dead(context, current, target)
    if dead:
        return KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Brokers {', '.join(map(str, dead))} of the wanted replicas are not alive.",
        )
    return None


def _malformed(target: tuple[BrokerId, ...]) -> str | None:
    if not target:
        return "The list of wanted replicas is empty."
    if len(target) > MOST_REPLICAS:
        return f"More than {MOST_REPLICAS} replicas are wanted."
    if len(set(target)) < len(target):
        return f"A broker is listed twice in {list(target)}."
    if min(target) < 0:
        return f"A broker id is negative in {list(target)}."
    return None


def _dead(
    context: ControllerContext, current: ReplicaAssignment, target: tuple[BrokerId, ...]
) -> list[BrokerId]:
    """Return those of the wanted replicas that have no broker and are not there already."""
    origin = current.origin
    return [
        one
        for one in target
        if (one not in context.brokers or one in context.shutting_down) and one not in origin
    ]


def request(draft: Draft, event: ReassignmentRequested) -> None:
    """Start, replace and cancel reassignments; remove rejected entries from the znode."""
    refused = refusals(draft.base, event)
    done: dict[TopicPartition, tuple[BrokerId, ...] | None] = dict.fromkeys(refused)
    for partition, target in event.wanted.items():
        current = _start(draft.base, partition)
        if partition in refused or current is None:
            continue
        after = _wanted(current, target)
        if after != draft.assignment(partition):
            draft.write_assignment(partition, after)
        if not event.by_znode:
            done[partition] = None  # the latest request wins
        elif not after.is_being_reassigned and after == draft.assignment(partition):
            done[partition] = target
    if done or (event.by_znode and not event.wanted):
        draft.remove_reassignments(done)


def _start(context: ControllerContext, partition: TopicPartition) -> ReplicaAssignment | None:
    """Return where a new reassignment starts from: a handover that has begun counts as done."""
    current = context.assignment(partition)
    if current is None or not current.is_being_reassigned:
        return current
    going = [one for one in current.replicas if context.is_deleting(Replica(partition, one))]
    if any(one not in current.abandoned for one in going):
        return ReplicaAssignment(current.target)
    return current.without(going)


def _wanted(current: ReplicaAssignment, target: tuple[BrokerId, ...] | None) -> ReplicaAssignment:
    return current.reassign_to(current.origin if target is None else target)


# --- steps ----------------------------------------------------------------------------------------


def on_assignments_written(draft: Draft, event: AssignmentsWritten) -> None:
    """Take over written assignments: start added replicas, and finish complete reassignments."""
    before = {one: draft.assignment(one) for one in event.written}
    told = {one: draft.told_assignment(one) for one, known in before.items() if known is not None}
    draft.set_assignments(event.written)
    finished: dict[TopicPartition, tuple[BrokerId, ...] | None] = {}
    for partition, after in event.written.items():
        known = before[partition]
        if known is None or known == after:
            continue
        for broker_id in known.replicas:
            if broker_id not in after.replicas:
                draft.forget_replica(Replica(partition, broker_id))
        # A replica whose deletion started may be wanted again: it is deleted first, then new.
        added = [
            one
            for one in after.replicas
            if one not in known.replicas or draft.is_deleting(Replica(partition, one))
        ]
        for broker_id in added:
            draft.forget_replica(Replica(partition, broker_id))
            draft.enter_replica(Replica(partition, broker_id), ReplicaPhase.NEW)
        lists = told[partition].adding, told[partition].removing
        if added or lists != (after.adding, after.removing):
            announce(draft, partition)
        else:
            draft.add_update_metadata(draft.brokers, [partition])
            proceed(draft, partition)
        if not after.is_being_reassigned:
            finished[partition] = after.replicas
    draft.watch_states([one for one, after in event.written.items() if after.is_being_reassigned])
    if finished:
        draft.remove_reassignments(finished)


def resume(draft: Draft) -> None:
    """Continue all reassignments, when the controller starts."""
    reassigning = [one for one in draft.being_reassigned() if not draft.in_deleted_topic(one)]
    for partition in reassigning:
        if not draft.is_being_written(partition):
            announce(draft, partition)
    draft.watch_states(reassigning)


def announce(draft: Draft, partition: TopicPartition) -> None:
    """Start a new leader epoch, which sends the assignment to all replicas."""
    leadership = draft.leaderships.get(partition)
    if leadership is None:
        leader_election.elect(draft, partition, Cause.AVAILABILITY)
        return
    state = leadership.state
    choice = _choose(draft, partition, state) or Choice(state.leader, state.isr)
    wanted = draft.next_state(state, choice.leader, choice.isr)
    draft.update_state(partition, Leadership(wanted, leadership.zk_version), Cause.REASSIGNMENT)


def _choose(draft: Draft, partition: TopicPartition, state: PartitionState) -> Choice | None:
    leaving = _leaving(draft, partition, state)
    staying = [one for one in draft.kept_replicas(partition) if one not in leaving]
    return election.choose_reassigned(staying, state, draft.available(partition))


def release(draft: Draft, partition: TopicPartition) -> None:
    """Delete the replicas to be removed, once none of them leads or is in sync."""
    state = draft.leaderships[partition].state
    leaving = _leaving(draft, partition, state)
    if state.leader not in leaving and not any(one in leaving for one in state.isr):
        for broker_id in leaving:
            if not draft.is_deleting(Replica(partition, broker_id)):
                deletion.start(draft, Replica(partition, broker_id))


def proceed(draft: Draft, partition: TopicPartition, announced: bool = False) -> None:
    """Do the next step of a reassignment, if it is possible.

    `announced`: this step sends the replicas a new leader epoch.
    """
    leadership, current = draft.leaderships.get(partition), draft.assignment(partition)
    if leadership is None or current is None or not current.is_being_reassigned:
        return
    if draft.in_deleted_topic(partition) or draft.is_being_written(partition):
        return
    state = leadership.state
    leaving = _leaving(draft, partition, state)
    phases = [draft.replicas.get(Replica(partition, one)) for one in leaving]
    if not all(draft.is_deleting(Replica(partition, one)) for one in leaving):
        if _choose(draft, partition, state) is not None:
            announce(draft, partition)
    elif ReplicaPhase.DELETION_STARTED not in phases:
        if _can_hand_over(draft, partition, current, state):
            is_adding = any(one not in current.removing for one in current.adding)
            if is_adding and not announced and not _is_handed_over(draft, partition, current):
                # First the replicas are told that nothing is added any more: once the znode says
                # so, no later controller would tell them.
                announce(draft, partition)
            else:
                draft.write_assignment(partition, ReplicaAssignment(current.target))
        elif leaving:
            draft.write_assignment(partition, current.without(leaving))


def proceed_all(
    draft: Draft, partitions: Iterable[TopicPartition], announced: bool = False
) -> None:
    """Do the next step of several reassignments; see `proceed`."""
    for partition in partitions:
        proceed(draft, partition, announced)


def _leaving(
    draft: Draft, partition: TopicPartition, state: PartitionState
) -> tuple[BrokerId, ...]:
    """Return the replicas that can be removed now."""
    current = draft.assignment(partition)
    if current is None:
        return ()
    return (
        current.removing if _can_hand_over(draft, partition, current, state) else current.abandoned
    )


def _can_hand_over(
    draft: Draft, partition: TopicPartition, current: ReplicaAssignment, state: PartitionState
) -> bool:
    """Return whether the target can take over: it is in sync, or the handover has begun."""
    return all(one in state.isr for one in current.target) or _is_handed_over(
        draft, partition, current
    )


def _is_handed_over(draft: Draft, partition: TopicPartition, current: ReplicaAssignment) -> bool:
    """Return whether replicas of the origin are being deleted: the target was told to take over."""
    return any(
        draft.is_deleting(Replica(partition, one))
        for one in current.removing
        if one not in current.adding
    )


def list_reassignments(
    context: ControllerContext, partitions: Iterable[TopicPartition] | None
) -> Mapping[TopicPartition, ReplicaAssignment]:
    """Return the ongoing reassignments of these partitions, or all, without abandoned replicas."""
    asked = context.being_reassigned() if partitions is None else partitions
    found = {one: context.assignment(one) for one in asked}
    wanted = {
        one: current.without(current.abandoned)
        for one, current in found.items()
        if current is not None
    }
    return {one: found for one, found in wanted.items() if found.is_being_reassigned}
