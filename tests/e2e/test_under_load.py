"""Replicas move and brokers restart while a client produces: no loss, no error."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest

from tests.e2e.test_quickstart import topic
from tests.support.clients import consume_all, settings
from tests.support.kubectl import Kubectl, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

PARTITIONS = 4


@contextmanager
def load(bootstrap: str, name: str) -> Iterator[list[bytes]]:
    """Produce with acks=all and default retries; yield the list of acknowledged values."""
    acknowledged: list[bytes] = []
    errors: list[object] = []
    stop = threading.Event()

    def note(error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            acknowledged.append(message.value() or b"")
        else:
            errors.append(error)

    def write() -> None:
        producer = confluent_kafka.Producer(
            {**settings(bootstrap), "acks": "all", "enable.idempotence": True}
        )
        for number in itertools.count():
            if stop.is_set():
                break
            value = b"%08d" % number + b"." * 1000
            producer.produce(name, value, partition=number % PARTITIONS, on_delivery=note)
            producer.poll(0.002)
        errors.extend(["not delivered"] * producer.flush(300))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield acknowledged
    finally:
        stop.set()
        writer.join()
    assert errors == []


def wait_for(kubectl: Kubectl, kind: str, name: str, reason: str) -> None:
    def probe() -> bool:
        condition = kubectl.condition(kind, name)
        assert condition.get("reason") == reason, condition
        return True

    eventually(probe, f"{kind} {name} {reason}", 600)


def leaders(
    bootstrap: str, name: str, count: int, partitions: int = PARTITIONS
) -> dict[int, list[int]]:
    """Return the replicas per partition, once the metadata has `count` for each."""
    client = confluent_kafka.admin.AdminClient(settings(bootstrap))

    def told() -> dict[int, list[int]]:
        known = client.list_topics(timeout=60).topics
        listed = known[name].partitions if name in known else {}
        found = {one: list(each.replicas) for one, each in listed.items()}
        assert sorted(found) == list(range(partitions))
        assert {len(replicas) for replicas in found.values()} == {count}
        return found

    return eventually(told, f"{name} has {count} replicas of each partition")


def test_partitions_move_under_load_and_nothing_acknowledged_is_lost(
    kubectl: Kubectl, healthy: None, bootstrap: str
) -> None:
    name = "moved-under-load"
    # One replica is enough at first, whatever the cluster's default asks for.
    config = {"min.insync.replicas": "1"}
    kubectl.apply(topic(name, partitions=PARTITIONS, replicationFactor=1, config=config))
    wait_for(kubectl, "topic", name, "Synced")
    before = leaders(bootstrap, name, count=1)
    moves: list[dict[str, Any]] = [
        {"topic": name, "partition": one, "replicas": [(replicas[0] + 1) % 3]}
        for one, replicas in before.items()
    ]
    wanted = {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "Reassignment",
        "metadata": {"name": name},
        "spec": {
            "clusterRef": {"name": "main"},
            "mode": "Explicit",
            "moves": moves,
            "throttleBytesPerSec": 20_000_000,
            "maxConcurrentPartitions": 2,
        },
    }
    with load(bootstrap, name) as acknowledged:
        eventually(lambda: len(acknowledged) > 500, "a first load", 120, 0.2)
        kubectl.apply(wanted)
        wait_for(kubectl, "reassignment", name, "Completed")
        # And the topic itself asks for more replicas.
        kubectl.apply(topic(name, partitions=PARTITIONS, replicationFactor=3, config=config))
        wait_for(kubectl, "topic", name, "Synced")
        reached = len(acknowledged)
        eventually(lambda: len(acknowledged) > reached + 200, "load after the moves", 120, 0.2)
    status = kubectl.get("reassignment", name)["status"]
    assert status["partitions"] == {"total": PARTITIONS, "done": PARTITIONS, "failed": 0}
    assert status["percent"] == 100
    after = leaders(bootstrap, name, count=3)
    assert {one: replicas[0] for one, replicas in after.items()} == {
        one["partition"]: one["replicas"][0] for one in moves
    }
    assert all(sorted(replicas) == [0, 1, 2] for replicas in after.values())
    read = consume_all(bootstrap, name, PARTITIONS, len(acknowledged))
    assert sorted(read) == sorted(acknowledged)
    kubectl("delete", "reassignment", name, "--timeout=120s")
    kubectl("delete", "topic", name, "--timeout=120s")


def roll_brokers(kubectl: Kubectl, backoff_ms: int) -> set[str]:
    """Change the brokers' template, wait until all have it, and return their former uids."""

    def pods() -> dict[str, str]:
        found = kubectl.get("pods", "", "-l", "app.kubernetes.io/component=broker")["items"]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}

    before = pods()
    change = {"spec": {"brokers": {"config": {"replica.fetch.backoff.ms": str(backoff_ms)}}}}
    kubectl("patch", "kafkacluster", "main", "--type=merge", f"--patch={json.dumps(change)}")

    def all_replaced() -> bool:
        after = pods()
        assert set(after) == set(before)
        return not set(after.values()) & set(before.values())

    eventually(all_replaced, "three new pods", 600)
    wait_for(kubectl, "kafkacluster", "main", "BrokersReady")
    return set(before.values())


def test_brokers_take_a_new_template_one_by_one_while_a_client_writes(
    kubectl: Kubectl, healthy: None, bootstrap: str
) -> None:
    name = "rolled-under-load"
    kubectl.apply(topic(name, partitions=PARTITIONS, replicationFactor=3))
    wait_for(kubectl, "topic", name, "Synced")

    with load(bootstrap, name) as acknowledged:
        eventually(lambda: len(acknowledged) > 500, "a first load", 120, 0.2)
        rolled = roll_brokers(kubectl, backoff_ms=999)
    read = consume_all(bootstrap, name, PARTITIONS, len(acknowledged))
    assert sorted(read) == sorted(acknowledged)
    told = [
        one
        for one in kubectl.get("events")["items"]
        if one["reason"] == "BrokerRolled" and one["involvedObject"]["name"] == "main"
    ]
    assert len(told) >= len(rolled)
    kubectl("delete", "topic", name, "--timeout=120s")
