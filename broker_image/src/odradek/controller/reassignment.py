"""Partitions that move to other brokers (row C10, KIP-455), inside a step.

A move is asked for by /admin/reassign_partitions or by AlterPartitionReassignments. What it has
come to is read off the placement (topic znode), the state (state znode) and the phases of the
replicas, so every function here may be repeated, and a new controller goes on where the old one
stopped:

    1. the topic's znode gets the placement with both ends (`PlacementsWritten`)
    2. a new leader epoch tells it to all replicas; the new ones begin to copy
    3. when the whole target is in sync, a state with a leader and an in-sync set of the target only
       hands the partition over
    4. the others are stopped and deleted; a broker that is down deletes its own when it is back
    5. the topic's znode gets the target alone, and the request is taken out of its znode

A move that is replaced or cancelled starts again at 1 with another target. Replicas that neither
end wants any more go through 3 and 4 at once, whatever the others do.
"""

from collections.abc import Iterable, Mapping

from odradek.controller import deletion, election, leaders
from odradek.controller.context import Context, Draft, Replica
from odradek.controller.election import Cause, Choice
from odradek.controller.events import Leadership, PlacementsWritten, ReassignmentRequested
from odradek.controller.placement import Placement
from odradek.controller.states import ReplicaPhase
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import BrokerId, TopicPartition
from odradek.zk.znodes import PartitionState

# --- requests -------------------------------------------------------------------------------------


def refusals(context: Context, event: ReassignmentRequested) -> dict[TopicPartition, KafkaError]:
    """Return the partitions that will not be moved as they are asked to, and why."""
    found = {
        one: _refusal(context, one, target, event.by_znode) for one, target in event.wanted.items()
    }
    return {one: refusal for one, refusal in found.items() if refusal is not None}


def _refusal(
    context: Context,
    partition: TopicPartition,
    target: tuple[BrokerId, ...] | None,
    by_znode: bool,
) -> KafkaError | None:
    malformed = None if target is None else _malformed(target)
    if malformed is not None:
        return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, malformed)
    now = _start(context, partition)
    if target is None and (now is None or not now.is_moving):
        return KafkaError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{partition} is not being reassigned."
        )
    if now is None or partition.topic in context.deletions:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    after = _wanted(now, target)
    # A request through ZooKeeper waits for its brokers, as with Kafka: nobody is there to be told.
    dead = [] if by_znode else [one for one in after.target if not _may_join(context, now, one)]
    if dead:
        return KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Brokers {', '.join(map(str, dead))} of the wanted replicas are not alive.",
        )
    leadership = context.leaderships.get(partition)
    if leadership is not None and set(leadership.state.isr) <= set(after.abandoned):
        return KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Only replicas that would be deleted are in sync: records would be lost.",
        )
    return None


def _malformed(target: tuple[BrokerId, ...]) -> str | None:
    if not target:
        return "The list of wanted replicas is empty."
    if len(set(target)) < len(target):
        return f"A broker is listed twice in {list(target)}."
    if min(target) < 0:
        return f"A broker id is negative in {list(target)}."
    return None


def _may_join(context: Context, now: Placement, broker_id: BrokerId) -> bool:
    alive = broker_id in context.brokers and broker_id not in context.shutting_down
    return alive or broker_id in now.origin


def request(draft: Draft, event: ReassignmentRequested) -> None:
    """Begin, replace and cancel moves; what the znode asks in vain is taken out of it."""
    refused = refusals(draft.base, event)
    done: dict[TopicPartition, tuple[BrokerId, ...] | None] = dict.fromkeys(refused)
    for partition, target in event.wanted.items():
        now = _start(draft.base, partition)
        if partition in refused or now is None:
            continue
        after = _wanted(now, target)
        if after != draft.placement(partition):
            draft.write_placement(partition, after)
        if not event.by_znode:
            done[partition] = None  # the latest request holds
        elif not after.is_moving and after == draft.placement(partition):
            done[partition] = target
    if done or (event.by_znode and not event.wanted):
        draft.drop_reassignments(done)


def _start(context: Context, partition: TopicPartition) -> Placement | None:
    """Return what a new move starts from: a handover that has begun counts as done."""
    now = context.placement(partition)
    if now is None or not now.is_moving:
        return now
    going = [one for one in now.replicas if context.is_going(Replica(partition, one))]
    if any(one not in now.abandoned for one in going):
        return Placement(now.target)
    return now.without(going)


def _wanted(now: Placement, target: tuple[BrokerId, ...] | None) -> Placement:
    return now.towards(now.origin if target is None else target)


# --- steps ----------------------------------------------------------------------------------------


