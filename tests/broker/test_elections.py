"""Elections that are requested as soon as a broker that was killed is in sync again (C11)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from odradek.values import TopicPartition
from odradek.zk import znodes
from odradek.zk.znodes import PartitionState
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.clients import make_topic
from tests.support.sampling import how_many

TOPIC = "elected"
# Every order of the replicas, twice. Broker 1 is the controller, which remembers.
REPLICAS = [list(order) for order in itertools.permutations((1, 2, 3))] * 2
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(len(REPLICAS))]
RETURNING = (2, 3)
RETURNS = how_many(2, full=50)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers whose leaders move back only on request."""
    directory: Path = tmp_path_factory.mktemp("elections")
    settings = {**STEADY, "auto.leader.rebalance.enable": "false"}
    with Cluster(directory, brokers=3, settings=settings) as running:
        client = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0})
        make_topic(client, NewTopic(TOPIC, len(REPLICAS), replica_assignment=REPLICAS))
        yield running


@pytest.fixture
def zookeeper(cluster: Cluster) -> Iterator[KazooClient]:
    with cluster.zookeeper.client() as client:
        yield client


def states(client: KazooClient) -> list[PartitionState]:
    """Return the states in their znodes, read in one pipeline."""
    paths = [znodes.state_path(TOPIC, one.partition) for one in PARTITIONS]
    asked = [(path, client.get_async(path)) for path in paths]
    return [znodes.decode_state(path, one.get(60)[0]) for path, one in asked]


def preferred_leaders(client: KazooClient) -> bool:
    leaders = [state.leader for state in states(client)]
    return leaders == [replicas[0] for replicas in REPLICAS]


def kill_and_return(cluster: Cluster, client: KazooClient, broker_id: int) -> None:
    """Kill and restart a broker; return at the moment when the znodes have it in sync."""
    cluster.crash(broker_id)
    wait_until(
        lambda: not any(broker_id in state.isr for state in states(client)),
        f"broker {broker_id} is out of sync",
    )
    cluster.brokers[broker_id].start()
    wait_until(
        lambda: all(broker_id in state.isr for state in states(client)),
        f"broker {broker_id} is in sync again",
    )
    assert not preferred_leaders(client)


def test_elections_by_request_are_not_refused_when_a_broker_has_just_returned(
    cluster: Cluster, zookeeper: KazooClient
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for _, broker_id in zip(range(RETURNS), itertools.cycle(RETURNING), strict=False):
        kill_and_return(cluster, zookeeper, broker_id)
        led = sum(replicas[0] == broker_id for replicas in REPLICAS)
        results = admin.elect_leaders(ElectionType.PREFERRED).result(120)
        assert list(results.values()) == [None] * led, results
        assert preferred_leaders(zookeeper)


def test_elections_by_znode_are_not_dropped_when_a_broker_has_just_returned(
    cluster: Cluster, zookeeper: KazooClient
) -> None:
    wanted = znodes.encode_preferred_election(PARTITIONS)
    for _, broker_id in zip(range(RETURNS), itertools.cycle(RETURNING), strict=False):
        kill_and_return(cluster, zookeeper, broker_id)
        zookeeper.create(znodes.PREFERRED_ELECTION_PATH, wanted)
        wait_until(
            lambda: zookeeper.exists(znodes.PREFERRED_ELECTION_PATH) is None,
            "the request is removed",
        )
        assert preferred_leaders(zookeeper)
