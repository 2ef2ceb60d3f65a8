"""Programs of Apache Kafka 0.10.2, unmodified: message formats 0 and 1, requests of fixed versions,
positions in ZooKeeper (P1-P3, G1, O, Z6-Z8)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from odradek.zk import znodes
from tests.support import kafka_peer
from tests.support.broker import Cluster, await_partitions, wait_until
from tests.support.clients import consume_all, create_topic, produce_all
from tests.support.kafka_peer import PATIENT_PRODUCER, Tools
from tests.support.sampling import some_of

WAYS = some_of(["--bootstrap-server", "--zookeeper"], ["--zookeeper"])
CODECS = ("none", "gzip", "snappy", "lz4")
# The frame of lz4 is the one that old clients write in another way.
OLD_CODECS = some_of(CODECS, ("none", "lz4"))
# By default brokers have a second to tell who leads.
PATIENT_SHELL = ("kafka.tools.GetOffsetShell", "--max-wait-ms", "60000")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools(tmp_path_factory.mktemp("old"), release=kafka_peer.OLD)


def settings(admin: AdminClient, topic: str, *names: str) -> list[str | None]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(60)
    return [found[name].value for name in names]


def topic_id(cluster: Cluster, topic: str) -> str | None:
    path = znodes.topic_path(topic)
    with cluster.zookeeper.client() as client:
        return znodes.decode_topic(path, client.get(path)[0]).topic_id


def test_topics_are_made_described_grown_configured_and_deleted_through_zookeeper(
    cluster: Cluster, admin: AdminClient, old: Tools
) -> None:
    command = ("kafka.admin.TopicCommand", "--zookeeper", cluster.zookeeper.connect)
    shape = ("--partitions", "2", "--replication-factor", "2", "--config", "retention.ms=99000")
    old.run(*command, "--create", "--topic", "ancient", *shape)
    await_partitions(cluster, "ancient", 2)
    said = old.run(*command, "--describe", "--topic", "ancient").splitlines()
    assert said[0].split() == [
        *("Topic:ancient", "PartitionCount:2", "ReplicationFactor:2"),
        "Configs:retention.ms=99000",
    ]
    assert all("Leader: " in line and "Isr: " in line for line in said[1:])
    given = topic_id(cluster, "ancient")
    assert znodes.is_topic_id(given)
    old.run(*command, "--alter", "--topic", "ancient", "--partitions", "3")
    await_partitions(cluster, "ancient", 3)
    # The tool drops it, the brokers restore it.
    assert topic_id(cluster, "ancient") == given
    entity = ("--entity-type", "topics", "--entity-name", "ancient")
    configs = ("kafka.admin.ConfigCommand", *command[1:], *entity)
    old.run(*configs, "--alter", "--add-config", "retention.ms=88000,segment.bytes=77777")
    wait_until(
        lambda: settings(admin, "ancient", "retention.ms", "segment.bytes") == ["88000", "77777"],
        "the brokers know the settings",
    )
    old.run(*configs, "--alter", "--delete-config", "segment.bytes")
    described = old.run(*configs, "--describe").strip()
    assert described == "Configs for topic 'ancient' are retention.ms=88000"
    old.run(*command, "--delete", "--topic", "ancient")
    await_partitions(cluster, "ancient", 0)


@pytest.fixture(scope="module")
def written(cluster: Cluster, old: Tools) -> list[str]:
    """Lines of the topic `old-lines`, of each codec by 0.10.2 and of each by a new client."""
    create_topic(cluster.bootstrap, "old-lines", 1, 2)
    lines: list[str] = []
    for codec in OLD_CODECS:
        some = [f"{codec}-{number}:value {number} " + "x" * 50 for number in range(20)]
        old.run(
            *(*PATIENT_PRODUCER, "--broker-list", cluster.bootstrap),
            *(
                "--topic",
                "old-lines",
                "--compression-codec",
                codec,
                "--request-required-acks",
                "-1",
            ),
            *("--property", "parse.key=true", "--property", "key.separator=:"),
            stdin="\n".join(some) + "\n",
        )
        lines += some
    for codec in CODECS:
        some = [f"new {codec} {number}" for number in range(20)]
        values = [one.encode() for one in some]
        settings: dict[str, Any] = {"compression.type": codec}
        produce_all(cluster.bootstrap, "old-lines", values, **settings)
        lines += [f"null:{one}" for one in some]
    return lines


@pytest.mark.full(
    "tests/peers/test_old_tools.py::test_old_consumers_read_what_old_and_new_producers_wrote"
)
def test_new_clients_read_what_old_producers_wrote(cluster: Cluster, written: list[str]) -> None:
    found = consume_all(cluster.bootstrap, "old-lines", 1, len(written))
    assert [one.decode() for one in found] == [one.split(":", 1)[1] for one in written]


@pytest.mark.parametrize("way", WAYS)
def test_old_consumers_read_what_old_and_new_producers_wrote(
    cluster: Cluster, old: Tools, written: list[str], way: str
) -> None:
    address = cluster.zookeeper.connect if way == "--zookeeper" else cluster.bootstrap
    properties = {
        "group.id": f"old-readers{way}",
        "auto.commit.interval.ms": "200",
        # Longer than a busy machine keeps a member from being heard.
        "session.timeout.ms": "30000",
        "zookeeper.session.timeout.ms": "30000",
        "zookeeper.connection.timeout.ms": "60000",
    }
    text = "".join(f"{key}={value}\n" for key, value in properties.items())
    group = old.file(f"group{way}.properties", text)
    said = old.run(
        *("kafka.tools.ConsoleConsumer", way, address, "--topic", "old-lines"),
        *("--from-beginning", "--max-messages", str(len(written)), "--timeout-ms", "120000"),
        *("--property", "print.key=true", "--property", "key.separator=:"),
        *("--consumer.config", group),
    )
    assert said.splitlines() == written


def test_groups_of_both_kinds_are_described(
    cluster: Cluster, old: Tools, written: list[str]
) -> None:
    addresses = {
        "--zookeeper": cluster.zookeeper.connect,
        "--bootstrap-server": cluster.bootstrap,
    }
    for way in WAYS:
        address = addresses[way]
        said = old.run("kafka.admin.ConsumerGroupCommand", way, address, "--list")
        assert f"old-readers{way}" in said.split()


def test_single_partitions_are_read_and_measured(
    cluster: Cluster, old: Tools, written: list[str]
) -> None:
    at = ("--broker-list", cluster.bootstrap, "--topic", "old-lines")
    said = old.run(*PATIENT_SHELL, *at, "--time", "-1")
    assert said.split() == [f"old-lines:0:{len(written)}"]
    said = old.run(
        *("kafka.tools.SimpleConsumerShell", *at, "--partition", "0", "--offset", "-2"),
        # It waits as long for the leader's name as for records at the end of the log.
        *("--no-wait-at-logend", "--max-wait-ms", "5000"),
    )
    *values, farewell = said.splitlines()
    assert values == [one.split(":", 1)[1] for one in written]
    assert farewell.endswith(f"at offset {len(written)}")


@pytest.mark.full("tests/peers/test_old_tools.py::test_single_partitions_are_read_and_measured")
def test_reading_begins_at_an_offset_and_segments_are_found_by_time(
    cluster: Cluster, old: Tools, written: list[str]
) -> None:
    said = old.run(
        *("kafka.tools.ConsoleConsumer", "--bootstrap-server", cluster.bootstrap),
        *("--topic", "old-lines", "--partition", "0", "--offset", "45"),
        *("--max-messages", str(len(written) - 45), "--timeout-ms", "60000"),
    )
    assert said.splitlines() == [one.split(":", 1)[1] for one in written[45:]]
    at = ("--broker-list", cluster.bootstrap, "--topic", "old-lines", "--offsets", "9")
    tomorrow = time.time_ns() // 1_000_000 + 86_400_000
    for moment, found in ((tomorrow, f"{len(written)},0"), (1, "")):
        said = old.run(*PATIENT_SHELL, *at, "--time", str(moment))
        assert said.split() == [f"old-lines:0:{found}"]


def test_the_scala_producer_writes_what_everybody_reads(cluster: Cluster, old: Tools) -> None:
    create_topic(cluster.bootstrap, "scala", 1, 2)
    lines = [f"line {number}" for number in range(30)]
    old.run(
        *(*PATIENT_PRODUCER, "--broker-list", cluster.bootstrap, "--old-producer"),
        *("--topic", "scala", "--compression-codec", "gzip", "--request-required-acks", "1"),
        stdin="\n".join(lines) + "\n",
    )
    found = consume_all(cluster.bootstrap, "scala", 1, len(lines))
    assert sorted(one.decode() for one in found) == sorted(lines)
