"""Kafka's Java consumer reads from the follower in its rack (KIP-392)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.config import RACK_AWARE_SELECTOR
from tests.peers.conftest import SETTINGS
from tests.support.broker import Cluster, await_partitions
from tests.support.clients import await_leaders, produce_all
from tests.support.kafka_peer import Tools
from tests.support.racks import BrokerInRack, in_rack

TOPIC = "near"
VALUES = [f"value {number}" for number in range(500)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers in racks of their own."""
    settings = {**SETTINGS, "replica.selector.class": RACK_AWARE_SELECTOR}
    folder = tmp_path_factory.mktemp("racks")
    with Cluster(folder, brokers=2, settings=settings, kind=BrokerInRack) as running:
        yield running


def consume(tools: Tools, cluster: Cluster, rack: str) -> list[str]:
    """Return all values as the console consumer reads them in a rack, by group."""
    said = tools.run(
        *("kafka.tools.ConsoleConsumer", "--bootstrap-server", cluster.bootstrap),
        *("--topic", TOPIC, "--group", f"readers-{rack}", "--from-beginning"),
        *("--consumer-property", f"client.rack={rack}"),
        *("--consumer-property", "max.partition.fetch.bytes=1000"),
        *("--max-messages", str(len(VALUES)), "--timeout-ms", "120000"),
    )
    return said.splitlines()


def test_console_consumer_reads_from_the_follower_in_its_rack(
    cluster: Cluster, admin: AdminClient, tools: Tools
) -> None:
    wanted = NewTopic(TOPIC, 1, replica_assignment=[[1, 2]])
    admin.create_topics([wanted], operation_timeout=60)[TOPIC].result(120)
    await_partitions(cluster, TOPIC, 1)
    await_leaders(cluster.bootstrap, TOPIC)
    values = [one.encode() for one in VALUES]
    produce_all(cluster.bootstrap, TOPIC, values, **{"batch.num.messages": 5})
    leader, follower = (in_rack(cluster, number) for number in (1, 2))
    assert consume(tools, cluster, "rack-2") == VALUES
    assert (leader.bytes_out(TOPIC) > 0, follower.bytes_out(TOPIC) > 0) == (False, True)
    assert consume(tools, cluster, "rack-3") == VALUES
    assert leader.bytes_out(TOPIC) > 0
