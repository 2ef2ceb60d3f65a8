"""Brokers whose places are all taken by clients, and few descriptors: the cluster goes on."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.broker.test_limits import ask
from tests.support.broker import STEADY, Broker, Cluster, FreshBroker, wait_until
from tests.support.clients import QUIET, consume_all, create_topic, produce_all

MOST = 30
FOREIGN_HOST = "127.0.0.9"
DESCRIPTORS = 300


@contextlib.contextmanager
def all_places_taken(broker: Broker) -> Iterator[None]:
    """Clients of an address that is no broker's hold every place, and more of them wait in line."""
    with contextlib.ExitStack() as stack:
        for number in range(2 * MOST):
            peer = socket.create_connection(("127.0.0.1", broker.port), 60, (FOREIGN_HOST, 0))
            stack.enter_context(peer)
            if number < MOST // 2:
                assert ask(peer)
        yield


def test_brokers_get_through_to_one_whose_places_clients_hold(tmp_path: Path) -> None:
    settings = {
        **STEADY,
        "max.connections": str(MOST),
        "max.connections.per.ip": str(MOST),
        "min.insync.replicas": "2",
    }
    with Cluster(tmp_path, brokers=2, settings=settings, kind=FreshBroker) as cluster:
        create_topic(cluster.bootstrap, "crowded", replicas=2)
        with all_places_taken(cluster.brokers[1]):
            # It fetches from 1, which is the controller and stays in the crowd.
            cluster.crash(2)
            cluster.brokers[2].start()
            wait_until(
                lambda: bool(produce_all(cluster.bootstrap, "crowded", [b"value"])),
                "two replicas are in sync",
            )
        assert consume_all(cluster.bootstrap, "crowded", 1, 1)


def test_connections_get_half_of_the_descriptors_and_an_address_half_of_that(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, settings=STEADY, kind=FreshBroker) as cluster:
        broker = cluster.brokers[1]
        assert broker.terminate() == 0
        broker.spawn_limits = {resource.RLIMIT_NOFILE: DESCRIPTORS}
        broker.start()
        client = AdminClient({"bootstrap.servers": broker.address, **QUIET})
        asked = ConfigResource(ResourceType.BROKER, "1")
        name, too_many = "max.connections", str(DESCRIPTORS // 2 + 1)
        asked.add_incremental_config(
            ConfigEntry(name, too_many, incremental_operation=AlterConfigOpType.SET)
        )
        with pytest.raises(KafkaException, match=f"no more than {DESCRIPTORS // 2}, half"):
            client.incremental_alter_configs([asked])[asked].result(60)
        shown = client.describe_configs([asked])[asked].result(60)
        assert shown["max.connections"].value == str(DESCRIPTORS // 2)
        assert shown["max.connections.per.ip"].value == str(DESCRIPTORS // 4)
        assert shown["max.connection.creation.rate"].value == "1000"
        with contextlib.ExitStack() as stack:
            for host in ("127.0.0.7", "127.0.0.8", FOREIGN_HOST):
                for _ in range(DESCRIPTORS):
                    peer = socket.create_connection(("127.0.0.1", broker.port), 60, (host, 0))
                    stack.enter_context(peer)
            create_topic(cluster.bootstrap, "roomy", partitions=5)
            assert len(produce_all(cluster.bootstrap, "roomy", [b"value"] * 10, 5)) == 10
        assert "too many connections from this address" in broker.log_text()
        assert "Too many open files" not in broker.log_text()
