"""A broker with more partitions than descriptors serves all of them, also after a restart."""

from __future__ import annotations

import resource
from pathlib import Path

import confluent_kafka

from tests.support.broker import STEADY, Cluster
from tests.support.clients import QUIET, consume_all, create_topic

DESCRIPTORS = 150
PARTITIONS = 80


def write_to_each(bootstrap: str, value: bytes) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **QUIET})
    failed: list[object] = []
    for partition in range(PARTITIONS):
        producer.produce(
            "many",
            value,
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(120) == 0
    assert not failed


def test_partitions_outnumber_descriptors(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, settings=STEADY)
    broker = cluster.brokers[1]
    broker.spawn_limits = {resource.RLIMIT_NOFILE: DESCRIPTORS}
    with cluster:
        create_topic(cluster.bootstrap, "many", PARTITIONS)
        write_to_each(cluster.bootstrap, b"before")
        broker.terminate()
        broker.start()
        write_to_each(cluster.bootstrap, b"after")
        found = consume_all(cluster.bootstrap, "many", PARTITIONS, 2 * PARTITIONS)
        assert sorted(found) == [b"after"] * PARTITIONS + [b"before"] * PARTITIONS
        assert "Too many open files" not in broker.log_text()
