"""Elections on request (KIP-460): when they are held, and their results."""

import pytest

from odradek.controller import elect_leaders
from odradek.controller.context import ControllerContext, ControllerSettings
from odradek.controller.election import Cause
from odradek.controller.events import (
    ContextLoaded,
    ElectionRequested,
    Leadership,
    StatesWritten,
    WriteStates,
)
from odradek.controller.step import step
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import NO_LEADER, TopicPartition
from odradek.zk.znodes import PartitionState, TopicAssignment
from tests.controller.transcript import brokers

LED_BY_SECOND = TopicPartition("t", 0)
LED_BY_FIRST = TopicPartition("t", 1)
LEADERLESS = TopicPartition("t", 2)
DELETED = TopicPartition("going", 0)


@pytest.fixture
def context():
    """Return the context of a cluster where brokers 1 and 2 are alive, and 3 is not."""
    states = {
        LED_BY_SECOND: PartitionState(2, 0, (1, 2), 1),
        LED_BY_FIRST: PartitionState(1, 0, (1, 2), 1),
        LEADERLESS: PartitionState(NO_LEADER, 4, (3,), 1),
        DELETED: PartitionState(1, 0, (1,), 1),
    }
    loaded = ContextLoaded(
        brokers=brokers(["1", "2"]),
        topics={
            "t": TopicAssignment({0: (1, 2), 1: (1, 2), 2: (3, 2)}),
            "going": TopicAssignment({0: (1,)}),
        },
        leaderships={one: Leadership(state, 0) for one, state in states.items()},
        unclean={},
        deletions=frozenset({"going"}),
    )
    return step(ControllerContext(1, 1, ControllerSettings()), loaded)[0]


def elect(context, cause, *partitions):
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
def test_elections_are_held_only_where_they_are_needed(context, cause, codes):
    named = [LED_BY_SECOND, LED_BY_FIRST, LEADERLESS, DELETED, TopicPartition("t", 9)]
    refused = elect_leaders.refusals(context, named, cause)
    assert {one: refusal.code for one, refusal in refused.items()} == codes


def test_preferred_election_elects_the_preferred_replica_or_fails(context):
    after = elect(context, Cause.PREFERRED, LED_BY_SECOND, LEADERLESS)
    outcomes = elect_leaders.outcomes(after, [LED_BY_SECOND, LEADERLESS], Cause.PREFERRED)
    assert outcomes[LED_BY_SECOND] == 1
    assert outcomes[LEADERLESS].code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_unclean_election_elects_a_live_replica_that_is_not_in_sync(context):
    after = elect(context, Cause.UNCLEAN, LEADERLESS)
    assert elect_leaders.outcomes(after, [LEADERLESS], Cause.UNCLEAN) == {LEADERLESS: 2}
    assert after.leaderships[LEADERLESS].state.isr == (2,)


def test_unclean_election_without_live_replicas_fails(context):
    outcome = elect_leaders.outcomes(context, [LEADERLESS], Cause.UNCLEAN)[LEADERLESS]
    assert isinstance(outcome, KafkaError)
    assert outcome.code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
