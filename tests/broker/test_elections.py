"""Elections that are requested as soon as a broker that was killed is in sync again (C11)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from odradek.zk import znodes
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.elections import ElectedTopic
from tests.support.sampling import how_many

# Every order of the replicas, twice. Broker 1 is the controller, which remembers.
REPLICAS = [list(order) for order in itertools.permutations((1, 2, 3))] * 2
RETURNING = (2, 3)
RETURNS = how_many(2, full=50)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers whose leaders move back only on request."""
    directory: Path = tmp_path_factory.mktemp("elections")
    settings = {**STEADY, "auto.leader.rebalance.enable": "false"}
    with Cluster(directory, brokers=3, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def topic(cluster: Cluster) -> ElectedTopic:
    return ElectedTopic(cluster, "elected", REPLICAS)


@pytest.fixture
def zookeeper(cluster: Cluster) -> Iterator[KazooClient]:
    with cluster.zookeeper.client() as client:
        yield client


def test_elections_by_request_are_not_refused_when_a_broker_has_just_returned(
    cluster: Cluster, topic: ElectedTopic, zookeeper: KazooClient
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for _, broker_id in zip(range(RETURNS), itertools.cycle(RETURNING), strict=False):
        topic.kill_and_return(zookeeper, broker_id)
        results = admin.elect_leaders(ElectionType.PREFERRED).result(120)
        assert list(results.values()) == [None] * topic.preferred_by(broker_id), results
        assert topic.has_preferred_leaders(zookeeper)


def test_elections_by_znode_are_not_dropped_when_a_broker_has_just_returned(
    topic: ElectedTopic, zookeeper: KazooClient
) -> None:
    wanted = znodes.encode_preferred_election(topic.partitions)
    for _, broker_id in zip(range(RETURNS), itertools.cycle(RETURNING), strict=False):
        topic.kill_and_return(zookeeper, broker_id)
        zookeeper.create(znodes.PREFERRED_ELECTION_PATH, wanted)
        wait_until(
            lambda: zookeeper.exists(znodes.PREFERRED_ELECTION_PATH) is None,
            "the request is removed",
        )
        assert topic.has_preferred_leaders(zookeeper)
