"""Moves of partitions between real brokers that are killed meanwhile (C10, R7)."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Consumer
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

from odradek.values import BrokerId, TopicPartition
from odradek.zk import znodes
from tests.support import preloaded
from tests.support.broker import STEADY, Broker, Cluster, start_together, wait_until
from tests.support.clients import await_leaders, make_topic, produce_all
from tests.support.with_metrics import WithMetrics

PARTITIONS = 6
RECORDS = 600
TARGET = (BrokerId(4), BrokerId(3))
BOTH = (BrokerId(1), BrokerId(2))
RATE = 50_000  # bytes a second
WATCHED_WINDOWS = 5  # of a second, in which a throttle lets this many times its rate pass


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Four brokers that copy in small pieces: a throttle lets the piece that exceeds it pass."""
    settings = {"replica.fetch.max.bytes": "10000", "replica.fetch.response.max.bytes": "10000"}
    with Cluster(tmp_path, brokers=4, settings=settings) as running:
        yield running


@pytest.fixture
def zookeeper(cluster: Cluster) -> Iterator[KazooClient]:
    with cluster.zookeeper.client() as client:
        yield client


def controller(client: KazooClient) -> int | None:
    try:
        return int(json.loads(client.get(znodes.CONTROLLER_PATH)[0])["brokerid"])
    except NoNodeError:
        return None


def placed(client: KazooClient, topic: str) -> znodes.TopicAssignment:
    path = znodes.topic_path(topic)
    return replace(znodes.decode_topic(path, client.get(path)[0]), topic_id=None)


def fill(cluster: Cluster, topic: str) -> list[bytes]:
    """Acknowledged records, the same number in every partition."""
    values = [b"%d " % number + bytes(2000) for number in range(RECORDS)]
    produce_all(cluster.bootstrap, topic, values, PARTITIONS)
    return values


def read(cluster: Cluster, topic: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    )
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
    throttled = "follower.replication.throttled"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    shape = NewTopic(
        "t",
        PARTITIONS,
        replica_assignment=[[1, 2]] * PARTITIONS,
        config={f"{throttled}.replicas": "*"},
    )
    make_topic(admin, shape)
    values = fill(cluster, "t")
    # 5 kB/s: what is to be copied takes four minutes unless the limit goes.
    settle_rate(cluster.brokers[4], f"{throttled}.rate", 5000)
    wanted = {TopicPartition("t", number): TARGET for number in range(PARTITIONS)}
    zookeeper.create(znodes.REASSIGN_PARTITIONS_PATH, znodes.encode_reassignment(wanted))
    wait_until(lambda: len(placed(zookeeper, "t").adding) == PARTITIONS, "all moves have begun")

    wait_until(lambda: controller(zookeeper) is not None, "a controller")
    first = controller(zookeeper)
    assert first is not None
    cluster.crash(first)
    wait_until(lambda: controller(zookeeper) not in (None, first), "another is controller")
    cluster.crash(4)
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
    for shape in shapes:
        make_topic(admin, shape)
    values = fill(cluster, "t")
    await_leaders(cluster.bootstrap, "stays", PARTITIONS)
    cluster.crash(1)
    wanted = {TopicPartition("t", number): TARGET for number in range(PARTITIONS)}
    zookeeper.create(znodes.REASSIGN_PARTITIONS_PATH, znodes.encode_reassignment(wanted))
    wait_until(lambda: not zookeeper.exists(znodes.REASSIGN_PARTITIONS_PATH), "the move is over")

    assert len(cluster.brokers[1].partition_folders("t")) == PARTITIONS
    cluster.brokers[1].start()
    wait_until(lambda: not cluster.brokers[1].partition_folders("t"), "what is left is deleted")
    assert len(cluster.brokers[1].partition_folders("stays")) == PARTITIONS
    assert sorted(read(cluster, "t")) == sorted(values)


def settle_rate(broker: Broker, key: str, rate: int) -> None:
    """Set a rate of a running broker and wait until it is in force there."""
    name = str(broker.broker_id)
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    entry = ConfigEntry(key, str(rate), incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.BROKER, name, incremental_configs=[entry])
    admin.incremental_alter_configs([wanted])[wanted].result(60)
    asked = ConfigResource(ResourceType.BROKER, name)

    def is_in_force() -> bool:
        found = admin.describe_configs([asked])[asked].result(60)
        return str(found[key].value) == str(rate)

    wait_until(is_in_force, f"{key} is {rate}")


