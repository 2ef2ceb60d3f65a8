"""Moves of partitions between real brokers that are killed meanwhile (C10, R7)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from odradek.zk import znodes
from tests.support.broker import Cluster, start_together, wait_until

PARTITIONS = 6
RECORDS = 600
TARGET = (4, 3)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Four brokers that copy in small pieces: a throttle lets the piece that exceeds it pass."""
    settings = {"replica.fetch.max.bytes": "10000", "replica.fetch.response.max.bytes": "10000"}
    with Cluster(tmp_path, brokers=4, settings=settings) as running:
        yield running


@pytest.fixture
def zookeeper(cluster: Cluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper.connect)
    client.start()
    yield client
    client.stop()
    client.close()


def controller(client: KazooClient) -> int | None:
    try:
        return int(json.loads(client.get(znodes.CONTROLLER_PATH)[0])["brokerid"])
    except NoNodeError:
        return None


def placed(client: KazooClient, topic: str) -> znodes.TopicAssignment:
    path = znodes.topic_path(topic)
    return znodes.decode_topic(path, client.get(path)[0])


def change(bootstrap: str, kind: ResourceType, name: str, key: str, text: str) -> None:
    operation = AlterConfigOpType.SET
    wanted = ConfigResource(
        kind, name, incremental_configs=[ConfigEntry(key, text, incremental_operation=operation)]
    )
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.incremental_alter_configs([wanted])[wanted].result(60)


def fill(cluster: Cluster, topic: str) -> list[bytes]:
    """Acknowledged records, the same number in every partition."""
    values = [b"%d " % number + bytes(2000) for number in range(RECORDS)]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return values


def read(cluster: Cluster, topic: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[bytes] = []

    def has_read_all() -> bool:
        found.extend(one.value() or b"" for one in consumer.consume(1000, 1) if not one.error())
        return len(found) >= RECORDS

    wait_until(has_read_all, "every record is read")
    consumer.close()
    return found


def test_moves_end_though_the_controller_and_a_broker_of_the_target_are_killed(
    cluster: Cluster, zookeeper: KazooClient
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    shape = NewTopic("t", PARTITIONS, replica_assignment=[[1, 2]] * PARTITIONS)
    admin.create_topics([shape])["t"].result(60)
    values = fill(cluster, "t")
    # 20 kB/s: what is to be copied takes a minute unless the limit goes.
    throttled = "follower.replication.throttled"
    change(cluster.brokers[4].address, ResourceType.BROKER, "4", f"{throttled}.rate", "20000")
    change(cluster.bootstrap, ResourceType.TOPIC, "t", f"{throttled}.replicas", "*")
    wanted = {znodes.TopicPartition("t", number): TARGET for number in range(PARTITIONS)}
    zookeeper.create(znodes.REASSIGN_PARTITIONS_PATH, znodes.encode_reassignment(wanted))
    wait_until(lambda: len(placed(zookeeper, "t").adding) == PARTITIONS, "all moves have begun")

    first = controller(zookeeper)
    assert first is not None
    cluster.brokers[first].kill()
    wait_until(lambda: controller(zookeeper) not in (None, first), "another is controller")
    cluster.brokers[4].kill()
    assert zookeeper.exists(znodes.REASSIGN_PARTITIONS_PATH)
    zookeeper.delete(znodes.broker_config_path("4"))
    start_together(cluster.brokers[number] for number in {first, 4})

    wait_until(
        lambda: placed(zookeeper, "t") == znodes.TopicAssignment(dict.fromkeys(range(6), TARGET)),
        "the partitions have moved",
    )
    wait_until(lambda: not zookeeper.exists(znodes.REASSIGN_PARTITIONS_PATH), "the request is gone")
    wait_until(
        lambda: not any(cluster.brokers[number].partition_folders("t") for number in (1, 2)),
        "the old replicas are deleted",
    )
    assert sorted(read(cluster, "t")) == sorted(values)


def test_broker_that_was_down_when_its_replicas_moved_away_deletes_them_when_it_is_back(
    cluster: Cluster, zookeeper: KazooClient
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    shapes = [
        NewTopic(topic, PARTITIONS, replica_assignment=[[1, 2]] * PARTITIONS)
        for topic in ("t", "stays")
    ]
    for created in admin.create_topics(shapes).values():
        created.result(60)
    values = fill(cluster, "t")
    cluster.brokers[1].kill()
    wanted = {znodes.TopicPartition("t", number): TARGET for number in range(PARTITIONS)}
    zookeeper.create(znodes.REASSIGN_PARTITIONS_PATH, znodes.encode_reassignment(wanted))
    wait_until(lambda: not zookeeper.exists(znodes.REASSIGN_PARTITIONS_PATH), "the move is over")

    assert len(cluster.brokers[1].partition_folders("t")) == PARTITIONS
    cluster.brokers[1].start()
    wait_until(lambda: not cluster.brokers[1].partition_folders("t"), "what is left is deleted")
    assert len(cluster.brokers[1].partition_folders("stays")) == PARTITIONS
    assert sorted(read(cluster, "t")) == sorted(values)
