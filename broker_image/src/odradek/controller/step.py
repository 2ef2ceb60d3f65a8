"""The controller's pure core: (context, event) -> (context, actions).

Each event has one handler, which changes a draft of the context. New states go to ZooKeeper first
(`leader_election`, `reassignment`). The result comes back as `StatesWritten`: a written state is
sent to the replicas and to all brokers; after a conflict (a leader changed its in-sync replicas
meanwhile) the decision is made again on the present state. So every path is level-triggered and may
be repeated. Elections that a partition can do without are given up after `MAX_CONFLICTS` in a row.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from odradek.controller import deletion, leader_election, reassignment, replica_failures
from odradek.controller.context import ControllerContext, Draft, Replica
from odradek.controller.election import Cause
from odradek.controller.events import (
    Action,
    AssignmentsWritten,
    BrokersChanged,
    ContextLoaded,
    DeletionsRequested,
    ElectionRequested,
    EpochsRefused,
    Event,
    FailedReplicasDue,
    IsrChanged,
    Leadership,
    LiveBroker,
    LogDirFailed,
    PartitionsChanged,
    PreferredRequested,
    ReassignmentRequested,
    RebalanceDue,
    ReplicasAnswered,
    ReplicasFailed,
    ReplicasStopped,
    ResendRequired,
    ShutdownRequested,
    StatesWritten,
    TopicRemoved,
    TopicsChanged,
    UncleanChanged,
)
from odradek.controller.states import PartitionPhase, ReplicaPhase
from odradek.values import EPOCHS_ABOVE, NO_LEADER, BrokerId, TopicPartition
from odradek.zk.znodes import TopicAssignment

MAX_CONFLICTS = 10
HIGHEST_RAISED = 2**30
"""From here on leader epochs are not raised: one in a log that is higher is damaged."""
OPTIONAL_CAUSES = frozenset({Cause.PREFERRED, Cause.CONTROLLED_SHUTDOWN})


def step(context: ControllerContext, event: Event) -> tuple[ControllerContext, list[Action]]:
    """Return the next context, and the actions in their order."""
    draft = Draft(context)
    _HANDLERS[type(event)](draft, event)
    return draft.finish()


def broker_events(
    context: ControllerContext, brokers: Mapping[BrokerId, LiveBroker]
) -> list[BrokersChanged]:
    """Return the events for a new list of brokers.

    A broker that restarted since the last read has a new epoch. It becomes two events, gone and
    back, because the restarted broker has forgotten its leader and follower roles (row C7).
    """
    steady = {
        broker_id: broker
        for broker_id, broker in brokers.items()
        if broker_id not in context.brokers or context.brokers[broker_id].epoch == broker.epoch
    }
    if len(steady) == len(brokers):
        return [BrokersChanged(brokers)]
    return [BrokersChanged(steady), BrokersChanged(brokers)]


def departed_partitions(
    context: ControllerContext, brokers: Mapping[BrokerId, LiveBroker]
) -> list[TopicPartition]:
    """Return the partitions that brokers left, by this new list, while known to be out of sync.

    Leaders may have added them to the in-sync replicas since.
    """
    departed = {
        broker_id
        for broker_id, known in context.brokers.items()
        if broker_id not in brokers or brokers[broker_id].epoch != known.epoch
    }
    if not departed:
        return []

    def is_concerned(partition: TopicPartition, isr: tuple[BrokerId, ...]) -> bool:
        if partition.topic in context.deletions:
            return False
        replicas = context.topics[partition.topic].partitions[partition.partition]
        return any(one in departed and one not in isr for one in replicas)

    found = context.leaderships.items()
    return [one for one, leadership in found if is_concerned(one, leadership.state.isr)]


def load_events(
    loaded: ContextLoaded, written: Mapping[TopicPartition, int], previous_election: int
) -> list[ContextLoaded | BrokersChanged]:
    """Return the events for what a new controller has read.

    `written` is each state's mzxid, `previous_election` the zxid of the former controller's
    election. A broker restarted unseen if it registered after that, and after a state was written
    that has it in sync. Records that its machine had not flushed may be lost. So it becomes two
    events here too, gone and back, and there is no unclean election until it is back. If all
    brokers restarted unseen, none is better than the others, and they stay.

    A leader that stays although it registered after its partition's state was written gets a new
    leader epoch: its followers may hold records of the old one that it lost.
    """
    returned = {
        member
        for partition, leadership in loaded.leaderships.items()
        for member in leadership.state.isr
        if member in loaded.brokers
        and loaded.brokers[member].epoch > max(written[partition], previous_election)
    }
    seen = {one: broker for one, broker in loaded.brokers.items() if one not in returned}
    restarted = frozenset(
        partition
        for partition, leadership in loaded.leaderships.items()
        if leadership.state.leader in loaded.brokers
        and loaded.brokers[leadership.state.leader].epoch > written[partition]
    )
    loaded = replace(loaded, led_since_restart=restarted)
    if not returned or not seen:
        return [loaded]
    first = replace(loaded, brokers=seen, awaited=frozenset(returned))
    return [first, BrokersChanged(loaded.brokers)]


# --- start ----------------------------------------------------------------------------------------


def _load(draft: Draft, event: ContextLoaded) -> None:
    draft.brokers = event.brokers
    draft.awaited = event.awaited
    draft.topics.edit().update(event.topics)
    draft.unclean.edit().update(event.unclean)
    for partition in draft.all_partitions():
        draft.enter_partition(partition, PartitionPhase.NEW)
        leadership = event.leaderships.get(partition)
        if leadership is not None:
            draft.leaderships.edit()[partition] = leadership
            leads = draft.is_alive(partition, leadership.state.leader)
            phase = PartitionPhase.ONLINE if leads else PartitionPhase.OFFLINE
            draft.enter_partition(partition, phase)
        for broker_id in draft.replicas_of(partition):
            alive = draft.is_alive(partition, broker_id)
            phase_of_replica = ReplicaPhase.ONLINE if alive else ReplicaPhase.OFFLINE
            draft.enter_replica(Replica(partition, broker_id), ReplicaPhase.NEW, phase_of_replica)
    # Before any election: a half deleted topic must not get new states.
    deletion.request(draft, event.deletions)
    live = _kept_partitions(draft)
    for partition in live:
        restarted = partition in event.led_since_restart
        cause = Cause.LEADER_RESTART if restarted else Cause.AVAILABILITY
        leader_election.elect(draft, partition, cause)
    reassignment.resume(draft)
    steady = [one for one in live if not draft.is_being_written(one)]
    # Also of partitions being written: a broker that just started must know that a topic exists.
    draft.add_update_metadata(draft.brokers, live)
    for partition in steady:
        if partition in draft.leaderships:
            draft.add_leader_and_isr(draft.replicas_of(partition), partition)


# --- leaders --------------------------------------------------------------------------------------


def _on_states_written(draft: Draft, event: StatesWritten) -> None:
    for partition, leadership in event.written.items():
        before = draft.leaderships.get(partition)
        draft.causes.edit().pop(partition, None)
        draft.conflicts.edit().pop(partition, None)
        _take_state(draft, partition, leadership)
        reassignment.release(draft, partition)
        lead = {leadership.state.leader, before.state.leader if before else NO_LEADER}
        # A follower that shuts down has stopped; LeaderAndIsr would make it fetch again.
        to = [
            one
            for one in draft.kept_replicas(partition)
            if one not in draft.shutting_down or one in lead
        ]
        draft.add_leader_and_isr(to, partition, is_new=before is None)
    draft.add_update_metadata(draft.brokers if event.written else (), event.written)
    for partition, leadership in event.conflicts.items():
        cause = draft.causes.edit().pop(partition, Cause.AVAILABILITY)
        conflicts = draft.conflicts.edit().pop(partition, 0) + 1
        _take_state(draft, partition, leadership)
        if cause is Cause.REASSIGNMENT and not draft.in_deleted_topic(partition):
            reassignment.announce(draft, partition)
        elif cause not in OPTIONAL_CAUSES or conflicts < MAX_CONFLICTS:
            leader_election.elect(draft, partition, cause)
        if draft.is_being_written(partition):
            draft.conflicts.edit()[partition] = conflicts
        else:
            # The state that somebody else wrote stays; brokers that missed it receive it here.
            draft.add_leader_and_isr(draft.replicas_of(partition), partition)
            draft.add_update_metadata(draft.brokers, [partition])
    for partition in event.missing:
        draft.causes.edit().pop(partition, None)
        draft.conflicts.edit().pop(partition, None)
    reassignment.proceed_all(draft, event.written, announced=True)
    reassignment.proceed_all(draft, event.conflicts)


def _raise_epochs(draft: Draft, event: EpochsRefused) -> None:
    """Start leader epochs above those in a broker's logs, with the same leaders.

    Those in ZooKeeper are too low after it went back to an older copy, or if a topic was made anew
    for logs that are there. How high those in the logs are, nobody tells.
    """
    for partition, refused in sorted(event.epochs):
        leadership = draft.leaderships.get(partition)
        if leadership is None or draft.in_deleted_topic(partition):
            continue
        state = leadership.state
        if state.leader_epoch != refused:
            continue  # there is another since
        if refused >= HIGHEST_RAISED:
            continue
        by = max(EPOCHS_ABOVE, refused)
        raised = draft.next_state(state, state.leader, state.isr, by=by)
        draft.update_state(
            partition, Leadership(raised, leadership.zk_version), Cause.LEADER_RESTART
        )


def _take_state(draft: Draft, partition: TopicPartition, leadership: Leadership) -> None:
    draft.leaderships.edit()[partition] = leadership
    alive = draft.is_alive(partition, leadership.state.leader)
    draft.enter_partition(partition, PartitionPhase.ONLINE if alive else PartitionPhase.OFFLINE)
    for broker_id in draft.replicas_of(partition):
        replica = Replica(partition, broker_id)
        if draft.replicas.get(replica) is ReplicaPhase.NEW:
            live = draft.is_alive(partition, broker_id)
            draft.enter_replica(replica, ReplicaPhase.ONLINE if live else ReplicaPhase.OFFLINE)


def _on_isr_changed(draft: Draft, event: IsrChanged) -> None:
    newer = {
        partition: leadership
        for partition, leadership in event.leaderships.items()
        if partition in draft.leaderships
        and not draft.in_deleted_topic(partition)
        and leadership.zk_version > draft.leaderships[partition].zk_version
    }
    draft.leaderships.edit().update(newer)
    # A leader may have added a replica before it noticed that the replica's broker is gone.
    for partition, leadership in newer.items():
        if not all(draft.is_alive(partition, member) for member in leadership.state.isr):
            leader_election.elect(draft, partition, Cause.AVAILABILITY)
    unwritten = [one for one in newer if not draft.is_being_written(one)]
    draft.add_update_metadata(draft.brokers if unwritten else (), unwritten)
    reassignment.proceed_all(draft, unwritten)


# --- brokers --------------------------------------------------------------------------------------


def _change_brokers(draft: Draft, event: BrokersChanged) -> None:
    before = draft.brokers
    gone = before.keys() - event.brokers.keys()
    added = event.brokers.keys() - before.keys()
    draft.brokers = event.brokers
    draft.awaited = frozenset()
    draft.shutting_down -= gone
    draft.forget_failures(lambda replica: replica.broker_id in gone)
    if gone:
        affected = draft.partitions_on(gone)
        for broker_id in sorted(gone):
            replica_failures.take_offline(draft, broker_id, affected)
        leader_election.elect_all(draft, affected)
        draft.add_update_metadata(
            draft.brokers, [one for one in affected if not draft.is_being_written(one)]
        )
    if added:
        draft.add_update_metadata(before.keys() & event.brokers.keys())
        draft.add_update_metadata(added, _kept_partitions(draft))
        for broker_id in sorted(added):
            _bring_online(draft, broker_id)
        leader_election.elect_all(draft, _leaderless(draft, draft.partitions))
        # The other brokers' metadata still lists their replicas as offline.
        returned = [
            one
            for one in draft.partitions_on(added)
            if not draft.in_deleted_topic(one) and not draft.is_being_written(one)
        ]
        draft.add_update_metadata(draft.brokers, returned)
    reassignment.proceed_all(draft, draft.being_reassigned())


def _bring_online(draft: Draft, broker_id: BrokerId) -> None:
    mine = draft.partitions_on({broker_id})
    deletion.resume(draft, broker_id, mine)
    for partition in mine:
        if draft.in_deleted_topic(partition) or draft.is_deleting(Replica(partition, broker_id)):
            continue
        draft.enter_replica(Replica(partition, broker_id), ReplicaPhase.ONLINE)
        if partition in draft.leaderships:
            draft.add_leader_and_isr([broker_id], partition)


def _kept_partitions(draft: Draft) -> list[TopicPartition]:
    return [one for one in draft.all_partitions() if not draft.in_deleted_topic(one)]


def _leaderless(draft: Draft, among: Iterable[TopicPartition]) -> list[TopicPartition]:
    return [
        one
        for one in among
        if draft.partitions.get(one) in (PartitionPhase.NEW, PartitionPhase.OFFLINE)
        and not draft.in_deleted_topic(one)
    ]


def _begin_shutdown(draft: Draft, event: ShutdownRequested) -> None:
    if event.broker_id not in draft.brokers:
        return
    draft.shutting_down |= {event.broker_id}
    for partition in draft.partitions_on({event.broker_id}):
        leadership = draft.leaderships.get(partition)
        if leadership is None or len(draft.replicas_of(partition)) == 1:
            continue
        if leadership.state.leader != event.broker_id and not draft.in_deleted_topic(partition):
            draft.add_stop_replica(event.broker_id, partition, delete=False)
        leader_election.elect(draft, partition, Cause.CONTROLLED_SHUTDOWN)


def _resend(draft: Draft, event: ResendRequired) -> None:
    draft.add_update_metadata([event.broker_id], _kept_partitions(draft))
    mine = draft.partitions_on({event.broker_id})
    for partition in mine:
        if partition in draft.leaderships and not draft.in_deleted_topic(partition):
            draft.add_leader_and_isr([event.broker_id], partition)
    deletion.resend(draft, event.broker_id, mine)


# --- topics ---------------------------------------------------------------------------------------


def _change_topics(draft: Draft, event: TopicsChanged) -> None:
    for topic in sorted(event.removed & draft.topics.current.keys()):
        # Somebody removed the znodes by hand; remove the topic from the brokers' metadata.
        draft.deletions |= {topic}
        draft.remove_reassignments_of(topic)
        draft.add_update_metadata(draft.brokers, draft.partitions_of(topic))
        draft.forget_topic(topic)
    draft.unclean.edit().update(event.unclean)
    for topic, assignment in sorted(event.added.items()):
        if topic not in draft.topics:
            draft.topics.edit()[topic] = assignment
            _add_partitions(draft, draft.partitions_of(topic))


def _grow_topic(draft: Draft, event: PartitionsChanged) -> None:
    known = draft.topics.get(event.topic)
    if known is None or event.topic in draft.deletions:
        return
    added = {
        number: replicas
        for number, replicas in event.assignment.partitions.items()
        if number not in known.partitions
    }
    if added:
        draft.topics.edit()[event.topic] = TopicAssignment(
            {**known.partitions, **added},
            known.adding,
            known.removing,
            event.assignment.topic_id,
        )
        _add_partitions(draft, [TopicPartition(event.topic, number) for number in sorted(added)])


def _add_partitions(draft: Draft, partitions: Iterable[TopicPartition]) -> None:
    for partition in partitions:
        draft.enter_partition(partition, PartitionPhase.NEW)
        for broker_id in draft.replicas_of(partition):
            draft.enter_replica(Replica(partition, broker_id), ReplicaPhase.NEW)
        leader_election.elect(draft, partition, Cause.AVAILABILITY)


def _change_unclean(draft: Draft, event: UncleanChanged) -> None:
    if event.topic is None:
        draft.settings = replace(draft.settings, unclean_leader_election=bool(event.enabled))
        leader_election.elect_all(draft, _leaderless(draft, draft.partitions))
        return
    if event.topic not in draft.topics:
        return
    if event.enabled is None:
        draft.unclean.edit().pop(event.topic, None)
    else:
        draft.unclean.edit()[event.topic] = event.enabled
    # Every new topic comes here, so not through the partitions of all topics.
    leader_election.elect_all(draft, _leaderless(draft, draft.partitions_of(event.topic)))


def _remove_topic(draft: Draft, event: TopicRemoved) -> None:
    if event.topic in draft.topics:
        draft.forget_topic(event.topic)


def _complete_deletions(draft: Draft, event: ReplicasStopped) -> None:
    known = draft.partitions.current
    deletion.pause(draft, event.broker_id, [one for one in event.failed if one in known])
    deletion.complete(draft, event.broker_id, [one for one in event.deleted if one in known])
    reassignment.proceed_all(draft, sorted(event.deleted | event.failed))


# --- balance --------------------------------------------------------------------------------------


def _elect_preferred(draft: Draft, event: PreferredRequested) -> None:
    known = [one for one in event.partitions if one in draft.leaderships]
    leader_election.elect_all(draft, known, Cause.PREFERRED)
    draft.finish_preferred_election()


def _elect_requested(draft: Draft, event: ElectionRequested) -> None:
    known = [one for one in event.partitions if one in draft.leaderships]
    leader_election.elect_all(draft, known, event.cause)


def _rebalance(draft: Draft, _: RebalanceDue) -> None:
    leader_election.elect_all(draft, imbalanced_partitions(draft.base), Cause.PREFERRED)


def imbalanced_partitions(context: ControllerContext) -> list[TopicPartition]:
    """Return the preferred partitions that others lead, of brokers that lead too few of theirs.

    None during reassignments, as in Kafka: their targets will need another balance.
    """
    if context.being_reassigned():
        return []
    preferred: dict[BrokerId, list[TopicPartition]] = {}
    for one in context.leaderships:
        if one.topic not in context.deletions:
            replicas = context.topics[one.topic].partitions[one.partition]
            preferred.setdefault(replicas[0], []).append(one)
    found = []
    for broker_id, partitions in sorted(preferred.items()):
        led_by_others = [
            one for one in partitions if context.leaderships[one].state.leader != broker_id
        ]
        if len(led_by_others) * 100 > len(partitions) * context.settings.imbalance_percentage:
            found += led_by_others
    return found


def imbalance(context: ControllerContext) -> int:
    """Return the number of partitions that their preferred replica does not lead."""
    return sum(
        leadership.state.leader
        not in (NO_LEADER, context.topics[one.topic].partitions[one.partition][0])
        for one, leadership in context.leaderships.items()
    )


_HANDLERS: dict[type, Callable[[Draft, Any], None]] = {
    ContextLoaded: _load,
    StatesWritten: _on_states_written,
    IsrChanged: _on_isr_changed,
    BrokersChanged: _change_brokers,
    ShutdownRequested: _begin_shutdown,
    LogDirFailed: replica_failures.check,
    ReplicasFailed: replica_failures.fail,
    ReplicasAnswered: replica_failures.take_back,
    EpochsRefused: _raise_epochs,
    FailedReplicasDue: replica_failures.ask_again,
    ResendRequired: _resend,
    TopicsChanged: _change_topics,
    PartitionsChanged: _grow_topic,
    UncleanChanged: _change_unclean,
    DeletionsRequested: lambda draft, event: deletion.request(draft, event.topics),
    ReplicasStopped: _complete_deletions,
    TopicRemoved: _remove_topic,
    PreferredRequested: _elect_preferred,
    ElectionRequested: _elect_requested,
    ReassignmentRequested: reassignment.request,
    AssignmentsWritten: reassignment.on_assignments_written,
    RebalanceDue: _rebalance,
}
