"""The work of the controller's core grows linearly with brokers and partitions: `make simulate` has
1000 brokers and 200 000 partitions.
"""

from __future__ import annotations

import pytest

from odradek.controller import events
from odradek.controller.step import step
from tests.simulator.large_cluster import LargeCluster, run
from tests.support import steps

# More than twice the steps for twice the partitions would be more than linear; topics differ a bit.
MOST_GROWTH = 2.1


@pytest.mark.parametrize(("brokers", "partitions"), [(10, 1000), (100, 2000)])
def test_each_change_makes_the_work_that_it_must_and_no_more(brokers: int, partitions: int) -> None:
    run(brokers, partitions)


def test_new_controller_describes_a_partition_once_for_all_brokers() -> None:
    few, many = (steps.count(LargeCluster(brokers, 300).load) for brokers in (10, 100))
    assert many < 2 * few


def test_steps_of_a_new_controller_grow_with_the_partitions() -> None:
    once, twice = (steps.count(LargeCluster(10, partitions).load) for partitions in (300, 600))
    assert twice < MOST_GROWTH * once


def test_death_of_a_broker_costs_little_of_each_partition_elsewhere() -> None:
    clusters = [LargeCluster(brokers, 300) for brokers in (30, 60)]
    counts = []
    for cluster in clusters:
        cluster.load()
        left = {one: live for one, live in cluster.brokers.items() if one != 2}
        counts.append(steps.count(step, cluster.context, events.BrokersChanged(left)))
    assert counts[1] < counts[0], "half as many replicas died"
