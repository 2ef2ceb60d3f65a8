"""Elections on request (KIP-460): when they are held, and their results."""

import pytest

from odradek.controller import elect_leaders
from odradek.controller.context import ControllerContext, ControllerSettings
from odradek.controller.election import Cause
from odradek.controller.events import (
    BrokersChanged,
    ContextLoaded,
    ElectionRequested,
    Leadership,
    ShutdownRequested,
    StatesWritten,
    WriteStates,
)
from odradek.controller.step import MAX_CONFLICTS, step
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import NO_LEADER, BrokerId, ControllerEpoch, TopicPartition
from tests.controller.transcript import brokers
from tests.controller.values import partition_state, topic_assignment

LED_BY_SECOND = TopicPartition("t", 0)
LED_BY_FIRST = TopicPartition("t", 1)
LEADERLESS = TopicPartition("t", 2)
DELETED = TopicPartition("going", 0)


@pytest.fixture
def context() -> ControllerContext:
    """Return the context of a cluster where brokers 1 and 2 are alive, and 3 is not."""
    states = {
        LED_BY_SECOND: partition_state(2, 0, (1, 2), 1),
        LED_BY_FIRST: partition_state(1, 0, (1, 2), 1),
        LEADERLESS: partition_state(NO_LEADER, 4, (3,), 1),
        DELETED: partition_state(1, 0, (1,), 1),
    }
    loaded = ContextLoaded(
        brokers=brokers(["1", "2"]),
        topics={
            "t": topic_assignment({0: (1, 2), 1: (1, 2), 2: (3, 2)}),
            "going": topic_assignment({0: (1,)}),
        },
        leaderships={one: Leadership(state, 0) for one, state in states.items()},
        unclean={},
        deletions=frozenset({"going"}),
    )
    return step(ControllerContext(BrokerId(1), ControllerEpoch(1), ControllerSettings()), loaded)[0]


def elect(
    context: ControllerContext, cause: Cause, *partitions: TopicPartition
) -> ControllerContext:
    """Hold elections whose writes all succeed; return the next context."""
    context, actions = step(context, ElectionRequested(partitions, cause))
    for action in actions:
        if isinstance(action, WriteStates):
            context, _ = step(context, StatesWritten(written=dict(action.updates)))
    return context


@pytest.mark.parametrize(
    ("cause", "codes"),
    [
        (
            Cause.PREFERRED,
            {
                LED_BY_FIRST: ErrorCode.ELECTION_NOT_NEEDED,
                DELETED: ErrorCode.INVALID_TOPIC_EXCEPTION,
                TopicPartition("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            },
        ),
        (
            Cause.UNCLEAN,
            {
                LED_BY_FIRST: ErrorCode.ELECTION_NOT_NEEDED,
                LED_BY_SECOND: ErrorCode.ELECTION_NOT_NEEDED,
                DELETED: ErrorCode.INVALID_TOPIC_EXCEPTION,
                TopicPartition("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            },
        ),
    ],
)
def test_elections_are_held_only_where_they_are_needed(
    context: ControllerContext, cause: Cause, codes: dict[TopicPartition, ErrorCode]
) -> None:
    named = [LED_BY_SECOND, LED_BY_FIRST, LEADERLESS, DELETED, TopicPartition("t", 9)]
    refused = elect_leaders.refusals(context, named, cause)
    assert {one: refusal.code for one, refusal in refused.items()} == codes


def test_preferred_election_elects_the_preferred_replica_or_fails(
    context: ControllerContext,
) -> None:
    after = elect(context, Cause.PREFERRED, LED_BY_SECOND, LEADERLESS)
    outcomes = elect_leaders.outcomes(after, [LED_BY_SECOND, LEADERLESS], Cause.PREFERRED)
    assert outcomes[LED_BY_SECOND] == 1
    outcome = outcomes[LEADERLESS]
    assert isinstance(outcome, KafkaError)
    assert outcome.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_unclean_election_elects_a_live_replica_that_is_not_in_sync(
    context: ControllerContext,
) -> None:
    after = elect(context, Cause.UNCLEAN, LEADERLESS)
    assert elect_leaders.outcomes(after, [LEADERLESS], Cause.UNCLEAN) == {LEADERLESS: 2}
    assert after.leaderships[LEADERLESS].state.isr == (2,)


def test_unclean_election_without_live_replicas_fails(context: ControllerContext) -> None:
    outcome = elect_leaders.outcomes(context, [LEADERLESS], Cause.UNCLEAN)[LEADERLESS]
    assert isinstance(outcome, KafkaError)
    assert outcome.code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_only_elections_that_an_in_sync_replica_can_win_depend_on_a_state(
    context: ControllerContext,
) -> None:
    named = [LED_BY_SECOND, LED_BY_FIRST, LEADERLESS, DELETED, TopicPartition("t", 9)]
    preferred = elect_leaders.depend_on_isr(context, named, Cause.PREFERRED)
    assert preferred == [LED_BY_SECOND], "broker 3 is down"
    assert elect_leaders.depend_on_isr(context, named, Cause.UNCLEAN) == [LEADERLESS]
    leaving, _ = step(context, ShutdownRequested(BrokerId(1)))
    assert not elect_leaders.depend_on_isr(leaving, [LED_BY_SECOND], Cause.PREFERRED)


def test_preferred_election_is_given_up_after_many_conflicts_in_a_row(
    context: ControllerContext,
) -> None:
    context, actions = step(context, ElectionRequested((LED_BY_SECOND,), Cause.PREFERRED))
    writes = 0
    while any(isinstance(action, WriteStates) for action in actions):
        writes += 1
        newer = Leadership(partition_state(2, 0, (1, 2), 1), writes)
        context, actions = step(context, StatesWritten({}, conflicts={LED_BY_SECOND: newer}))
    assert writes == MAX_CONFLICTS
    assert not context.causes
    assert not context.conflicts
    outcome = elect_leaders.outcomes(context, [LED_BY_SECOND], Cause.PREFERRED)[LED_BY_SECOND]
    assert isinstance(outcome, KafkaError)
    assert outcome.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_a_partition_never_stays_without_leader_for_conflicts(context: ControllerContext) -> None:
    context, actions = step(context, BrokersChanged({BrokerId(2): context.brokers[BrokerId(2)]}))
    for version in range(1, 3 * MAX_CONFLICTS):
        newer = Leadership(partition_state(1, 0, (1, 2), 1), version)
        context, actions = step(context, StatesWritten({}, conflicts={LED_BY_FIRST: newer}))
        (write,) = [action for action in actions if isinstance(action, WriteStates)]
        assert write.updates[LED_BY_FIRST] == Leadership(partition_state(2, 1, (2,), 1), version)
