"""Replicas that fail while their broker lives: they return, and never cause elections without end.

The core runs against brokers that answer every LeaderAndIsr at once; a broken replica answers with
a storage error where it has to lead.
"""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from odradek.controller import events, replica_failures
from odradek.controller.context import Replica
from odradek.controller.event_queue import EventQueue
from odradek.controller.states import ReplicaPhase
from odradek.controller.step import HIGHEST_RAISED, step
from odradek.values import EPOCHS_ABOVE, NO_LEADER, BrokerId, LeaderEpoch, TopicPartition
from odradek.zk.znodes import PartitionState
from tests.controller.transcript import Replayer, brokers
from tests.controller.values import partition_state, topic_assignment

ONE = TopicPartition("t", 0)
FAILURES_UNTIL_IT_STAYS_OUT = replica_failures.MAX_FAILURES
LONG = 1000  # events: elections without end have more


class AnsweringBrokers(Replayer):
    """Brokers 1, 2 and 3; `cannot_lead` answer with errors as leaders, `broken` always.

    `told` are the offline replicas in the last UpdateMetadata.
    """

    def __init__(self, replicas: Iterable[int]) -> None:
        super().__init__()
        self.cannot_lead: set[int] = set()
        self.broken: set[int] = set()
        self.writes = 0
        self.told: tuple[BrokerId, ...] = ()
        topics = {"t": topic_assignment({0: replicas})}
        self.give(events.ContextLoaded(brokers(["1", "2", "3"]), topics, {}))

    @property
    def state(self) -> PartitionState:
        return self.context.leaderships[ONE].state

    def give(self, event: events.Event) -> None:
        queue = [event]
        for handled in range(LONG):
            if not queue:
                return
            self.context, actions = step(self.context, queue.pop(0))
            assert handled < LONG - 1, "no end"
            for action in actions:
                if isinstance(action, events.WriteStates):
                    self.writes += 1
                    queue.insert(0, self.write(action))
                elif isinstance(action, events.LeaderAndIsr):
                    queue.append(self.answer(action))
                elif isinstance(action, events.UpdateMetadata):
                    for described in action.partitions:
                        self.told = described.offline_replicas

    def answer(self, asked: events.LeaderAndIsr) -> events.Event:
        (role,) = asked.roles
        leads = role.leadership.state.leader == asked.to
        failing = asked.to in self.broken or (leads and asked.to in self.cannot_lead)
        kind = events.ReplicasFailed if failing else events.ReplicasAnswered
        return kind(asked.to, frozenset({ONE}))


def test_replica_that_failed_once_leads_again_where_it_is_the_only_one() -> None:
    cluster = AnsweringBrokers([1])
    assert cluster.state == partition_state(1, 0, (1,), 1)
    cluster.give(events.ReplicasFailed(BrokerId(1), frozenset({ONE})))
    assert cluster.state == partition_state(1, 2, (1,), 1)
    assert not cluster.context.failed
    assert cluster.context.replicas[Replica(ONE, BrokerId(1))] is ReplicaPhase.ONLINE
    assert not cluster.told


def test_follower_that_failed_is_online_again_without_an_election() -> None:
    cluster = AnsweringBrokers([1, 2])
    cluster.broken = {2}
    cluster.give(events.ReplicasFailed(BrokerId(2), frozenset({ONE})))
    assert cluster.state == partition_state(1, 1, (1,), 1)
    assert list(cluster.told) == [2]
    cluster.broken, cluster.writes = set(), 0
    cluster.give(events.FailedReplicasDue())
    assert cluster.writes == 0
    assert not cluster.told
    assert not cluster.context.failed


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("replicas", [[1], [1, 2, 3]])
def test_replica_that_fails_whenever_it_leads_causes_no_elections_without_end(
    replicas: list[int], unclean: bool
) -> None:
    cluster = AnsweringBrokers(replicas)
    cluster.cannot_lead = {1, 2, 3}
    cluster.give(events.UncleanChanged("t", unclean))
    cluster.give(events.LogDirFailed(BrokerId(1)))
    assert cluster.state.leader == NO_LEADER
    assert {one.broker_id for one in cluster.context.failed} >= set(cluster.state.isr)
    # A failure costs the election before it and that after it.
    most = 2 * FAILURES_UNTIL_IT_STAYS_OUT * len(replicas)
    assert 0 < cluster.writes <= most + 1
    cluster.writes = 0
    for one in replicas:
        cluster.give(events.ReplicasAnswered(BrokerId(one), frozenset({ONE})))
    assert cluster.writes == 0, "it stays out whatever it answers"
    cluster.give(events.FailedReplicasDue())
    assert cluster.state.leader == NO_LEADER
    assert 0 < cluster.writes <= most


@pytest.mark.parametrize("event", ["registration", "notice", "time"])
def test_replica_that_stays_out_returns(event: str) -> None:
    cluster = AnsweringBrokers([1])
    cluster.cannot_lead = {1}
    cluster.give(events.LogDirFailed(BrokerId(1)))
    assert cluster.state.leader == NO_LEADER
    cluster.cannot_lead = set()
    match event:
        case "registration":
            cluster.give(events.BrokersChanged(brokers(["2", "3"])))
            cluster.give(events.BrokersChanged(brokers(["1@9", "2", "3"])))
        case "notice":
            cluster.give(events.LogDirFailed(BrokerId(1)))
        case "time":
            cluster.give(events.FailedReplicasDue())
    assert cluster.state.leader == 1
    assert not cluster.context.failed


