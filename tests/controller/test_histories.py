"""Random histories of brokers and topics in which the controller's core must stay safe."""

import itertools
from collections.abc import Collection

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from odradek.controller import events, reassignment, replica_assignment
from odradek.controller.context import ControllerContext, ControllerSettings, Replica
from odradek.controller.events import Leadership
from odradek.controller.states import PartitionPhase, ReplicaPhase
from odradek.controller.step import broker_events, step
from odradek.values import NO_LEADER, BrokerId, ControllerEpoch, TopicPartition
from odradek.zk.znodes import TopicAssignment
from tests.controller.transcript import brokers
from tests.controller.values import broker_ids, partition_state

BROKERS = broker_ids(1, 2, 3)


class Histories(RuleBasedStateMachine):
    """Brokers start and stop, leaders change in-sync replicas; topics are created, grown, moved,
    deleted.

    `znodes` is ZooKeeper: (state, version) by partition; `topics` are its topics. Writes at an old
    version conflict.
    """

    def __init__(self) -> None:
        super().__init__()
        self.znodes: dict[TopicPartition, Leadership] = {}
        self.live: dict[BrokerId, int] = {broker: int(broker) for broker in BROKERS}
        self.epochs = itertools.count(10)
        self.names = itertools.count()
        self.topics: dict[str, TopicAssignment] = {}
        self.stops: set[tuple[BrokerId, TopicPartition]] = set()
        # (broker, partition) -> leader epoch and assignment it was told
        self.roles: dict[
            tuple[BrokerId, TopicPartition], tuple[int, replica_assignment.ReplicaAssignment]
        ] = {}
        # (broker, partition) -> leader, leader epoch, offline replicas
        self.metadata: dict[
            tuple[BrokerId, TopicPartition], tuple[BrokerId, int, tuple[BrokerId, ...]]
        ] = {}
        self.context = ControllerContext(BrokerId(1), ControllerEpoch(1), ControllerSettings())
        self.give(events.ContextLoaded(self.registered(), {}, {}))

    @initialize(replicas=st.permutations(BROKERS), factor=st.integers(1, 3))
    def create_first_topic(self, replicas: list[BrokerId], factor: int) -> None:
        self.create([tuple(replicas[:factor])])

    def registered(self) -> dict[BrokerId, events.LiveBroker]:
        return brokers([f"{number}@{epoch}" for number, epoch in self.live.items()])

    def give(self, event: events.Event) -> None:
        queue: list[events.Event] = [event]
        while queue:
            self.context, actions = step(self.context, queue.pop(0))
            for action in actions:
                if isinstance(action, events.WriteStates):
                    queue.append(self.write(action))
                elif isinstance(action, events.StopReplicas) and action.delete:
                    self.stop(action)
                elif isinstance(action, events.LeaderAndIsr):
                    for role in action.roles:
                        epoch = role.leadership.state.leader_epoch
                        told_assignment = replica_assignment.ReplicaAssignment(
                            role.replicas, role.adding, role.removing
                        )
                        self.roles[action.to, role.partition] = (epoch, told_assignment)
                elif isinstance(action, events.UpdateMetadata):
                    for to, sent in itertools.product(action.to, action.partitions):
                        told = sent.leadership.state
                        self.metadata[to, sent.partition] = (
                            told.leader,
                            told.leader_epoch,
                            sent.offline_replicas,
                        )
                elif isinstance(action, events.RemoveTopic):
                    for gone in [gone for gone in self.znodes if gone.topic == action.topic]:
                        del self.znodes[gone]
                    del self.topics[action.topic]
                    queue.append(events.TopicRemoved(action.topic))
                elif isinstance(action, events.WriteAssignments):
                    for one, found in action.assignments.items():
                        changed = replica_assignment.with_changes(
                            self.topics[one.topic], {one.partition: found}
                        )
                        self.topics[one.topic] = changed
                    queue.append(events.AssignmentsWritten(action.assignments))

    def stop(self, action: events.StopReplicas) -> None:
        for one in action.partitions:
            self.stops.add((action.to, one))
            if one.topic not in self.context.deletions:
                state = self.znodes[one].state
                assert action.to not in (*state.isr, state.leader), "records would be lost"

    def assignment(self, one: TopicPartition) -> replica_assignment.ReplicaAssignment:
        return replica_assignment.of(self.topics[one.topic], one.partition)

    def kept_replicas(self, one: TopicPartition) -> tuple[BrokerId, ...]:
        return tuple(
            broker
            for broker in self.assignment(one).replicas
            if not self.context.is_deleting(Replica(one, broker))
        )

    def write(self, action: events.WriteStates) -> events.StatesWritten:
        written: dict[TopicPartition, Leadership] = {}
        conflicts: dict[TopicPartition, Leadership] = {}
        for one, new in action.creates.items():
            assert one not in self.znodes
            self.znodes[one] = written[one] = Leadership(new, 0)
        for one, wanted in action.updates.items():
            found = self.znodes[one]
            if found.zk_version != wanted.zk_version:
                conflicts[one] = found
                continue
            assert wanted.state.leader_epoch == found.state.leader_epoch + 1
            assert wanted.state.leader in (*found.state.isr, NO_LEADER)
            self.znodes[one] = written[one] = Leadership(wanted.state, found.zk_version + 1)
        return events.StatesWritten(written, conflicts)

    def brokers_changed(self, broker: BrokerId) -> None:
        """Step the core; a broker that is gone or new has forgotten what it received."""
        self.stops = {stop for stop in self.stops if stop[0] != broker}
        for role in [key for key in self.roles if key[0] == broker]:
            del self.roles[role]
        for key in [key for key in self.metadata if key[0] == broker]:
            del self.metadata[key]
        for event in broker_events(self.context, self.registered()):
            self.give(event)

    @rule(broker=st.sampled_from(BROKERS))
    def stop_broker(self, broker: BrokerId) -> None:
        self.live.pop(broker, None)
        self.brokers_changed(broker)

    @rule(broker=st.sampled_from(BROKERS))
    def start_or_restart_broker(self, broker: BrokerId) -> None:
        self.live[broker] = next(self.epochs)
        self.brokers_changed(broker)

    @rule(
        replicas=st.lists(st.permutations(BROKERS), min_size=1, max_size=2),
        factor=st.integers(1, 3),
    )
    def create_topic(self, replicas: list[list[BrokerId]], factor: int) -> None:
        self.create([tuple(one[:factor]) for one in replicas])

    def create(self, replicas: list[tuple[BrokerId, ...]]) -> None:
        name = f"t{next(self.names)}"
        found = dict(enumerate(replicas))
        self.topics[name] = TopicAssignment(found)
        self.give(events.TopicsChanged({name: self.topics[name]}))

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def grow_topic(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        found = self.topics[name]
        added = replica_assignment.ReplicaAssignment(replica_assignment.of(found, 0).target)
        grown = replica_assignment.with_changes(found, {len(found.partitions): added})
        if name not in self.context.deletions:
            self.topics[name] = grown
        self.give(events.PartitionsChanged(name, grown))

    @precondition(lambda self: self.znodes)
    @rule(data=st.data(), back=st.booleans(), by_znode=st.booleans())
    def reassign_partition(self, data: st.DataObject, back: bool, by_znode: bool) -> None:
        self.reassign(data, data.draw(st.sampled_from(sorted(self.znodes))), back, by_znode)

    def reassign(
        self, data: st.DataObject, one: TopicPartition, back: bool, by_znode: bool
    ) -> None:
        ids = data.draw(st.permutations(BROKERS))[: data.draw(st.integers(1, 3))]
        target = None if back and not by_znode else tuple(ids)
        event = events.ReassignmentRequested({one: target}, by_znode)
        refused = reassignment.refusals(self.context, event)
        before = self.assignment(one)
        if by_znode or not refused:
            self.give(event)
        if refused:
            assert self.assignment(one) == before
        elif target is not None:
            assert self.assignment(one).target == target

    @rule()
    def catch_up_followers(self) -> None:
        for one, found in list(self.znodes.items()):
            if one.topic in self.context.deletions or found.state.leader not in self.live:
                continue
            told = self.roles[found.state.leader, one][1]
            if set(told.replicas) & set(self.live) - set(found.state.isr):
                self.write_isr(one, found, BROKERS)

    @rule()
    def answer_stops(self) -> None:
        stops, self.stops = self.stops, set()
        for broker, one in sorted(stops):
            self.give(events.ReplicasStopped(broker, frozenset({one})))

    @precondition(lambda self: self.context.being_reassigned())
    @rule()
    def change_controller_during_reassignment(self) -> None:
        self.change_controller(restarted=False)

    @precondition(lambda self: self.context.being_reassigned())
    @rule(data=st.data(), back=st.booleans())
    def replace_reassignment(self, data: st.DataObject, back: bool) -> None:
        self.reassign(
            data, data.draw(st.sampled_from(self.context.being_reassigned())), back, False
        )

    @rule()
    def heal_cluster(self) -> None:
        """Then every move ends."""
        for broker in BROKERS:
            self.live[broker] = next(self.epochs)
            self.brokers_changed(broker)
        for _ in range(8):
            self.catch_up_followers()
            self.answer_stops()
        assert not self.context.being_reassigned()
        for name, found in self.topics.items():
            assert not found.adding
            assert not found.removing
            for number, replicas in found.partitions.items():
                assert set(self.znodes[TopicPartition(name, number)].state.isr) == set(replicas)

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def delete_topic(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        self.give(events.DeletionsRequested(frozenset({name}) | self.context.deletions))

    @precondition(lambda self: self.stops)
    @rule(data=st.data(), fails=st.booleans())
    def answer_stop(self, data: st.DataObject, fails: bool) -> None:
        broker, partition = data.draw(st.sampled_from(sorted(self.stops)))
        self.stops.discard((broker, partition))
        done, failed = frozenset({partition}), frozenset[TopicPartition]()
        if fails:
            done, failed = failed, done
        self.give(events.ReplicasStopped(broker, done, failed))

    @precondition(lambda self: self.znodes)
    @rule(data=st.data(), members=st.sets(st.sampled_from(BROKERS)), told=st.booleans())
    def change_isr(self, data: st.DataObject, members: set[BrokerId], told: bool) -> None:
        one = data.draw(st.sampled_from(sorted(self.znodes)))
        if one.topic not in self.context.deletions:
            self.write_isr(one, self.znodes[one], members, told)

    def write_isr(
        self,
        one: TopicPartition,
        found: Leadership,
        members: Collection[BrokerId],
        told: bool = True,
    ) -> None:
        leader = found.state.leader
        if leader not in self.live:
            return
        epoch, told_assignment = self.roles[leader, one]
        assert epoch == found.state.leader_epoch
        isr = tuple(
            each
            for each in told_assignment.replicas
            if each == leader or (each in members and each in self.live)
        )
        changed = partition_state(leader, epoch, isr, 1)
        self.znodes[one] = Leadership(changed, found.zk_version + 1)
        if told:
            self.give(events.IsrChanged({one: self.znodes[one]}))

    @rule(broker=st.sampled_from(BROKERS))
    def request_shutdown(self, broker: BrokerId) -> None:
        self.give(events.ShutdownRequested(broker))

    @rule()
    def rebalance(self) -> None:
        self.give(events.RebalanceDue())

    @precondition(lambda self: self.znodes)
    @rule(data=st.data())
    def fail_disk(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(sorted(self.znodes)))
        broker = data.draw(st.sampled_from(self.assignment(one).replicas))
        if broker in self.live:
            self.give(events.ReplicasFailed(broker, frozenset({one})))

    @precondition(lambda self: self.context.failed)
    @rule(data=st.data())
    def mend_disk(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from(sorted(self.context.failed)))
        answered = frozenset({replica.partition})
        self.give(events.ReplicasAnswered(replica.broker_id, answered))

    @rule()
    def ask_for_failed_replicas(self) -> None:
        self.give(events.FailedReplicasDue())

    @rule(restarted=st.booleans())
    def change_controller(self, restarted: bool) -> None:
        """The next controller reads what there is; answers to the old one are lost."""
        deletions = self.context.deletions
        self.context = ControllerContext(BrokerId(1), ControllerEpoch(1), ControllerSettings())
        self.stops = set()
        topics, states = dict(self.topics), dict(self.znodes)
        led = frozenset(states if restarted else ())
        self.give(
            events.ContextLoaded(
                self.registered(), topics, states, {}, deletions, led_since_restart=led
            )
        )

    @invariant()
    def states_are_consistent(self) -> None:
        for one, found in self.znodes.items():
            isr, replicas = found.state.isr, self.assignment(one).replicas
            assert isr
            assert set(isr) <= set(replicas)
            assert found.state.leader in (*isr, NO_LEADER)

    @invariant()
    def partitions_with_a_live_in_sync_replica_have_a_leader(self) -> None:
        for one, found in self.context.leaderships.items():
            if one.topic in self.context.deletions:
                continue
            alive_isr = [
                member
                for member in found.state.isr
                if member in self.live
                and not any(
                    f.partition == one and f.broker_id == member for f in self.context.failed
                )
            ]
            assert (found.state.leader in alive_isr) == bool(alive_isr)
            phase = self.context.partitions[one]
            assert (phase is PartitionPhase.ONLINE) == bool(alive_isr)

    @invariant()
    def live_brokers_have_current_states(self) -> None:
        for one, found in self.context.leaderships.items():
            if one.topic in self.context.deletions:
                continue
            leader, epoch = found.state.leader, found.state.leader_epoch
            offline = tuple(
                broker
                for broker in self.kept_replicas(one)
                if broker not in self.live or Replica(one, broker) in self.context.failed
            )
            for broker in self.live:
                assert self.metadata[broker, one] == (leader, epoch, offline)
            for broker in self.kept_replicas(one):
                # A follower that shuts down was told to stop instead.
                if broker in self.live and broker not in self.context.shutting_down:
                    told_epoch, told = self.roles[broker, one]
                    assert told_epoch == epoch
                    assert set(told.replicas) == set(self.kept_replicas(one))
                    self.check_lists(one, told)

    def check_lists(self, one: TopicPartition, told: replica_assignment.ReplicaAssignment) -> None:
        """Check what a broker was told to be added and removed: nothing, once that is done."""
        assigned, kept = self.assignment(one), self.kept_replicas(one)
        present = assigned.without([each for each in assigned.replicas if each not in kept])
        if told.is_being_reassigned or present.removing:
            assert (told.adding, told.removing) == (present.adding, present.removing)

    @invariant()
    def every_started_deletion_waits_for_an_answer(self) -> None:
        for replica, phase in self.context.replicas.items():
            if phase is ReplicaPhase.DELETION_STARTED:
                assert (replica.broker_id, replica.partition) in self.stops

    @invariant()
    def partitions_with_a_live_replica_have_a_state(self) -> None:
        for name, found in self.topics.items():
            for number, replicas in found.partitions.items():
                if name not in self.context.deletions and set(replicas) & set(self.live):
                    assert TopicPartition(name, number) in self.znodes


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
