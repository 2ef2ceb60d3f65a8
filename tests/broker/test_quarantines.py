"""Real brokers go on where their code raises exceptions that nobody foresaw (`faulty_broker`)."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from prometheus_client.parser import text_string_to_metric_families

from tests.support.broker import STEADY, Cluster, FreshBroker, await_partitions, wait_until
from tests.support.clients import QUIET, consume_all, create_topic, produce_all
from tests.support.faulty_broker import SICK
from tests.support.ports import free_port

SOUND = "sound"
BROKERS = 2


class FaultyBroker(FreshBroker):
    """A broker with faults while the file `faults` is there."""

    faults: Path

    def __init__(
        self, directory: Path, broker_id: int, connect: str, settings: Mapping[str, str]
    ) -> None:
        self.metrics_port = free_port()
        with_metrics = {**settings, "odradek.metrics.port": str(self.metrics_port)}
        super().__init__(directory, broker_id, connect, with_metrics)
        self.faults = directory / "faults"

    def _command(self) -> list[str]:
        module = "tests.support.faulty_broker"
        return [sys.executable, "-m", module, str(self.faults), "broker"]

    def quarantines(self, name: str) -> dict[str, float]:
        """Return a metric by kind."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
        return {
            sample.labels["kind"]: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        }


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    settings = {
        **STEADY,
        "offsets.topic.replication.factor": "2",
        "offsets.topic.num.partitions": "1",
        "replica.lag.time.max.ms": "5000",
        "log.retention.check.interval.ms": "500",
    }
    kinds: Any = dict.fromkeys(range(1, BROKERS + 1), FaultyBroker)
    with Cluster(tmp_path, BROKERS, settings, kinds) as running:
        yield running


def seen(cluster: Cluster, name: str, *kinds: str) -> bool:
    """Return whether each of the kinds has a value above zero on some broker."""
    found: list[dict[str, float]] = [
        broker.quarantines(name)
        for broker in cluster.brokers.values()
        if isinstance(broker, FaultyBroker)
    ]
    return all(any(one[kind] for one in found) for kind in kinds)


def test_one_sick_partition_and_group_leave_the_rest_of_the_cluster_as_it_is(
    cluster: Cluster, tmp_path: Path
) -> None:
    for topic in (SICK, SOUND):
        create_topic(cluster.bootstrap, topic, replicas=BROKERS)
    faults = tmp_path / "faults"
    faults.touch()
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, **QUIET})
    producer.produce(SICK, b"sick")  # acks=all: it waits for the follower
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": SICK,
            "auto.offset.reset": "earliest",
            **QUIET,
        }
    )
    consumer.subscribe([SOUND])
    # Its rebalance delay ends by the group's timer.
    consumer.poll(1)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    # The new role of the sick topic cannot be sent.
    admin.create_partitions([NewPartitions(SICK, 2)])[SICK].result(120)
    wait_until(
        lambda: seen(
            cluster,
            "odradek_quarantines_total",
            "copying",
            "isr-check",
            "maintenance",
            "channel",
            "group",
        ),
        "the exceptions were counted",
    )
    assert seen(cluster, "odradek_quarantined", "copying", "maintenance")
    create_topic(cluster.bootstrap, "later", replicas=BROKERS)
    for topic in (SOUND, "later"):
        assert produce_all(cluster.bootstrap, topic, [b"a", b"b"]) == [0, 1]
        assert consume_all(cluster.bootstrap, topic, 1, 2) == [b"a", b"b"]
    faults.unlink()
    assert producer.flush(120) == 0
    await_partitions(cluster, SICK, 2)
    wait_until(lambda: consumer.poll(1) is not None, "the sick group reads")
    consumer.close()
    assert consume_all(cluster.bootstrap, SICK, 2, 1) == [b"sick"]
    wait_until(
        lambda: (
            not any(
                sum(broker.quarantines("odradek_quarantined").values())
                for broker in cluster.brokers.values()
                if isinstance(broker, FaultyBroker)
            )
        ),
        "nothing is in quarantine",
    )
    assert all(broker.running for broker in cluster.brokers.values())
