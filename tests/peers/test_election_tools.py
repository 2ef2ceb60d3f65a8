"""Kafka's tools for leader elections, preferred and unclean (C11, O)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.zk import znodes
from tests.peers.conftest import SETTINGS
from tests.support.broker import Cluster, wait_until
from tests.support.clients import make_topic
from tests.support.elections import ElectedTopic
from tests.support.kafka_peer import Tools
from tests.support.sampling import how_many

ELECTION = "kafka.admin.LeaderElectionCommand"
PREFERRED_BY_ZNODE = "kafka.admin.PreferredReplicaLeaderElectionCommand"
RETURNS = how_many(3, full=50)
UNTOLD: tuple[int, list[int]] = (-1, [])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers, to be killed."""
    with Cluster(tmp_path_factory.mktemp("cluster"), brokers=2, settings=SETTINGS) as running:
        yield running


def state(cluster: Cluster, topic: str) -> tuple[int, list[int]]:
    """Leader and in-sync replicas of partition 0, as a living broker tells them; UNTOLD where that
    one has just started.
    """
    living = next(broker for broker in cluster.brokers.values() if broker.running)
    client = AdminClient({"bootstrap.servers": living.address, "log_level": 0})
    found = client.list_topics(timeout=30).topics.get(topic)
    if found is None or 0 not in found.partitions:
        return UNTOLD
    return found.partitions[0].leader, sorted(found.partitions[0].isrs)


def test_preferred_leaders_return_when_a_tool_asks(
    cluster: Cluster, admin: AdminClient, tools: Tools
) -> None:
    topics = ("by-znode", "by-request")
    for one in topics:
        make_topic(admin, NewTopic(one, 1, replica_assignment=[[2, 1]]))
    cluster.crash(2)
    wait_until(lambda: all(state(cluster, one)[0] == 1 for one in topics), "broker 1 leads")
    cluster.brokers[2].start()
    wait_until(lambda: all(state(cluster, one) == (1, [1, 2]) for one in topics), "2 is in sync")

    named = {"partitions": [{"topic": "by-znode", "partition": 0}]}
    tools.run(
        PREFERRED_BY_ZNODE,
        *("--zookeeper", cluster.zookeeper.connect),
        *("--path-to-json-file", tools.file("preferred.json", json.dumps(named))),
    )
    wait_until(lambda: state(cluster, "by-znode")[0] == 2, "broker 2 leads the named topic")
    assert state(cluster, "by-request")[0] == 1

    at = (ELECTION, "--bootstrap-server", cluster.bootstrap, "--election-type", "preferred")
    said = tools.run(*at, "--all-topic-partitions")
    assert "Successfully completed leader election (PREFERRED) for partitions by-request-0" in said
    wait_until(lambda: state(cluster, "by-request")[0] == 2, "every broker was told")
    again = tools.run(*at, "--topic", "by-request", "--partition", "0")
    assert "Valid replica already elected" in again
    refused = tools.run(*at, "--topic", "by-request", "--partition", "7", statuses=[1])
    assert "UnknownTopicOrPartitionException: The partition does not exist." in refused


def test_tools_are_not_refused_when_a_broker_has_just_returned(
    cluster: Cluster, tools: Tools, tmp_path: Path
) -> None:
    """The broker that was killed before is the controller, which remembers, each second time."""
    topic = ElectedTopic(cluster, "at-once", [[1, 2], [2, 1]] * 3)
    named = tmp_path / "preferred.json"
    named.write_bytes(znodes.encode_preferred_election(topic.partitions))
    by_request = (
        *("--bootstrap-server", cluster.bootstrap, "--election-type", "preferred"),
        "--all-topic-partitions",
    )
    by_znode = ("--zookeeper", cluster.zookeeper.connect, "--path-to-json-file", named)
    with cluster.zookeeper.client() as client:
        for number in range(RETURNS):
            topic.kill_and_return(client, number % 2 + 1)
            if number % 3 < 2:
                said = tools.run(ELECTION, *by_request)
                assert "Successfully completed leader election (PREFERRED)" in said
            else:
                tools.run(PREFERRED_BY_ZNODE, *by_znode)
                wait_until(
                    lambda: client.exists(znodes.PREFERRED_ELECTION_PATH) is None,
                    "the request is removed",
                )
            assert topic.has_preferred_leaders(client), number


def test_an_unclean_election_makes_a_replica_lead_that_missed_records(
    cluster: Cluster, admin: AdminClient, tools: Tools
) -> None:
    topic = "unclean"
    make_topic(admin, NewTopic(topic, 1, replica_assignment=[[2, 1]]))
    cluster.crash(1)
    wait_until(lambda: state(cluster, topic) == (2, [2]), "broker 2 leads alone")
    producer = Producer({"bootstrap.servers": cluster.brokers[2].address, "log_level": 0})
    producer.produce(topic, b"lost")
    assert producer.flush(120) == 0
    cluster.crash(2)
    cluster.brokers[1].start()
    wait_until(lambda: state(cluster, topic) == (-1, [2]), "nobody leads")

    at = (ELECTION, "--bootstrap-server", cluster.brokers[1].address)
    partition = ("--topic", topic, "--partition", "0")
    refused = tools.run(*at, "--election-type", "preferred", *partition, statuses=[1])
    assert "PreferredLeaderNotAvailableException" in refused
    said = tools.run(*at, "--election-type", "unclean", *partition)
    assert f"Successfully completed leader election (UNCLEAN) for partitions {topic}-0" in said
    wait_until(lambda: state(cluster, topic) == (1, [1]), "broker 1 leads alone")
    cluster.brokers[2].start()
    wait_until(lambda: state(cluster, topic) == (1, [1, 2]), "broker 2 follows")