def note_placed(draft: Draft, event: PlacementsWritten) -> None:
    """Take over what the topics' znodes say now: tell new replicas, and finish what has arrived."""
    before = {one: draft.placement(one) for one in event.written}
    draft.place(event.written)
    finished: dict[TopicPartition, tuple[BrokerId, ...] | None] = {}
    for partition, after in event.written.items():
        known = before[partition]
        if known is None or known == after:
            continue
        for broker_id in known.replicas:
            if broker_id not in after.replicas:
                draft.replicas.edit().pop(Replica(partition, broker_id), None)
        # One that was told to go is wanted again: it will have been deleted before it hears of it.
        fresh = [
            one
            for one in after.replicas
            if one not in known.replicas or draft.is_going(Replica(partition, one))
        ]
        for broker_id in fresh:
            draft.replicas.edit().pop(Replica(partition, broker_id), None)
            draft.enter_replica(Replica(partition, broker_id), ReplicaPhase.NEW)
        if fresh:
            announce(draft, partition)
        else:
            draft.tell_metadata(draft.brokers, [partition])
            proceed(draft, partition)
        if not after.is_moving:
            finished[partition] = after.replicas
    draft.watch_states([one for one, after in event.written.items() if after.is_moving])
    if finished:
        draft.drop_reassignments(finished)


def resume(draft: Draft) -> None:
    """Go on with all moves, as a controller that has just taken office."""
    moving = [one for one in draft.moving() if not draft.is_deleted(one)]
    for partition in moving:
        if not draft.is_being_written(partition):
            announce(draft, partition)
    draft.watch_states(moving)


def announce(draft: Draft, partition: TopicPartition) -> None:
    """Start a leader epoch, by which all replicas learn the placement."""
    leadership = draft.leaderships.get(partition)
    if leadership is None:
        leaders.examine(draft, partition, Cause.AVAILABILITY)
        return
    state = leadership.state
    choice = _choose(draft, partition, state) or Choice(state.leader, state.isr)
    wanted = draft.next_state(state, choice.leader, choice.isr)
    draft.update_state(partition, Leadership(wanted, leadership.zk_version), Cause.REASSIGNMENT)


def _choose(draft: Draft, partition: TopicPartition, state: PartitionState) -> Choice | None:
    leaving = _leaving(draft, partition, state)
    staying = [one for one in draft.holders(partition) if one not in leaving]
    return election.choose_reassigned(staying, state, draft.available(partition))


def release(draft: Draft, partition: TopicPartition) -> None:
    """Stop the replicas that leave, once neither the leader nor the in-sync set is of them."""
    state = draft.leaderships[partition].state
    leaving = _leaving(draft, partition, state)
    if state.leader not in leaving and not any(one in leaving for one in state.isr):
        for broker_id in leaving:
            if not draft.is_going(Replica(partition, broker_id)):
                deletion.start(draft, Replica(partition, broker_id))


def proceed(draft: Draft, partition: TopicPartition) -> None:
    """Do the next step of a move, if it is time for it."""
    leadership, now = draft.leaderships.get(partition), draft.placement(partition)
    if leadership is None or now is None or not now.is_moving:
        return
    if draft.is_deleted(partition) or draft.is_being_written(partition):
        return
    state = leadership.state
    leaving = _leaving(draft, partition, state)
    phases = [draft.replicas.get(Replica(partition, one)) for one in leaving]
    if not all(draft.is_going(Replica(partition, one)) for one in leaving):
        if _choose(draft, partition, state) is not None:
            announce(draft, partition)
    elif ReplicaPhase.DELETION_STARTED not in phases:
        if _has_arrived(draft, partition, now, state):
            draft.write_placement(partition, Placement(now.target))
        elif leaving:
            draft.write_placement(partition, now.without(leaving))


def proceed_all(draft: Draft, partitions: Iterable[TopicPartition]) -> None:
    """Do the next step of several moves."""
    for partition in partitions:
        proceed(draft, partition)


def _leaving(
    draft: Draft, partition: TopicPartition, state: PartitionState
) -> tuple[BrokerId, ...]:
    """Return the replicas whose time is over."""
    now = draft.placement(partition)
    if now is None:
        return ()
    return now.removing if _has_arrived(draft, partition, now, state) else now.abandoned


def _has_arrived(
    draft: Draft, partition: TopicPartition, now: Placement, state: PartitionState
) -> bool:
    """Say whether the target takes over: it is in sync, or has begun to take over already."""
    if all(one in state.isr for one in now.target):
        return True
    return any(
        draft.is_going(Replica(partition, one)) for one in now.removing if one not in now.adding
    )


def list_moving(
    context: Context, partitions: Iterable[TopicPartition] | None
) -> Mapping[TopicPartition, Placement]:
    """Return the moves under way, of these partitions or of all, without what leaves at once."""
    asked = context.moving() if partitions is None else partitions
    found = {one: context.placement(one) for one in asked}
    wanted = {one: now.without(now.abandoned) for one, now in found.items() if now is not None}
    return {one: placement for one, placement in wanted.items() if placement.is_moving}
