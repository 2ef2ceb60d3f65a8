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


def test_settings_of_one_topic_are_news_for_its_own_partitions_only() -> None:
    event = events.UncleanChanged("topic-3", enabled=True)
    few, many = (steps.count(step, cluster_of(topics), event) for topics in (FEW, MANY))
    assert few == many
