"""Rules of the controller's core: tables, elections, and random histories that must stay safe."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from odradek.controller import candidacy, election, events, reassignment, replica_assignment, states
from odradek.controller.candidacy import CandidateEvent, CandidateState
from odradek.controller.context import ControllerContext, ControllerSettings, Replica
from odradek.controller.election import Available, Cause, Choice
from odradek.controller.events import Leadership
from odradek.controller.states import IllegalControllerTransitionError, PartitionPhase, ReplicaPhase
from odradek.controller.step import broker_events, load_events, step
from odradek.values import NO_LEADER, TopicPartition
from odradek.zk.znodes import PartitionState, TopicAssignment
from tests.controller.transcript import Replayer, brokers

BROKERS = (1, 2, 3)


def state(leader, *isr, epoch=0):
    return PartitionState(leader, epoch, isr, 1)


def alive(*ids, leaving=()):
    return Available(ids, [one for one in ids if one not in leaving])


# --- tables ---


def test_every_phase_can_be_entered_and_only_legal_transitions_pass():
    assert set(states.PARTITION_SOURCES) == set(PartitionPhase)
    assert set(states.REPLICA_SOURCES) == set(ReplicaPhase)
    for target, sources in states.PARTITION_SOURCES.items():
        for source in PartitionPhase:
            if source in sources:
                states.enter_partition("t-0", source, target)
            else:
                with pytest.raises(IllegalControllerTransitionError, match=source.value):
                    states.enter_partition("t-0", source, target)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (ReplicaPhase.ONLINE, ReplicaPhase.DELETION_STARTED),
        (ReplicaPhase.NON_EXISTENT, ReplicaPhase.ONLINE),
        (ReplicaPhase.DELETION_STARTED, ReplicaPhase.ONLINE),
        (ReplicaPhase.DELETION_SUCCESSFUL, ReplicaPhase.OFFLINE),
    ],
)
def test_illegal_replica_transitions_raise(source, target):
    with pytest.raises(IllegalControllerTransitionError, match="replica r"):
        states.enter_replica("r", source, target)


def test_expired_session_ends_every_candidacy_and_only_registration_starts_one():
    unregistered = CandidateState.UNREGISTERED
    for state in CandidateState:
        expired = candidacy.transition(state, CandidateEvent.SESSION_EXPIRED)
        assert expired.state is unregistered
    starts = [
        event
        for (state, event), to in candidacy.TABLE.items()
        if state is unregistered and to.state is not state
    ]
    assert starts == [CandidateEvent.REGISTERED]
    with pytest.raises(AssertionError, match="won while idle"):
        candidacy.transition(CandidateState.IDLE, CandidateEvent.WON)


def test_docstring_of_candidacy_prints_its_table():
    lines = ["event".ljust(17) + "".join(state.name.ljust(14) for state in CandidateState)]
    for event in CandidateEvent:
        cells = [candidacy.TABLE.get((state, event)) for state in CandidateState]
        names = ["." if cell is None else cell.state.name for cell in cells]
        lines.append(event.name.ljust(17) + "".join(name.ljust(14) for name in names))
    diagram = "\n".join(f"    {line}".rstrip() for line in lines)
    assert diagram in candidacy.__doc__, diagram


# --- start of a controller ---


def loaded(registered, isr):
    """Return what a new controller reads of one partition, written as transaction 50."""
    partition = TopicPartition("t", 0)
    return events.ContextLoaded(
        brokers=brokers(registered.split()),
        topics={"t": TopicAssignment({0: BROKERS})},
        leaderships={partition: Leadership(state(isr[0], *isr), 0)},
    ), {partition: 50}


def test_broker_that_restarted_unseen_is_gone_first():
    read, written = loaded("1@60 2@10 3@70", (1, 2))
    first, then = load_events(read, written, 5)
    assert first.brokers.keys() == {2, 3}
    assert then == events.BrokersChanged(read.brokers)


def test_brokers_that_were_not_in_sync_or_became_so_later_are_online_from_the_start():
    read, written = loaded("1@10 2@20 3@70", (1, 2))
    assert load_events(read, written, 5) == [read]


def test_broker_that_the_previous_controller_read_did_not_restart_unseen():
    read, written = loaded("1@60 2@10 3@70", (1, 2))
    assert load_events(read, written, 65) == [read]


def test_whole_cluster_that_restarted_is_taken_as_it_is():
    read, written = loaded("1@60 2@61 3@62", (1, 2, 3))
    assert load_events(read, written, 5) == [read]


@pytest.mark.parametrize(
    ("registered", "isr", "leader"),
    [("1@60 2@10 3@10", (1,), 1), ("1@60 2@10 3@10", (1, 2), 2), ("2@10 3@10", (1,), 2)],
    ids=["it returned", "it returned and another stayed", "it is gone"],
)
def test_new_controller_elects_uncleanly_only_if_no_replica_is_in_sync(registered, isr, leader):
    read, written = loaded(registered, isr)
    replayer = Replayer()
    replayer.context = ControllerContext(1, 2, ControllerSettings(unclean_leader_election=True))
    for event in load_events(read, written, 5):
        replayer.advance(event)
    (found,) = replayer.context.leaderships.values()
    assert found.state.leader == leader
    assert not replayer.context.awaited


# --- choices ---


@pytest.mark.parametrize(
    ("before", "available", "unclean", "choice"),
    [
        (state(1, 1, 2), alive(1, 2), False, None),
        (state(1, 1, 2, 3), alive(2, 3), False, Choice(2, (2, 3))),
        (state(1, 1, 2, 3), alive(1, 3), False, Choice(1, (1, 3))),
        (state(1, 1, 3), alive(2, 3), False, Choice(3, (3,))),
        (state(1, 1), alive(2, 3), False, Choice(NO_LEADER, (1,))),
        (state(NO_LEADER, 1), alive(2, 3), False, None),
        (state(NO_LEADER, 1), alive(2, 3), True, Choice(2, (2,))),
        (state(NO_LEADER, 1), alive(1, 2), True, Choice(1, (1,))),
        (state(1, 1, 2), alive(), True, Choice(NO_LEADER, (1, 2))),
        (state(1, 1, 2, 3), alive(2, 3, leaving=[2]), False, Choice(3, (2, 3))),
        (state(1, 1, 2), alive(2, leaving=[2]), False, Choice(2, (2,))),
    ],
)
def test_leader_is_chosen_from_available_replicas(before, available, unclean, choice):
    assert election.choose_available(BROKERS, before, available, unclean) == choice


@pytest.mark.parametrize(
    ("before", "available", "choice"),
    [
        (state(2, 2, 1), alive(1, 2), Choice(1, (2, 1))),
        (state(1, 2, 1), alive(1, 2), None),
        (state(2, 2), alive(1, 2), None),
        (state(2, 2, 1), alive(2), None),
    ],
)
def test_preferred_leader_must_be_in_sync(before, available, choice):
    assert election.choose_preferred(BROKERS, before, available) == choice


@pytest.mark.parametrize(
    ("before", "available", "choice"),
    [
        (state(1, 1, 2), alive(1, 2, leaving=[1]), Choice(2, (2,))),
        (state(2, 2, 1), alive(1, 2, leaving=[1]), Choice(2, (2,))),
        (state(1, 1), alive(1, 2, leaving=[1]), None),
        (state(2, 2), alive(1, 2, leaving=[1]), None),
    ],
)
def test_controlled_shutdown_moves_leadership_only_to_in_sync_replicas(before, available, choice):
    assert election.choose_for_shutdown(BROKERS, before, available) == choice


def test_leader_after_reassignment_is_an_in_sync_target():
    before = state(1, 1, 3)
    chosen = election.choose(Cause.REASSIGNMENT, (2, 3), before, alive(1, 2, 3), False)
    assert chosen == Choice(3, (3,))
    assert election.choose(Cause.REASSIGNMENT, (2,), before, alive(1, 2, 3), False) is None


@settings(deadline=None)
@given(
    st.permutations(BROKERS),
    st.sets(st.sampled_from(BROKERS)),
    st.sets(st.sampled_from(BROKERS), min_size=1),
    st.sampled_from([each for each in Cause if each is not Cause.UNCLEAN]),
)
def test_clean_elections_never_leave_or_empty_the_isr(replicas, living, isr, cause):
    before = state(min(isr), *isr)
    choice = election.choose(cause, replicas, before, alive(*living), unclean=False)
    if choice is not None:
        assert choice.leader in (*isr, NO_LEADER)
        assert choice.isr
        assert set(choice.isr) <= isr
        assert choice.leader == NO_LEADER or choice.leader in choice.isr


# --- histories ---


class Histories(RuleBasedStateMachine):
    """Brokers start and stop, leaders change in-sync replicas; topics are created, grown, moved,
    deleted.

    `znodes` is ZooKeeper: (state, version) by partition; `topics` are its topics. Writes at an old
    version conflict.
    """

    def __init__(self):
        super().__init__()
        self.znodes = {}
        self.live = {1: 1, 2: 2, 3: 3}
        self.epochs = itertools.count(10)
        self.names = itertools.count()
        self.topics = {}
        self.stops = set()
        self.roles = {}  # (broker, partition) -> leader epoch and replicas it was told
        self.metadata = {}  # (broker, partition) -> leader, leader epoch, offline replicas
        self.context = ControllerContext(1, 1, ControllerSettings())
        self.give(events.ContextLoaded(self.registered(), {}, {}))

    @initialize(replicas=st.permutations(BROKERS), factor=st.integers(1, 3))
    def create_first_topic(self, replicas, factor):
        self.create([tuple(replicas[:factor])])

    def registered(self):
        return brokers([f"{number}@{epoch}" for number, epoch in self.live.items()])

    def give(self, event):
        queue = [event]
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
                        self.roles[action.to, role.partition] = (epoch, role.replicas)
                elif isinstance(action, events.UpdateMetadata):
                    for to, one in itertools.product(action.to, action.partitions):
                        told = one.leadership.state
                        self.metadata[to, one.partition] = (
                            told.leader,
                            told.leader_epoch,
                            one.offline_replicas,
                        )
                elif isinstance(action, events.RemoveTopic):
                    for one in [one for one in self.znodes if one.topic == action.topic]:
                        del self.znodes[one]
                    del self.topics[action.topic]
                    queue.append(events.TopicRemoved(action.topic))
                elif isinstance(action, events.WriteAssignments):
                    for one, found in action.assignments.items():
                        changed = replica_assignment.with_changes(
                            self.topics[one.topic], {one.partition: found}
                        )
                        self.topics[one.topic] = changed
                    queue.append(events.AssignmentsWritten(action.assignments))

    def stop(self, action):
        for one in action.partitions:
            self.stops.add((action.to, one))
            if one.topic not in self.context.deletions:
                state = self.znodes[one].state
                assert action.to not in (*state.isr, state.leader), "records would be lost"

    def assignment(self, one):
        return replica_assignment.of(self.topics[one.topic], one.partition)

    def kept_replicas(self, one):
        return tuple(
            broker
            for broker in self.assignment(one).replicas
            if not self.context.is_deleting(Replica(one, broker))
        )

    def write(self, action):
        written, conflicts = {}, {}
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

    def brokers_changed(self, broker):
        """Step the core; a broker that is gone or new has forgotten what it received."""
        self.stops = {stop for stop in self.stops if stop[0] != broker}
        for told in (self.roles, self.metadata):
            for key in [key for key in told if key[0] == broker]:
                del told[key]
        for event in broker_events(self.context, self.registered()):
            self.give(event)

    @rule(broker=st.sampled_from(BROKERS))
    def stop_broker(self, broker):
        self.live.pop(broker, None)
        self.brokers_changed(broker)

    @rule(broker=st.sampled_from(BROKERS))
    def start_or_restart_broker(self, broker):
        self.live[broker] = next(self.epochs)
        self.brokers_changed(broker)

    @rule(
        replicas=st.lists(st.permutations(BROKERS), min_size=1, max_size=2),
        factor=st.integers(1, 3),
    )
    def create_topic(self, replicas, factor):
        self.create([tuple(one[:factor]) for one in replicas])

    def create(self, replicas):
        name = f"t{next(self.names)}"
        found = dict(enumerate(replicas))
        self.topics[name] = TopicAssignment(found)
        self.give(events.TopicsChanged({name: self.topics[name]}))

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def grow_topic(self, data):
        name = data.draw(st.sampled_from(sorted(self.topics)))
        found = self.topics[name]
        added = replica_assignment.ReplicaAssignment(replica_assignment.of(found, 0).target)
        grown = replica_assignment.with_changes(found, {len(found.partitions): added})
        if name not in self.context.deletions:
            self.topics[name] = grown
        self.give(events.PartitionsChanged(name, grown))

    @precondition(lambda self: self.znodes)
    @rule(data=st.data(), back=st.booleans(), by_znode=st.booleans())
    def reassign_partition(self, data, back, by_znode):
        self.reassign(data, data.draw(st.sampled_from(sorted(self.znodes))), back, by_znode)

    def reassign(self, data, one, back, by_znode):
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
    def catch_up_followers(self):
        for one, found in list(self.znodes.items()):
            if one.topic in self.context.deletions or found.state.leader not in self.live:
                continue
            if set(self.roles[found.state.leader, one][1]) & set(self.live) - set(found.state.isr):
                self.write_isr(one, found, BROKERS)

    @rule()
    def answer_stops(self):
        stops, self.stops = self.stops, set()
        for broker, one in sorted(stops):
            self.give(events.ReplicasStopped(broker, frozenset({one})))

    @precondition(lambda self: self.context.being_reassigned())
    @rule()
    def change_controller_during_reassignment(self):
        self.change_controller()

    @precondition(lambda self: self.context.being_reassigned())
    @rule(data=st.data(), back=st.booleans())
    def replace_reassignment(self, data, back):
        self.reassign(
            data, data.draw(st.sampled_from(self.context.being_reassigned())), back, False
        )

    @rule()
    def heal_cluster(self):
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
    def delete_topic(self, data):
        name = data.draw(st.sampled_from(sorted(self.topics)))
        self.give(events.DeletionsRequested(frozenset({name}) | self.context.deletions))

    @precondition(lambda self: self.stops)
    @rule(data=st.data(), fails=st.booleans())
    def answer_stop(self, data, fails):
        broker, partition = data.draw(st.sampled_from(sorted(self.stops)))
        self.stops.discard((broker, partition))
        done, failed = frozenset({partition}), frozenset()
        if fails:
            done, failed = failed, done
        self.give(events.ReplicasStopped(broker, done, failed))

    @precondition(lambda self: self.znodes)
    @rule(data=st.data(), members=st.sets(st.sampled_from(BROKERS)), told=st.booleans())
    def change_isr(self, data, members, told):
        one = data.draw(st.sampled_from(sorted(self.znodes)))
        if one.topic not in self.context.deletions:
            self.write_isr(one, self.znodes[one], members, told)

    def write_isr(self, one, found, members, told=True):
        leader = found.state.leader
        if leader not in self.live:
            return
        epoch, replicas = self.roles[leader, one]
        assert epoch == found.state.leader_epoch
        isr = tuple(r for r in replicas if r == leader or (r in members and r in self.live))
        changed = PartitionState(leader, epoch, isr, 1)
        self.znodes[one] = Leadership(changed, found.zk_version + 1)
        if told:
            self.give(events.IsrChanged({one: self.znodes[one]}))

    @rule(broker=st.sampled_from(BROKERS))
    def request_shutdown(self, broker):
        self.give(events.ShutdownRequested(broker))

    @rule()
    def rebalance(self):
        self.give(events.RebalanceDue())

    @precondition(lambda self: self.znodes)
    @rule(data=st.data())
    def fail_disk(self, data):
        one = data.draw(st.sampled_from(sorted(self.znodes)))
        broker = data.draw(st.sampled_from(self.assignment(one).replicas))
        if broker in self.live:
            self.give(events.ReplicasFailed(broker, frozenset({one})))

    @rule()
    def change_controller(self):
        """The next controller reads what there is; answers to the old one are lost."""
        deletions = self.context.deletions
        self.context = ControllerContext(1, 1, ControllerSettings())
        self.stops = set()
        topics, states = dict(self.topics), dict(self.znodes)
        self.give(events.ContextLoaded(self.registered(), topics, states, {}, deletions))

    @invariant()
    def states_are_consistent(self):
        for one, found in self.znodes.items():
            isr, replicas = found.state.isr, self.assignment(one).replicas
            assert isr
            assert set(isr) <= set(replicas)
            assert found.state.leader in (*isr, NO_LEADER)

    @invariant()
    def partitions_with_a_live_in_sync_replica_have_a_leader(self):
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
    def live_brokers_have_current_states(self):
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
                    told, replicas = self.roles[broker, one]
                    assert told == epoch
                    assert set(replicas) == set(self.kept_replicas(one))

    @invariant()
    def every_started_deletion_waits_for_an_answer(self):
        for replica, phase in self.context.replicas.items():
            if phase is ReplicaPhase.DELETION_STARTED:
                assert (replica.broker_id, replica.partition) in self.stops

    @invariant()
    def partitions_with_a_live_replica_have_a_state(self):
        for name, found in self.topics.items():
            for number, replicas in found.partitions.items():
                if name not in self.context.deletions and set(replicas) & set(self.live):
                    assert TopicPartition(name, number) in self.znodes


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
