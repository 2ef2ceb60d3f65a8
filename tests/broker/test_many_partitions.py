"""A broker with more partitions than descriptors serves all of them, also after a restart.

One that has no descriptor left refuses new replicas, and loses none of those that it has.
"""

from __future__ import annotations

import re
import resource
import urllib.request
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker import STEADY, Broker, Cluster, FreshBroker, wait_until
from tests.support.clients import QUIET, await_leaders, consume_all, create_topic
from tests.support.ports import free_port

DESCRIPTORS = 150
# A broker opens more at its start, which it keeps, so it can open nothing while it may have so few.
NONE_LEFT = 8
PARTITIONS = 80
METRICS_PORT = free_port()


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


def refused_replicas() -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=60) as answer:
        found = re.search(rb"^odradek_refused_replicas_total (\d+)", answer.read(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def refuse_new_replicas(broker: Broker) -> None:
    """Let the broker become leader of a new partition while it has no descriptor left.

    No log has one open, which it could close.
    """
    client = AdminClient({"bootstrap.servers": broker.address, **QUIET})

    def is_refused() -> bool:
        return "refused-0: failed to create the log" in broker.log_text()

    def has_no_leader() -> bool:
        topic = client.list_topics(timeout=30).topics.get("refused")
        return topic is not None and [one.leader for one in topic.partitions.values()] == [-1]

    # It connects while there are descriptors.
    asked = client.create_topics([NewTopic("refused", 1, 1)], validate_only=True)
    asked["refused"].result(60)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (NONE_LEFT, DESCRIPTORS))
    client.create_topics([NewTopic("refused", 1, 1)])["refused"].result(60)
    wait_until(is_refused, "the replica is refused")
    wait_until(has_no_leader, "the controller knows that the replica failed")
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    wait_until(lambda: refused_replicas() > 0, "the refused replica is counted")
    assert "LimitNOFILE" in broker.log_text()
    assert "is offline" not in broker.log_text()
    assert not re.search(r"ZooKeeper session \S+ is suspended", broker.log_text())


def test_partitions_outnumber_descriptors(tmp_path: Path) -> None:
    settings = {**STEADY, "odradek.metrics.port": str(METRICS_PORT)}
    cluster = Cluster(tmp_path, settings=settings, kind=FreshBroker)
    broker = cluster.brokers[1]
    broker.spawn_limits = {resource.RLIMIT_NOFILE: DESCRIPTORS}
    with cluster:
        create_topic(cluster.bootstrap, "many", PARTITIONS)
        refuse_new_replicas(broker)
        shortages = broker.log_text().count("Too many open files")
        write_to_each(cluster.bootstrap, b"before")
        broker.terminate()
        broker.start()
        await_leaders(cluster.bootstrap, "refused")
        write_to_each(cluster.bootstrap, b"after")
        found = consume_all(cluster.bootstrap, "many", PARTITIONS, 2 * PARTITIONS)
        assert sorted(found) == [b"after"] * PARTITIONS + [b"before"] * PARTITIONS
        assert broker.log_text().count("Too many open files") == shortages
