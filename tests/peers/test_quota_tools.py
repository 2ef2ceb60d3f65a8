"""Kafka's ConfigCommand on client quotas, through ZooKeeper and through the brokers."""

from __future__ import annotations

import pytest

from odradek.protocol.messages.client_quotas import DescribeClientQuotasRequest
from odradek.protocol.messages.metadata import MetadataRequest
from tests.support.broker import Cluster, wait_until
from tests.support.clients import create_topic, produce_all
from tests.support.kafka_peer import Tools
from tests.support.quotas import ask

CONFIGS = "kafka.admin.ConfigCommand"


@pytest.mark.parametrize("way", ["--zookeeper", "--bootstrap-server"])
@pytest.mark.parametrize("kind", ["users", "clients"])
def test_default_quotas_are_set_shown_and_deleted(
    cluster: Cluster, tools: Tools, way: str, kind: str
) -> None:
    address = cluster.zookeeper.connect if way == "--zookeeper" else cluster.bootstrap
    entity = (way, address, "--entity-type", kind, "--entity-default")
    limits = ("consumer_byte_rate=1", "request_percentage=0.0001")
    tools.run(CONFIGS, *entity, "--alter", "--add-config", ",".join(limits))
    wait_until(lambda: all(throttle_times(cluster)), "each broker limits its clients")
    said = tools.run(CONFIGS, *entity, "--describe")
    for limit in limits:
        assert limit in said.replace("1.0E-4", "0.0001").replace("=1.0", "=1")
    tools.run(CONFIGS, *entity, "--alter", "--delete-config", "request_percentage")
    wait_until(lambda: not any(throttle_times(cluster)), "no broker limits the time of requests")
    # Followers fetch without a limit: this is not acknowledged before they have it.
    topic = f"replicated-{kind}{way}"
    create_topic(cluster.bootstrap, topic, replicas=2, config={"min.insync.replicas": "2"})
    assert produce_all(cluster.bootstrap, topic, [b"r" * 10_000] * 20)
    tools.run(CONFIGS, *entity, "--alter", "--delete-config", "consumer_byte_rate")
    asked = DescribeClientQuotasRequest(components=[], strict=False)
    assert ask(cluster.brokers[1], asked, 1).entries == []


def throttle_times(cluster: Cluster) -> list[int]:
    request = MetadataRequest(topics=[])
    return [ask(broker, request, 5).throttle_time_ms for broker in cluster.brokers.values()]


@pytest.mark.parametrize("way", ["--zookeeper", "--bootstrap-server"])
def test_connection_rates_of_addresses_are_set_shown_and_deleted(
    cluster: Cluster, tools: Tools, way: str
) -> None:
    address = cluster.zookeeper.connect if way == "--zookeeper" else cluster.bootstrap
    for entity in (("--entity-name", "127.0.0.9"), ("--entity-default",)):
        at = (way, address, "--entity-type", "ips", *entity)
        tools.run(CONFIGS, *at, "--alter", "--add-config", "connection_creation_rate=1000")
        said = tools.run(CONFIGS, *at, "--describe")
        assert "connection_creation_rate=1000" in said
        listed = DescribeClientQuotasRequest(components=[], strict=False)
        [shown] = ask(cluster.brokers[1], listed, 1).entries or []
        assert [(one.key, one.value) for one in shown.values] == [
            ("connection_creation_rate", 1000.0)
        ]
        tools.run(CONFIGS, *at, "--alter", "--delete-config", "connection_creation_rate")
        assert ask(cluster.brokers[1], listed, 1).entries == []
