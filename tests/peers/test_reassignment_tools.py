"""Kafka's ReassignPartitionsCommand, through ZooKeeper and through the brokers (Z9, C10, O).

A producer and a consumer go on all the while; every acknowledged record must be read once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.zk import znodes
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.clients import kafka_admin
from tests.support.kafka_peer import Tools
from tests.support.sampling import some_of
from tests.support.traffic import Traffic

REASSIGN = "kafka.admin.ReassignPartitionsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
TOPICS = "kafka.admin.TopicCommand"
SIDES = ("leader", "follower")
# 20 kB/s: what has to be copied takes minutes unless the limit goes, and tools take long to start.
SLOW, FAST = "20000", "500000000"
# A throttle lets the piece that exceeds it pass, so brokers copy in small pieces, of small batches.
PIECE = "20000"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers."""
    settings = {
        **STEADY,
        "replica.fetch.max.bytes": PIECE,
        "replica.fetch.response.max.bytes": PIECE,
        "offsets.topic.num.partitions": "3",
    }
    with Cluster(tmp_path_factory.mktemp("cluster"), brokers=3, settings=settings) as running:
        yield running


def make(cluster: Cluster, topic: str, replicas: Sequence[Sequence[int]], megabytes: int) -> None:
    """Create a topic whose partition 0 holds so much."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    shape = NewTopic(topic, len(replicas), replica_assignment=[list(one) for one in replicas])
    admin.create_topics([shape])[topic].result(120)
    settings = {"enable.idempotence": True, "batch.size": PIECE, "log_level": 0}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
    for _ in range(megabytes * 100):
        producer.produce(topic, bytes(10_000), partition=0)
        producer.poll(0)
    assert producer.flush(120) == 0


def wanted(tools: Tools, name: str, topic: str, replicas: Sequence[Sequence[int]]) -> Path:
    """The file that asks for these replicas of the topic's partitions."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": list(one)}
        for number, one in enumerate(replicas)
    ]
    return tools.file(name, json.dumps({"version": 1, "partitions": partitions}))


def are_placed(cluster: Cluster, topic: str, replicas: Sequence[Sequence[int]]) -> bool:
    """Whether every broker tells these replicas, and the controller lists no move any more.

    The tools ask whom they like. Brokers tell the new replicas while the others are being deleted.
    """
    for broker in cluster.brokers.values():
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        found = admin.list_topics(topic, timeout=30).topics[topic].partitions
        if [found[number].replicas for number in sorted(found)] != replicas:
            return False
    with contextlib.closing(
        kafka_admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    ) as client:
        if client.list_partition_reassignments():
            return False
    with cluster.zookeeper.client() as zookeeper:
        return zookeeper.exists(znodes.REASSIGN_PARTITIONS_PATH) is None


def folders(cluster: Cluster, topic: str) -> dict[int, list[str]]:
    """The names of a topic's folders by broker."""
    return {
        number: [folder.name for folder in broker.partition_folders(topic)]
        for number, broker in cluster.brokers.items()
    }


def throttles(cluster: Cluster, topic: str) -> dict[str, str]:
    """All that ZooKeeper holds of throttles, by key."""
    with cluster.zookeeper.client() as client:
        paths = [znodes.topic_config_path(topic), *map(znodes.broker_config_path, "123")]
        entries = [
            znodes.decode_config(path, client.get(path)[0]) for path in paths if client.exists(path)
        ]
    return {key: text for one in entries for key, text in one.items() if "throttled" in key}


