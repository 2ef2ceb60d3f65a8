"""Apache Kafka's own programs, unmodified, and a cluster of this project's brokers for them.

The jars come with Maven on first use. Where they cannot be had these tests fail: without them
nothing is known about the tools.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.broker import STEADY, Cluster
from tests.support.kafka_peer import Tools

SETTINGS = {
    **STEADY,
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "2",
}


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    """Kafka's command-line tools."""
    with Tools(tmp_path_factory.mktemp("tools")) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers; leaders only move back to their preferred brokers when a tool says so."""
    with Cluster(tmp_path_factory.mktemp("cluster"), brokers=2, settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> AdminClient:
    """Looks at the cluster without Kafka's code."""
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
