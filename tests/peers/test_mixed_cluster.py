"""Apache Kafka 2.8.2 and this project's brokers in one cluster, as users are while they move.

Kafka speaks as 2.1 (inter.broker.protocol.version). Either side is controller, leads, follows,
leaves in good order and is killed, under a load whose history is judged as that of `make chaos`:
nothing acknowledged is lost or twice, and every replica, of either side, holds the same bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from odradek.coordination.partitioning import partition_of
from odradek.zk import znodes
from tests.chaos import load as chaos_load
from tests.chaos.load import Load
from tests.chaos.run import PLACES, Verdict, note_stuck, observe, out_of_sync
from tests.support.broker import Cluster, wait_until
from tests.support.clients import QUIET
from tests.support.kafka_broker import OldKafkaBroker
from tests.support.sampling import how_many

OFFSETS = "__consumer_offsets"
KAFKA = 2
OURS = (1, 3)
# One group for each partition of __consumer_offsets.
GROUPS = {partition_of(f"clerk-{letter}", 3): f"clerk-{letter}" for letter in "abcdefgh"}

# Answers of a coordinator that is just moving.
MOVING = (
    confluent_kafka.KafkaError.NOT_COORDINATOR,
    confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
    confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    confluent_kafka.KafkaError._TRANSPORT,
    confluent_kafka.KafkaError._TIMED_OUT,
    confluent_kafka.KafkaError._WAIT_COORD,
)


# A JVM on a busy machine may pause for seconds.
SETTINGS = {"zookeeper.session.timeout.ms": "8000"}


class Steps:
    """What is done to the cluster, each followed by a look at what clients see."""

    def __init__(self, cluster: Cluster, client: KazooClient, load: Load, verdict: Verdict) -> None:
        self._cluster = cluster
        self._client = client
        self._load = load
        self._verdict = verdict
        self._done = 0
        # Per partition of __consumer_offsets, who was seen to coordinate it.
        self.coordinators: dict[int, list[int]] = {index: [] for index in GROUPS}

    def make_controller(self, broker_id: int) -> None:
        """Have this broker win the race for the office: the others are stopped meanwhile."""
        others = [one for one in self._cluster.brokers.values() if one.broker_id != broker_id]
        with contextlib.ExitStack() as stopped:
            for one in others:
                one.signal(signal.SIGSTOP)
                stopped.callback(one.signal, signal.SIGCONT)
            with contextlib.suppress(NoNodeError):
                self._client.retry(self._client.delete, znodes.CONTROLLER_PATH)
            wait_until(lambda: self.controller() == broker_id, f"{broker_id} is controller")
        self._everywhere(
            lambda one: one.list_topics(timeout=30).controller_id == broker_id,
            f"{broker_id} is known as controller",
        )
        self.settle(f"{broker_id} became controller")

    def controller(self) -> int | None:
        """Who holds the office."""
        try:
            data = self._read(znodes.CONTROLLER_PATH)
        except NoNodeError:
            return None
        return znodes.decode_controller(znodes.CONTROLLER_PATH, data).broker_id

    def restart(self, broker_id: int, number: signal.Signals) -> None:
        """End a broker by a signal and start it again."""
        broker = self._cluster.brokers[broker_id]
        broker.signal(number)
        broker.wait()
        self.commit()
        broker.start()
        self.settle(f"{broker_id} was sent {number.name}")

    def settle(self, what: str) -> None:
        """Wait until all is well: everyone in sync, preferred leaders lead, records and commits
        are taken.
        """
        self._done += 1
        here = f"step {self._done}, {what}"
        note_stuck(self._verdict, f"not in sync, {here}", lambda: out_of_sync(self._client))
        note_stuck(self._verdict, f"others lead, {here}", self._led_by_others)
        since = time.monotonic_ns()
        note_stuck(self._verdict, f"no progress, {here}", lambda: self._load.behind(since))
        self.commit()

    def _led_by_others(self) -> list[str]:
        found = []
        offsets = [(OFFSETS, index) for index in GROUPS]
        for topic, index in [*PLACES, *offsets]:
            path = znodes.topic_path(topic)
            replicas = znodes.decode_topic(path, self._read(path)).partitions[index]
            leader = self._leader(topic, index)
            if leader != replicas[0]:
                found.append(f"{topic}-{index} is led by {leader}, not {replicas[0]}")
        return found

    def _leader(self, topic: str, index: int) -> int:
        path = znodes.state_path(topic, index)
        return znodes.decode_state(path, self._read(path)).leader

    def _read(self, path: str) -> bytes:
        # Also over the end of the onlooker's own session, which a busy machine may bring.
        return bytes(self._client.retry(self._client.get, path)[0])

    def commit(self) -> None:
        """Each group finds what it committed last, and commits something new."""
        for index, group in GROUPS.items():
            self._commit(group, self.coordinators[index])
            # Not before: while a broker ends, the one that it hands over to takes the commit.
            self.coordinators[index].append(self._leader(OFFSETS, index))

    def _commit(self, group: str, seen: list[int]) -> None:
        settings = {"bootstrap.servers": self._cluster.bootstrap, "group.id": group, **QUIET}
        consumer = Consumer(settings)
        [found] = _asked_until_told(lambda: consumer.committed([TopicPartition("left", 0)], 60))
        assert found.offset == (len(seen) or confluent_kafka.OFFSET_INVALID), group
        wanted = [TopicPartition("left", 0, len(seen) + 1)]
        _asked_until_told(lambda: consumer.commit(offsets=wanted, asynchronous=False))
        consumer.close()

    def administer(self, topic: str) -> None:
        """Create, change, grow and delete a topic; every broker is told."""
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, **QUIET})
        wanted = NewTopic(topic, 3, 3, config={"retention.ms": "70000"})
        admin.create_topics([wanted], operation_timeout=60)[topic].result(120)
        self._everywhere(lambda one: len(_partitions(one, topic)) == 3, f"{topic} is known")
        entry = ConfigEntry("retention.ms", "80000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(120)
        self._everywhere(lambda one: _retention(one, topic) == "80000", f"{topic} is configured")
        admin.create_partitions([confluent_kafka.admin.NewPartitions(topic, 4)])[topic].result(120)
        self._everywhere(lambda one: len(_partitions(one, topic)) == 4, f"{topic} has grown")
        admin.delete_topics([topic], operation_timeout=60)[topic].result(120)
        self._everywhere(lambda one: not _partitions(one, topic), f"{topic} is gone")
        wait_until(
            lambda: not any(one.partition_folders(topic) for one in self._cluster.brokers.values()),
            f"no broker keeps {topic}",
        )

    def _everywhere(self, told: Callable[[AdminClient], bool], what: str) -> None:
        for broker in self._cluster.brokers.values():
            admin = AdminClient({"bootstrap.servers": broker.address, **QUIET})
            wait_until(partial(told, admin), f"{what} at {broker.broker_id}")


def _partitions(admin: AdminClient, topic: str) -> list[int]:
    found = admin.list_topics(timeout=30).topics.get(topic)
    return [] if found is None or found.error else list(found.partitions)


def _retention(admin: AdminClient, topic: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(120)
    return str(found["retention.ms"].value)


def _asked_until_told(ask: Callable[[], list[TopicPartition]]) -> list[TopicPartition]:
    """Ask the coordinator, again where it is just moving."""
    found: list[TopicPartition] = []

    def told() -> bool:
        try:
            found[:] = ask()
        except confluent_kafka.KafkaException as refusal:
            if not refusal.args[0].retriable() and refusal.args[0].code() not in MOVING:
                raise AssertionError(str(refusal)) from refusal
            return False
        return all(one.error is None for one in found)

    wait_until(told, "the coordinator answers")
    return found


@pytest.mark.timeout(1200)
@pytest.mark.full(
    "tests/peers/test_secured_migration.py::test_secured_cluster_rolls_from_kafka_to_us_and_back"
)
def test_both_sides_take_every_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = how_many(30, full=chaos_load.RECORDS_PER_SECOND)
    monkeypatch.setattr(chaos_load, "RECORDS_PER_SECOND", rate)
    all_steps = how_many(0, full=1)
    found: list[Steps] = []

    def scenario(cluster: Cluster, client: KazooClient, load: Load, verdict: Verdict) -> None:
        steps = Steps(cluster, client, load, verdict)
        found.append(steps)
        steps.make_controller(OURS[0])
        steps.administer("under-us")
        steps.restart(KAFKA, signal.SIGTERM)
        if all_steps:
            steps.restart(OURS[1], signal.SIGTERM)
            steps.restart(KAFKA, signal.SIGKILL)
        steps.make_controller(KAFKA)
        steps.administer("under-kafka")
        steps.restart(OURS[0], signal.SIGTERM)
        if all_steps:
            steps.restart(OURS[1], signal.SIGKILL)
            steps.restart(KAFKA, signal.SIGKILL)

    verdict = observe(tmp_path, scenario, {KAFKA: OldKafkaBroker}, SETTINGS)
    assert verdict.violations == {}, str(verdict)
    assert verdict.acknowledged > 500
    [steps] = found
    # Some group's coordinator was Kafka, then one of ours, then Kafka again.
    assert any(
        [side for side, _ in itertools.groupby(one == KAFKA for one in seen)].count(True) > 1
        for seen in steps.coordinators.values()
    ), steps.coordinators
