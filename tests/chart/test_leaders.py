"""The quickstart's leader table reads what brokers and controller wrote to ZooKeeper."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from examples.quickstart import leaders
from odradek.values import NO_LEADER, BrokerId, ControllerEpoch, LeaderEpoch
from odradek.zk import znodes
from tests.support import zookeeper


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KazooClient]:
    with zookeeper.Server(tmp_path) as server, server.client() as connected:
        yield connected


def test_partitions_are_read_with_leader_isr_and_replicas(client: KazooClient) -> None:
    ids = tuple(BrokerId(i) for i in range(3))
    assignment = znodes.TopicAssignment({0: ids, 1: ids[::-1], 2: ids})
    client.create(znodes.topic_path("t"), znodes.encode_topic(assignment), makepath=True)
    for partition, leader in ((0, ids[0]), (1, NO_LEADER)):
        state = znodes.PartitionState(leader, LeaderEpoch(4), ids[:2], ControllerEpoch(1))
        path = znodes.state_path("t", partition)
        client.create(path, znodes.encode_state(state), makepath=True)

    assert leaders.read(client, "t") == [
        {"partition": 0, "leader": 0, "isr": [0, 1], "replicas": [0, 1, 2]},
        {"partition": 1, "leader": -1, "isr": [0, 1], "replicas": [2, 1, 0]},
    ]


def test_topic_that_does_not_exist_has_no_partitions(client: KazooClient) -> None:
    assert leaders.read(client, "nothing") == []
