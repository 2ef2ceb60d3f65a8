"""Kafka's TopicCommand and ConfigCommand, through ZooKeeper and through the brokers (O)."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from odradek.zk import znodes
from tests.support.broker import Cluster, await_partitions, wait_until
from tests.support.kafka_peer import Tools

TOPICS = "kafka.admin.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"


@pytest.mark.parametrize("way", ["--zookeeper", "--bootstrap-server"])
def test_a_topic_is_created_described_grown_and_deleted(
    cluster: Cluster, tools: Tools, way: str
) -> None:
    address = cluster.zookeeper.connect if way == "--zookeeper" else cluster.bootstrap
    topic = "made" + way.replace("-", "_")
    at = (way, address)
    shape = ("--partitions", "3", "--replication-factor", "2", "--config", "retention.ms=99000")
    said = tools.run(TOPICS, *at, "--create", "--topic", topic, *shape)
    assert f"Created topic {topic}." in said
    await_partitions(cluster, topic, 3)

    with cluster.zookeeper.client() as client:
        path = znodes.topic_path(topic)
        topic_id = znodes.decode_topic(path, client.get(path)[0]).topic_id
    assert znodes.is_topic_id(topic_id)
    described = tools.run(TOPICS, *at, "--describe", "--topic", topic).splitlines()
    assert described[0].split("\t") == [
        f"Topic: {topic}",
        # No answer of a broker carries it.
        *([f"TopicId: {topic_id}"] if way == "--zookeeper" else []),
        "PartitionCount: 3",
        "ReplicationFactor: 2",
        "Configs: retention.ms=99000",
    ]
    for number, line in enumerate(described[1:]):
        fields = dict(field.split(": ", 1) for field in line.strip().split("\t"))
        assert fields["Partition"] == str(number)
        assert fields["Leader"] == fields["Replicas"].split(",")[0]
        assert sorted(fields["Isr"].split(",")) == ["1", "2"]

    tools.run(TOPICS, *at, "--alter", "--topic", topic, "--partitions", "5")
    await_partitions(cluster, topic, 5)
    assert topic in tools.run(TOPICS, *at, "--list").split()

    tools.run(TOPICS, *at, "--delete", "--topic", topic)
    await_partitions(cluster, topic, 0)
    # Brokers are told at once; the znode goes when each replica is deleted.
    with cluster.zookeeper.client() as client:
        path = znodes.topic_path(topic)
        wait_until(lambda: client.exists(path) is None, "the topic's znode is gone")
    refused = tools.run(TOPICS, *at, "--describe", "--topic", topic, statuses=[1])
    assert f"Topic '{topic}' does not exist as expected" in refused


def too_large(cluster: Cluster, topic: str, size: int) -> bool:
    """Whether the broker refuses a record of `size` bytes."""
    errors: list[str | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    producer.produce(
        topic,
        b"x" * size,
        b"key",
        on_delivery=lambda error, _: errors.append(error.name() if error else None),
    )
    assert producer.flush(120) == 0
    assert errors in ([None], ["MSG_SIZE_TOO_LARGE"])
    return errors != [None]


def test_settings_of_a_topic_are_changed_and_obeyed(cluster: Cluster, tools: Tools) -> None:
    topic = "configured"
    tools.run(TOPICS, "--bootstrap-server", cluster.bootstrap, "--create", "--topic", topic)
    await_partitions(cluster, topic, 1)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    by_znode = (CONFIGS, "--zookeeper", cluster.zookeeper.connect, *entity)
    by_broker = (CONFIGS, "--bootstrap-server", cluster.bootstrap, *entity)

    tools.run(*by_znode, "--alter", "--add-config", "max.message.bytes=2000,flush.messages=7")
    wait_until(lambda: too_large(cluster, topic, 5000), "the brokers obey the znode's change")
    wanted = "max.message.bytes=9000,cleanup.policy=[compact,delete]"
    tools.run(*by_broker, "--alter", "--add-config", wanted, "--delete-config", "flush.messages")
    wait_until(lambda: not too_large(cluster, topic, 5000), "the brokers obey the request")

    said = tools.run(*by_znode, "--describe")
    assert said.strip().endswith("cleanup.policy=compact,delete,max.message.bytes=9000")
    lines = [line.split() for line in tools.run(*by_broker, "--describe").splitlines()[1:]]
    assert {line[0] for line in lines} == {
        "cleanup.policy=compact,delete",
        "max.message.bytes=9000",
    }
    everything = tools.run(*by_broker, "--describe", "--all")
    assert "max.message.bytes=9000 sensitive=false synonyms={" in everything
    assert "DYNAMIC_TOPIC_CONFIG:max.message.bytes=9000" in everything
    assert "DEFAULT_CONFIG:message.max.bytes=1048588" in everything


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ("nonsense=1", "InvalidConfigurationException: Unknown topic config name: nonsense"),
        ("retention.ms=soon", "InvalidRequestException: Invalid config value"),
    ],
)
def test_impossible_settings_are_refused(
    cluster: Cluster, tools: Tools, entry: str, error: str
) -> None:
    tools.run(
        *(TOPICS, "--bootstrap-server", cluster.bootstrap),
        *("--create", "--if-not-exists", "--topic", "refused"),
    )
    await_partitions(cluster, "refused", 1)
    refused = tools.run(
        *(CONFIGS, "--bootstrap-server", cluster.bootstrap, "--alter"),
        *("--entity-type", "topics", "--entity-name", "refused", "--add-config", entry),
        statuses=[1],
    )
    assert error in refused


def test_settings_of_brokers_are_changed_and_obeyed(cluster: Cluster, tools: Tools) -> None:
    at = (CONFIGS, "--bootstrap-server", cluster.bootstrap, "--entity-type", "brokers")
    tools.run(*at, "--entity-default", "--alter", "--add-config", "message.max.bytes=2000")
    wait_until(lambda: too_large(cluster, "defaults", 5000), "every topic has the new default")
    tools.run(*at, "--entity-name", "1", "--alter", "--add-config", "log.flush.interval.ms=70000")
    told = (
        "DYNAMIC_BROKER_CONFIG:log.flush.interval.ms=70000",
        "DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=2000",
    )

    def described() -> bool:
        said = tools.run(*at, "--entity-name", "1", "--describe", "--all")
        return all(one in said for one in told)

    wait_until(described, "broker 1 has its own setting, and the default of all")
    tools.run(*at, "--entity-default", "--alter", "--delete-config", "message.max.bytes")
    wait_until(lambda: not too_large(cluster, "defaults", 5000), "the old default is back")
    refused = tools.run(
        *at, "--entity-name", "1", "--alter", "--add-config", "broker.rack=r", statuses=[1]
    )
    assert "Cannot update these configs dynamically" in refused


def test_pools_and_limits_of_a_running_broker_are_changed(cluster: Cluster, tools: Tools) -> None:
    at = (CONFIGS, "--bootstrap-server", cluster.bootstrap, "--entity-type", "brokers")
    pools = "num.io.threads=12,num.network.threads=4,log.cleaner.threads=2,num.replica.fetchers=2"
    tools.run(*at, "--entity-default", "--alter", "--add-config", pools)
    tools.run(*at, "--entity-name", "2", "--alter", "--add-config", "max.connections.per.ip=500")
    told = (
        "num.io.threads=12 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:"
        "num.io.threads=12, DEFAULT_CONFIG:num.io.threads=8}",
        "num.network.threads=4 sensitive=false",
        "DYNAMIC_BROKER_CONFIG:max.connections.per.ip=500",
    )

    def described() -> bool:
        said = tools.run(*at, "--entity-name", "2", "--describe", "--all")
        return all(one in said for one in told)

    wait_until(described, "broker 2 has its own limit, and the pools of all")
    too_far = (*at, "--entity-default", "--alter", "--add-config", "num.io.threads=100")
    refused = tools.run(*too_far, statuses=[1])
    assert "Dynamic thread count update validation failed for num.io.threads=100" in refused
    names = "num.io.threads,num.network.threads,log.cleaner.threads,num.replica.fetchers"
    tools.run(*at, "--entity-default", "--alter", "--delete-config", names)
    tools.run(*at, "--entity-name", "2", "--alter", "--delete-config", "max.connections.per.ip")

    def forgotten() -> bool:
        return "num.io" not in tools.run(*at, "--entity-default", "--describe")

    wait_until(forgotten, "the broker that is asked knows of the deletion")
