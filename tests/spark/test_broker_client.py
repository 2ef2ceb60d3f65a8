"""The driver's own client against a broker."""

from __future__ import annotations

from odradek.values import TopicPartition
from odradek_spark.broker_access import BrokerAccess
from odradek_spark.broker_client import DriverClient
from tests.support import broker
from tests.support.clients import create_topic, produce_all

TOPIC = "asked-again"
PARTITION = TopicPartition(TOPIC, 0)


def test_offsets_are_found_though_the_leader_epoch_is_another_one(cluster: broker.Cluster) -> None:
    """librdkafka names the epoch that it knows, for minutes."""
    create_topic(cluster.bootstrap, TOPIC)
    produce_all(cluster.bootstrap, TOPIC, [b"1", b"2", b"3"])
    client = DriverClient(BrokerAccess(cluster.bootstrap), "asks")
    assert client.end_offsets([PARTITION]) == {PARTITION: 3}
    # Made anew, it begins above the former epochs.
    cluster.delete_topic(TOPIC)
    create_topic(cluster.bootstrap, TOPIC)
    produce_all(cluster.bootstrap, TOPIC, [b"1"])
    assert client.end_offsets([PARTITION]) == {PARTITION: 1}
    assert client.start_offsets([PARTITION]) == {PARTITION: 0}
