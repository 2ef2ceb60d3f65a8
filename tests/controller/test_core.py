"""Rules of the controller's core: tables, elections, and random histories that must stay safe."""

import itertools
from collections.abc import Collection

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
from odradek.protocol.errors import KafkaError
from odradek.values import NO_LEADER, BrokerId, ControllerEpoch, TopicPartition
from odradek.zk.znodes import PartitionState, TopicAssignment
from tests.controller.transcript import Replayer, brokers
from tests.controller.values import broker_ids, partition_state

BROKERS = broker_ids(1, 2, 3)


def state(leader: int, *isr: int, epoch: int = 0) -> PartitionState:
    return partition_state(leader, epoch, isr, 1)


def alive(*ids: int, leaving: Collection[int] = ()) -> Available:
    live = broker_ids(*ids)
    return Available(live, [one for one in live if one not in leaving])


def make_choice(leader: int, isr: tuple[int, ...]) -> Choice:
    return Choice(BrokerId(leader), broker_ids(*isr))


# --- tables ---


def test_every_phase_can_be_entered_and_only_legal_transitions_pass() -> None:
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
def test_illegal_replica_transitions_raise(source: ReplicaPhase, target: ReplicaPhase) -> None:
    with pytest.raises(IllegalControllerTransitionError, match="replica r"):
        states.enter_replica("r", source, target)


def test_expired_session_ends_every_candidacy_and_only_registration_starts_one() -> None:
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


def test_docstring_of_candidacy_prints_its_table() -> None:
    lines = ["event".ljust(17) + "".join(state.name.ljust(14) for state in CandidateState)]
    for event in CandidateEvent:
        cells = [candidacy.TABLE.get((state, event)) for state in CandidateState]
        names = ["." if cell is None else cell.state.name for cell in cells]
        lines.append(event.name.ljust(17) + "".join(name.ljust(14) for name in names))
    diagram = "\n".join(f"    {line}".rstrip() for line in lines)
    assert diagram in (candidacy.__doc__ or ""), diagram


# --- reassignments ---


def test_reassignments_that_do_not_fit_into_a_znode_are_refused_and_fewer_are_not() -> None:
    many = 15_000
    before, after = broker_ids(101, 102, 103), broker_ids(104, 105, 106)
    context = ControllerContext(
        BrokerId(1),
        ControllerEpoch(1),
        brokers=brokers(map(str, before + after)),
        topics={"t": TopicAssignment(dict.fromkeys(range(many), before))},
    )

    def refused(partitions: int) -> dict[TopicPartition, KafkaError]:
        wanted = {TopicPartition("t", number): after for number in range(partitions)}
        return reassignment.refusals(context, events.ReassignmentRequested(wanted, by_znode=True))

    every = refused(many)
    assert len(every) == many
    assert "Reassign fewer partitions at a time" in every[TopicPartition("t", 0)].message
    assert not refused(many // 2)


# --- start of a controller ---


def loaded(
    registered: str, isr: tuple[int, ...]
) -> tuple[events.ContextLoaded, dict[TopicPartition, int]]:
    """Return what a new controller reads of one partition, written as transaction 50."""
    partition = TopicPartition("t", 0)
    return events.ContextLoaded(
        brokers=brokers(registered.split()),
        topics={"t": TopicAssignment({0: BROKERS})},
        leaderships={partition: Leadership(state(isr[0], *isr), 0)},
    ), {partition: 50}


def test_broker_that_restarted_unseen_is_gone_first() -> None:
    read, written = loaded("1@60 2@10 3@70", (1, 2))
    first, then = load_events(read, written, 5)
    assert first.brokers.keys() == {2, 3}
    assert then == events.BrokersChanged(read.brokers)


def test_brokers_that_were_not_in_sync_or_became_so_later_are_online_from_the_start() -> None:
    read, written = loaded("1@10 2@20 3@70", (1, 2))
    assert load_events(read, written, 5) == [read]


def test_broker_that_the_previous_controller_read_did_not_restart_unseen() -> None:
    read, written = loaded("1@60 2@10 3@70", (1, 2))
    (event,) = load_events(read, written, 65)
    assert event.brokers == read.brokers


def test_leader_of_a_whole_cluster_that_restarted_leads_in_a_new_epoch() -> None:
    read, written = loaded("1@60 2@61 3@62", (1, 2, 3))
    (event,) = load_events(read, written, 5)
    assert event.brokers == read.brokers
    assert "update t-0 leader=1 epoch=1 isr=1,2,3 if version=0" in Replayer().advance(event)


def test_leader_keeps_its_epoch_if_only_followers_registered_after_it_was_written() -> None:
    read, written = loaded("1@49 2@61 3@62", (1, 2, 3))
    first, then = load_events(read, written, 65), load_events(read, written, 5)[-1]
    assert first == [read]
    assert then == events.BrokersChanged(read.brokers)
    assert not any("update" in line.split() for line in Replayer().advance(read))


def test_restarted_leader_gets_a_new_epoch_also_after_a_conflict() -> None:
    """A leader that only lost its session may change the in-sync set meanwhile."""
    read, written = loaded("1@60 2@61 3@62", (1, 2, 3))
    replayer = Replayer()
    replayer.conflict(["t-0", "leader=1", "epoch=0", "isr=1,2", "version=1"])
    (event,) = load_events(read, written, 65)
    said = replayer.advance(event)
    assert "update t-0 leader=1 epoch=1 isr=1,2 if version=1" in said
    assert replayer.context.leaderships[TopicPartition("t", 0)].state.leader_epoch == 1


@pytest.mark.parametrize("isr", [(1,), (1, 2)])
def test_leader_that_restarts_under_a_controller_never_goes_on_in_its_epoch(
    isr: tuple[int, ...],
) -> None:
    read, _ = loaded("1@10 2@10 3@10", isr)
    replayer = Replayer()
    replayer.advance(read)
    for event in broker_events(replayer.context, brokers(["1@60", "2@10", "3@10"])):
        replayer.advance(event)
    found = replayer.context.leaderships[TopicPartition("t", 0)].state
    assert found.leader == isr[-1]
    assert found.leader_epoch > 0


@pytest.mark.parametrize(
    ("registered", "isr", "leader"),
    [("1@60 2@10 3@10", (1,), 1), ("1@60 2@10 3@10", (1, 2), 2), ("2@10 3@10", (1,), 2)],
    ids=["it returned", "it returned and another stayed", "it is gone"],
)
def test_new_controller_elects_uncleanly_only_if_no_replica_is_in_sync(
    registered: str, isr: tuple[int, ...], leader: int
) -> None:
    read, written = loaded(registered, isr)
    replayer = Replayer()
    replayer.context = ControllerContext(
        BrokerId(1), ControllerEpoch(2), ControllerSettings(unclean_leader_election=True)
    )
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
        (state(1, 1, 2, 3), alive(2, 3), False, make_choice(2, (2, 3))),
        (state(1, 1, 2, 3), alive(1, 3), False, make_choice(1, (1, 3))),
        (state(1, 1, 3), alive(2, 3), False, make_choice(3, (3,))),
        (state(1, 1), alive(2, 3), False, make_choice(NO_LEADER, (1,))),
        (state(NO_LEADER, 1), alive(2, 3), False, None),
        (state(NO_LEADER, 1), alive(2, 3), True, make_choice(2, (2,))),
        (state(NO_LEADER, 1), alive(1, 2), True, make_choice(1, (1,))),
        (state(1, 1, 2), alive(), True, make_choice(NO_LEADER, (1, 2))),
        (state(1, 1, 2, 3), alive(2, 3, leaving=[2]), False, make_choice(3, (2, 3))),
        (state(1, 1, 2), alive(2, leaving=[2]), False, make_choice(2, (2,))),
    ],
)
def test_leader_is_chosen_from_available_replicas(
    before: PartitionState, available: Available, unclean: bool, choice: Choice | None
) -> None:
    assert election.choose_available(BROKERS, before, available, unclean) == choice