def test_broken_disk_is_asked_and_nothing_is_written_or_told() -> None:
    cluster = AnsweringBrokers([1, 2])
    cluster.broken = {2}
    cluster.give(events.ReplicasFailed(BrokerId(2), frozenset({ONE})))
    before = cluster.context
    cluster.writes = 0
    for _ in range(3):
        cluster.give(events.FailedReplicasDue())
    assert cluster.writes == 0
    assert cluster.context.failed == before.failed
    assert cluster.told == (2,)


def test_replica_of_a_deleted_topic_does_not_return() -> None:
    cluster = AnsweringBrokers([1])
    cluster.cannot_lead = {1}
    cluster.give(events.LogDirFailed(BrokerId(1)))
    cluster.writes = 0
    cluster.give(events.DeletionsRequested(frozenset({"t"})))
    cluster.give(events.FailedReplicasDue())
    cluster.give(events.ReplicasAnswered(BrokerId(1), frozenset({ONE})))
    assert cluster.writes == 0
    cluster.give(events.ReplicasStopped(BrokerId(1), frozenset({ONE})))
    cluster.give(events.TopicRemoved("t"))
    assert not cluster.context.failed
    assert not cluster.context.failures


def test_deletion_that_failed_is_tried_again_while_the_broker_lives() -> None:
    cluster = AnsweringBrokers([1, 3])
    cluster.give(events.DeletionsRequested(frozenset({"t"})))
    one, three = BrokerId(1), BrokerId(3)
    cluster.give(events.ReplicasStopped(one, frozenset({ONE})))
    assert not replica_failures.are_due(cluster.context)
    cluster.give(events.ReplicasStopped(three, frozenset(), frozenset({ONE})))
    assert replica_failures.are_due(cluster.context)
    again, actions = step(cluster.context, events.FailedReplicasDue())
    assert actions == [events.StopReplicas(three, (ONE,), delete=True)]
    assert not replica_failures.are_due(again)
    _, actions = step(again, events.ReplicasStopped(three, frozenset({ONE})))
    assert actions == [events.RemoveTopic("t")]
    gone, _ = step(cluster.context, events.BrokersChanged(brokers(["1", "2"])))
    assert not replica_failures.are_due(gone), "it is deleted when its broker returns"


def test_late_answers_of_a_broker_whose_replica_moved_away_change_nothing() -> None:
    cluster = AnsweringBrokers([1, 2])
    before = cluster.context
    cluster.give(events.ReplicasFailed(BrokerId(3), frozenset({ONE})))
    assert not replica_failures.are_due(cluster.context), "nobody is asked again without end"
    cluster.give(events.ReplicasAnswered(BrokerId(3), frozenset({ONE})))
    assert cluster.context == before


async def test_answers_are_queued_in_their_order_even_if_they_repeat() -> None:
    failed = events.ReplicasFailed(BrokerId(1), frozenset({ONE}))
    answered = events.ReplicasAnswered(BrokerId(1), frozenset({ONE}))
    queue = EventQueue()
    for one in (failed, answered, failed, events.RebalanceDue(), events.RebalanceDue()):
        queue.put(one)
    assert len(queue) == 4
    assert [await queue.get() for _ in range(3)] == [failed, answered, failed]


async def test_defaults_are_queued_in_their_order_even_if_they_repeat() -> None:
    """Whoever enables unclean elections and disables them again wants none."""
    off, on = events.UncleanChanged(None, False), events.UncleanChanged(None, True)
    queue = EventQueue()
    for one in (off, on, off):
        queue.put(one)
    assert [await queue.get() for _ in range(len(queue))] == [off, on, off]


def test_leader_epochs_below_those_in_logs_are_raised_once() -> None:
    cluster = AnsweringBrokers((1, 2, 3))
    before = cluster.state
    refused = frozenset({(ONE, before.leader_epoch)})
    raised = replace(before, leader_epoch=LeaderEpoch(before.leader_epoch + EPOCHS_ABOVE))
    for broker_id in (1, 2):
        # The second answer is about the former epoch, too.
        cluster.give(events.EpochsRefused(BrokerId(broker_id), refused))
        assert cluster.state == raised
    gone = (TopicPartition("gone", 0), LeaderEpoch(0))
    cluster.give(events.EpochsRefused(BrokerId(2), frozenset({gone})))
    assert cluster.state == raised


def test_leader_epochs_are_not_raised_without_end() -> None:
    """A damaged epoch in a log may be any number."""
    cluster = AnsweringBrokers((1, 2, 3))
    rounds = 0
    while (before := cluster.state).leader_epoch < HIGHEST_RAISED:
        cluster.give(events.EpochsRefused(BrokerId(2), frozenset({(ONE, before.leader_epoch)})))
        assert cluster.state.leader_epoch > before.leader_epoch
        rounds += 1
    assert rounds < 20
    cluster.give(events.EpochsRefused(BrokerId(2), frozenset({(ONE, before.leader_epoch)})))
    assert cluster.state == before
    assert before.leader_epoch < 2**31
