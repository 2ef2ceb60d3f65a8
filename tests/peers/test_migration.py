"""From Apache Kafka to this broker and back, by Kafka's own reassignment tool (O, C10).

Two brokers, one of each side, and partitions with one replica: at every moment all data is on one
side or on its way to the other. A producer with acks=all and a consumer of a group notice nothing.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker import Cluster, wait_until
from tests.support.clients import QUIET
from tests.support.kafka_broker import OldKafkaBroker
from tests.support.kafka_peer import Tools
from tests.support.traffic import Traffic

KAFKA, OURS = 1, 2
TOPIC = "moving"
SETTINGS = {"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "1"}


def replicas(cluster: Cluster) -> dict[str, list[list[int]]]:
    """Where each topic's partitions are and who leads them, as the brokers that run tell it."""
    [address, *_] = [one.address for one in cluster.brokers.values() if one.running]
    topics = AdminClient({"bootstrap.servers": address, **QUIET}).list_topics(timeout=30).topics
    return {
        name: [[one.leader, *one.replicas] for _, one in sorted(topic.partitions.items())]
        for name, topic in topics.items()
    }


def move_everything(cluster: Cluster, tools: Tools, target: int) -> None:
    """Have one broker lead and hold every partition alone, and the other one none."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": [target]}
        for topic, found in replicas(cluster).items()
        for number in range(len(found))
    ]
    plan = tools.file(f"to-{target}.json", json.dumps({"version": 1, "partitions": partitions}))
    at = ("kafka.admin.ReassignPartitionsCommand", "--bootstrap-server", cluster.bootstrap)
    said = tools.run(*at, "--reassignment-json-file", plan, "--execute")
    assert "Successfully started partition reassignments" in said
    there = [target, target]
    wait_until(
        lambda: all(one == there for found in replicas(cluster).values() for one in found),
        f"everything is on broker {target}",
        180,
    )
    wait_until(
        lambda: (
            not any(
                one.partition_folders(topic)
                for one in cluster.brokers.values()
                if one.broker_id != target
                for topic in (TOPIC, "__consumer_offsets")
            )
        ),
        f"nothing is left but on broker {target}",
    )


def stop(cluster: Cluster, broker_id: int) -> None:
    cluster.brokers[broker_id].signal(signal.SIGTERM)
    cluster.brokers[broker_id].wait()


@pytest.mark.timeout(600)
def test_a_cluster_moves_from_kafka_to_us_and_back(tmp_path: Path, tools: Tools) -> None:
    with Cluster(tmp_path, 2, SETTINGS, {KAFKA: OldKafkaBroker}) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        shape = NewTopic(TOPIC, 2, replica_assignment=[[KAFKA], [KAFKA]])
        admin.create_topics([shape])[TOPIC].result(60)
        with Traffic(cluster, TOPIC) as traffic:
            wait_until(lambda: len(traffic.read) > 100, "records pass")
            move_everything(cluster, tools, OURS)
            stop(cluster, KAFKA)
            before = len(traffic.read)
            wait_until(lambda: len(traffic.read) > before + 100, "records pass without Kafka")
            cluster.brokers[KAFKA].start()
            cluster.wait_for_members()
            move_everything(cluster, tools, KAFKA)
            stop(cluster, OURS)
            before = len(traffic.read)
            wait_until(lambda: len(traffic.read) > before + 100, "records pass without us")
            traffic.end()
        assert sum(traffic.read.values()) == len(traffic.acknowledged)