@pytest.mark.parametrize("way", some_of(["--zookeeper", "--bootstrap-server"], ["--zookeeper"]))
def test_partitions_move_under_load_throttled_and_verified(
    cluster: Cluster, tools: Tools, way: str
) -> None:
    address = cluster.zookeeper.connect if way == "--zookeeper" else cluster.bootstrap
    topic = "moved" + way.replace("-", "_")
    make(cluster, topic, [[1, 2], [2, 1]], megabytes=5)
    at = (REASSIGN, way, address)
    topics = tools.file("topics.json", json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    proposed = tools.run(
        *at, "--topics-to-move-json-file", topics, "--broker-list", "1,2,3", "--generate"
    )
    assert "Proposed partition reassignment configuration" in proposed
    target = [[3, 2], [3, 1]]
    file = wanted(tools, "wanted.json", topic, target)
    with Traffic(cluster, topic) as traffic:
        move(cluster, tools, way, file, topic, target)
        traffic.end()
    assert sum(traffic.read.values()) == len(traffic.acknowledged) + 500


def move(
    cluster: Cluster, tools: Tools, way: str, file: Path, topic: str, target: list[list[int]]
) -> None:
    """Start the move slowly, look at it, let it run, and verify it."""
    at = (REASSIGN, way, cluster.zookeeper.connect)
    if way == "--bootstrap-server":
        at = (REASSIGN, way, cluster.bootstrap)
    said = tools.run(*at, "--reassignment-json-file", file, "--execute", "--throttle", SLOW)
    assert f"The inter-broker throttle limit was set to {SLOW} B/s" in said
    assert "Successfully started partition reassignments" in said
    slow = tools.run(*at, "--reassignment-json-file", file, "--verify")
    assert f"Reassignment of partition {topic}-0 is still in progress." in slow
    assert throttles(cluster, topic) == {
        "leader.replication.throttled.replicas": "0:1,0:2,1:1,1:2",
        "follower.replication.throttled.replicas": "0:3,1:3",
        "leader.replication.throttled.rate": SLOW,
        "follower.replication.throttled.rate": SLOW,
    }
    if way == "--bootstrap-server":
        assert f"{topic}-0: replicas: 3,2,1. adding: 3. removing: 1." in tools.run(*at, "--list")
        again = ("--execute", "--additional", "--throttle", FAST)
        tools.run(*at, "--reassignment-json-file", file, *again)
    else:
        busy = tools.run(*at, "--reassignment-json-file", file, "--execute", statuses=[1])
        assert "there is an existing partition assignment" in busy
        rates = ",".join(f"{side}.replication.throttled.rate={FAST}" for side in SIDES)
        for number in ("1", "3"):
            broker = ("--entity-type", "brokers", "--entity-name", number)
            tools.run(CONFIGS, *at[1:], "--alter", *broker, "--add-config", rates)
    wait_until(lambda: are_placed(cluster, topic, target), "the partitions have moved")
    verified = tools.run(*at, "--reassignment-json-file", file, "--verify")
    for partition in (0, 1):
        assert f"Reassignment of partition {topic}-{partition} is complete." in verified
    assert throttles(cluster, topic) == {}
    wait_until(
        lambda: (
            folders(cluster, topic)
            == {1: [f"{topic}-1"], 2: [f"{topic}-0"], 3: [f"{topic}-0", f"{topic}-1"]}
        ),
        "replicas that left are deleted",
    )
    described = tools.run(TOPICS, *at[1:], "--describe", "--topic", topic)
    assert "Replicas: 3,2" in described
    assert "Replicas: 3,1" in described


def test_a_move_is_cancelled_and_refused_where_it_cannot_be(cluster: Cluster, tools: Tools) -> None:
    topic = "cancelled"
    make(cluster, topic, [[1, 2]], megabytes=5)
    at = (REASSIGN, "--bootstrap-server", cluster.bootstrap)
    file = wanted(tools, "away.json", topic, [[3]])
    tools.run(*at, "--reassignment-json-file", file, "--execute", "--throttle", "1000")
    assert f"{topic}-0: replicas: 3,1,2. adding: 3. removing: 1,2." in tools.run(*at, "--list")
    said = tools.run(*at, "--reassignment-json-file", file, "--cancel")
    assert f"Successfully cancelled partition reassignment for: {topic}-0" in said
    assert "No partition reassignments found." in tools.run(*at, "--list")
    wait_until(lambda: are_placed(cluster, topic, [[1, 2]]), "the replicas are the old ones")
    wait_until(lambda: not folders(cluster, topic)[3], "the new one is deleted")
    assert throttles(cluster, topic) == {}

    again = tools.run(*at, "--reassignment-json-file", file, "--cancel")
    assert "None of the specified partition reassignments are active." in again
    nowhere = wanted(tools, "nowhere.json", topic, [[1, 9]])
    refused = tools.run(*at, "--reassignment-json-file", nowhere, "--execute", statuses=[1])
    assert "9" in refused