@pytest.mark.parametrize(("side", "held_back"), [("leader", 1), ("follower", 2)])
def test_either_side_copies_no_faster_than_its_throttle_until_that_is_lifted(
    cluster: Cluster, zookeeper: KazooClient, side: str, held_back: int
) -> None:
    throttled = f"{side}.replication.throttled"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    shape = NewTopic(
        "t",
        PARTITIONS,
        replica_assignment=[[1]] * PARTITIONS,
        config={f"{throttled}.replicas": "*"},
    )
    make_topic(admin, shape)
    size = sum(map(len, fill(cluster, "t")))
    assert size > 2 * WATCHED_WINDOWS * RATE
    settle_rate(cluster.brokers[held_back], f"{throttled}.rate", RATE)

    def copied() -> int:
        folders = cluster.brokers[2].partition_folders("t")
        return sum(one.stat().st_size for folder in folders for one in folder.glob("*.log"))

    wanted = {TopicPartition("t", number): (1, 2) for number in range(PARTITIONS)}
    began = time.monotonic()
    zookeeper.create(znodes.REASSIGN_PARTITIONS_PATH, znodes.encode_reassignment(wanted))
    wait_until(lambda: copied() >= WATCHED_WINDOWS * RATE, "a part is copied")
    # A slow machine copies slower still. Without a throttle everything is there in one window.
    assert time.monotonic() - began > WATCHED_WINDOWS / 2
    settle_rate(cluster.brokers[held_back], f"{throttled}.rate", 1_000_000_000)
    wait_until(
        lambda: placed(zookeeper, "t") == znodes.TopicAssignment(dict.fromkeys(range(6), BOTH)),
        "the partitions have moved",
    )
    assert copied() >= size


def test_replica_that_is_added_is_missing_only_if_it_goes_after_it_was_in_sync(
    tmp_path: Path,
) -> None:
    """As Kafka counts under-replicated partitions, in the metric of the leader and in commands."""
    settings = {**STEADY, "replica.lag.time.max.ms": "6000"}
    with (
        Cluster(tmp_path, brokers=3, settings=settings, kind=WithMetrics) as cluster,
        cluster.zookeeper.client() as client,
    ):
        leader = cluster.brokers[1]
        assert isinstance(leader, WithMetrics)

        def leader_epoch() -> int:
            path = znodes.state_path("t", 0)
            return znodes.decode_state(path, client.get(path)[0]).leader_epoch

        def await_role(epoch: int) -> None:
            role = f"t-0: leader in leader epoch {epoch},"
            wait_until(lambda: role in leader.log_text(), f"broker 1 leads in epoch {epoch}")

        def described(*options: str) -> list[dict[str, object]]:
            command = ("topics", "describe", "t", *options, "-o", "json")
            at = ("--bootstrap-server", leader.address)
            done = preloaded.run("odradek", *command, *at, timeout=120)
            assert (done.returncode, done.stderr) == (0, "")
            found: list[dict[str, object]] = json.loads(done.stdout)
            return found

        def under_replicated() -> tuple[float, int]:
            """Return what the metric of the leader says, and what the command finds."""
            metric = leader.metric("odradek_under_replicated_partitions")
            return metric, len(described("--under-replicated-partitions"))

        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        make_topic(admin, NewTopic("t", 1, replica_assignment=[[1, 2]]))
        await_leaders(cluster.bootstrap, "t")
        produce_all(cluster.bootstrap, "t", [b"1"])
        cluster.crash(3)
        wait_until(lambda: controller(client) in (1, 2), "the controller is up")
        before = leader_epoch()
        wanted = {TopicPartition("t", 0): (1, 2, 3)}
        client.create(znodes.REASSIGN_PARTITIONS_PATH, znodes.encode_reassignment(wanted))
        wait_until(lambda: leader_epoch() > before, "the move has begun")
        await_role(leader_epoch())
        wait_until(lambda: described()[0]["replicas"] == [1, 2, 3], "the leader tells of it")
        assert placed(client, "t").adding == {0: (3,)}
        assert under_replicated() == (0, 0)

        cluster.brokers[3].start()
        whole = znodes.TopicAssignment({0: (BrokerId(1), BrokerId(2), BrokerId(3))})
        wait_until(lambda: placed(client, "t") == whole, "the move is over")
        wait_until(lambda: described()[0]["isr"] == [1, 2, 3], "all are in sync")
        last = leader_epoch()
        await_role(last)
        assert under_replicated() == (0, 0)

        # Its session lasts: the leader removes it from the ISR in the epoch that ended the move.
        cluster.brokers[3].signal(signal.SIGSTOP)
        produce_all(cluster.bootstrap, "t", [b"2"])
        assert leader.metric("odradek_under_replicated_partitions") == 1
        assert leader_epoch() == last
        wait_until(lambda: under_replicated() == (1, 1), "the command misses it, too")
