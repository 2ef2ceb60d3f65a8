"""Records that DeleteRecords was acknowledged for stay deleted, whatever is killed afterwards."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient

from odradek.log.partition import checkpoints
from odradek.values import TopicPartition
from odradek.zk import znodes
from tests.support.broker import STEADY, Cluster, start_together, wait_until
from tests.support.clients import QUIET, await_leaders, create_topic, produce_all

TOPIC = "by-law"


def delete_before(bootstrap: str, offset: int) -> int:
    part = confluent_kafka.TopicPartition(TOPIC, 0, offset)
    client = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    return int(client.delete_records([part])[part].result(60).low_watermark)


def start_of(bootstrap: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g", **QUIET})
    start, _ = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(TOPIC, 0), 60)
    consumer.close()
    return int(start)


def test_deleted_records_stay_deleted_when_every_replica_is_killed_at_the_answer(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, brokers=2, settings=STEADY) as cluster:
        create_topic(cluster.bootstrap, TOPIC, replicas=2)
        produce_all(cluster.bootstrap, TOPIC, [b"%d" % number for number in range(100)])
        with cluster.zookeeper.client() as client:

            def state() -> znodes.PartitionState:
                path = znodes.state_path(TOPIC, 0)
                return znodes.decode_state(path, client.get(path)[0])

            wait_until(lambda: len(state().isr) == 2, "both in sync")
        assert delete_before(cluster.bootstrap, 70) == 70
        for broker_id in cluster.brokers:
            cluster.crash(broker_id)
        for broker in cluster.brokers.values():
            path = str(broker.log_dir / checkpoints.LOG_START_OFFSETS)
            assert checkpoints.read_offsets(path)[TopicPartition(TOPIC, 0)] == 70
        start_together(cluster.brokers.values())
        cluster.wait_for_members()
        await_leaders(cluster.bootstrap, TOPIC)
        assert start_of(cluster.bootstrap) == 70
