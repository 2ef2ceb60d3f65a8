"""What the controller does for one topic does not grow with the number of topics."""

from odradek.controller import events
from odradek.controller.context import ControllerContext
from odradek.controller.events import Leadership
from odradek.controller.step import step
from odradek.values import BrokerId, ControllerEpoch, TopicPartition
from tests.controller.transcript import brokers
from tests.controller.values import partition_state, topic_assignment
from tests.support import steps

FEW, MANY = 10, 500


def cluster_of(topics: int) -> ControllerContext:
    """One broker that leads one partition of each topic."""
    names = [f"topic-{number}" for number in range(topics)]
    loaded = events.ContextLoaded(
        brokers=brokers(["1"]),
        topics={name: topic_assignment({0: [1]}) for name in names},
        leaderships={
            TopicPartition(name, 0): Leadership(partition_state(1, 0, [1], 1), 0) for name in names
        },
    )
    return step(ControllerContext(BrokerId(1), ControllerEpoch(1)), loaded)[0]


def with_failures(topics: int) -> ControllerContext:
    """All replicas have failed, but for that of the first topic."""
    failed = frozenset(TopicPartition(f"topic-{number}", 0) for number in range(1, topics))
    return step(cluster_of(topics), events.ReplicasFailed(BrokerId(1), failed))[0]


def test_answers_and_ends_of_topics_look_at_no_replica_that_failed_elsewhere() -> None:
    answered = events.ReplicasAnswered(BrokerId(1), frozenset({TopicPartition("topic-0", 0)}))
    for event in (answered, events.TopicRemoved("topic-0"), events.TopicRemoved("topic-3")):
        few, many = (steps.count(step, with_failures(topics), event) for topics in (FEW, MANY))
        assert few == many, event
    after = step(with_failures(FEW), events.TopicRemoved("topic-3"))[0]
    assert {one.partition.topic for one in after.failed} == {
        f"topic-{number}" for number in range(1, FEW) if number != 3
    }
    assert after.failures.keys() == after.failed


def test_settings_of_one_topic_are_news_for_its_own_partitions_only() -> None:
    event = events.UncleanChanged("topic-3", enabled=True)
    few, many = (steps.count(step, cluster_of(topics), event) for topics in (FEW, MANY))
    assert few == many
