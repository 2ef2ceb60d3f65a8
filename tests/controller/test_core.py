"""Rules of the controller's core: tables and elections."""

from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.controller import candidacy, election, events, reassignment, states
from odradek.controller.candidacy import CandidateEvent, CandidateState
from odradek.controller.context import ControllerContext, ControllerSettings
from odradek.controller.election import Available, Cause, Choice
from odradek.controller.events import Leadership
from odradek.controller.replica_assignment import ReplicaAssignment
from odradek.controller.states import IllegalControllerTransitionError, PartitionPhase, ReplicaPhase
from odradek.controller.step import broker_events, load_events
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


MOVE = ReplicaAssignment(broker_ids(3, 4, 1, 2), broker_ids(3, 4), broker_ids(1, 2))
GROWTH = ReplicaAssignment(broker_ids(1, 2, 3), broker_ids(2, 3))
# It was to add 3, too.
REPLACED = ReplicaAssignment(broker_ids(1, 2, 3), broker_ids(2, 3), broker_ids(3))


@pytest.mark.parametrize(
    ("assigned", "deleted", "isr", "told"),
    [
        (MOVE, (), (1, 2), MOVE),
        # The whole target is in sync, and was not told to take over yet.
        (MOVE, (), (1, 2, 3, 4), MOVE),
        (MOVE, (1, 2), (3, 4), ReplicaAssignment(broker_ids(3, 4))),
        # One of them fell out again after the handover.
        (MOVE, (1, 2), (3,), ReplicaAssignment(broker_ids(3, 4))),
        (GROWTH, (), (1, 2), GROWTH),
        (GROWTH, (), (1, 2, 3), ReplicaAssignment(broker_ids(1, 2, 3))),
        (REPLACED, (), (1, 2, 3), REPLACED),
        (REPLACED, (3,), (1,), ReplicaAssignment(broker_ids(1, 2), broker_ids(2))),
        (REPLACED, (3,), (1, 2), ReplicaAssignment(broker_ids(1, 2))),
        (ReplicaAssignment(broker_ids(1, 2)), (), (1,), ReplicaAssignment(broker_ids(1, 2))),
    ],
)
def test_replicas_are_told_of_a_reassignment_until_it_is_done(
    assigned: ReplicaAssignment,
    deleted: tuple[int, ...],
    isr: tuple[int, ...],
    told: ReplicaAssignment,
) -> None:
    assert assigned.as_told(broker_ids(*deleted), broker_ids(*isr)) == told


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


@pytest.mark.parametrize("other", [0, 4])
@pytest.mark.parametrize("cause", [Cause.AVAILABILITY, Cause.REASSIGNMENT])
def test_who_shuts_down_leads_only_if_no_other_can_whatever_its_number(
    cause: Cause, other: int
) -> None:
    before = state(3, 1, other)
    leaving = alive(1, other, leaving=[1])
    choice = election.choose(cause, broker_ids(1, other), before, leaving, False)
    assert choice == make_choice(other, (1, other))


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