@pytest.mark.parametrize(
    ("before", "available", "choice"),
    [
        (state(2, 2, 1), alive(1, 2), make_choice(1, (2, 1))),
        (state(1, 2, 1), alive(1, 2), None),
        (state(2, 2), alive(1, 2), None),
        (state(2, 2, 1), alive(2), None),
    ],
)
def test_preferred_leader_must_be_in_sync(
    before: PartitionState, available: Available, choice: Choice | None
) -> None:
    assert election.choose_preferred(BROKERS, before, available) == choice


@pytest.mark.parametrize(
    ("before", "available", "choice"),
    [
        (state(1, 1, 2), alive(1, 2, leaving=[1]), make_choice(2, (2,))),
        (state(2, 2, 1), alive(1, 2, leaving=[1]), make_choice(2, (2,))),
        (state(1, 1), alive(1, 2, leaving=[1]), None),
        (state(2, 2), alive(1, 2, leaving=[1]), None),
    ],
)
def test_controlled_shutdown_moves_leadership_only_to_in_sync_replicas(
    before: PartitionState, available: Available, choice: Choice | None
) -> None:
    assert election.choose_for_shutdown(BROKERS, before, available) == choice


def test_leader_after_reassignment_is_an_in_sync_target() -> None:
    before = state(1, 1, 3)
    chosen = election.choose(Cause.REASSIGNMENT, broker_ids(2, 3), before, alive(1, 2, 3), False)
    assert chosen == make_choice(3, (3,))
    assert election.choose(Cause.REASSIGNMENT, broker_ids(2), before, alive(1, 2, 3), False) is None


@settings(deadline=None)
@given(
    st.permutations(BROKERS),
    st.sets(st.sampled_from(BROKERS)),
    st.sets(st.sampled_from(BROKERS), min_size=1),
    st.sampled_from([each for each in Cause if each is not Cause.UNCLEAN]),
)
def test_clean_elections_never_leave_or_empty_the_isr(
    replicas: list[BrokerId], living: set[BrokerId], isr: set[BrokerId], cause: Cause
) -> None:
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

    def __init__(self) -> None:
        super().__init__()
        self.znodes: dict[TopicPartition, Leadership] = {}
        self.live: dict[BrokerId, int] = {broker: int(broker) for broker in BROKERS}
        self.epochs = itertools.count(10)
        self.names = itertools.count()
        self.topics: dict[str, TopicAssignment] = {}
        self.stops: set[tuple[BrokerId, TopicPartition]] = set()
        # (broker, partition) -> leader epoch and replicas it was told
        self.roles: dict[tuple[BrokerId, TopicPartition], tuple[int, tuple[BrokerId, ...]]] = {}
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
                        self.roles[action.to, role.partition] = (epoch, role.replicas)
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
            if set(self.roles[found.state.leader, one][1]) & set(self.live) - set(found.state.isr):
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
        epoch, replicas = self.roles[leader, one]
        assert epoch == found.state.leader_epoch
        isr = tuple(r for r in replicas if r == leader or (r in members and r in self.live))
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
                    told, replicas = self.roles[broker, one]
                    assert told == epoch
                    assert set(replicas) == set(self.kept_replicas(one))

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
